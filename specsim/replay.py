"""`python -m specsim.replay traces/*.parquet`: which controller would have been fastest here, and by how much.

Command line only: arguments, progress, and handing results to `specsim.report` and `specsim.outdir`. Nothing imports
this module, so `python -m` runs it once.
"""

from __future__ import annotations

import gc

if __name__ == "__main__":
    # Importing numba and registering its implementations makes a great many objects that all stay; looking through
    # them for garbage again and again is a tenth of a short replay. Switched on again after the first chunk.
    gc.disable()

import os
import runpy
import traceback
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from specsim import controllers as registry
from specsim.controllers import Controller
from specsim.engine import ACCEPTANCES, TraceResult, as_chain, controllers_for, replay
from specsim.errors import ConfigError, SpecsimError, run_cli
from specsim.latency import LatencyModel, load_latency
from specsim.outdir import OutDir
from specsim.quarantine import quarantine_requests, taken_back_on_failure
from specsim.report import document, print_tables, to_json
from specsim.schema import DEFAULT_MAX_NODES, MAX_DRAFT_LEN, PASS_COLUMNS, TraceMeta
from specsim.trace import TraceChunk, TraceReader, expand_paths, open_trace


@dataclass(frozen=True, kw_only=True)
class Config:
    """Everything that decides a replay's results, as resolved from the command line."""

    traces: tuple[str, ...]
    controllers: tuple[str, ...] | None  # None: the default set of each trace's kind
    latency: str | None
    acceptance: str
    seed: int
    max_requests: int | None
    quarantine: str | None
    chain: bool
    max_nodes: int | None
    plugin: tuple[str, ...]


@click.command(help=__doc__.split("\n")[0].partition(": ")[2].capitalize() if __doc__ else None)
@click.argument("traces", nargs=-1, required=True)
@click.option(
    "--controllers",
    "-c",
    multiple=True,
    metavar="NAME[:KEY=VALUE,...]",
    help="Repeatable; default: eight for the kind of trace.",
)
@click.option("--latency", metavar="FILE|preset:NAME", help="Latency model; default: the one inside each trace.")
@click.option("--acceptance", type=click.Choice(ACCEPTANCES), default="logged", show_default=True)
@click.option("--seed", type=click.IntRange(0, 2**63 - 1), default=0, show_default=True)
@click.option("--max-requests", type=click.IntRange(1), help="Replay only the first N requests of each trace.")
@click.option("--chain", is_flag=True, help="Replay the main chain of tree traces, by length.")
@click.option(
    "--max-nodes",
    type=click.IntRange(1, MAX_DRAFT_LEN),
    help=f"Largest tree built from a row of a tree trace; default: what the trace says, else {DEFAULT_MAX_NODES}.",
)
@click.option("--quarantine", type=click.Path(), metavar="DIR", help="Move offending requests there and go on.")
@click.option(
    "--plugin", multiple=True, type=click.Path(), metavar="FILE.py", help="Python file that registers controllers."
)
@click.option("--json", "as_json", is_flag=True, help="Print the result document and nothing else.")
@click.option("--out", type=click.Path(), metavar="DIR", help="Write results.json, rounds.parquet, config, provenance.")
@click.option("--force", is_flag=True, help="Replace a finished --out DIR.")
def main(as_json: bool, out: str | None, force: bool, **options: Any) -> None:
    for path in options["plugin"]:
        load_plugin(path)
    for text in options["controllers"]:
        registry.parse_spec(text)
    paths = expand_paths(options["traces"])
    config = Config(
        **{**options, "controllers": options["controllers"] or None, "traces": tuple(str(path) for path in paths)}
    )
    given = None if config.latency is None else load_latency(config.latency)
    folder = None if out is None else OutDir(Path(out), force=force)
    if folder is not None and config.quarantine is not None and _inside(config.quarantine, folder.path):
        raise ConfigError(
            f"--quarantine {config.quarantine}: lies in --out {out}, which appears as a whole; name a folder beside it"
        )
    stems = Counter(path.stem for path in paths)
    if config.quarantine is not None and max(stems.values()) > 1:
        twice = max(stems, key=lambda stem: stems[stem])
        raise ConfigError(
            f"--quarantine {config.quarantine}: two traces are called {twice!r}, so their side files would be one; "
            "replay them one at a time"
        )
    # Whatever names, parameters and footers can tell is known before a row is replayed or anything is written.
    jobs = [_prepare(path, config, given) for path in paths]
    with ExitStack() as stack:
        if folder is not None:
            stack.enter_context(folder)
        side_files = stack.enter_context(taken_back_on_failure())
        progress = stack.enter_context(_progress())
        done = [_replay_one(job, config, folder, progress, side_files) for job in jobs]
        result = document(config.seed, config.acceptance, done)
        if folder is not None:
            folder.finish(result, asdict(config))
    if as_json:
        click.echo(to_json(result), nl=False)
    else:
        print_tables(done, Console())
        if out is not None:
            click.echo(f"written: {out}")


@dataclass(frozen=True, kw_only=True)
class _Job:
    """One trace with the metadata, the model and the controllers it is replayed with."""

    path: Path
    meta: TraceMeta
    latency: LatencyModel
    spellings: Sequence[str]
    controllers: list[Controller]


def load_plugin(path: str) -> None:
    """Run a Python file that registers controllers.

    Raises:
        ConfigError: the file is missing or fails; the message holds its error.
    """
    if not Path(path).is_file():
        raise ConfigError(f"--plugin {path}: no such file; give a Python file that calls specsim.controllers.register")
    try:
        runpy.run_path(path, run_name="specsim_plugin")
    except SpecsimError as error:
        raise ConfigError(f"--plugin {path}: {error}") from error
    except (Exception, SystemExit) as error:  # whatever a user's file raises is its author's to see
        raise ConfigError(f"--plugin {path}{_line_in(error, [path])}: {type(error).__name__}: {error}") from error


