"""`python -m analysis.sweep FOLDER...`: sweeps over alpha and maximum length as a table, a heat map and a statement.

Owns how they are shown and logged; cells and comparisons are `analysis.cells`'.
"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from rich.console import Console
from rich.table import Table

from analysis import keys
from analysis.cells import Sweep, sweeps_of
from analysis.figures.style import FORMATS, save, styled
from analysis.logged import fit_name
from analysis.runs import read_runs
from analysis.tracking import (
    DISABLED,
    Tracking,
    check_folder,
    closing,
    log_picture,
    log_table,
    open_run,
    wandb_folder,
)
from analysis.wandb import explained, report_place, tracking_options
from specsim.errors import ConfigError, run_cli

BEST, SAME = "*", "="  # marks of the best cell, and of those that cannot be told from it
RUN_FILES = ("results.json", "run.json")


def run_folders(paths: Sequence[Path]) -> list[Path]:
    """The run folders named, and those directly inside a folder that is none itself.

    Raises:
        ConfigError: a folder that holds none.
    """
    found: list[Path] = []
    for path in paths:
        if not path.is_dir() or any((path / name).is_file() for name in RUN_FILES):
            found.append(path)
            continue
        inside = sorted(sub for sub in path.iterdir() if any((sub / name).is_file() for name in RUN_FILES))
        if not inside:
            raise ConfigError(f"{path}: neither a run folder nor a folder of run folders; name one of these")
        found += inside
    return found


def table_of(sweep: Sweep) -> Table:
    """alpha by maximum length: speedup, its interval, and whether the cell can be told from the best."""
    table = Table(box=None, header_style="bold", pad_edge=False)
    table.add_column("alpha \\ max", justify="right")
    for most in sweep.maxima:
        table.add_column(str(most), justify="right", no_wrap=True)
    cells = {(cell.alpha, cell.max): place for place, cell in enumerate(sweep.cells)}
    for alpha in sweep.alphas:
        row = [_shown(sweep, cells.get((alpha, most))) for most in sweep.maxima]
        table.add_row(f"{alpha:g}", *row)
    return table


def _shown(sweep: Sweep, place: int | None) -> str:
    if place is None:
        return "-"
    cell = sweep.cells[place]
    interval = "" if cell.ci95 is None else f" [{cell.ci95[0]:.2f}, {cell.ci95[1]:.2f}]"
    return f"{cell.speedup:.3f}{interval} {_mark(sweep, place)}"


def _mark(sweep: Sweep, place: int) -> str:
    if place == sweep.best:
        return BEST
    return " " if sweep.differs(place) or sweep.intervals[place] is None else SAME


def statement(sweep: Sweep) -> str:
    """The best cell, and whether it differs from its neighbours."""
    best = sweep.cells[sweep.best]
    said = f"best: {best.place}: {best.speedup:.3f}x plain decoding over {len(best.seconds)} requests"
    near = sweep.neighbours()
    if any(sweep.intervals[place] is None for place in near):
        return f"{said}; one request tells nothing about differences"
    parts = []
    for text, wanted in (("faster than", True), ("not told apart from", False)):
        places = [place for place in near if sweep.differs(place) == wanted]
        if places:
            parts.append(f"{text} {'; '.join(_against(sweep, place) for place in places)}")
    return f"{said}; of its neighbours " + ", and ".join(parts) if parts else f"{said}; it has no neighbours"


def _against(sweep: Sweep, place: int) -> str:
    interval = sweep.intervals[place]
    assert interval is not None
    return f"{sweep.cells[place].place} (ratio {sweep.leads[place]:.3f} [{interval[0]:.3f}, {interval[1]:.3f}])"


def heat_map(sweep: Sweep, ax: Axes) -> Axes:
    """Speedup by alpha and maximum length, with the marks of the table.

    Args:
        sweep: its cells; one that is missing stays empty.
        ax: where.
    """
    values = np.full((len(sweep.alphas), len(sweep.maxima)), np.nan)
    for place, cell in enumerate(sweep.cells):
        row, column = sweep.alphas.index(cell.alpha), sweep.maxima.index(cell.max)
        values[row, column] = cell.speedup
        text = f"{cell.speedup:.2f} {_mark(sweep, place)}"
        ax.annotate(text, (column, row), ha="center", va="center", bbox={"facecolor": "white", "linewidth": 0})
    image = ax.imshow(values, aspect="auto", origin="lower", cmap="cividis")
    ax.set_xticks(range(len(sweep.maxima)), [str(most) for most in sweep.maxima])
    ax.set_yticks(range(len(sweep.alphas)), [f"{alpha:g}" for alpha in sweep.alphas])
    ax.grid(visible=False)
    ax.set_xlabel("maximum length")
    ax.set_ylabel("alpha")
    ax.set_title(sweep.name.replace("$", r"\$"), fontsize="small", wrap=True)  # a name is no formula
    assert ax.figure is not None
    ax.figure.colorbar(image, ax=ax, label="speedup over plain decoding")
    return ax


def save_figure(sweep: Sweep, path: Path) -> None:
    """Draw the heat map into a file; its ending says the format.

    Raises:
        ConfigError: the file cannot be written, or it has another ending than those of `FORMATS`.
    """
    kind = path.suffix.removeprefix(".")
    if kind not in FORMATS:
        raise ConfigError(f"{path}: ending {path.suffix!r}; allowed: {', '.join(f'.{one}' for one in FORMATS)}")
    with styled():
        figure = Figure(figsize=(2 + len(sweep.maxima), 2 + 0.5 * len(sweep.alphas)), layout="constrained")
        heat_map(sweep, figure.add_subplot())
        save(figure, path, kind)


def rows_of(sweep: Sweep) -> list[list[Any]]:
    """Rows of `keys.CELL_COLUMNS`."""
    rows = []
    for place, cell in enumerate(sweep.cells):
        low, high = cell.ci95 or (None, None)
        lead = sweep.intervals[place] or (None, None)
        rows.append(
            [
                *(sweep.name, cell.controller, cell.alpha, cell.max, cell.speedup, low, high, len(cell.seconds)),
                *(place == sweep.best, sweep.differs(place), sweep.leads[place], *lead),
            ]
        )
    return rows


def log_sweep(tracking: Tracking, sweep: Sweep, *, folder: Path, group: str) -> None:
    """Log a sweep as one run: the table of cells, the heat map, the best.

    Raises:
        ConfigError: logging failed; the run is marked as failed.
    """
    best = sweep.cells[sweep.best]
    with explained(f"logging the sweep of {sweep.name}"), tempfile.TemporaryDirectory() as scratch:
        picture = Path(scratch) / "heat_map.png"
        save_figure(sweep, picture)
        check_folder(folder)
        config = {keys.KIND: keys.SWEEP, "sweep": sweep.name, "runs": sorted({str(c.run.folder) for c in sweep.cells})}
        whole = open_run(
            tracking, folder, group=group, job_type=keys.SWEEP, name=f"sweep {sweep.name}"[:120], config=config
        )
        with closing(whole):
            log_table(whole, keys.CELLS, keys.CELL_COLUMNS, rows_of(sweep))
            log_picture(whole, keys.HEAT_MAP, picture)
            found = {keys.BEST_CONTROLLER: best.controller, keys.BEST_SPEEDUP: best.speedup}
            whole.summary.update({**found, "best_alpha": best.alpha, "best_max": best.max})
            check_folder(folder)


@click.command(context_settings={"show_default": True})
@click.argument("folders", nargs=-1, required=True, metavar="FOLDER...", type=click.Path(path_type=Path))
@click.option("--figure", type=click.Path(path_type=Path), help="Heat map; .png, .svg or .pdf. One sweep only.")
@tracking_options
def main(
    folders: tuple[Path, ...],
    figure: Path | None,
    mode: str | None,
    project: str,
    entity: str | None,
    group: str | None,
    folder: Path,
) -> None:
    """Sum up sweeps of LibraSpec over alpha and maximum length.

    FOLDER are run folders (the trials of real/sweeps, or one replay of many libraspec:alpha=A,max=M) or a folder of
    such folders. Printed, and logged to Weights & Biases as a table and a picture, offline unless asked otherwise.
    """
    tracking = Tracking(mode=mode, project=project, entity=entity)
    sweeps = sweeps_of(read_runs(run_folders(folders)).runs)
    if figure is not None:
        if len(sweeps) > 1:
            raise ConfigError(f"--figure {figure}: {len(sweeps)} sweeps were found; name the runs of one")
        save_figure(sweeps[0], figure)
    console = Console(width=max(80, 22 + 22 * max(len(sweep.maxima) for sweep in sweeps)), highlight=False)
    for sweep in sweeps:
        console.print(f"{sweep.name}\n", markup=False)
        console.print(table_of(sweep))
        console.print(f"\n{statement(sweep)}\n", markup=False)
    console.print(f"{BEST} best cell; {SAME} not told apart from it (paired bootstrap over requests)", markup=False)
    if tracking.effective_mode == DISABLED:
        return
    place = wandb_folder(folder)
    for sweep in sweeps:
        log_sweep(tracking, sweep, folder=place, group=group or fit_name(sweep.name)[:120])
    report_place(tracking, place)


if __name__ == "__main__":
    run_cli(main, prog_name="python -m analysis.sweep")
