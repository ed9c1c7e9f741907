"""From measured forward passes to a latency model with its error and its doubts.

Owns the order of work: context term, medians, straight line with interval, refusal of negative slopes, choice of form,
warnings, provenance (docs/latency.md). Knows nothing about files or command lines.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from specsim.errors import ConfigError
from specsim.latency.estimators import (
    ESTIMATORS,
    MIN_LENGTHS,
    MIN_LENGTHS_TO_CHOOSE,
    FormScore,
    bootstrap_line,
    choose,
    line,
    score,
)
from specsim.latency.forms import FloatArray
from specsim.latency.measurements import Measurements, medians
from specsim.latency.model import LatencyModel

FORM_CHOICES = ("auto", *ESTIMATORS)
BOOTSTRAP_DRAWS = 2000
_MORE = "Measure more repeats at more lengths, and interleave the lengths (1, 2, 4, ..., 1, 2, 4, ...)."


@dataclass(frozen=True, kw_only=True)
class FitReport:
    """A fitted model and how far to trust it.

    Args:
        model: the latency model, provenance included.
        scores: held-out errors of every form that was tried.
        line_c_s, line_b_s: straight line over the whole range, seconds per token position and seconds.
        c_ci95_s, b_ci95_s: bootstrap 95 % intervals of those two.
        max_rel_err: largest relative error of the model at a measured length.
        r2: share of the variance of the medians that the model explains; None when they do not vary.
        warnings: what a user should know before using the model.
    """

    model: LatencyModel
    scores: dict[str, FormScore]
    line_c_s: float
    line_b_s: float
    c_ci95_s: tuple[float, float]
    b_ci95_s: tuple[float, float]
    max_rel_err: float
    r2: float | None
    warnings: tuple[str, ...]

    @property
    def form(self) -> str:
        """Name of the chosen form."""
        return self.model.verify.form

    @property
    def slope_significant(self) -> bool:
        """Whether the interval of the slope lies above 0."""
        return self.c_ci95_s[0] > 0.0

    def to_dict(self) -> dict[str, Any]:
        """JSON document `specsim.latency_fit/1`; `model` in it is a `specsim.latency/1` document."""
        return {
            "schema": "specsim.latency_fit/1",
            "form": self.form,
            "heldout_rel_err": self.scores[self.form].rel_err,
            "max_rel_err": self.max_rel_err,
            "r2": self.r2,
            "line": {"c_s": self.line_c_s, "b_s": self.line_b_s},
            "c_ci95_s": list(self.c_ci95_s),
            "b_ci95_s": list(self.b_ci95_s),
            "slope_significant": self.slope_significant,
            "scores": {form: asdict(entry) for form, entry in self.scores.items()},
            "warnings": list(self.warnings),
            "model": self.model.to_dict(),
        }


def fit_latency(
    measurements: Measurements,
    *,
    form: str = "auto",
    max_s: int | None = None,
    draft_pass_s: float = 0.0,
    draft_token_s: float = 0.0,
    overhead_s: float = 0.0,
    provenance: Mapping[str, Any] | None = None,
    seed: int = 0,
) -> FitReport:
    """Fit a latency model.

    Args:
        measurements: forward passes; repeats at one length are reduced to their median.
        form: `auto`, or one of affine, hinge, step, table.
        max_s: use only lengths up to this one.
        draft_pass_s, draft_token_s, overhead_s: put into the model as they are, seconds.
        provenance: further keys for the model's provenance.
        seed: of the bootstrap.

    Raises:
        ConfigError: too few distinct lengths, a negative slope, a negative or unidentifiable context term, an unknown
            form; says what to do.
    """
    if form not in FORM_CHOICES:
        raise ConfigError(f"form is {form!r}; allowed: {', '.join(FORM_CHOICES)}. auto compares them all.")
    measurements = measurements.up_to(max_s)
    ctx_s, ctx_warnings = context_term(measurements)
    ctx_len = 0.0 if measurements.ctx_len is None or ctx_s == 0.0 else measurements.ctx_len
    s, median_s, repeats = medians(measurements.s, measurements.time_s - ctx_s * ctx_len)
    _check_lengths(measurements.where, form, s, median_s)
    c_s, b_s = line(s, median_s)
    c_draws, b_draws = bootstrap_line(s, median_s, draws=BOOTSTRAP_DRAWS, seed=seed)
    c_ci95_s, b_ci95_s = _interval(c_draws), _interval(b_draws)
    _refuse_negative(measurements.where, form, c_s, c_ci95_s)

    scores = {name: score(name, s, median_s) for name in _candidates(form, len(s))}
    verify = ESTIMATORS[choose(scores)](s, median_s)
    fitted_s = verify.at(s)
    max_rel_err = float(np.abs(fitted_s / median_s - 1.0).max())
    r2 = _r2(median_s, fitted_s)
    warnings = [
        *ctx_warnings,
        *_slope_warnings(s, c_ci95_s),
        *_staircase_warnings(s, median_s, verify.form, scores),
        *_data_warnings(s, repeats, draft_pass_s + draft_token_s),
    ]
    details = {
        "points": [[int(length), float(value)] for length, value in zip(s, median_s, strict=True)],
        "measurements": len(measurements.s),
        "valid_s": [int(s[0]), int(s[-1])],
        "r2": r2,
        "heldout_rel_err": scores[verify.form].rel_err,
        "max_rel_err": max_rel_err,
        "line": {"c_s": c_s, "b_s": b_s},
        "c_ci95_s": list(c_ci95_s),
        "b_ci95_s": list(b_ci95_s),
        "slope_significant": c_ci95_s[0] > 0.0,
    }
    model = LatencyModel(
        verify=verify,
        ctx_s=ctx_s,
        draft_pass_s=draft_pass_s,
        draft_token_s=draft_token_s,
        overhead_s=overhead_s,
        provenance={**(provenance or {}), **details},
    )
    return FitReport(
        model=model,
        scores=scores,
        line_c_s=c_s,
        line_b_s=b_s,
        c_ci95_s=c_ci95_s,
        b_ci95_s=b_ci95_s,
        max_rel_err=max_rel_err,
        r2=r2,
        warnings=tuple(warnings),
    )


def _candidates(form: str, n: int) -> tuple[str, ...]:
    if form != "auto":
        return (form,)
    return tuple(ESTIMATORS) if n >= MIN_LENGTHS_TO_CHOOSE else ("affine",)


def _check_lengths(where: str, form: str, s: FloatArray, median_s: FloatArray) -> None:
    needed = MIN_LENGTHS["affine" if form == "auto" else form]
    if len(s) < needed:
        lengths = ", ".join(f"{length:g}" for length in s) or "none"
        raise ConfigError(
            f"{where}, column 's': {len(s)} distinct lengths ({lengths}); allowed: at least {needed} for the {form} "
            "form. Measure more lengths, for example s = 1, 2, 4, 8, 16, 32; check --max-s."
        )
    if (median_s <= 0.0).any():
        worst = int(s[np.argmin(median_s)])
        raise ConfigError(
            f"{where}: without the context term the time at s = {worst} is {median_s.min():g} s; allowed: > 0. "
            "The context term explains more than the whole time: measure at short contexts too."
        )


def _refuse_negative(where: str, form: str, c_s: float, ci95_s: tuple[float, float]) -> None:
    interval = f"95 % interval {ci95_s[0] * 1e6:.3g} to {ci95_s[1] * 1e6:.3g} us"
    if ci95_s[1] < 0.0:
        raise ConfigError(
            f"{where}: the slope is {c_s * 1e6:.3g} us per token position ({interval}): longer passes were faster; "
            f"allowed: c_s >= 0. The clock or the cache warmed up while s grew. {_MORE}"
        )
    if c_s < 0.0 and form in ("auto", "affine", "hinge"):
        raise ConfigError(
            f"{where}: the slope is {c_s * 1e6:.3g} us per token position ({interval}); allowed: c_s >= 0. "
            f"Within noise the time does not grow here. {_MORE} Or use --form step, which fits a non-decreasing "
            "staircase, a constant if need be."
        )


def context_term(measurements: Measurements) -> tuple[float, list[str]]:
    """Seconds per context token from differences at equal s, and warnings.

    Raises:
        ConfigError: a negative term, or no s at which the context varies though it does elsewhere.
    """
    if measurements.ctx_len is None or len(measurements.s) == 0:
        return 0.0, []
    ctx_len = measurements.ctx_len
    if np.ptp(ctx_len) == 0.0:
        return 0.0, [f"all rows have ctx_len {ctx_len[0]:g}: attention to it is part of b_s, not a term of its own"]
    _, inverse = np.unique(measurements.s, return_inverse=True)
    # medians per (s, ctx_len), then least squares with one intercept per s
    cells, cell_of = np.unique(np.column_stack([inverse, ctx_len]), axis=0, return_inverse=True)
    cell_of = cell_of.ravel()
    median_s = np.array([np.median(measurements.time_s[cell_of == index]) for index in range(len(cells))])
    deviation_len, deviation_s = np.zeros(len(cells)), np.zeros(len(cells))
    for group in np.unique(cells[:, 0]):
        rows = cells[:, 0] == group
        deviation_len[rows] = cells[rows, 1] - cells[rows, 1].mean()
        deviation_s[rows] = median_s[rows] - median_s[rows].mean()
    spread = float(np.sum(deviation_len**2))
    if spread == 0.0:
        raise ConfigError(
            f"{measurements.where}, column 'ctx_len': never varies at one s, so context and length cannot be told "
            "apart; allowed: two or more ctx_len for at least one s. Measure that, or drop the column."
        )
    ctx_s = float(np.sum(deviation_len * deviation_s) / spread)
    if abs(ctx_s) * float(np.ptp(ctx_len)) < 1e-9 * float(np.median(median_s)):
        return 0.0, []
    if ctx_s < 0.0:
        raise ConfigError(
            f"{measurements.where}, column 'ctx_len': the context term is {ctx_s * 1e9:.3g} ns per context token; "
            "allowed: >= 0, a longer context cannot be faster. Measure more repeats and longer contexts, interleaved, "
            "or drop the column."
        )
    return ctx_s, []


def _interval(draws: FloatArray) -> tuple[float, float]:
    low, high = np.percentile(draws, [2.5, 97.5])
    return float(low), float(high)


def _r2(median_s: FloatArray, fitted_s: FloatArray) -> float | None:
    total = float(np.sum((median_s - median_s.mean()) ** 2))
    if total <= (1e-12 * float(median_s.mean())) ** 2:
        return None
    return 1.0 - float(np.sum((median_s - fitted_s) ** 2)) / total


def _slope_warnings(s: FloatArray, c_ci95_s: tuple[float, float]) -> list[str]:
    if c_ci95_s[0] > 0.0:
        return []
    return [
        f"the slope is not significant (its 95 % interval contains 0): verification is flat from s = {s[0]:g} to "
        f"{s[-1]:g} within the noise, so a longer draft costs drafting time only; do not rank controllers by their "
        "verification cost with this model"
    ]


def _staircase_warnings(s: FloatArray, median_s: FloatArray, form: str, scores: dict[str, FormScore]) -> list[str]:
    boundary = _jump_boundary(s, median_s)
    if form == "step":
        reason = "the step form predicts held-out lengths best"
    elif "step" in scores and scores["step"].rel_err < 0.7 * scores["affine"].rel_err:
        reason = "the step form predicts held-out lengths much better than a straight line"
    elif boundary is not None:
        reason = f"the time rises mainly across multiples of {boundary}"
    else:
        return []
    advice = "" if form in ("step", "table") else "; consider --form step or --form table"
    return [f"the points are a staircase: {reason}. A length just above an edge pays for the whole next step{advice}"]


def _jump_boundary(s: FloatArray, median_s: FloatArray) -> int | None:
    """Largest of 64, 32, 16, 8 whose multiples hold most of the rise but little of the range; None if there is none."""
    smooth_s = ESTIMATORS["table"](s, median_s).at(s)
    rise_s, gap = np.diff(smooth_s), np.diff(s)
    if rise_s.sum() < 0.02 * float(np.median(median_s)):
        return None
    for boundary in (64, 32, 16, 8):
        crosses = (s[1:] - 1) // boundary > (s[:-1] - 1) // boundary
        if rise_s[crosses].sum() >= 0.6 * rise_s.sum() and gap[crosses].sum() <= 0.4 * gap.sum():
            return boundary
    return None


def _data_warnings(s: FloatArray, repeats: FloatArray, draft_cost_s: float) -> list[str]:
    warnings: list[str] = []
    if s[0] > 1.0:
        warnings.append(f"s = 1 was not measured: plain decoding, verify(1), is extrapolated from s = {s[0]:g}")
    if np.median(repeats) < 3:
        warnings.append("fewer than three measurements per length: a single outlier moves the fit")
    if len(s) < MIN_LENGTHS_TO_CHOOSE:
        warnings.append(f"{len(s)} distinct lengths: only the straight line can be judged, measure 6 or more")
    if draft_cost_s == 0.0:
        warnings.append("drafting costs nothing in this model: give --draft-pass-s or --draft-token-s")
    return warnings
