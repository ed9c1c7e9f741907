"""Choosing on one part of the requests and judging on the other: repeated cross-fitting by request.

The best of many candidates looks better on the requests it was chosen by than on others: part of its lead is luck. Here
requests are dealt into folds, again and again; what is chosen on all folds but one is timed on the one left out, so
every request is timed by a choice that has not seen it. Choosing the controller, too, is done inside: its candidates
are compared by a second cross-fitting within the folds that choose.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

FOLDS = 5
REPEATS = 20
LEAST = 4
"""Fewest requests: two folds to compare within, one to choose for, and something to resample."""
_EQUAL = 1e-9  # relative: sums that differ by less are equal, and the simpler candidate is taken


@dataclass(frozen=True, kw_only=True)
class Dealt:
    """Folds of n requests: `labels` int64[repeats, n] in 0..folds-1."""

    labels: Ints
    folds: int


@dataclass(frozen=True, kw_only=True)
class Fitted:
    """What cross-fitting chose.

    Attributes:
        family_choice: int64[F, repeats, folds], the candidate each family takes for a fold.
        picked: int64[repeats, folds], the candidate of the family that looked fastest without that fold.
        best: int64[F], the candidate each family takes on all requests.
        winner: the family that looks fastest on all requests, by the same rule.
        shares: float64[F], how often each family was picked.
    """

    family_choice: Ints
    picked: Ints
    best: Ints
    winner: int
    shares: Floats


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


def first_least(values: Floats, axis: int = 0) -> Ints:
    """Index of the least value, the first of those equal to it."""
    return np.argmax(values <= values.min(axis=axis, keepdims=True) * (1 + _EQUAL), axis=axis)


def cross_fit(time_s: Floats, families: Sequence[slice], dealt: Dealt) -> Fitted:
    """Choose for every fold, and for all requests.

    Args:
        time_s: float64[C, n] seconds of every candidate on every request.
        families: which candidates each family has; simpler ones first.
        dealt: the folds.
    """
    repeats, folds = len(dealt.labels), dealt.folds
    choice = np.empty((len(families), repeats, folds), np.int64)
    picked = np.empty((repeats, folds), np.int64)
    inner_total = np.zeros(len(families))
    shares = np.zeros(len(families))
    for repeat, labels in enumerate(dealt.labels):
        sums = time_s @ np.eye(folds)[labels]  # float64[C, folds]
        without = sums.sum(axis=1, keepdims=True) - sums
        inner = np.empty((len(families), folds))
        for f, members in enumerate(families):
            choice[f, repeat] = members.start + first_least(without[members])
            inner[f] = _inner(sums[members], without[members])
            inner_total[f] += sums[choice[f, repeat], np.arange(folds)].sum()
        fastest = first_least(inner)
        shares += np.bincount(fastest, minlength=len(families))
        picked[repeat] = choice[fastest, repeat, np.arange(folds)]
    totals = time_s.sum(axis=1)
    return Fitted(
        family_choice=choice,
        picked=picked,
        best=np.array([members.start + first_least(totals[members]) for members in families]),
        winner=int(first_least(inner_total)),
        shares=shares / (repeats * folds),
    )


def _inner(sums: Floats, without: Floats) -> Floats:
    """Seconds of one family on the folds that choose, each timed by what the others of them would take.

    Args:
        sums: float64[C, K] seconds on each fold.
        without: float64[C, K] seconds on all folds but that.

    Returns:
        float64[K]: entry k is without fold k.
    """
    folds = sums.shape[1]
    scores = np.zeros(folds)
    for k in range(folds):
        rest = without[:, [k]] - sums  # seconds without k and without each j
        taken = first_least(rest)
        held = sums[taken, np.arange(folds)]
        scores[k] = held.sum() - held[k]
    return scores


def held_out(time_s: Floats, choice: Ints, dealt: Dealt) -> Floats:
    """float64[n]: mean seconds of each request over repeats, timed by the candidate chosen without it.

    Args:
        time_s: float64[C, n]; may hold other times than those chosen by (a shifted latency model).
        choice: int64[repeats, folds].
        dealt: the folds.
    """
    requests = np.arange(time_s.shape[1])
    total = np.zeros(time_s.shape[1])
    for labels, taken in zip(dealt.labels, choice, strict=True):
        total += time_s[taken[labels], requests]
    return total / len(dealt.labels)
