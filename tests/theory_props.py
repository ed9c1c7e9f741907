"""Bodies and generators of the theory properties: functions of the module under test, so that mutants can be put in.

`hold(prop)` runs one under hypothesis; `found(...)` searches for a counterexample and fails when there is none. The
numbers P01 to P44 are those of the design notes.
"""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction as F
from itertools import islice, pairwise, product
from typing import Any, NamedTuple

from hypothesis import assume, find, given, settings
from hypothesis import strategies as st

from specsim import theory

SIGMA = st.sampled_from((0, 1))
UNITS = st.sampled_from((1, 2, 3, 4, 5, 10))
PROB = UNITS.flatmap(lambda m: st.integers(0, m).map(lambda k: F(k, m)))
POS = UNITS.flatmap(lambda m: st.integers(1, m).map(lambda k: F(k, m)))
BASE = st.builds(F, st.integers(1, 40), UNITS)
ALPHA = st.builds(F, st.integers(20, 110), st.just(20))  # 1 to 5.5


def pvec(low: int = 1, high: int = 8, of: st.SearchStrategy[F] = PROB) -> st.SearchStrategy[list[F]]:
    return st.lists(of, min_size=low, max_size=high)


# A first token that can be accepted, then anything.
STARTED = st.builds(lambda first, rest: [first, *rest], POS, pvec(0, 7))


def table(depth: int, low: int = 1, *, order: str = "") -> st.SearchStrategy[list[F]]:
    """T_0..T_depth with steps k/m, k >= low; `order` sorts them: convex or concave."""
    steps = st.lists(st.builds(F, st.integers(low, 12), UNITS), min_size=depth, max_size=depth)
    if order:
        steps = steps.map(lambda rises: sorted(rises, reverse=order == "concave"))

    def cumulate(start: F, rises: list[F]) -> list[F]:
        row = [start]
        for rise in rises:
            row.append(row[-1] + rise)
        return row

    return st.builds(cumulate, BASE, steps)


def with_table(
    p: st.SearchStrategy[list[F]], low: int = 1, order: str = ""
) -> st.SearchStrategy[tuple[list[F], list[F]]]:
    return p.flatmap(lambda values: st.tuples(st.just(values), table(len(values), low, order=order)))


class Prop(NamedTuple):
    """A property: its body, called with the module under test and one drawn tuple, and where that comes from."""

    body: Callable[..., None]
    strategy: st.SearchStrategy[tuple[Any, ...]]


def hold(prop: Prop, t: Any = theory, examples: int | None = None) -> None:
    """Run a property; `examples` bounds them and makes the run the same every time."""
    chosen = settings() if examples is None else settings(max_examples=examples, derandomize=True, database=None)

    @settings(chosen)
    @given(prop.strategy)
    def run(drawn: tuple[Any, ...]) -> None:
        prop.body(t, *drawn)

    run()


def found(strategy: st.SearchStrategy[Any], wanted: Callable[[Any], bool]) -> Any:
    """The smallest example hypothesis finds; NoSuchExample when there is none among 20 000."""
    return find(strategy, wanted, settings=settings(max_examples=20_000, derandomize=True, database=None))


def affine(b: F) -> Any:
    return theory.Affine(F(1), b)


def speeds(t: Any, p: list[F], cost: Any, sigma: int) -> dict[int, F]:
    return {d: x for d, x in enumerate(t.eta(p, cost, sigma)) if x is not None}


# --- the model -------------------------------------------------------------------------------------------------------


def p01(t: Any, p: list[F], sigma: int) -> None:
    means = [F(0)] * (len(p) + 1)
    for outcome in product((True, False), repeat=len(p)):
        chance = F(1)
        for accepted, x in zip(outcome, p, strict=True):
            chance *= x if accepted else 1 - x
        leading = next((j for j, accepted in enumerate(outcome) if not accepted), len(p))
        for d in range(len(p) + 1):
            means[d] += chance * (min(leading, d) + sigma)
    assert t.expected_tokens(p, sigma) == means


P01 = Prop(p01, st.tuples(pvec(0, 6), SIGMA))


def p02(t: Any, p: list[F], sigma: int) -> None:
    tokens = t.expected_tokens(p, sigma)
    rises = [b - a for a, b in pairwise(tokens)]
    assert all(0 <= x <= 1 for x in rises)
    assert rises == sorted(rises, reverse=True)
    assert (tokens[-1] == len(p) + sigma) == all(x == 1 for x in p)


P02 = Prop(p02, st.tuples(pvec(0, 9), SIGMA))


