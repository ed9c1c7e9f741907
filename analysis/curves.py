"""A controller's curves over its rounds, thinned to some thousand points in one streamed pass over a round log.

Owns the thinning. Up to `LIMIT` rounds every round is a point, as in a live run. Beyond that, points stand for blocks
of 2, 4, 8, ... consecutive rounds (the last block may be shorter), so that there are LIMIT / 2 to LIMIT of them, and

* `round` is the block's last round, `request` that round's request;
* the columns of a round are means over the block. So a column's sum over all rounds is the sum over points of its value
  times the step of `round`: nothing is sampled, nothing lost;
* `tau` and `tokens_per_s` are those of all rounds so far, exactly.

Memory is LIMIT sums per controller, however long the log.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from analysis.keys import COLUMNS, LIVE_COLUMNS, REQUEST, ROUND, TAU, TOKENS_PER_S
from specsim.roundlog import stream_round_log

LIMIT = 4096  # points of a curve at most; even
LOGGED = tuple(name for name in COLUMNS if name not in LIVE_COLUMNS)
_TOKENS, _SECONDS = LOGGED.index("emitted_len"), LOGGED.index("round_s")
Float64Array = npt.NDArray[np.float64]


class Curve:
    """The rounds of one controller, added up in blocks.

    Args:
        limit: most blocks to keep; even.

    Attributes:
        rounds: so far.
    """

    def __init__(self, limit: int = LIMIT) -> None:
        self.rounds, self._limit, self._width = 0, limit, 1
        self._sums = np.zeros((limit, len(LOGGED)))
        self._request = np.zeros(limit, np.int64)

    def add(self, values: Float64Array, request: npt.NDArray[np.int64]) -> None:
        """Append rounds.

        Args:
            values: float64[N, LOGGED].
            request: int64[N].
        """
        if not len(request):
            return
        while self.rounds + len(request) > self._limit * self._width:
            self._fold()
        block = (self.rounds + np.arange(len(request))) // self._width
        starts = np.flatnonzero(np.diff(block, prepend=-1))
        self._sums[block[starts]] += np.add.reduceat(values, starts, axis=0)
        ends = np.append(starts[1:], len(block)) - 1
        self._request[block[ends]] = request[ends]
        self.rounds += len(request)

    @property
    def count(self) -> int:
        """Points of the curve."""
        return -(-self.rounds // self._width)

    def _fold(self) -> None:
        half = self._limit // 2
        sums = self._sums[0::2] + self._sums[1::2]
        request = self._request[1::2].copy()  # of a last block without a partner the next round brings it
        self._sums[:half], self._sums[half:] = sums, 0.0
        self._request[:half], self._request[half:] = request, 0
        self._width *= 2

    def points(self) -> Iterator[dict[str, Any]]:
        """Rows to log, with every key of `analysis.keys.CURVES`; None for what the log does not hold."""
        blocks = self.count
        if not blocks:
            return
        sums, last = self._sums[:blocks], np.minimum(np.arange(1, blocks + 1) * self._width, self.rounds)
        means = sums / np.diff(last, prepend=0)[:, None]
        so_far = sums.cumsum(axis=0)
        tau, speed = so_far[:, _TOKENS] / last, so_far[:, _TOKENS] / so_far[:, _SECONDS]
        nothing = dict.fromkeys(LIVE_COLUMNS)
        for place in range(blocks):
            row = means[place].tolist()
            yield {
                ROUND: int(last[place]),
                REQUEST: int(self._request[place]),
                **{name: _known(value) for name, value in zip(LOGGED, row, strict=True)},
                **nothing,
                TAU: _known(float(tau[place])),
                TOKENS_PER_S: _known(float(speed[place])),
            }


def _known(value: float) -> float | None:
    return value if np.isfinite(value) else None


def read_curves(rounds: Path, run_ids: Sequence[str], *, limit: int = LIMIT) -> Mapping[str, Curve]:
    """The curves of some runs of a round log, warm-up rounds left out.

    Args:
        rounds: the file; rounds of a run stand in the order they were executed in.
        run_ids: whose.
        limit: most points of a curve.

    Raises:
        TraceError: the file is no round log.
    """
    curves = {run_id: Curve(limit) for run_id in run_ids}
    for _, batch in stream_round_log(rounds, ("run_id", REQUEST, "warmup", *LOGGED)):
        names = batch.column("run_id").dictionary_encode()
        codes = names.indices.to_numpy()
        counts = ~batch.column("warmup").to_numpy(zero_copy_only=False)
        columns = [batch.column(name).to_numpy(zero_copy_only=False).astype(np.float64) for name in LOGGED]
        values = np.stack(columns, axis=1)
        request = batch.column(REQUEST).to_numpy(zero_copy_only=False).astype(np.int64)
        for code, name in enumerate(names.dictionary.to_pylist()):
            if name in curves:
                mine = counts & (codes == code)
                curves[name].add(values[mine], request[mine])
    return curves
