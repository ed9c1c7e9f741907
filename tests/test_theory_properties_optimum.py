"""P16 to P26, P32 to P36: one peak, hill climbing, attainment, monotonicity, the long run, clairvoyance."""

from __future__ import annotations

from fractions import Fraction as F
from itertools import pairwise, product
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specsim import theory as t
from specsim.errors import ConfigError
from specsim.theory.grids import context_pairs
from tests.theory_props import BASE, POS, PROB, SIGMA, STARTED, affine, found, pvec, speeds, table, with_table

PRICE = st.builds(F, st.integers(1, 12), st.sampled_from((2, 5, 10)))


def contexts(most: int = 3, depth: int = 3) -> st.SearchStrategy[list[tuple[F, list[F]]]]:
    return st.lists(st.tuples(POS, pvec(depth, depth)), min_size=1, max_size=most)


def peaked(p: list[F], cost: Any, sigma: int) -> bool:
    return t.is_single_peaked(list(speeds(t, p, cost, sigma).values()))


@given(with_table(pvec(1, 8), order="convex"), SIGMA)
def test_p16_convex_times_give_one_peak(drawn: tuple[list[F], list[F]], sigma: int) -> None:
    assert peaked(*drawn, sigma)


@given(pvec(1, 8), BASE, SIGMA)
def test_p16_affine_times_give_one_peak(p: list[F], b: F, sigma: int) -> None:
    assert peaked(p, affine(b), sigma)


