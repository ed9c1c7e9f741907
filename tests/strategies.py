"""Hypothesis strategies that build valid traces directly (nothing is filtered), in memory and as files.

`traces()` gives (TraceMeta, TraceChunk); `trace_files(folder)` writes one and gives its path as well.
"""

from __future__ import annotations

import uuid
from pathlib import Path
from typing import Any

import numpy as np
from hypothesis import strategies as st
from numpy.typing import NDArray

from specsim.chunk import TraceChunk, offsets_of
from specsim.schema import TraceMeta
from specsim.trace import write_trace

PROBS = st.floats(0, 1, width=32)
TIMES = st.floats(0, 10, width=32)

_TEXT = st.one_of(st.none(), st.text(st.characters(codec="ascii", min_codepoint=32), max_size=6))


@st.composite
def metas(draw: st.DrawFn, *, kind: str = "length", coverage: str | None = None, max_draft_len: int = 6) -> TraceMeta:
    """Valid metadata of one kind; `max_draft_len` bounds the drawn value."""
    arms = None
    if kind == "arm":
        budgets = sorted(draw(st.lists(st.integers(1, 40), min_size=1, max_size=4)))
        arms = tuple({"name": f"arm-{k}", "budget": b, "draft_s": 0.001 * b} for k, b in enumerate(budgets))
    temperature = draw(st.sampled_from([0.0, 0.7, 1.0]))
    return TraceMeta(
        kind=kind,
        coverage=coverage or draw(st.sampled_from(["every-position", "every-round"])),
        block_len=draw(st.integers(1, 3)),
        max_draft_len=draw(st.integers(0, max_draft_len)),
        temperature=temperature,
        exact=temperature == 0.0 and draw(st.booleans()),
        prefix_closed=draw(st.booleans()),
        target=draw(_TEXT),
        dataset=draw(_TEXT),
        seed=draw(st.one_of(st.none(), st.integers(0, 9))),
        arms=arms,
        draft_len=draw(st.integers(1, 6)) if kind == "arm" else None,
        pass_rule=draw(st.sampled_from(["keep-first", "per-length"])),
        max_nodes=draw(st.one_of(st.none(), st.integers(1, 99))) if kind == "tree" else None,
        extra=draw(st.dictionaries(st.just("note"), st.integers(), max_size=1)),
    )


def _float_array(draw: st.DrawFn, values: st.SearchStrategy[float], count: int) -> NDArray[np.float32]:
    return np.array(draw(st.lists(values, min_size=count, max_size=count)), dtype=np.float32)


@st.composite
def traces(
    draw: st.DrawFn,
    *,
    kind: str = "length",
    coverage: str | None = None,
    max_requests: int = 4,
    max_positions: int = 8,
    max_draft_len: int = 6,
    with_q: bool | None = None,
    with_accept_prob: bool | None = None,
    with_ctx: bool | None = None,
    with_passes: bool | None = None,
    id_gaps: bool = True,
) -> tuple[TraceMeta, TraceChunk]:
    """A valid trace.

    Args:
        kind, coverage, max_draft_len: as in `metas`; coverage None draws one.
        max_requests, max_positions: bounds of the drawn sizes.
        with_q, with_accept_prob, with_ctx: force a column to be present or null; None draws.
        with_passes: the same for the per-pass columns, of length traces only.
        id_gaps: request ids may have gaps.
    """
    meta = draw(metas(kind=kind, coverage=coverage, max_draft_len=max_draft_len))
    counts = draw(st.lists(st.integers(1, max_positions), min_size=1, max_size=max_requests))
    steps = draw(st.lists(st.integers(1, 3 if id_gaps else 1), min_size=len(counts), max_size=len(counts)))
    ids = np.cumsum(steps) - (1 if not id_gaps else steps[0])
    rows = sum(counts)
    pos = np.concatenate([_positions(draw, n, meta.coverage) for n in counts]).astype(np.int32)
    optional = {
        "q": with_q if with_q is not None else draw(st.booleans()),
        "p": draw(st.booleans()),
        "accept_prob": with_accept_prob if with_accept_prob is not None else draw(st.booleans()),
        "entropy": draw(st.booleans()),
    }
    if kind == "arm":
        optional = dict.fromkeys(optional, False)
    has_lengths = kind == "tree" or any(optional.values())
    default = st.just(meta.unlogged_len)
    lengths = np.array(
        draw(st.lists(st.integers(0, meta.max_draft_len) if has_lengths else default, min_size=rows, max_size=rows)),
        dtype=np.int64,
    )
    tokens = int(lengths.sum())
    columns: dict[str, Any] = {
        name: _float_array(draw, TIMES if name == "entropy" else PROBS, tokens)
        for name, present in optional.items()
        if present
    }
    if with_ctx if with_ctx is not None else draw(st.booleans()):
        prompts = draw(st.lists(st.integers(0, 50), min_size=len(counts), max_size=len(counts)))
        columns["ctx_len"] = (pos + np.repeat(prompts, counts)).astype(np.int32)
    columns |= draw(_timings(rows))
    columns |= _arm_columns(draw, meta, rows) if kind == "arm" else {"accept_len": _accepted(draw, lengths)}
    if kind == "tree":
        columns |= _tree_columns(draw, tokens)
    if kind == "length" and (with_passes if with_passes is not None else draw(st.booleans())):
        columns |= _pass_columns(draw, lengths)
    return meta, TraceChunk(
        request=np.repeat(ids, counts).astype(np.int32), pos=pos, offsets=offsets_of(lengths), **columns
    )