def p03(t: Any, p: list[F]) -> None:
    alive, tokens = t.survival(p), t.expected_tokens(p, 0)
    for d in range(len(p) + 1):
        for i in range(1, d + 1):
            double = sum((_product(p[i - 1 : j]) for j in range(i, d + 1)), F(0))
            gain = t.suffix_gain(p, i, d)
            assert gain == double == p[i - 1] * (1 + t.suffix_gain(p, i + 1, d))
            if alive[i - 1]:
                assert gain == (tokens[d] - tokens[i - 1]) / alive[i - 1]


P03 = Prop(p03, st.tuples(pvec(1, 7)))


def _product(values: list[F]) -> F:
    result = F(1)
    for x in values:
        result *= x
    return result


# --- LibraSpec's bounds ----------------------------------------------------------------------------------------------


def p04(t: Any, drawn: tuple[list[F], list[F]], sigma: int) -> None:
    p, times = drawn
    tokens, speed = t.expected_tokens(p, sigma), speeds(t, p, times, sigma)
    for d, e in product(speed, repeat=2):
        if d != e:
            ratio = (tokens[e] - tokens[d]) / (times[e] - times[d])
            says = ratio > speed[d] if e > d else ratio < speed[d]
            assert says == (speed[e] > speed[d])


P04 = Prop(p04, st.tuples(with_table(pvec(1, 6)), SIGMA))


def p06(t: Any, p: list[F], b: F, sigma: int) -> None:
    for i, alpha in enumerate(t.exact_alpha(p, affine(b), sigma), 1):
        if alpha is None:
            continue
        bound = t.printed_bound(p, i, alpha)
        inside = {d for d in range(-3, len(p) + 1) if d < alpha * t.suffix_gain(p, i, d) + i}
        assert inside == set(range(-3, bound + 1))
        assert bound >= i - 1
        assert (bound >= i) == (p[i - 1] > 0)


P06 = Prop(p06, st.tuples(pvec(1, 8), st.one_of(st.just(F(0)), BASE), st.just(0)) | st.tuples(pvec(1, 8), BASE, SIGMA))


def p07(t: Any, p: list[F], b: F, sigma: int) -> None:
    alive, tokens, speed = t.survival(p), t.expected_tokens(p, sigma), speeds(t, p, affine(b), sigma)
    for m, bound in zip(range(t.lowest(sigma), len(p) + 1), t.corrected_bounds(p, affine(b), sigma), strict=True):
        better = [d for d in range(m + 1, len(p) + 1) if speed[d] > speed[m]]
        alpha = (m + b) * alive[m] / tokens[m]
        assert better == [d for d in range(m + 1, len(p) + 1) if d < m + alpha * t.suffix_gain(p, m + 1, d)]
        assert better == list(range(m + 1, bound + 1))


P07 = Prop(p07, st.tuples(STARTED, BASE, SIGMA))


def p08(t: Any, p: list[F], b: F, sigma: int) -> None:
    corrected = t.corrected_bounds(p, affine(b), sigma)[1 - t.lowest(sigma) :]
    assert all(x >= y for x, y in zip(t.printed_bounds(p, affine(b), sigma), corrected, strict=True))


P08 = Prop(p08, st.tuples(pvec(1, 8, POS), BASE, SIGMA))


def p09(t: Any, p: list[F], b: F, sigma: int) -> None:
    speed, bounds = speeds(t, p, affine(b), sigma), t.printed_bounds(p, affine(b), sigma)
    for d, e in product(range(1, len(p) + 1), repeat=2):
        if e > d and speed[e] > speed[d]:
            assert e <= min(bounds[:d])


P09 = Prop(p09, st.tuples(STARTED, BASE, SIGMA))


def p11(t: Any, p: list[F], b: F, sigma: int) -> None:
    speed, bounds = speeds(t, p, affine(b), sigma), t.printed_bounds(p, affine(b), sigma)
    for d in range(1, len(p) + 1):
        if min(bounds[:d]) < d:
            assert speed[min(bounds[:d])] > speed[d]


P11 = Prop(p11, st.tuples(STARTED, BASE, SIGMA))


def p14(t: Any, p: list[F], b: F, sigma: int) -> None:
    q = [*p, F(0), F(0)]
    best = t.optimal_lengths(q, affine(b), sigma)
    bounds, alpha = t.printed_bounds(q, affine(b), sigma), t.exact_alpha(q, affine(b), sigma)
    for d in range(1, len(q)):
        if d <= best[0]:
            assert min(bounds[:d]) >= d + 1
        algorithm = t.smallest_bound(q, d, alpha)
        assert algorithm >= min(d, best[-1]) + 1  # never stops at a best length, and never rolls back to one


