"""`python -m specsim.regret`: wall-time regret of bandits on arm traces or a synthetic family, and the studies."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
from rich.console import Console

from specsim import controllers as registry
from specsim.errors import ConfigError, run_cli
from specsim.latency import load_latency
from specsim.paths import expand_paths
from specsim.regret.compare import DEFAULT_POLICIES, SCHEMA, compare, print_case
from specsim.regret.family import FAMILIES, make_family
from specsim.regret.outdir import RegretDir
from specsim.regret.studies import STUDIES, print_study
from specsim.regret.worlds import Case, family_case, trace_case

MAX_WORK = 2 * 10**9  # runs x rounds


class _Commands(click.Group):
    """`run` is what happens when no command is named."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if not args or (args[0] not in self.commands and args[0] != "--help"):
            args = ["run", *args]
        return super().parse_args(ctx, args)


@click.group(cls=_Commands)
def main() -> None:
    """Wall-time regret of bandits over draft configurations.

    Without a command name, `run`: python -m specsim.regret --family sharp, or python -m specsim.regret arms.parquet.
    """


def output_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """--json, --out, --force."""
    for option in (
        click.option("--force", is_flag=True, help="Replace a finished --out DIR."),
        click.option("--out", type=click.Path(), metavar="DIR", help="Write results.json, config, provenance."),
        click.option("--json", "as_json", is_flag=True, help="Print the result document and nothing else."),
    ):
        command = option(command)
    return command


@main.command("run")
@click.argument("traces", nargs=-1)
@click.option("--family", type=click.Choice(FAMILIES), help="Synthetic arms instead of a trace; default sharp.")
@click.option("--arms", type=click.IntRange(2, 1000), help="Number of arms.  [default: 14]")
@click.option("--draft-len", type=click.IntRange(1, 64), help="Tokens every arm drafts.  [default: 4, short 8]")
@click.option("--unit-s", type=float, help="Seconds of one target step.  [default: 0.05]")
@click.option("--cheapest", type=float, help="Compute of the first arm, as a share of the target's.  [default: 0.1]")
@click.option("--dearest", type=float, help="Compute of the last arm.  [default: 0.75]")
@click.option("--peak", type=float, help="Compute of the best arm.  [default: 0.3]")
@click.option("--gap-below", type=float, help="Throughput lost 0.05 of compute below the peak, e.g. 0.02.")
@click.option("--gap-above", type=float, help="... above the peak.")
@click.option(
    "--phase-len", type=click.IntRange(1), help="drift, cliff: rounds before the best arm moves.  [default: 1000]"
)
@click.option(
    "--controllers", "-c", multiple=True, metavar="NAME[:KEY=VALUE,...]", help="Repeatable; default: thirteen."
)
@click.option("--rounds", type=click.IntRange(1), help="Rounds of a synthetic run.  [default: 5000]")
@click.option("--quota", type=click.IntRange(1), help="Tokens.  [default: the best arm's in --rounds; half a trace's]")
@click.option("--runs", type=click.IntRange(1), default=40, show_default=True, help="Seeds, or orders of requests.")
@click.option("--seed", type=click.IntRange(0, 2**63 - 1), default=0, show_default=True)
@click.option("--latency", metavar="FILE|preset:NAME", help="Traces: latency model; default: the one inside.")
@click.option("--carry", is_flag=True, help="Traces: keep state between requests.")
@output_options
def run(
    traces: tuple[str, ...],
    controllers: tuple[str, ...],
    latency: str | None,
    carry: bool,
    rounds: int | None,
    quota: int | None,
    runs: int,
    seed: int,
    as_json: bool,
    out: str | None,
    force: bool,
    **family: Any,
) -> None:
    """Regret of each policy against the best single arm over a token quota."""
    spellings = controllers or DEFAULT_POLICIES
    for text in spellings:
        registry.parse_spec(text)
    asked = {key: value for key, value in family.items() if value is not None}
    folder = None if out is None else RegretDir(Path(out), force=force)
    config = {
        "traces": list(traces),
        "controllers": list(spellings),
        "latency": latency,
        "carry": carry,
        "rounds": rounds,
        "quota": quota,
        "runs": runs,
        "seed": seed,
        **asked,
    }
    if traces:
        if asked or rounds is not None:
            option = "--" + next(iter(asked), "rounds").replace("_", "-")
            raise ConfigError(f"{option} is for synthetic families; leave it out, or leave out the traces")
        given = None if latency is None else load_latency(latency)
        cases = [
            trace_case(path, given, quota=quota, runs=runs, seed=seed, carry=carry) for path in expand_paths(traces)
        ]
    else:
        if latency is not None or carry:
            raise ConfigError("--latency and --carry are for traces; name a trace or leave them out")
        cases = [_family(asked, rounds, quota, runs, seed)]
    document = {"schema": SCHEMA, "kind": "comparison", "cases": [compare(case, spellings) for case in cases]}
    _deliver(document, config, folder, as_json, lambda console: [print_case(c, console) for c in document["cases"]])


def _family(asked: dict[str, Any], rounds: int | None, quota: int | None, runs: int, seed: int) -> Case:
    made = make_family(asked.pop("family", "sharp"), **asked)
    if rounds is None:
        # A quota alone: the fewest rounds in which any arm could reach it.
        rounds = 5000 if quota is None else max(1, quota // (made.draft_len + 1))
    if max(rounds, quota or 0) * runs > MAX_WORK:
        raise ConfigError(f"--runs {runs}: allowed are at most {MAX_WORK:.0e} rounds over all runs; lower one of them")
    return family_case(made, rounds=rounds, quota=quota, runs=runs, seed=seed)


@main.command("study")
@click.argument("name", type=click.Choice(list(STUDIES)))
@click.option("--runs", type=click.IntRange(2), help="Runs per policy; default: the study's.")
@click.option("--rounds", type=click.IntRange(1), help="Rounds per run; default: the study's.")
@click.option("--seed", type=click.IntRange(0, 2**63 - 1), default=0, show_default=True)
@output_options
def study(
    name: str, runs: int | None, rounds: int | None, seed: int, as_json: bool, out: str | None, force: bool
) -> None:
    """One question about the bandits, answered by measuring (docs/regret.md)."""
    folder = None if out is None else RegretDir(Path(out), force=force)
    chosen = STUDIES[name]
    result = chosen.run(runs or chosen.runs, rounds or chosen.rounds, seed)
    document = {"schema": SCHEMA, "kind": "study", "study": name, **result}
    config = {"study": name, "runs": runs, "rounds": rounds, "seed": seed}
    _deliver(document, config, folder, as_json, lambda console: print_study(document, console))


def _deliver(
    document: dict[str, Any],
    config: dict[str, Any],
    folder: RegretDir | None,
    as_json: bool,
    show: Callable[[Console], object],
) -> None:
    if folder is not None:
        with folder:
            folder.finish(document, config)
    if as_json:
        click.echo(json.dumps(document, indent=1, allow_nan=False))
    else:
        show(Console())
        if folder is not None:
            click.echo(f"written: {folder.path}")


if __name__ == "__main__":
    run_cli(main, prog_name="python -m specsim.regret")
