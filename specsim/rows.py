"""What the round loop reads and writes: costs, trace rows and round columns, as structs of arrays numba understands."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from specsim.chunk import TraceChunk
from specsim.jit import jit
from specsim.latency import LatencyModel


class Costs(NamedTuple):
    """Round costs in seconds. `verify_s[s]`: forward pass over s positions at zero context; float64[max_m + 2]."""

    verify_s: NDArray[np.float64]
    ctx_s: float
    pass_s: float
    token_s: float
    overhead_s: float


def make_costs(model: LatencyModel, max_draft_len: int) -> Costs:
    """Tabulate a latency model for drafts of up to `max_draft_len` tokens."""
    return Costs(
        verify_s=model.verify_table(max_draft_len + 1),
        ctx_s=float(model.ctx_s),
        pass_s=float(model.draft_pass_s),
        token_s=float(model.draft_token_s),
        overhead_s=float(model.overhead_s),
    )


class Rows(NamedTuple):
    """The columns of a chunk that the loop reads; R rows, N draft positions, B requests.

    `starts` int64[B + 1] are the rows at which requests begin; `offsets` int64[R + 1] delimit each row's draft
    positions in `q` float32[N] (empty when no controller needs it); `hint` int32[R], -1 where there is none. Arm traces
    have K > 0 columns in `arm_accept` int16[R, K] and `arm_draft_s` float64[R, K], seconds of the whole draft.
    `measured_s` float64[R] holds the seconds that each round of a log took, which then count instead of the latency
    model's (`real.shadow`); empty otherwise.
    `gained` int16[N] makes the drafts trees (`specsim.tree_rows`): draft positions are then nodes, and entry k of a row
    counts the nodes on the target's path among its first k + 1; empty for chains.
    `passes` int16[N]: drafter passes behind the first k + 1 tokens of a row, never falling within it; -1 where that was
    not recorded, so that whole blocks count; empty where it was nowhere (`make_rows`).
    """

    starts: NDArray[np.int64]
    request: NDArray[np.int32]
    pos: NDArray[np.int32]
    ctx_len: NDArray[np.int32]
    offsets: NDArray[np.int64]
    q: NDArray[np.float32]
    accept_len: NDArray[np.int16]
    hint: NDArray[np.int32]
    arm_accept: NDArray[np.int16]
    arm_draft_s: NDArray[np.float64]
    measured_s: NDArray[np.float64]
    # Never written to, so that all may share them.
    gained: NDArray[np.int16] = np.zeros(0, np.int16)
    passes: NDArray[np.int16] = np.zeros(0, np.int16)


def make_rows(
    chunk: TraceChunk, accept_len: NDArray[np.int16] | None = None, arm_draft_s: NDArray[np.float64] | None = None
) -> Rows:
    """The columns of a chunk, absent ones replaced by placeholders that no controller reads.

    Args:
        chunk: whole requests.
        accept_len: int16[R] in place of the logged lengths.
        arm_draft_s: float64[R, K], seconds of each arm's whole draft; needed for arm traces.
    """
    arm_accept = np.zeros((chunk.rows, 0), np.int16) if chunk.arm_accept_len is None else chunk.arm_accept_len
    firsts = np.flatnonzero(np.diff(chunk.request)) + 1
    return Rows(
        starts=np.concatenate([[0], firsts, [chunk.rows]]).astype(np.int64),
        request=chunk.request,
        pos=chunk.pos,
        ctx_len=np.zeros(chunk.rows, np.int32) if chunk.ctx_len is None else chunk.ctx_len,
        offsets=chunk.offsets,
        q=np.zeros(0, np.float32) if chunk.q is None else chunk.q,
        accept_len=chunk.accept_len if accept_len is None else accept_len,
        hint=np.full(chunk.rows, -1, np.int32),
        arm_accept=np.ascontiguousarray(arm_accept),
        arm_draft_s=np.zeros((chunk.rows, 0)) if arm_draft_s is None else np.ascontiguousarray(arm_draft_s),
        measured_s=np.zeros(0),
        passes=np.zeros(0, np.int16) if chunk.arm_accept_len is not None else denoising_passes(chunk),
    )


def denoising_passes(chunk: TraceChunk) -> NDArray[np.int16]:
    """`Rows.passes` of a chunk, from what its rows recorded of every denoising pass (`schema.PASS_COLUMNS`).

    The first k tokens of a draft take the passes up to the first after which k leading positions are filled, as a
    drafter makes them that stops there. A row without passes, or whose passes leave some of its draft open, says none.
    """
    if chunk.pass_offsets is None or chunk.pass_filled is None:
        return np.zeros(0, np.int16)
    return _passes_until(chunk.offsets, chunk.pass_offsets, chunk.pass_filled)


@jit
def _passes_until(offsets, pass_offsets, filled):
    needed = np.full(offsets[-1], -1, np.int16)
    for row in range(offsets.size - 1):
        first, m = offsets[row], offsets[row + 1] - offsets[row]
        last = pass_offsets[row + 1]
        if last == pass_offsets[row] or filled[last - 1] < m:
            continue
        done = 0
        for k in range(pass_offsets[row], last):
            for place in range(done, min(filled[k], m)):
                needed[first + place] = k - pass_offsets[row] + 1
            done = max(done, filled[k])
    return needed


def planned(rows: Rows, lengths: NDArray[np.int32], waits: NDArray[np.int32]) -> Rows:
    """Rows for a rule that has a plan (`specsim.controllers.base.Plan`): its lengths are their hints, and no draft of a
    row takes fewer passes than the rule waits for."""
    if not rows.passes.size:
        return rows._replace(hint=lengths)
    least = np.repeat(waits, np.diff(rows.offsets)).astype(np.int16)
    passes = np.where(rows.passes < 0, rows.passes, np.maximum(rows.passes, least))
    return rows._replace(hint=lengths, passes=passes)


class Rounds(NamedTuple):
    """RoundLog columns the loop fills, plus `row` (row of the chunk the round started at)."""

    row: NDArray[np.int32]
    round: NDArray[np.int32]
    arm: NDArray[np.int16]
    drafted_len: NDArray[np.int16]
    submitted_len: NDArray[np.int16]
    accepted_len: NDArray[np.int16]
    emitted_len: NDArray[np.int16]
    draft_passes: NDArray[np.int16]
    draft_s: NDArray[np.float64]
    verify_s: NDArray[np.float64]
    overhead_s: NDArray[np.float64]
    round_s: NDArray[np.float64]


_DTYPES = {"row": np.int32, "round": np.int32}
# What the loop sums, in this order; deviation is from the best length, part_drafts are drafts short of the whole row.
SUM_NAMES = ("tokens", "drafted", "submitted", "accepted", "draft_passes", "clamped", "deviation", "part_drafts")


def empty_rounds(rows: int) -> Rounds:
    """Uninitialised columns for at most `rows` rounds (a round starts at a row, and no row starts two)."""
    columns: list[Any] = [
        np.empty(rows, _DTYPES.get(name, np.float64 if name.endswith("_s") else np.int16)) for name in Rounds._fields
    ]
    return Rounds(*columns)
