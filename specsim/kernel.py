"""THE round loop: one controller over one chunk of whole requests.

`round_loop` is a template: `make_kernel` gives it a controller's functions as its globals and compiles it. The same
template, left uncompiled, is the reference the tests compare with, and the path of plain-Python controllers. The loop
assumes a validated trace (`specsim.validate`); it range-checks what a controller returns, as plug-ins are not ours.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from specsim.controllers.base import Controller
from specsim.errors import ConfigError
from specsim.jit import in_package, jit, uncompiled, with_globals
from specsim.rng import uniform_stream
from specsim.rows import SUM_NAMES, Costs, Rounds, Rows, empty_rounds

CONTROLLER_STREAM = 1  # stream of random numbers for controllers; stream 0 draws acceptance (acceptance.py)


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
begin: Any = None
revise: Any = None
update: Any = None


@jit
def passes_for(tokens, block_len):
    """Whole drafter passes that yield at least `tokens` tokens."""
    if block_len == 1:  # spares a division per drafted token
        return tokens
    return (tokens + block_len - 1) // block_len


@jit
def passes_behind(passes, first, drafted, block_len):
    """Drafter passes of a draft of `drafted` tokens: those recorded for the row, else whole blocks.

    Args:
        passes: `Rows.passes`.
        first: of the row, `Rows.offsets`.
        drafted: tokens, at most what the row holds.
        block_len: tokens of a block.
    """
    if passes.size > 0 and drafted > 0 and passes[first + drafted - 1] >= 0:
        return int(passes[first + drafted - 1])
    return passes_for(drafted, block_len)


@jit
def draft_cost(passes, drafted, costs):
    """Seconds of drafting `drafted` tokens in `passes` passes."""
    return passes * costs.pass_s + drafted * costs.token_s


@jit
def arm_draft_cost(rows, row, arm, drafted, draft_len):
    """Seconds in which an arm drafts `drafted` of its `draft_len` tokens at a row."""
    return rows.arm_draft_s[row, arm] * drafted / draft_len if drafted > 0 else 0.0


@jit
def served(want, available, block_len):
    """Tokens a request for `want` yields: whole passes, never past what the row holds."""
    return min(passes_for(want, block_len) * block_len, available)


@jit
def accepted_of(rows, row, submitted):
    """Of the first `submitted` draft tokens of a row, those the target accepts: leading ones, or nodes on its path."""
    if rows.gained.size > 0:
        return int(rows.gained[rows.offsets[row] + submitted - 1]) if submitted > 0 else 0
    return min(int(rows.accept_len[row]), submitted)


def round_loop(  # noqa: C901, PLR0915 - the one loop, kept in one piece
    params,
    state,
    initial,
    scratch,
    per_request,
    pays_overhead,
    full_information,
    random,
    rows,
    best,
    costs,
    block_len,
    draft_len,
    every_round,
    limit,
    seed,
    out,
    sums,
    time_s,
    plain_s,
):
    """Replay every request of a chunk.

    Args:
        params, state, initial, scratch, per_request, pays_overhead, full_information, random: the controller; state is
            float64[1, k + scratch + work], initial float64[k].
        rows: `Rows`.
        best: int32[R], best length of each row (`specsim.oracle.best_round_lengths`).
        costs: `Costs`.
        block_len: tokens per drafter pass; of trees, no less than their nodes, all of which one draft yields.
        draft_len: tokens an arm drafts when it is not asked for fewer, and the row holds as many.
        every_round: consume one row per round (a log of executed rounds) instead of stepping over positions.
        limit: longest draft of the recording; in an every-position trace a shorter row is the end of the text or of
            what the drafter had to offer, so only rows this long can clamp a round.
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
    arms = rows.arm_accept.shape[1]
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
            u = uniform_stream(seed, CONTROLLER_STREAM, rows.request[row], pos, 0) if random else 0.0
            arm, want = begin(params, state, 0, pos, ctx, u, rows.hint[row])
            drafted = 0
            submit = 0
            free = 0
            whole = 0
            if arms > 0:
                # A configuration drafts on its own clock; there are no confidences to look at.
                whole = min(draft_len, available)
                available = 0
                if want < 0 or want > draft_len or (want > 0 and (arm < 0 or arm >= arms)):
                    return -1 - row
                drafted = submit = min(want, whole)
                free = int(rows.arm_accept[row, arm]) if want > 0 else 0
            q = rows.q[first : first + available]
            while want > drafted and drafted < available:
                drafted = served(want, available, block_len)
                submit, want = revise(params, state, 0, visible(q, drafted), drafted, drafted < available)
                if submit < 0 or submit > drafted:
                    return -1 - row
            if want < 0:
                return -1 - row
            accepted = min(free, submit) if arms > 0 else accepted_of(rows, row, submit)
            emitted = accepted + 1 if every_round else min(accepted + 1, end - row)
            passes = passes_behind(rows.passes, first, drafted, block_len)
            clamped = want > drafted and (every_round or available == limit)
            if arms > 0:
                draft_s = arm_draft_cost(rows, row, arm, drafted, draft_len)
            else:
                draft_s = draft_cost(passes, drafted, costs)
            verify_s = costs.verify_s[submit + 1] + costs.ctx_s * ctx
            round_s = rows.measured_s[row] if rows.measured_s.size > 0 else draft_s + verify_s + overhead
            if full_information:
                for k in range(arms):
                    draft_k = arm_draft_cost(rows, row, k, whole, draft_len)
                    seconds_k = draft_k + costs.verify_s[whole + 1] + costs.ctx_s * ctx + overhead
                    update(params, state, 0, k, whole, whole, int(rows.arm_accept[row, k]), seconds_k)
            else:
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
    return jit(
        with_globals(template, name, functions | {"visible": whole_row if ours else drafted_part}), disk_cache=ours
    )


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
        raise ConfigError(
            f"controller {controller.name!r} is plain Python; decorate its functions with specsim.jit.jit"
        )
    return specialise(round_loop, controller.begin, controller.revise, controller.update, compiled)


