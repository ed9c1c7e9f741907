"""Expected tokens, round times and tokens per second of one round, in exact rationals.

Model: p[j-1] is the probability that draft token j is accepted given that tokens 1..j-1 were. P_j = p_1..p_j,
M_d = sigma + P_1 + .. + P_d tokens are expected when d are verified, and T_d is what the round takes. sigma is 1 for
systems that emit the target's own token too and 0 in the formulas of LibraSpec (arXiv 2608.08721), where d = 0 has no
meaning. Nothing here rounds.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from fractions import Fraction
from typing import NamedTuple, TypeAlias

from specsim.errors import ConfigError

Number: TypeAlias = Fraction | int | str | float
Vector: TypeAlias = Sequence[Number]


class Affine(NamedTuple):
    """T_d = c d + b: `c` per verified token, `b` per round, in any one unit of time."""

    c: Number
    b: Number


Cost: TypeAlias = Affine | Vector  # a table is T_0..T_D


def frac(x: Number, what: str = "number") -> Fraction:
    """The rational that a number or its spelling means; a float means the decimal it prints as, so 0.1 is 1/10.

    Raises:
        ConfigError: no finite number.
    """
    if isinstance(x, Fraction):
        return x
    try:
        if isinstance(x, bool) or (isinstance(x, float) and not math.isfinite(x)):
            raise ValueError
        return Fraction(str(x)) if isinstance(x, float) else Fraction(x)
    except (ValueError, TypeError, ZeroDivisionError):
        raise ConfigError(
            f"{what}: {x!r} is no number; allowed: an integer, a decimal or a fraction like '3/4'"
        ) from None


def probabilities(p: Vector, what: str = "p") -> list[Fraction]:
    """`p` as rationals.

    Raises:
        ConfigError: a value outside [0, 1].
    """
    values = [frac(x, f"{what}[{j}]") for j, x in enumerate(p)]
    for j, x in enumerate(values):
        if not 0 <= x <= 1:
            raise ConfigError(f"{what}[{j}]: {x} is no probability; allowed: 0 to 1")
    return values


def times(cost: Cost, depth: int) -> list[Fraction]:
    """T_0..T_depth, `depth` + 1 rationals.

    Raises:
        ConfigError: a negative time, c <= 0, or a table of another length.
    """
    if isinstance(cost, Affine):
        c, b = frac(cost.c, "c"), frac(cost.b, "b")
        if c <= 0 or b < 0:
            raise ConfigError(f"round time {c} d + {b}: allowed are c > 0 and b >= 0")
        return [c * d + b for d in range(depth + 1)]
    table = [frac(x, f"T[{d}]") for d, x in enumerate(cost)]
    if len(table) != depth + 1:
        raise ConfigError(f"T has {len(table)} entries; allowed: {depth + 1}, T_0..T_{depth} for {depth} positions")
    if min(table) < 0:
        raise ConfigError(f"T holds {min(table)}; allowed: times >= 0")
    return table


def survival(p: Vector) -> list[Fraction]:
    """P_0..P_D: Pr(the first j draft tokens are all accepted); P_0 = 1. Needs no independence and no order of p."""
    values = [Fraction(1)]
    for x in probabilities(p):
        values.append(values[-1] * x)
    return values


def expected_tokens(p: Vector, sigma: int) -> list[Fraction]:
    """M_0..M_D, the expected tokens of a round that verifies d.

    Raises:
        ConfigError: sigma is neither 0 nor 1, or a value of p is no probability.
    """
    if sigma not in (0, 1):
        raise ConfigError(f"sigma: {sigma!r}; allowed: 0 (accepted draft tokens) or 1 (emitted tokens)")
    values = [Fraction(sigma)]
    for x in survival(p)[1:]:
        values.append(values[-1] + x)
    return values


def lowest(sigma: int) -> int:
    """The shortest length there is: 0 (plain decoding) when the target's token counts, else 1."""
    return 0 if sigma else 1


def eta(p: Vector, cost: Cost, sigma: int) -> list[Fraction | None]:
    """M_d / T_d for d = 0..D; the entry of d = 0 is None when sigma is 0.

    Raises:
        ConfigError: bad p, cost or sigma, or a length that takes no time.
    """
    tokens, table = expected_tokens(p, sigma), times(cost, len(p))
    if any(t == 0 for t in table[lowest(sigma) :]):
        raise ConfigError("a round that takes no time has no throughput; allowed: T_d > 0")
    return [None if d < lowest(sigma) else m / t for d, (m, t) in enumerate(zip(tokens, table, strict=True))]


def argmax_set(values: Sequence[Fraction | None]) -> list[int]:
    """All indices at which the largest value stands, ascending; None never counts.

    Raises:
        ConfigError: there is no value.
    """
    present = [x for x in values if x is not None]
    if not present:
        raise ConfigError("no length to choose from; allowed: at least one position when sigma is 0")
    top = max(present)
    return [d for d, x in enumerate(values) if x == top]


def optimal_lengths(p: Vector, cost: Cost, sigma: int) -> list[int]:
    """d*: every length with the most expected tokens per expected second of this round."""
    return argmax_set(eta(p, cost, sigma))


def marginal(p: Vector, cost: Cost, sigma: int) -> list[Fraction]:
    """T_d P_{d+1} - (T_{d+1} - T_d) M_d for d = 0..D-1: it has the sign of eta_{d+1} - eta_d."""
    tokens, table, alive = expected_tokens(p, sigma), times(cost, len(p)), survival(p)
    return [table[d] * alive[d + 1] - (table[d + 1] - table[d]) * tokens[d] for d in range(len(p))]


def is_single_peaked(values: Sequence[Fraction]) -> bool:
    """Whether the values go strictly up, then may stay level, then strictly down (each part may be empty)."""
    signs = [(b > a) - (b < a) for a, b in itertools.pairwise(values)]
    return signs == sorted(signs, reverse=True)


def hill_climb(p: Vector, cost: Cost, sigma: int, start: int) -> list[int]:
    """Lengths visited when moving one token at a time while that strictly improves; it looks down first."""
    speed = eta(p, cost, sigma)
    path = [start]
    while True:
        here = speed[path[-1]]
        assert here is not None
        near = [d for d in (path[-1] - 1, path[-1] + 1) if lowest(sigma) <= d <= len(p)]
        better = [d for d in near if (speed[d] or 0) > here]
        if not better:
            return path
        path.append(better[0])
