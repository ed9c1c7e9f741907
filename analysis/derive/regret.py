"""Derived table of regret along requests: seconds beyond the best fixed length or arm, added up.

Owns what a controller is compared with, and the band.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from analysis.derive.measured import ARM, STATIC, by_number, needed, number, sums_of
from analysis.derive.source import SEED, Floats, Missing, Sums, longest, opened, replayed
from analysis.loaded import Run
from analysis.rounds import Scan
from specsim.metrics import resamples_for
from specsim.theory.check_data import static_lengths

REGRET = pa.schema(
    [
        *((name, pa.string()) for name in ("controller", "against", "source")),
        ("prompt", pa.int64()),
        *((name, pa.float64()) for name in ("cumulative_s", "low", "high")),
    ]
)
MOST_POINTS = 200  # of a curve


def regret_along(run: Run, scan: Scan | None) -> pa.Table:
    """Seconds a controller took beyond the best fixed choice for as many tokens, added up over requests.

    The best fixed choice is the single arm, or the static length, that is fastest over all requests in hindsight: for a
    replay, of all that its trace holds (`source` `replayed`), else of those that the run decoded (`measured`). Columns:
    controller, against (its spelling), source, prompt (from 0; sums are of all up to it), cumulative_s, low,
    high (of 95 % of resamples of the requests, the best choice kept; null with one request). Above 200 requests, 200
    points.

    Raises:
        Missing: no round log, or nothing fixed to compare with.
    """
    scanned = needed(scan)
    against, fixed, source = _best_fixed(run, scanned)
    rows: list[dict[str, Any]] = []
    for one in run.methods:
        mine = sums_of(run, scanned, one.controller)
        if mine is None or one.controller == against or _is_fixed(one.controller):
            continue
        if len(mine.tokens) != len(fixed.tokens):
            raise Missing(f"{one.controller} and {against} were not run on the same requests")
        gap_s = mine.seconds - fixed.seconds * mine.tokens / fixed.tokens
        told = {"controller": one.controller, "against": against, "source": source}
        rows += [told | point for point in _curve(gap_s)]
    if not rows:
        raise Missing("none of its controllers adapts")
    return pa.Table.from_pylist(rows, schema=REGRET)


def _is_fixed(controller: str) -> bool:
    return number(STATIC, controller) is not None or number(ARM, controller) is not None


def _best_fixed(run: Run, scan: Scan) -> tuple[str, Sums, str]:
    """Spelling and sums of the best fixed choice, and where from."""
    if run.kind == "replay":
        with opened(run) as trace:
            meta = trace.meta
            if meta.kind == "arm":
                names = [f"arm:index={arm}" for arm in range(meta.n_arms)]
            else:
                names = [f"static:length={length}" for length in static_lengths(longest(meta))]
            found, source = dict(zip(names, replayed(trace, names), strict=True)), "replayed"
    else:
        fixed = [one.controller for pattern in (ARM, STATIC) for one in by_number(run, pattern).values()]
        sums = {name: sums_of(run, scan, name) for name in fixed}
        found, source = {name: one for name, one in sums.items() if one is not None}, "measured"
    if not found:
        raise Missing("no static length and no single arm was decoded to compare with")
    best = max(found, key=lambda name: found[name].tokens.sum() / found[name].seconds.sum())
    return best, found[best], source


def _curve(gap_s: Floats) -> list[dict[str, Any]]:
    requests = len(gap_s)
    at = np.unique(np.linspace(1, requests, min(MOST_POINTS, requests)).round()).astype(np.int64)
    total_s = gap_s.cumsum()[at - 1]
    low, high = _band(gap_s, at) if requests > 1 else (None, None)
    return [
        {
            "prompt": int(prompt) - 1,
            "cumulative_s": float(total),
            "low": None if low is None else float(low[i]),
            "high": None if high is None else float(high[i]),
        }
        for i, (prompt, total) in enumerate(zip(at, total_s, strict=True))
    ]


def _band(gap_s: Floats, at: npt.NDArray[np.int64]) -> tuple[Floats, Floats]:
    """float64[P] each: 2.5 % and 97.5 % of sums of `at` gaps drawn with replacement, the same draws growing."""
    rng = np.random.default_rng(SEED)
    sums = np.empty((resamples_for(len(gap_s)), len(at)))
    for row in sums:
        row[:] = gap_s[rng.integers(0, len(gap_s), size=len(gap_s))].cumsum()[at - 1]
    low, high = np.percentile(sums, [2.5, 97.5], axis=0)
    return low, high
