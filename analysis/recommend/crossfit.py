"""Choosing on one part of the requests and judging on the other: repeated cross-fitting by request.

The best of many candidates looks better on the requests it was chosen by than on others: part of its lead is luck. Here
requests are dealt into folds, again and again; what is chosen on all folds but one is timed on the one left out, so
every request is timed by a choice that has not seen it. Choosing the controller, too, is done inside: its candidates
are compared by a second cross-fitting within the folds that choose.

Resampling chooses anew: requests are drawn with replacement, keep their fold (so that no request is on both sides), and
the whole of the above is done with the weights drawn. Intervals that take the choices as given are too short where the
choice is unsure (docs/recommend.md).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from specsim.metrics import resamples_for

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

FOLDS = 5
REPEATS = 20
LEAST = 4
"""Fewest requests: two folds to compare within, one to choose for, and something to resample."""
_BLOCK = 1_000_000  # weights held at once
_TRACE = 1e-6  # weight of a request that a resample did not draw
_EQUAL = 1e-9  # relative: sums that differ by less are equal, and the simpler candidate is taken


@dataclass(frozen=True, kw_only=True)
class Dealt:
    """Folds of n requests: `labels` int64[repeats, n] in 0..folds-1."""

    labels: Ints
    folds: int

    def repeated(self) -> Floats:
        """float64[n, repeats, folds]: 1 where a request lies in a fold."""
        return np.eye(self.folds)[self.labels.T]

    def resampled(self, seed: int) -> Iterator[Floats]:
        """float64[n, S, folds] in blocks: how often each of S resamples drew a request, at the fold it lies in.

        As many resamples as `specsim.metrics.resamples_for` says; each uses the folds of one repeat. What was not drawn
        keeps a trace of weight, so that something chooses where all that was drawn lies in one fold.
        """
        n = self.labels.shape[1]
        resamples = resamples_for(n)
        step = max(1, _BLOCK // (n * self.folds))
        rng = np.random.default_rng(seed)
        for start in range(0, resamples, step):
            numbers = np.arange(start, min(start + step, resamples))
            weights = np.array([np.bincount(rng.integers(0, n, n), minlength=n) for _ in numbers]) + _TRACE
            yield np.eye(self.folds)[self.labels[numbers % len(self.labels)].T] * weights.T[:, :, None]


class Chosen(NamedTuple):
    """What S cross-fittings over K folds chose.

    `by_family` int64[F, S, K] is the candidate that each family takes for a fold, `fastest` int64[S, K] the family that
    looks fastest without that fold, `picked` int64[S, K] its candidate.
    """

    by_family: Ints
    fastest: Ints
    picked: Ints


def canonical_order(plain_s: Floats, time_s: Floats) -> Ints:
    """An order of requests by their times alone, so that results do not depend on their order in the file."""
    return np.lexsort(np.vstack([time_s[::-1], plain_s]))


def deal(sizes: Sequence[int], seed: int) -> Dealt:
    """Folds for groups of requests that follow one another (one per trace), every group spread evenly over them."""
    folds = min(FOLDS, sum(sizes))
    labels = np.empty((REPEATS, sum(sizes)), np.int64)
    for repeat in range(REPEATS):
        rng = np.random.default_rng([seed, repeat])
        start = 0
        for size in sizes:
            # The fold that gets one request more is drawn too.
            labels[repeat, start : start + size] = (rng.permutation(size) + rng.integers(folds)) % folds
            start += size
    return Dealt(labels=labels, folds=folds)


def first_least(values: Floats) -> Ints:
    """Index along the first axis of the least value, the first of those equal to it."""
    return np.argmax(values <= values.min(axis=0) * (1 + _EQUAL), axis=0)


def sums_of(time_s: Floats, design: Floats) -> Floats:
    """float64[C, S, K]: seconds of every candidate on every fold of every repeat or resample.

    Args:
        time_s: float64[C, n].
        design: float64[n, S, K], of `Dealt`.
    """
    return (time_s @ design.reshape(len(design), -1)).reshape(len(time_s), *design.shape[1:])


def choose(sums: Floats, families: Sequence[slice]) -> Chosen:
    """Choose for every fold without looking at it.

    Args:
        sums: float64[C, S, K], of `sums_of`.
        families: which candidates each family has; simpler ones first.
    """
    without = sums.sum(axis=2, keepdims=True) - sums
    by_family = np.array([members.start + first_least(without[members]) for members in families])
    fastest = first_least(np.array([_inner(sums[members], without[members]) for members in families]))
    return Chosen(by_family, fastest, np.take_along_axis(by_family, fastest[None], axis=0)[0])


def _inner(sums: Floats, without: Floats) -> Floats:
    """Seconds of one family on the folds that choose, each timed by what the others of them would take.

    Args:
        sums: float64[C, S, K] seconds on each fold.
        without: float64[C, S, K] seconds on all folds but that.

    Returns:
        float64[S, K]: entry k is without fold k.
    """
    scores = np.empty(sums.shape[1:])
    for k in range(sums.shape[2]):
        taken = first_least(without[:, :, [k]] - sums)  # without k and without each other fold
        held = np.take_along_axis(sums, taken[None], axis=0)[0]
        scores[:, k] = held.sum(axis=1) - held[:, k]
    return scores


def paid(sums: Floats, choice: Ints) -> Floats:
    """float64[S]: seconds of all folds, each timed by its candidate.

    Args:
        sums: float64[C, S, K]; may be of other times than those chosen by (a shifted latency model).
        choice: int64[S, K].
    """
    return np.take_along_axis(sums, choice[None], axis=0)[0].sum(axis=1)


def held_out(time_s: Floats, choice: Ints, dealt: Dealt) -> Floats:
    """float64[n]: mean seconds of each request over repeats, timed by the candidate chosen without it.

    Args:
        time_s: float64[C, n].
        choice: int64[repeats, folds].
        dealt: the folds.
    """
    requests = np.arange(time_s.shape[1])
    total = np.zeros(time_s.shape[1])
    for labels, taken in zip(dealt.labels, choice, strict=True):
        total += time_s[taken[labels], requests]
    return total / len(dealt.labels)
