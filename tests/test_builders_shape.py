"""Concavity of measured arms: violations, their size, and the warning."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from real.builders.shape import concave_in_cost, concavity_warning
from specsim.errors import ConfigError
from specsim.theory import is_concave_in_cost

ARMS = st.lists(st.tuples(st.integers(1, 40), st.integers(1, 40)), min_size=1, max_size=8, unique_by=lambda a: a[1])


@given(ARMS)
def test_violations_are_where_the_exact_check_finds_them(arms):
    mu, cost = [a[0] / 8 for a in arms], [a[1] / 4 for a in arms]
    found = concave_in_cost(mu, cost)
    ordered = sorted(arms, key=lambda a: a[1])
    exact = is_concave_in_cost([Fraction(a[0], 8) for a in ordered], [Fraction(a[1], 4) for a in ordered])
    assert (found == []) == exact
    for sag in found:
        left, middle, right = (cost[k] for k in sag[:3])
        assert left < middle < right
        line = np.interp(middle, [left, right], [mu[sag.left], mu[sag.right]])
        assert sag.amount == sag.sure == pytest.approx(line - mu[sag.middle])
    assert [cost[sag.middle] for sag in found] == sorted(cost[sag.middle] for sag in found)


def test_noise_is_not_reported():
    mu, cost = [1.0, 1.9, 3.0], [1.0, 2.0, 3.0]
    (sag,) = concave_in_cost(mu, cost)
    assert sag[:3] == (0, 1, 2)
    assert sag.amount == pytest.approx(0.1)
    (sag,) = concave_in_cost(mu, cost, error=[0.0, 0.03, 0.0])
    assert sag.sure == pytest.approx(0.04)
    assert concave_in_cost(mu, cost, error=[0.0, 0.06, 0.0]) == []


def test_an_error_of_a_cost_counts_by_the_chords_slope():
    """A chord of two tokens a second: an error of 0.02 s is one of 0.04 tokens, and twice that leaves 0.02 of 0.1."""
    mu, cost = [1.0, 2.9, 5.0], [1.0, 2.0, 3.0]
    (sag,) = concave_in_cost(mu, cost, cost_error=[0.0, 0.02, 0.0])
    assert sag.sure == pytest.approx(0.02)
    assert concave_in_cost(mu, cost, cost_error=[0.0, 0.03, 0.0]) == []


def test_concave_in_the_index_is_not_enough():
    """Theory's P38: equal steps in tokens over unequal steps in cost."""
    assert concave_in_cost([1, 2, 3], [1, 3, 3.5]) != []


def test_the_warning_names_arms_and_sizes():
    text = concavity_warning(["all", "9", "9-12"], [3.0, 1.9, 1.0], [3.0, 2.0, 1.0])
    assert text is not None
    assert "'9' lies 0.1 tokens below the chord from '9-12' to 'all'" in text
    assert concavity_warning(["a", "b"], [1.0, 2.0], [1.0, 2.0]) is None


@pytest.mark.parametrize(
    ("mu", "cost", "message"),
    [
        ([1, 2], [1], "2 means, 1 costs"),
        ([1, 2, 3], [1, 0, 2], "positive costs"),
        ([1, float("nan")], [1, 2], "finite means"),
        ([1, 2, 3], [1, 2, 2], "two cost the same"),
    ],
)
def test_arms_that_cannot_be_judged_are_refused(mu, cost, message):
    with pytest.raises(ConfigError, match=message):
        concave_in_cost(mu, cost)
