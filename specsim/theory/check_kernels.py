"""The adjustments of LibraSpec in float64, compiled: one row's acceptance probabilities in, one row of counts out.

The same rules as `adjust` and `algorithm1`, which are exact; tests compare the two on rationals whose products are
exact in float64. Comparisons are cross-multiplied, with slack where that cannot make them exact.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from specsim.jit import jit
from specsim.oracle import NO_PASSES, round_cost

RULES: Final = ("theorem-3.4", "algorithm-1", "algorithm-1-exact-alpha", "repaired-R4", "repaired-R4-table")
COUNTS: Final = (
    "starts",
    "moves",
    "lowering",  # moves that lower expected throughput under the latency model
    "lowering_line",  # the same under the straight line that the rules are told
    "steps",
    "cycles",
    "back_and_forth",  # sequences that go up and down
    "distance",  # of the length they end at to the nearest best length, latency model
    "distance_line",
    "loss",  # relative throughput lost where they end, latency model
)
_SLACK = 1e-12


@jit
def expected_tokens(p, tokens):
    """Fill float64[m + 1] with M_0..M_m, M_d = 1 + P_1 + .. + P_d."""
    reach = 1.0
    tokens[0] = 1.0
    for j in range(p.size):
        reach *= p[j]
        tokens[j + 1] = tokens[j] + reach


@jit
def printed_bounds(p, tokens, c, line, bounds):
    """Fill int64[m + 1] with LibraSpec's eps_i (entry 0 unused): the longest d' < alpha_i R_i(d') + i, at most m."""
    m = p.size
    for i in range(1, m + 1):
        total, product, d = 0.0, 1.0, i - 1
        while d < m:
            product *= p[d]
            total += product
            if not (d + 1 - i) * (tokens[i] * c) < line[i] * total:
                break
            d += 1
        bounds[i] = d


@jit
def corrected_bounds(tokens, times, bounds):
    """Fill int64[m + 1] with eps^c_m, m = 0..: the longest d > m with M_d T_m > M_m T_d, else m."""
    for i in range(tokens.size):
        bounds[i] = i
        for d in range(tokens.size - 1, i, -1):
            if tokens[d] * times[i] > tokens[i] * times[d] * (1 + _SLACK):
                bounds[i] = d
                break


@jit
def algorithm1_bound(p, d, alpha, tokens, c, line):
    """eps* = min over i of floor(alpha_i R_i(d)) + i; alpha 0 stands for the exact T_i / (M_i c)."""
    total, best = 0.0, p.size * 4 + 4
    for i in range(d, 0, -1):
        total = p[i - 1] * (1.0 + total)
        gain = alpha * total if alpha > 0 else line[i] * total / (tokens[i] * c)
        best = min(best, int(min(np.floor(gain + 1e-9), 2.0 * p.size + 2.0)) + i)
    return best


@jit
def set_smallest(bounds, low, step):
    """step[d] = min over i = low..d of bounds[i], for d >= low."""
    for d in range(low, bounds.size):
        step[d] = bounds[d] if d == low else min(step[d - 1], bounds[d])


@jit
def distance_to_best(tokens, times, d):
    """How far d is from the nearest length whose tokens per time is the largest, and the relative loss there."""
    best = 0.0
    for k in range(tokens.size):
        best = max(best, tokens[k] / times[k])
    nearest = tokens.size
    for k in range(tokens.size):
        if tokens[k] / times[k] >= best * (1 - _SLACK):
            nearest = min(nearest, abs(k - d))
    return nearest, 1.0 - tokens[d] / times[d] / best


@jit
def falls(tokens, times, d, to):
    """Whether going from d to `to` lowers expected tokens per time."""
    return tokens[to] * times[d] < tokens[d] * times[to] * (1 - _SLACK)


@jit
def add_move(d, to, tokens, times, line, counts):
    """Count an adjustment from d to another length."""
    counts[1] += 1
    counts[2] += falls(tokens, times, d, to)
    counts[3] += falls(tokens, line, d, to)
    counts[4] += 1


@jit
def add_end(d, ups, downs, tokens, times, line, counts):
    """Count the end of a sequence."""
    counts[6] += ups > 0 and downs > 0
    near, lost = distance_to_best(tokens, times, d)
    counts[7] += near
    counts[8] += distance_to_best(tokens, line, d)[0]
    counts[9] += lost


@jit
def follow(step, start, tokens, times, line, seen, counts):
    """Iterate d <- step[d] from `start` to a fixed point, or until a length comes back."""
    seen[:] = 0
    d, ups, downs = start, 0, 0
    counts[0] += 1
    while step[d] != d:
        if seen[d]:
            counts[5] += 1
            break
        seen[d] = 1
        to = step[d]
        ups += to > d
        downs += to < d
        add_move(d, to, tokens, times, line, counts)
        d = to
    add_end(d, ups, downs, tokens, times, line, counts)


@jit
def follow_algorithm1(p, start, alpha, tokens, c, times, line, counts):
    """Algorithm 1 with first block `start`; the row's length is dmax, and lengths are cut there."""
    d, ups, downs = start, 0, 0
    counts[0] += 1
    while d < p.size:
        bound = algorithm1_bound(p, d, alpha, tokens, c, line)
        to = min(bound, p.size)
        if to != d:
            ups += to > d
            downs += to < d
            add_move(d, to, tokens, times, line, counts)
        ended = bound <= d
        d = to
        if ended:
            break
    add_end(d, ups, downs, tokens, times, line, counts)


@jit
def row_counts(p, times, c, b, alpha, counts):
    """Add what every rule does from every start 1..m of one row to float64[rules, counts]; the repaired from 0 too.

    Args:
        p: float64[m], acceptance probabilities.
        times: float64[m + 1], seconds of a round by length.
        c, b: the straight line that the rules take for it.
        alpha: constant of Algorithm 1.
        counts: in the order of `RULES` and `COUNTS`.
    """
    m = p.size
    tokens, line = np.empty(m + 1), b + c * np.arange(m + 1)
    expected_tokens(p, tokens)
    bounds, step, seen = np.zeros(m + 1, np.int64), np.zeros(m + 1, np.int64), np.zeros(m + 1, np.int64)
    printed_bounds(p, tokens, c, line, bounds)
    set_smallest(bounds, 1, step)
    for start in range(1, m + 1):
        follow(step, start, tokens, times, line, seen, counts[0])
        follow_algorithm1(p, start, alpha, tokens, c, times, line, counts[1])
        follow_algorithm1(p, start, 0.0, tokens, c, times, line, counts[2])
    for rule in range(2):
        corrected_bounds(tokens, line if rule == 0 else times, bounds)
        set_smallest(bounds, 0, step)
        for start in range(m + 1):
            follow(step, start, tokens, times, line, seen, counts[3 + rule])


@jit
def sample_counts(p, offsets, ctx_len, block_len, costs, c, b, alpha, counts):
    """`row_counts` of many rows, each with its own round times; counts float64[rows, rules, counts]."""
    for row in range(offsets.size - 1):
        m = int(offsets[row + 1] - offsets[row])
        times = np.empty(m + 1)
        for d in range(m + 1):
            times[d] = round_cost(d, m, ctx_len[row], NO_PASSES, 0, block_len, costs)
        row_counts(p[offsets[row] : offsets[row + 1]], times, c, b, alpha, counts[row])
