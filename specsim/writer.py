"""Writer of trace files: checked, atomic, in row groups that stream.

Owns the mapping from a chunk to Arrow columns. What is written is judged by the same rules as what is read.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from specsim.chunk import TraceChunk
from specsim.decode import decode_block
from specsim.errors import TraceError
from specsim.paths import replace_file
from specsim.schema import METADATA_KEY, PASS_COLUMNS, ROW_GROUP_ROWS, TraceMeta, schema_for
from specsim.validate import Carry, raise_first

_INDEX_COLUMNS = ("request", "pos", "ctx_len", "accept_len")


def write_trace(
    path: str | Path,
    meta: TraceMeta,
    chunks: Iterable[TraceChunk] | TraceChunk,
    *,
    extra_columns: Mapping[str, pa.Array | NDArray[Any]] | None = None,
) -> None:
    """Write a trace file; it appears under its name only when it is complete and valid.

    Args:
        path: the file; replaced if it exists.
        meta: metadata; `requests` is stored as given.
        chunks: consecutive rows, in any cutting. NaN rows of a float column are written as null, and so are rows
            without a pass; the first chunk decides whether the file has per-pass columns.
        extra_columns: further columns, each as long as the whole file; readers ignore them.

    Raises:
        TraceError: metadata or rows break a rule of the format, or there are no rows.
        ConfigError: the folder does not exist or cannot be written.
    """
    meta.check(path)
    extra = {name: pa.array(values) for name, values in (extra_columns or {}).items()}
    with replace_file(path) as temporary:
        passes, source = _peek([chunks] if isinstance(chunks, TraceChunk) else chunks)
        schema = schema_for(meta.kind, passes=passes)
        for name, values in extra.items():
            schema = schema.append(pa.field(name, values.type))
        schema = schema.with_metadata({METADATA_KEY: json.dumps(meta.to_json(), allow_nan=False).encode()})
        rows = 0
        with parquet_writer(temporary, schema) as writer:
            carry = Carry()
            for batch in _groups(_batches(source, meta, path, passes=passes)):
                raise_first(decode_block(batch, rows), meta, carry, path)
                writer.write_batch(_with_extra(batch, extra, rows, schema, path))
                rows += batch.num_rows
        if rows == 0:
            raise TraceError(path, "there are no rows to write", allowed="at least one row")
        for name, values in extra.items():
            if len(values) != rows:
                raise TraceError(
                    path, f"{len(values)} values for {rows} rows", allowed="one value per row", column=name
                )


def _peek(chunks: Iterable[TraceChunk]) -> tuple[bool, Iterator[TraceChunk]]:
    """Whether the first chunk has per-pass columns, and all the chunks."""
    source = iter(chunks)
    first = next(source, None)
    return (False, source) if first is None else (first.pass_count is not None, chain([first], source))


def parquet_writer(path: Path, schema: pa.Schema) -> pq.ParquetWriter:
    """A parquet writer with the settings of every file written here (zstd, page checksums)."""
    # Float lists hardly repeat, so a dictionary would only cost memory; the integer columns compress well with one.
    coded = [name for name in schema.names if pa.types.is_integer(schema.field(name).type)]
    coded += [name for name in schema.names if pa.types.is_string(schema.field(name).type)]
    return pq.ParquetWriter(
        path,
        schema,
        compression="zstd",
        use_dictionary=coded or False,  # pyright: ignore[reportArgumentType]  # a list of columns is allowed
        write_page_checksum=True,
    )


def _groups(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Join small batches and cut large ones, so that every row group but the last has exactly 64k rows."""
    pending: list[pa.RecordBatch] = []
    held = 0
    for batch in batches:
        start = 0
        while held + batch.num_rows - start >= ROW_GROUP_ROWS:
            take = ROW_GROUP_ROWS - held
            yield _joined([*pending, batch.slice(start, take)])
            pending, held, start = [], 0, start + take
        if start < batch.num_rows:
            pending.append(batch.slice(start))
            held += batch.num_rows - start
    if held:
        yield _joined(pending)


def _joined(batches: list[pa.RecordBatch]) -> pa.RecordBatch:
    return batches[0] if len(batches) == 1 else pa.Table.from_batches(batches).combine_chunks().to_batches()[0]


def _with_extra(
    batch: pa.RecordBatch, extra: Mapping[str, pa.Array], first_row: int, schema: pa.Schema, path: str | Path
) -> pa.RecordBatch:
    columns = list(batch.columns)
    for name, values in extra.items():
        part = values.slice(first_row, batch.num_rows)
        if len(part) != batch.num_rows:
            raise TraceError(path, f"only {len(values)} values", allowed="one value per row", column=name)
        columns.append(part)
    return pa.record_batch(columns, schema=schema)


