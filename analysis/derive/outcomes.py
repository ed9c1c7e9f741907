"""Derived tables of whole controllers: speedups, acceptance against speed, gains, predictions, and who pulled what."""

from __future__ import annotations

import re
from typing import Any

import pyarrow as pa

from analysis.derive.measured import ARM, STATIC, by_number, fastest, needed, number, rows_of
from analysis.derive.source import Missing
from analysis.loaded import PLAIN, Method, Run
from analysis.rounds import Scan

LIBRASPEC = "libraspec"
MAX_OPTION = re.compile(r"(?:^|[:,])max=(\d+)")
ACCEPTANCE = pa.schema(
    [
        ("controller", pa.string()),
        *((name, pa.float64()) for name in ("submitted_len", "tau", "speedup", "low", "high")),
        ("privileged", pa.bool_()),
    ]
)
PREDICTIONS = pa.schema(
    [("controller", pa.string()), *((name, pa.float64()) for name in ("predicted", "measured", "low", "high"))]
)
PULLS = pa.schema(
    [
        ("controller", pa.string()),
        *((name, pa.int64()) for name in ("arm", "rounds")),
        *((name, pa.float64()) for name in ("share", "tokens_per_s")),
        ("rank", pa.int64()),
    ]
)
GAINS = pa.schema(
    [
        *((name, pa.string()) for name in ("dataset", "method", "baseline", "controller")),
        *((name, pa.float64()) for name in ("without", "libraspec", "gain")),
    ]
)
MAX_LENGTHS = pa.schema(
    [("max_len", pa.int64()), *((name, pa.float64()) for name in ("libraspec", "tau", "static", "best_static"))]
)
NO_PLAIN = "plain decoding is not among its controllers, so there are no speedups"


def acceptance(run: Run, scan: Scan | None) -> pa.Table:
    """tau against speedup, a row for every controller.

    Columns: controller, submitted_len, tau, speedup, low, high (the run's own 95 % interval), privileged.

    Raises:
        Missing: no speedups.
    """
    rows = [
        {
            "controller": one.controller,
            **{"submitted_len": one.submitted_len, "tau": one.tau, "speedup": one.speedup},
            **_ends(one),
            "privileged": one.privileged,
        }
        for one in run.methods
        if one.speedup is not None
    ]
    if not rows:
        raise Missing(NO_PLAIN)
    return pa.Table.from_pylist(rows, schema=ACCEPTANCE)


def predictions(run: Run, scan: Scan | None) -> pa.Table:
    """Speedup as the simulator foretold it, and as measured with its 95 % interval.

    Columns: controller, predicted, measured, low, high.

    Raises:
        Missing: nothing was predicted.
    """
    rows = [
        {"controller": one.controller, "predicted": one.predicted, "measured": one.speedup, **_ends(one)}
        for one in run.methods
        if one.predicted is not None and one.speedup is not None and one.controller != PLAIN
    ]
    if not rows:
        raise Missing("nothing was predicted: only folders of real.validate and real.paper hold predictions")
    return pa.Table.from_pylist(rows, schema=PREDICTIONS)


def pulls(run: Run, scan: Scan | None) -> pa.Table:
    """Which arms the controllers chose.

    Columns: controller, arm, rounds, share (of the controller's rounds with an arm), tokens_per_s of these rounds, rank
    (of the arm among single arms that the run decoded, 1 the fastest; null where it did not).

    Raises:
        Missing: no round log, or no arms in it.
    """
    scanned = needed(scan)
    singles = sorted(by_number(run, ARM).items(), key=lambda one: -one[1].tokens_per_s)
    ranks = {arm: rank for rank, (arm, _) in enumerate(singles, 1)}
    rows: list[dict[str, Any]] = []
    for one in run.methods:
        mine = rows_of(scanned.pulls, run, one.controller).sort_by("arm").to_pylist()
        total = sum(row["rounds"] for row in mine)
        if number(ARM, one.controller) is not None or not total:
            continue
        played = {row["arm"]: row for row in mine}
        for arm in sorted({*played, *ranks}):
            row = played.get(arm, {"rounds": 0, "tokens": 0, "seconds": 0.0})
            told = {"controller": one.controller, "arm": arm, "rounds": row["rounds"], "share": row["rounds"] / total}
            speed = row["tokens"] / row["seconds"] if row["seconds"] else None
            rows.append({**told, "tokens_per_s": speed, "rank": ranks.get(arm)})
    if not rows:
        raise Missing("none of its controllers chose among arms")
    return pa.Table.from_pylist(rows, schema=PULLS)


def gains(run: Run, scan: Scan | None) -> pa.Table:
    """Figure 1 of LibraSpec for a run: speedup of the best static length, of the fastest LibraSpec, and the difference.

    Columns: dataset, method (the drafter), baseline, controller, without, libraspec, gain.

    Raises:
        Missing: one of the two was not run, or there are no speedups.
    """
    static, mine = fastest(list(by_number(run, STATIC).values())), fastest(_libraspec(run))
    if static is None or mine is None:
        raise Missing("needs a static length and libraspec among its controllers")
    if static.speedup is None or mine.speedup is None:
        raise Missing(NO_PLAIN)
    row = {
        "dataset": run.dataset or run.trace_name or run.name,
        "method": (run.drafter or "?").partition(":")[0],
        **{"baseline": static.controller, "controller": mine.controller},
        **{"without": static.speedup, "libraspec": mine.speedup, "gain": mine.speedup - static.speedup},
    }
    return pa.Table.from_pylist([row], schema=GAINS)


def max_lengths(run: Run, scan: Scan | None) -> pa.Table:
    """Figure 4 of LibraSpec for a run: speedup of LibraSpec by its maximum length, beside static lengths.

    Columns: max_len, libraspec, tau, static (the same length, null where not run), best_static (null without any). Of
    several LibraSpecs with one maximum the fastest.

    Raises:
        Missing: fewer than two maxima were run, or there are no speedups.
    """
    statics = by_number(run, STATIC)
    best = fastest(list(statics.values()))
    found: dict[int, Method] = {}
    for one in _libraspec(run):
        limit = MAX_OPTION.search(one.controller)
        if limit is None:
            continue
        known = found.get(int(limit[1]))
        found[int(limit[1])] = one if known is None or one.tokens_per_s > known.tokens_per_s else known
    if len(found) < 2:
        raise Missing("needs libraspec with two or more values of max")
    if any(one.speedup is None for one in found.values()):
        raise Missing(NO_PLAIN)
    rows = [
        {
            **{"max_len": limit, "libraspec": one.speedup, "tau": one.tau},
            "static": statics[limit].speedup if limit in statics else None,
            "best_static": None if best is None else best.speedup,
        }
        for limit, one in sorted(found.items())
    ]
    return pa.Table.from_pylist(rows, schema=MAX_LENGTHS)


def _libraspec(run: Run) -> list[Method]:
    return [one for one in run.methods if one.controller.partition(":")[0] == LIBRASPEC]


def _ends(one: Method) -> dict[str, float | None]:
    low, high = one.ci95 or (None, None)
    return {"low": low, "high": high}
