"""A folder of `python -m real.paper` as a section: its rows, and its figures' tables with a plot of each group."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from analysis.derive.acceptance import all_depths, by_depth
from analysis.loaded import PLAIN, Paper
from analysis.paper_data import PLACES, read_data, shown_prompt
from analysis.report import captions, paper_plots, provenance
from analysis.report.panels import BREAKDOWN, LENGTHS, PULLS, REGRET, RELIABILITY, Kind, panel
from analysis.report.parts import Cell, Column, Gap, Grid, Panel, Row, Section
from analysis.report.results import Candidate, answer
from analysis.report.wording import fixed, joined, number, told
from specsim.errors import ConfigError

MOST = 8  # plots of one table
_CELL = (*PLACES, "drafter")
_FIXED = {"eta": 3, "predicted": 3, "tau": 2}
ROWS = ("target", "dataset", "temperature", "method", "label", "controller")  # texts, then numbers
NUMBERS = ("eta", "eta_ci95", "tau", "predicted", "draft_ms", "verify_ms", "rest_ms", "tokens", "rounds")
NAMES = {"eta": "speedup", "eta_ci95": "95 %", "draft_ms": "draft ms", "verify_ms": "verify ms", "rest_ms": "rest ms"}


@dataclass(frozen=True, kw_only=True)
class Figure:
    """How a figure's table is drawn.

    Attributes:
        kind: of plot.
        split: columns of which every combination has a plot of its own.
        prepare: gives a group's table the columns that the plot wants.
    """

    kind: Kind
    split: Sequence[str]
    prepare: Callable[[pa.Table], pa.Table] | None = None


def _kind(title: str, name: str) -> Kind:
    return Kind(title=title, draw=getattr(paper_plots, name), say=getattr(captions, name))


FIGURES: dict[str, tuple[Figure, ...]] = {
    "gains": (Figure(kind=_kind("What LibraSpec adds", "gains"), split=("target", "temperature")),),
    "lengths": (Figure(kind=LENGTHS, split=("target", "dataset", "method", "drafter")),),
    "breakdown": (Figure(kind=BREAKDOWN, split=("target", "dataset", "temperature")),),
    "max_lengths": (Figure(kind=_kind("Speedup by maximum length", "max_lengths"), split=_CELL),),
    "calibration": (
        Figure(kind=_kind("Confidence by draft position", "depths"), split=PLACES, prepare=by_depth),
        Figure(kind=RELIABILITY, split=PLACES, prepare=all_depths),
    ),
    "acceptance": (
        Figure(kind=_kind("Tokens per round against speedup", "mat"), split=("target", "dataset", "temperature")),
    ),
    "contexts": (Figure(kind=_kind("Speedup by prompt length", "contexts"), split=("target", "temperature")),),
    "pulls": (Figure(kind=PULLS, split=_CELL, prepare=paper_plots.labelled),),
    "regret": (Figure(kind=REGRET, split=(*_CELL, "against"), prepare=paper_plots.labelled),),
}


def section(paper: Paper, key: str) -> Section:
    """The section of an experiment.

    Raises:
        ConfigError: a table that cannot be read or lacks what is drawn.
    """
    panels: list[Panel] = []
    gaps: list[Gap] = []
    after: list[Grid] = []
    for name in paper.tables:
        if name in FIGURES:
            for figure in FIGURES[name]:
                found, left = _panels(paper, name, figure, f"{key}-{len(panels)}")
                panels += found
                gaps += left
        elif name not in ("rows", "deviations"):
            after.append(_grid(paper, name))
    if not panels:
        gaps.append(Gap("Plots", f"{paper.experiment} has no figure, only tables"))
    return Section(
        key=key,
        title=f"{paper.name}: experiment {paper.experiment}",
        answer=answer(candidates(paper), "rows"),
        lines=_notes(paper),
        grids=[_rows(paper)],
        panels=panels,
        after=after,
        gaps=gaps,
        provenance=provenance.of_folder(paper.name, paper.folder, paper.document.get("provenance") or {}),
    )


def candidates(paper: Paper) -> list[Candidate]:
    """The rows of an experiment that an answer may choose from."""
    rows = [row for row in paper.document["rows"] if row["controller"] != PLAIN]
    varying = [name for name in ROWS[:3] if _varies(paper, name)]
    return [
        Candidate(
            joined([f"{row['controller']} with {row['method']}", *(f"{name} {row[name]}" for name in varying)]),
            row["eta"],
            tuple(row["eta_ci95"]) if row.get("eta_ci95") else None,
        )
        for row in rows
    ]


def _varies(paper: Paper, name: str) -> bool:
    return len({row[name] for row in paper.document["rows"]}) > 1


def _notes(paper: Paper) -> list[str]:
    lines = []
    told_ = paper.document.get("prediction")
    if isinstance(told_, dict) and told_.get("predicted"):
        error = told_.get("median_error")
        lines.append(
            f"{told_['predicted']} of {told_['rows']} rows were predicted"
            + (f"; the median error is {100 * error:.1f} %." if error is not None else ".")
        )
    why = [str(one.get("why")) for one in paper.document.get("not_predicted", []) if isinstance(one, dict)]
    return lines + [f"Without a prediction: {one}." for one in dict.fromkeys(why)]


def _panels(paper: Paper, name: str, figure: Figure, key: str) -> tuple[list[Panel], list[Gap]]:
    table = read_data(paper.tables[name])
    groups = list(_groups(table, figure.split))
    found: list[Panel] = []
    for number_, (place, group) in enumerate(groups[:MOST]):
        if name == "lengths":
            group = shown_prompt(group, _deviations(paper, group))
        title = f"{figure.kind.title}: {joined([told(value) for value in place])}"
        found.append(
            panel(
                figure.kind,
                group if figure.prepare is None else figure.prepare(group),
                f"{key}-{number_}",
                whole=str(paper.tables[name]),
                title=title,
            )
        )
    left = len(groups) - len(found)
    gaps = (
        [Gap(figure.kind.title, f"{left} more of {paper.tables[name]}; python -m analysis.figures draws all")]
        if left
        else []
    )
    return found, gaps


def _groups(table: pa.Table, split: Sequence[str]) -> Iterator[tuple[list[Any], pa.Table]]:
    """Rows of each combination, with the values that tell it from the others."""
    places = list(dict.fromkeys(zip(*(table[name].to_pylist() for name in split), strict=True)))
    telling = [number for number in range(len(split)) if len({place[number] for place in places}) > 1]
    for place in places:
        mine = table
        for name, value in zip(split, place, strict=True):
            mine = mine.filter(pc.field(name) == value)
        yield [place[number] for number in telling] or [place[0]], mine


def _deviations(paper: Paper, group: pa.Table) -> pa.Table:
    if "deviations" not in paper.tables:
        raise ConfigError(f"{paper.folder}: deviations.parquet is missing; make it again with python -m real.paper")
    table = read_data(paper.tables["deviations"])
    for name in ("target", "dataset", "method", "drafter"):
        table = table.filter(pc.field(name) == group[name][0])
    return table


def _rows(paper: Paper) -> Grid:
    rows = sorted(paper.document["rows"], key=lambda row: -row["eta"])
    same = [name for name in ROWS[:3] if not _varies(paper, name)]
    names = [name for name in (*ROWS, *NUMBERS) if name not in same and any(name in row for row in rows)]
    caption = f"Rows of {paper.experiment}, the fastest first. Speedup (the paper's eta) is over plain decoding."
    if same and rows:
        caption += f" All of {joined([f'{name} {told(rows[0][name])}' for name in same])}."
    return Grid(
        caption=caption,
        label=f"Rows of {paper.name}",
        columns=[Column(NAMES.get(name, name), name in NUMBERS or name == "temperature") for name in names],
        rows=[Row([_cell(name, row.get(name)) for name in names]) for row in rows],
        sortable=True,
        headed=False,
        sorted_by=names.index("eta"),
    )


def _grid(paper: Paper, name: str) -> Grid:
    """A table that no plot shows, such as shares of pulls; what all of its rows have in common is in the caption."""
    try:
        table = pq.read_table(paper.tables[name])
    except (OSError, pa.ArrowException) as error:
        raise ConfigError(f"{paper.tables[name]}: cannot be read ({error!s:.80}); make it again") from None
    rows = table.to_pylist()
    same = [key for key in table.column_names if len({str(row[key]) for row in rows}) < 2 and len(rows) > 1]
    shown = [field for field in table.schema if field.name not in (*same, "drafter")]
    common = joined([f"{key} {told(rows[0][key])}" for key in same if key != "drafter"])
    return Grid(
        caption=f"{paper.tables[name].name}." + (f" All of {common}." if common else ""),
        label=f"{name} of {paper.name}",
        columns=[
            Column(field.name.replace("_", " "), pa.types.is_floating(field.type) or pa.types.is_integer(field.type))
            for field in shown
        ],
        rows=[Row([_cell(field.name, row[field.name]) for field in shown]) for row in rows],
        sortable=True,
        headed=False,
    )


def _cell(name: str, value: Any) -> Cell:
    if name.endswith("ci95"):
        low = value[0] if value else None
        return number(low, told([fixed(end, 3) for end in value]) if value else told(None))
    if isinstance(value, int | float) and not isinstance(value, bool):
        return number(value, fixed(value, _FIXED[name]) if name in _FIXED else told(value))
    return Cell(told(value), None if isinstance(value, str) else "")
