"""The replay engine: trace x latency x controllers -> results and round logs. A pure library function, no files.

`replay` takes chunks of whole requests one at a time, so a trace larger than memory streams through. Everything shared
by the controllers of a trace (acceptance, best lengths, oracle, plain time) is worked out once per chunk.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from specsim import expected as exp
from specsim.acceptance import draw_accept_lens
from specsim.chunk import TraceChunk
from specsim.controllers import Controller, Setting, build
from specsim.errors import ConfigError
from specsim.kernel import run_chunk
from specsim.latency import LatencyModel
from specsim.metrics import Totals, bootstrap_ratios
from specsim.oracle import (
    best_arms,
    best_round_lengths,
    fixed_arm_totals,
    plain_times,
    shortest_arm_paths,
    shortest_paths,
    static_times,
)
from specsim.passes import with_passes
from specsim.rows import SUM_NAMES, Costs, Rounds, Rows, make_costs, make_rows, planned
from specsim.schema import TraceMeta
from specsim.tree_rows import tree_latency, tree_parts, tree_passes, tree_rows
from specsim.validity import LogValidity

ACCEPTANCES = ("logged", "sampled", "expected")
RoundSink = Callable[[int, dict[str, NDArray[Any]]], None]


@dataclass(frozen=True, kw_only=True)
class TraceResult:
    """What one replay of one trace gives.

    Attributes:
        kind: what was chosen in a round: "length", "arm", or of a "tree" the number of nodes.
        rows, requests: of the trace as replayed.
        results: one dictionary per controller, in order, with the keys of a replay result (docs/formats.md) less
            `trace`.
        static_s: float64[max_draft_len + 1], seconds of every static length (of every arm for arm traces, of every
            number of nodes, 0 to the most, for trees), or None for a log of rounds.
        oracle_s: seconds of the clairvoyant shortest path, or None for a log of rounds.
        rounds: RoundLog columns per controller when `keep_rounds` was asked for, else empty.
    """

    kind: str
    rows: int
    requests: int
    results: list[dict[str, Any]]
    static_s: NDArray[np.float64] | None
    oracle_s: float | None
    rounds: list[dict[str, NDArray[Any]]] = field(default_factory=list)


def replay(
    meta: TraceMeta,
    chunks: Iterable[TraceChunk],
    latency: LatencyModel,
    controllers: Sequence[str | Controller],
    *,
    seed: int = 0,
    acceptance: str = "logged",
    keep_rounds: bool = False,
    on_rounds: RoundSink | None = None,
    on_progress: Callable[[int], None] | None = None,
    measured_draft: bool = True,
    compiled: bool | None = None,
) -> TraceResult:
    """Replay one trace with several controllers.

    A tree trace is replayed by number of nodes: of each row the best-first tree of up to `meta.tree_nodes` nodes is
    built, and a length is the number of its nodes, best first, that are verified (`specsim.tree_rows`).

    Args:
        meta: the trace's metadata; `as_chain` of it replays the main chain of a tree trace.
        chunks: whole requests, validated (`specsim.trace.TraceReader.chunks`); `best-arm` goes over them twice.
        latency: latency model.
        controllers: command-line spellings or built controllers, in the order of the results.
        seed: key of sampled acceptance, of controllers' randomness and of the bootstrap; 0 .. 2^63-1.
        acceptance: "logged" (accept_len), "sampled" (draws from accept_prob) or "expected" (its probabilities).
        keep_rounds: collect the RoundLog columns of every controller in the result.
        on_rounds: called as (controller index, columns) after every chunk; not with "expected".
        on_progress: called with the number of rows done after every chunk.
        measured_draft: use the seconds an arm trace measured for each draft (`arm_draft_s`) where it has them.
        compiled: False runs everything a controller does as plain Python (for tests).

    Raises:
        ConfigError: a controller, acceptance mode or latency model that this trace cannot serve.
    """
    if acceptance not in ACCEPTANCES:
        raise ConfigError(f"acceptance {acceptance!r}: allowed are {', '.join(ACCEPTANCES)}")
    built = controllers_for(meta, latency, controllers)
    job = _Job(meta, latency, built, seed, acceptance, compiled, measured_draft)
    if any(controller.privilege == "file" for controller in built):
        if iter(chunks) is chunks:
            raise ConfigError(
                "best-arm goes over the trace twice: pass chunks that can be iterated again, not a generator"
            )
        job.find_best_arm(chunks)
    kept: list[list[dict[str, NDArray[Any]]]] = [[] for _ in built]
    for chunk in chunks:
        for part in tree_parts(chunk, meta.tree_nodes) if meta.kind == "tree" else (chunk,):
            for index, columns in enumerate(job.add(part, log=keep_rounds or on_rounds is not None)):
                if on_rounds is not None:
                    on_rounds(index, columns)
                if keep_rounds:
                    kept[index].append(columns)
        if on_progress is not None:
            on_progress(job.rows)
    if job.rows == 0:
        raise ConfigError("the trace has no rows to replay")
    return job.finish([_concatenate(parts) for parts in kept] if keep_rounds else [])


def as_chain(meta: TraceMeta) -> TraceMeta:
    """Metadata under which a tree trace is replayed along its main chain, by length; of another kind, as it is."""
    return replace(meta, kind="length", max_nodes=None) if meta.kind == "tree" else meta


def controllers_for(
    meta: TraceMeta, latency: LatencyModel, controllers: Sequence[str | Controller]
) -> list[Controller]:
    """The controllers built for a trace; those already built are passed through.

    Raises:
        ConfigError: a trace of a kind they cannot replay, or a spelling that cannot be built.
    """
    arms = meta.arms or () if meta.kind == "arm" else ()
    tree = meta.kind == "tree"
    setting = Setting(
        block_len=meta.tree_nodes if tree else meta.block_len,
        max_draft_len=meta.tree_nodes if tree else meta.max_draft_len,
        latency=tree_latency(meta, latency) if tree else with_passes(latency, meta.extra),
        arm_draft_s=tuple(float(arm["draft_s"]) for arm in arms),
        draft_len=meta.draft_len or 0 if arms else 0,
        tree=tree,
    )
    return [build(c, setting) if isinstance(c, str) else c for c in controllers]


def _concatenate(parts: list[dict[str, NDArray[Any]]]) -> dict[str, NDArray[Any]]:
    if len(parts) == 1:
        return parts[0]
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]} if parts else {}


class _Job:
    """Sums of a replay in progress."""

    def __init__(
        self,
        meta: TraceMeta,
        latency: LatencyModel,
        controllers: list[Controller],
        seed: int,
        acceptance: str,
        compiled: bool | None,
        measured_draft: bool,
    ) -> None:
        self.meta, self.controllers, self.seed = meta, controllers, seed
        self.acceptance, self.compiled = acceptance, compiled
        self.measured_draft = measured_draft
        self.arms = meta.n_arms if meta.kind == "arm" else 0
        self.draft_len = meta.draft_len or 0 if self.arms else 0
        # Of trees one pass drafts all the nodes there are, and nodes are what is counted.
        self.tree = meta.kind == "tree"
        self.block_len = meta.tree_nodes if self.tree else meta.block_len
        self.max_len = meta.tree_nodes if self.tree else meta.max_draft_len
        latency = tree_latency(meta, latency) if self.tree else latency
        self.costs: Costs = make_costs(latency, max(self.max_len, self.draft_len))
        self.every_round = meta.coverage == "every-round"
        self.rows = self.requests = 0
        self.totals = [Totals() for _ in controllers]
        self.states = [c.fresh_state() for c in controllers]
        self.validity = [LogValidity() for _ in controllers]
        self.static_s = np.zeros(self.arms or self.max_len + 1)
        self.exact = np.zeros(0, np.int32)  # of the rows of this chunk, leading nodes that are certain
        self.uncertain = [0 for _ in controllers]
        self.oracle_s = 0.0
        self.best_arm = -1

    def find_best_arm(self, chunks: Iterable[TraceChunk]) -> None:
        """Pass over the whole trace once to know which single arm gives the most tokens per second."""
        totals = np.zeros((self.arms, 2))
        for chunk in chunks:
            self._check_chunk(chunk)
            totals += fixed_arm_totals(self._rows(chunk), self.costs, self.draft_len, self.every_round)
        self.best_arm = int(np.argmax(totals[:, 0] / totals[:, 1])) if totals.any() else -1

    def add(self, chunk: TraceChunk, *, log: bool) -> list[dict[str, NDArray[Any]]]:
        """Replay one chunk with every controller; RoundLog columns per controller when `log`."""
        self._check_chunk(chunk)
        rows = self._rows(chunk)
        if self.acceptance == "expected":
            self._add_expected(chunk, rows)
            columns = []
        else:
            columns = self._add_rounds(chunk, rows, log=log)
        self.rows += chunk.rows
        self.requests += rows.starts.size - 1
        return columns

    def _check_chunk(self, chunk: TraceChunk) -> None:
        def lacks(values: NDArray[np.float32] | None) -> bool:
            return chunk.offsets[-1] > 0 and (values is None or bool(np.isnan(values).any()))

        if self.costs.ctx_s > 0 and chunk.ctx_len is None:
            raise ConfigError(
                "the latency model has ctx_s > 0 but the trace has no ctx_len; record ctx_len or use a model without it"
            )
        hungry = list(dict.fromkeys(c.name for c in self.controllers if c.needs_q))
        if hungry and not self.tree and lacks(chunk.q):
            raise ConfigError(
                f"controllers {', '.join(hungry)} decide on confidences, but column 'q' has null rows; record q, or "
                "choose among plain, static, g4, hf-heuristic, greedy-oracle, oracle"
            )
        if (self.arms or self.tree) and self.acceptance != "logged":
            held = "arm traces hold accepted lengths" if self.arms else "tree traces hold the target's own path"
            raise ConfigError(f"--acceptance {self.acceptance}: {held} only; use --acceptance logged")
        if self.acceptance != "logged" and lacks(chunk.accept_prob):
            raise ConfigError(
                f"--acceptance {self.acceptance} needs 'accept_prob' in every row; record it or use --acceptance logged"
            )

    def _rows(self, chunk: TraceChunk) -> Rows:
        if self.arms:
            return make_rows(chunk, arm_draft_s=self._arm_draft_s(chunk))
        if self.tree:
            rows, self.exact = tree_rows(chunk, self.max_len)
            return rows
        if self.acceptance != "sampled":
            return make_rows(chunk)
        probabilities = np.zeros(0, np.float32) if chunk.accept_prob is None else chunk.accept_prob
        return make_rows(chunk, draw_accept_lens(self.seed, chunk.request, chunk.pos, chunk.offsets, probabilities))

    def _arm_draft_s(self, chunk: TraceChunk) -> NDArray[np.float64]:
        """float64[R, K]: measured seconds of each draft, else the arm's stated seconds per token times its length."""
        stated = np.array([float(arm["draft_s"]) * self.draft_len for arm in self.meta.arms or ()])
        if chunk.arm_draft_s is None or not self.measured_draft:
            return np.tile(stated, (chunk.rows, 1))
        measured = chunk.arm_draft_s.astype(np.float64)
        return np.where(np.isnan(measured), stated, measured)

    def _add_rounds(self, chunk: TraceChunk, rows: Rows, *, log: bool) -> list[dict[str, NDArray[Any]]]:
        best, hints = self._arm_hints(rows) if self.arms else self._length_hints(rows)
        plain_s = plain_times(rows, self.costs)
        columns = []
        for index, controller in enumerate(self.controllers):
            told = rows._replace(hint=hints[controller.privilege])
            run = run_chunk(
                controller,
                self.states[index],
                told if controller.plan is None else planned(rows, *controller.plan(chunk)),
                best,
                self.costs,
                block_len=self.block_len,
                every_round=self.every_round,
                limit=self.max_len,
                seed=self.seed,
                draft_len=self.draft_len,
                compiled=self.compiled,
            )
            if self.tree:
                self.uncertain[index] += int((run.rounds.submitted_len > self.exact[run.rounds.row]).sum())
                run.sums[SUM_NAMES.index("draft_passes")] *= tree_passes(self.meta)
                run.rounds.draft_passes[:] *= tree_passes(self.meta)
            self.totals[index].add_run(run, run.plain_s if self.every_round else plain_s, self.arms)
            if self.every_round and not self.arms and controller.pays_overhead:
                self.validity[index].add(rows, self.costs, run)
            if log:
                columns.append(_round_log(chunk, run.rounds))
        return columns

    def _length_hints(self, rows: Rows) -> tuple[NDArray[np.int32], dict[str, NDArray[np.int32]]]:
        """Best length of each row, and the hint of each privilege; adds to the oracle and to all static lengths."""
        block_len = self.block_len
        best = best_round_lengths(rows, self.costs, block_len)
        hints = {"none": rows.hint, "round": best, "path": best}
        if not self.every_round:
            path_s, hints["path"] = shortest_paths(rows, self.costs, block_len)
            self.oracle_s += float(path_s.sum())
            self.static_s += static_times(rows, self.costs, block_len, self.max_len)
        return best, hints

    def _arm_hints(self, rows: Rows) -> tuple[NDArray[np.int32], dict[str, NDArray[np.int32]]]:
        """The same for arms; deviations from a best length mean nothing here."""
        best = best_arms(rows, self.costs, self.draft_len)
        hints = {
            "none": rows.hint,
            "round": best,
            "path": best,
            "file": np.full(rows.pos.size, self.best_arm, np.int32),
        }
        if not self.every_round:
            path_s, hints["path"] = shortest_arm_paths(rows, self.costs, self.draft_len)
            self.oracle_s += float(path_s.sum())
            self.static_s += fixed_arm_totals(rows, self.costs, self.draft_len, self.every_round)[:, 1]
        return rows.hint, hints

    def _add_expected(self, chunk: TraceChunk, rows: Rows) -> None:
        block_len = self.meta.block_len
        accept_prob = np.zeros(0, np.float32) if chunk.accept_prob is None else chunk.accept_prob
        best = exp.best_lengths_by_outcome(rows, self.costs, block_len)
        plans = {"none": np.full_like(best, -1), "round": best, "path": best}
        if not self.every_round:
            path_s, plans["path"] = exp.expected_paths(rows, accept_prob, self.costs, block_len)
            self.oracle_s += float(path_s.sum())
            self.static_s += exp.expected_static_times(
                rows, accept_prob, self.costs, block_len, self.meta.max_draft_len
            )
        plain_s = plain_times(rows, self.costs)
        for totals, controller in zip(self.totals, self.controllers, strict=True):
            plan, own = plans[controller.privilege], rows
            if controller.plan is not None:
                own = planned(rows, *controller.plan(chunk))
                plan = np.repeat(own.hint, chunk.lengths + 1)
            sums, time_s, own_plain_s = exp.expect_chunk(
                controller,
                own,
                accept_prob,
                plan,
                best,
                self.costs,
                block_len=block_len,
                every_round=self.every_round,
                limit=self.meta.max_draft_len,
                compiled=self.compiled,
            )
            totals.add_expected(sums, time_s, own_plain_s if self.every_round else plain_s)

    def finish(self, rounds: list[dict[str, NDArray[Any]]]) -> TraceResult:
        """Results of everything added."""
        # Plain time is the same for all controllers on positions; on a log of rounds each has its own tokens.
        intervals = (
            [bootstrap_ratios(np.concatenate(t.plain_s), [np.concatenate(t.time_s)], self.seed)[0] for t in self.totals]
            if self.every_round
            else bootstrap_ratios(
                np.concatenate(self.totals[0].plain_s), [np.concatenate(t.time_s) for t in self.totals], self.seed
            )
            if self.totals
            else []
        )
        best_fixed = None if self.every_round else float(self.static_s.min())
        oracle = None if self.every_round else self.oracle_s
        results = []
        for controller, totals, interval, validity, uncertain in zip(
            self.controllers, self.totals, intervals, self.validity, self.uncertain, strict=True
        ):
            summary = totals.summary(interval, best_fixed, oracle)
            # A drafter that redraws the block for each length leaves lengths short of the recorded pass approximate.
            inexact = uncertain if self.tree else totals.part_drafts if self.meta.pass_rule == "per-length" else 0
            extra = {
                "coverage": self.meta.coverage,
                "inexact_rounds": inexact,
                "privileged": controller.privilege != "none",
            }
            if self.every_round:
                extra |= validity.summary()
            if self.arms:
                extra |= {"oracle_mad": None, "arm_pulls": totals.arm_pulls.tolist()}
            results.append(
                {
                    "controller": controller.name,
                    "params": controller.config,
                    "requests": self.requests,
                    **summary,
                    **extra,
                }
            )
        return TraceResult(
            kind=self.meta.kind,
            rows=self.rows,
            requests=self.requests,
            results=results,
            oracle_s=oracle,
            rounds=rounds,
            static_s=None if self.every_round else self.static_s,
        )


def _round_log(chunk: TraceChunk, rounds: Rounds) -> dict[str, NDArray[Any]]:
    """RoundLog columns of one chunk (constant ones, run_id and lane and warmup, are the writer's)."""
    columns: dict[str, NDArray[Any]] = {"request": chunk.request[rounds.row], "pos": chunk.pos[rounds.row]}
    if chunk.ctx_len is not None:
        columns["ctx_len"] = chunk.ctx_len[rounds.row]
    return columns | {name: getattr(rounds, name) for name in Rounds._fields if name != "row"}
