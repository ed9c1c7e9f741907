"""Round logs: one row per executed round, written identically by the simulator and by real decoding.

Owns the file, not the meaning of a round. Columns and types are in `schema.ROUND_LOG_SCHEMA`.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from specsim.decode import decode_ints
from specsim.errors import TraceError
from specsim.paths import commit_file, temporary_beside
from specsim.reader import open_parquet, read_batches
from specsim.schema import METADATA_KEY, ROUND_LOG_SCHEMA, ROUND_LOG_SCHEMA_NAME, ROW_GROUP_ROWS
from specsim.writer import parquet_writer


class RoundLogWriter:
    """Streams rounds into a parquet file that appears under its name only when it is closed.

    Used as a context manager it closes on success and aborts on an exception.

    Args:
        path: the file; replaced if it exists.
        run: what identifies the run (controller, trace, latency, versions); any JSON object, `schema` is added.

    Raises:
        ConfigError: the folder does not exist or cannot be written.
    """

    def __init__(self, path: str | Path, run: Mapping[str, Any]) -> None:
        self.path = Path(path)
        document = json.dumps({"schema": ROUND_LOG_SCHEMA_NAME, **run}, allow_nan=False)
        self._schema = ROUND_LOG_SCHEMA.with_metadata({METADATA_KEY: document.encode()})
        self._temporary = temporary_beside(self.path)
        self._writer = parquet_writer(self._temporary, self._schema)
        self._pending: list[pa.RecordBatch] = []
        self._held = 0
        self._open = True
        self.rows = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        if kind is None:
            self.close()
        else:
            self.abort()

    def write(self, columns: Mapping[str, Any]) -> None:
        """Append rounds.

        Args:
            columns: every column of the schema, each an array of the same length or a scalar for all of them. None, or
                NaN in a `_s` column, is null where the schema allows it.

        Raises:
            TraceError: a column is missing, unknown, null where it must not be, of another length, or outside its
                type's range.
        """
        assert self._open, "write() after close() or abort()"
        batch = self._batch(columns)
        self.rows += batch.num_rows
        self._pending.append(batch)
        self._held += batch.num_rows
        if self._held >= ROW_GROUP_ROWS:
            self._flush()

    def close(self) -> None:
        """Write what is pending and give the file its name; does nothing the second time."""
        if not self._open:
            return
        try:
            self._flush()
            self._writer.close()
            commit_file(self._temporary, self.path)
        finally:
            self._open = False
            self._temporary.unlink(missing_ok=True)

    def abort(self) -> None:
        """Drop everything written; an older file of that name stays as it was."""
        if self._open:
            self._open = False
            self._writer.close()
            self._temporary.unlink(missing_ok=True)

    def _flush(self) -> None:
        if self._held:
            self._writer.write_table(pa.Table.from_batches(self._pending), row_group_size=ROW_GROUP_ROWS)
            self._pending, self._held = [], 0

    def _batch(self, columns: Mapping[str, Any]) -> pa.RecordBatch:
        for name in columns:
            if name not in self._schema.names:
                raise TraceError(self.path, "unknown column", allowed=", ".join(self._schema.names), column=name)
        for name in self._schema.names:
            if name not in columns:
                raise TraceError(self.path, "the column is missing", allowed="every column in every write", column=name)
        sizes = {name: len(v) for name, v in columns.items() if isinstance(v, np.ndarray | list | tuple)}
        rows = next(iter(sizes.values()), 1)
        for name, size in sizes.items():
            if size != rows:
                raise TraceError(self.path, f"{size} values", allowed=f"{rows}, as in the other columns", column=name)
        arrays = [self._array(field, columns[field.name], rows) for field in self._schema]
        return pa.record_batch(arrays, schema=self._schema)

    def _array(self, field: pa.Field, value: Any, rows: int) -> pa.Array:
        try:
            if isinstance(value, np.ndarray):
                # from_pandas turns NaN into null, which is what an unmeasured time is.
                array = pa.array(value, from_pandas=value.dtype.kind == "f").cast(field.type)
            elif isinstance(value, list | tuple):
                array = pa.array(value, field.type)
            else:
                plain = value.item() if isinstance(value, np.generic) else value
                plain = None if isinstance(plain, float) and np.isnan(plain) else plain
                array = pa.repeat(pa.scalar(plain, field.type), rows)
        except (pa.ArrowException, OverflowError, TypeError, ValueError) as error:
            raise TraceError(
                self.path, f"a value does not fit ({error})", allowed=f"type {field.type}", column=field.name
            ) from error
        if array.null_count and not field.nullable:
            raise TraceError(
                self.path,
                "a value is null or NaN",
                allowed=f"type {field.type}",
                column=field.name,
                row=self.rows + int(np.flatnonzero(np.asarray(array.is_null()))[0]),
            )
        return array


def read_round_log(path: str | Path) -> tuple[dict[str, Any], dict[str, NDArray[Any]]]:
    """Read a whole round log.

    Args:
        path: the file.

    Returns:
        The run metadata (with `schema`) and one array per column with the schema's dtype, `run_id` as objects. Null is
        -1 in an integer column and NaN in a time column. Unknown columns are ignored. A log may have no rows.

    Raises:
        TraceError: not a round log of this version, or a column is missing or of another type.
    """
    with open_parquet(path) as file:
        metadata = _run_metadata(file.metadata.metadata or {}, path)
        _check_types(file.schema_arrow, path)
        batches = [batch for _, batch in read_batches(file, Path(path), ROUND_LOG_SCHEMA.names)]
    parts = {field.name: list(_parts(field, batches)) for field in ROUND_LOG_SCHEMA}
    empty = {field.name: _empty(field) for field in ROUND_LOG_SCHEMA}
    return metadata, {name: np.concatenate(arrays) if arrays else empty[name] for name, arrays in parts.items()}


def stream_round_log(path: str | Path, columns: Sequence[str]) -> Iterator[tuple[float, pa.RecordBatch]]:
    """Go over a round log in pieces of at most 32k rows; no more than one of them is held.

    Args:
        path: the file.
        columns: those that are read.

    Yields:
        The share of the file that has been read, this piece included, and the piece: the columns in the order asked
        for, with the schema's types. Null stays null, in columns that may be null.

    Raises:
        TraceError: not a round log of this version; a column is missing, of another type, or holds a null or a value
            that does not fit; a part of the file cannot be read.
    """
    with open_parquet(path) as file:
        _run_metadata(file.metadata.metadata or {}, path)
        _check_types(file.schema_arrow, path)
        rows = file.metadata.num_rows
        for first_row, batch in read_batches(file, Path(path), list(columns)):
            arrays = [_typed(batch.column(name), ROUND_LOG_SCHEMA.field(name), path, first_row) for name in columns]
            yield (first_row + batch.num_rows) / rows, pa.record_batch(arrays, names=list(columns))


def _typed(array: pa.Array, field: pa.Field, path: str | Path, first_row: int) -> pa.Array:
    try:
        typed = array.cast(field.type)
    except (pa.ArrowException, ValueError) as error:
        raise TraceError(
            path,
            f"a value does not fit ({str(error).splitlines()[0]})",
            allowed=f"type {field.type}",
            column=field.name,
            row=first_row,
        ) from error
    if typed.null_count and not field.nullable:
        row = first_row + int(np.flatnonzero(np.asarray(typed.is_null()))[0])
        raise TraceError(path, "a value is null", allowed=f"type {field.type}", column=field.name, row=row)
    return typed


def _run_metadata(stored: Mapping[bytes, bytes], path: str | Path) -> dict[str, Any]:
    try:
        metadata = json.loads(stored.get(METADATA_KEY, b"null"))
    except ValueError:
        metadata = None
    found = metadata.get("schema") if isinstance(metadata, dict) else None
    if not isinstance(metadata, dict) or found != ROUND_LOG_SCHEMA_NAME:
        raise TraceError(
            path,
            f"metadata 'specsim' has schema = {found!r}",
            allowed=repr(ROUND_LOG_SCHEMA_NAME),
            advice="This is not a round log of this version; write it with specsim.roundlog.RoundLogWriter",
        )
    return metadata


def _check_types(schema: pa.Schema, path: str | Path) -> None:
    for field in ROUND_LOG_SCHEMA:
        if field.name not in schema.names:
            raise TraceError(path, "the column is missing", allowed=f"type {field.type}", column=field.name)
        found = schema.field(field.name).type
        same_family = (
            found == field.type
            or (pa.types.is_integer(field.type) and (pa.types.is_integer(found) or pa.types.is_floating(found)))
            or (pa.types.is_floating(field.type) and (pa.types.is_integer(found) or pa.types.is_floating(found)))
            or (pa.types.is_string(field.type) and pa.types.is_large_string(found))
            or (field.nullable and pa.types.is_null(found))
        )
        if not same_family:
            raise TraceError(path, f"type {found}", allowed=f"type {field.type}", column=field.name)


def _empty(field: pa.Field) -> NDArray[Any]:
    return np.empty(0, dtype=field.type.to_pandas_dtype())


def _parts(field: pa.Field, batches: list[pa.RecordBatch]) -> Iterator[NDArray[Any]]:
    dtype = _empty(field).dtype
    for batch in batches:
        array = batch.column(field.name)
        if dtype.kind == "i":
            column = decode_ints(array)
            yield np.where(column.valid, column.values, -1).astype(dtype)
        elif dtype.kind == "f":
            yield array.cast(field.type).to_numpy(zero_copy_only=False)
        else:
            yield array.to_numpy(zero_copy_only=False).astype(dtype)