def _batches(
    chunks: Iterable[TraceChunk], meta: TraceMeta, path: str | Path, *, passes: bool
) -> Iterator[pa.RecordBatch]:
    first_row = 0
    for chunk in chunks:
        # Cut first: Arrow list offsets are 32 bit, and a chunk may hold more draft tokens than that.
        for start in range(0, chunk.rows, ROW_GROUP_ROWS):
            part = chunk.slice(start, min(start + ROW_GROUP_ROWS, chunk.rows))
            yield chunk_to_batch(part, meta, path, first_row=first_row, passes=passes)
            first_row += part.rows


def chunk_to_batch(
    chunk: TraceChunk,
    meta: TraceMeta,
    path: str | Path = "<chunk>",
    *,
    first_row: int = 0,
    passes: bool = False,
) -> pa.RecordBatch:
    """The Arrow columns of a chunk, with the exact types of its kind's schema; values are not checked.

    Args:
        chunk: rows.
        meta: decides the columns.
        path, first_row: place named in messages.
        passes: whether the per-pass columns are among them.

    Raises:
        TraceError: a column of the kind cannot be built, the chunk has per-pass columns that are not to be written
            (those before it had none), or no list carries a row length other than the default.
    """
    arrays: list[pa.Array] = []
    carried = np.zeros(chunk.rows, dtype=np.bool_)
    schema = schema_for(meta.kind, passes=passes)
    if chunk.pass_count is not None and not passes:
        raise TraceError(
            path,
            "the chunk holds passes, but the first one of the file had no such arrays",
            allowed=f"{', '.join(PASS_COLUMNS)} in the first chunk, with no pass in the rows that have none",
            advice="Give the first chunk empty arrays",
            column="pass_count",
            row=first_row,
        )
    for field in schema:
        array = _column(chunk, field, meta, path)
        if field.name in ("q", "p", "accept_prob", "entropy", "target_rank"):
            carried |= np.asarray(array.is_valid())
        arrays.append(array)
    lost = np.flatnonzero(~carried & (chunk.lengths != meta.unlogged_len))
    if len(lost):
        raise TraceError(
            path,
            f"the row has m = {chunk.lengths[lost[0]]}, but no list column that could hold that many values",
            allowed=f"m = {meta.unlogged_len} where q, p, accept_prob and entropy are all missing",
            advice="Give at least one of these columns",
            row=first_row + int(lost[0]),
        )
    return pa.record_batch(arrays, schema=schema)


def _column(chunk: TraceChunk, field: pa.Field, meta: TraceMeta, path: str | Path) -> pa.Array:
    name, kind, rows = field.name, field.type, chunk.rows
    values = getattr(chunk, name)
    if values is None:
        if not field.nullable:
            raise TraceError(path, "the column is missing", allowed=f"values for kind {meta.kind!r}", column=name)
        return pa.nulls(rows, kind)
    if name in _INDEX_COLUMNS:
        return pa.array(values, kind)
    if name == "verify_s":
        return pa.array(values, kind, mask=np.isnan(values))
    if name == "topk_q":
        inner = _list_array(chunk.topk_offsets, values, kind.value_type)
        return _list_array(chunk.offsets, inner, kind)
    if name == "draft_s":
        return _list_array(chunk.draft_offsets, values, kind)
    if name in PASS_COLUMNS:
        assert chunk.pass_offsets is not None, "a ragged array needs its offsets"
        offsets = chunk.conf_offsets if name == "pass_conf" else chunk.pass_offsets
        return _list_array(offsets, values, kind, null_rows=np.diff(chunk.pass_offsets) == 0)
    if name in ("arm_accept_len", "arm_draft_s"):
        offsets = np.arange(rows + 1, dtype=np.int64) * meta.n_arms
        return _list_array(
            offsets, np.ascontiguousarray(values).reshape(-1), kind, null_rows=_nan_rows(offsets, values)
        )
    return _list_array(chunk.offsets, values, kind, null_rows=_nan_rows(chunk.offsets, values))


def _nan_rows(offsets: NDArray[np.int64], values: NDArray[Any]) -> NDArray[np.bool_] | None:
    """Rows whose values are all NaN, a chunk's way to say null; a row that is partly NaN is left to validation."""
    values = values.reshape(-1)
    if values.dtype.kind != "f" or not np.isnan(values).any():
        return None
    known = np.concatenate(([0], np.cumsum(~np.isnan(values))))
    return (known[offsets[1:]] == known[offsets[:-1]]) & (offsets[1:] > offsets[:-1])


def _list_array(
    offsets: NDArray[np.int64] | None, values: Any, kind: pa.DataType, *, null_rows: NDArray[np.bool_] | None = None
) -> pa.Array:
    assert offsets is not None, "a ragged array needs its offsets"
    flat = values if isinstance(values, pa.Array) else pa.array(values, kind.value_type)  # pyright: ignore[reportAttributeAccessIssue]
    mask = None if null_rows is None else pa.array(null_rows)
    return pa.ListArray.from_arrays(pa.array(offsets.astype(np.int32)), flat, type=kind, mask=mask)
