"""What a trace holds, in numbers: one streamed pass, a plain dict at the end. Owns no output format."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from specsim.chunk import TraceChunk, leading_true
from specsim.jit import jit
from specsim.reader import TraceReader, open_trace
from specsim.schema import TraceMeta

INFO_SCHEMA_NAME: Final = "specsim.trace_info/1"
_NULLABLE: Final = ("ctx_len", "q", "p", "accept_prob", "entropy", "draft_s", "verify_s", "arm_draft_s")


def trace_info(path: str | Path) -> dict[str, Any]:
    """Read a trace once and describe it.

    Returns:
        A JSON-ready dict: `path`, `metadata`, `rows`, `requests`, `positions_per_request` and `draft_len` (min, median,
        max), `mean_accept_len`, `tau_full_len` ((accepted + rounds) / rounds when every round submits all m tokens),
        `survival` (entry i: share of the rows with m > i that accept more than i tokens), `censored_share` (rows with
        accept_len = m < longest draft in the file), `null_columns` (null in every row), `partly_null_columns`,
        `has_latency`, `staircase_rate` (share of neighbouring positions with accept_len[i+1] >= accept_len[i] - 1),
        `accept_prob_binary_share` (of the rows that hold probabilities, those where all are 0 or 1) and
        `accept_prob_agrees_share` (those whose leading ones, besides, equal accept_len). Undefined is None. Of tree
        traces besides `tree`: `max_nodes` a replay builds, `listed` tokens per draft position (min, median, max), and
        `target_ranks`: shares of the draft positions at which the target's token is the `first` listed, `listed` at all
        or `absent`.

    Raises:
        TraceError: the file breaks a rule of the format.
    """
    with open_trace(path) as reader:
        tally = _Tally(executed=reader.meta.coverage == "every-round")
        for chunk in reader.chunks():
            tally.add(chunk)
        return _document(reader, tally)


@dataclass(slots=True)
class _Tally:
    """Sums over chunks; arrays are indexed by draft length."""

    executed: bool  # every row is a round that took place, whatever was accepted before it
    positions: Counter[int] = field(default_factory=Counter)  # request length -> number of requests
    held: NDArray[np.int64] = field(default_factory=lambda: np.zeros(1, np.int64))  # rows by m
    full: NDArray[np.int64] = field(default_factory=lambda: np.zeros(1, np.int64))  # rows with accept_len = m, by m
    accepted: NDArray[np.int64] = field(default_factory=lambda: np.zeros(1, np.int64))  # rows by accept_len
    rows: int = 0
    walk_rounds: int = 0
    walk_accepted: int = 0
    neighbours: int = 0
    staircase: int = 0
    prob_rows: int = 0
    prob_binary: int = 0
    prob_agrees: int = 0
    null_rows: Counter[str] = field(default_factory=Counter)
    listed: Counter[int] = field(default_factory=Counter)  # number of tokens listed -> draft positions
    first_rank: int = 0
    some_rank: int = 0

    def add(self, chunk: TraceChunk) -> None:
        """Count the rows of a chunk of whole requests."""
        lengths, accepted = chunk.lengths, chunk.accept_len.astype(np.int64)
        _, counts = np.unique(chunk.request, return_counts=True)
        self.positions.update(counts.tolist())
        self.held = _added(self.held, np.bincount(lengths))
        self.full = _added(self.full, np.bincount(lengths[accepted == lengths]))
        self.accepted = _added(self.accepted, np.bincount(accepted))
        self.rows += chunk.rows
        rounds, taken = _walk(chunk.request, chunk.pos, chunk.accept_len, self.executed)
        self.walk_rounds += int(rounds)
        self.walk_accepted += int(taken)
        adjacent = (np.diff(chunk.request) == 0) & (np.diff(chunk.pos) == 1)
        self.neighbours += int(adjacent.sum())
        self.staircase += int((adjacent & (np.diff(accepted) >= -1)).sum())
        self._add_probabilities(chunk)
        if chunk.topk_offsets is not None and chunk.target_rank is not None:
            widths, positions = np.unique(np.diff(chunk.topk_offsets), return_counts=True)
            self.listed.update(dict(zip(widths.tolist(), positions.tolist(), strict=True)))
            self.first_rank += int((chunk.target_rank == 0).sum())
            self.some_rank += int((chunk.target_rank >= 0).sum())
        for name in _NULLABLE:
            self.null_rows[name] += _null_rows(chunk, name)

    def _add_probabilities(self, chunk: TraceChunk) -> None:
        values, offsets = chunk.accept_prob, chunk.offsets
        if values is None:
            return
        known = ~_nan_rows(values, offsets) & (chunk.lengths > 0)
        other = np.append(0, np.cumsum((values != 0) & (values != 1)))
        binary = known & (other[offsets[1:]] == other[offsets[:-1]])
        leading = leading_true(values == 1, offsets)
        self.prob_rows += int(known.sum())
        self.prob_binary += int(binary.sum())
        self.prob_agrees += int((binary & (leading == chunk.accept_len)).sum())


@jit
def _walk(request: Any, pos: Any, accept_len: Any, executed: bool) -> tuple[int, int]:
    """Rounds and accepted tokens when each round submits all m tokens and the next starts after what it emitted."""
    rounds, accepted, next_pos = 0, 0, -1
    for i in range(len(request)):
        if i == 0 or request[i] != request[i - 1]:
            next_pos = -1
        if executed or pos[i] >= next_pos:
            rounds += 1
            accepted += accept_len[i]
            next_pos = pos[i] + accept_len[i] + 1
    return rounds, accepted


def _added(total: NDArray[np.int64], counts: NDArray[np.int64]) -> NDArray[np.int64]:
    size = max(len(total), len(counts))
    return np.pad(total, (0, size - len(total))) + np.pad(counts, (0, size - len(counts)))


def _nan_rows(values: NDArray[np.float32], offsets: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Rows of a ragged column that were null; a row without tokens counts as not null."""
    padded = np.append(values, np.float32(0))  # an empty last row points one past the end
    return np.isnan(padded[offsets[:-1]]) & (np.diff(offsets) > 0)


