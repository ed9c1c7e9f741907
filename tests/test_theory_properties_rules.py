"""P01 to P15, P27 to P31 and P44: expected tokens, LibraSpec's bounds, Algorithm 1 and the shipped controller."""

from __future__ import annotations

from fractions import Fraction as F
from itertools import pairwise, product
from typing import Any

import numpy as np
from hypothesis import assume, given
from hypothesis import strategies as st

from specsim import theory as t
from specsim.online import OnlineController
from tests import theory_props as props
from tests.theory_props import BASE, SIGMA, STARTED, affine, found, hold, pvec, speeds
from tests.vectors_tools import controller, draft


def test_p01_expected_tokens_are_those_of_all_outcomes() -> None:
    hold(props.P01)


def test_p02_gains_never_grow() -> None:
    hold(props.P02)


def test_p03_suffix_gain_is_the_double_sum() -> None:
    hold(props.P03)


def test_p04_unconditional_marginal_rule_is_an_equivalence() -> None:
    hold(props.P04)


def test_p05_conditional_marginal_rule_fails() -> None:
    def conditional_says_better_but_it_is_not(drawn: tuple[list[F], F]) -> bool:
        p, b = drawn
        speed = speeds(t, p, affine(b), 0)
        return any(
            t.suffix_gain(p, d + 1, e) / (e - d) > speed[d] and speed[e] < speed[d]
            for d, e in product(speed, repeat=2)
            if e > d
        )

    p, b = found(st.tuples(pvec(1, 4), BASE), conditional_says_better_but_it_is_not)
    assert len(p) <= 3
    assert conditional_says_better_but_it_is_not(([F(1, 4)] * 2, F(1)))  # two positions suffice
    assert conditional_says_better_but_it_is_not(([F(3, 4)] * 3, F(1)))
    assert speeds(t, [F(3, 4)] * 3, affine(F(1)), 0)[3] == F(111, 256)
    assert b > 0


def test_p06_printed_sets_have_no_gap() -> None:
    hold(props.P06)


def test_p07_corrected_bound_is_the_set_of_better_lengths() -> None:
    hold(props.P07)


def test_p08_printed_bounds_lie_above_the_corrected() -> None:
    hold(props.P08)


def test_p09_beneficial_extensions_obey_the_printed_bounds() -> None:
    hold(props.P09)


def test_p10_beneficial_truncations_do_not() -> None:
    def broken(drawn: tuple[list[F], F]) -> bool:
        p, b = drawn
        speed, bounds = speeds(t, p, affine(b), 0), t.printed_bounds(p, affine(b), 0)
        return any(speed[e] > speed[d] and e > min(bounds[:d]) for d in speed for e in range(1, d))

    p, _ = found(st.tuples(STARTED, BASE), broken)
    assert len(p) == 3  # two positions are not enough: eps_i >= 1 for all i
    assert broken(([F(1), F(0), F(0)], F(1)))


def test_p11_rollbacks_to_the_printed_bound_are_beneficial() -> None:
    hold(props.P11)


def test_p12_extensions_to_the_printed_bound_are_not() -> None:
    def worse(drawn: tuple[list[F], F, int]) -> bool:
        p, b, sigma = drawn
        speed, step = speeds(t, p, affine(b), sigma), t.printed_step(p, affine(b), sigma)
        return any(step(d) > d and speed[step(d)] < speed[d] for d in range(1, len(p) + 1))

    p, _, _ = found(st.tuples(STARTED, BASE, SIGMA), worse)
    assert len(p) == 2
    assert worse(([F(1), F(0)], F(1), 0))


def test_p13_printed_adjustments_can_cycle() -> None:
    def cycles(drawn: tuple[list[F], F, int]) -> bool:
        p, b, sigma = drawn
        step = t.printed_step(p, affine(b), sigma)
        return any(len(t.iterate(step, d).cycle) == 2 for d in range(1, len(p) + 1))

    found(st.tuples(STARTED, BASE, SIGMA), cycles)
    assert t.iterate(t.printed_step([1, 0, 0], t.Affine(1, 1), 0), 1).lengths == (1, 2)


@given(pvec(1, 7, props.POS), BASE, SIGMA)
def test_p13_without_impossible_tokens_two_steps_reach_a_fixed_point(p: list[F], b: F, sigma: int) -> None:
    step = t.printed_step(p, affine(b), sigma)
    steps = [t.iterate(step, d).steps for d in range(1, len(p) + 1)]
    assert all(x is not None and x <= 2 for x in steps)


def test_p14_printed_rules_never_stop_at_the_best_length() -> None:
    hold(props.P14)


def test_p15_repaired_rule_needs_two_steps() -> None:
    hold(props.P15)


