"""Streaming reader of trace files: parquet row groups in, checked chunks of whole requests out.

Owns opening, file-level faults and the joining of requests that straddle row groups. The rules themselves are in
`validate`, the types in `decode`.
"""

from __future__ import annotations

from collections.abc import Collection, Container, Iterator
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from specsim.chunk import TraceChunk, concat_chunks, offsets_of
from specsim.decode import Block, FloatColumn, ListColumn, check_columns, decode_block, decode_ints
from specsim.errors import TraceError
from specsim.paths import check_readable
from specsim.schema import METADATA_KEY, ROW_GROUP_ROWS, TRACE_SCHEMA_NAME, TraceMeta
from specsim.validate import Carry, raise_first, row_lengths

_MAGIC = b"PAR1"


def open_trace(path: str | Path) -> TraceReader:
    """Open a trace file; footer, metadata and column types are checked here, rows when they are read.

    Raises:
        TraceError: the path is no readable parquet file, or not a trace of this schema version, or has no rows.
    """
    return TraceReader(path)


def read_trace(path: str | Path, **kwargs: Any) -> tuple[TraceMeta, TraceChunk]:
    """Read a whole file as one chunk; for tests and small files.

    Args:
        path: trace file.
        kwargs: as for `TraceReader.chunks`.

    Raises:
        TraceError: the file breaks a rule of the format, or `skip_requests` leaves no row.
    """
    with open_trace(path) as reader:
        chunks = list(reader.chunks(**kwargs))
        if not chunks:
            raise TraceError(path, "no request is left to read", advice="Skip fewer requests")
        return reader.meta, concat_chunks(chunks)


def open_parquet(path: str | Path) -> pq.ParquetFile:
    """Open a parquet file so that reading it holds little memory and verifies page checksums.

    Raises:
        TraceError: missing, empty, a directory, truncated, or not parquet.
    """
    check_readable(path)
    try:
        # Neither a memory map (its pages count as resident) nor pre-buffering (it reads row groups ahead).
        return pq.ParquetFile(
            path, memory_map=False, pre_buffer=False, buffer_size=1 << 20, page_checksum_verification=True
        )
    except (pa.ArrowException, OSError, ValueError) as error:
        with Path(path).open("rb") as handle:
            starts_right = handle.read(4) == _MAGIC
        problem = "the file is truncated or damaged" if starts_right else "this is not a parquet file"
        raise TraceError(
            path,
            f"{problem} ({_first_line(error)})",
            allowed="a complete parquet file",
            advice="Copy or record it again; `python -m specsim.synth iid demo.parquet` makes a valid one",
        ) from error


