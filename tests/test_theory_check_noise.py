"""Checks report no violation that noise explains (nulls on the boundary), and find those that are planted."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from scipy.stats import binom

from specsim.latency import LatencyModel
from specsim.synth import synthesize
from specsim.theory.check_acceptance import calibration, hazard, survival
from specsim.theory.check_data import Facts
from specsim.theory.check_noise import Noise, band, peak
from specsim.theory.check_record import HOLDS, UNDECIDED, VIOLATED, Verdict
from specsim.theory.check_rules import convergence
from specsim.theory.check_shapes import arm_shapes, tau_concave, throughput_peak, tokens_concave
from tests.check_worlds import (
    ARM_LATENCY,
    arm_trace,
    facts_of,
    flat_latency,
    noise_of,
    rows_trace,
    table_latency,
    text_trace,
)

NULLS = 200
# With a true rate of 5 % fewer than one run of this test in a thousand would see more.
ALLOWED = int(binom.ppf(0.999, NULLS, 0.05))
LINE = LatencyModel.affine(c_s=0.1, b_s=1.0)


def length_verdicts(facts: Facts, seed: int = 0) -> dict[str, Verdict]:
    noise = noise_of(facts, seed)
    found = [hazard(facts, noise), *calibration(facts, noise), tau_concave(facts, noise), throughput_peak(facts, noise)]
    return {verdict.id: verdict for verdict in found}


@pytest.mark.parametrize(
    ("levels", "uneven"), [((0.8,), False), ((0.6, 0.8, 1.0), True)], ids=["one-level", "three-levels-uneven"]
)
def test_nulls_of_length_traces(levels: tuple[float, ...], uneven: bool) -> None:
    """Hazard constant, q calibrated, all static lengths equally fast, in overlapping rows."""
    found: Counter[tuple[str, str]] = Counter()
    for seed in range(NULLS):
        meta, chunk = text_trace(seed, levels=levels, longest=8, uneven=uneven)
        facts = facts_of(meta, chunk, flat_latency(float(np.mean(levels)), 8))
        found.update((name, verdict.verdict) for name, verdict in length_verdicts(facts, seed).items())
    for name in ("hazard", "calibration", "calibration-decay", "tau-concave", "throughput-peak"):
        assert found[name, VIOLATED] <= ALLOWED, (name, found)
        assert found[name, UNDECIDED] <= NULLS // 3, (name, found)


def test_nulls_of_arm_traces() -> None:
    """mu linear in cost and nu the same for every arm: the boundary of both statements."""
    mean = [1.0, 1.6, 2.4, 3.0, 3.9]
    found: Counter[tuple[str, str]] = Counter()
    for seed in range(NULLS):
        meta, chunk = arm_trace(seed, mean, [0.01 * (1 + m) for m in mean])
        facts = facts_of(meta, chunk, ARM_LATENCY)
        found.update((verdict.id, verdict.verdict) for verdict in arm_shapes(facts, noise_of(facts, seed)))
    for name in ("mu-concave", "nu-peak"):
        assert found[name, VIOLATED] <= ALLOWED, found
        assert found[name, HOLDS] >= NULLS // 2, found


@pytest.mark.parametrize(("skewed", "share"), [(False, 0.05), (True, 0.15)], ids=["normal", "exponential"])
def test_band_covers_all_numbers_together(skewed: bool, share: float) -> None:
    """Means of 8 numbers over 16 requests. Skewed ones are the hard case of every bootstrap: 13 % lie outside."""
    outside = 0
    for seed in range(NULLS):
        rng = np.random.default_rng(seed)
        values = rng.exponential(1.0, (16, 8)) if skewed else 1 + rng.standard_normal((16, 8))
        noise = Noise(requests=16, resamples=200, level=0.95, seed=seed)
        found = band(lambda w, v=values: w @ v / w.sum(axis=1, keepdims=True), noise)
        outside += bool((np.abs(found.estimate - 1) > found.half).any())
    assert outside <= binom.ppf(0.999, NULLS, share)


def test_valley_in_throughput_is_found() -> None:
    """Tiles: up to 2 positions cost 1, up to 5 cost 1.9; draft 1 is free, 2 and 3 are not worth a tile, 4 is."""
    meta, chunk = text_trace(1, levels=(0.9,), longest=8, requests=24)
    facts = facts_of(meta, chunk, table_latency([1.0, 1.01, 1.9, 1.91, 1.92, 3.5, 3.51, 3.52, 3.53]))
    verdict = length_verdicts(facts)["throughput-peak"]
    assert verdict.verdict == VIOLATED
    assert verdict.details["valley"]["low"] == "2"
    assert verdict.details["valley"]["depth"] > verdict.details["valley"]["beyond_noise"] > 0.02
    assert "4" in verdict.details["argmax_not_excluded"]


def test_depth_dependent_hazard_is_found() -> None:
    meta, chunk = synthesize("geometric", requests=24, positions=200, max_draft_len=8, decay=0.9, alpha=0.9)
    verdict = length_verdicts(facts_of(meta, chunk, LINE))["hazard"]
    assert verdict.verdict == VIOLATED
    assert verdict.text.startswith("token 1: 0.898, token 7: 0.481")
    low, high = verdict.details["slope_per_depth"][1:]
    assert low < high < 0
    rate = verdict.details["acceptance"]
    half = verdict.details["half_width"]
    assert all(abs(r - 0.9 * 0.9**j) <= h for j, (r, h) in enumerate(zip(rate, half, strict=True)))


@pytest.mark.parametrize("distort", ["over", "under"])
def test_miscalibration_is_found(distort: str) -> None:
    meta, chunk = synthesize("beta", requests=24, positions=128, max_draft_len=8, distort=distort)
    facts = facts_of(meta, chunk, LINE)
    found = length_verdicts(facts)
    assert found["calibration"].verdict == VIOLATED
    error, low, high = found["calibration"].details["expected_calibration_error"]
    assert 0.02 < low < error < high
    fair = length_verdicts(facts_of(*synthesize("beta", requests=24, positions=128, max_draft_len=8), LINE))
    assert fair["calibration"].verdict == HOLDS
    assert fair["calibration"].details["expected_calibration_error"][1] == 0


def test_decay_of_calibration_is_found() -> None:
    settings = {"requests": 32, "positions": 200, "max_draft_len": 10, "alpha": 0.85}
    drifting = length_verdicts(facts_of(*synthesize("beta", distort="drift", concentration=20, **settings), LINE))
    assert drifting["calibration-decay"].verdict == VIOLATED
    assert drifting["calibration-decay"].details["gap_slope_per_depth"][1] > 0
    fair = length_verdicts(facts_of(*synthesize("iid", **settings), LINE))
    assert fair["calibration-decay"].verdict == HOLDS


def test_sag_of_replayed_tokens_is_found() -> None:
    """Every fourth token is hard: rounds of 3 fit, rounds of 2 land on the hard token and gain nothing over 1."""
    sizes = np.full(12, 80)
    easy = np.arange(80 + 3) % 4 != 3
    token = np.tile(easy[np.arange(80)[:, None] + np.arange(3)].ravel(), 12)
    meta, chunk = rows_trace(sizes, 3, token, np.ones(token.size))
    facts = facts_of(meta, chunk, LINE)
    verdict = tau_concave(facts, noise_of(facts))
    assert verdict.details["tau"] == [1.0, 2.0, 2.0, 4.0]
    assert verdict.verdict == VIOLATED
    assert verdict.text.startswith("at 2 it lies 1 below the chord from 0 to 3")
    assert tokens_concave(facts).verdict == HOLDS  # with the rows fixed it cannot fail


def test_arm_family_that_is_not_concave_is_found() -> None:
    meta, chunk = arm_trace(3, [1.2, 1.3, 1.5, 2.4, 5.0], [0.010, 0.015, 0.020, 0.025, 0.030], requests=20)
    facts = facts_of(meta, chunk, ARM_LATENCY)
    concave, one_peak = arm_shapes(facts, noise_of(facts))
    assert concave.verdict == one_peak.verdict == VIOLATED
    assert one_peak.details["valley"]["low"] in ("arm-2", "arm-3")
    assert one_peak.details["argmax"] == ["arm-0"] or one_peak.details["argmax"] == ["arm-4"]


def test_too_few_requests_decide_nothing() -> None:
    facts = facts_of(*text_trace(0, requests=3), LINE)
    verdicts = [*length_verdicts(facts).values(), *convergence(facts, noise_of(facts))]
    for verdict in verdicts:
        assert verdict.verdict == UNDECIDED
        assert "3 requests; at least 8" in verdict.text


def test_too_noisy_says_how_much_is_needed() -> None:
    """Enough requests, but of ten tokens each: bands are wider than anything one would look for."""
    _, chunk = text_trace(5, requests=8, longest=4)
    short = np.flatnonzero(chunk.pos < 6)
    parts = rows_trace(
        np.bincount(chunk.request[short]),
        4,
        (np.arange(4) < chunk.accept_len[short][:, None]).ravel(),
        np.full(len(short) * 4, 0.8),
    )
    verdict = hazard(facts_of(*parts, LINE), Noise(requests=8, resamples=200, level=0.95, seed=0))
    assert verdict.verdict == UNDECIDED
    assert verdict.details["requests_needed"] > 8
    assert "8 requests" in verdict.text


def test_survival_is_a_product_of_rates_when_drafts_end_early() -> None:
    meta, chunk = synthesize("iid", requests=40, positions=20, max_draft_len=12, alpha=0.9)  # most rows are cut short
    facts = facts_of(meta, chunk, LINE)
    found = survival(facts, noise_of(facts))
    for i, (low, high) in enumerate(zip(found["survival_low"], found["survival_high"], strict=True)):
        assert low <= 0.9 ** (i + 1) <= high


def test_top_of_a_flat_curve_is_not_excluded() -> None:
    facts = facts_of(*text_trace(7, longest=6), flat_latency(0.8, 6))
    verdict = throughput_peak(facts, noise_of(facts))
    assert set(verdict.details["argmax"]) <= set(verdict.details["argmax_not_excluded"])
    assert len(verdict.details["argmax_not_excluded"]) >= 5


def test_certain_curve_needs_no_requests_to_differ() -> None:
    """Without any spread a valley is a valley, and ties all belong to the top."""
    values = np.log(np.array([2.0, 1.0, 2.0]))
    noise = Noise(requests=8, resamples=200, level=0.95, seed=0)
    found = peak(lambda w: np.broadcast_to(values, (len(w), 3)), noise)
    assert found.valley is not None
    assert (found.valley.left, found.valley.low, found.valley.right) == (0, 1, 2)
    assert found.top == found.candidates == [0, 2]