def raised(drawn: tuple[list[F], int, F]) -> tuple[list[F], list[F]]:
    q, at, to = drawn
    q = [*q, *[F(0)] * 6]
    at %= len(q) - 6
    return q, [max(x, to) if j == at else x for j, x in enumerate(q)]


def test_p27_algorithm_1_is_not_monotone_in_confidence() -> None:
    def shorter(drawn: tuple[list[F], int, F]) -> bool:
        q, more = raised(drawn)
        return t.algorithm1(more, 2, 1, 4).d < t.algorithm1(q, 2, 1, 4).d

    sixths = st.builds(F, st.integers(0, 6), st.just(6))
    found(st.tuples(pvec(4, 4, sixths), st.just(0), sixths), shorter)
    low = [F(5, 6), F(1), F(1, 3), F(1, 3)]
    assert (t.algorithm1(low, 2, 1, 4).d, t.algorithm1([F(1), *low[1:]], 2, 1, 4).d) == (4, 3)


def test_p28_algorithm_1_is_not_monotone_in_alpha() -> None:
    def shorter(drawn: tuple[list[F], F, F]) -> bool:
        q, alpha, more = drawn
        q = [*q, *[F(0)] * 6]
        return t.algorithm1(q, alpha + more, 1, 4).d < t.algorithm1(q, alpha, 1, 4).d

    quarter = st.builds(F, st.integers(4, 16), st.just(4))
    twelfths = st.builds(F, st.integers(0, 12), st.just(12))
    found(st.tuples(pvec(4, 4, twelfths), quarter, st.just(F(1, 4))), shorter)
    q = [F(2, 3), F(3, 4), F(1, 4), F(1, 4)]
    assert (t.algorithm1(q, "11/4", 1, 4).d, t.algorithm1(q, 3, 1, 4).d) == (4, 3)


def test_p29_below_alpha_2_it_is_monotone_in_both() -> None:
    hold(props.P29)


def test_p30_structure_of_algorithm_1() -> None:
    hold(props.P30)


def near_tie(q: list[F], alpha: F, run: t.Run) -> bool:
    """Whether some alpha R_i(d) that was floored lies within 1e-9 of an integer."""
    for d, _ in run.trace:
        total = F(0)
        for i in range(d, 0, -1):
            total = q[i - 1] * (1 + total)
            x = alpha * total
            if abs(x - round(x)) < F(1, 10**9):
                return True
    return False


def shipped(q: list[float], alpha: float, n: int, dmax: int) -> tuple[int, int]:
    """(submitted, blocks) of the compiled controller."""
    rule = controller("libraspec", max_draft_len=max(dmax, 1), alpha=alpha, block=n, max=dmax)
    d, sizes = draft(OnlineController(rule), np.array(q))
    return d, -(-sum(sizes) // n)


@given(
    st.lists(st.floats(0, 1, allow_subnormal=False), min_size=20, max_size=20), st.floats(1, 4), st.integers(1, 5),
    st.integers(1, 15),
)  # fmt: skip
def test_p31_float64_is_exact_away_from_ties(q: list[float], alpha: float, n: int, dmax: int) -> None:
    exact_q, exact_alpha = [F(x) for x in q], F(alpha)
    run = t.algorithm1(exact_q, exact_alpha, n, dmax)
    assume(not near_tie(exact_q, exact_alpha, run))
    assert shipped(q, alpha, n, dmax) == (run.d, run.blocks)


@given(
    st.lists(st.integers(0, 16), min_size=20, max_size=20), st.integers(5, 24), st.integers(1, 5), st.integers(1, 14)
)
def test_shipped_libraspec_is_exact_on_dyadic_confidences(q: list[int], alpha: int, n: int, dmax: int) -> None:
    """Ties included: products of at most 14 multiples of 1/16 and sums of them fit into 53 bits only near the end of a
    row, so confidences are thinned to multiples of 1/2 and 1 beyond the first six."""
    values = [F(x, 16) if j < 6 else F(round(x / 8), 2) for j, x in enumerate(q)]
    run = t.algorithm1(values, F(alpha, 8), n, dmax)
    assert shipped([float(x) for x in values], alpha / 8, n, dmax) == (run.d, run.blocks)


def test_p44_forced_plateaus() -> None:
    hold(props.P44)


def test_alpha_may_differ_by_position() -> None:
    q: list[Any] = ["1/2", 0, 0, 0, 0]
    alpha = t.exact_alpha(q, t.Affine(1, 1), 0)
    assert t.algorithm1(q, [a for a in alpha if a is not None], 1, 5).trace == [(1, 3), (3, 2)]
    lengths = [d for d, _ in t.algorithm1([1] * 9, 2, 1, 9).trace]
    assert all(b > a for a, b in pairwise(lengths))
