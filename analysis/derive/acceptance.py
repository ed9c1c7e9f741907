"""Derived tables about what is accepted: survival and hazard by draft position, and how reliable confidences are.

Owns the estimates. From a trace, rows count as long as their drafts last (Kaplan-Meier), and every position of the text
is one; from a round log only what was submitted is known, at the positions that a controller came to.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from analysis.derive.measured import ARM, STATIC, adaptive, by_number, column, share
from analysis.derive.source import Floats, Missing, Source, opened
from analysis.loaded import Run
from analysis.rounds import Scan
from specsim.chunk import TraceChunk
from specsim.metrics import resampled_sums
from specsim.reliability import Bin, Reliability
from specsim.theory.check_data import MAX_DEPTH

SURVIVAL = pa.schema(
    [
        ("source", pa.string()),
        ("depth", pa.int64()),
        *((name, pa.float64()) for name in ("survival", "low", "high", "hazard")),
        ("n", pa.int64()),
    ]
)
RELIABILITY = pa.schema(
    [
        ("depth", pa.int64()),
        ("bin", pa.int64()),
        ("n", pa.int64()),
        *((name, pa.float64()) for name in ("mean_q", "accepted", "ece")),
    ]
)
TRACE = "trace"
MAX_UNITS = 4096  # groups of requests that are resampled; beyond that neighbours are taken together


def survival(run: Run, scan: Scan | None) -> pa.Table:
    """Chance that a draft's first d tokens are all accepted, by d, and the hazard of token d.

        hazard(d) = 1 - survival(d) / survival(d - 1), survival(0) = 1

    Columns: source, depth (from 1), survival, low, high (95 % by bootstrap over requests; null from a round log),
    hazard (token d is rejected though all before it were accepted), n (drafts seen at token d: all before it accepted
    and d submitted). The source is `trace` (of a tree trace its main chain), `arm NAME` for each arm of an arm trace,
    or, without a trace, the controllers of the round log: their hazards are conditional on what they chose to submit,
    and two controllers' differ for that reason alone. Depths up to 128.

    Raises:
        Missing: neither a trace nor a round log with drafts.
    """
    try:
        with opened(run) as source:
            rows = list(_from_trace(source))
    except Missing as reason:
        if scan is None:
            raise Missing(f"{reason}; and there is no round log") from None
        rows = list(_from_rounds(run, scan))
    if not rows:
        raise Missing("nothing was drafted")
    return pa.Table.from_pylist(rows, schema=SURVIVAL)


def reliability(run: Run, scan: Scan | None) -> pa.Table:
    """How well confidence q says what is accepted (`specsim.reliability`), by draft position and pooled.

    Columns: depth (null: all together), bin (of ten), n, mean_q, accepted (share), ece (of that depth). Of draft tokens
    whose predecessors were all accepted, at every position of the trace.

    Raises:
        Missing: no trace, or one without confidences.
    """
    found = Reliability()
    with opened(run) as source:
        if source.meta.kind == "arm":
            raise Missing("an arm trace holds no confidences")
        for chunk in source.chunks(["q"]):
            found.add(chunk)
    rows: list[Bin] = [*found.pooled(), *found.bins()]
    if not rows:
        raise Missing("its trace holds no confidences")
    return pa.Table.from_pylist([row._asdict() for row in rows], schema=RELIABILITY)


def by_depth(table: pa.Table) -> pa.Table:
    """The draft positions of a table of `reliability`: depth, mean_q, accepted (means over bins by their n), ece."""
    table = table.filter(pc.field("depth").is_valid())
    depths = sorted(set(table["depth"].to_pylist()))
    found = [table.filter(pc.field("depth") == depth) for depth in depths]
    means = {name: [_mean(part, name) for part in found] for name in ("mean_q", "accepted")}
    return pa.table({"depth": depths, **means, "ece": [part["ece"][0].as_py() for part in found]})


def all_depths(table: pa.Table) -> pa.Table:
    """The bins of all draft positions together, as `reliability` has them; made from the others where they are missing
    (`calibration.parquet` of `real.paper` holds single positions only)."""
    pooled = table.filter(pc.field("depth").is_null())
    if pooled.num_rows:
        return pooled
    bins = sorted(set(table["bin"].to_pylist()))
    found = [table.filter(pc.field("bin") == one) for one in bins]
    n = [sum(part["n"].to_pylist()) for part in found]
    means = {name: [_mean(part, name) for part in found] for name in ("mean_q", "accepted")}
    gaps = [count * abs(q - a) for count, q, a in zip(n, means["mean_q"], means["accepted"], strict=True)]
    ece = [sum(gaps) / sum(n)] * len(n)
    return pa.table({"depth": pa.nulls(len(n), pa.int64()), "bin": bins, "n": n, **means, "ece": ece})


def _mean(rows: pa.Table, name: str) -> float:
    return float(np.average(column(rows, name), weights=column(rows, "n")))


class _Units:
    """Drafts seen and passed at every depth, by request, or by neighbouring requests where there are very many."""

    def __init__(self) -> None:
        self._sums: list[npt.NDArray[np.float64]] = []  # of a unit: [2, MAX_DEPTH]
        self._size, self._held = 1, 0  # requests of a unit, and of the last one

    def add(self, sums: Floats) -> None:
        """Add a request: float64[2, MAX_DEPTH]."""
        if self._held and self._held < self._size:
            self._sums[-1] = self._sums[-1] + sums
            self._held += 1
            return
        if len(self._sums) == MAX_UNITS:
            self._sums = [one + two for one, two in zip(self._sums[::2], self._sums[1::2], strict=True)]
            self._size *= 2
        self._sums.append(sums)
        self._held = 1

    def array(self) -> Floats:
        """float64[U, 2, MAX_DEPTH]."""
        return np.array(self._sums).reshape(-1, 2, MAX_DEPTH)


def _from_trace(source: Source) -> Iterator[dict[str, Any]]:
    arms = source.meta.arms or () if source.meta.kind == "arm" else ()
    units = [_Units() for _ in arms or (TRACE,)]
    for chunk in source.chunks(["arm_accept_len"]):
        starts = np.append(np.flatnonzero(np.diff(chunk.request, prepend=-1)), chunk.rows)
        for unit, accepted in zip(units, _accepted(chunk), strict=True):
            for sums in _by_request(accepted, chunk.lengths, starts):
                unit.add(sums)
    names = [f"arm {arm['name']}" for arm in arms] or [TRACE]
    for name, unit in zip(names, units, strict=True):
        yield from _curve(name, unit.array())


def _accepted(chunk: TraceChunk) -> list[npt.NDArray[np.int16]]:
    """int16[R] accepted lengths of the draft, or of each arm's."""
    return [chunk.accept_len] if chunk.arm_accept_len is None else list(chunk.arm_accept_len.T)


