"""The best length in the long run: attainment on unbounded lengths, the renewal (Lagrangian) optimum, clairvoyance.

A context is a kind of round: its weight and its acceptance probabilities. Rounds are drawn independently of what was
decided before. `sigma` is 1 throughout where it is not an argument: the figure of interest is emitted tokens per time.
Positions that a context does not list are never accepted.
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from typing import NamedTuple, TypeAlias

from specsim.errors import ConfigError
from specsim.theory.exact import (
    Affine,
    Cost,
    Number,
    Vector,
    argmax_set,
    expected_tokens,
    frac,
    lowest,
    probabilities,
    survival,
    times,
)

Context: TypeAlias = tuple[Number, Vector]


class Attainment(NamedTuple):
    """Whether some finite length is best when drafts have no end.

    Attributes:
        attained: a maximiser exists.
        delta: b P_inf - c (sigma + sum (P_j - P_inf)), the limit of the marginal.
        supremum: of M_d / T_d over all lengths.
        first, last: the shortest and the longest maximiser; last is None when there are arbitrarily long ones.
    """

    attained: bool
    delta: Fraction
    supremum: Fraction
    first: int | None
    last: int | None


def attainment(prefix: Vector, tail: Number, cost: Affine, sigma: int) -> Attainment:
    """R6 for p = prefix followed by `tail` for ever.

    Raises:
        ConfigError: bad probabilities or cost.
    """
    chances, r = probabilities(prefix, "prefix"), probabilities([tail], "tail")[0]
    c, b = frac(cost.c), frac(cost.b)
    table = times(cost, 1)
    if table[lowest(sigma)] == 0:
        raise ConfigError("a round that takes no time has no throughput; allowed: b > 0 when sigma is 1")
    alive = survival(chances)
    limit = alive[-1] if r == 1 else Fraction(0)
    beyond = Fraction(0) if r == 1 else alive[-1] * r / (1 - r)
    delta = b * limit - c * (sigma + sum(alive[1:], -limit * len(chances)) + beyond)
    if delta > 0:
        return Attainment(False, delta, limit / c, None, None)
    reach, tokens, top, first = Fraction(1), Fraction(sigma), Fraction(0), None
    d = 0
    while True:  # the marginal falls to delta; where it first is not positive is the shortest maximiser
        following = reach * (chances[d] if d < len(chances) else r)
        rise = (table[0] + c * d) * following - c * tokens
        if d >= lowest(sigma):
            if first is None and rise <= 0:
                first, top = d, tokens / (table[0] + c * d)
            endless = rise == 0 and (d >= len(chances) or following == tokens == 0)
            if first is not None and (rise < 0 or endless):
                return Attainment(True, delta, top, first, None if endless else d)
        reach, tokens, d = following, tokens + following, d + 1


def _checked(contexts: Sequence[Context], cost: Cost) -> tuple[list[Fraction], list[list[Fraction]], list[Fraction]]:
    """Weights, M_0..M_D per context (sigma 1, padded to the longest), T_0..T_D."""
    weights = [frac(w, f"contexts[{k}] weight") for k, (w, _) in enumerate(contexts)]
    if not weights or min(weights) < 0 or sum(weights) == 0:
        raise ConfigError("contexts: allowed are at least one, weights >= 0, not all of them 0")
    depth = max(len(p) for _, p in contexts)
    tokens = [expected_tokens([*p, *[0] * (depth - len(p))], 1) for _, p in contexts]
    table = times(cost, depth)
    if min(table) <= 0:
        raise ConfigError("a round that takes no time has no throughput; allowed: T_d > 0")
    return weights, tokens, table


def throughput(contexts: Sequence[Context], cost: Cost, d: Sequence[int]) -> Fraction:
    """Sum of expected tokens over sum of expected times when context k verifies d[k]."""
    weights, tokens, table = _checked(contexts, cost)
    gained = sum((w * m[k] for w, m, k in zip(weights, tokens, d, strict=True)), Fraction(0))
    return gained / sum((w * table[k] for w, k in zip(weights, d, strict=True)), Fraction(0))


def surplus(contexts: Sequence[Context], cost: Cost, lam: Number) -> Fraction:
    """F(lambda) = sum of w max_d (M_d - lambda T_d) over the sum of weights: convex, falling, zero at lambda*."""
    weights, tokens, table = _checked(contexts, cost)
    price = frac(lam, "lambda")
    best = [max(m[d] - price * table[d] for d in range(len(table))) for m in tokens]
    return sum((w * x for w, x in zip(weights, best, strict=True)), Fraction(0)) / sum(weights)


def priced_lengths(contexts: Sequence[Context], cost: Cost, lam: Number) -> list[int]:
    """Per context the shortest argmax of M_d - lambda T_d; with affine T, the last j with P_j > lambda c."""
    _, tokens, table = _checked(contexts, cost)
    price = frac(lam, "lambda")
    return [argmax_set([m[d] - price * table[d] for d in range(len(table))])[0] for m in tokens]


def ratio_lengths(contexts: Sequence[Context], cost: Cost) -> list[int]:
    """Per context the shortest argmax of M_d / T_d, the objective that a single round suggests."""
    _, tokens, table = _checked(contexts, cost)
    return [argmax_set([m / t for m, t in zip(row, table, strict=True)])[0] for row in tokens]


def best_fixed(contexts: Sequence[Context], cost: Cost) -> tuple[int, Fraction]:
    """The shortest of the best lengths that are the same in every round, and its throughput."""
    weights, tokens, table = _checked(contexts, cost)
    total = sum(weights)
    gained = (sum((w * m[d] for w, m in zip(weights, tokens, strict=True)), Fraction(0)) for d in range(len(table)))
    speeds = [tokens_d / (total * time) for tokens_d, time in zip(gained, table, strict=True)]
    best = argmax_set(speeds)[0]
    return best, speeds[best]


class Dinkelbach(NamedTuple):
    """lambda*, the lengths at it, and all iterates up to the repetition."""

    lam: Fraction
    d: list[int]
    iterates: list[Fraction]


def dinkelbach(contexts: Sequence[Context], cost: Cost, start: Number = 0) -> Dinkelbach:
    """lambda* = the best long-run throughput, by lambda <- throughput of the lengths best at lambda (Newton on F).

    Raises:
        ConfigError: bad contexts or cost.
    """
    lam, iterates = frac(start, "start"), []
    while True:
        d = priced_lengths(contexts, cost, lam)
        following = throughput(contexts, cost, d)
        iterates.append(following)
        if following == lam:
            return Dinkelbach(lam, d, iterates)
        lam = following


def outcomes(contexts: Sequence[Context]) -> list[Context]:
    """The same rounds for someone who knows what will be accepted: one context of ones per accepted length.

    Weights multiply; contexts of weight 0 are left out.
    """
    split: list[Context] = []
    for w, p in contexts:
        alive = [*survival(p), Fraction(0)]
        for a in range(len(p) + 1):
            weight = frac(w) * (alive[a] - alive[a + 1])
            if weight:
                split.append((weight, [1] * a + [0] * (len(p) - a)))
    return split


def clairvoyant_length(accepted: int, cost: Cost, dmax: int) -> int:
    """Shortest argmax over d <= dmax of (min(accepted, d) + 1) / T_d: best for one round, knowing the answer."""
    table = times(cost, dmax)
    return argmax_set([Fraction(min(accepted, d) + 1) / t for d, t in enumerate(table)])[0]


def shortest_time(hard: Sequence[bool], cost: Cost, dmax: int) -> tuple[Fraction, Fraction]:
    """Least total time for a whole text by dynamic programming, and that of always verifying min(A, dmax, rest - 1).

    Args:
        hard: per token of the text, whether a draft of it is rejected.
        cost: round time.
        dmax: longest draft.
    """
    length, table = len(hard), times(cost, dmax)
    best, greedy = [Fraction(0)] * (length + 1), [Fraction(0)] * (length + 1)
    for start in range(length - 1, -1, -1):
        accepted = 0
        while start + accepted < length - 1 and accepted < dmax and not hard[start + accepted]:
            accepted += 1
        best[start] = min(t + best[start + min(accepted, d) + 1] for d, t in enumerate(table))
        greedy[start] = table[accepted] + greedy[start + accepted + 1]
    return best[0], greedy[0]


def quota_times(contexts: Sequence[Context], cost: Cost, quota: int) -> tuple[Fraction, Fraction]:
    """Expected time to emit `quota` tokens: the least over all policies, and that of the lambda* lengths (R8 ii)."""
    weights, _, table = _checked(contexts, cost)
    plan, total = dinkelbach(contexts, cost).d, sum(weights)
    laws = []
    for _, p in contexts:
        alive = survival([*p, *[0] * (len(table) - 1 - len(p))])
        laws.append([[alive[a] - alive[a + 1] for a in range(d)] + [alive[d]] for d in range(len(table))])
    least, ours = [Fraction(0)], [Fraction(0)]
    for left in range(1, quota + 1):
        fastest, planned = Fraction(0), Fraction(0)
        for w, law, d in zip(weights, laws, plan, strict=True):
            fastest += w * min(t + _after(least, y, left) for t, y in zip(table, law, strict=True))
            planned += w * (table[d] + _after(ours, law[d], left))
        least.append(fastest / total)
        ours.append(planned / total)
    return least[quota], ours[quota]


def _after(values: list[Fraction], law: list[Fraction], left: int) -> Fraction:
    """Expected further time when a round accepts a with chance law[a] and `left` tokens were missing."""
    return sum((x * values[max(left - a - 1, 0)] for a, x in enumerate(law)), Fraction(0))
