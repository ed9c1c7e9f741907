"""What derived tables are made from besides a run's own documents: its position trace, as the run used it.

Owns how a trace is found and opened again: with the run's latency model, and for a replay with the settings of its
config.json, so that what is replayed here equals the run's own results.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from analysis.loaded import Run
from specsim.chunk import TraceChunk
from specsim.engine import as_chain, replay
from specsim.latency import LatencyModel
from specsim.metrics import bootstrap_ratios
from specsim.schema import PASS_COLUMNS, TraceMeta
from specsim.trace import TraceReader, open_trace

SEED = 0
Floats = npt.NDArray[np.float64]


class Missing(Exception):
    """A table that this run cannot give; the text is the reason, one line for people."""


@dataclass(frozen=True, kw_only=True)
class Source:
    """An open trace.

    Args:
        reader: of the file.
        meta: its metadata, as the run read it (a tree's main chain, another number of nodes).
        latency: what rounds cost.
        acceptance, seed, max_requests: as for `specsim.engine.replay`.
        measured_draft: whether the seconds that an arm trace measured count.
    """

    reader: TraceReader
    meta: TraceMeta
    latency: LatencyModel
    acceptance: str = "logged"
    seed: int = SEED
    max_requests: int | None = None
    measured_draft: bool = True

    def chunks(self, columns: Collection[str]) -> Iterator[TraceChunk]:
        """The rows that the run used, with these optional columns."""
        return self.reader.chunks(columns, max_requests=self.max_requests)


@contextmanager
def opened(run: Run) -> Iterator[Source]:
    """A run's trace.

    Raises:
        Missing: it has none, nothing prices its rounds, or the replay left some of its requests out.
        TraceError: the file breaks a rule of the format.
    """
    if run.trace is None:
        reason = next((note for note in run.notes if "trace" in note), "no position trace was found with it")
        raise Missing(reason)
    config = _config(run)
    if config.get("quarantine") is not None:
        raise Missing("the replay may have set requests of its trace aside (--quarantine), and which is not recorded")
    with open_trace(run.trace) as reader:
        meta = reader.meta
        if config.get("chain"):
            meta = as_chain(meta)
        elif meta.kind == "tree" and config.get("max_nodes") is not None:
            meta = replace(meta, max_nodes=config["max_nodes"])
        document = run.latency or meta.latency
        if document is None:
            raise Missing("neither the run nor its trace holds a latency model")
        yield Source(
            reader=reader,
            meta=meta,
            latency=LatencyModel.from_dict(document, where=f"{run.folder}: latency"),
            acceptance=config.get("acceptance", "logged"),
            seed=config.get("seed", SEED),
            max_requests=config.get("max_requests"),
            measured_draft=config.get("latency") is None,
        )


def longest(meta: TraceMeta) -> int:
    """The longest draft of a trace, in tokens; in nodes where it is replayed as trees."""
    return meta.tree_nodes if meta.kind == "tree" else meta.max_draft_len


def _config(run: Run) -> dict[str, Any]:
    """The resolved command of a replay; empty for other runs, whose traces were used as they stand."""
    file = run.folder / "config.json"
    if run.kind != "replay" or not file.is_file():
        return {}
    try:
        found = json.loads(file.read_text(encoding="utf-8"))
    except ValueError:
        found = None
    if not isinstance(found, dict):
        raise Missing(f"{file} cannot be read, so how its trace was replayed is not known")
    return found


@dataclass(frozen=True, kw_only=True)
class Sums:
    """One controller per request, B of them.

    Args:
        tokens, seconds: float64[B].
        rounds, submitted: over all requests.
    """

    tokens: Floats
    seconds: Floats
    rounds: float
    submitted: float

    @property
    def mean_length(self) -> float:
        """Draft tokens submitted per round."""
        return self.submitted / self.rounds


def replayed(source: Source, spellings: Sequence[str]) -> list[Sums]:
    """Every request's tokens and seconds under each controller; one streamed pass, sums only.

    Raises:
        Missing: a log of rounds, or expected acceptance, under which there are no single rounds.
    """
    if source.meta.coverage == "every-round":
        raise Missing("its trace is a log of rounds, which tells nothing of other lengths (docs/validity.md)")
    if source.acceptance == "expected":
        raise Missing("replayed with --acceptance expected, which has no single rounds")
    columns = ["ctx_len", "arm_accept_len", "arm_draft_s", *PASS_COLUMNS]
    columns += ["topk_q", "target_rank"] * (source.meta.kind == "tree")
    columns += ["accept_prob"] * (source.acceptance == "sampled")
    parts: list[list[tuple[Floats, Floats]]] = [[] for _ in spellings]

    def add(index: int, rounds: dict[str, npt.NDArray[Any]]) -> None:
        _, request = np.unique(rounds["request"], return_inverse=True)
        parts[index].append(
            (
                np.bincount(request, weights=rounds["emitted_len"]).astype(np.float64),
                np.bincount(request, weights=rounds["round_s"]).astype(np.float64),
            )
        )

    result = replay(
        source.meta,
        source.chunks(columns),
        source.latency,
        spellings,
        seed=source.seed,
        acceptance=source.acceptance,
        measured_draft=source.measured_draft,
        on_rounds=add,
    )
    return [
        Sums(
            tokens=np.concatenate([tokens for tokens, _ in found]),
            seconds=np.concatenate([seconds for _, seconds in found]),
            rounds=row["rounds"],
            submitted=row["submitted"],
        )
        for found, row in zip(parts, result.results, strict=True)
    ]


def interval(numerator: Floats, denominator: Floats, *, seed: int = SEED) -> tuple[float | None, float | None]:
    """95 % interval of a ratio of sums by bootstrap over requests; (None, None) with one request."""
    ((low, high),) = bootstrap_ratios(numerator, [denominator], seed)
    return low, high
