"""`python -m specsim.theory check`: arguments and output."""

from __future__ import annotations

import json

import click
from rich.console import Console

from specsim.latency import load_latency
from specsim.paths import expand_paths


@click.command()
@click.argument("traces", nargs=-1, required=True)
@click.option("--latency", metavar="FILE|preset:NAME", help="Latency model; default: the one inside each trace.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document and nothing else.")
@click.option("--seed", type=click.IntRange(0, 2**63 - 1), default=0, show_default=True, help="Of the resampling.")
@click.option(
    "--bootstrap", "resamples", type=click.IntRange(100, 100_000), default=1000, show_default=True, help="Resamples."
)
@click.option(
    "--level",
    type=click.FloatRange(0.5, 0.9999),
    default=0.95,
    show_default=True,
    help="Per property, 1 - level bounds the chance of a violation that noise explains.",
)
def check(traces: tuple[str, ...], latency: str | None, as_json: bool, seed: int, resamples: int, level: float) -> int:
    """Test the theorems' assumptions and conclusions on TRACES, with noise bands by bootstrap over requests.

    Verdicts are `holds` (no violation beyond noise), `violated` and `not decidable` (too few data). They are findings,
    not errors: the exit status is 0.
    """
    from specsim.theory.check import check_trace, document
    from specsim.theory.check_report import print_checked

    paths = expand_paths(traces)
    model = None if latency is None else load_latency(latency)
    done = [check_trace(path, model, seed=seed, resamples=resamples, level=level) for path in paths]
    if as_json:
        click.echo(json.dumps(document(done, seed=seed, resamples=resamples, level=level), indent=1, allow_nan=False))
    else:
        for checked in done:
            print_checked(checked, Console())
    return 0
