"""Fitting each form to medians, and judging forms on lengths they have not seen.

Owns the estimators and the choice rule (docs/latency.md, section "How a form is chosen"). Every estimator minimises
relative residuals, because a replay multiplies times into ratios. Inputs are distinct `s` ascending and the median
time at each, both float64[n]. Imported by `specsim.latency.fit` only: it loads scipy.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.optimize import isotonic_regression, minimize_scalar, nnls

from specsim.latency.forms import Affine, FloatArray, Hinge, Step, Table, VerifyForm

MAX_STEPS = 12
MAX_KNEES = 128
MAX_FOLDS = 12
# Below this relative size a residual is rounding, not noise.
ROUNDING = 1e-6
# A new step must explain more than this relative scatter: a staircase of tiny steps is a table in disguise.
STEP_NOISE = 0.003
# Forms whose held-out errors differ by less than this are equally good: the simpler one is taken.
NEGLIGIBLE = 0.002


@dataclass(frozen=True, kw_only=True)
class FormScore:
    """Relative errors of one form on held-out lengths: mean, its standard error, largest."""

    rel_err: float
    standard_err: float
    max_rel_err: float


def line(s: FloatArray, time_s: FloatArray) -> tuple[float, float]:
    """(c_s, b_s) of the straight line with the smallest squared relative residuals; c_s may be negative."""
    design = np.column_stack([s, np.ones_like(s)]) / time_s[:, None]
    (c_s, b_s), *_ = np.linalg.lstsq(design, np.ones_like(s), rcond=None)
    if abs(c_s) < _no_slope(s, time_s):
        return 0.0, _relative_mean(time_s)
    return float(c_s), float(b_s)


def _no_slope(s: FloatArray, time_s: FloatArray) -> float:
    """Slopes below this move less than rounding over the whole range."""
    return 1e-9 * float(np.median(time_s)) / float(s[-1] - s[0])


def _relative_mean(time_s: FloatArray) -> float:
    """The constant with the smallest squared relative residuals."""
    return float(np.sum(1.0 / time_s) / np.sum(1.0 / time_s**2))


def fit_affine(s: FloatArray, time_s: FloatArray) -> Affine:
    """Straight line; a negative slope is replaced by a constant (the caller refuses it for the whole data)."""
    c_s, b_s = line(s, time_s)
    if c_s < 0.0:
        return Affine(c_s=0.0, b_s=_relative_mean(time_s))
    c_s, b_s = _line_through_positive(c_s, b_s, s, time_s)
    return Affine(c_s=c_s, b_s=b_s)


def _line_through_positive(c_s: float, b_s: float, s: FloatArray, time_s: FloatArray) -> tuple[float, float]:
    """(c_s, b_s), or the line from the origin through the first point when verify(1) would not be positive."""
    return (c_s, b_s) if c_s + b_s > 0.0 else (float(time_s[0] / s[0]), 0.0)


def fit_hinge(s: FloatArray, time_s: FloatArray) -> Hinge:
    """Two slopes, both >= 0, with the knee that leaves the smallest squared relative residuals.

    Knees are tried at every measured length with at least two lengths on either side (thinned to MAX_KNEES), then
    refined between the neighbours of the best one.
    """
    knees = s[1:-2]
    if len(knees) > MAX_KNEES:
        knees = knees[np.linspace(0, len(knees) - 1, MAX_KNEES).round().astype(int)]
    residuals = [_hinge_at(s, time_s, float(knee))[1] for knee in knees]
    best = int(np.argmin(residuals))
    bounds = knees[max(0, best - 1)], knees[min(len(knees) - 1, best + 1)]
    knee = float(knees[best])
    if bounds[0] < bounds[1]:
        refined: Any = minimize_scalar(
            lambda knee: _hinge_at(s, time_s, float(knee))[1], bounds=bounds, method="bounded"
        )
        # a measured length stays unless the refinement is clearly better: knees are usually round numbers
        if refined.fun < residuals[best] * (1.0 - ROUNDING) and residuals[best] > ROUNDING:
            knee = float(refined.x)
    (c_s, c2_s, plus_s, minus_s), _ = _hinge_at(s, time_s, knee)
    c_s, b_s = _line_through_positive(float(c_s), float(plus_s - minus_s), s, time_s)
    return Hinge(c_s=c_s, b_s=b_s, knee=knee, c2_s=float(c2_s))


def _hinge_at(s: FloatArray, time_s: FloatArray, knee: float) -> tuple[FloatArray, float]:
    """((c_s, c2_s, b_s as a difference of two), norm of the relative residuals) for one knee."""
    ones = np.ones_like(s)
    design = np.column_stack([s, np.maximum(0.0, s - knee), ones, -ones]) / time_s[:, None]
    weights, residual = nnls(design, ones)
    return weights, float(residual)


def fit_step(s: FloatArray, time_s: FloatArray) -> Step:
    """Regression staircase: best piecewise constant by dynamic programming, number of steps by BIC, then isotonic.

    A jump lies somewhere between two measured lengths; the edge is put at the roundest number there (most factors of
    two), because matrix kernels tile in powers of two.
    """
    bounds = _segments(time_s)
    weight = np.array([np.sum(1.0 / time_s[lo:hi] ** 2) for lo, hi in bounds])
    level_s = np.array([_relative_mean(time_s[lo:hi]) for lo, hi in bounds])
    level_s = isotonic_regression(level_s, weights=weight).x
    edges: list[float] = []
    times_s: list[float] = []
    for (_, hi), level in zip(bounds, level_s, strict=True):
        edge = float(s[-1]) if hi == len(s) else _roundest(int(s[hi - 1]), int(s[hi]) - 1)
        if times_s and times_s[-1] == level:
            edges[-1] = edge
        else:
            edges.append(edge)
            times_s.append(float(level))
    return Step(edges=tuple(edges), times_s=tuple(times_s))


def _roundest(lo: int, hi: int) -> float:
    return float(max(range(lo, min(hi, lo + 4096) + 1), key=lambda n: (n & -n, -n)))


def _segments(time_s: FloatArray) -> list[tuple[int, int]]:
    """Half-open index ranges of the best piecewise constant."""
    n = len(time_s)
    weight = 1.0 / time_s**2
    sum_w, sum_wt = np.concatenate([[0.0], np.cumsum(weight)]), np.concatenate([[0.0], np.cumsum(weight * time_s)])
    # relative squared error of one constant over [i, j): sum w t^2 - (sum w t)^2 / sum w, where w t^2 = 1
    cost = np.arange(n + 1, dtype=np.float64)
    origin = np.full((MAX_STEPS + 1, n + 1), 0, dtype=np.int64)
    chosen, chosen_bic, best = 1, np.inf, np.full(n + 1, np.inf)
    best[0] = 0.0
    for steps in range(1, min(MAX_STEPS, max(1, n // 2)) + 1):
        after = np.full(n + 1, np.inf)
        for j in range(steps, n + 1):
            i = np.arange(j)
            one = cost[j] - cost[i] - (sum_wt[j] - sum_wt[i]) ** 2 / (sum_w[j] - sum_w[i])
            total = best[i] + np.maximum(one, 0.0)
            origin[steps, j] = int(np.argmin(total))
            after[j] = total[origin[steps, j]]
        best = after
        bic = n * np.log(best[n] / n + STEP_NOISE**2) + 2 * steps * np.log(n)
        if bic < chosen_bic:
            chosen, chosen_bic = steps, bic
    bounds: list[tuple[int, int]] = []
    hi = n
    for steps in range(chosen, 0, -1):
        lo = int(origin[steps, hi])
        bounds.append((lo, hi))
        hi = lo
    return bounds[::-1]


def fit_table(s: FloatArray, time_s: FloatArray) -> Table:
    """The medians themselves, made non-decreasing by isotonic regression."""
    smooth_s = isotonic_regression(time_s, weights=1.0 / time_s**2).x
    return Table(s=tuple(s.tolist()), times_s=tuple(smooth_s.tolist()))


# Simplest first: the choice rule walks this order.
ESTIMATORS: dict[str, Callable[[FloatArray, FloatArray], VerifyForm]] = {
    "affine": fit_affine,
    "hinge": fit_hinge,
    "step": fit_step,
    "table": fit_table,
}
MIN_LENGTHS = {"affine": 3, "hinge": 5, "step": 4, "table": 3}
# Automatic choice between forms needs this many lengths; below it only the straight line is tried.
MIN_LENGTHS_TO_CHOOSE = 6


def score(form: str, s: FloatArray, time_s: FloatArray) -> FormScore:
    """Cross-validated relative error of one form.

    Whole lengths are left out, with all their repeats: every length in turn up to MAX_FOLDS, else MAX_FOLDS
    interleaved groups. With MIN_LENGTHS_TO_CHOOSE lengths or more the shortest and the longest always stay in: a
    replay interpolates between measured lengths.
    """
    n = len(s)
    held_out = np.arange(1, n - 1) if n >= MIN_LENGTHS_TO_CHOOSE else np.arange(n)
    folds = [held_out[start::MAX_FOLDS] for start in range(min(MAX_FOLDS, len(held_out)))]
    rel_err = np.zeros(n)
    for fold in folds:
        keep = np.setdiff1d(np.arange(n), fold)
        fitted = ESTIMATORS[form](s[keep], time_s[keep])
        rel_err[fold] = np.abs(fitted.at(s[fold]) / time_s[fold] - 1.0)
    errors = rel_err[held_out]
    standard_err = float(np.std(errors, ddof=1) / np.sqrt(len(errors))) if len(errors) > 1 else 0.0
    return FormScore(rel_err=float(errors.mean()), standard_err=standard_err, max_rel_err=float(errors.max()))


def choose(scores: dict[str, FormScore]) -> str:
    """The simplest form whose error is within one standard error, or within NEGLIGIBLE, of the smallest."""
    best = min(scores.values(), key=lambda entry: entry.rel_err)
    limit = best.rel_err + max(best.standard_err, NEGLIGIBLE)
    return next(form for form in ESTIMATORS if form in scores and scores[form].rel_err <= limit)


def bootstrap_line(s: FloatArray, time_s: FloatArray, *, draws: int, seed: int) -> tuple[FloatArray, FloatArray]:
    """Resampled (c_s, b_s), float64[draws] each: residual bootstrap of the straight line.

    Relative residuals of the medians are divided by sqrt(1 - leverage), centred and resampled, so that misfit and
    noise both widen the interval.
    """
    design = np.column_stack([s, np.ones_like(s)]) / time_s[:, None]
    inverse = np.linalg.pinv(design)
    coefficients = inverse @ np.ones_like(s)
    leverage = np.clip(np.einsum("ij,ji->i", design, inverse), 0.0, 1.0 - 1e-9)
    residual = (1.0 - design @ coefficients) / np.sqrt(1.0 - leverage)
    residual -= residual.mean()
    picks = np.random.default_rng(seed).integers(len(s), size=(draws, len(s)))
    resampled = coefficients[:, None] + inverse @ residual[picks].T
    c_s, b_s = resampled
    return np.where(np.abs(c_s) < _no_slope(s, time_s), 0.0, c_s), b_s
