"""Small exhaustive grids that the checkers search, smallest first; built once per process."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cache
from itertools import combinations, product

from specsim.theory.adjust import corrected_bounds, printed_bounds
from specsim.theory.exact import Affine, argmax_set, eta, expected_tokens, lowest, survival, times
from specsim.theory.record import Data

F = Fraction
PROBS = (F(1), F(1, 2), F(3, 4), F(1, 4), F(0))
BASES = (F(1), F(1, 2), F(3), F(10))


@dataclass(frozen=True, slots=True)
class Instance:
    """One round context with affine cost (c = 1), and what follows from it."""

    p: tuple[Fraction, ...]
    cost: Affine
    sigma: int
    low: int
    alive: list[Fraction]
    tokens: list[Fraction]
    table: list[Fraction]
    speed: list[Fraction]  # entry 0 is -1 when sigma is 0: never the largest, never compared
    best: list[int]
    printed: list[int]
    corrected: list[int]

    def data(self, **more: object) -> Data:
        """The instance as plain data, with whatever the check adds."""
        return {"p": list(self.p), "c": self.cost.c, "b": self.cost.b, "sigma": self.sigma, **more}


def make_instance(p: Sequence[Fraction], b: Fraction, sigma: int) -> Instance:
    """An instance with c = 1."""
    cost = Affine(F(1), b)
    speed = eta(p, cost, sigma)
    return Instance(
        p=tuple(p),
        cost=cost,
        sigma=sigma,
        low=lowest(sigma),
        alive=survival(p),
        tokens=expected_tokens(p, sigma),
        table=times(cost, len(p)),
        speed=[F(-1) if x is None else x for x in speed],
        best=argmax_set(speed),
        printed=printed_bounds(p, cost, sigma),
        corrected=corrected_bounds(p, cost, sigma),
    )


def vectors(depth: int, probs: Sequence[Fraction] = PROBS) -> Iterator[tuple[Fraction, ...]]:
    """All probability vectors of 1..depth positions, shortest first."""
    for length in range(1, depth + 1):
        yield from product(probs, repeat=length)


@cache
def instances(depth: int = 3) -> tuple[Instance, ...]:
    """All instances up to `depth`, the paper's sigma 0 first; without p_1 = 0 there, where nothing is expected."""
    return tuple(make_instance(p, b, sigma) for sigma in (0, 1) for p in vectors(depth) for b in BASES if sigma or p[0])


@cache
def peaked_instances() -> tuple[Instance, ...]:
    """Instances of 4 positions without certain or impossible tokens, sigma 0: enough room on both sides of a peak."""
    return tuple(
        make_instance(p, b, 0) for p in product((F(1, 2), F(3, 4), F(1, 4)), repeat=4) for b in (F(1), F(2), F(10))
    )


@cache
def tables(depth: int, steps: Sequence[Fraction] = (F(0), F(1), F(2))) -> tuple[tuple[Fraction, ...], ...]:
    """Non-decreasing times T_0 = 1, .., T_depth with the given steps."""
    found = []
    for rises in product(steps, repeat=depth):
        row = [F(1)]
        for rise in rises:
            row.append(row[-1] + rise)
        found.append(tuple(row))
    return tuple(found)


@cache
def context_pairs() -> tuple[tuple[tuple[tuple[Fraction, tuple[Fraction, ...]], ...], Affine], ...]:
    """Two kinds of rounds of two positions each, half of the rounds each, at two prices."""
    probs = (F(1), F(1, 2), F(1, 3), F(0))
    kinds = list(product(probs, repeat=2))
    return tuple(
        (((F(1, 2), x), (F(1, 2), y)), Affine(c, F(1))) for x, y in combinations(kinds, 2) for c in (F(1, 5), F(1, 2))
    )


def ascending(values: Sequence[Fraction], length: int) -> Iterator[tuple[Fraction, ...]]:
    """All strictly ascending choices of `length` of the values."""
    return combinations(sorted(values), length)
