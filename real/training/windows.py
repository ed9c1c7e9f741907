"""Which windows of a token stream a step sees: a pure function of seed and step, so that resuming needs no state."""

from __future__ import annotations

import numpy as np


class Windows:
    """Windows of a stream in shuffled order, epoch after epoch, each epoch cut at another offset.

    Args:
        stream: int64[N] tokens.
        length: tokens that are read in a window; one more is the last label.
        batch: windows in a step.
        seed: of the order.

    Raises:
        ValueError: the stream holds less than a batch.
    """

    def __init__(self, stream: np.ndarray, length: int, batch: int, seed: int) -> None:
        self._stream, self._length, self._batch, self._seed = stream, length, batch, seed
        self.per_epoch = (len(stream) - length) // length // batch  # an offset below `length` always fits
        if self.per_epoch < 1:
            raise ValueError(f"{len(stream)} tokens are less than one batch of {batch} windows of {length}")
        self._epoch, self._order, self._offset = -1, np.empty(0, np.int64), 0

    def batch(self, step: int) -> np.ndarray:
        """int64[batch, length + 1], the windows of a step (from 0)."""
        epoch, place = divmod(step, self.per_epoch)
        if epoch != self._epoch:
            rng = np.random.default_rng((self._seed, epoch))
            self._offset = int(rng.integers(self._length))
            self._order = rng.permutation(self.per_epoch * self._batch)
            self._epoch = epoch
        starts = self._offset + self._length * self._order[place * self._batch :][: self._batch]
        return self._stream[starts[:, None] + np.arange(self._length + 1)]