def test_p17_stairs_can_give_two() -> None:
    p, tile, base, sigma = found(
        st.tuples(pvec(1, 6), st.integers(2, 3), st.integers(1, 3), SIGMA),
        lambda x: not peaked(x[0], [x[2] + -(-d // x[1]) for d in range(len(x[0]) + 1)], x[3]),
    )
    assert (len(p), tile, base, sigma) == (2, 2, 1, 1)
    assert not peaked([F(1), F(1), F(9, 10), F(1)], [1, 2, 2, 3, 3], 0)


def test_p18_concave_times_can_give_two() -> None:
    p, _ = found(with_table(pvec(1, 4), order="concave"), lambda x: not peaked(*x, 0))
    assert len(p) <= 4
    assert not peaked([F(1), F(9, 10), F(1)], [1, 2, 4, F(9, 2)], 0)


@given(pvec(1, 8), BASE, st.lists(POS, min_size=8, max_size=8), SIGMA)
def test_p19_falling_rates_give_one_peak(p: list[F], start: F, shrink: list[F], sigma: int) -> None:
    """Times are built so that P_d / t_d never grows, which need be neither convex nor affine."""
    alive, row, rate = t.survival(p), [start], F(3)
    for d, factor in zip(range(1, len(p) + 1), shrink, strict=False):
        rate = rate * factor if d > 1 else rate
        row.append(row[-1] + (alive[d] / rate if alive[d] else F(1)))
    assert peaked(p, row, sigma)


@given(pvec(1, 8), BASE, SIGMA, st.integers(0, 8))
def test_p20_hill_climbing_takes_the_distance(p: list[F], b: F, sigma: int, start: int) -> None:
    start = max(start % (len(p) + 1), t.lowest(sigma))
    path = t.hill_climb(p, affine(b), sigma, start)
    assert len(path) - 1 == min(abs(start - x) for x in t.optimal_lengths(p, affine(b), sigma))


@given(BASE, POS, SIGMA)
def test_p21_sure_tokens(b: F, c: F, sigma: int) -> None:
    rises = t.marginal([1] * 6, t.Affine(c, b), sigma)[t.lowest(sigma) :]
    sign = (b > sigma * c) - (b < sigma * c)
    assert all((x > 0) - (x < 0) == sign for x in rises)


@given(pvec(0, 6, POS), BASE, SIGMA)
def test_p22_for_ever_rising(p: list[F], b: F, sigma: int) -> None:
    alive = t.survival(p)
    limit = alive[-1]
    rises = sigma + sum((x - limit for x in alive[1:]), F(0)) < b * limit
    values = list(speeds(t, [*p, *[F(1)] * 12], affine(b), sigma).values())
    assert rises == all(y > x for x, y in pairwise(values))
    assert t.attainment(p, 1, affine(b), sigma).attained == (not rises)


@given(pvec(0, 4), PROB, BASE, SIGMA)
def test_attainment_agrees_with_a_long_row(p: list[F], tail: F, b: F, sigma: int) -> None:
    result = t.attainment(p, tail, affine(b), sigma)
    long = [*p, *[tail] * 60]
    best = t.optimal_lengths(long, affine(b), sigma)
    if not result.attained:
        assert best == [len(long)]
        assert speeds(t, long, affine(b), sigma)[len(long)] < result.supremum
    elif (result.last if result.last is not None else result.first) < len(long):
        assert result.first == best[0]
        assert result.last in (best[-1], None)
        assert result.supremum == speeds(t, long, affine(b), sigma)[best[0]]


def test_attainment_examples() -> None:
    assert t.attainment([], 1, t.Affine(1, 1), 0) == (False, 1, 1, None, None)
    assert t.attainment([], 1, t.Affine(1, 1), 1) == (True, 0, 1, 0, None)
    assert t.attainment([0], 1, t.Affine(1, 1), 0)[:3] == (True, 0, 0)
    with pytest.raises(ConfigError, match="b > 0"):
        t.attainment([], 1, t.Affine(1, 0), 1)


@given(pvec(1, 8, POS), BASE)
def test_p23_emitted_tokens_make_it_shorter(p: list[F], b: F) -> None:
    emitted, accepted = (t.optimal_lengths(p, affine(b), sigma) for sigma in (1, 0))
    assert emitted[0] <= accepted[0]
    assert emitted[-1] <= accepted[-1]


@given(pvec(1, 8), BASE, POS, SIGMA)
def test_p24_unit_of_time_does_not_matter(p: list[F], b: F, k: F, sigma: int) -> None:
    assert t.optimal_lengths(p, t.Affine(k, k * b), sigma) == t.optimal_lengths(p, affine(b), sigma)


@given(pvec(1, 8), BASE, BASE, SIGMA)
def test_p25_larger_intercepts_never_shorten(p: list[F], b: F, more: F, sigma: int) -> None:
    short, long = t.optimal_lengths(p, affine(b), sigma), t.optimal_lengths(p, affine(b + more), sigma)
    assert short[0] <= long[0]
    assert short[-1] <= long[-1]


@given(STARTED, BASE, SIGMA, st.integers(0, 7), PROB)
def test_p26_likelier_tokens_never_shorten(p: list[F], b: F, sigma: int, at: int, to: F) -> None:
    at %= len(p)
    short = t.optimal_lengths(p, affine(b), sigma)
    long = t.optimal_lengths([max(x, to) if j == at else x for j, x in enumerate(p)], affine(b), sigma)
    assert short[0] <= long[0]
    assert short[-1] <= long[-1]


def test_p26_needs_a_token_that_can_be_accepted() -> None:
    """At sigma 0 and p_1 = 0 every length is equally bad, so raising p_1 shortens the longest best one."""

    def shrinks(drawn: tuple[list[F], F]) -> bool:
        p, b = drawn
        raised = t.optimal_lengths([F(1), *p[1:]], affine(b), 0)
        return raised[-1] < t.optimal_lengths(p, affine(b), 0)[-1]

    p, _ = found(st.tuples(pvec(1, 4), BASE), shrinks)
    assert p == [0, 0]


# --- the long run ----------------------------------------------------------------------------------------------------


@given(contexts(), PRICE)
def test_p32_dinkelbach_is_the_best_of_all_policies(rounds: list[tuple[F, list[F]]], c: F) -> None:
    cost = t.Affine(c, F(1))
    result = t.dinkelbach(rounds, cost)
    assert result.lam == max(t.throughput(rounds, cost, d) for d in product(range(4), repeat=len(rounds)))
    assert result.d == [sum(x > result.lam * c for x in t.survival(p)[1:]) for _, p in rounds]
    assert result.iterates == sorted(result.iterates)
    assert t.surplus(rounds, cost, result.lam) == 0
    again = t.dinkelbach(rounds, cost, start=result.lam + 1)
    assert again.lam == result.lam
    assert again.iterates == sorted(again.iterates)


@given(contexts(), table(3))
def test_p32_on_tables(rounds: list[tuple[F, list[F]]], times: list[F]) -> None:
    best = max(t.throughput(rounds, times, d) for d in product(range(4), repeat=len(rounds)))
    assert t.dinkelbach(rounds, times).lam == best


@given(contexts(), PRICE)
def test_p33_ratio_rule_is_short_in_easy_rounds_and_long_in_hard_ones(rounds: list[tuple[F, list[F]]], c: F) -> None:
    cost = t.Affine(c, F(1))
    result, ratio = t.dinkelbach(rounds, cost), t.ratio_lengths(rounds, cost)
    for (_, p), best, own in zip(rounds, result.d, ratio, strict=True):
        top = max(x for x in t.eta(p, cost, 1) if x is not None)
        assert own <= best if top >= result.lam else own >= best
    one = rounds[:1]
    assert t.throughput(one, cost, t.ratio_lengths(one, cost)) == t.dinkelbach(one, cost).lam


def test_p34_ratio_rule_can_lose_to_a_fixed_length() -> None:
    def loses(drawn: tuple[Any, t.Affine]) -> bool:
        rounds, cost = drawn
        return t.throughput(rounds, cost, t.ratio_lengths(rounds, cost)) < t.best_fixed(rounds, cost)[1]

    assert any(loses(drawn) for drawn in context_pairs())  # two positions suffice
    e2 = [(F(1, 2), [F(1), F(1, 3), F(3, 4)]), (F(1, 2), [F(1, 4), F(1), F(2, 3)])]
    assert loses((e2, t.Affine(F(1, 5), F(1))))


@given(contexts(), PRICE)
def test_p35_more_knowledge_is_never_worse(rounds: list[tuple[F, list[F]]], c: F) -> None:
    cost = t.Affine(c, F(1))
    fixed, known = t.best_fixed(rounds, cost)[1], t.dinkelbach(rounds, cost).lam
    told = t.dinkelbach(t.outcomes(rounds), cost)
    assert fixed <= known <= told.lam
    assert t.throughput(rounds, cost, t.ratio_lengths(rounds, cost)) <= known
    if c < 1:  # a token that is known to pass pays whenever it costs less than a round: verify exactly those
        assert told.d == [sum(x == 1 for x in p) for _, p in t.outcomes(rounds)]


def test_realised_tokens_are_not_ordered_that_way() -> None:
    """One round with p = 1/2 and A = 1, T = (3, 5): choosing by expectation gives 1/3, the fixed length 1 gives 2/5."""
    assert t.optimal_lengths(["1/2"], [3, 5], 1) == [0]
    assert F(1, 3) < F(2, 5)


@given(st.lists(st.booleans(), min_size=1, max_size=14), BASE, st.integers(1, 6))
def test_p36_verifying_exactly_what_passes_is_fastest(hard: list[bool], b: F, dmax: int) -> None:
    best, greedy = t.shortest_time(hard, t.Affine(F(1), b + 1), dmax)
    assert best == greedy


def test_p36_fails_on_stairs() -> None:
    best, greedy = t.shortest_time([False, False], [1, 3], 1)
    assert (best, greedy) == (2, 3)


@given(contexts(2), PRICE, st.integers(1, 8))
def test_quota_takes_its_length_over_lambda(rounds: list[tuple[F, list[F]]], c: F, quota: int) -> None:
    cost = t.Affine(c, F(1))
    lam = t.dinkelbach(rounds, cost).lam
    least, ours = t.quota_times(rounds, cost, quota)
    assert quota / lam <= least <= ours <= (quota + 3) / lam


@given(st.integers(0, 8), BASE)
def test_clairvoyant_length_is_what_passes(accepted: int, more: F) -> None:
    assert t.clairvoyant_length(accepted, t.Affine(F(1), 1 + more), 6) == min(accepted, 6)
    assert t.clairvoyant_length(accepted, t.Affine(1 + more, F(1)), 6) == 0
