"""The parts a page is made of, as values the template shows: answers, tables, panels with a plot, sections."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal


@dataclass(frozen=True)
class Answer:
    """What a run says to somebody who wants to know whether to speculate.

    Attributes:
        kind: a controller pays, all of them lose, or the requests are too few to tell.
        verdict: that in a word or two.
        text: the sentence with numbers.
    """

    kind: Literal["pays", "loses", "open"]
    verdict: str
    text: str


@dataclass(frozen=True)
class Column:
    """A column of a table, and whether it holds numbers."""

    name: str
    number: bool = True


@dataclass(frozen=True)
class Cell:
    """What is shown, and for numbers what it is sorted by: the value at full precision, "" if there is none."""

    text: str
    value: str | None = None


@dataclass(frozen=True)
class Row:
    """Cells of a table's row; `best` rows stand out."""

    cells: Sequence[Cell]
    best: bool = False


@dataclass(frozen=True, kw_only=True)
class Grid:
    """A table.

    Attributes:
        caption: what it holds, for everybody.
        label: its name for screen readers.
        headed: whether the first column names the row.
        sorted_by: column by which the rows fall, -1 for none.
    """

    caption: str
    columns: Sequence[Column]
    rows: Sequence[Row]
    label: str = ""
    sortable: bool = False
    headed: bool = True
    sorted_by: int = -1


@dataclass(frozen=True, kw_only=True)
class Panel:
    """A plot with its caption and the table of its data; `figure` is plotly's JSON."""

    key: str
    title: str
    caption: str
    figure: Mapping[str, Any]
    data: Grid

    @property
    def height(self) -> int:
        """Pixels to keep free while it is not drawn yet."""
        return int(self.figure["layout"].get("height", 340))


@dataclass(frozen=True)
class Gap:
    """A plot that cannot be shown, and why."""

    title: str
    reason: str


@dataclass(frozen=True, kw_only=True)
class Section:
    """One run or paper folder on the page; `grids` stand before the plots, those of `after` behind them."""

    key: str
    title: str
    answer: Answer | None = None
    lines: Sequence[str] = ()
    grids: Sequence[Grid] = ()
    panels: Sequence[Panel] = ()
    after: Sequence[Grid] = ()
    gaps: Sequence[Gap] = ()
    provenance: Grid | None = None


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """Several runs side by side."""

    lines: Sequence[str] = field(default_factory=tuple)
    grid: Grid
    panels: Sequence[Panel] = ()
