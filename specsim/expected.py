"""Replay in expectation: probabilities of rounds instead of draws (`--acceptance expected`).

A request is walked forward once. At every position the distinct controller states that can occur there are kept with
their probabilities; each round splits into its possible accepted lengths, and equal states that meet again merge. That
is exact for controllers whose state takes few values (schedules) or none (confidence rules). Like `kernel`, the walk is
a template that a controller's functions are put into.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from specsim.controllers.base import Controller
from specsim.errors import ConfigError
from specsim.jit import jit
from specsim.kernel import draft_cost, drafted_part, out_of_range, passes_behind, served, specialise
from specsim.oracle import best_round_length, round_cost
from specsim.rows import Costs, Rows

CAPACITY = 1024  # distinct states kept per position
# Columns of the sums one walk returns, and the names of the totals they go to.
ROUNDS, TOKENS, DRAFTED, SUBMITTED, ACCEPTED, PASSES, CLAMPED, DEVIATION, PART_DRAFTS = range(9)
EXPECTED_NAMES = (
    "rounds",
    "tokens",
    "drafted",
    "submitted",
    "accepted",
    "draft_passes",
    "clamped",
    "deviation",
    "part_drafts",
)

# Names that `kernel.specialise` replaces.
visible = drafted_part
begin: Any = None
revise: Any = None
update: Any = None


@jit
def outcome_probability(accept_prob, first, submitted, accepted):
    """P(exactly `accepted` of `submitted` tokens pass); positions after the first failure do not matter."""
    probability = 1.0
    for i in range(accepted):
        probability *= float(accept_prob[first + i])
    return probability if accepted == submitted else probability * (1.0 - float(accept_prob[first + accepted]))


@jit
def best_lengths_by_outcome(rows, costs, block_len):
    """int32[N + R]: best length of each row for each free acceptance A = 0..m; row r's entries from offsets[r] + r."""
    best = np.zeros(rows.offsets[-1] + rows.pos.size, np.int32)
    for row in range(rows.pos.size):
        first = rows.offsets[row]
        available = int(rows.offsets[row + 1] - first)
        for a in range(available + 1):
            ctx = rows.ctx_len[row]
            best[first + row + a] = best_round_length(a, available, ctx, rows.passes, first, block_len, costs)
    return best


@jit
def expected_paths(rows, accept_prob, costs, block_len):
    """Best expected time when each round's acceptance is known before its length is chosen, but the future is not.

    Returns:
        (float64[B] seconds per request, int32[N + R] lengths laid out as in `best_lengths_by_outcome`).
    """
    plan = np.zeros(rows.offsets[-1] + rows.pos.size, np.int32)
    total = np.zeros(rows.starts.size - 1)
    to_go = np.zeros(rows.pos.size + 1)
    for b in range(total.size):
        end = rows.starts[b + 1]
        for row in range(end - 1, rows.starts[b] - 1, -1):
            first = rows.offsets[row]
            available = int(rows.offsets[row + 1] - first)
            best, length, mean, reach = np.inf, 0, 0.0, 1.0
            for a in range(available + 1):
                after = to_go[row + a + 1] if row + a + 1 < end else 0.0
                cost = round_cost(a, available, rows.ctx_len[row], rows.passes, first, block_len, costs) + after
                if cost < best:
                    best, length = cost, a
                plan[first + row + a] = length
                passes = float(accept_prob[first + a]) if a < available else 0.0
                mean += reach * (1.0 - passes) * best
                reach *= passes
            to_go[row] = mean
        total[b] = to_go[rows.starts[b]]
    return total, plan


