"""LibraSpec's Algorithm 1 (arXiv 2608.08721) in exact rationals, with every iteration visible.

Read as printed: constant alpha, the inner sum runs to the current length, floor, at most one rollback, no test once
the length has reached dmax. The printed text lets the length pass dmax by a step; `clip` cuts it there.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from fractions import Fraction
from typing import NamedTuple

from specsim.errors import ConfigError
from specsim.theory.exact import Number, Vector, frac, probabilities


class Step(NamedTuple):
    """One pass of the loop: the length, eps* at it, the length afterwards, and the draft blocks made so far."""

    length: int
    bound: int
    decision: int
    blocks: int


class Run(NamedTuple):
    """A finished run: submitted length, draft blocks, iterations, and (length, eps*) of each."""

    d: int
    blocks: int
    iterations: int
    trace: list[tuple[int, int]]


def smallest_bound(q: Sequence[Fraction], d: int, alpha: Sequence[Fraction]) -> int:
    """eps* = min over i = 1..d of floor(alpha_i R_i(d)) + i, by R_i = q_i (1 + R_{i+1})."""
    if d > len(q):
        raise ConfigError(
            f"q has {len(q)} confidences and the rule looks at position {d}; allowed: at least {d} of them"
        )
    total, bounds = Fraction(0), []
    for i in range(d, 0, -1):
        total = q[i - 1] * (1 + total)
        bounds.append(math.floor(alpha[i - 1] * total) + i)
    return min(bounds)


def algorithm1_steps(q: Vector, alpha: Number | Vector, n: int, dmax: int, *, clip: bool = True) -> Iterator[Step]:
    """The iterations of the loop, one after another.

    Args:
        q: confidences; as many as the rule comes to look at.
        alpha: the constant, or one value per position (alpha_i).
        n: block size.
        dmax: maximum length.
        clip: d := min(eps*, dmax).

    Raises:
        ConfigError: alpha, n or dmax not positive, q no probabilities or too few of them.
    """
    values = probabilities(q, "q")
    if isinstance(alpha, str) or not isinstance(alpha, Sequence):
        alpha = [alpha] * max(len(values), 1)
    alphas = [frac(a, "alpha") for a in alpha]
    if n < 1 or dmax < 1 or min(alphas) <= 0:
        raise ConfigError(f"alpha {min(alphas)}, n {n}, dmax {dmax}: allowed are values > 0")
    d, budget, blocks = start_length(n, dmax, clip=clip), n - start_length(n, dmax, clip=clip), 1
    while d < dmax:
        bound = smallest_bound(values, d, alphas)
        if bound <= d:
            yield Step(d, bound, bound, blocks)
            return
        grown = min(bound, dmax) if clip else bound
        budget -= grown - d
        if budget < 0:
            more = (-budget + n - 1) // n
            blocks += more
            budget += more * n
        yield Step(d, bound, grown, blocks)
        d = grown


def start_length(n: int, dmax: int, *, clip: bool = True) -> int:
    """The length before the first iteration: one block."""
    return min(n, dmax) if clip else n


def algorithm1(q: Vector, alpha: Number | Vector, n: int, dmax: int, *, clip: bool = True) -> Run:
    """Run Algorithm 1; arguments and errors as of `algorithm1_steps`."""
    steps = list(algorithm1_steps(q, alpha, n, dmax, clip=clip))
    if not steps:
        return Run(start_length(n, dmax, clip=clip), 1, 0, [])
    trace = [(step.length, step.bound) for step in steps]
    return Run(steps[-1].decision, steps[-1].blocks, len(steps), trace)