def out_of_range(controller: Controller, rows: Rows, row: int) -> ConfigError:
    """The error for a controller that returned something impossible in the round started at a row."""
    return ConfigError(
        f"controller {controller.name!r} returned a length or arm out of range at request {rows.request[row]}, "
        f"position {rows.pos[row]}; allowed: want >= 0, from revise 0 <= submit <= drafted, on arm traces an arm "
        "of the file and at most its draft length"
    )


def run_chunk(
    controller: Controller,
    state: NDArray[np.float64],
    rows: Rows,
    best: NDArray[np.int32],
    costs: Costs,
    *,
    block_len: int,
    every_round: bool,
    limit: int,
    seed: int,
    draft_len: int = 0,
    compiled: bool | None = None,
) -> ChunkRun:
    """Replay one chunk with one controller; `state` carries over chunks for controllers that keep it.

    Args as for `round_loop`.

    Raises:
        ConfigError: the controller returned a length or an arm out of range.
    """
    initial = np.ascontiguousarray(controller.initial, dtype=np.float64)
    requests = rows.starts.size - 1
    out, sums = empty_rounds(rows.pos.size), np.zeros(len(SUM_NAMES), np.int64)
    time_s, plain_s = np.zeros(requests), np.zeros(requests)
    kernel = make_kernel(controller, compiled=compiled)
    done = kernel(
        controller.params,
        state,
        initial,
        controller.scratch,
        controller.per_request,
        controller.pays_overhead,
        controller.full_information,
        controller.random,
        rows,
        best,
        costs,
        block_len,
        draft_len,
        every_round,
        limit,
        seed,
        out,
        sums,
        time_s,
        plain_s,
    )
    if done < 0:
        raise out_of_range(controller, rows, -1 - done)
    columns: list[Any] = [column[:done] for column in out]
    return ChunkRun(Rounds(*columns), sums, time_s, plain_s)
