"""`python -m specsim.controllers`: the registered controllers as a markdown table or as JSON. Owns the wording only."""

from __future__ import annotations

import json
from typing import Any

import click

from specsim.controllers import REGISTRY, ControllerSpec, Param
from specsim.errors import run_cli

SCHEMA_NAME = "specsim.controllers/1"


@click.command()
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document and nothing else.")
def main(as_json: bool) -> None:
    """List the controllers with their parameters, defaults and allowed values."""
    if as_json:
        document = {"schema": SCHEMA_NAME, "controllers": [as_dict(spec) for spec in REGISTRY.values()]}
        click.echo(json.dumps(document, indent=1, allow_nan=False))
        return
    click.echo("| controller | parameters: default; allowed | what it does |")
    click.echo("|---|---|---|")
    for spec in REGISTRY.values():
        items = [f"`{key}`: {default_of(param)}; {param.allowed()}" for key, param in spec.params.items()]
        cells = (f"`{spec.name}`", "<br>".join(items) or "none", spec.doc)
        click.echo("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")


def as_dict(spec: ControllerSpec) -> dict[str, Any]:
    """JSON values describing one registry entry; a default that the trace decides, or that is missing, is null."""
    params = {
        key: {
            "kind": param.kind.__name__,
            "default": param.default,
            "required": is_required(param),
            "allowed": param.allowed(),
            "doc": param.doc,
        }
        for key, param in spec.params.items()
    }
    chooses, kept = list(spec.kinds), not spec.per_request
    return {"name": spec.name, "params": params, "chooses": chooses, "keeps_state": kept, "doc": spec.doc}


def is_required(param: Param) -> bool:
    """Whether the command line must give the parameter."""
    return param.default is None and param.from_setting is None


def default_of(param: Param) -> str:
    """The default in words."""
    if is_required(param):
        return "required"
    if param.default is None:
        # The documentation line of such a parameter says what the trace decides, after "default".
        return param.doc.rpartition("default ")[2] or "from the trace"
    return str(int(param.default)) if param.kind is bool else str(param.default)


if __name__ == "__main__":
    run_cli(main, prog_name="python -m specsim.controllers")
