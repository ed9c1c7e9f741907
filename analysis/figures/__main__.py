"""`python -m analysis.figures RUN_DIR... --out DIR`: figures for papers, from data files alone."""

from __future__ import annotations

from pathlib import Path

import click

from analysis.figures.registry import FIGURES
from analysis.figures.style import FORMATS
from analysis.figures.write import draw, pictures
from analysis.runs import read_runs
from specsim.errors import ConfigError, run_cli

LIST = "\n".join(f"  {name:<12} {kind.shows}" for name, kind in FIGURES.items())


def _formats(context: click.Context, parameter: click.Parameter, value: str) -> tuple[str, ...]:
    found = tuple(dict.fromkeys(value.split(",")))
    for form in found:
        if form not in FORMATS:
            raise click.BadParameter(f"{form!r} is no format; allowed: {', '.join(FORMATS)}, with commas between")
    return found


@click.command(epilog="\b\nFigures:\n" + LIST)
@click.argument("folders", nargs=-1, required=True, metavar="RUN_DIR...", type=click.Path(path_type=Path))
@click.option("--out", required=True, type=click.Path(path_type=Path, file_okay=False), help="Folder; made if missing.")
@click.option(
    "--figure",
    "chosen",
    multiple=True,
    metavar="NAME",
    type=click.Choice(list(FIGURES)),
    help="Repeatable; default: all that the folders can give.",
)
@click.option(
    "--format",
    "formats",
    default="pdf",
    show_default=True,
    callback=_formats,
    metavar="pdf,svg,png",
    help="One or several, with commas between.",
)
@click.option("--no-titles", is_flag=True, help="Leave out the line that says what a figure is of.")
def main(
    folders: tuple[Path, ...], out: Path, chosen: tuple[str, ...], formats: tuple[str, ...], no_titles: bool
) -> None:
    """Draw the figures of run folders and of the papers' folders (docs/figures.md).

    A folder is one of `specsim.replay --out`, `real.run`, `real.validate` or `real.paper`; documents of `specsim.theory
    check --json` may stand beside them.
    """
    found, skipped = pictures(read_runs(folders), chosen or tuple(FIGURES))
    for one in skipped:
        click.echo(f"no {one.figure} of {one.run}: {one.reason}", err=True)
    if not found:
        raise ConfigError(
            f"nothing to draw: {', '.join(map(str, folders))} hold no data of {', '.join(chosen) or 'any figure'}"
        )
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"--out {out}: cannot be made ({error.strerror}); choose another folder") from None
    for one in found:
        title = None if no_titles else one.title
        for path in draw(one.kind, one.table, out / one.stem, formats, title):
            click.echo(path)


if __name__ == "__main__":
    run_cli(main, prog_name="python -m analysis.figures")
