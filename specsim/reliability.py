"""How well confidence q says what is accepted: bins of q per draft position, and the expected calibration error.

Owns the bins and the rule which draft tokens are looked at: those of every position of the text whose predecessors were
all accepted (behind the first rejection nothing is known). Sums only, so that a trace of any size can be gone over.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from specsim.chunk import TraceChunk

BINS = 10
"""Bins of equal width; q = 1 is in the last."""


class Bin(NamedTuple):
    """Draft tokens of one depth and one bin of q.

    `depth` from 1, None for all depths together; `bin` 0..BINS-1; `n` tokens, their mean q and the share accepted.
    `ece` is the expected calibration error of the depth: the mean of |mean q - share| over its bins, weighted by n.
    """

    depth: int | None
    bin: int
    n: int
    mean_q: float
    accepted: float
    ece: float


class Reliability:
    """Sums over a trace, chunk by chunk."""

    def __init__(self) -> None:
        self._sums = np.zeros((0, BINS, 3))  # depth, bin, (tokens, sum of q, accepted)

    def add(self, chunk: TraceChunk) -> None:
        """Take in rows; a chunk without q, and tokens whose q is missing, are left out."""
        if chunk.q is None:
            return
        depth, q, accepted = _judged(chunk)
        depths = int(depth.max(initial=0))
        cell = (depth - 1) * BINS + np.minimum((q * BINS).astype(np.int64), BINS - 1)
        values = (np.ones(len(q)), q, accepted.astype(np.float64))
        found = [np.bincount(cell, weights=value, minlength=depths * BINS).reshape(depths, BINS) for value in values]
        if depths > len(self._sums):
            self._sums = np.concatenate([self._sums, np.zeros((depths - len(self._sums), BINS, 3))])
        self._sums[:depths] += np.stack(found, axis=2)

    def bins(self) -> Iterator[Bin]:
        """Bins with tokens, by depth."""
        for number, sums in enumerate(self._sums, 1):
            yield from _bins(number, sums)

    def pooled(self) -> Iterator[Bin]:
        """Bins with tokens, all depths together."""
        yield from _bins(None, self._sums.sum(axis=0))


def _bins(depth: int | None, sums: NDArray[np.float64]) -> Iterator[Bin]:
    held = np.flatnonzero(sums[:, 0])
    if not held.size:
        return
    n, q_sum, hits = sums[held].T
    ece = float(np.abs(q_sum - hits).sum() / n.sum())
    for index, tokens, mean_q, share in zip(held, n, q_sum / n, hits / n, strict=True):
        yield Bin(depth, int(index), int(tokens), float(mean_q), float(share), ece)


def _judged(chunk: TraceChunk) -> tuple[NDArray[np.int64], NDArray[np.float64], NDArray[np.bool_]]:
    """(depth from 1, q, accepted) of every draft token whose predecessors were all accepted."""
    assert chunk.q is not None
    lens = np.diff(chunk.offsets)
    accept_len = np.repeat(chunk.accept_len.astype(np.int64), lens)
    depth = np.arange(len(chunk.q)) - np.repeat(chunk.offsets[:-1], lens) + 1
    judged = (depth <= accept_len + 1) & ~np.isnan(chunk.q)
    return depth[judged], chunk.q[judged].astype(np.float64), (depth <= accept_len)[judged]
