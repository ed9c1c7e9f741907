"""Arguments, progress and output of `python -m analysis.recommend`; owns no numbers."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import click
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from analysis.recommend.document import document
from analysis.recommend.outcome import Outcome, passes_of, pool, study
from analysis.recommend.seconds import Source
from analysis.recommend.words import print_document
from specsim.controllers import parse_spec
from specsim.errors import ConfigError, run_cli
from specsim.latency import LatencyModel, load_latency
from specsim.paths import expand_paths
from specsim.quarantine import quarantine_requests, taken_back_on_failure
from specsim.trace import open_trace


@click.command()
@click.argument("traces", nargs=-1, required=True)
@click.option("--latency", metavar="FILE|preset:NAME", help="Latency model; default: the one inside each trace.")
@click.option(
    "--controllers",
    "-c",
    multiple=True,
    metavar="NAME[:KEY=VALUE,...]",
    help="Repeatable; a name alone stands for its grid. Static ones are always in. Default: all that apply.",
)
@click.option("--seed", type=click.IntRange(0, 2**63 - 1), default=0, show_default=True, help="Folds and resampling.")
@click.option("--max-requests", type=click.IntRange(1), help="Only the first N requests of each trace.")
@click.option("--quarantine", type=click.Path(), metavar="DIR", help="Move offending requests there and go on.")
@click.option("--json", "as_json", is_flag=True, help="Print the document specsim.recommendation/1 and nothing else.")
def main(
    traces: tuple[str, ...],
    latency: str | None,
    controllers: tuple[str, ...],
    seed: int,
    max_requests: int | None,
    quarantine: str | None,
    as_json: bool,
) -> None:
    """Say which controller to use on TRACES, with which parameters, what it gains, and how sure that is."""
    for text in controllers:
        parse_spec(text)
    paths = expand_paths(traces)
    given = None if latency is None else load_latency(latency)
    if quarantine is not None:
        _refuse_equal_names(paths, quarantine)
    sources = [_source(path, given, seed, max_requests) for path in paths]
    console = Console(stderr=True)
    columns = (TextColumn("{task.description}", markup=False), BarColumn(), TimeRemainingColumn())
    with ExitStack() as stack:
        side_files = stack.enter_context(taken_back_on_failure())
        if quarantine is not None:
            sources = [_set_aside(source, quarantine, side_files) for source in sources]
        progress = stack.enter_context(
            Progress(*columns, console=console, transient=True, disable=not console.is_terminal)
        )
        outcomes = [_study(source, controllers, progress) for source in sources]
        pooled = pool(outcomes, seed) if len(outcomes) > 1 else None
    result = document(outcomes, pooled, seed)
    if as_json:
        click.echo(json.dumps(result, indent=1, allow_nan=False))
    else:
        print_document(result, Console())


def _refuse_equal_names(paths: Sequence[Path], quarantine: str) -> None:
    stem, times = Counter(path.stem for path in paths).most_common(1)[0]
    if times > 1:
        raise ConfigError(
            f"--quarantine {quarantine}: two traces are called {stem!r}, so their side files would be one; name one of "
            "them at a time"
        )


def _source(path: Path, given: LatencyModel | None, seed: int, max_requests: int | None) -> Source:
    """A trace with its latency model, checked as far as its footer goes."""
    with open_trace(path) as reader:
        meta = reader.meta
    if given is None and meta.latency is None:
        raise ConfigError(
            f"{path}: the trace holds no latency model and none was given; pass --latency FILE or preset:NAME "
            "(docs/latency.md says how to make one)"
        )
    return Source(
        path=path,
        meta=meta,
        latency=given or LatencyModel.from_dict(meta.latency or {}, where=f"{path}: metadata latency"),
        measured_draft=given is None,
        max_requests=max_requests,
        skip=frozenset(),
        seed=seed,
    )


def _set_aside(source: Source, quarantine: str, side_files: list[Path]) -> Source:
    report = quarantine_requests(source.path, quarantine)
    side_files.extend(side for side in (report.side_file, report.report_file) if side is not None)
    return replace(source, skip=report.requests)


def _study(source: Source, asked: Sequence[str], progress: Progress) -> Outcome:
    with open_trace(source.path) as reader:
        rows = reader.rows
    task = progress.add_task(source.path.name, total=rows * passes_of(source))
    try:
        outcome = study(source, asked, on_progress=lambda done: progress.update(task, completed=done))
    except ConfigError as error:
        text = str(error)
        raise ConfigError(text if text.startswith(str(source.path)) else f"{source.path}: {text}") from error
    progress.update(task, completed=rows * passes_of(source))
    return outcome


if __name__ == "__main__":
    run_cli(main, prog_name="python -m analysis.recommend")
