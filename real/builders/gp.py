"""Bayesian search in the unit cube: a Gaussian process over what was measured, and where its upper bound is highest.

The settings are those of SWIFT's optimiser (bayesian-optimization 1.5.1: Matern 5/2 kernel with one length scale,
scores standardised, observation noise 1e-2 of their variance, upper bound mean + 2.5 standard deviations). The length
scale is found on a grid and refined, not from random starts; suggestions are therefore not that package's point for
point, which no two of its versions are either.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import cho_solve, cholesky, solve_triangular
from scipy.optimize import minimize, minimize_scalar
from scipy.spatial.distance import cdist

Floats = NDArray[np.float64]

KAPPA: Final = 2.5
NOISE: Final = 1e-2
_LOG_LENGTHS: Final = np.linspace(math.log(1e-3), math.log(1e3), 13)
_SCATTERED: Final = 10_000
"""Random points whose bound is looked at before climbing."""
_STARTS: Final = 10
"""Random points that are climbed from, besides the best of those and the best measured."""


def matern(distance: NDArray[np.floating], length: float) -> Floats:
    """Matern 5/2 kernel of Euclidean distances."""
    r = math.sqrt(5) * np.asarray(distance, np.float64) / length
    return (1 + r + r * r / 3) * np.exp(-r)


class Posterior:
    """The process after its observations.

    Args:
        points: float64[n, D].
        scores: float64[n].
        length: length scale; None: the one of largest marginal likelihood.
        noise: variance of the noise, as a share of the scores' variance.
    """

    def __init__(self, points: Floats, scores: Floats, *, length: float | None = None, noise: float = NOISE) -> None:
        self.points = points
        self.mean, self.scale = float(scores.mean()), float(scores.std()) or 1.0
        self._y, self._noise = (scores - self.mean) / self.scale, noise
        self._distance = cdist(points, points)
        self.length = self._likeliest() if length is None else length
        self._factor = self._cholesky(self.length)
        self._weights = cho_solve((self._factor, True), self._y)

    def at(self, points: Floats) -> tuple[Floats, Floats]:
        """(mean, standard deviation) at float64[m, D] points, without observation noise."""
        cross = matern(cdist(points, self.points), self.length)
        variance = 1 - (solve_triangular(self._factor, cross.T, lower=True) ** 2).sum(axis=0)
        return self.mean + self.scale * (cross @ self._weights), self.scale * np.sqrt(np.maximum(variance, 0.0))

    def bound(self, point: Floats, kappa: float) -> tuple[float, Floats]:
        """mean + kappa standard deviations at one point, and its gradient."""
        offset = point - self.points
        distance = np.sqrt((offset**2).sum(axis=1))
        cross = matern(distance, self.length)
        solved = cho_solve((self._factor, True), cross)
        deviation = math.sqrt(max(1 - float(cross @ solved), 1e-12))
        r = math.sqrt(5) * distance / self.length
        slope = -(5 / (3 * self.length**2)) * ((1 + r) * np.exp(-r))[:, None] * offset
        value = self.mean + self.scale * (float(cross @ self._weights) + kappa * deviation)
        return value, self.scale * (self._weights - kappa * solved / deviation) @ slope

    def log_likelihood(self, length: float) -> float:
        """Log marginal likelihood of the standardised scores."""
        factor = self._cholesky(length)
        fit = float(self._y @ cho_solve((factor, True), self._y))
        return -0.5 * fit - float(np.log(np.diag(factor)).sum()) - 0.5 * len(self._y) * math.log(2 * math.pi)

    def _cholesky(self, length: float) -> Floats:
        return cholesky(matern(self._distance, length) + self._noise * np.eye(len(self._y)), lower=True)

    def _likeliest(self) -> float:
        def loss(log_length: float) -> float:
            return -self.log_likelihood(math.exp(log_length))

        best = int(np.argmin([loss(x) for x in _LOG_LENGTHS]))
        ends = _LOG_LENGTHS[max(best - 1, 0)], _LOG_LENGTHS[min(best + 1, len(_LOG_LENGTHS) - 1)]
        found: Any = minimize_scalar(loss, bounds=ends, method="bounded")
        return math.exp(found.x)


class BoundSearch:
    """Suggests where to measure next; an `Optimiser` of `real.builders.swift`.

    Args:
        dim: coordinates, each in 0..1.
        rng: randomness of the suggestions.
        kappa: standard deviations in the upper bound.
    """

    def __init__(self, dim: int, rng: np.random.Generator, *, kappa: float = KAPPA) -> None:
        self._dim, self._rng, self._kappa = dim, rng, kappa
        self._points: list[Floats] = []
        self._scores: list[float] = []

    def register(self, point: Sequence[float] | Floats, score: float) -> None:
        """Take note of a measurement."""
        self._points.append(np.asarray(point, np.float64))
        self._scores.append(score)

    def suggest(self) -> Floats:
        """float64[D]: the point of the highest upper bound that was found; a random one before any measurement."""
        if not self._points:
            return self._rng.random(self._dim)
        points, scores = np.array(self._points), np.array(self._scores)
        posterior = Posterior(points, scores)
        scattered = self._rng.random((_SCATTERED, self._dim))
        mean, deviation = posterior.at(scattered)
        starts = np.concatenate(
            [
                scattered[[int(np.argmax(mean + self._kappa * deviation))]],
                points[[int(np.argmax(scores))]],
                self._rng.random((_STARTS, self._dim)),
            ]
        )
        best, best_value = starts[0], -np.inf
        for start in starts:
            found = minimize(
                lambda x: tuple(-part for part in posterior.bound(x, self._kappa)),
                start,
                jac=True,
                bounds=[(0.0, 1.0)] * self._dim,
                method="L-BFGS-B",
            )
            if -found.fun > best_value:
                best, best_value = found.x, -found.fun
        return np.clip(best, 0.0, 1.0)
