"""Faults and the vectorised tests that find them: one rule broken by some rows of a block.

Owns how a fault is located (row, list position) and shown. The rules, with their ranges and advice, are in `validate`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from specsim.chunk import offsets_of
from specsim.decode import IntColumn, ListColumn

Rows = NDArray[np.int64]


class Fault(NamedTuple):
    """One rule broken by some rows of a block.

    Args:
        column: the column at fault.
        rows: ascending row numbers within the block.
        found: row number within the block -> what was found there.
        allowed: what the format allows.
        advice: what to do.
        fatal: the rows cannot be attributed to a request, so a quarantine cannot help.
    """

    column: str
    rows: Rows
    found: Callable[[int], str]
    allowed: str
    advice: str
    fatal: bool = False


def if_any(
    column: str, rows: Rows, found: Callable[[int], str], allowed: str, advice: str, *, fatal: bool = False
) -> Iterator[Fault]:
    """The fault, unless no row has it."""
    if len(rows):
        yield Fault(column, rows, found, allowed, advice, fatal)


def null_fault(
    column: str, null: NDArray[np.bool_], allowed: str, advice: str, *, fatal: bool = False
) -> Iterator[Fault]:
    """Rows whose value is null."""
    yield from if_any(column, np.flatnonzero(null), lambda _: "the value is null", allowed, advice, fatal=fatal)


def whole_faults(
    column: str, data: IntColumn, allowed: str, advice: str, *, nullable: bool = False, fatal: bool = False
) -> Iterator[Fault]:
    """Rows without a whole number: NaN or a fraction, and null unless allowed."""
    if not nullable:
        yield from null_fault(column, ~data.valid, allowed, advice, fatal=fatal)
    rows = np.flatnonzero(~data.whole)
    yield from if_any(column, rows, lambda i: f"value {data.raw[i]}, not a whole number", allowed, advice, fatal=fatal)


def range_fault(column: str, data: IntColumn, low: int, high: int, advice: str) -> Iterator[Fault]:
    """Rows whose whole number lies outside low..high."""
    values = data.values
    rows = np.flatnonzero((values < low) | (values > high))
    yield from if_any(column, rows, lambda i: f"value {values[i]}", f"whole numbers between {low} and {high}", advice)


def row_of(column: ListColumn, entries: Rows) -> Rows:
    """Row within the block of each entry number of a list column."""
    return np.searchsorted(offsets_of(column.lengths), entries, "right") - 1


def list_value_fault(column: str, data: ListColumn, low: float, high: float, advice: str) -> Iterator[Fault]:
    """Rows with a list entry that is NaN, null or outside low..high (high may be infinity: then any finite number)."""
    values = data.values
    finite = np.float32(np.finfo(np.float32).max) if np.isinf(high) else np.float32(high)
    with np.errstate(invalid="ignore"):
        # NaN makes both comparisons false, so this one pass proves that there is none.
        if len(values) == 0 or (values.min() >= low and values.max() <= finite):
            return
        entries = np.flatnonzero(~((values >= low) & (values <= finite)))
    allowed = f"finite numbers >= {low:g}" if np.isinf(high) else f"numbers between {low:g} and {high:g}"
    yield from entry_fault(column, data, entries, _shown_float(values), allowed, advice)


def _shown_float(values: NDArray[np.float32]) -> Callable[[int], str]:
    return lambda j: "NaN or null" if np.isnan(values[j]) else str(values[j])


def int_list_fault(
    column: str, data: ListColumn, low: int, high: NDArray[Any] | int, allowed: str, advice: str
) -> Iterator[Fault]:
    """Rows with a list entry that is no whole number or outside low..high (`high` may be one bound per entry)."""
    inner: IntColumn = data.values
    bad = ~inner.valid | ~inner.whole | (inner.values < low) | (inner.values > high)

    def shown(j: int) -> str:
        return str(inner.values[j]) if inner.valid[j] and inner.whole[j] else "NaN or null"

    yield from entry_fault(column, data, np.flatnonzero(bad), shown, "whole numbers, " + allowed, advice)


def entry_fault(
    column: str, data: ListColumn, entries: Rows, shown: Callable[[int], str], allowed: str, advice: str
) -> Iterator[Fault]:
    """The rows of the given list entries, each shown by its first one."""
    if len(entries) == 0:
        return
    offsets = offsets_of(data.lengths)
    rows, first = np.unique(row_of(data, entries), return_index=True)

    def found(i: int) -> str:
        entry = int(entries[first[np.searchsorted(rows, i)]])
        return f"value {shown(entry)} at list position {entry - int(offsets[i])}"

    yield from if_any(column, rows, found, allowed, advice)