P14 = Prop(p14, st.tuples(STARTED, BASE, SIGMA))


def p15(t: Any, p: list[F], b: F, sigma: int) -> None:
    low, best = t.lowest(sigma), t.optimal_lengths(p, affine(b), sigma)
    bounds, step = t.corrected_bounds(p, affine(b), sigma), t.repaired_step(p, affine(b), sigma)
    for d in range(low, len(p) + 1):
        orbit = t.iterate(step, d)
        assert orbit.cycle == (best[0],)
        assert orbit.steps <= 2
        assert all(d <= x for x in bounds[: d - low]) == (d <= best[0])


P15 = Prop(p15, st.tuples(STARTED, BASE, SIGMA))


def p44(t: Any, p: list[F], d: int, sigma: int) -> None:
    """b is chosen so that lengths d and d+1 are equally good: `>` and `>=` then differ."""
    d = t.lowest(sigma) + d % (len(p) - t.lowest(sigma))
    b = t.expected_tokens(p, sigma)[d] / t.survival(p)[d + 1] - d
    assume(b > 0)
    best = t.optimal_lengths(p, affine(b), sigma)
    assert {d, d + 1} <= set(best)
    step = t.repaired_step(p, affine(b), sigma)
    assert all(t.iterate(step, start).cycle == (best[0],) for start in range(t.lowest(sigma), len(p) + 1))
    assert step(d + 1) == best[0]
    if sigma == 1:
        top = t.eta(p, affine(b), 1)[d]
        assert t.priced_lengths([(1, p)], affine(b), top) == [best[0]]


P44 = Prop(p44, st.tuples(pvec(2, 8, POS), st.integers(0, 7), SIGMA))


# --- Algorithm 1 -----------------------------------------------------------------------------------------------------


def p30(t: Any, q: list[F], alpha: F, n: int, dmax: int, clip: bool) -> None:
    """What is promised of every run; steps are taken one by one, so a loop that never ends is seen."""
    grow = alpha.numerator // alpha.denominator
    start = min(n, dmax) if clip else n
    q = [*q, *[F(1, 2)] * 40]
    steps = list(islice(t.algorithm1_steps(q, alpha, n, dmax, clip=clip), 60))
    assert len(steps) <= max(dmax - start, 0)
    lengths = [start, *(step.decision for step in steps)]
    assert [step.length for step in steps] == lengths[:-1]
    for number, step in enumerate(steps):
        d = step.length
        sums = [sum((_product(q[i - 1 : j]) for j in range(i, d + 1)), F(0)) for i in range(1, d + 1)]
        assert step.bound == min((alpha * total + i).__floor__() for i, total in enumerate(sums, 1))
        assert step.bound - d <= (alpha * q[d - 1]).__floor__() <= grow
        last = number == len(steps) - 1
        if step.bound <= d:
            assert last
            assert step.decision == step.bound >= 1
            if number:
                previous = lengths[number] - lengths[number - 1]
                assert d - step.bound <= previous - 1 <= max(grow - 1, 0)
        else:
            assert step.decision == (min(step.bound, dmax) if clip else step.bound)
        assert step.blocks == -(-max(lengths[: number + 2]) // n)
    final = lengths[-1]
    assert 1 <= final <= (dmax if clip else max(dmax - 1 + max(grow, 1), n))
    run = t.algorithm1(q, alpha, n, dmax, clip=clip)
    assert (run.d, run.iterations, run.trace) == (final, len(steps), [(s.length, s.bound) for s in steps])
    if n >= dmax:
        assert (run.d, run.blocks, run.iterations) == (start, 1, 0)


# Sure tokens are drawn often: only they make steps larger than one.
SURE = st.one_of(st.just(F(1)), PROB)
P30 = Prop(p30, st.tuples(pvec(0, 12, SURE), ALPHA, st.integers(1, 5), st.integers(1, 14), st.booleans()))


def p29(t: Any, pairs: list[tuple[F, F]], low: F, more: F, n: int, dmax: int) -> None:
    """Below alpha = 2, larger confidences and a larger alpha never shorten the result."""
    small, large = [min(pair) for pair in pairs], [max(pair) for pair in pairs]
    high = min(low + more, F(195, 100))
    assert t.algorithm1(small, low, n, dmax).d <= t.algorithm1(large, high, n, dmax).d


P29 = Prop(
    p29,
    st.tuples(
        st.lists(st.tuples(PROB, PROB), min_size=9, max_size=9), st.builds(F, st.integers(105, 195), st.just(100)),
        st.builds(F, st.integers(0, 50), st.just(100)), st.integers(1, 4), st.integers(1, 9),
    ),
)  # fmt: skip
