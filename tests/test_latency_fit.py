"""Fitting recovers what was planted, chooses the right form, and refuses what cannot be."""

from __future__ import annotations

import numpy as np
import pytest

from specsim.errors import ConfigError
from specsim.latency import Affine, Hinge, Step
from specsim.latency.estimators import choose, fit_step, fit_table
from specsim.latency.fit import FitReport, fit_latency
from specsim.latency.forms import VerifyForm
from specsim.latency.measurements import Measurements

LENGTHS = np.array([1, 2, 3, 4, 6, 8, 12, 16, 20, 24, 28, 32, 40, 48, 56, 64], dtype=np.float64)


def measured(
    verify: VerifyForm, lengths: np.ndarray = LENGTHS, *, noise: float = 0.01, repeats: int = 5, seed: int = 0
) -> Measurements:
    s = np.tile(lengths, repeats)
    noise_factor = 1.0 + noise * np.random.default_rng(seed).standard_normal(len(s))
    return Measurements(s=s, time_s=verify.at(s) * noise_factor)


def fitted(verify: VerifyForm, form: str = "auto", **how: float) -> FitReport:
    return fit_latency(measured(verify, **how), form=form, draft_pass_s=0.001)  # type: ignore[arg-type]


@pytest.mark.parametrize("seed", range(5))
def test_recovers_a_planted_line(seed: int) -> None:
    report = fitted(Affine(c_s=3e-4, b_s=0.02), seed=seed)
    assert report.form == "affine"
    assert report.line_c_s == pytest.approx(3e-4, rel=0.06)
    assert report.line_b_s == pytest.approx(0.02, rel=0.02)
    assert report.c_ci95_s[0] < report.line_c_s < report.c_ci95_s[1]
    assert report.b_ci95_s[0] < report.line_b_s < report.b_ci95_s[1]
    assert report.slope_significant
    assert report.warnings == ()
    assert report.scores["affine"].rel_err < 0.01


def test_interval_covers_the_planted_slope_most_of_the_time() -> None:
    hits = 0
    for seed in range(60):
        low, high = fitted(Affine(c_s=3e-4, b_s=0.02), form="affine", seed=seed).c_ci95_s
        hits += low <= 3e-4 <= high
    assert 50 <= hits <= 60


def test_one_outlier_does_not_move_the_fit() -> None:
    clean = measured(Affine(c_s=3e-4, b_s=0.02), noise=0.001)
    dirty_s = clean.time_s.copy()
    dirty_s[::17] *= 10.0
    report = fit_latency(Measurements(s=clean.s, time_s=dirty_s))
    assert report.line_c_s == pytest.approx(3e-4, rel=0.02)


@pytest.mark.parametrize("seed", range(3))
def test_recovers_a_planted_hinge(seed: int) -> None:
    report = fitted(Hinge(c_s=1e-5, b_s=0.02, knee=24.0, c2_s=1e-3), noise=0.003, seed=seed)
    assert report.form == "hinge"
    assert isinstance(report.model.verify, Hinge)
    assert report.model.verify.knee == pytest.approx(24.0, abs=2.0)
    assert report.model.verify.c2_s == pytest.approx(1e-3, rel=0.05)


@pytest.mark.parametrize("seed", range(3))
def test_recovers_a_planted_staircase_and_says_so(seed: int) -> None:
    planted = Step(edges=(16.0, 32.0, 64.0), times_s=(0.016, 0.021, 0.028))
    report = fitted(planted, lengths=np.arange(1.0, 65.0), noise=0.005, seed=seed)  # type: ignore[arg-type]
    assert report.form == "step"
    assert isinstance(report.model.verify, Step)
    assert report.model.verify.edges == planted.edges
    np.testing.assert_allclose(report.model.verify.times_s, planted.times_s, rtol=0.01)
    assert any("staircase" in warning for warning in report.warnings)