def _null_rows(chunk: TraceChunk, name: str) -> int:
    values = getattr(chunk, name)
    if values is None:
        return chunk.rows
    if name in ("ctx_len", "draft_s"):  # null in all rows or none; null reads as empty
        return 0
    if name == "verify_s":
        return int(np.isnan(values).sum())
    if name == "arm_draft_s":
        return int(np.isnan(values[:, 0]).sum())
    return int(_nan_rows(values, chunk.offsets).sum())


def _share(part: int, whole: int) -> float | None:
    return part / whole if whole else None


def _spread(histogram: dict[int, int]) -> dict[str, float]:
    """Minimum, (lower) median and maximum of the values of a histogram value -> count."""
    values = sorted(value for value, count in histogram.items() if count)
    running = np.cumsum([histogram[value] for value in values])
    median = values[int(np.searchsorted(running, running[-1] / 2))]
    return {"min": values[0], "median": median, "max": values[-1]}


def _document(reader: TraceReader, tally: _Tally) -> dict[str, Any]:
    meta = reader.meta
    lengths = {m: int(count) for m, count in enumerate(tally.held.tolist()) if count}
    longest = max(lengths)
    columns = [
        n for n in _NULLABLE if (n == "arm_draft_s") == (meta.kind == "arm") or n not in ("q", "p", "accept_prob")
    ]
    columns = [n for n in columns if meta.kind == "arm" or n != "arm_draft_s"]
    nulls = {n: tally.null_rows[n] for n in columns}
    at_risk = tally.held[::-1].cumsum()[::-1]  # at_risk[i] = rows with m >= i
    survivors = np.pad(tally.accepted[::-1].cumsum()[::-1], (0, len(at_risk) - len(tally.accepted)))
    accepted = int((tally.accepted * np.arange(len(tally.accepted))).sum())
    return (_tree_numbers(meta, tally) if meta.kind == "tree" else {}) | {
        "path": str(reader.path),
        "metadata": meta.to_json(),
        "rows": tally.rows,
        "requests": sum(tally.positions.values()),
        "positions_per_request": _spread(dict(tally.positions)),
        "draft_len": _spread(lengths) | {"rows_by_length": {str(m): count for m, count in lengths.items()}},
        "mean_accept_len": accepted / tally.rows,
        "tau_full_len": (tally.walk_accepted + tally.walk_rounds) / tally.walk_rounds,
        "survival": [survivors[i + 1] / at_risk[i + 1] for i in range(longest)],
        "censored_share": int(tally.full[:longest].sum()) / tally.rows,
        "null_columns": [n for n, count in nulls.items() if count == tally.rows],
        "partly_null_columns": [n for n, count in nulls.items() if 0 < count < tally.rows],
        "has_latency": meta.latency is not None,
        "staircase_rate": _share(tally.staircase, tally.neighbours),
        "accept_prob_binary_share": _share(tally.prob_binary, tally.prob_rows),
        "accept_prob_agrees_share": _share(tally.prob_agrees, tally.prob_rows),
    }


def _tree_numbers(meta: TraceMeta, tally: _Tally) -> dict[str, Any]:
    positions = sum(tally.listed.values())
    ranks = {
        "first": _share(tally.first_rank, positions),
        "listed": _share(tally.some_rank, positions),
        "absent": _share(positions - tally.some_rank, positions),
    }
    listed = _spread(dict(tally.listed)) if positions else None
    return {"tree": {"max_nodes": meta.tree_nodes, "listed": listed, "target_ranks": ranks}}
