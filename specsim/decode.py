"""Arrow columns -> plain numpy columns, whatever lossless type the writer of the file chose.

Owns the tolerance for foreign files: integers stored as doubles (pandas), float64 lists, large and fixed-size lists,
columns of type null. Decides nothing about values; that is `validate`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from specsim.errors import TraceError
from specsim.schema import PASS_COLUMNS, required_columns, schema_for

INT_COLUMNS: Final = ("request", "pos", "ctx_len", "accept_len")
FLOAT_COLUMNS: Final = ("verify_s",)
INT_LISTS: Final = ("arm_accept_len", "target_rank", "pass_count", "pass_filled")
FLOAT_LISTS: Final = ("q", "p", "accept_prob", "entropy", "draft_s", "arm_draft_s", "pass_conf")
NESTED_LISTS: Final = ("topk_q",)


class IntColumn(NamedTuple):
    """int64[R] values (0 where null or not whole), bool[R] not null, bool[R] whole number, and the stored numbers."""

    values: NDArray[np.int64]
    valid: NDArray[np.bool_]
    whole: NDArray[np.bool_]
    raw: NDArray[Any]


class FloatColumn(NamedTuple):
    """float32[R] values (NaN where null), bool[R] not null."""

    values: NDArray[np.float32]
    valid: NDArray[np.bool_]


class ListColumn(NamedTuple):
    """int64[R] lengths (0 where null), bool[R] not null, and the values of all rows one after the other."""

    lengths: NDArray[np.int64]
    valid: NDArray[np.bool_]
    values: Any  # float32[N], IntColumn of N, or ListColumn of N rows


class Block(NamedTuple):
    """Consecutive rows of a file, decoded but not checked; columns the file lacks are absent from the dicts."""

    first_row: int
    rows: int
    ints: dict[str, IntColumn]
    floats: dict[str, FloatColumn]
    lists: dict[str, ListColumn]


def check_columns(schema: pa.Schema, kind: str, path: str | Path) -> list[str]:
    """Check that the columns of a kind exist with usable types.

    Returns:
        Names of the columns to read, in schema order.

    Raises:
        TraceError: a column is missing, appears twice, or has a type that cannot be read without loss.
    """
    for name in required_columns(kind):
        if name not in schema.names:
            optional = schema_for(kind).field(name).nullable
            advice = "Write it all-null if it was not recorded" if optional else "The replay needs it; record it"
            raise TraceError(path, "the column is missing", allowed=f"{_wanted(name)}", advice=advice, column=name)
    known = [name for name in schema_for(kind, passes=True).names if name in schema.names]
    passes = [name for name in PASS_COLUMNS if name in known]
    if 0 < len(passes) < len(PASS_COLUMNS):
        lacking = next(name for name in PASS_COLUMNS if name not in passes)
        raise TraceError(
            path,
            f"the column is missing, but {passes[0]!r} is there",
            allowed=f"all of {', '.join(PASS_COLUMNS)}, or none",
            advice="Write all three, or drop the others",
            column=lacking,
        )
    for name in known:
        if schema.names.count(name) > 1:
            raise TraceError(
                path,
                "the column appears twice",
                allowed="one column of each name",
                advice="Drop one of the two",
                column=name,
            )
        if not _readable(schema.field(name).type, _depth(name)):
            raise TraceError(
                path,
                f"the column has type {schema.field(name).type}",
                allowed=_wanted(name),
                advice="Cast it when the file is written",
                column=name,
            )
    return known


def _depth(name: str) -> int:
    return 2 if name in NESTED_LISTS else 1 if name in FLOAT_LISTS or name in INT_LISTS else 0


def _wanted(name: str) -> str:
    number = "whole numbers" if name in INT_COLUMNS or name in INT_LISTS else "numbers"
    return {
        0: f"a column of {number}",
        1: f"a column of lists of {number}",
        2: "a column of lists of lists of numbers",
    }[_depth(name)]


def _is_list(kind: pa.DataType) -> bool:
    return pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind)


def _readable(kind: pa.DataType, depth: int) -> bool:
    if pa.types.is_null(kind):
        return True
    if depth == 0:
        return pa.types.is_integer(kind) or pa.types.is_floating(kind)
    return _is_list(kind) and _readable(kind.value_type, depth - 1)  # pyright: ignore[reportAttributeAccessIssue]


def decode_block(batch: pa.RecordBatch, first_row: int) -> Block:
    """Decode a record batch whose columns passed `check_columns`.

    Args:
        batch: rows of the file.
        first_row: row number in the file of the batch's row 0.
    """
    columns = {name: batch.column(i) for i, name in enumerate(batch.schema.names)}
    return Block(
        first_row=first_row,
        rows=batch.num_rows,
        ints={n: decode_ints(a) for n, a in columns.items() if n in INT_COLUMNS},
        floats={n: _float_column(a) for n, a in columns.items() if n in FLOAT_COLUMNS},
        lists={n: _list_column(a, n) for n, a in columns.items() if _depth(n) > 0},
    )


def _valid(array: pa.Array) -> NDArray[np.bool_]:
    if array.null_count == 0:
        return np.ones(len(array), dtype=np.bool_)
    return array.is_valid().to_numpy(zero_copy_only=False)


def decode_ints(array: pa.Array) -> IntColumn:
    """Decode a column of whole numbers stored as integers or floats of any width."""
    valid = _valid(array)
    if pa.types.is_null(array.type):
        zeros = np.zeros(len(array), np.int64)
        return IntColumn(zeros, np.zeros(len(array), np.bool_), np.ones(len(array), np.bool_), zeros)
    if array.null_count:
        array = pc.fill_null(array, 0)
    raw = array.to_numpy(zero_copy_only=False)
    if raw.dtype.kind in "iu":
        return IntColumn(raw.astype(np.int64, copy=False), valid, np.ones(len(raw), np.bool_), raw)
    # 2^53 bounds what a double counts exactly; NaN and infinities fail the comparison as well.
    whole = (np.abs(raw) < 2.0**53) & (raw == np.floor(raw))
    return IntColumn(np.where(whole, raw, 0).astype(np.int64), valid, whole, raw)


def _floats(array: pa.Array) -> NDArray[np.float32]:
    if pa.types.is_null(array.type):
        return np.full(len(array), np.nan, dtype=np.float32)
    raw = array.to_numpy(zero_copy_only=False)  # nulls arrive as NaN
    with np.errstate(over="ignore"):  # a double beyond float32 becomes infinite, which validation reports
        return raw.astype(np.float32, copy=False)


def _float_column(array: pa.Array) -> FloatColumn:
    valid = np.zeros(len(array), np.bool_) if pa.types.is_null(array.type) else _valid(array)
    return FloatColumn(_floats(array), valid)


def _list_column(array: pa.Array, name: str) -> ListColumn:
    depth, rows = _depth(name), len(array)
    if pa.types.is_null(array.type):
        flat: pa.Array = pa.nulls(0, pa.float32())
        return ListColumn(np.zeros(rows, np.int64), np.zeros(rows, np.bool_), _list_values(flat, name, depth, rows=0))
    lengths = _list_lengths(array)
    flat = array.flatten()  # skips the contents of null rows
    return ListColumn(lengths, _valid(array), _list_values(flat, name, depth, rows=len(flat)))


def _list_lengths(array: pa.Array) -> NDArray[np.int64]:
    lengths = pc.call_function("list_value_length", [array])
    return pc.fill_null(lengths, 0).to_numpy(zero_copy_only=False).astype(np.int64)


def _list_values(flat: pa.Array, name: str, depth: int, *, rows: int) -> Any:
    if name in INT_LISTS:
        return decode_ints(flat)
    if depth == 1:
        return _floats(flat)
    if rows == 0 or pa.types.is_null(flat.type):
        return ListColumn(np.zeros(rows, np.int64), np.zeros(rows, np.bool_), np.zeros(0, np.float32))
    lengths = _list_lengths(flat)
    return ListColumn(lengths, _valid(flat), _floats(flat.flatten()))
