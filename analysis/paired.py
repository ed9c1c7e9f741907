"""Whether one method is faster than another: the ratio of two ratios of sums, with a bootstrap interval over requests.

Owns the resampling (one draw of requests for both methods where they decoded the same, so that easy and hard requests
cancel; separate draws otherwise) and how many requests a difference would need.
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

RESAMPLES = 2000
MOST_DRAWS = 40_000_000  # of requests, in all resamples together
BLOCK = 2_000_000  # of these held at once
# An interval at 95 % that leaves out 1 in four of five repetitions: its half has to be this part of the difference.
POWER = (1.959964 / (1.959964 + 0.841621)) ** 2

Float64Array = npt.NDArray[np.float64]


def ratio_of(one: Float64Array, other: Float64Array) -> float:
    """(sum of one's first column / of its second) / (the same of other).

    Args:
        one, other: float64[B, 2] sums per request.
    """
    (a, b), (c, d) = one.sum(axis=0), other.sum(axis=0)
    return float(a / b / (c / d))


def interval_of(
    one: Float64Array, other: Float64Array, *, seed: int, paired: bool = True
) -> tuple[float, float] | None:
    """95 % percentile interval of `ratio_of`, by bootstrap over requests; None where one has fewer than two.

    2000 resamples; of more than 20,000 requests fewer, at least 200.

    Args:
        one, other: float64[B, 2] sums per request; as many, in the same order, where paired.
        seed: of the resampling.
        paired: whether the same requests are drawn for both.
    """
    if min(len(one), len(other)) < 2:
        return None
    rng = np.random.default_rng(seed)
    if paired:
        sums = _resampled(np.concatenate([one, other], axis=1), rng)
    else:
        resamples = min(_resamples(len(one)), _resamples(len(other)))
        sums = np.concatenate([_resampled(each, rng)[:resamples] for each in (one, other)], axis=1)
    low, high = np.percentile(sums[:, 0] / sums[:, 1] / (sums[:, 2] / sums[:, 3]), [2.5, 97.5])
    return float(low), float(high)


def _resamples(requests: int) -> int:
    return min(RESAMPLES, max(200, MOST_DRAWS // requests))


def _resampled(columns: Float64Array, rng: np.random.Generator) -> Float64Array:
    """float64[resamples, C] sums over requests drawn with replacement."""
    requests, resamples = len(columns), _resamples(len(columns))
    step = max(1, BLOCK // requests)
    blocks = []
    for start in range(0, resamples, step):
        draws = rng.integers(0, requests, size=(min(step, resamples - start), requests))
        blocks.append(columns[draws].sum(axis=1))
    return np.concatenate(blocks)


def requests_needed(ratio: float, ci95: tuple[float, float], requests: int) -> int | None:
    """About how many requests a difference of this size needs to be seen in four of five repetitions, if requests vary
    as these do: the interval, of the ratio's logarithm, shrinks with the root of their number. None: no difference.

    Args:
        ratio, ci95: as measured; above 0.
        requests: with which.
    """
    difference, half = abs(math.log(ratio)), (math.log(ci95[1]) - math.log(ci95[0])) / 2
    if difference == 0.0:
        return None
    return max(2, math.ceil(requests * (half / difference) ** 2 / POWER))
