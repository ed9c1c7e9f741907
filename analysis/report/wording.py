"""Numbers as people read them, and the exact values behind. Rounding happens here and nowhere else in the report."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

import pyarrow as pa

from analysis.report.parts import Cell, Column, Grid, Row
from analysis.report.thin import LISTED, thin

NOTHING = "–"


def exact(value: float | None) -> str:
    """Every digit of a number, "" if there is none: what tables are sorted by."""
    return "" if value is None or not math.isfinite(value) else repr(value)


def fixed(value: float | None, digits: int = 2, unit: str = "") -> str:
    """So many digits after the point; a dash for nothing."""
    return NOTHING if value is None or not math.isfinite(value) else f"{value:z.{digits}f}{unit}"


def short(value: float | None, digits: int = 4) -> str:
    """So many significant digits; a dash for nothing."""
    if value is None or not math.isfinite(value):
        return NOTHING
    if value == int(value) and abs(value) < 1e9:
        return f"{int(value)}"
    return f"{value:.{digits}g}" if 1e-3 <= abs(value) < 10**digits else f"{value:.{digits - 1}e}"


def span(pair: Sequence[float | None] | None, digits: int = 2) -> str:
    """An interval in words that a sentence can hold."""
    if pair is None or pair[0] is None or pair[1] is None:
        return NOTHING
    return f"{pair[0]:.{digits}f} to {pair[1]:.{digits}f}"


def number(value: float | None, text: str) -> Cell:
    """A cell that shows `text` and sorts by `value`."""
    return Cell(text, exact(value))


def listed(table: pa.Table, by: Sequence[str], where: str) -> Grid:
    """The rows of a plot's table; of long ones an even part, which the caption says.

    Args:
        table: any; lists are shown as text.
        by: columns that name a series, as for `thin`.
        where: how to get all rows, for the caption.
    """
    shown = thin(table, by, LISTED)
    caption = (
        f"{table.num_rows} rows."
        if shown.num_rows == table.num_rows
        else (f"{shown.num_rows} of {table.num_rows} rows, evenly chosen; {where} has all.")
    )
    kinds = [_is_number(field.type) for field in table.schema]
    columns = [Column(name, kind) for name, kind in zip(table.column_names, kinds, strict=True)]
    rows = [Row([Cell(told(value)) for value in row]) for row in zip(*shown.to_pydict().values(), strict=True)]
    return Grid(caption=caption, columns=columns, rows=rows, headed=False)


def _is_number(kind: pa.DataType) -> bool:
    return pa.types.is_integer(kind) or pa.types.is_floating(kind)


def told(value: Any) -> str:
    """Any value of a table as text."""
    if value is None:
        return NOTHING
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int | float):
        return short(value, 6)
    if isinstance(value, list | tuple):
        return joined([told(one) for one in value])
    return str(value)


def joined(words: Iterable[str], last: str = ", ") -> str:
    """Words with commas; `last` stands before the final one."""
    words = list(words)
    return last.join([", ".join(words[:-1]), words[-1]]) if len(words) > 1 else "".join(words)
