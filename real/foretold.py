"""What a replay foretells of every controller: speedups and seconds per prompt.

Owns how often a trace is replayed for it, and with which seconds. Length rules are replayed once: no prediction of
theirs hangs on the seconds of single rounds. Bandits of arms learn from these, and a replay in which every round takes
exactly what the calibration says follows one path of many: noise breaks ties and frees a rule from an arm that was
unlucky once. So a trace of arms is replayed `REPLAYS` times, each round's price multiplied by a residual drawn from
those the calibration measured (`real.arm_costs.residuals`), and the prediction is of the mean of these seconds.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from real.arm_costs import live_view, noise_of
from specsim.chunk import TraceChunk
from specsim.controllers import Controller
from specsim.engine import replay
from specsim.latency import LatencyModel
from specsim.rng import uniform_array
from specsim.schema import TraceMeta
from specsim.trace import read_trace

Float64Array = npt.NDArray[np.float64]
REPLAYS = 40
NOISE_STREAM = 41  # of the counter-based generator (specsim.rng); acceptance and controllers have others


@dataclass(frozen=True, kw_only=True)
class Foretold:
    """One controller.

    Args:
        speedup: seconds of plain decoding over its seconds, means of all replays, for the same tokens.
        tokens, rounds: means of all replays.
        sd: standard deviation of the speedup between replays, 0 where there was one.
        time_s: float64[B] mean seconds of each prompt, by the numbers of requests.
    """

    speedup: float
    tokens: float
    rounds: float
    sd: float
    time_s: Float64Array


def foretell(
    trace: Path, latency: LatencyModel, controllers: Sequence[str | Controller], *, seed: int
) -> list[Foretold]:
    """Replay a trace with the costs of a calibration.

    Args:
        trace: recorded of the same prompts; one of arms is turned to the order and the prices of a live run
            (`real.arm_costs`).
        latency: costs of the replay; controllers that are built keep those they were built with.
        controllers: as they decode.
        seed: of the run, and of the residuals.

    Raises:
        ConfigError: a trace that cannot be read or replayed.
    """
    meta, chunk = live_view(*read_trace(trace), latency)
    noise = noise_of(latency) if meta.kind == "arm" else None
    results, seconds = [], []
    for number in range(1 if noise is None else REPLAYS):
        priced = chunk if noise is None else noisy(meta, chunk, latency, noise, seed=seed, replica=number)
        found = replay(meta, [priced], latency, controllers, seed=seed, keep_rounds=True)
        results.append(found.results)
        seconds.append([_by_request(rounds) for rounds in found.rounds])
    return [_mean([one[n] for one in results], np.array([one[n] for one in seconds])) for n in range(len(controllers))]


def _mean(results: Sequence[Mapping[str, Any]], seconds: Float64Array) -> Foretold:
    """Of one controller's replays, `seconds` float64[R, B]."""
    speedups = np.array([one["speedup"] for one in results], np.float64)
    time_s = seconds.mean(axis=0)
    once = len(results) == 1
    return Foretold(
        # A single replay's own, to the last digit; sums in another order would differ in it.
        speedup=float(speedups[0] if once else results[0]["plain_time_s"] / time_s.sum()),
        tokens=float(np.mean([one["tokens"] for one in results])),
        rounds=float(np.mean([one["rounds"] for one in results])),
        sd=0.0 if once else float(speedups.std(ddof=1)),
        time_s=time_s,
    )


def noisy(
    meta: TraceMeta, chunk: TraceChunk, latency: LatencyModel, noise: Float64Array, *, seed: int, replica: int
) -> TraceChunk:
    """An arm trace whose rounds take other seconds, the same for all rules that play the same arm at the same place.

    A round's price is that of the draft and the verification. The residual of both is put into the draft's seconds, the
    only ones that a trace holds, which never fall below a hundredth of what they were.

    Args:
        meta, chunk: of arms, priced.
        latency: prices the verification.
        noise: float64[n] residuals, ascending, with mean 1.
        seed, replica: of the draws.
    """
    assert meta.arms is not None
    assert meta.draft_len is not None
    whole_s = np.array([arm["draft_s"] for arm in meta.arms]) * meta.draft_len
    recorded = chunk.arm_draft_s
    own_s = np.broadcast_to(whole_s, (chunk.rows, len(whole_s))) if recorded is None else recorded.astype(np.float64)
    own_s = np.where(np.isnan(own_s), whole_s, own_s)
    length = np.minimum(np.diff(chunk.offsets), meta.draft_len).astype(np.int64)
    share = np.maximum(length, 1)[:, None] / meta.draft_len  # of a whole draft, which a text's end cuts short
    ctx_len = np.zeros(chunk.rows) if chunk.ctx_len is None else chunk.ctx_len
    rest_s = latency.verify_table(meta.draft_len + 1)[length + 1] + latency.ctx_s * ctx_len
    drawn = uniform_array(seed, chunk.request, chunk.pos, replica, stream=NOISE_STREAM)
    factor = noise[(drawn * len(noise)).astype(np.int64)]
    more_s = (factor - 1)[:, None] * (own_s + rest_s[:, None] / share)
    return replace(chunk, arm_draft_s=np.maximum(own_s + more_s, own_s / 100).astype(np.float32))


def _by_request(rounds: Mapping[str, npt.NDArray[Any]]) -> Float64Array:
    """float64[B] sums of a RoundLog's seconds, by the numbers of requests."""
    _, number = np.unique(rounds["request"], return_inverse=True)
    return np.bincount(number, weights=rounds["round_s"]).astype(np.float64)
