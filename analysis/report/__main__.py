"""Command line of the report: paths, progress, the file."""

from __future__ import annotations

from pathlib import Path

import click
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from analysis.report.page import page
from analysis.rounds import Scan, scan
from analysis.runs import read_runs
from specsim.errors import run_cli
from specsim.paths import replace_file


@click.command()
@click.argument("paths", nargs=-1, required=True, metavar="RUN_DIR...", type=click.Path(path_type=Path))
@click.option(
    "-o",
    "--out",
    "output",
    type=click.Path(path_type=Path),
    default=Path("report.html"),
    show_default=True,
    help="The page; an existing file is replaced.",
)
def main(paths: tuple[Path, ...], output: Path) -> None:
    """Write run folders and result files as ONE HTML page that opens anywhere, without a network.

    RUN_DIR: folders of specsim.replay --out, real.run, real.validate and real.paper; JSON files of specsim.theory
    check, specsim.regret and specsim.latency fit.
    """
    loaded = read_runs(paths)
    with replace_file(output) as temporary:  # first, so that a place that cannot be written is known before the work
        with _progress() as progress:
            logs = {run.rounds for run in loaded.runs if run.rounds is not None}  # runs of one replay share a log
            known = {log: _scanned(log, progress) for log in sorted(logs)}
            scans = {run.name: None if run.rounds is None else known[run.rounds] for run in loaded.runs}
            total = len(loaded.runs) + len(loaded.papers) + len(loaded.theory) + len(loaded.regret) + len(loaded.fits)
            task = progress.add_task("sections", total=total)

            def step(name: str) -> None:
                progress.update(task, description=f"section {name}")
                progress.advance(task)

            text = page(loaded, scans, on_step=step)
        size = temporary.write_text(text, encoding="utf-8")
    click.echo(f"written: {output} ({size / 1e6:.1f} MB)")


def _scanned(log: Path, progress: Progress) -> Scan:
    task = progress.add_task(str(log), total=1.0)
    return scan(log, on_progress=lambda share: progress.update(task, completed=share))


def _progress() -> Progress:
    name = TextColumn("{task.description}", markup=False)  # a folder's name may hold brackets
    columns = (name, BarColumn(), TextColumn("{task.percentage:3.0f} %"), TimeElapsedColumn())
    console = Console(stderr=True)
    return Progress(*columns, console=console, transient=True, disable=not console.is_terminal)


if __name__ == "__main__":
    run_cli(main, prog_name="python -m analysis.report")
