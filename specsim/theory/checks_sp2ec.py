"""Checkers of SP2ec's statements and of R7: arms ordered by cost, their throughput, and what the radius covers."""

from __future__ import annotations

from fractions import Fraction
from itertools import combinations, pairwise, product

from specsim.theory.arms import (
    cost_slopes,
    hoeffding_exponent,
    initial_cost,
    is_concave,
    is_concave_in_cost,
    is_valley,
    mixture_exponent,
    throughputs,
    tokens_of,
)
from specsim.theory.exact import argmax_set, frac, is_single_peaked
from specsim.theory.grids import F, ascending
from specsim.theory.record import Data, Finding, Tally

PUBLISHED_BETAS = (F(3, 10), F(1, 10))  # runner and class default of the published code
MEANS = tuple(F(k) for k in range(1, 6))
COSTS = (F(1), F(2), F(3), F(7, 2), F(5))


def check_lemma(counterexample: Data | None) -> Finding:
    """Means concave in the index over ascending costs: strictly one peak? Repaired: concave in cost."""
    tally, unequal, level = Tally(), 0, 0
    for length in (3, 4):
        for mu in product(MEANS, repeat=length):
            if any(b < a for a, b in pairwise(mu)) or not is_concave(mu):
                continue
            for cost in ascending(COSTS, length):
                tally.instances += 1
                nu = throughputs(mu, cost)
                strict = is_single_peaked(nu) and len(argmax_set(nu)) == 1
                tally.printed(strict, {"mu": mu, "cost": cost, "nu": nu})
                unequal += not is_single_peaked(nu)
                level += is_single_peaked(nu) and not strict
                if is_concave_in_cost(mu, cost):
                    tally.repaired(is_single_peaked(nu))
    assert counterexample
    mu = [frac(x) for x in counterexample["mu"]]
    confirmed = is_concave(mu) and is_valley(throughputs(mu, counterexample["cost"]))
    flat = throughputs([2, 4, 5], [1, 2, 3])  # equal spacing, strictly concave, and still two best arms
    return tally.finding(confirmed=confirmed and argmax_set(flat) == [0, 1], second_rise=unequal, level_top_only=level)


def check_premise(counterexample: Data | None) -> Finding:
    """Acceptance with diminishing returns in equally spaced cost: one peak? Repaired: test mu against cost instead."""
    tally, not_concave = Tally(), 0
    for acceptance in ascending([F(k, 8) for k in range(9)], 3):
        if not is_concave(acceptance):
            continue
        for draft_len, start in product((1, 2, 4), (1, 2)):
            tally.instances += 1
            cost = [F(start + k) for k in range(3)]
            mu = tokens_of(acceptance, draft_len)
            nu = throughputs(mu, cost)
            tally.printed(
                is_single_peaked(nu),
                {"acceptance": acceptance, "L": draft_len, "cost": cost, "mu": mu, "nu": nu},
            )
            not_concave += not is_concave(mu)
            if is_concave_in_cost(mu, cost):
                tally.repaired(is_single_peaked(nu))
    assert counterexample
    acceptance = [frac(x) for x in counterexample["acceptance"]]
    nu = throughputs(tokens_of(acceptance, counterexample["L"]), counterexample["cost"])
    strict = [F(1, 5), F(9, 20), F(13, 20)]  # strictly concave acceptance, the published L = 4
    confirmed = is_concave(acceptance) and is_valley(nu) and is_valley(throughputs(tokens_of(strict, 4), [2, 3, 4]))
    return tally.finding(confirmed=confirmed, mu_not_concave=not_concave)


def check_regret(counterexample: Data | None) -> Finding:
    """The published radius coefficients against what a Hoeffding argument needs; and what a reset costs at least."""
    tally = Tally()
    for beta in PUBLISHED_BETAS:
        tally.instances += 1
        exponent = hoeffding_exponent(beta)
        tally.printed(exponent >= 1, {"beta": beta, "exponent": exponent})
    for beta in (F(4, 5), F(1), F(2)):
        tally.repaired(mixture_exponent(beta) >= 1 and hoeffding_exponent(beta) >= 1)
    assert counterexample
    confirmed = hoeffding_exponent(counterexample["beta"]) == frac(counterexample["exponent"]) < 1
    mu, cost = [2, 3, F(7, 2)], [2, F(5, 2), 3]
    lost = initial_cost(mu, cost)  # per window of a reset, whatever the rule does afterwards
    return tally.finding(
        confirmed=confirmed and lost > 0,
        least_beta_squared_for_one_n=F(1, 2),
        least_beta_squared_for_all_n=F(3, 5),
        lost_per_reset_of_an_example=lost,
    )


def check_r7(counterexample: Data | None) -> Finding:
    """R7: peak shape, uniqueness, at most two best arms, and all of it for every choice of arms."""
    del counterexample
    tally = Tally()
    slopes = (F(3), F(3, 2), F(1), F(1, 2), F(0), F(-1))
    for length in (2, 3, 4):
        for falls in product(slopes, repeat=length - 1):
            if any(b > a for a, b in pairwise(falls)):
                continue
            for start, cost in product((F(1), F(2)), ascending(COSTS, length)):
                tally.instances += 1
                mu = [start]
                for slope, width in zip(falls, [b - a for a, b in pairwise(cost)], strict=True):
                    mu.append(mu[-1] + slope * width)
                tally.printed(_r7_holds(mu, cost), {"mu": mu, "cost": cost})
    return tally.finding()


def _r7_holds(mu: list[Fraction], cost: tuple[Fraction, ...]) -> bool:
    nu, slopes = throughputs(mu, cost), cost_slopes(mu, cost)
    best = argmax_set(nu)
    unique = all(s != x for s, x in zip(slopes, nu, strict=False))
    strictly = all(b < a for a, b in pairwise(slopes))
    chosen = (list(keep) for size in range(2, len(nu)) for keep in combinations(range(len(nu)), size))
    return (
        is_single_peaked(nu)
        and (len(best) == 1) == unique
        and not (strictly and len(best) > 2)
        and all(is_single_peaked([nu[k] for k in keep]) for keep in chosen)
    )
