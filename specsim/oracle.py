"""What the best possible decisions would have cost: best length per round, best static length, shortest path.

All three rest on one fact: latency models never decrease in s and drafting never gets cheaper, so a longer draft of
which no more is accepted emits the same tokens for no less time. Of a chain only lengths 0..accept_len are therefore
ever compared, of a tree only 0 and the sizes at which one more node on the target's path comes in (a brute-force test
over all lengths backs it).
"""

from __future__ import annotations

import numpy as np

from specsim.jit import jit
from specsim.kernel import accepted_of, arm_draft_cost, draft_cost, passes_behind, served

NO_PASSES = np.zeros(0, np.int16)
"""`Rows.passes` of a row that says nothing about its passes."""


@jit
def round_cost(submitted, available, ctx, passes, first, block_len, costs):
    """Seconds of a round that submits `submitted` of `available` tokens, drafting no more passes than that needs.

    `passes` and `first` are as for `specsim.kernel.passes_behind`: what was recorded of the row, or `NO_PASSES`.
    """
    drafted = served(submitted, available, block_len)
    draft_s = draft_cost(passes_behind(passes, first, drafted, block_len), drafted, costs)
    return draft_s + costs.verify_s[submitted + 1] + costs.ctx_s * ctx + costs.overhead_s


@jit
def best_round_length(accept_len, available, ctx, passes, first, block_len, costs):
    """Smallest d maximising (min(accept_len, d) + 1) / round time: d_oracle of the replay result."""
    best = 0
    best_tokens = 1.0
    best_cost = round_cost(0, available, ctx, passes, first, block_len, costs)
    for d in range(1, min(accept_len, available) + 1):
        cost = round_cost(d, available, ctx, passes, first, block_len, costs)
        if (d + 1.0) * best_cost > best_tokens * cost:
            best, best_tokens, best_cost = d, d + 1.0, cost
    return best


@jit
def best_tree_size(rows, row, costs, block_len):
    """`best_round_length` of a row whose draft is a tree."""
    available = int(rows.offsets[row + 1] - rows.offsets[row])
    best, best_tokens = 0, 1.0
    best_cost = round_cost(0, available, rows.ctx_len[row], rows.passes, rows.offsets[row], block_len, costs)
    accepted = 0
    for d in range(1, available + 1):
        if accepted_of(rows, row, d) > accepted:
            accepted += 1
            cost = round_cost(d, available, rows.ctx_len[row], rows.passes, rows.offsets[row], block_len, costs)
            if (accepted + 1.0) * best_cost > best_tokens * cost:
                best, best_tokens, best_cost = d, accepted + 1.0, cost
    return best


@jit
def best_round_lengths(rows, costs, block_len):
    """int32[R]: `best_round_length` of every row."""
    lengths = np.empty(rows.pos.size, np.int32)
    for row in range(rows.pos.size):
        first = rows.offsets[row]
        available = int(rows.offsets[row + 1] - first)
        if rows.gained.size > 0:
            lengths[row] = best_tree_size(rows, row, costs, block_len)
        else:
            accept_len, ctx = int(rows.accept_len[row]), rows.ctx_len[row]
            lengths[row] = best_round_length(accept_len, available, ctx, rows.passes, first, block_len, costs)
    return lengths


@jit
def shortest_paths(rows, costs, block_len):
    """Clairvoyant dynamic programme over positions.

    Returns:
        (float64[B] seconds of the shortest path through each request, int32[R] smallest length it takes at each row).
    """
    requests = rows.starts.size - 1
    plan = np.zeros(rows.pos.size, np.int32)
    total = np.zeros(requests)
    to_go = np.zeros(rows.pos.size + 1)
    for b in range(requests):
        end = rows.starts[b + 1]
        for row in range(end - 1, rows.starts[b] - 1, -1):
            available = int(rows.offsets[row + 1] - rows.offsets[row])
            longest = available if rows.gained.size > 0 else min(int(rows.accept_len[row]), available)
            best = np.inf
            accepted = -1
            for d in range(longest + 1):
                if accepted_of(rows, row, d) == accepted:
                    continue
                accepted += 1
                after = to_go[row + accepted + 1] if row + accepted + 1 < end else 0.0
                ctx, first = rows.ctx_len[row], rows.offsets[row]
                cost = round_cost(d, available, ctx, rows.passes, first, block_len, costs) + after
                if cost < best:
                    best = cost
                    plan[row] = d
            to_go[row] = best
        total[b] = to_go[rows.starts[b]]
    return total, plan