@jit
def expected_static_times(rows, accept_prob, costs, block_len, max_len):
    """float64[max_len + 1]: expected seconds of the chunk at each static length."""
    times = np.zeros(max_len + 1)
    to_go = np.zeros(rows.pos.size + 1)
    for b in range(rows.starts.size - 1):
        end = rows.starts[b + 1]
        for length in range(max_len + 1):
            for row in range(end - 1, rows.starts[b] - 1, -1):
                first = rows.offsets[row]
                available = int(rows.offsets[row + 1] - first)
                submit = min(length, available)
                drafted = served(length, available, block_len)
                drafting = passes_behind(rows.passes, first, drafted, block_len)
                seconds = draft_cost(drafting, drafted, costs) + costs.verify_s[submit + 1]
                seconds += costs.ctx_s * rows.ctx_len[row] + costs.overhead_s
                reach = 1.0
                for a in range(submit + 1):
                    passes = float(accept_prob[first + a]) if a < submit else 0.0
                    if row + a + 1 < end:
                        seconds += reach * (1.0 - passes) * to_go[row + a + 1]
                    reach *= passes
                to_go[row] = seconds
            times[length] += to_go[rows.starts[b]]
    return times


@jit
def merge_state(states, weights, counts, slot, row_state, weight):
    """Add `weight` to the entry of `slot` equal to `row_state`, making one if needed; False when the slot is full."""
    for e in range(counts[slot]):
        same = True
        for k in range(row_state.size):
            if states[slot, e, k] != row_state[k]:
                same = False
                break
        if same:
            weights[slot, e] += weight
            return True
    if counts[slot] == weights.shape[1]:
        return False
    states[slot, counts[slot], :] = row_state
    weights[slot, counts[slot]] = weight
    counts[slot] += 1
    return True


def expected_loop(  # noqa: C901, PLR0915 - the same loop, in expectation
    params,
    initial,
    scratch,
    width,
    pays_overhead,
    privileged,
    rows,
    accept_prob,
    plan,
    best,
    costs,
    block_len,
    every_round,
    limit,
    span,
    capacity,
    sums,
    time_s,
    plain_s,
):
    """Walk every request; add expectations to `sums` float64[9] and write expected seconds to `time_s` float64[B].

    `plain_s` float64[B] gets the expected seconds of plain decoding for the tokens emitted, on a log of rounds.

    `plan` and `best` are laid out as in `best_lengths_by_outcome`; `privileged` controllers get plan's entry for the
    round's acceptance as their hint, one acceptance at a time, others the row's first entry. Unserved wishes count as
    clamped on rows of `limit` tokens (any row of a log of rounds). Returns -1, the row at which too many states met, or
    -2 - row when the controller returned lengths out of range.
    """
    persistent = initial.size
    state = np.full((1, width), np.nan)
    after = np.zeros(width)
    counts = np.zeros(span, np.int64)
    weights = np.zeros((span, capacity))
    states = np.zeros((span, capacity, persistent))
    overhead = costs.overhead_s if pays_overhead else 0.0
    for b in range(rows.starts.size - 1):
        counts[:] = 0
        end = rows.starts[b + 1]
        merge_state(states, weights, counts, rows.starts[b] % span, initial, 1.0)
        seconds = 0.0
        for row in range(rows.starts[b], end):
            slot = row % span
            pos, ctx, first = rows.pos[row], rows.ctx_len[row], rows.offsets[row]
            available = int(rows.offsets[row + 1] - first)
            for e in range(counts[slot]):
                # A privileged controller decides per acceptance A; any other decides once, "scenario" 0.
                for scenario in range(available + 1 if privileged else 1):
                    weight = weights[slot, e]
                    hint = plan[first + row + scenario]
                    if privileged:
                        weight *= outcome_probability(accept_prob, first, available, scenario)
                        if weight == 0.0:
                            continue
                    state[0, :persistent] = states[slot, e]
                    state[0, persistent : persistent + scratch] = 0.0
                    arm, want = begin(params, state, 0, pos, ctx, 0.0, hint)
                    drafted, submit = 0, 0
                    q = rows.q[first : first + available]
                    while want > drafted and drafted < available:
                        drafted = served(want, available, block_len)
                        submit, want = revise(params, state, 0, visible(q, drafted), drafted, drafted < available)
                        if submit < 0 or submit > drafted:
                            return -2 - row
                    if want < 0:
                        return -2 - row
                    after[:] = state[0]
                    passes = passes_behind(rows.passes, first, drafted, block_len)
                    draft_s = draft_cost(passes, drafted, costs)
                    round_s = draft_s + costs.verify_s[submit + 1] + costs.ctx_s * ctx + overhead
                    seconds += weight * round_s
                    sums[ROUNDS] += weight
                    sums[DRAFTED] += weight * drafted
                    sums[SUBMITTED] += weight * submit
                    sums[PASSES] += weight * passes
                    sums[PART_DRAFTS] += weight * (0 < drafted < available)
                    sums[CLAMPED] += weight * (want > drafted and (every_round or available == limit))
                    lowest = min(scenario, submit) if privileged else 0
                    highest = min(scenario, submit) if privileged else submit
                    for a in range(lowest, highest + 1):
                        share = weight * (1.0 if privileged else outcome_probability(accept_prob, first, submit, a))
                        if share == 0.0:
                            continue
                        sums[ACCEPTED] += share * a
                        if every_round:
                            context = (a + 1) * ctx + (a + 1) * a * 0.5
                            plain_s[b] += share * ((a + 1) * costs.verify_s[1] + costs.ctx_s * context)
                        step = 1 if every_round else a + 1
                        sums[TOKENS] += share * (a + 1 if every_round else min(a + 1, end - row))
                        if row + step < end:
                            state[0] = after
                            update(params, state, 0, arm, drafted, submit, a, round_s)
                            if not merge_state(
                                states, weights, counts, (row + step) % span, state[0, :persistent], share
                            ):
                                return row
                    for a in range(available + 1):
                        chance = 1.0 if privileged and a == scenario else 0.0
                        if not privileged:
                            chance = outcome_probability(accept_prob, first, available, a)
                        sums[DEVIATION] += weight * chance * abs(submit - best[first + row + a])
            counts[slot] = 0
        time_s[b] = seconds
    return -1


