"""What noise explains: resampling of requests, simultaneous bands, and tests of shapes that rest on them.

Everything measured on a trace is a function of sums over requests, so a statistic is given as a function of weights on
requests. Requests are the unit because positions of one text are not independent. A band is simultaneous: with the
stated level *all* its numbers hold together, so the largest of many differences may be looked at without correction.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Final, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray
from scipy.stats import norm

Floats: TypeAlias = NDArray[np.float64]
Statistic: TypeAlias = Callable[[Floats], Floats]
"""float64[n, G] weights of requests (or groups of them) -> float64[n, K] numbers; NaN where undefined."""

MIN_REQUESTS: Final = 8
"""Below it a resampled spread says next to nothing."""
MAX_GROUPS: Final = 400
"""Requests beyond this many are pooled into as many groups of neighbours, which resample as well and cost less."""


class Noise(NamedTuple):
    """How to resample: requests are numbered 0 .. requests-1 in file order."""

    requests: int
    resamples: int
    level: float
    seed: int

    @property
    def groups(self) -> int:
        """Units that are resampled."""
        return min(self.requests, MAX_GROUPS)

    def pooled(self, sums: Floats) -> Floats:
        """float64[G, ...]: sums per request added up within groups of neighbours."""
        if self.requests == self.groups:
            return np.asarray(sums, np.float64)
        edges = np.arange(self.groups) * self.requests // self.groups
        return np.add.reduceat(np.asarray(sums, np.float64), edges, axis=0)

    def weights(self) -> Floats:
        """float64[resamples, G]: how often each group is drawn; the same draws for the same numbers."""
        rng = np.random.default_rng([self.seed, self.groups])
        chances = np.full(self.groups, 1 / self.groups)
        return rng.multinomial(self.groups, chances, size=self.resamples).astype(np.float64)


class Band(NamedTuple):
    """Numbers with half widths; |true - estimate| <= half for all of them together at the level asked for.

    `half` is inf where the data say nothing.
    """

    estimate: Floats
    half: Floats

    @property
    def low(self) -> Floats:
        """Lower ends."""
        return self.estimate - self.half

    @property
    def high(self) -> Floats:
        """Upper ends."""
        return self.estimate + self.half

    def part(self, where: slice) -> Band:
        """Some of the numbers, with the band they had among all."""
        return Band(self.estimate[where], self.half[where])


def band(statistic: Statistic, noise: Noise, *, floor: float | Floats = 0.0) -> Band:
    """Simultaneous band by the studentised bootstrap over requests.

    Every resample is divided by its own standard error (from the influences of the requests, leave-one-out), because
    with few unequal requests a number and its spread err together. How heavy the tails of these quotients are is
    expressed, number by number, as degrees of freedom of Student's t; the largest of all numbers is then compared on
    the scale of a normal variable, so that one badly known number does not widen the band of the others.

    Args:
        statistic: numbers as a function of weights.
        noise: how to resample.
        floor: smallest standard error believed, one or float64[K]; inf takes a number out of the band.
    """
    groups = noise.groups
    estimate = statistic(np.ones((1, groups)))[0]
    if groups < 2 or not estimate.size:
        return Band(estimate, np.full(estimate.shape, np.inf))
    influence = (groups - 1) * (estimate - statistic(1 - np.eye(groups)))
    influence = np.where(np.isfinite(influence), influence, 0.0)
    influence -= influence.mean(axis=0)
    seen = np.sqrt((influence**2).mean(axis=0) / (groups - 1))
    error = np.maximum(seen, floor)
    weights = noise.weights()
    deviation = statistic(weights) - estimate
    defined = np.isfinite(deviation)
    enough = np.isfinite(estimate) & (defined.mean(axis=0) > 0.9) & np.isfinite(error)
    variance = weights @ influence**2 / groups - (weights @ influence / groups) ** 2
    own = np.sqrt(np.maximum(variance, 0.0) / (groups - 1))
    own = np.maximum(own, _LEAST_OWN_ERROR * seen)
    usable = defined & enough & (own > 0)
    quotient = np.where(usable, np.abs(deviation), 0.0) / np.where(usable, own, 1.0)
    freedom = np.minimum(_tail_freedom(np.quantile(quotient, 1 - _TAIL, axis=0), groups), _moment_freedom(influence))
    largest = _normal_from_t(quotient, freedom).max(axis=1, initial=0.0)
    usual = float(norm.isf((1 - noise.level) / 2))
    critical = max(float(np.quantile(largest, noise.level, method="higher")), usual)
    return Band(estimate, np.where(enough, error * _t_from_normal(critical, freedom), np.inf))


_TAIL: Final = 0.02
_LEAST_OWN_ERROR: Final = 0.05
"""A resample that happens to repeat alike requests has no spread; its standard error counts at least this share."""


def _normal_from_t(quotient: Floats, freedom: Floats) -> Floats:
    """The value of a normal variable with the same two-sided tail as one of Student's t (Wallace's approximation)."""
    return (8 * freedom + 1) / (8 * freedom + 3) * np.sqrt(freedom * np.log1p(quotient**2 / freedom))


def _t_from_normal(z: float, freedom: Floats) -> Floats:
    """The inverse of `_normal_from_t`."""
    return np.sqrt(freedom * np.expm1((z * (8 * freedom + 3) / (8 * freedom + 1)) ** 2 / freedom))


def _tail_freedom(quantile: Floats, groups: int) -> Floats:
    """float64[K]: of the t distribution whose |t| exceeds `quantile` with chance `_TAIL`; from 1 to groups - 1."""
    known = np.geomspace(groups - 1, 1, 64)
    return np.interp(quantile, _t_from_normal(float(norm.isf(_TAIL / 2)), known), known)


def _moment_freedom(influence: Floats) -> Floats:
    """float64[K]: how many squared influences the variance really averages: all of normal ones, few of unequal ones."""
    groups = len(influence)
    scale = np.abs(influence).max(axis=0)
    squares = (influence / np.where(scale > 0, scale, 1.0)) ** 2
    second, fourth = squares.sum(axis=0), (squares**2).sum(axis=0)
    spread = fourth - second**2 / groups
    found = np.where(spread > 0, 2 * second**2 / np.where(spread > 0, spread, 1.0), groups - 1)
    return np.clip(found, min(3, groups - 1), groups - 1)


def ratio(numerator: Floats, denominator: Floats) -> Floats:
    """Quotient, NaN where the denominator is 0."""
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(denominator > 0, numerator / np.where(denominator > 0, denominator, 1.0), np.nan)


class Valley(NamedTuple):
    """Index `low` lies below `left` and `right`; `depth` is by how much (log scale), `sure` what noise leaves of it."""

    left: int
    low: int
    right: int
    depth: float
    sure: float


class Peak(NamedTuple):
    """Shape of a curve of log values: its deepest valley beyond noise, its top, and what else could be the top.

    Attributes:
        valley: the valley of which most is sure, None where no single-peaked curve is excluded.
        seen: deepest valley of the estimate, noise or not; None where there is none.
        top: indices at which the largest value stands.
        candidates: indices that the band does not exclude as the top.
        half: half width of the band for all pairs, float64[K, K].
    """

    valley: Valley | None
    seen: Valley | None
    top: list[int]
    candidates: list[int]
    half: Floats


def peak(log_values: Statistic, noise: Noise, *, floor: float = 0.0) -> Peak:
    """Whether a curve is single-peaked as far as noise lets one tell.

    All pairwise differences get one simultaneous band. A valley counts where both its sides are surely above it; on a
    single-peaked curve no such triple exists, so one is reported with chance 1 - level at most.
    """
    count = log_values(np.ones((1, noise.groups))).shape[1]
    first, second = np.triu_indices(count, 1)

    def differences(weights: Floats) -> Floats:
        values = log_values(weights)
        return values[:, first] - values[:, second]

    found = band(differences, noise, floor=floor)
    above, half = np.zeros((count, count)), np.full((count, count), np.inf)
    above[first, second], above[second, first] = found.estimate, -found.estimate
    half[first, second] = half[second, first] = found.half
    np.fill_diagonal(half, 0.0)
    values = log_values(np.ones((1, noise.groups)))[0]
    close = 1e-12 * max(1.0, float(np.abs(values).max(initial=0.0)))
    top = np.flatnonzero(values >= values.max(initial=-np.inf) - close).tolist()
    candidates = np.flatnonzero(~(above - half > close).any(axis=0)).tolist()
    return Peak(_valley(above - half, above), _valley(above, above), top, candidates, half)


def _valley(sure: Floats, above: Floats) -> Valley | None:
    """The triple left < low < right with the largest min(sure[left, low], sure[right, low]), if that is positive."""
    best: Valley | None = None
    for low in range(1, len(sure) - 1):
        left, right = int(np.argmax(sure[:low, low])), low + 1 + int(np.argmax(sure[low + 1 :, low]))
        amount = float(min(sure[left, low], sure[right, low]))
        if amount > (best.sure if best else 1e-9):
            best = Valley(left, low, right, float(min(above[left, low], above[right, low])), amount)
    return best


class Sag(NamedTuple):
    """Value `middle` lies `amount` below the chord from `left` to `right`; noise leaves `sure` of that."""

    left: int
    middle: int
    right: int
    amount: float
    sure: float


class Concavity(NamedTuple):
    """The worst sag beyond noise (None: a concave curve is not excluded), the worst seen, the typical half width."""

    sag: Sag | None
    seen: Sag | None
    half: float


MAX_CHORDS: Final = 25
"""Points compared by chords; longer curves are thinned, evenly in index."""


def concavity(curve: Callable[[Floats], tuple[Floats, Floats]], noise: Noise, *, floor: float = 0.0) -> Concavity:
    """Whether y is concave in x: every value against every chord over it, all in one simultaneous band.

    Args:
        curve: weights -> (x, y), each float64[n, K]; x ascending in the estimate.
        noise: how to resample.
        floor: smallest standard error believed.
    """
    count = curve(np.ones((1, noise.groups)))[1].shape[1]
    points = np.unique(np.linspace(0, count - 1, min(count, MAX_CHORDS)).round().astype(np.int64))
    n = len(points)
    triples = np.array([(a, b, c) for a in range(n) for b in range(a + 1, n) for c in range(b + 1, n)], np.int64)
    if not len(triples):
        return Concavity(None, None, math.inf)
    left, middle, right = points[triples].T

    def below(weights: Floats) -> Floats:
        x, y = curve(weights)
        with np.errstate(divide="ignore", invalid="ignore"):
            share = (x[:, middle] - x[:, left]) / (x[:, right] - x[:, left])
        return y[:, left] + share * (y[:, right] - y[:, left]) - y[:, middle]

    found = band(below, noise, floor=floor)

    def worst(amounts: Floats) -> Sag | None:
        k = int(np.argmax(amounts))
        if not amounts[k] > 1e-9:
            return None
        return Sag(int(left[k]), int(middle[k]), int(right[k]), float(found.estimate[k]), float(found.low[k]))

    estimate = np.where(np.isfinite(found.estimate), found.estimate, -np.inf)
    return Concavity(worst(np.where(np.isfinite(found.low), found.low, -np.inf)), worst(estimate), _median(found.half))


def _median(values: Floats) -> float:
    return float(np.median(values)) if values.size else math.inf
