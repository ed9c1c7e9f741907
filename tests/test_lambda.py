"""The lambda rule and its calibrators: exact small cases, and the comparison with full information on known p."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from specsim.controllers import REGISTRY, Setting
from specsim.controllers import calibration as cal
from specsim.engine import replay
from specsim.latency import LatencyModel
from specsim.study import BEST_STATIC, BLOCKS, DISTORTIONS, RULES, best_rate, costs_of, grid, losses, make_world, means

FORMS = tuple(cal.FORMS.values())


def fresh() -> np.ndarray:
    return np.zeros((1, cal.COLUMNS))


def feed(form: int, state: np.ndarray, q: np.ndarray, outcome: np.ndarray, position: np.ndarray) -> None:
    for x, y, j in zip(q.tolist(), outcome.tolist(), position.tolist(), strict=True):
        cal.observe(form, state, 0, 0, x, j, y, -1.0)


@given(q=st.floats(0.01, 0.98), position=st.integers(0, 70))
def test_without_observations_a_confidence_stands(q: float, position: int) -> None:
    for form in FORMS:
        assert cal.calibrated(form, fresh(), 0, 0, q, position) == pytest.approx(q, abs=1e-9)


@given(q=st.floats(0, 1), position=st.integers(0, 10_000))
def test_buckets_stay_inside(q: float, position: int) -> None:
    assert 0 <= cal.bucket_of(q) < cal.BUCKETS
    assert 0 <= cal.spot_of(position) < cal.SPOTS


def test_spots_are_powers_of_two() -> None:
    firsts = [0, *(j for j in range(1, 200) if cal.spot_of(j) != cal.spot_of(j - 1))]
    assert firsts == [0, 1, 2, 4, 8, 16, 32, 64]


@pytest.mark.parametrize("form", [cal.BETA, cal.PLATT, cal.ISOTONIC])
@pytest.mark.parametrize("shift", [-1.0, 0.0, 1.0])
def test_a_distorted_confidence_is_set_right(form: int, shift: float) -> None:
    rng = np.random.default_rng(1)
    p = rng.beta(4, 1, 20_000)
    q = 1 / (1 + np.exp(-(np.log(p / (1 - p)) + shift)))
    state = fresh()
    feed(form, state, q, rng.random(p.size) < p, rng.integers(0, 8, p.size))
    fixed = np.array([cal.calibrated(form, state, 0, 0, float(x), 3) for x in q[:2000]])
    raw_error, error = np.abs(q[:2000] - p[:2000]).mean(), np.abs(fixed - p[:2000]).mean()
    assert error < 0.035
    if shift:
        assert error < raw_error / 2


@given(seed=st.integers(0, 1000))
def test_isotonic_is_monotone_and_equals_pooled_adjacent_violators(seed: int) -> None:
    """Against scipy's isotonic regression on bucket means, each time with the prior of the bucket asked for."""
    from scipy.optimize import isotonic_regression

    rng = np.random.default_rng(seed)
    state = fresh()
    feed(cal.ISOTONIC, state, rng.random(300), rng.random(300) < 0.5, np.zeros(300, int))
    middles = (np.arange(cal.BUCKETS) + 0.5) / cal.BUCKETS * 12 - 5
    for b, place in enumerate(middles):
        q = 1 / (1 + np.exp(-place))
        seen = state[0, cal.SEEN_B : cal.SEEN_B + cal.BUCKETS].copy()
        hits = state[0, cal.ACCEPTED_B : cal.ACCEPTED_B + cal.BUCKETS].copy()
        seen[b] += cal.BUCKET_PRIOR
        hits[b] += cal.BUCKET_PRIOR * q
        some = seen > 0
        fitted = isotonic_regression(hits[some] / seen[some], weights=seen[some]).x
        want = fitted[np.flatnonzero(some).tolist().index(b)]
        assert cal.calibrated(cal.ISOTONIC, state, 0, 0, float(q), 0) == pytest.approx(float(want), abs=1e-9)


@given(seed=st.integers(0, 10_000), slope=st.sampled_from([0.01, 0.1]), block_cost=st.sampled_from([0.0, 0.3]))
def test_full_information_rate_is_the_best_of_all_policies(seed: int, slope: float, block_cost: float) -> None:
    """Dinkelbach against brute force over every assignment of lengths to three rows."""
    rng = np.random.default_rng(seed)
    p = rng.random((3, 4))
    expected = np.concatenate([np.ones((3, 1)), 1 + np.cumsum(np.cumprod(p, axis=1), axis=1)], axis=1)
    costs = costs_of(LatencyModel.affine(c_s=slope, b_s=1 - slope, draft_pass_s=block_cost), 2, 4)
    brute = max(
        sum(expected[r, d] for r, d in enumerate(choice)) / sum(costs[d] for d in choice)
        for choice in itertools.product(range(5), repeat=3)
    )
    assert best_rate(expected, costs) == pytest.approx(brute, rel=1e-12)


def test_no_rule_beats_full_information() -> None:
    for block_len, max_draft_len in BLOCKS:
        world = make_world("markov", block_len, max_draft_len, "calibrated", 1000, 3)
        for value in losses(world, LatencyModel.affine(c_s=0.03, b_s=0.97, draft_pass_s=0.1)).values():
            assert value >= -1e-9


def test_it_stops_drafting_where_drafting_cannot_pay_and_comes_back_when_it_can() -> None:
    world = make_world("iid", 16, 24, "calibrated", 3000, 0)
    dear = LatencyModel.affine(c_s=0.1, b_s=0.9, draft_pass_s=20.0)
    outcome = replay(world.meta, [world.chunk], dear, ["lambda"], keep_rounds=True)
    tail = outcome.rounds[0]["drafted_len"][1000:]
    assert 0 < (tail > 0).mean() < 0.02  # trials go on, rarely
    state = REGISTRY["lambda"].resolve({}, Setting(block_len=16, max_draft_len=24, latency=dear))
    assert not state.per_request


def test_carry_keeps_what_was_learnt() -> None:
    world = make_world("beta", 16, 24, "over", 2000, 0)
    latency = LatencyModel.affine(c_s=0.03, b_s=0.97, draft_pass_s=0.1)
    carried, cleared = replay(world.meta, [world.chunk], latency, ["lambda", "lambda:carry=0"]).results
    assert carried["params"]["carry"] is True
    assert carried["time_s"] != cleared["time_s"]


def check_promise(cells: list[dict]) -> None:
    """What the documentation promises of the lambda rule with Beta calibration, in means over the grid."""
    by_distortion = means(cells, "distortion")
    ours = {name: values["lambda, beta"] for name, values in by_distortion.items()}
    assert np.mean(list(ours.values())) <= 0.025
    assert ours["calibrated"] <= 0.01
    for name, values in by_distortion.items():
        for rival in ("libraspec 2.0", "libraspec 2.2", "g4", BEST_STATIC):
            assert ours[name] < values[rival], (name, rival)
    assert set(by_distortion) == set(DISTORTIONS)
    assert set(RULES) <= set(cells[0]["loss"])


@pytest.mark.slow
def test_promise_on_the_whole_grid() -> None:
    check_promise(list(grid(12_000, 0)))


def test_promise_on_a_part_of_the_grid(monkeypatch: pytest.MonkeyPatch) -> None:
    from specsim import study

    monkeypatch.setattr(study, "FAMILIES", {k: study.FAMILIES[k] for k in ("geometric", "beta")})
    monkeypatch.setattr(study, "SLOPES", (0.01, 0.1))
    monkeypatch.setattr(study, "BLOCK_COSTS", (0.1,))
    check_promise(list(study.grid(4000, 1)))
