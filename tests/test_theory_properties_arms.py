"""P37 to P39 and P43: throughput over arms, regret identities, and the lower bound's information terms."""

from __future__ import annotations

import math
from fractions import Fraction as F
from itertools import combinations, pairwise

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from specsim import theory as t
from specsim.errors import ConfigError
from tests.theory_props import POS, PROB, found

SLOPES = st.lists(st.builds(F, st.integers(-4, 12), st.sampled_from((1, 2, 4))), min_size=1, max_size=7)


def arms(slopes: list[F], widths: list[F], start: F, first: F) -> tuple[list[F], list[F]]:
    """(mu, cost) with the given slopes of mu in cost."""
    mu, cost = [start], [first]
    for slope, width in zip(slopes, widths, strict=False):
        mu.append(mu[-1] + slope * width)
        cost.append(cost[-1] + width)
    return mu, cost


@given(SLOPES, st.lists(POS, min_size=7, max_size=7), POS, POS)
def test_p37_concave_in_cost_gives_one_peak(slopes: list[F], widths: list[F], start: F, first: F) -> None:
    slopes = sorted(slopes, reverse=True)
    mu, cost = arms(slopes, widths, start, first)
    nu = t.throughputs(mu, cost)
    assert t.cost_slopes(mu, cost) == slopes
    assert t.is_concave_in_cost(mu, cost)
    assert t.is_single_peaked(nu)
    best = t.argmax_set(nu)
    assert (len(best) == 1) == all(s != x for s, x in zip(slopes, nu, strict=False))
    if all(b < a for a, b in pairwise(slopes)):
        assert len(best) <= 2
    for keep in combinations(range(len(nu)), min(3, len(nu))):
        assert t.is_single_peaked([nu[k] for k in keep])
        assert t.is_concave_in_cost([mu[k] for k in keep], [cost[k] for k in keep])


def test_p38_concave_in_the_index_does_not() -> None:
    three = st.lists(POS, min_size=3, max_size=3)

    def valley(drawn: tuple[list[F], list[F]]) -> bool:
        rises, widths = drawn
        mu, cost = [1 + rises[0]], [widths[0]]
        for rise, width in zip(sorted(rises[1:], reverse=True), widths[1:], strict=True):
            mu.append(mu[-1] + rise)
            cost.append(cost[-1] + width)
        assert t.is_concave(mu)
        return t.is_valley(t.throughputs(mu, cost))

    found(st.tuples(three, three), valley)
    assert t.throughputs([1, 2, 3], [1, 3, "7/2"]) == [1, F(2, 3), F(6, 7)]
    assert t.argmax_set(t.throughputs([2, 4, 5], [1, 2, 3])) == [0, 1]


def test_p39_concave_acceptance_does_not() -> None:
    def valley(drawn: tuple[list[F], int, int]) -> bool:
        acceptance, draft_len, start = sorted(drawn[0]), drawn[1], drawn[2]
        rises = [b - a for a, b in pairwise(acceptance)]
        strictly = all(b < a for a, b in pairwise(rises))
        nu = t.throughputs(t.tokens_of(acceptance, draft_len), [start, start + 1, start + 2])
        return strictly and t.is_valley(nu)

    twentieths = st.builds(F, st.integers(0, 20), st.just(20))
    drawn = st.tuples(st.lists(twentieths, min_size=3, max_size=3), st.integers(1, 4), st.integers(1, 3))
    _, draft_len, _ = found(drawn, valley)
    assert draft_len >= 2  # with one draft token mu is linear in acceptance
    assert valley(([F(1, 5), F(9, 20), F(13, 20)], 4, 2))


@given(st.lists(st.tuples(POS, POS), min_size=1, max_size=5), st.lists(st.integers(0, 4), min_size=1, max_size=30))
def test_p43_regret_identities(pairs: list[tuple[F, F]], pulled: list[int]) -> None:
    """Deterministic arms: time lost is what the pulls cost, token regret is it in tokens, and neither is negative."""
    mu = [4 * x for x, _ in pairs]
    cost = [sum((y for _, y in pairs[: k + 1]), F(0)) for k in range(len(pairs))]
    nu = t.throughputs(mu, cost)
    pulled = [k % len(pairs) for k in pulled]
    tokens, time = sum((mu[k] for k in pulled), F(0)), sum((cost[k] for k in pulled), F(0))
    lost = t.pseudo_regret(mu, cost, [pulled.count(k) for k in range(len(pairs))])
    assert lost == time - tokens / max(nu) >= 0
    assert max(nu) * time - tokens == max(nu) * lost
    assert t.initial_cost(mu, cost) == t.pseudo_regret(mu, cost, [1] * len(mu))


@given(st.lists(st.integers(0, 5), min_size=2, max_size=5), PROB)
def test_kl_inf_is_below_every_law_that_reaches_the_mean(counts: list[int], up: F) -> None:
    assume(sum(counts) > 0)
    law = [F(n, sum(counts)) for n in counts]
    mean = sum((n * w for n, w in enumerate(law, 1)), F(0))
    target = mean + up * (len(law) - mean)
    value = t.kl_inf(law, target)
    assert value >= 0
    assert (value == 0) == (target <= mean) or value < 1e-12
    for share in (F(1, 100), F(1, 4), F(1, 2), F(3, 4), F(99, 100)):  # move mass to the top until the mean is reached
        other = [w * (1 - share) for w in law]
        other[-1] += share
        if sum((n * w for n, w in enumerate(other, 1)), F(0)) >= target:
            assert value <= sum(float(w) * math.log(w / o) for w, o in zip(law, other, strict=True) if w) + 1e-9


def test_kl_inf_of_two_values_is_bernoulli() -> None:
    p, x = 0.3, 0.45
    want = p * math.log(p / x) + (1 - p) * math.log((1 - p) / (1 - x))
    assert t.kl_inf(["7/10", "3/10"], "29/20") == pytest.approx(want, rel=1e-12)
    assert t.kl_inf([1, 0], 3) == math.inf
    assert t.kl_inf([0, 1], 2) == 0
    assert t.kl_inf([1, 0], 2) == math.inf
    assert t.kl_inf(["1/2", "1/2"], 2) == pytest.approx(math.log(2))


def test_lower_bound_counts_the_neighbours_only() -> None:
    laws = [["1/2", "1/2", 0], ["1/4", "1/4", "1/2"], [0, "1/2", "1/2"]]
    near = t.lower_bound(laws, [1, "6/5", 2])
    far = t.lower_bound([*laws, [0, "1/2", "1/2"]], [1, "6/5", 2, 3])
    assert near == far > 0
    with pytest.raises(ConfigError, match="equally good"):
        t.lower_bound([[1, 0], [0, 1]], [1, 2])
    # A neighbour that cannot reach the best throughput under any law needs no exploration.
    assert t.lower_bound([["1/2", "1/2"], ["1/2", "1/2"]], [1, 10]) == 0


def test_exponents_of_the_radius() -> None:
    assert t.hoeffding_exponent("3/10") == F(9, 50)
    assert t.hoeffding_exponent("1/10") == F(1, 50)
    assert t.mixture_exponent("4/5") == F(11, 10) > 1 > t.mixture_exponent("7/10")
    assert t.mixture_exponent(1) == t.hoeffding_exponent(1) == 2


@pytest.mark.parametrize("cost", [[2, 1], [0, 1], [1], [1, 1]])
def test_arms_must_be_ordered(cost: list[int]) -> None:
    with pytest.raises(ConfigError, match="positive and ascending"):
        t.throughputs([1, 2], cost)
