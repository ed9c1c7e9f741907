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

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from analysis.keys import COLUMNS, LIVE_COLUMNS, REQUEST, ROUND, TAU, TOKENS_PER_S
from specsim.errors import ConfigError
from specsim.roundlog import stream_round_log

REQUESTS = "requests"
LIMIT = 4096  # points of a curve at most; even
LOGGED = tuple(name for name in COLUMNS if name not in LIVE_COLUMNS)
_TOKENS, _SECONDS = LOGGED.index("emitted_len"), LOGGED.index("round_s")
Float64Array = npt.NDArray[np.float64]


class Curve:
    """The rounds of one controller, added up in blocks.

    Args:
        limit: most blocks to keep; even.
        columns: of a round.

    Attributes:
        rounds: so far.
        live: the same rounds' `LIVE_COLUMNS`, where they are known.
    """

    def __init__(self, limit: int = LIMIT, columns: Sequence[str] = LOGGED) -> None:
        self.rounds, self._limit, self._width = 0, limit, 1
        self.live: Curve | None = None
        self._sums = np.zeros((limit, len(columns)))
        self._request = np.zeros(limit, np.int64)

    def add(self, values: Float64Array, request: npt.NDArray[np.int64]) -> None:
        """Append rounds.

        Args:
            values: float64[N, columns].
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

    def _means(self) -> tuple[npt.NDArray[np.int64], Float64Array]:
        """int64[blocks] last rounds, and float64[blocks, columns]."""
        last = np.minimum(np.arange(1, self.count + 1) * self._width, self.rounds)
        return last, self._sums[: self.count] / np.diff(last, prepend=0)[:, None]

    def points(self) -> Iterator[dict[str, Any]]:
        """Rows to log, with every key of `analysis.keys.CURVES`; None for what the log does not hold."""
        blocks = self.count
        if not blocks:
            return
        last, means = self._means()
        so_far = self._sums[:blocks].cumsum(axis=0)
        tau, speed = so_far[:, _TOKENS] / last, so_far[:, _TOKENS] / so_far[:, _SECONDS]
        known = self.live is not None and self.live.rounds == self.rounds
        timed = (
            self.live._means()[1] if self.live is not None and known else np.full((blocks, len(LIVE_COLUMNS)), np.nan)
        )
        for place in range(blocks):
            row = means[place].tolist()
            yield {
                ROUND: int(last[place]),
                REQUEST: int(self._request[place]),
                **{name: _known(value) for name, value in zip(LOGGED, row, strict=True)},
                **{name: _known(value) for name, value in zip(LIVE_COLUMNS, timed[place].tolist(), strict=True)},
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


def read_live(folder: Path, controllers: Sequence[str], *, limit: int = LIMIT) -> Mapping[str, Curve]:
    """What a live run's folder keeps of each round beyond the round log: `LIVE_COLUMNS`, from `requests/00003.json`.

    One prompt is held at a time.

    Args:
        folder: of the run.
        controllers: whose.
        limit: most points of a curve.

    Raises:
        ConfigError: a file that cannot be read.
    """
    curves = {name: Curve(limit, LIVE_COLUMNS) for name in controllers}
    files = [file for file in (folder / REQUESTS).glob("[0-9]*.json") if file.stem.isdecimal()]
    for file in sorted(files, key=lambda file: int(file.stem)):
        try:
            document = json.loads(file.read_text(encoding="utf-8"))
            for run in document["runs"]:
                if not run["warmup"] and run["controller"] in curves:
                    rounds = run["rounds"]
                    unknown = [np.nan] * len(rounds["round_s"])  # folders of earlier versions have no such column
                    values = np.array([rounds.get(name, unknown) for name in LIVE_COLUMNS], np.float64).T
                    curves[run["controller"]].add(values, np.full(len(values), int(document["number"])))
        except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
            raise ConfigError(f"{file}: cannot be read ({error!r}); repeat the command of the run") from None
    return curves
