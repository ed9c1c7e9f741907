"""From a synthetic family or an arm trace to what the runner reads, and the facts regret is measured against."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from specsim import theory
from specsim.chunk import TraceChunk, concat_chunks
from specsim.controllers import Controller, build
from specsim.engine import controllers_for
from specsim.errors import ConfigError, TraceError
from specsim.latency import LatencyModel
from specsim.regret.family import ArmFamily, bound_slope, telling_apart
from specsim.regret.runner import Job, World, fixed_totals, log_grid
from specsim.rows import make_costs, make_rows
from specsim.schema import TraceMeta
from specsim.trace import open_trace

ORDER_STREAM = 4


@dataclass(frozen=True, kw_only=True)
class Case:
    """A world with a job to run in it and what is known about its arms.

    Attributes:
        title: one line for people.
        facts: JSON values that identify it.
        build: a controller from its spelling.
        job: world, runs, rounds, quota.
        throughput: float64[K], tokens per second of each arm at full length.
        bound: seconds per unit of ln n imposed by unimodal structure, or None.
        apart: rounds per unit of ln n that the best arm's neighbours need, or None.
    """

    title: str
    facts: dict[str, Any]
    build: Callable[[str], Controller]
    job: Job
    throughput: NDArray[np.float64]
    bound: float | None
    apart: float | None

    @property
    def top3(self) -> list[int]:
        """The three best arms, earlier ones first on ties."""
        return sorted(np.argsort(-self.throughput, kind="stable")[:3].tolist())


def _gaps(tokens: NDArray[np.float64], seconds: NDArray[np.float64], rate: float) -> NDArray[np.float64]:
    """c (1 - nu / nu*) = c - mu / nu*, in seconds."""
    return seconds - tokens / rate


def _no_trace() -> dict[str, Any]:
    return {
        "accept": np.zeros((0, 0), np.int16),
        "starts": np.zeros(1, np.int64),
        "request": np.zeros(0, np.int32),
        "pos": np.zeros(0, np.int32),
        "order": np.zeros((0, 0), np.int64),
        "every_round": False,
        "clear": False,
    }


def family_case(family: ArmFamily, *, rounds: int, quota: int | None, runs: int, seed: int) -> Case:
    """A synthetic case; the default quota is what the best arm emits in `rounds` rounds on average."""
    verify_s = np.full(family.draft_len + 2, family.unit_s)
    draft_s = family.draft_s
    survive = family.survive
    mu = np.concatenate([np.ones((*survive.shape[:2], 1)), 1 + np.cumsum(survive, axis=2)], axis=2)
    share = np.arange(family.draft_len + 1) / family.draft_len
    seconds = draft_s[:, None] * share + family.unit_s
    full = mu[:, :, -1].mean(axis=0) / seconds[:, -1]
    best = int(np.argmax(full))
    world = World(
        survive=survive,
        phase_len=family.phase_len,
        gap=_gaps(mu, seconds, full[best]),
        draft_s=draft_s[None, :],
        verify_s=verify_s,
        ctx_s=np.zeros(1),
        overhead_s=0.0,
        **_no_trace(),
    )
    tokens = int(quota or round(rounds * mu[:, best, -1].mean()))
    job = Job(world=world, best=best, seed=seed, runs=runs, rounds=rounds, quota=tokens, grid=log_grid(rounds))
    near = sorted(1 - full[k] / full[best] for k in (best - 1, best + 1) if 0 <= k < family.arms)
    title = (
        f"family {family.name}: {family.arms} arms, draft_len {family.draft_len}, {1000 * family.unit_s:g} ms per "
        f"target step, best arm {best}, neighbours {' and '.join(f'{100 * g:.2g} %' for g in near)} behind"
    )
    return Case(
        title=title,
        facts=family.to_dict(),
        build=lambda spelling: build(spelling, family.setting()),
        job=job,
        throughput=full,
        bound=bound_slope(family),
        apart=telling_apart(family),
    )


def request_orders(count: int, runs: int, seed: int) -> NDArray[np.int64]:
    """int64[runs, count]: file order first, then shuffled orders."""
    orders = [np.arange(count, dtype=np.int64)]
    for run in range(1, runs):
        orders.append(np.random.default_rng([seed, ORDER_STREAM, run]).permutation(count))
    return np.stack(orders)


def trace_case(
    path: Path, latency: LatencyModel | None, *, quota: int | None, runs: int, seed: int, carry: bool
) -> Case:
    """A case from an arm trace; the default quota is half of its tokens, so that the order of requests matters.

    Raises:
        TraceError: not an arm trace.
        ConfigError: no latency model, a model that needs what the trace lacks, or a quota above the trace's tokens.
    """
    with open_trace(path) as reader:
        meta = reader.meta
        if meta.kind != "arm":
            raise TraceError(
                path,
                "this trace has no arms",
                allowed="an arm trace",
                advice="Its draft length is what a controller chooses there: use python -m specsim.replay",
            )
        if latency is None and meta.latency is None:
            raise ConfigError(f"{path}: the trace holds no latency model and none was given; pass --latency FILE")
        model = latency or LatencyModel.from_dict(meta.latency or {}, where=f"{path}: metadata latency")
        chunk = concat_chunks(list(reader.chunks(["ctx_len", "arm_accept_len", "arm_draft_s"])))
    if model.ctx_s > 0 and chunk.ctx_len is None:
        raise ConfigError(f"{path}: the latency model has ctx_s > 0 but the trace has no ctx_len")
    return chunk_case(
        meta,
        chunk,
        model,
        name=str(path),
        quota=quota,
        runs=runs,
        seed=seed,
        carry=carry,
        measured_draft=latency is None,
    )


def chunk_case(
    meta: TraceMeta,
    chunk: TraceChunk,
    model: LatencyModel,
    *,
    name: str,
    quota: int | None,
    runs: int,
    seed: int,
    carry: bool,
    measured_draft: bool = True,
) -> Case:
    """`trace_case` on rows in memory."""
    length = meta.draft_len or 0
    costs = make_costs(model, max(meta.max_draft_len, length))
    rows = make_rows(chunk, arm_draft_s=draft_seconds(meta, chunk, measured=measured_draft))
    requests = rows.starts.size - 1
    arms = rows.arm_accept.shape[1]
    world = World(
        survive=np.zeros((1, arms, length)),
        phase_len=0,
        gap=np.zeros((1, arms, length + 1)),
        draft_s=rows.arm_draft_s,
        verify_s=costs.verify_s[: length + 2],
        ctx_s=costs.ctx_s * rows.ctx_len.astype(np.float64),
        overhead_s=costs.overhead_s,
        accept=rows.arm_accept,
        starts=rows.starts,
        request=rows.request,
        pos=rows.pos,
        order=request_orders(requests, runs, seed),
        every_round=meta.coverage == "every-round",
        clear=not carry,
    )
    totals = fixed_totals(world)
    per_round, tokens, seconds = totals[:, :, 0], totals[:, :, 1], totals[:, :, 2]
    full = tokens[:, -1] / seconds[:, -1]
    best = int(np.argmax(full))
    gap = _gaps(tokens / per_round, seconds / per_round, full[best])
    available = int(tokens[:, -1].min())
    target = quota or max(available // 2, 1)
    if target > available:
        raise ConfigError(f"{name}: --quota {target}: the trace yields {available} tokens; allowed: at most that")
    job = Job(
        world=world._replace(gap=gap[None]),
        best=best,
        seed=seed,
        runs=runs,
        rounds=chunk.rows,
        quota=target,
        grid=log_grid(max(target // (length + 1), 1)),
    )
    state = "kept" if carry else "cleared"
    bound, apart = trace_bound(world.accept, gap, seconds / per_round)
    return Case(
        title=f"{name}: {arms} arms, draft_len {length}, {requests} requests, state {state} between, best arm {best}",
        facts={
            "trace": name,
            "requests": requests,
            "rows": chunk.rows,
            "arms": arms,
            "draft_len": length,
            "carry": carry,
        },
        build=lambda spelling: controllers_for(meta, model, [spelling])[0],
        job=job,
        throughput=full,
        bound=bound,
        apart=apart,
    )


def draft_seconds(meta: TraceMeta, chunk: TraceChunk, *, measured: bool) -> NDArray[np.float64]:
    """float64[rows, K]: as in the replay, measured seconds of each draft where there are any, else the arm's own."""
    stated = np.array([float(arm["draft_s"]) * (meta.draft_len or 0) for arm in meta.arms or ()])
    if chunk.arm_draft_s is None or not measured:
        return np.tile(stated, (chunk.rows, 1))
    seconds = chunk.arm_draft_s.astype(np.float64)
    return np.where(np.isnan(seconds), stated, seconds)


def trace_bound(
    accept: NDArray[np.int16], gap: NDArray[np.float64], seconds: NDArray[np.float64]
) -> tuple[float | None, float | None]:
    """The lower bound as if rounds were independent with the arms' pooled laws; None where it is undefined."""
    length = gap.shape[1] - 1
    laws: Sequence[list[Fraction]] = [
        [Fraction(int(n), accept.shape[0]) for n in np.bincount(column, minlength=length + 1)] for column in accept.T
    ]
    cost = [Fraction(float(c)) for c in seconds[:, -1]]
    try:
        nu = theory.throughputs([sum((n * w for n, w in enumerate(law, 1)), Fraction(0)) for law in laws], cost)
        best = theory.argmax_set(nu)
        bound = theory.lower_bound(laws, cost)
        near = [k for k in (best[0] - 1, best[0] + 1) if 0 <= k < len(laws)]
        return bound, sum(1 / theory.kl_inf(laws[k], nu[best[0]] * cost[k]) for k in near)
    except (ConfigError, ZeroDivisionError):
        return None, None