def expect_chunk(
    controller: Controller,
    rows: Rows,
    accept_prob: NDArray[np.float32],
    plan: NDArray[np.int32],
    best: NDArray[np.int32],
    costs: Costs,
    *,
    block_len: int,
    every_round: bool,
    limit: int,
    compiled: bool | None = None,
) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]:
    """Expected sums (float64[9], columns as named above) and, per request, seconds and seconds of plain decoding.

    The last is filled for logs of rounds only, where each controller emits its own number of tokens.

    Raises:
        ConfigError: the controller carries state over requests or draws its choices, its state takes too many values,
            or it returned a length out of range.
    """
    if not controller.per_request or controller.random:
        raise ConfigError(
            f"controller {controller.name!r} learns across requests or draws its choices, so it has no exact "
            "expectation; use --acceptance sampled"
        )
    sums, time_s = np.zeros(len(EXPECTED_NAMES)), np.zeros(rows.starts.size - 1)
    plain_s = np.zeros_like(time_s)
    longest = int(np.diff(rows.offsets).max())
    width = controller.fresh_state().shape[1]
    compiled = controller.compiled if compiled is None else compiled
    loop = specialise(expected_loop, controller.begin, controller.revise, controller.update, compiled)
    failed = loop(
        controller.params,
        np.ascontiguousarray(controller.initial, np.float64),
        controller.scratch,
        width,
        controller.pays_overhead,
        controller.privilege != "none",
        rows,
        accept_prob,
        plan,
        best,
        costs,
        block_len,
        every_round,
        limit,
        longest + 2,
        CAPACITY,
        sums,
        time_s,
        plain_s,
    )
    if failed < -1:
        raise out_of_range(controller, rows, -2 - failed)
    if failed >= 0:
        raise ConfigError(
            f"controller {controller.name!r} reaches more than {CAPACITY} states at request {rows.request[failed]}, "
            f"position {rows.pos[failed]}; use --acceptance sampled"
        )
    return sums, time_s, plain_s
