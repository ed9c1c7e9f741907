"""THE round loop: one controller over one chunk of whole requests.

`round_loop` is a template: `make_kernel` gives it a controller's functions as its globals and compiles it. The same
template, left uncompiled, is the reference the tests compare with, and the path of plain-Python controllers. The loop
assumes a validated trace (`specsim.validate`); it range-checks what a controller returns, because plug-ins are not ours.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from specsim.chunk import TraceChunk
from specsim.controllers.base import Controller
from specsim.errors import ConfigError
from specsim.jit import in_package, jit, uncompiled, with_globals
from specsim.latency import LatencyModel
from specsim.rng import uniform_stream

CONTROLLER_STREAM = 1  # stream of random numbers for controllers; stream 0 draws acceptance (acceptance.py)


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
        verify_s=model.verify_table(max_draft_len + 1), ctx_s=float(model.ctx_s), pass_s=float(model.draft_pass_s),
        token_s=float(model.draft_token_s), overhead_s=float(model.overhead_s),
    )  # fmt: skip


class Rows(NamedTuple):
    """The columns of a chunk that the loop reads; R rows, N draft positions, B requests.

    `starts` int64[B + 1] are the rows at which requests begin; `offsets` int64[R + 1] delimit each row's draft
    positions in `q` float32[N] (empty when no controller needs it); `hint` int32[R], -1 where there is none.
    """

    starts: NDArray[np.int64]
    request: NDArray[np.int32]
    pos: NDArray[np.int32]
    ctx_len: NDArray[np.int32]
    offsets: NDArray[np.int64]
    q: NDArray[np.float32]
    accept_len: NDArray[np.int16]
    hint: NDArray[np.int32]


def make_rows(chunk: TraceChunk, accept_len: NDArray[np.int16] | None = None) -> Rows:
    """The columns of a chunk, absent ones replaced by placeholders that no controller reads.

    Args:
        chunk: whole requests.
        accept_len: int16[R] in place of the logged lengths.
    """
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
    )


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
    return Rounds(
        *(np.empty(rows, _DTYPES.get(name, np.float64 if name.endswith("_s") else np.int16)) for name in Rounds._fields)
    )


class ChunkRun(NamedTuple):
    """What one controller did on one chunk: rounds, sums in the order of `SUM_NAMES`, seconds per request."""

    rounds: Rounds
    sums: NDArray[np.int64]
    time_s: NDArray[np.float64]
    plain_s: NDArray[np.float64]


@jit
def whole_row(q, drafted):
    """All confidences of the row: shipped controllers are tested not to look past `drafted`, and slicing costs time."""
    return q


@jit
def drafted_part(q, drafted):
    """Only the confidences of drafted tokens: what controllers from elsewhere get to see."""
    return q[:drafted]


# Names that make_kernel replaces by the controller's own functions, and by one of the two views above.
visible = drafted_part
begin: Callable[..., tuple[int, int]]
revise: Callable[..., tuple[int, int]]
update: Callable[..., None]


@jit
def passes_for(tokens, block_len):
    """Whole drafter passes that yield at least `tokens` tokens."""
    if block_len == 1:  # spares a division per drafted token
        return tokens
    return (tokens + block_len - 1) // block_len


@jit
def draft_cost(drafted, block_len, costs):
    """Seconds of drafting `drafted` tokens: passes and tokens."""
    return passes_for(drafted, block_len) * costs.pass_s + drafted * costs.token_s


@jit
def served(want, available, block_len):
    """Tokens a request for `want` yields: whole passes, never past what the row holds."""
    return min(passes_for(want, block_len) * block_len, available)


def round_loop(
    params, state, initial, scratch, per_request, pays_overhead, rows, best, costs, block_len, every_round, limit, seed, out, sums,
    time_s, plain_s,
):  # fmt: skip
    """Replay every request of a chunk.

    Args:
        params, state, initial, scratch, per_request, pays_overhead: the controller; state is float64[1, k + scratch +
            work], initial float64[k].
        rows: `Rows`.
        best: int32[R], best length of each row (`specsim.oracle.best_round_lengths`).
        costs: `Costs`.
        block_len: tokens per drafter pass.
        every_round: consume one row per round (a log of executed rounds) instead of stepping over positions.
        limit: longest draft of the recording; in an every-position trace a shorter row is the end of the text or of what
            the drafter had to offer, so only rows this long can clamp a round.
        seed: key of the controllers' own randomness.
        out: `Rounds` with room for one round per row.
        sums: int64[len(SUM_NAMES)], added to.
        time_s: float64[B], seconds per request, added to.
        plain_s: float64[B], seconds of plain decoding for the tokens emitted, added to when `every_round` (a log of
            rounds has no row per position to take them from).

    Returns:
        Number of rounds written, or -1 - (rows done) when a controller returned lengths out of range.
    """
    persistent = initial.size
    zeroed = persistent + scratch
    done = 0
    overhead = costs.overhead_s if pays_overhead else 0.0
    for b in range(rows.starts.size - 1):
        row = rows.starts[b]
        end = rows.starts[b + 1]
        number = 0
        seconds = 0.0
        plain = 0.0
        if per_request:
            for k in range(persistent):
                state[0, k] = initial[k]
        while row < end:
            for k in range(persistent, zeroed):
                state[0, k] = 0.0
            pos = rows.pos[row]
            ctx = rows.ctx_len[row]
            first = rows.offsets[row]
            available = int(rows.offsets[row + 1] - first)
            u = uniform_stream(seed, CONTROLLER_STREAM, rows.request[row], pos, 0)
            arm, want = begin(params, state, 0, pos, ctx, u, rows.hint[row])
            drafted = 0
            submit = 0
            q = rows.q[first : first + available]
            while want > drafted and drafted < available:
                drafted = served(want, available, block_len)
                submit, want = revise(params, state, 0, visible(q, drafted), drafted, drafted < available)
                if submit < 0 or submit > drafted:
                    return -1 - row
            if want < 0:
                return -1 - row
            accepted = min(int(rows.accept_len[row]), submit)
            emitted = accepted + 1 if every_round else min(accepted + 1, end - row)
            passes = passes_for(drafted, block_len)
            clamped = want > drafted and (every_round or available == limit)
            draft_s = draft_cost(drafted, block_len, costs)
            verify_s = costs.verify_s[submit + 1] + costs.ctx_s * ctx
            round_s = draft_s + verify_s + overhead
            update(params, state, 0, arm, drafted, submit, accepted, round_s)
            out.row[done] = row
            out.round[done] = number
            out.arm[done] = arm
            out.drafted_len[done] = drafted
            out.submitted_len[done] = submit
            out.accepted_len[done] = accepted
            out.emitted_len[done] = emitted
            out.draft_passes[done] = passes
            out.draft_s[done] = draft_s
            out.verify_s[done] = verify_s
            out.overhead_s[done] = overhead
            out.round_s[done] = round_s
            sums[0] += emitted
            sums[1] += drafted
            sums[2] += submit
            sums[3] += accepted
            sums[4] += passes
            sums[5] += clamped
            sums[6] += abs(submit - best[row])
            sums[7] += 0 < drafted < available
            seconds += round_s
            if every_round:
                plain += emitted * costs.verify_s[1] + costs.ctx_s * (emitted * ctx + emitted * (emitted - 1) * 0.5)
                row += 1
            else:
                row += accepted + 1
            number += 1
            done += 1
        time_s[b] += seconds
        plain_s[b] += plain
    return done


@lru_cache(maxsize=256)
def specialise(
    template: Callable[..., int], begin_f: Any, revise_f: Any, update_f: Any, compiled: bool
) -> Callable[..., int]:
    """A round-loop template with a controller's functions put into it, compiled or as plain Python all the way down."""
    functions = {"begin": begin_f, "revise": revise_f, "update": update_f}
    name = "_".join([template.__name__, *(f.__name__ for f in functions.values())])
    if not compiled:
        plain = {key: uncompiled(f) for key, f in (functions | {"visible": drafted_part}).items()}
        return with_globals(uncompiled(template), name, plain)
    ours = all(in_package(f) for f in functions.values())
    return jit(with_globals(template, name, functions | {"visible": whole_row if ours else drafted_part}), disk_cache=ours)


