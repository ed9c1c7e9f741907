"""Seconds of every candidate on every request: one replay of a trace, reduced to a table while it streams.

Memory: one number per candidate and request, and one count per candidate and length.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from analysis.recommend.scenarios import Scenario, shifted
from specsim.controllers import Controller
from specsim.engine import TraceResult, controllers_for, replay
from specsim.errors import ConfigError
from specsim.latency import LatencyModel
from specsim.schema import PASS_COLUMNS, TraceMeta
from specsim.trace import TraceChunk, open_trace

Floats = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class Source:
    """A trace to be replayed again and again.

    Attributes:
        path, meta: the file and its metadata.
        latency: what controllers believe, and what rounds cost where nothing is shifted.
        measured_draft: whether measured seconds of arms count (`specsim.engine.replay`).
        max_requests, skip: requests left out: those after the first so many, and those set aside.
        seed: of the controllers' own draws.
    """

    path: Path
    meta: TraceMeta
    latency: LatencyModel
    measured_draft: bool
    max_requests: int | None
    skip: frozenset[int]
    seed: int

    def __iter__(self) -> Iterator[TraceChunk]:
        columns = ["ctx_len", "q", "arm_accept_len", "arm_draft_s", "topk_q", "target_rank", *PASS_COLUMNS]
        with open_trace(self.path) as reader:
            yield from reader.chunks(columns, max_requests=self.max_requests, skip_requests=self.skip)


@dataclass(frozen=True, kw_only=True)
class Facts:
    """What a look through the rows tells: how many there are, and which controllers they can serve."""

    rows: int
    requests: int
    confidences: bool
    passes: bool


@dataclass(frozen=True, kw_only=True)
class Seconds:
    """Seconds per request in file order.

    Attributes:
        plain_s: float64[n] of plain decoding.
        time_s: float64[C, n] of every candidate.
        lengths: int64[C, L + 1], rounds by number of draft tokens verified.
        result: what the replay itself reports.
    """

    plain_s: Floats
    time_s: Floats
    lengths: NDArray[np.int64]
    result: TraceResult


def look_through(source: Source) -> Facts:
    """Read every row once.

    Raises:
        ConfigError: a log of executed rounds, which cannot tell what other lengths would have done.
    """
    if source.meta.coverage == "every-round":
        raise ConfigError(
            f"{source.path}: a log of executed rounds (coverage every-round); allowed: a trace of every position, "
            "since a log does not tell what other lengths would have given (docs/validity.md). Record one with "
            "`python -m real.probe`"
        )
    rows = requests = 0
    confidences = passes = True
    for chunk in source:
        rows, requests = rows + chunk.rows, requests + len(np.unique(chunk.request))
        some = chunk.lengths > 0
        if some.any():
            confidences &= chunk.q is not None and not bool(np.isnan(chunk.q).any())
            passes &= chunk.pass_offsets is not None and bool((np.diff(chunk.pass_offsets)[some] > 0).all())
    tree = source.meta.kind == "tree"  # whose confidences are those of its lists
    return Facts(rows=rows, requests=requests, confidences=confidences or tree, passes=passes and not tree)


def measure(
    source: Source,
    controllers: Sequence[Controller],
    *,
    scenario: Scenario | None = None,
    on_progress: Callable[[int], None] | None = None,
) -> Seconds:
    """Replay with every controller.

    Args:
        source: the trace.
        controllers: built for the latency model as it stands, also where a scenario makes rounds cost something else.
        scenario: how costs differ from that model.
        on_progress: called with the number of rows done.

    Raises:
        ConfigError: a controller or latency model that this trace cannot serve.
    """
    plain = controllers_for(source.meta, source.latency, ["plain"])
    everyone = [*controllers, *plain]
    meta, latency, chunks = (source.meta, source.latency, source) if scenario is None else _shifted(source, scenario)
    parts: list[list[Floats]] = [[] for _ in everyone]
    longest = max(meta.tree_nodes if meta.kind == "tree" else meta.max_draft_len, meta.draft_len or 0)
    lengths = np.zeros((len(everyone), longest + 1), np.int64)

    def add(index: int, columns: dict[str, NDArray[Any]]) -> None:
        firsts = np.flatnonzero(np.diff(columns["request"], prepend=-1))
        parts[index].append(np.add.reduceat(columns["round_s"], firsts))
        lengths[index] += np.bincount(columns["submitted_len"], minlength=longest + 1)

    result = replay(
        meta,
        chunks,
        latency,
        everyone,
        seed=source.seed,
        measured_draft=source.measured_draft,
        on_rounds=add,
        on_progress=on_progress,
    )
    times = [np.concatenate(part) for part in parts]
    return Seconds(
        plain_s=times[-1],
        time_s=np.array(times[:-1]).reshape(len(controllers), times[-1].size),
        lengths=lengths[:-1],
        result=result,
    )


@dataclass(frozen=True)
class _Scaled:
    """The chunks of an arm trace with other seconds of drafts."""

    source: Source
    factor: float

    def __iter__(self) -> Iterator[TraceChunk]:
        for chunk in self.source:
            seconds = chunk.arm_draft_s
            yield chunk if seconds is None else replace(chunk, arm_draft_s=seconds * np.float32(self.factor))


def _shifted(source: Source, scenario: Scenario) -> tuple[TraceMeta, LatencyModel, Source | _Scaled]:
    meta = source.meta
    longest = meta.tree_nodes if meta.kind == "tree" else max(meta.max_draft_len, meta.draft_len or 0)
    latency = shifted(source.latency, scenario, longest)
    if meta.kind != "arm" or meta.arms is None or scenario.draft == 1.0:
        return meta, latency, source
    arms = tuple({**arm, "draft_s": float(arm["draft_s"]) * scenario.draft} for arm in meta.arms)
    return replace(meta, arms=arms), latency, _Scaled(source, scenario.draft)