def test_edges_fall_on_round_numbers_between_sparse_lengths() -> None:
    s = np.array([1.0, 10.0, 20.0, 30.0, 60.0, 70.0, 80.0, 90.0])
    time_s = np.where(s <= 32, 1.0, np.where(s <= 64, 2.0, 3.0))
    assert fit_step(s, time_s).edges == (32.0, 64.0, 90.0)


def test_staircase_warning_when_another_form_is_forced() -> None:
    planted = Step(edges=(16.0, 32.0, 64.0), times_s=(0.016, 0.021, 0.028))
    report = fitted(planted, form="affine", lengths=np.arange(1.0, 65.0), noise=0.001)  # type: ignore[arg-type]
    assert report.form == "affine"
    assert any("multiples of 16" in warning and "--form step" in warning for warning in report.warnings)


def test_simplest_form_within_one_standard_error_wins() -> None:
    report = fitted(Affine(c_s=3e-4, b_s=0.02), noise=0.02, seed=3)
    best = min(report.scores.values(), key=lambda entry: entry.rel_err)
    assert choose(report.scores) == report.form == "affine"
    assert report.scores["affine"].rel_err <= best.rel_err + max(best.standard_err, 0.002)


def test_exact_data_and_constant_data() -> None:
    exact = fitted(Affine(c_s=2.0**-10, b_s=0.5), noise=0.0)
    assert exact.form == "affine"
    assert exact.max_rel_err < 1e-12
    assert exact.r2 == pytest.approx(1.0)
    flat = fitted(Affine(c_s=0.0, b_s=0.5), noise=0.0)
    assert flat.form == "affine"
    assert flat.model.verify == Affine(c_s=0.0, b_s=0.5)
    assert flat.r2 is None
    assert any("not significant" in warning for warning in flat.warnings)


def test_flat_within_noise_warns_and_says_what_it_means() -> None:
    report = next(
        report
        for seed in range(20)
        if (report := _or_none(Affine(c_s=1e-7, b_s=0.02), seed)) is not None and not report.slope_significant
    )
    warning = next(text for text in report.warnings if "not significant" in text)
    assert "verification is flat from s = 1 to 64" in warning
    assert report.model.provenance["slope_significant"] is False


def _or_none(verify: VerifyForm, seed: int) -> FitReport | None:
    try:
        return fitted(verify, seed=seed)
    except ConfigError:
        return None


@pytest.mark.parametrize("form", ["auto", "affine", "hinge", "step", "table"])
def test_a_clearly_negative_slope_is_refused_in_every_form(form: str) -> None:
    s = np.tile(LENGTHS, 3)
    falling = Measurements(s=s, time_s=0.02 - 1e-4 * s, where="points.csv")
    with pytest.raises(ConfigError, match=r"points\.csv: the slope is -.*allowed: c_s >= 0.*more repeats.*interleave"):
        fit_latency(falling, form=form)


def test_an_insignificant_negative_slope_needs_a_form_without_slope() -> None:
    lengths = np.array([1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0])
    time_s = np.array([1.0, 1.02, 0.99, 1.01, 1.0, 0.98, 1.02, 0.99])
    points = Measurements(s=lengths, time_s=time_s)
    with pytest.raises(ConfigError, match=r"Within noise.*--form step"):
        fit_latency(points)
    report = fit_latency(points, form="step")
    assert (np.diff(report.model.verify_table(20)[1:]) >= 0.0).all()


@pytest.mark.parametrize("form", ["affine", "hinge", "step", "table"])
def test_a_forced_form_is_used_and_alone_judged(form: str) -> None:
    report = fitted(Affine(c_s=3e-4, b_s=0.02), form=form)
    assert report.form == form
    assert list(report.scores) == [form]


def test_table_is_made_non_decreasing() -> None:
    table = fit_table(np.array([1.0, 2.0, 3.0]), np.array([1.0, 3.0, 2.0]))
    assert (np.diff(table.times_s) >= 0.0).all()


