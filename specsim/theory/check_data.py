"""What the checks need of a trace, summed per request in one streamed pass, plus a reproducible sample of its rows."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from specsim.chunk import TraceChunk, offsets_of
from specsim.jit import jit
from specsim.latency import LatencyModel
from specsim.oracle import arm_round_cost, round_cost
from specsim.rng import uniform_array
from specsim.rows import Costs, Rows, make_costs, make_rows
from specsim.schema import TraceMeta
from specsim.theory.check_noise import MAX_GROUPS, Floats

MAX_DEPTH: Final = 128
"""Draft positions told apart; deeper ones are left out of tables over depth."""
MAX_ROWS: Final = 20_000
"""Rows whose adjustments are followed; larger traces are sampled."""
MAX_LENGTHS: Final = 33
"""Static lengths compared; longer drafts are thinned: all short ones, then in growing steps."""
Q_EDGES: Final = np.array([0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.99, 0.999])
DEPTH_STARTS: Final = np.array([0, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96])
Q_BINS: Final = len(Q_EDGES) + 1
DEPTH_BINS: Final = len(DEPTH_STARTS)
_SAMPLE_STREAM: Final = 201


@dataclass(frozen=True, kw_only=True)
class Sample:
    """Rows with at least one draft token: unit they belong to, draft tokens at offsets, context length.

    `p` is accept_prob where that is fractional, else None; `cell` is q bin * DEPTH_BINS + depth bin of every token.
    """

    unit: NDArray[np.int64]
    offsets: NDArray[np.int64]
    ctx_len: Floats
    p: Floats | None
    cell: NDArray[np.int64]

    @property
    def rows(self) -> int:
        """Number of rows."""
        return len(self.unit)


@dataclass(frozen=True, kw_only=True)
class Facts:
    """Sums per unit (a request, or neighbours pooled when a chunk holds very many); U units.

    Attributes:
        held, risk, passed: float64[U, D]: rows that hold token j, that were examined there (all before accepted), that
            accepted it. `rows` float64[U].
        q_seen: float64[U, D, 3]: examined tokens with a confidence: number, accepted, sum of q.
        cells: float64[U, Q_BINS, DEPTH_BINS, 3]: the same by confidence and depth.
        any_cells: as `cells` with tokens that have no confidence in the first q bin.
        lengths: static lengths compared; times, rounds: float64[U, L] of them; tokens: float64[U].
        arms: float64[U, K, 3]: rounds, emitted tokens, seconds of every arm started at every position.
        full_accept: rows whose longest possible draft was accepted whole.
    """

    meta: TraceMeta
    latency: LatencyModel
    costs: Costs
    requests: int
    held: Floats
    risk: Floats
    passed: Floats
    rows: Floats
    q_seen: Floats
    cells: Floats
    any_cells: Floats
    lengths: NDArray[np.int64]
    times: Floats
    rounds: Floats
    tokens: Floats
    arms: Floats
    fractional: bool
    sample: Sample
    sampled_share: float
    full_accept: int
    steps: NDArray[np.int64]
    logged: NDArray[np.int64]

    @property
    def units(self) -> int:
        """Number of units."""
        return len(self.rows)


def static_lengths(longest: int) -> NDArray[np.int64]:
    """The static lengths to compare for drafts of up to `longest` tokens, ascending, both ends included."""
    if longest < MAX_LENGTHS:
        return np.arange(longest + 1)
    short = MAX_LENGTHS // 2
    return np.unique(np.append(np.arange(short), np.geomspace(short, longest, MAX_LENGTHS - short).round())).astype(
        np.int64
    )


def depth_bin(depth: NDArray[np.int64]) -> NDArray[np.int64]:
    """Which entry of `DEPTH_STARTS` a 0-based draft position belongs to."""
    return np.searchsorted(DEPTH_STARTS, depth, side="right") - 1


@jit
def tally_tokens(starts, offsets, accept_len, q, cell, held, risk, passed, q_seen, cells, any_cells):
    """Add the tokens of every request (rows starts[b]:starts[b+1]) to its sums; positions behind min(A + 1, m) and

    those deeper than the tables reach are left out. `cell` int64[N] as in `Sample`, `q` empty when there is none."""
    depths = held.shape[1]
    bins = cells.shape[2]
    for b in range(starts.size - 1):
        for row in range(starts[b], starts[b + 1]):
            first = offsets[row]
            for j in range(min(int(offsets[row + 1] - first), depths)):
                held[b, j] += 1
                if j > accept_len[row]:
                    continue
                hit = 1.0 if accept_len[row] > j else 0.0
                risk[b, j] += 1
                passed[b, j] += hit
                one, two = cell[first + j] // bins, cell[first + j] % bins
                any_cells[b, one, two, 0] += 1
                any_cells[b, one, two, 1] += hit
                if q.size > 0 and not np.isnan(q[first + j]):
                    sure = float(q[first + j])
                    q_seen[b, j, 0] += 1
                    q_seen[b, j, 1] += hit
                    q_seen[b, j, 2] += sure
                    cells[b, one, two, 0] += 1
                    cells[b, one, two, 1] += hit
                    cells[b, one, two, 2] += sure


@jit
def static_replays(rows, costs, block_len, lengths, times, rounds):
    """Add seconds and rounds of every request at every static length to float64[B, L] arrays."""
    for b in range(rows.starts.size - 1):
        end = rows.starts[b + 1]
        for k in range(lengths.size):
            row = rows.starts[b]
            while row < end:
                available = int(rows.offsets[row + 1] - rows.offsets[row])
                submit = min(int(lengths[k]), available)
                ctx, first = rows.ctx_len[row], rows.offsets[row]
                times[b, k] += round_cost(submit, available, ctx, rows.passes, first, block_len, costs)
                rounds[b, k] += 1
                row += min(int(rows.accept_len[row]), submit) + 1


@jit
def tally_arms(rows, costs, draft_len, sums):
    """Add rounds, emitted tokens and seconds of every arm started at every row to float64[B, K, 3]."""
    for b in range(rows.starts.size - 1):
        for row in range(rows.starts[b], rows.starts[b + 1]):
            for arm in range(rows.arm_accept.shape[1]):
                sums[b, arm, 0] += 1
                sums[b, arm, 1] += rows.arm_accept[row, arm] + 1
                sums[b, arm, 2] += arm_round_cost(rows, row, arm, costs, draft_len)


def gather(meta: TraceMeta, chunks: Iterable[TraceChunk], latency: LatencyModel, *, rows: int, seed: int = 0) -> Facts:
    """Read a trace once.

    Args:
        meta, chunks: the trace, in whole requests.
        latency: latency model.
        rows: number of rows in the file, for the sampling rate.
        seed: of the sample.
    """
    lengths = static_lengths(meta.max_draft_len)
    costs = make_costs(latency, max(meta.max_draft_len, meta.draft_len or 0))
    parts = [_part(meta, chunk, costs, lengths, min(1.0, MAX_ROWS / max(rows, 1)), seed) for chunk in chunks]
    sums: dict[str, Any] = {
        name: np.concatenate([part[name] for part in parts])
        for name in (
            "held",
            "risk",
            "passed",
            "rows",
            "q_seen",
            "cells",
            "any_cells",
            "times",
            "rounds",
            "tokens",
            "arms",
        )
    }
    shifts = np.cumsum([0, *(len(part["rows"]) for part in parts[:-1])])
    fractional = any(part["fractional"] for part in parts)
    p = np.concatenate([part["p"] for part in parts]) if fractional else None
    if p is not None and np.isnan(p).any():
        fractional, p = False, None
    sample = Sample(
        unit=np.concatenate([part["unit"] + shift for part, shift in zip(parts, shifts, strict=True)]),
        offsets=offsets_of(np.concatenate([part["m"] for part in parts])),
        ctx_len=np.concatenate([part["ctx"] for part in parts]),
        p=p,
        cell=np.concatenate([part["cell"] for part in parts]),
    )
    return Facts(
        meta=meta,
        latency=latency,
        costs=costs,
        requests=sum(part["requests"] for part in parts),
        lengths=lengths,
        fractional=fractional,
        sample=sample,
        sampled_share=min(1.0, MAX_ROWS / max(rows, 1)),
        full_accept=sum(part["full_accept"] for part in parts),
        steps=np.concatenate([part["steps"] for part in parts]),
        logged=np.sum([np.bincount(part["logged"], minlength=meta.max_draft_len + 1) for part in parts], axis=0),
        **sums,
    )


def _part(
    meta: TraceMeta, chunk: TraceChunk, costs: Costs, lengths: NDArray[np.int64], share: float, seed: int
) -> dict[str, Any]:
    rows = make_rows(chunk, arm_draft_s=_arm_draft_s(meta, chunk) if meta.kind == "arm" else None)
    count, arms = len(rows.starts) - 1, meta.n_arms if meta.kind == "arm" else 0
    depths = 0 if arms else min(meta.max_draft_len, MAX_DEPTH)
    m = np.zeros(chunk.rows, np.int64) if arms else chunk.lengths
    row_of = np.repeat(np.arange(chunk.rows), m)
    depth = np.arange(len(row_of)) - chunk.offsets[row_of]
    q = np.zeros(0, np.float32) if chunk.q is None or arms else chunk.q
    q_bin = np.searchsorted(Q_EDGES, np.nan_to_num(q), side="right") if q.size else np.zeros(len(row_of), np.int64)
    cell = q_bin * DEPTH_BINS + depth_bin(depth)
    sums: dict[str, Any] = {
        "held": np.zeros((count, depths)),
        "risk": np.zeros((count, depths)),
        "passed": np.zeros((count, depths)),
        "q_seen": np.zeros((count, depths, 3)),
        "cells": np.zeros((count, Q_BINS, DEPTH_BINS, 3)),
        "any_cells": np.zeros((count, Q_BINS, DEPTH_BINS, 3)),
        "times": np.zeros((count, len(lengths))),
        "rounds": np.zeros((count, len(lengths))),
        "arms": np.zeros((count, arms, 3)),
        "rows": np.diff(rows.starts).astype(np.float64),
        "tokens": np.diff(rows.starts).astype(np.float64),
    }
    if arms:
        tally_arms(rows, costs, meta.draft_len or 0, sums["arms"])
    else:
        names = ("held", "risk", "passed", "q_seen", "cells", "any_cells")
        tally_tokens(rows.starts, rows.offsets, rows.accept_len, q, cell, *(sums[name] for name in names))
        if meta.coverage == "every-position":
            static_replays(rows, costs, meta.block_len, lengths, sums["times"], sums["rounds"])
    unit = np.arange(count) if count <= MAX_GROUPS else np.arange(count) * MAX_GROUPS // count
    edges = np.flatnonzero(np.diff(unit, prepend=-1))
    pooled = {name: np.add.reduceat(values, edges, axis=0) for name, values in sums.items()}
    same = np.diff(chunk.request) == 0
    return {
        **pooled,
        **_sampled(chunk, rows, m, cell, unit, share, seed),
        "requests": count,
        "fractional": chunk.accept_prob is not None and bool(((chunk.accept_prob > 0) & (chunk.accept_prob < 1)).any()),
        "full_accept": 0 if arms else int(((m == meta.max_draft_len) & (chunk.accept_len == m)).sum()),
        "steps": np.diff(chunk.pos)[same].astype(np.int64) - chunk.accept_len[:-1][same] - 1,
        "logged": m,
    }


def _sampled(
    chunk: TraceChunk,
    rows: Rows,
    m: NDArray[np.int64],
    cell: NDArray[np.int64],
    unit: NDArray[np.int64],
    share: float,
    seed: int,
) -> dict[str, Any]:
    kept = m > 0
    if share < 1:
        kept &= uniform_array(seed, chunk.request, chunk.pos, 0, stream=_SAMPLE_STREAM) < share
    tokens = np.repeat(kept, m)
    request = np.repeat(np.arange(len(rows.starts) - 1), np.diff(rows.starts))
    p = np.full(int(m.sum()), np.nan) if chunk.accept_prob is None else chunk.accept_prob.astype(np.float64)
    return {
        "unit": unit[request[kept]],
        "m": m[kept],
        "ctx": rows.ctx_len[kept].astype(np.float64),
        "p": p[tokens],
        "cell": cell[tokens],
    }


def _arm_draft_s(meta: TraceMeta, chunk: TraceChunk) -> Floats:
    stated = np.array([float(arm["draft_s"]) * (meta.draft_len or 0) for arm in meta.arms or ()])
    if chunk.arm_draft_s is None:
        return np.tile(stated, (chunk.rows, 1))
    return np.where(np.isnan(chunk.arm_draft_s), stated, chunk.arm_draft_s.astype(np.float64))
