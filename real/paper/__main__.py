"""`python -m real.paper EXPERIMENT --config FILE --out DIR`: one experiment of the paper, measured, predicted, drawn.

Owns the command line and its exit statuses. What is measured is `real.paper.cells`, what is written
`real.paper.outputs`.
"""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path

import click
from rich.console import Console

from real.paper.cells import measure_cells, unfinished
from real.paper.config import EXPERIMENTS
from real.paper.outputs import RESULTS, is_lossless, write_outputs
from real.paper.reading import read_config
from real.paper.tables import verdict_lines
from specsim.errors import ConfigError, run_cli
from specsim.paths import temporary_beside


@click.command()
@click.argument("experiment", type=click.Choice(EXPERIMENTS))
@click.option("--config", "file", type=click.Path(path_type=Path, dir_okay=False), required=True, help="YAML file.")
@click.option("--out", type=click.Path(path_type=Path, file_okay=False), required=True, help="Folder for all files.")
@click.option(
    "--cells",
    "place",
    type=click.Path(path_type=Path, file_okay=False),
    help="Folder of the measured cells, which experiments may share; default: OUT/cells.",
)
def main(experiment: str, file: Path, out: Path, place: Path | None) -> int:
    """Measure an experiment, predict it from a trace and a calibration made before, and write its tables and figures.

    An interrupted run (exit status 130) continues when the same command is given again; finished cells are kept. Exit
    status 1: outputs differ from plain decoding's other than by a near tie below float32, or a replayed decision
    differs from the run's; all files are written then too.
    """
    config = read_config(file)
    if config.experiment != experiment:
        raise ConfigError(f"--config {file} is of {config.experiment}, not of {experiment}")
    console = Console(stderr=True)
    place = place or out / "cells"
    cells = unfinished(config, place)
    for option, folder in (("--out", out), ("--cells", place)):
        _make(folder, option)
    try:
        measure_cells(cells, place, console)
    except KeyboardInterrupt:
        console.print("interrupted; what is finished is kept, the same command continues")
        raise
    except OSError as error:
        raise ConfigError(
            f"{error.filename or place}: {error.strerror}; finished prompts and cells are kept in {place}: make room, "
            "and repeat the command"
        ) from error
    document = write_outputs(config, place, out)
    for line in verdict_lines(document["comparisons"], document["prediction"]):
        console.print(line, markup=False, highlight=False, soft_wrap=True)
    drawn = _draw(out, console)
    click.echo((out / f"{experiment}.md").read_text(encoding="utf-8"))
    click.echo(json.dumps({"out": str(out), "figures": drawn, "prediction": document["prediction"]}))
    return int(not is_lossless(document))


def _make(folder: Path, option: str) -> None:
    """The folder, which can be written to."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        temporary_beside(folder / RESULTS).unlink()
    except OSError as error:
        raise ConfigError(f"{option} {folder}: cannot be made ({error.strerror}); choose another folder") from error


def _draw(out: Path, console: Console) -> list[str]:
    """Figures from the data files, where matplotlib is installed."""
    if importlib.util.find_spec("matplotlib") is None:
        console.print(f"no figures: matplotlib is not installed; later: python -m analysis.figures {out} --out {out}")
        return []
    from analysis.figures.write import draw_folder

    return [str(path) for path in draw_folder(out)]


if __name__ == "__main__":
    run_cli(main, prog_name="python -m real.paper")
