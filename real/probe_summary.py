"""What a recording came to, for people and for scripts. Owns these words; reads neither files nor models."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from real.arm_costs import reversed_arms
from real.arm_shape import best_by_tokens, shape_of, sums_of_trace
from real.record import RequestRows
from specsim.trace import TraceChunk, TraceMeta


def summary_of(out: Path, meta: TraceMeta, chunk: TraceChunk) -> dict[str, Any]:
    """JSON values: `out`, `requests`, `positions`, `mismatches`, `mean_accept_len` and `arms`.

    Of arms the last is `real.arm_shape.shape_of` their drafts, else None; `mean_accept_len` is then that of the arm
    with the most, of drafts that fit whole.

    Args:
        out: the trace file.
        meta, chunk: all of it.
    """
    mean, arms = float(chunk.accept_len.mean()), None
    if meta.kind == "arm":
        live, drafts = reversed_arms(meta, chunk)
        names = [arm["name"] for arm in live.arms or ()]
        arms = {"seconds_of": "draft", **shape_of(names, sums_of_trace(drafts, live.draft_len or 0))}
        best = best_by_tokens(arms)
        mean = None if best is None else best["tokens"] - 1.0
    return {
        "out": str(out),
        "requests": meta.requests,
        "positions": chunk.rows,
        "mismatches": meta.mismatches,
        "mean_accept_len": mean,
        "arms": arms,
    }


def line_of(summary: dict[str, Any]) -> str:
    """The summary in a line."""
    mean, arms = summary["mean_accept_len"], summary["arms"]
    best = None if arms is None else best_by_tokens(arms)
    told = "no draft fits whole" if mean is None else f"mean accept_len {mean:.2f}"
    told += "" if best is None else f" with {arm_text(best['name'])}, the most of {len(summary['arms']['each'])}"
    return (
        f"{summary['out']}: {summary['requests']} requests, {summary['positions']} positions, {told}, "
        f"mismatches {summary['mismatches']}"
    )


def progress_of(rows: RequestRows, names: Sequence[str]) -> str:
    """What to say of one recorded request; `names` are its arms' in the order of the trace, if it has any."""
    if not names:
        return f"mean accept_len {rows.accept_len.mean():.2f}"
    means = rows.arm_accept_len.mean(axis=0)
    best = int(np.argmax(means))
    return f"mean accept_len {means[best]:.2f} with {arm_text(names[best])}"


def arm_text(name: str) -> str:
    """An arm for a sentence."""
    return f"arm {name!r}" if name else "the arm that leaves nothing out"
