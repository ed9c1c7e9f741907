"""What has been read of run folders, as values: runs and their methods, experiments of the papers, other documents.

Owns no rule; `analysis.runs` reads them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

PLAIN = "plain"  # plain decoding, the baseline of every speedup


@dataclass(frozen=True, kw_only=True)
class Method:
    """A controller of a run: a row of a results table.

    Args:
        controller: its spelling.
        tokens, rounds: counts; expectations where a replay was of expected acceptance.
        tau: tokens per round, the target's own token included.
        time_s: its seconds.
        plain_s: those of plain decoding for as many tokens; None without plain decoding.
        speedup: plain_s / time_s.
        ci95: 95 % interval of the speedup by bootstrap over requests; None with one request.
        submitted_len: mean draft tokens (of trees nodes) verified per round.
        acceptance_rate: accepted of submitted; None when none was submitted.
        predicted: speedup the simulator foretold, of a validation.
        privileged: it knows what no deployed controller could.
        label: how logs and tables call it where that is not its spelling.
        best_static_s: seconds of the best static length (of arms the best single one) in hindsight, of a replay.
    """

    controller: str
    tokens: float
    rounds: float
    tau: float
    time_s: float
    plain_s: float | None
    speedup: float | None
    ci95: tuple[float, float] | None
    submitted_len: float
    acceptance_rate: float | None
    predicted: float | None = None
    privileged: bool = False
    label: str | None = None
    best_static_s: float | None = None

    @property
    def name(self) -> str:
        """For people."""
        return self.label or self.controller

    @property
    def rival(self) -> bool:
        """Whether it may be advised in place of plain decoding: it is another, and could be deployed."""
        return not self.privileged and self.controller != PLAIN

    @property
    def tokens_per_s(self) -> float:
        """Throughput: sums over sums."""
        return self.tokens / self.time_s


@dataclass(frozen=True, kw_only=True)
class Run:
    """One comparison of controllers: a trace of a replay, a real run, or a validation.

    Args:
        folder: where it was read.
        name: unique among the runs read together.
        kind: what made it.
        trace_name, target, drafter, dataset, temperature: of what; None where the documents do not say.
        methods: its controllers in order; none where a run was interrupted.
        rounds: the round log; None where there is none.
        run_ids: each controller's `run_id` in it.
        trace: the position trace, where it can be found.
        latency: the `specsim.latency/1` document it was priced or controlled with.
        provenance: where it came from.
        notes: what is missing, and why.
        document: what the numbers were read from.
    """

    folder: Path
    name: str
    kind: Literal["replay", "real", "validation"]
    trace_name: str | None
    target: str | None
    drafter: str | None
    dataset: str | None
    temperature: float | None
    methods: tuple[Method, ...]
    rounds: Path | None
    run_ids: Mapping[str, str]
    trace: Path | None
    latency: Mapping[str, Any] | None
    provenance: Mapping[str, Any]
    notes: tuple[str, ...]
    document: Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class Paper:
    """An experiment of `python -m real.paper`.

    Args:
        folder: where it was read.
        name: unique among all that was read together.
        experiment: which.
        document: its results.json.
        tables: data of its figures and its rows, by the file's name without its ending.
    """

    folder: Path
    name: str
    experiment: str
    document: Mapping[str, Any]
    tables: Mapping[str, Path]


Documents = tuple[tuple[Path, Mapping[str, Any]], ...]


@dataclass(frozen=True, kw_only=True)
class Loaded:
    """All that was read.

    Args:
        runs: of every folder, those of a replay in the order of its traces.
        papers: experiments.
        theory, regret, fits: documents of `specsim.theory check`, `specsim.regret` and `specsim.latency fit`.
    """

    runs: tuple[Run, ...]
    papers: tuple[Paper, ...]
    theory: Documents
    regret: Documents
    fits: Documents
