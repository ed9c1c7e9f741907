"""`lambda` on trees: its regression against the closed form, and what it is worth where path probabilities mislead."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from specsim.controllers import Setting, build
from specsim.controllers.lambda_tree import (
    FACTOR_REACH,
    FACTOR_VARIANCE,
    FACTORS,
    NOISE_VARIANCE,
    SIZES,
    SPREAD,
    STEP,
    SUMS,
    learn,
    size_of,
)
from specsim.engine import replay
from specsim.latency import LatencyModel
from specsim.online import OnlineController
from specsim.synth import synthesize

MODEL = LatencyModel.affine(c_s=0.006, b_s=0.06, draft_pass_s=0.01, overhead_s=0.0005)


def test_learning_step_by_step_is_the_posterior_of_all_observations() -> None:
    rng = np.random.default_rng(0)
    setting = Setting(block_len=8, max_draft_len=8, latency=MODEL, tree=True)
    state = build("lambda", setting).fresh_state()
    apart = np.abs(np.subtract.outer(np.arange(SIZES), np.arange(SIZES)))
    prior = FACTOR_VARIANCE * np.exp(-apart / FACTOR_REACH)
    sums, accepted = rng.random((30, SIZES)), rng.integers(0, 6, 30)
    for row, count in zip(sums, accepted, strict=True):
        state[0, SUMS:] = row
        learn.py_func(state, 0, int(count))
    covariance = np.linalg.inv(np.linalg.inv(prior) + sums.T @ sums / NOISE_VARIANCE)
    mean = 1 + covariance @ sums.T @ (accepted - sums.sum(axis=1)) / NOISE_VARIANCE
    np.testing.assert_allclose(state[0, FACTORS : FACTORS + SIZES], mean, rtol=1e-6)
    np.testing.assert_allclose(state[0, SPREAD : SPREAD + SIZES**2].reshape(SIZES, SIZES), covariance, atol=1e-9)


def test_sizes_of_path_probabilities() -> None:
    assert [size_of.py_func(path, 0) for path in (1.0, 0.72, 0.7, 0.51, 0.49, 1e-9, 0.0)] == [0, 0, 1, 1, 2, 11, 11]
    assert size_of.py_func(STEP**3 * 1.001, 1) == 2


@pytest.mark.parametrize(
    ("kind", "distort", "most"),
    # Most seconds, as a share of those that trusting takes. Where the text has regimes, learning them costs a little.
    [("iid", "over", 0.96), ("beta", "over", 1.0), ("two-regime", "drift", 1.02)],
)
def test_correcting_misleading_paths(kind: str, distort: str, most: float) -> None:
    """Against trusting them, and within 10 % of the best fixed budget in hindsight, which is worth finding."""
    meta, chunk = synthesize(
        kind, requests=12, positions=250, max_draft_len=12, block_len=12, alpha=0.75, distort=distort, top_k=24, seed=1
    )
    meta = dataclasses.replace(meta, max_nodes=96)
    result = replay(meta, [chunk], MODEL, ["lambda", "lambda:calibrate=none"])
    learning, trusting = (row["time_s"] for row in result.results)
    assert learning < most * trusting
    assert result.static_s.min() > 0.9 * learning
    assert result.static_s.min() < 0.8 * result.static_s[0]


def test_a_drafter_too_dear_is_given_up_and_tried_again() -> None:
    """A draft that costs more than it ever gains: plain rounds, and trials after 8, 16, 32 of them."""
    model = LatencyModel.affine(c_s=0.0, b_s=1.0, draft_pass_s=50.0)
    online = OnlineController(build("lambda", Setting(block_len=4, max_draft_len=4, latency=model, tree=True)))
    online.start_request(0)
    drafting = []
    for pos in range(70):
        _, want = online.begin(pos, 0)
        if want:
            drafting.append(pos)
            submit, _ = online.revise(np.full(4, 0.5, np.float32), False)
            assert submit > 0  # once paid, verifying is free here
        online.update(0, 51.0 if want else 1.0)
    waits = np.diff(drafting)
    assert len(drafting) >= 2
    assert len(drafting) <= 6
    assert (np.diff(waits) >= 0).all()
    assert waits[-1] >= 16
