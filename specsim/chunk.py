"""The in-memory form of trace rows: one frozen struct of arrays, with slicing and joining.

Owns the meaning of a missing (None) array against a missing (NaN) row. Knows nothing about files or validity.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from specsim.schema import PASS_COLUMNS

F32 = NDArray[np.float32]
I16 = NDArray[np.int16]
I32 = NDArray[np.int32]
I64 = NDArray[np.int64]

TOKEN_FIELDS: Final = ("q", "p", "accept_prob", "entropy", "target_rank")
"""Arrays with one entry per draft token, indexed by `offsets`."""
ROW_FIELDS: Final = ("ctx_len", "verify_s", "arm_accept_len", "arm_draft_s")
"""Optional arrays with one entry (or one row of K entries) per trace row."""
RAGGED_FIELDS: Final = (
    ("draft_offsets", "draft_s"),
    ("topk_offsets", "topk_q"),
    ("conf_offsets", "pass_conf"),
    ("pass_offsets", "pass_count"),
    ("pass_offsets", "pass_filled"),
)
"""Arrays of any number of entries per row (`topk_q`: per draft token), and the offsets that delimit them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceChunk:
    """R consecutive rows of a trace; N is the number of draft tokens they hold together.

    None means: null in every row of this chunk, or not asked for (whether a column is null may differ between chunks of
    one file). When only some rows of a column are null, those rows hold NaN.

    Args:
        request: int32[R], ascending; whole requests when the chunk comes from a reader.
        pos: int32[R], output tokens committed before this round.
        offsets: int64[R+1]; the draft tokens of row i are offsets[i]:offsets[i+1], so m = offsets[i+1] - offsets[i].
        accept_len: int16[R], 0..m; in an arm trace the largest `arm_accept_len` of the row.
        ctx_len: int32[R] prompt length + pos, or None (a file has it in all rows or in none).
        q, p, accept_prob: float32[N] in [0, 1].
        entropy: float32[N], nats.
        draft_offsets, draft_s: int64[R+1] and float32, seconds of each drafter pass of row i; null reads as empty.
        verify_s: float32[R], seconds, NaN where null.
        arm_accept_len: int16[R, K].
        arm_draft_s: float32[R, K], seconds of arm k's whole draft, NaN rows where null.
        topk_offsets, topk_q: int64[N+1] and float32; the drafter's top probabilities of draft token j, descending.
        target_rank: int16[N], rank of the target's token in that list, -1 if absent.
        pass_offsets, pass_count, pass_filled: int64[R+1] and int16; for each denoising pass of row i, how many
            confidences it recorded and how many leading draft positions were filled after it. A null row has no pass.
        conf_offsets, pass_conf: int64[R+1] and float32, the confidences recorded for row i, pass after pass. These five
            are None when the file lacks the columns, and all or none of them are.
        first_row: row number in the file of row 0.
    """

    request: I32
    pos: I32
    offsets: I64
    accept_len: I16
    ctx_len: I32 | None = None
    q: F32 | None = None
    p: F32 | None = None
    accept_prob: F32 | None = None
    entropy: F32 | None = None
    draft_offsets: I64 | None = None
    draft_s: F32 | None = None
    verify_s: F32 | None = None
    arm_accept_len: I16 | None = None
    arm_draft_s: F32 | None = None
    topk_offsets: I64 | None = None
    topk_q: F32 | None = None
    target_rank: I16 | None = None
    pass_offsets: I64 | None = None
    pass_count: I16 | None = None
    pass_filled: I16 | None = None
    conf_offsets: I64 | None = None
    pass_conf: F32 | None = None
    first_row: int = 0

    @property
    def rows(self) -> int:
        """Number R of rows."""
        return len(self.request)

    @property
    def lengths(self) -> I64:
        """m of every row, int64[R]."""
        return np.diff(self.offsets)

    def slice(self, start: int, stop: int) -> TraceChunk:
        """Rows start..stop-1; arrays are views, offsets start at 0 again."""
        tokens = slice(int(self.offsets[start]), int(self.offsets[stop]))
        values: dict[str, Any] = {name: getattr(self, name)[start:stop] for name in ("request", "pos", "accept_len")}
        values |= {name: _part(getattr(self, name), slice(start, stop)) for name in ROW_FIELDS}
        values |= {name: _part(getattr(self, name), tokens) for name in TOKEN_FIELDS}
        for offsets_name, name in RAGGED_FIELDS:
            where = tokens if name == "topk_q" else slice(start, stop)
            part = _ragged_part(getattr(self, offsets_name), getattr(self, name), where)
            values[offsets_name], values[name] = part
        offsets = self.offsets[start : stop + 1] - self.offsets[start]
        return TraceChunk(offsets=offsets, first_row=self.first_row + start, **values)

    def keep(self, columns: Sequence[str] | set[str]) -> TraceChunk:
        """The same rows with every optional array that is not in `columns` set to None (`pass_*`: all or none)."""
        dropped: dict[str, Any] = {n: None for n in (*TOKEN_FIELDS, *ROW_FIELDS) if n not in columns}
        passes = all(name in columns for name in PASS_COLUMNS)
        for offsets_name, name in RAGGED_FIELDS:
            if name not in columns or (name in PASS_COLUMNS and not passes):
                dropped |= {offsets_name: None, name: None}
        return replace(self, **dropped) if dropped else self