class TraceReader:
    """An open trace file.

    Args:
        path: the file.

    Attributes:
        path: the file.
        meta: checked metadata.
        rows: number of rows, from the parquet footer.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self._file = open_parquet(path)
        try:
            self.meta = _read_meta(self._file, self.path)
            self.rows = int(self._file.metadata.num_rows)
            self._columns = check_columns(self._file.schema_arrow, self.meta.kind, self.path)
            if self.rows == 0:
                raise TraceError(
                    self.path, "the file has no rows", allowed="at least one row", advice="Record at least one request"
                )
        except BaseException:
            self._file.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """Close the file; chunks already read stay valid."""
        self._file.close()

    def batches(self) -> Iterator[tuple[int, pa.RecordBatch]]:
        """Undecoded rows of the columns this kind has: pairs of first row number and non-empty record batch.

        Raises:
            TraceError: a row group cannot be read.
        """
        return read_batches(self._file, self.path, self._columns)

    def chunks(
        self,
        columns: Collection[str] | None = None,
        *,
        max_requests: int | None = None,
        skip_requests: Container[int] = (),
    ) -> Iterator[TraceChunk]:
        """Stream the rows as chunks of whole requests.

        A chunk holds about 64k rows (more only when one request is longer than that) whose row numbers in the file are
        consecutive. Every column is checked, also those not asked for; rows of skipped requests and rows after the
        last request read are not.

        Args:
            columns: names of the optional columns to keep; None keeps all.
            max_requests: stop after this many requests (skipped ones not counted).
            skip_requests: ids to leave out.

        Yields:
            Chunks in file order.

        Raises:
            TraceError: at the first row that breaks a rule.
        """
        parts = _skip_rows(self.batches(), skip_requests)
        left = max_requests
        for chunk in _whole_requests(self._checked(parts)):
            kept = chunk if left is None else _first_requests(chunk, left)
            if kept.rows:
                yield kept if columns is None else kept.keep(set(columns))
            if left is not None:
                left -= len(np.unique(kept.request))
                if left <= 0:
                    return

    def _checked(self, parts: Iterator[tuple[int, pa.RecordBatch]]) -> Iterator[TraceChunk]:
        carry, next_row = Carry(), 0
        for first_row, batch in parts:
            block = decode_block(batch, first_row)
            raise_first(block, self.meta, carry, self.path, after_gap=first_row != next_row)
            next_row = first_row + block.rows
            yield _chunk_of(block, self.meta)


def read_batches(file: pq.ParquetFile, path: Path, columns: list[str] | None) -> Iterator[tuple[int, pa.RecordBatch]]:
    """Non-empty record batches of at most 32k rows with their first row number, one row group at a time.

    Raises:
        TraceError: a row group is damaged.
    """
    # Half of a chunk's rows: what is left over from the batch before and a new batch then fit in one chunk.
    first_row = 0
    for group in range(file.metadata.num_row_groups):
        try:
            for batch in file.iter_batches(
                max(1, ROW_GROUP_ROWS // 2), row_groups=[group], columns=columns, use_threads=False
            ):
                if batch.num_rows:
                    yield first_row, batch
                first_row += batch.num_rows
        except (pa.ArrowException, OSError) as error:
            raise TraceError(
                path,
                f"row group {group} cannot be read ({_first_line(error)})",
                allowed="an undamaged parquet file",
                advice="Copy or record it again",
                row=first_row,
            ) from error


def _first_line(error: BaseException) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]


def _read_meta(file: pq.ParquetFile, path: Path) -> TraceMeta:
    stored = file.metadata.metadata or {}
    if METADATA_KEY not in stored:
        raise TraceError(
            path,
            "the file has no metadata key 'specsim'",
            allowed=f'a JSON object with "schema": "{TRACE_SCHEMA_NAME}"',
            advice="This parquet file is not a trace, or its metadata was lost when a tool rewrote it; "
            "write traces with specsim.trace.write_trace",
        )
    return TraceMeta.from_json(stored[METADATA_KEY], path)


def request_ids(batch: pa.RecordBatch) -> NDArray[np.int64]:
    """int64[R] request ids of a batch, unchecked (0 where null or fractional)."""
    return decode_ints(batch.column("request")).values


def _skip_rows(
    batches: Iterator[tuple[int, pa.RecordBatch]], skip: Container[int]
) -> Iterator[tuple[int, pa.RecordBatch]]:
    """Cut out the rows of skipped requests, leaving runs of consecutive rows."""
    if not skip:
        yield from batches
        return
    for first_row, batch in batches:
        ids = request_ids(batch)
        skipped = [request for request in np.unique(ids).tolist() if request in skip]
        if not skipped:
            yield first_row, batch
            continue
        kept = np.concatenate(([False], ~np.isin(ids, skipped), [False]))
        edges = np.flatnonzero(kept[1:] != kept[:-1]).tolist()
        for start, stop in zip(edges[::2], edges[1::2], strict=True):
            yield first_row + start, batch.slice(start, stop - start)


def _whole_requests(parts: Iterator[TraceChunk]) -> Iterator[TraceChunk]:
    """Join and cut consecutive parts so that every request lies in one chunk of about 64k rows."""
    pending: list[TraceChunk] = []
    rows = 0
    for part in parts:
        if pending and part.first_row != pending[-1].first_row + pending[-1].rows:
            yield _normalised(concat_chunks(pending))  # a gap is the edge of a skipped, hence whole, request
            pending, rows = [], 0
        # The boundary is looked for in the new part alone: joining on every part would be quadratic in a long request.
        last_start = int(np.searchsorted(part.request, part.request[-1]))
        opens_new = last_start > 0 or (bool(pending) and pending[-1].request[-1] != part.request[0])
        if opens_new and rows + last_start >= ROW_GROUP_ROWS // 2:
            head = [*pending, part.slice(0, last_start)] if last_start else pending
            yield _normalised(concat_chunks(head))
            pending, rows, part = [], 0, part.slice(last_start, part.rows)
        pending.append(part)
        rows += part.rows
    if pending:
        yield _normalised(concat_chunks(pending))


def _normalised(chunk: TraceChunk) -> TraceChunk:
    """Cutting may leave a column with no value at all: make it None again, as the type promises."""
    empty = [
        name
        for name in ("q", "p", "accept_prob", "entropy", "verify_s", "arm_draft_s")
        if (array := getattr(chunk, name)) is not None
        and array.size
        and np.isnan(array.flat[0])
        and np.isnan(array).all()
    ]
    return chunk.keep({n for n in chunk.__slots__ if n not in empty}) if empty else chunk


def _first_requests(chunk: TraceChunk, count: int) -> TraceChunk:
    starts = np.flatnonzero(np.diff(chunk.request, prepend=chunk.request[0] - 1))
    return chunk if len(starts) <= count else chunk.slice(0, int(starts[max(count, 0)]))


def _chunk_of(block: Block, meta: TraceMeta) -> TraceChunk:
    lengths, _ = row_lengths(block, meta)
    ctx_len = block.ints["ctx_len"]
    values: dict[str, Any] = {
        "request": block.ints["request"].values.astype(np.int32),
        "pos": block.ints["pos"].values.astype(np.int32),
        "ctx_len": ctx_len.values.astype(np.int32) if ctx_len.valid[0] else None,
        "offsets": offsets_of(lengths),
    }
    for name in ("q", "p", "accept_prob", "entropy"):
        values[name] = _token_values(block.lists.get(name), lengths)
    draft = block.lists.get("draft_s")
    if draft is not None and draft.valid.any():
        values["draft_offsets"], values["draft_s"] = offsets_of(draft.lengths), draft.values
    values["verify_s"] = _verify_values(block.floats.get("verify_s"))
    if meta.kind == "arm":
        accepted = block.lists["arm_accept_len"].values.values.reshape(block.rows, meta.n_arms).astype(np.int16)
        seconds = _token_values(block.lists["arm_draft_s"], np.full(block.rows, meta.n_arms))
        values |= {"arm_accept_len": accepted, "accept_len": accepted.max(axis=1)}
        values["arm_draft_s"] = None if seconds is None else seconds.reshape(block.rows, meta.n_arms)
    else:
        values["accept_len"] = block.ints["accept_len"].values.astype(np.int16)
    passes = block.lists.get("pass_count")
    if passes is not None:
        conf, filled = block.lists["pass_conf"], block.lists["pass_filled"]
        values |= {"pass_offsets": offsets_of(passes.lengths), "pass_count": passes.values.values.astype(np.int16)}
        values |= {"pass_filled": filled.values.values.astype(np.int16)}
        values |= {"conf_offsets": offsets_of(conf.lengths), "pass_conf": conf.values}
    if meta.kind == "tree":
        topk: ListColumn = block.lists["topk_q"].values
        values |= {"topk_offsets": offsets_of(topk.lengths), "topk_q": topk.values}
        values["target_rank"] = block.lists["target_rank"].values.values.astype(np.int16)
    return TraceChunk(first_row=block.first_row, **values)


def _token_values(column: ListColumn | None, lengths: NDArray[np.int64]) -> NDArray[np.float32] | None:
    if column is None or not column.valid.any():
        return None
    if column.valid.all():
        return column.values
    filled = np.full(int(lengths.sum()), np.nan, dtype=np.float32)
    filled[np.repeat(column.valid, lengths)] = column.values
    return filled


def _verify_values(column: FloatColumn | None) -> NDArray[np.float32] | None:
    return None if column is None or not column.valid.any() else column.values
