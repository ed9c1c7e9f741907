"""LibraSpec's adjustments of a length: the printed bounds (Theorems 3.3, 3.4), the corrected ones, and iterating them.

Source: arXiv 2608.08721, equations 5, 6 and 14 to 23; lengths above the number of known positions are cut there.
Indices follow the paper: lists of bounds start at position 1, those of the corrected rule at the lowest length.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from fractions import Fraction
from typing import NamedTuple

from specsim.errors import ConfigError
from specsim.theory.exact import Affine, Cost, Vector, expected_tokens, frac, lowest, probabilities, times


def suffix_gain(p: Vector, i: int, d: int) -> Fraction:
    """R_i(d): tokens i..d expected to be accepted given that 1..i-1 were (equation 14); 0 when d < i."""
    total = Fraction(0)
    for x in reversed(probabilities(p)[i - 1 : d]):
        total = x * (1 + total)
    return total


def exact_alpha(p: Vector, cost: Affine, sigma: int) -> list[Fraction | None]:
    """alpha_i = T_i / (M_i c) for i = 1..D; None stands for infinity, where no token is expected at all."""
    tokens, table, c = expected_tokens(p, sigma), times(cost, len(p)), frac(cost.c)
    return [table[i] / (tokens[i] * c) if tokens[i] else None for i in range(1, len(p) + 1)]


def printed_bound(p: Sequence[Fraction], i: int, alpha: Fraction | None) -> int:
    """eps_i = max{d' <= D: d' < alpha R_i(d') + i}, as printed; the first failure ends the scan (no gaps)."""
    total, product, d = Fraction(0), Fraction(1), i - 1
    while d < len(p):
        product *= p[d]
        total += product
        inside = product > 0 if alpha is None else d + 1 < alpha * total + i
        if not inside:
            break
        d += 1
    return len(p) if alpha is None and d >= i else d


def printed_bounds(p: Vector, cost: Affine, sigma: int) -> list[int]:
    """Printed eps_1..eps_D with exact alpha_i, each at most D."""
    values = probabilities(p)
    return [printed_bound(values, i, a) for i, a in enumerate(exact_alpha(p, cost, sigma), 1)]


def corrected_bounds(p: Vector, cost: Cost, sigma: int) -> list[int]:
    """eps^c_m for m = lowest..D: the longest d' > m with M_d' T_m > M_m T_d', or m when there is none.

    With affine T this is the largest d' < m + T_m P_m / (M_m c) R_{m+1}(d'); cross-multiplied it needs no division
    and holds for any table.
    """
    tokens, table = expected_tokens(p, sigma), times(cost, len(p))

    def bound(m: int) -> int:
        better = (d for d in range(len(p), m, -1) if tokens[d] * table[m] > tokens[m] * table[d])
        return next(better, m)

    return [bound(m) for m in range(lowest(sigma), len(p) + 1)]


def printed_step(p: Vector, cost: Affine, sigma: int) -> Callable[[int], int]:
    """Theorem 3.4: d -> min over i = 1..d of eps_i; length 0 has no bound and stays."""
    bounds = printed_bounds(p, cost, sigma)
    return lambda d: min(bounds[:d], default=0)


def repaired_step(p: Vector, cost: Cost, sigma: int) -> Callable[[int], int]:
    """R4: d -> min over m = lowest..d of eps^c_m."""
    bounds, low = corrected_bounds(p, cost, sigma), lowest(sigma)
    if not bounds:
        raise ConfigError("no length to choose from; allowed: at least one position when sigma is 0")
    return lambda d: min(bounds[: d - low + 1])


class Orbit(NamedTuple):
    """Iterating an adjustment: all lengths up to the first repetition, and the part that repeats."""

    lengths: tuple[int, ...]
    cycle: tuple[int, ...]

    @property
    def steps(self) -> int | None:
        """Adjustments until the fixed point, or None when there is a cycle instead."""
        return len(self.lengths) - 1 if len(self.cycle) == 1 else None


def iterate(step: Callable[[int], int], start: int) -> Orbit:
    """Apply `step` from `start` until a length comes back."""
    lengths = [start]
    while (following := step(lengths[-1])) not in lengths:
        lengths.append(following)
    return Orbit(tuple(lengths), tuple(lengths[lengths.index(following) :]))