def _part(array: NDArray[Any] | None, where: slice) -> NDArray[Any] | None:
    return None if array is None else array[where]


def _ragged_part(
    offsets: I64 | None, values: NDArray[Any] | None, where: slice
) -> tuple[I64 | None, NDArray[Any] | None]:
    if offsets is None or values is None:
        return None, None
    part = offsets[where.start : where.stop + 1]
    return part - part[0], values[int(part[0]) : int(part[-1])]


def offsets_of(lengths: NDArray[Any]) -> I64:
    """int64[R+1] starting at 0 from R lengths."""
    offsets = np.zeros(len(lengths) + 1, dtype=np.int64)
    np.cumsum(lengths, out=offsets[1:])
    return offsets


def leading_true(flags: NDArray[np.bool_], offsets: NDArray[np.int64]) -> NDArray[np.int64]:
    """Number of leading true entries of each ragged row, int64[R].

    Args:
        flags: bool[N].
        offsets: int64[R+1].
    """
    stops = np.append(np.flatnonzero(~flags), len(flags))
    first_stop = stops[np.searchsorted(stops, offsets[:-1])] if len(offsets) > 1 else np.zeros(0, np.int64)
    return np.minimum(first_stop, offsets[1:]) - offsets[:-1]


def concat_chunks(chunks: Sequence[TraceChunk]) -> TraceChunk:
    """Join chunks of consecutive rows; an array that only some of them have is NaN in the rows of the others.

    Args:
        chunks: at least one.
    """
    if len(chunks) == 1:
        return chunks[0]
    values: dict[str, Any] = {
        name: np.concatenate([getattr(c, name) for c in chunks]) for name in ("request", "pos", "accept_len")
    }
    values["offsets"] = offsets_of(np.concatenate([c.lengths for c in chunks]))
    for name in TOKEN_FIELDS:
        values[name] = _join([getattr(c, name) for c in chunks], [int(c.offsets[-1]) for c in chunks])
    for name in ROW_FIELDS:
        values[name] = _join([getattr(c, name) for c in chunks], [c.rows for c in chunks])
    for offsets_name, name in RAGGED_FIELDS:
        counts = [int(c.offsets[-1]) if name == "topk_q" else c.rows for c in chunks]
        pairs = [(getattr(c, offsets_name), getattr(c, name)) for c in chunks]
        values[offsets_name], values[name] = _join_ragged(pairs, counts)
    return TraceChunk(first_row=chunks[0].first_row, **values)


def _join(arrays: Sequence[NDArray[Any] | None], counts: Sequence[int]) -> NDArray[Any] | None:
    known = next((a for a in arrays if a is not None), None)
    if known is None:
        return None
    # Only float columns can be null in some chunks and not in others; ctx_len is all or nothing in a valid file.
    fill = [
        np.full((count, *known.shape[1:]), np.nan if known.dtype.kind == "f" else 0, known.dtype) if a is None else a
        for a, count in zip(arrays, counts, strict=True)
    ]
    return np.concatenate(fill)


def _join_ragged(
    pairs: Sequence[tuple[I64 | None, NDArray[Any] | None]], counts: Sequence[int]
) -> tuple[I64 | None, NDArray[Any] | None]:
    if all(values is None for _, values in pairs):
        return None, None
    lengths = [np.zeros(n, np.int64) if o is None else np.diff(o) for (o, _), n in zip(pairs, counts, strict=True)]
    values = [v for _, v in pairs if v is not None]
    return offsets_of(np.concatenate(lengths)), np.concatenate(values)
