"""Derived tables about seconds: the latency model against its measurements, and where a round spends its time."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa

from analysis.derive.measured import column, needed, rows_of
from analysis.derive.source import Floats, Missing, interval
from analysis.loaded import Run
from analysis.rounds import Scan
from specsim.latency import LatencyModel

LATENCY = pa.schema(
    [
        *((name, pa.string()) for name in ("kind", "controller")),
        *((name, pa.float64()) for name in ("s", "measured_s", "fitted_s", "residual_s", "low", "high")),
    ]
)
BREAKDOWN = pa.schema(
    [
        ("controller", pa.string()),
        *((name, pa.float64()) for name in ("submitted_len", "draft_ms", "verify_ms", "rest_ms")),
    ]
)
VERIFY, DRAFT, FIT = "verify", "draft", "fit"
MOST_FITTED = 200  # points of the fitted line


def latency_points(run: Run, scan: Scan | None) -> pa.Table:
    """The latency model's measured points, what it makes of them, and the drafting that a real run measured.

    Columns: kind, controller, s, measured_s, fitted_s, residual_s (measured - fitted), low, high. Of kind `verify`, s
    is the token positions of a pass at zero context, measured_s the median there (`provenance.points`). Of kind
    `draft`, a row for each controller of lengths in a real run: s drafter passes and measured_s drafting seconds of its
    mean round, with a 95 % interval by bootstrap over requests (arms have costs of their own, which no model has). Kind
    `fit` is the fitted line, at every s or 200 of them, without a measurement.

    Raises:
        Missing: no latency model, or one whose provenance holds no points.
    """
    if run.latency is None:
        raise Missing("no latency model was found with it")
    model = LatencyModel.from_dict(run.latency, where=f"{run.folder}: latency")
    rows = fit_points(model)
    if scan is not None and run.kind != "replay":
        rows += [row for one in run.methods if (row := _drafting(run, scan, one.controller, model)) is not None]
    if not rows:
        raise Missing("its latency model does not say what it was fitted to (provenance.points)")
    return pa.Table.from_pylist(rows, schema=LATENCY)


def fit_points(model: LatencyModel) -> list[dict[str, Any]]:
    """Rows `verify` and `fit` of a model; none where its provenance holds no points."""
    points = model.provenance.get("points")
    if not isinstance(points, list) or not points:
        return []
    s, measured_s = np.array(points, np.float64).reshape(-1, 2).T
    rows = [_row(VERIFY, at, seconds, float(model.verify_s(at))) for at, seconds in zip(s, measured_s, strict=True)]
    line = np.unique(np.linspace(1, s.max(), min(MOST_FITTED, int(s.max()))).round())
    return rows + [_row(FIT, at, None, float(model.verify_s(at))) for at in line]


def _row(kind: str, s: float, measured_s: float | None, fitted_s: float) -> dict[str, Any]:
    residual_s = None if measured_s is None else float(measured_s) - fitted_s
    told = {"kind": kind, "controller": None, "s": float(s), "measured_s": measured_s, "fitted_s": fitted_s}
    return {**told, "residual_s": residual_s, "low": None, "high": None}


def _drafting(run: Run, scan: Scan, controller: str, model: LatencyModel) -> dict[str, Any] | None:
    mine = rows_of(scan.requests, run, controller)
    if rows_of(scan.pulls, run, controller).num_rows:
        return None
    rounds, draft_s, passes, drafted = (column(mine, name) for name in ("rounds", "draft_s", "draft_passes", "drafted"))
    if not passes.sum() or np.isnan(draft_s).any():
        return None
    low, high = interval(draft_s, rounds)
    whole = rounds.sum()
    fitted_s = float(model.draft_s(passes.sum() / whole, drafted.sum() / whole))
    row = _row(DRAFT, passes.sum() / whole, float(draft_s.sum() / whole), fitted_s)
    return row | {"controller": controller, "low": low, "high": high}


def breakdown(run: Run, scan: Scan | None) -> pa.Table:
    """Figure 3 of LibraSpec for a run: mean milliseconds of a controller's round, by part.

    Columns: controller, submitted_len, draft_ms, verify_ms, rest_ms (the controller, comparing, what is built).

    Raises:
        Missing: no round log, or one without the seconds of parts.
    """
    scanned = needed(scan)
    rows = []
    for one in run.methods:
        mine = rows_of(scanned.requests, run, one.controller)
        if not mine.num_rows:
            continue
        per_round: dict[str, Floats] = {name: column(mine, name) for name in ("draft_s", "verify_s", "round_s")}
        rounds = column(mine, "rounds").sum()
        draft_ms, verify_ms, round_ms = (values.sum() / rounds * 1e3 for values in per_round.values())
        if np.isnan([draft_ms, verify_ms]).any():
            continue
        rest_ms = max(0.0, float(round_ms - draft_ms - verify_ms))
        told = {"controller": one.controller, "submitted_len": one.submitted_len}
        rows.append({**told, "draft_ms": float(draft_ms), "verify_ms": float(verify_ms), "rest_ms": rest_ms})
    if not rows:
        raise Missing("its round log does not tell drafting from verification")
    return pa.Table.from_pylist(rows, schema=BREAKDOWN)