def _by_request(
    accepted: npt.NDArray[np.int16], drafted: npt.NDArray[np.int64], starts: npt.NDArray[np.int64]
) -> Iterator[Floats]:
    """float64[2, MAX_DEPTH] of each request: drafts seen at a depth, and passed."""
    # Seen at depth d: d drafted and d - 1 accepted, so up to min(accepted + 1, drafted).
    seen, passed = np.minimum(accepted.astype(np.int64) + 1, drafted), accepted.astype(np.int64)
    for first, stop in pairwise(starts):
        yield np.stack([_reached(seen[first:stop]), _reached(passed[first:stop])])


def _reached(lengths: npt.NDArray[np.int64]) -> Floats:
    """float64[MAX_DEPTH]: how many are at least 1, 2, ..."""
    counts = np.bincount(np.minimum(lengths, MAX_DEPTH), minlength=MAX_DEPTH + 1)
    return counts[::-1].cumsum()[::-1][1:].astype(np.float64)


def _curve(source: str, units: Floats) -> Iterator[dict[str, Any]]:
    """Rows of a source from float64[U, 2, MAX_DEPTH]."""
    if not len(units):
        return
    seen, passed = units.sum(axis=0)
    deep = int((seen > 0).sum())
    if not deep:
        return
    low = high = np.full(deep, np.nan)
    if len(units) > 1:
        drawn = resampled_sums(units[:, :, :deep].reshape(len(units), -1), seed=0).reshape(-1, 2, deep)
        # A resample without a draft at some depth says nothing of it, nor of any depth beyond.
        curves = np.cumprod(share(drawn[:, 1], drawn[:, 0]), axis=1)
        whole = ~np.isnan(curves).any(axis=0)
        low, high = np.where(whole, np.nanpercentile(np.where(whole, curves, 0.0), [2.5, 97.5], axis=0), np.nan)
    yield from _rows(source, seen[:deep], passed[:deep], low, high)


def _from_rounds(run: Run, scan: Scan) -> Iterator[dict[str, Any]]:
    names = [
        one.controller for one in (*by_number(run, STATIC).values(), *by_number(run, ARM).values(), *adaptive(run))
    ]
    for name in names:
        mine = scan.depths.filter(pc.field("run_id") == run.run_ids.get(name, "")).sort_by("depth").slice(0, MAX_DEPTH)
        seen = column(mine, "seen")
        deep = int((seen > 0).sum())
        nothing = np.full(deep, np.nan)
        yield from _rows(name, seen[:deep], column(mine, "accepted")[:deep], nothing, nothing)


def _rows(source: str, seen: Floats, passed: Floats, low: Floats, high: Floats) -> Iterator[dict[str, Any]]:
    kept = passed / seen
    for i, survived in enumerate(np.cumprod(kept).tolist()):
        yield {
            "source": source,
            "depth": i + 1,
            "survival": survived,
            "low": None if np.isnan(low[i]) else float(low[i]),
            "high": None if np.isnan(high[i]) else float(high[i]),
            "hazard": 1.0 - float(kept[i]),
            "n": int(seen[i]),
        }
