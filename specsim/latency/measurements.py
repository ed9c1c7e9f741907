"""Measured forward passes: reading them from CSV, and the medians every fit works on.

Owns the POINTS.csv format: columns `s` (token positions) and one of `time_s`, `time_ms`, `time_us`, optionally
`ctx_len`; other columns are ignored, repeated rows are repeated measurements. Knows nothing about forms.
"""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Iterator
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path

import numpy as np

from specsim.errors import ConfigError
from specsim.latency.forms import FloatArray

TIME_UNITS = {"time_s": 1.0, "time_ms": 1e-3, "time_us": 1e-6}
_FORMAT = "columns s and time_s (or time_ms, time_us), optionally ctx_len; one measurement per row"


@dataclass(frozen=True, kw_only=True)
class Measurements:
    """Single measurements in file order.

    Args:
        s: float64[n], token positions of the forward pass, whole numbers >= 1.
        time_s: float64[n], seconds, > 0.
        ctx_len: float64[n], context tokens, >= 0; None when not recorded.
        where: file they came from, for messages.
    """

    s: FloatArray
    time_s: FloatArray
    ctx_len: FloatArray | None = None
    where: str = "measurements"

    def up_to(self, max_s: int | None) -> Measurements:
        """Only the measurements with s <= `max_s` (all when None)."""
        if max_s is None:
            return self
        keep = self.s <= max_s
        ctx_len = None if self.ctx_len is None else self.ctx_len[keep]
        return Measurements(s=self.s[keep], time_s=self.time_s[keep], ctx_len=ctx_len, where=self.where)


def point_fault(
    path: str | Path,
    problem: str,
    *,
    allowed: str,
    advice: str,
    row: int | None = None,
    line: int | None = None,
    column: str | None = None,
) -> ConfigError:
    """A ConfigError with the place in a CSV file: 0-based data row, 1-based line of the file, column."""
    place = str(path)
    if row is not None:
        place += f", row {row}"
    if line is not None:
        place += f" (line {line})"
    if column is not None:
        place += f", column {column!r}"
    return ConfigError(f"{place}: {problem}; allowed: {allowed}. {advice}")


def read_rows(path: str | Path) -> tuple[list[str], Iterator[tuple[int, int, dict[str, str]]]]:
    """Header and rows of a CSV file.

    Returns:
        the header, and (0-based row, line of the file, cells by column) for each row that is not blank.

    Raises:
        ConfigError: unreadable, not UTF-8, no header, a column twice, or a row of another length.
    """
    advice = "Check the path and the file."
    try:
        text = Path(path).read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise point_fault(path, f"byte {error.start} is not UTF-8", allowed="UTF-8 CSV", advice=advice) from None
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise point_fault(path, f"cannot be read ({reason})", allowed="a CSV file", advice=advice) from None
    lines = _lines(path, io.StringIO(text, newline=""))
    header = [name.strip() for name in next(lines, (1, []))[1]]
    if not any(header):
        raise point_fault(path, "is empty", allowed="a CSV file with a header", advice=f"Expected: {_FORMAT}.")
    for name in header:
        if header.count(name) > 1:
            raise point_fault(
                path, "stands twice", allowed="each column once", advice="Rename or drop one.", column=name
            )
    return header, _rows(path, header, lines)


def _lines(path: str | Path, stream: io.StringIO) -> Iterator[tuple[int, list[str]]]:
    reader = csv.reader(stream)
    try:
        for cells in reader:
            yield reader.line_num, cells
    except csv.Error as error:
        raise point_fault(path, str(error), allowed="CSV", advice="Repair the line.", line=reader.line_num) from None


def _rows(
    path: str | Path, header: list[str], lines: Iterator[tuple[int, list[str]]]
) -> Iterator[tuple[int, int, dict[str, str]]]:
    row = 0
    for line, cells in lines:
        if not any(cell.strip() for cell in cells):
            continue
        if len(cells) != len(header):
            raise point_fault(
                path,
                f"{len(cells)} cells",
                allowed=f"{len(header)} cells, as in the header",
                advice="Check separators and quotes.",
                row=row,
                line=line,
            )
        yield row, line, dict(zip(header, cells, strict=True))
        row += 1


def read_number(
    path: str | Path, row: int, line: int, column: str, text: str, *, allowed: str, above: float, whole: bool = False
) -> float:
    """A finite number >= `above` (> `above` when it is 0 and not whole) from one cell; raises ConfigError otherwise."""
    advice = "Remove or repair the row; a failed measurement does not belong in the file."
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    bad = not math.isfinite(value) or (value < above if whole else value <= above) or (whole and value != int(value))
    if bad:
        raise point_fault(path, f"{text!r}", allowed=allowed, advice=advice, row=row, line=line, column=column)
    return value


def read_measurements(path: str | Path) -> Measurements:
    """Measurements from a CSV file.

    Raises:
        ConfigError: unreadable file, missing or doubled columns, or a bad value; names file, row, column, value, what
            is allowed and what to do.
    """
    header, rows = read_rows(path)
    time_column = _time_column(path, header)
    s: list[float] = []
    time_s: list[float] = []
    ctx_len: list[float] = []
    for row, line, cells in rows:
        s.append(read_number(path, row, line, "s", cells["s"], allowed="a whole number >= 1", above=1, whole=True))
        value = read_number(path, row, line, time_column, cells[time_column], allowed="a finite number > 0", above=0)
        time_s.append(value * TIME_UNITS[time_column])
        if "ctx_len" in header:
            allowed = "a whole number >= 0"
            ctx_len.append(
                read_number(path, row, line, "ctx_len", cells["ctx_len"], allowed=allowed, above=0, whole=True)
            )
    return Measurements(
        s=np.array(s, dtype=np.float64),
        time_s=np.array(time_s, dtype=np.float64),
        ctx_len=np.array(ctx_len, dtype=np.float64) if "ctx_len" in header else None,
        where=str(path),
    )


def _time_column(path: str | Path, header: list[str]) -> str:
    found = [name for name in TIME_UNITS if name in header]
    missing = "s" if "s" not in header else "time_s" if not found else None
    if missing is not None:
        close = get_close_matches(missing, header, n=1, cutoff=0.4)
        advice = f"Rename {close[0]!r}?" if close else f"Columns here: {', '.join(header)}."
        raise point_fault(path, "is missing", allowed=_FORMAT, advice=advice, column=missing)
    if len(found) > 1:
        raise point_fault(
            path, f"has {' and '.join(found)}", allowed="one column of times", advice="Drop all but one of them."
        )
    return found[0]


def medians(s: FloatArray, time_s: FloatArray) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Distinct s ascending, median seconds at each, number of measurements at each; float64[distinct]."""
    distinct, inverse = np.unique(s, return_inverse=True)
    median_s = np.array([np.median(time_s[inverse == index]) for index in range(len(distinct))])
    return distinct, median_s, np.bincount(inverse).astype(np.float64)
