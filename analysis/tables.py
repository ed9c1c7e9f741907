"""`python -m analysis.tables RUN...`: results as Markdown, LaTeX or CSV.

Owns the table of results that every run has, and the command line. The papers' own tables are in
`analysis.paper_tables`, how tables are written is in `analysis.grid`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import click

from analysis.arm_tables import sections_of
from analysis.grid import Column, Row, Table, comma_separated, ends, latex, markdown, number, percent, spread
from analysis.paper_tables import tables_of
from analysis.runs import Loaded, Method, Paper, Run, read_runs
from specsim.errors import ConfigError, run_cli
from specsim.paths import replace_file

RESULTS = "results"
FORMATS: dict[str, Callable[[Sequence[Table]], str]] = {
    "markdown": markdown,
    "latex": latex,
    "csv": comma_separated,
}
STATIC = ("static:", "arm:index=")  # a length, or an arm, throughout
KNOWS = "Rows with * know what no deployed controller could."


def best_static(run: Run) -> tuple[str, float] | None:
    """The fastest static length, on arms the fastest single arm, and its speedup.

    In hindsight over all lengths where a replay says so, else the fastest of the run's own controllers; None where
    there is neither.
    """
    first = run.methods[0] if run.methods else None
    if first is not None and first.best_static_s is not None and first.plain_s is not None:
        return "the best of all lengths or arms in hindsight", first.plain_s / first.best_static_s
    own = [(m.speedup, m.name) for m in run.methods if m.controller.startswith(STATIC) and m.speedup is not None]
    return (max(own)[1], max(own)[0]) if own else None


def results_table(run: Run, *, alone: bool = True) -> Table:
    """The results of a run: a row per controller.

    Args:
        run: with methods.
        alone: whether nothing else stands beside it, so that its name need not be a heading of its own.
    """
    best = best_static(run)
    rows = [_row(method, None if best is None else best[1]) for method in run.methods]
    columns = [_named(), *COLUMNS]
    if any(row["predicted"] is not None for row in rows):
        columns += PREDICTED
    about = [run.target, run.drafter, run.dataset, None if run.temperature is None else f"T = {run.temperature:g}"]
    title = "; ".join([run.name, *(part for part in about if part)])
    notes = [] if best is None else [f"Best static: {best[0]}, {best[1]:.3f}x."]
    notes += [KNOWS] if any(method.privileged for method in run.methods) else []
    return Table(
        title=title,
        place={
            **{"run": run.name, "kind": run.kind, "trace": run.trace_name, "target": run.target},
            **{"drafter": run.drafter, "dataset": run.dataset, "temperature": run.temperature},
        },
        columns=columns,
        rows=rows,
        heading=f"{'#' if alone else '##'} {title}",
        notes=[*notes, *(f"Note: {note}." for note in run.notes)],
    )


def _row(method: Method, best: float | None) -> Row:
    return {
        "name": method.name + (" *" if method.privileged else ""),
        **{key: getattr(method, key) for key in ("controller", "tokens", "rounds", "time_s", "plain_s", "speedup")},
        **{key: getattr(method, key) for key in ("tau", "tokens_per_s", "submitted_len", "acceptance_rate")},
        **{key: getattr(method, key) for key in ("ci95", "predicted", "privileged")},
        "vs_best_static": None if best is None or method.speedup is None else method.speedup / best,
        "error": None
        if method.predicted is None or method.speedup is None
        else method.predicted / method.speedup - 1.0,
    }


def _named() -> Column:
    keys = ("controller", "tokens", "rounds", "time_s", "plain_s", "privileged")
    return Column(
        name="controller",
        shown=lambda row: row["name"],
        values={key: lambda row, key=key: row[key] for key in keys},
        left=True,
    )


def _simple(name: str, key: str, form: str) -> Column:
    return Column(name=name, shown=lambda row: number(row[key], form), values={key: lambda row: row[key]})


COLUMNS = (
    Column(
        name="speedup",
        shown=lambda row: number(row["speedup"], ".3f") + spread(row["ci95"], ".3f"),
        values={"speedup": lambda row: row["speedup"], **ends("speedup", "ci95")},
    ),
    _simple("tau", "tau", ".2f"),
    _simple("tokens/s", "tokens_per_s", ".1f"),
    _simple("length", "submitted_len", ".2f"),
    Column(
        name="accepted",
        shown=lambda row: percent(row["acceptance_rate"]),
        values={"acceptance_rate": lambda row: row["acceptance_rate"]},
    ),
    _simple("vs best static", "vs_best_static", ".3f"),
)
PREDICTED = (_simple("predicted", "predicted", ".3f"), _simple("error", "error", "+.1%"))


def paper_tables(paper: Paper) -> list[Table]:
    """The tables of a paper's experiment.

    Raises:
        ConfigError: its results lack something a table needs.
    """
    try:
        tables = tables_of(paper.experiment, paper.document["rows"])
        tables += sections_of(paper.experiment, paper.document)
        for write in FORMATS.values():  # so that what is missing is told of this file
            write(tables)
    except (KeyError, TypeError, ValueError, ZeroDivisionError) as error:
        raise ConfigError(
            f"{paper.folder / 'results.json'}: its tables need what it lacks ({error!r}); make the file again with "
            "python -m real.paper, which measures nothing again"
        ) from None
    return tables


def choose(loaded: Loaded, wanted: str | None) -> list[Table]:
    """The tables asked for: `results` of the runs, an experiment's name for its tables, None for all.

    Raises:
        ConfigError: none of what was read has that table, or nothing has any.
    """
    known = [*([RESULTS] if loaded.runs else []), *dict.fromkeys(paper.experiment for paper in loaded.papers)]
    if not known:
        raise ConfigError("none of these files has a table of results; name folders of runs or of real.paper")
    if wanted is not None and wanted not in known:
        raise ConfigError(f"--table {wanted}: not among what was read; allowed: {', '.join(known)}")
    tables: list[Table] = []
    if wanted in (None, RESULTS):
        # A run without methods would be a table without rows; its note says why.
        tables += [results_table(run, alone=len(loaded.runs) == 1) for run in loaded.runs if run.methods]
    for paper in loaded.papers:
        if wanted in (None, paper.experiment):
            tables += paper_tables(paper)
    if not tables:
        run = loaded.runs[0]
        raise ConfigError(f"{run.folder}: no results yet ({'; '.join(run.notes)})")
    return tables


@click.command()
@click.argument("folders", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option("--format", "form", type=click.Choice(list(FORMATS)), default="markdown", show_default=True)
@click.option("--table", "wanted", help="results, or a paper's experiment (table1, sp2ec-main, ...); default: all.")
@click.option("--out", type=click.Path(path_type=Path, dir_okay=False), help="File to write; default: printed.")
def main(folders: tuple[Path, ...], form: str, wanted: str | None, out: Path | None) -> None:
    """Write the results of runs, and the papers' tables of real.paper's folders, as tables."""
    loaded = read_runs(folders)
    tables = choose(loaded, wanted)
    for run in loaded.runs:
        if not run.methods:
            click.echo(f"{run.folder}: {'; '.join(run.notes)}", err=True)
    text = FORMATS[form](tables)
    if out is None:
        click.echo(text, nl=False)
        return
    with replace_file(out) as temporary:
        temporary.write_text(text, encoding="utf-8")
    click.echo(f"written: {out}")


if __name__ == "__main__":
    run_cli(main, prog_name="python -m analysis.tables")