def make_kernel(controller: Controller, *, compiled: bool | None = None) -> Callable[..., int]:
    """The round loop for a controller.

    Args:
        controller: the controller.
        compiled: False forces plain Python; default: compiled when the controller's functions are.

    Raises:
        ConfigError: compiled code asked of a controller whose functions are plain Python.
    """
    if compiled is None:
        compiled = controller.compiled
    elif compiled and not controller.compiled:
        raise ConfigError(f"controller {controller.name!r} is plain Python; decorate its functions with specsim.jit.jit")
    return specialise(round_loop, controller.begin, controller.revise, controller.update, compiled)


def run_chunk(
    controller: Controller, state: NDArray[np.float64], rows: Rows, best: NDArray[np.int32], costs: Costs, *,
    block_len: int, every_round: bool, limit: int, seed: int, compiled: bool | None = None,
) -> ChunkRun:  # fmt: skip
    """Replay one chunk with one controller; `state` carries over chunks for controllers that keep it.

    Args as for `round_loop`.

    Raises:
        ConfigError: the controller returned a length outside 0..drafted.
    """
    initial = np.ascontiguousarray(controller.initial, dtype=np.float64)
    requests = rows.starts.size - 1
    out, sums = empty_rounds(rows.pos.size), np.zeros(len(SUM_NAMES), np.int64)
    time_s, plain_s = np.zeros(requests), np.zeros(requests)
    kernel = make_kernel(controller, compiled=compiled)
    done = kernel(
        controller.params, state, initial, controller.scratch, controller.per_request, controller.pays_overhead, rows,
        best, costs, block_len, every_round, limit, seed, out, sums, time_s, plain_s,
    )  # fmt: skip
    if done < 0:
        row = -1 - done
        raise ConfigError(
            f"controller {controller.name!r} returned a length outside 0..drafted at request {rows.request[row]}, "
            f"position {rows.pos[row]}; revise must return 0 <= submit <= drafted and want >= 0"
        )
    return ChunkRun(Rounds(*(column[:done] for column in out)), sums, time_s, plain_s)