def test_context_term() -> None:
    s = np.tile(LENGTHS, 6)
    ctx_len = np.repeat([0.0, 1000.0, 4000.0], 2 * len(LENGTHS))
    noise = 1.0 + 0.001 * np.random.default_rng(1).standard_normal(len(s))
    time_s = (3e-4 * s + 0.02 + 2e-6 * ctx_len) * noise
    report = fit_latency(Measurements(s=s, time_s=time_s, ctx_len=ctx_len))
    assert report.model.ctx_s == pytest.approx(2e-6, rel=0.02)
    assert report.line_b_s == pytest.approx(0.02, rel=0.02)
    with pytest.raises(ConfigError, match=r"'ctx_len': the context term is -.*allowed: >= 0"):
        fit_latency(Measurements(s=s, time_s=0.1 - 2e-6 * ctx_len, ctx_len=ctx_len))
    with pytest.raises(ConfigError, match=r"'ctx_len': never varies at one s"):
        fit_latency(Measurements(s=s, time_s=time_s, ctx_len=s * 10))
    constant = fit_latency(Measurements(s=s, time_s=3e-4 * s + 0.02, ctx_len=np.full(len(s), 512.0)))
    assert constant.model.ctx_s == 0.0
    assert any("ctx_len 512" in warning for warning in constant.warnings)


def test_context_term_that_explains_everything_is_refused() -> None:
    s = np.repeat([1.0, 2.0, 4.0, 8.0], 2)
    ctx_len = np.tile([1000.0, 2000.0], 4)
    time_s = 1e-3 * ctx_len - 0.9
    with pytest.raises(ConfigError, match="without the context term the time"):
        fit_latency(Measurements(s=s, time_s=time_s, ctx_len=ctx_len))


def test_too_few_lengths() -> None:
    points = measured(Affine(c_s=3e-4, b_s=0.02))
    with pytest.raises(ConfigError, match=r"2 distinct lengths \(1, 2\).*at least 3.*--max-s"):
        fit_latency(points, max_s=2)
    with pytest.raises(ConfigError, match="0 distinct lengths"):
        fit_latency(points.up_to(0))
    with pytest.raises(ConfigError, match="at least 5 for the hinge form"):
        fit_latency(points, max_s=4, form="hinge")
    few = fit_latency(points, max_s=4)
    assert list(few.scores) == ["affine"]
    assert any("4 distinct lengths" in warning for warning in few.warnings)
    for form, max_s in (("table", 3), ("step", 4), ("hinge", 6)):
        assert fit_latency(points, max_s=max_s, form=form).form == form
    with pytest.raises(ConfigError, match="form is 'spline'"):
        fit_latency(points, form="spline")


def test_line_that_would_be_negative_at_one_still_gives_a_valid_model() -> None:
    s = np.array([1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0])
    for form in ("auto", "affine", "hinge"):
        report = fit_latency(Measurements(s=s, time_s=1e-6 * s**3), form=form)
        assert report.model.verify_s(1) > 0.0


def test_provenance_and_report() -> None:
    report = fit_latency(measured(Affine(c_s=3e-4, b_s=0.02), LENGTHS[2:]), provenance={"device": "toy"})
    provenance = report.model.provenance
    assert provenance["device"] == "toy"
    assert provenance["valid_s"] == [3, 64]
    assert [length for length, _ in provenance["points"]] == LENGTHS[2:].tolist()
    assert provenance["heldout_rel_err"] == report.scores[report.form].rel_err
    assert 0.9 < provenance["r2"] <= 1.0
    assert any("s = 1 was not measured" in warning for warning in report.warnings)
    assert any("drafting costs nothing" in warning for warning in report.warnings)
    assert report.to_dict()["model"] == report.model.to_dict()


def test_same_seed_same_report() -> None:
    points = measured(Affine(c_s=3e-4, b_s=0.02))
    assert fit_latency(points, seed=7).to_dict() == fit_latency(points, seed=7).to_dict()


def test_many_lengths_stay_quick() -> None:
    report = fitted(Hinge(c_s=1e-5, b_s=0.02, knee=112.0, c2_s=1e-4), lengths=np.arange(1.0, 301.0), noise=0.003)  # type: ignore[arg-type]
    assert report.form == "hinge"