def _line_in(error: BaseException, files: Sequence[str]) -> str:
    """The text ", line N" of the innermost frame that lies in one of the files, or nothing."""
    wanted = {os.path.realpath(name) for name in files}
    lines = [f.lineno for f in traceback.extract_tb(error.__traceback__) if os.path.realpath(f.filename) in wanted]
    return f", line {lines[-1]}" if lines else ""


@contextmanager
def _naming(path: Path, plugins: Sequence[str]) -> Iterator[None]:
    """Put the trace into messages; a failure while plug-ins are in use, most likely theirs, becomes one too."""
    try:
        yield
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from error
    except SpecsimError:
        raise
    except Exception as error:
        if not plugins:
            raise
        named = [f"{name}{line}" for name in plugins if (line := _line_in(error, [name]))] or list(plugins)
        frame = traceback.extract_tb(error.__traceback__)[-1]
        raised = f"{type(error).__name__}: {error} (raised in {Path(frame.filename).name}, line {frame.lineno})"
        raise ConfigError(f"{path}: --plugin {', '.join(named)}: {raised}") from error


def _inside(path: str, folder: Path) -> bool:
    return Path(os.path.realpath(path)).is_relative_to(folder)


def _progress() -> Progress:
    name = TextColumn("{task.description}", markup=False)  # a file name may hold brackets
    columns = (name, BarColumn(), TextColumn("{task.percentage:3.0f} %"), TimeRemainingColumn())
    console = Console(stderr=True)
    return Progress(*columns, console=console, transient=True, disable=not console.is_terminal)


def _prepare(path: Path, config: Config, given: LatencyModel | None) -> _Job:
    with open_trace(path) as reader:
        latency = given or _embedded(reader)
        meta = _replayed_as(reader.meta, config)
        spellings = config.controllers or registry.DEFAULT_SETS[meta.kind]
        with _naming(path, config.plugin):
            built = controllers_for(meta, latency, spellings)
    return _Job(path=path, meta=meta, latency=latency, spellings=spellings, controllers=built)


def _replayed_as(meta: TraceMeta, config: Config) -> TraceMeta:
    """Metadata with what the command line says about trees."""
    if config.chain:
        return as_chain(meta)
    return replace(meta, max_nodes=config.max_nodes or meta.max_nodes) if meta.kind == "tree" else meta


def _replay_one(
    job: _Job, config: Config, folder: OutDir | None, progress: Progress, side_files: list[Path]
) -> tuple[dict[str, Any], TraceResult, list[str]]:
    """Replay one trace; (its entry in the document, its result, notes for people). Quarantine files are noted too."""
    path = job.path
    notes: list[str] = []
    skip: frozenset[int] = frozenset()
    if config.quarantine is not None:
        report = quarantine_requests(path, config.quarantine)
        side_files.extend(side for side in (report.side_file, report.report_file) if side is not None)
        skip = frozenset(report.requests)
        if skip:
            notes.append(f"{len(skip)} requests quarantined: {report.side_file}")
    with open_trace(path) as reader, _naming(path, config.plugin):
        task = progress.add_task(path.name, total=reader.rows)

        def chunk_done(rows: int) -> None:
            gc.enable()
            progress.update(task, completed=rows)

        log = None if folder is None or config.acceptance == "expected" else folder.round_log(path, job.spellings)
        result = replay(
            job.meta,
            _Chunks(reader, config, skip),
            job.latency,
            job.controllers,
            seed=config.seed,
            acceptance=config.acceptance,
            measured_draft=config.latency is None,
            on_rounds=log,
            on_progress=chunk_done,
        )
    meta = job.meta
    if meta.coverage == "every-round":
        notes.append("log of executed rounds (coverage every-round): replayed row by row, see docs/formats.md")
    entry = {
        "path": str(path),
        "rows": result.rows,
        "requests": result.requests,
        "exact": meta.exact,
        "latency": job.latency.to_dict(),
        "coverage": meta.coverage,
        "quarantined_requests": len(skip),
        "target": meta.target,
        "drafter": meta.drafter,
    }
    if meta.kind == "tree":
        entry["max_nodes"] = meta.tree_nodes
        notes.append(f"trees of up to {meta.tree_nodes} nodes; a length is a number of nodes, see docs/formats.md")
    return entry, result, notes


@dataclass(frozen=True)
class _Chunks:
    """The rows to replay; can be gone over more than once."""

    reader: TraceReader
    config: Config
    skip: frozenset[int]

    def __iter__(self) -> Iterator[TraceChunk]:
        columns = ["ctx_len", "q", "arm_accept_len", "arm_draft_s", *PASS_COLUMNS]
        if self.reader.meta.kind == "tree" and not self.config.chain:
            columns += ["topk_q", "target_rank"]
        if self.config.acceptance != "logged":
            columns.append("accept_prob")
        return self.reader.chunks(columns, max_requests=self.config.max_requests, skip_requests=self.skip)


def _embedded(reader: TraceReader) -> LatencyModel:
    if reader.meta.latency is None:
        raise ConfigError(
            f"{reader.path}: the trace holds no latency model and none was given; pass --latency FILE or preset:NAME. "
            "`python -m specsim.latency fit POINTS.csv` makes one from measurements, "
            "`python -m real.probe --latency-only TRACE` measures one, "
            "`python -m specsim.latency presets` lists those of common GPUs"
        )
    return LatencyModel.from_dict(reader.meta.latency, where=f"{reader.path}: metadata latency")


if __name__ == "__main__":
    run_cli(main, prog_name="python -m specsim.replay")