@jit
def static_times(rows, costs, block_len, max_len):
    """float64[max_len + 1]: seconds of the whole chunk at each static length 0..max_len."""
    times = np.zeros(max_len + 1)
    for b in range(rows.starts.size - 1):
        end = rows.starts[b + 1]
        for length in range(max_len + 1):
            # Rows that hold the whole length cost the same up to context, unless they say what passes they took; only
            # the others are worked out anew.
            full = round_cost(length, 1 << 30, 0.0, NO_PASSES, 0, block_len, costs)
            cut = served(length, 1 << 30, block_len)
            seconds = 0.0
            row = rows.starts[b]
            while row < end:
                available = int(rows.offsets[row + 1] - rows.offsets[row])
                if available >= cut and rows.passes.size == 0:
                    seconds += full + costs.ctx_s * rows.ctx_len[row]
                else:
                    ctx, first, submit = rows.ctx_len[row], rows.offsets[row], min(length, available)
                    seconds += round_cost(submit, available, ctx, rows.passes, first, block_len, costs)
                row += accepted_of(rows, row, min(length, available)) + 1
            times[length] += seconds
    return times


@jit
def plain_times(rows, costs):
    """float64[B]: seconds of plain decoding, verify(1) at every position."""
    times = np.zeros(rows.starts.size - 1)
    for b in range(times.size):
        seconds = 0.0
        for row in range(rows.starts[b], rows.starts[b + 1]):
            seconds += costs.verify_s[1] + costs.ctx_s * rows.ctx_len[row]
        times[b] = seconds
    return times


@jit
def arm_round_cost(rows, row, arm, costs, draft_len):
    """Seconds of a round in which an arm drafts its whole length at a row, or what that holds of it."""
    whole = min(draft_len, int(rows.offsets[row + 1] - rows.offsets[row]))
    draft_s = arm_draft_cost(rows, row, arm, whole, draft_len)
    return draft_s + costs.verify_s[whole + 1] + costs.ctx_s * rows.ctx_len[row] + costs.overhead_s


@jit
def best_arms(rows, costs, draft_len):
    """int32[R]: arm with the most tokens per second in a round started at each row, the first on ties."""
    best = np.zeros(rows.pos.size, np.int32)
    for row in range(rows.pos.size):
        best_tokens, best_cost = 0.0, 1.0
        for arm in range(rows.arm_accept.shape[1]):
            tokens, cost = rows.arm_accept[row, arm] + 1.0, arm_round_cost(rows, row, arm, costs, draft_len)
            if tokens * best_cost > best_tokens * cost:
                best[row], best_tokens, best_cost = arm, tokens, cost
    return best


@jit
def shortest_arm_paths(rows, costs, draft_len):
    """Clairvoyant dynamic programme over arms: (float64[B] seconds per request, int32[R] arm taken at each row)."""
    requests = rows.starts.size - 1
    plan = np.zeros(rows.pos.size, np.int32)
    total = np.zeros(requests)
    to_go = np.zeros(rows.pos.size + 1)
    for b in range(requests):
        end = rows.starts[b + 1]
        for row in range(end - 1, rows.starts[b] - 1, -1):
            best = np.inf
            for arm in range(rows.arm_accept.shape[1]):
                after = row + rows.arm_accept[row, arm] + 1
                cost = arm_round_cost(rows, row, arm, costs, draft_len) + (to_go[after] if after < end else 0.0)
                if cost < best:
                    best = cost
                    plan[row] = arm
            to_go[row] = best
        total[b] = to_go[rows.starts[b]]
    return total, plan


@jit
def fixed_arm_totals(rows, costs, draft_len, every_round):
    """float64[K, 2]: tokens emitted and seconds of the chunk when one arm is played throughout."""
    totals = np.zeros((rows.arm_accept.shape[1], 2))
    for arm in range(totals.shape[0]):
        for b in range(rows.starts.size - 1):
            row, end = rows.starts[b], rows.starts[b + 1]
            while row < end:
                step = rows.arm_accept[row, arm] + 1
                totals[arm, 0] += step if every_round else min(step, end - row)
                totals[arm, 1] += arm_round_cost(rows, row, arm, costs, draft_len)
                row += 1 if every_round else step
    return totals
