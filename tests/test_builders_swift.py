"""SWIFT's search: what it proposes, what it adopts, when it ends; and the Gaussian process that may guide it."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from real.builders.arm import Arm
from real.builders.gp import KAPPA, BoundSearch, Posterior
from real.builders.swift import Swift, SwiftSettings, initial_arm, largest, matchness
from specsim.errors import ConfigError


class Recorder:
    """An optimiser that suggests one point and remembers what it is told."""

    def __init__(self, dim: int) -> None:
        self.point = np.linspace(0, 1, dim)
        self.told: list[tuple[Sequence[float], float]] = []

    def register(self, point: Sequence[float], score: float) -> None:
        self.told.append((point, score))

    def suggest(self) -> np.ndarray:
        return self.point


def search(layers: int, rng: int = 0, optimiser=None, **settings) -> Swift:
    return Swift(layers, SwiftSettings(**settings), np.random.default_rng(rng), optimiser=optimiser)


@given(st.integers(3, 24), st.floats(0.5, 1), st.lists(st.sampled_from([0.0, 0.2, 0.5, 0.5, 0.9]), max_size=30))
def test_proposals_have_the_wanted_size_and_the_best_is_kept(layers, ratio, scores):
    one = search(layers, ratio=ratio, max_score=1.0)
    count, tried = int((layers - 2) * 2 * ratio), []
    for score in scores:
        arm = one.propose()
        assert arm.skipped() == count == one.count
        assert not {0, layers - 1} & (arm.attention | arm.mlp)
        before = one.best
        assert one.judge(score) == (score > before)
        tried.append((score, arm))
        best = max((s for s, _ in tried), default=0.0)
        assert one.best == best
        assert one.arm == (next(a for s, a in tried if s == best) if best > 0 else initial_arm(layers))


def test_it_ends_by_score_by_misses_or_by_number():
    one = search(8, max_score=0.9)
    one.step(lambda _: 0.9)
    assert one.searching  # not above
    one.step(lambda _: 0.95)
    assert not one.searching
    two = search(8, tolerance=2)
    found = [two.step(lambda _: 0.0) or two.searching for _ in range(3)]
    assert found == [True, True, False]
    three, scores = search(8, trials=3), iter([0.1, 0.2, 0.3, 0.4])
    for _ in range(3):
        three.step(lambda _: next(scores))
    assert three.searching
    three.step(lambda _: next(scores))
    assert not three.searching


def test_a_trial_is_due_when_there_is_text_and_it_is_time():
    one = search(8, window=10, every=3)
    assert not one.due(11, 3)
    assert one.due(12, 3)
    assert not one.due(12, 4)


def test_every_25th_trial_is_the_optimiser_s_and_it_learns_all_points():
    made: list[Recorder] = []

    def optimiser(dim: int) -> Recorder:
        made.append(Recorder(dim))
        return made[-1]

    one = search(8, optimiser=optimiser)
    arms = []
    for _ in range(50):
        arms.append(one.propose())
        one.judge(0.1)
    wanted = Arm(frozenset(), frozenset(range(2, 7)))  # the five largest of rising coordinates
    assert arms[24] == arms[49] == wanted
    points = [point for point, _ in made[0].told]
    assert len(points) == 50
    assert points[24] == made[0].point.tolist()  # the suggestion itself, not the set
    assert all(sum(point) == 5 and set(point) == {0.0, 1.0} for k, point in enumerate(points) if k not in (24, 49))


def test_state_carries_over_to_the_next_prompt_unless_told_otherwise():
    for per_prompt in (False, True):
        one = search(8, per_prompt=per_prompt, optimiser=Recorder)
        one.step(lambda _: 0.7)
        found = one.arm
        one.start_prompt()
        assert (one.arm, one.best, one.trials) == ((initial_arm(8), 0.0, 0) if per_prompt else (found, 0.7, 1))


@pytest.mark.parametrize(
    ("layers", "settings", "message"),
    [
        (2, {}, "has 2 layers"),
        (3, {"ratio": 0.1}, "leaves nothing out"),
        (8, {"ratio": 0.0}, "ratio 0"),
        (8, {"window": 0}, "window 0"),
        (8, {"trials": -1}, "trials -1"),
    ],
)
def test_bad_settings_are_refused(layers, settings, message):
    with pytest.raises(ConfigError, match=message):
        search(layers, **settings)


def test_matchness_and_ties():
    assert matchness([1, 2, 3, 4], [1, 0, 3, 0]) == 0.5
    assert largest([0.5, 0.9, 0.5, 0.5], 3) == [1, 0, 2]


# --- the Gaussian process ---------------------------------------------------------------------------------------------

POINTS = np.array([[0.1, 0.9], [0.4, 0.2], [0.8, 0.7], [0.3, 0.5]])
SCORES = np.array([0.2, 0.5, 0.9, 0.4])


def test_the_posterior_is_scikit_learn_s():
    """Numbers of GaussianProcessRegressor(Matern(nu=2.5), alpha=1e-2, normalize_y=True), scikit-learn 1.9.1."""
    mean, deviation = Posterior(POINTS, SCORES, length=0.8).at(np.array([[0.5, 0.5], [0.0, 1.0]]))
    assert mean == pytest.approx([0.6010929094304973, 0.16586040922493378], abs=1e-12)
    assert deviation == pytest.approx([0.04496762038581789, 0.051993095721209984], abs=1e-12)


def test_the_length_scale_is_the_likeliest():
    found = Posterior(POINTS, SCORES)
    assert found.length == pytest.approx(0.33389114841957385, rel=1e-4)
    assert found.log_likelihood(found.length) == pytest.approx(-5.598826005561852, abs=1e-8)


@given(st.integers(1, 5), st.integers(1, 12), st.integers(0, 999))
def test_the_bound_s_gradient_is_its_slope(dim, n, seed):
    rng = np.random.default_rng(seed)
    found = Posterior(rng.random((n, dim)), rng.random(n), length=0.7)
    x, step = rng.random(dim), 1e-6
    value, slope = found.bound(x, KAPPA)
    mean, deviation = found.at(x[None])
    assert value == pytest.approx(float(mean[0] + KAPPA * deviation[0]), abs=1e-9)
    for k, along in enumerate(np.eye(dim)):
        ahead, behind = found.bound(x + step * along, KAPPA)[0], found.bound(x - step * along, KAPPA)[0]
        assert slope[k] == pytest.approx((ahead - behind) / (2 * step), abs=1e-5)


def test_a_suggestion_has_a_higher_bound_than_any_point_of_a_grid():
    """bayesian-optimization 1.5.1 suggests a point of the same bound from these measurements."""
    one = BoundSearch(2, np.random.default_rng(0))
    for point, score in zip(POINTS, SCORES, strict=True):
        one.register(point, score)
    found, posterior = one.suggest(), Posterior(POINTS, SCORES)
    assert ((found >= 0) & (found <= 1)).all()
    side = np.linspace(0, 1, 41)
    mean, deviation = posterior.at(np.array([(a, b) for a in side for b in side]))
    assert posterior.bound(found, KAPPA)[0] >= (mean + KAPPA * deviation).max() - 1e-9
    theirs = np.array([1.0, 0.47028728415541066])
    assert posterior.bound(found, KAPPA)[0] == pytest.approx(posterior.bound(theirs, KAPPA)[0], abs=1e-8)


def test_suggestions_repeat_with_their_seed_and_start_at_random():
    first = [BoundSearch(6, np.random.default_rng(7)).suggest() for _ in range(2)]
    assert (first[0] == first[1]).all()
    assert first[0].shape == (6,)


def test_equal_scores_and_repeated_points_do_no_harm():
    one = BoundSearch(3, np.random.default_rng(0))
    for _ in range(4):
        one.register([0.0, 1.0, 0.0], 0.5)
    assert np.isfinite(one.suggest()).all()


def test_guided_by_the_process_a_search_finds_the_set_that_scores():
    """Matchness that only depends on two sub-layers: suggestions soon leave both out."""
    one = Swift(
        8,
        SwiftSettings(bayes_every=2, max_score=1.0),
        np.random.default_rng(3),
        optimiser=lambda dim: BoundSearch(dim, np.random.default_rng(4)),
    )
    for _ in range(20):
        one.step(lambda arm: 0.1 + 0.3 * (3 in arm.attention) + 0.3 * (5 in arm.mlp))
    assert 3 in one.arm.attention
    assert 5 in one.arm.mlp
