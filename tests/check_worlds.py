"""Traces for the checks with a truth that is known: nulls on the boundary of each property, and planted violations."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from specsim.chunk import TraceChunk, leading_true, offsets_of
from specsim.latency import LatencyModel
from specsim.schema import TraceMeta
from specsim.theory.check_data import Facts, gather
from specsim.theory.check_noise import Noise

RESAMPLES = 200


def noise_of(facts: Facts, seed: int = 0, level: float = 0.95) -> Noise:
    return Noise(requests=facts.units, resamples=RESAMPLES, level=level, seed=seed)


def facts_of(meta: TraceMeta, chunk: TraceChunk, latency: LatencyModel) -> Facts:
    return gather(meta, [chunk], latency, rows=chunk.rows)


def table_latency(times_s: list[float], **draft: float) -> LatencyModel:
    """verify(s) = times_s[s - 1]."""
    verify = {"form": "table", "s": list(range(1, len(times_s) + 1)), "times_s": times_s}
    return LatencyModel.from_dict({"schema": "specsim.latency/1", "verify": verify, "draft": draft}, where="test")


def flat_latency(alpha: float, longest: int) -> LatencyModel:
    """Times in proportion to the expected tokens of independent acceptance: every length is equally fast."""
    return table_latency([(1 - alpha**s) / (1 - alpha) for s in range(1, longest + 2)])


def text_trace(
    seed: int, *, requests: int = 12, longest: int = 12, levels: tuple[float, ...] = (0.8,), uneven: bool = False
) -> tuple[TraceMeta, TraceChunk]:
    """Rows as a deterministic drafter makes them: a token of the text is accepted or not, whichever row drafts it.

    Tokens are drawn independently, so acceptance given that all before were accepted is mean(levels) at every depth and
    q, the level of the token, is calibrated; but rows overlap strongly, and requests have different lengths.
    """
    rng = np.random.default_rng(seed)
    sizes = (20 + 100 * (rng.lognormal(0, 1, requests) if uneven else 2 * rng.random(requests))).astype(int)
    accepted, level, first = [], [], []
    for size in sizes:
        own = rng.choice(levels, size=size + longest)
        first.append(np.arange(size) + sum(len(part) for part in level))
        accepted.append(rng.random(size + longest) < own)
        level.append(own)
    token = (np.concatenate(first)[:, None] + np.arange(longest)).ravel()
    return rows_trace(sizes, longest, np.concatenate(accepted)[token], np.concatenate(level)[token])


def rows_trace(
    sizes: NDArray[np.int64], longest: int, accepted: NDArray[np.bool_], q: NDArray[np.float64]
) -> tuple[TraceMeta, TraceChunk]:
    """A trace of full rows from one flag and one confidence per draft token."""
    rows = int(np.sum(sizes))
    offsets = offsets_of(np.full(rows, longest))
    chunk = TraceChunk(
        request=np.repeat(np.arange(len(sizes)), sizes).astype(np.int32),
        pos=np.concatenate([np.arange(n) for n in sizes]).astype(np.int32),
        offsets=offsets,
        accept_len=leading_true(accepted, offsets).astype(np.int16),
        q=q.astype(np.float32),
    )
    return TraceMeta(max_draft_len=longest), chunk


def arm_trace(
    seed: int, mean_accept: list[float], cost_s: list[float], *, requests: int = 12, positions: int = 120
) -> tuple[TraceMeta, TraceChunk]:
    """Arms with given mean accepted tokens of 6 and seconds per round (verification takes 0.001); requests differ."""
    rng = np.random.default_rng(seed)
    length, arms = 6, len(cost_s)
    ease = np.repeat(1 + 0.2 * rng.standard_normal(requests).clip(-1.5, 1.5), positions)
    chance = np.clip(ease[:, None] * np.array(mean_accept) / length, 0, 1)
    meta = TraceMeta(
        kind="arm",
        max_draft_len=length,
        draft_len=length,
        arms=tuple({"name": f"arm-{k}", "budget": k + 1, "draft_s": (cost_s[k] - 0.001) / length} for k in range(arms)),
    )
    rows = requests * positions
    accepted = rng.binomial(length, chance).astype(np.int16)
    chunk = TraceChunk(
        request=np.repeat(np.arange(requests), positions).astype(np.int32),
        pos=np.tile(np.arange(positions), requests).astype(np.int32),
        offsets=np.arange(rows + 1, dtype=np.int64) * length,
        accept_len=accepted.max(axis=1),
        arm_accept_len=accepted,
    )
    return meta, chunk


ARM_LATENCY = LatencyModel.affine(c_s=0.0, b_s=0.001)