@st.composite
def trace_files(draw: st.DrawFn, folder: Path, **kwargs: Any) -> tuple[Path, TraceMeta, TraceChunk]:
    """A valid trace written below `folder` under a new name; keyword arguments as for `traces`."""
    meta, chunk = draw(traces(**kwargs))
    path = folder / f"{uuid.uuid4().hex}.parquet"
    write_trace(path, meta, chunk)
    return path, meta, chunk


def _positions(draw: st.DrawFn, count: int, coverage: str) -> NDArray[np.int64]:
    if coverage == "every-position":
        return np.arange(count)
    steps = np.array(draw(st.lists(st.integers(1, 4), min_size=count, max_size=count)))
    return np.cumsum(steps) - 1


def _accepted(draw: st.DrawFn, lengths: NDArray[np.int64]) -> NDArray[np.int16]:
    return np.array([draw(st.integers(0, int(m))) for m in lengths], dtype=np.int16)


@st.composite
def _timings(draw: st.DrawFn, rows: int) -> dict[str, Any]:
    columns: dict[str, Any] = {}
    if draw(st.booleans()):
        passes = np.array(draw(st.lists(st.integers(0, 2), min_size=rows, max_size=rows)), dtype=np.int64)
        columns |= {"draft_offsets": offsets_of(passes), "draft_s": _float_array(draw, TIMES, int(passes.sum()))}
    if draw(st.booleans()):
        seconds = _float_array(draw, TIMES, rows)
        unmeasured = draw(st.integers(0, rows - 1))  # NaN is null; at least one row is measured
        seconds[:unmeasured] = np.nan
        columns["verify_s"] = seconds
    return columns


def _arm_columns(draw: st.DrawFn, meta: TraceMeta, rows: int) -> dict[str, Any]:
    shape = (rows, meta.n_arms)
    limit = meta.unlogged_len
    flat = draw(st.lists(st.integers(0, limit), min_size=rows * meta.n_arms, max_size=rows * meta.n_arms))
    accepted = np.array(flat, dtype=np.int16).reshape(shape)
    columns: dict[str, Any] = {"arm_accept_len": accepted, "accept_len": accepted.max(axis=1)}
    if draw(st.booleans()):
        columns["arm_draft_s"] = _float_array(draw, TIMES, rows * meta.n_arms).reshape(shape)
    return columns


def _pass_columns(draw: st.DrawFn, lengths: NDArray[np.int64]) -> dict[str, Any]:
    """What denoising passes recorded; some rows have no pass, some passes record nothing."""
    passes = draw(st.lists(st.integers(0, 3), min_size=len(lengths), max_size=len(lengths)))
    counts = [draw(st.lists(st.integers(0, 3), min_size=n, max_size=n)) for n in passes]
    filled = [
        sorted(draw(st.lists(st.integers(0, int(m)), min_size=n, max_size=n)))
        for m, n in zip(lengths, passes, strict=True)
    ]
    return {
        "pass_offsets": offsets_of(np.array(passes, dtype=np.int64)),
        "pass_count": np.array([v for row in counts for v in row], dtype=np.int16),
        "pass_filled": np.array([v for row in filled for v in row], dtype=np.int16),
        "conf_offsets": offsets_of(np.array([sum(row) for row in counts], dtype=np.int64)),
        "pass_conf": _float_array(draw, PROBS, sum(map(sum, counts))),
    }


def _tree_columns(draw: st.DrawFn, tokens: int) -> dict[str, Any]:
    widths = draw(st.lists(st.integers(0, 3), min_size=tokens, max_size=tokens))
    lists = [sorted(draw(st.lists(PROBS, min_size=k, max_size=k)), reverse=True) for k in widths]
    lists = [[np.float32(v) / np.float32(max(1.0, sum(row))) for v in row] for row in lists]
    ranks = [draw(st.integers(-1, k - 1)) for k in widths]
    return {
        "topk_offsets": offsets_of(np.array(widths, dtype=np.int64)),
        "topk_q": np.array([v for row in lists for v in row], dtype=np.float32),
        "target_rank": np.array(ranks, dtype=np.int16),
    }
