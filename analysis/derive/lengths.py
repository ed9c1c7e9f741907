"""Derived tables about draft lengths: throughput by static length, and lengths along one request.

Owns what is replayed. Static lengths are replayed on the run's trace with its latency model; without a trace, the
static lengths that were decoded stand in, which `source` says.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from analysis.derive.measured import (
    ARM,
    STATIC,
    adaptive,
    by_number,
    column,
    fastest,
    needed,
    number,
    rows_of,
    sums_of,
)
from analysis.derive.source import Missing, Source, Sums, interval, longest, opened, replayed
from analysis.loaded import Method, Run
from analysis.rounds import Scan, along
from specsim.oracle import best_round_lengths
from specsim.rows import make_costs, make_rows
from specsim.schema import PASS_COLUMNS
from specsim.theory.check_data import static_lengths
from specsim.tree_rows import tree_latency, tree_parts, tree_rows

REPLAYED, MEASURED = "replayed", "measured"
BEST = "best length"
ORACLE = "oracle"
Row = dict[str, Any]
THROUGHPUT = pa.schema(
    [
        *((name, pa.string()) for name in ("kind", "controller")),
        *((name, pa.float64()) for name in ("length", "tokens_per_s", "low", "high")),
        ("source", pa.string()),
        ("privileged", pa.bool_()),
    ]
)
LENGTHS = pa.schema(
    [("request", pa.int64()), ("series", pa.string()), ("pos", pa.int64()), ("length", pa.int64())],
)


def throughput_by_length(run: Run, scan: Scan | None) -> pa.Table:
    """Tokens per second of every static length, and where the run's controllers and the oracle are beside them.

    Columns: kind (`static` for the curve, `controller`, `oracle`), controller, length (mean submitted; of trees in
    nodes), tokens_per_s, low, high (95 % by bootstrap over requests, null with one request), source (`replayed` or
    `measured`), privileged. Above 33 lengths the curve is thinned: all short ones, then in growing steps. Length 0 is
    plain decoding that pays the overhead of a round.

    Raises:
        Missing: an arm trace, or neither a trace nor two static lengths that were decoded.
    """
    try:
        with opened(run) as source:
            if source.meta.kind == "arm":
                raise Missing("its trace is of arms, not of lengths")
            lengths = static_lengths(longest(source.meta))
            found = replayed(source, [*(f"static:length={length}" for length in lengths), ORACLE])
        curve = [_row("static", f"static:length={n}", n, s, REPLAYED) for n, s in zip(lengths, found, strict=False)]
        oracle = [_row("oracle", ORACLE, None, found[-1], REPLAYED, privileged=True)]
    except Missing as reason:
        curve, oracle = _decoded("static", run, scan, STATIC, str(reason), "static lengths"), []
    rows = [*curve, *_marks(run, scan, curve, STATIC), *oracle]
    return pa.Table.from_pylist(rows, schema=THROUGHPUT)


def throughput_by_arm(run: Run, scan: Scan | None) -> pa.Table:
    """Tokens per second of every single arm (kind `arm`, its index as length), beside the run's controllers.

    Columns as of `throughput_by_length`; `length` is null for controllers that choose among arms. Indexes are those of
    the run's controllers: in a live run arm 0 leaves out least, and is the last one of its trace (docs/formats.md).

    Raises:
        Missing: no arm trace and fewer than two single arms that were decoded.
    """
    try:
        with opened(run) as source:
            if source.meta.kind != "arm":
                raise Missing("its trace is not of arms")
            found = replayed(source, [*(f"arm:index={arm}" for arm in range(source.meta.n_arms)), ORACLE])
        *arms, best = found if run.kind == "replay" else [*reversed(found[:-1]), found[-1]]
        curve = [_row("arm", f"arm:index={arm}", arm, sums, REPLAYED) for arm, sums in enumerate(arms)]
        oracle = [_row("oracle", ORACLE, None, best, REPLAYED, privileged=True) | {"length": None}]
    except Missing as reason:
        curve, oracle = _decoded("arm", run, scan, ARM, str(reason), "single arms"), []
    marks = [row | {"length": number(ARM, row["controller"])} for row in _marks(run, scan, curve, ARM)]
    return pa.Table.from_pylist([*curve, *marks, *oracle], schema=THROUGHPUT)


def _row(kind: str, controller: str, length: int | None, sums: Sums, source: str, *, privileged: bool = False) -> Row:
    low, high = interval(sums.tokens, sums.seconds)
    return {
        "kind": kind,
        "controller": controller,
        "length": sums.mean_length if length is None else float(length),
        "tokens_per_s": float(sums.tokens.sum() / sums.seconds.sum()),
        **{"low": low, "high": high, "source": source, "privileged": privileged},
    }


def _decoded(kind: str, run: Run, scan: Scan | None, pattern: Any, reason: str, what: str) -> list[Row]:
    """The curve from fixed lengths or arms that the run itself decoded."""
    methods = by_number(run, pattern)
    if len(methods) < 2:
        raise Missing(f"{reason}; and fewer than two {what} were decoded")
    return [_mark(run, scan, one) | {"kind": kind, "length": float(length)} for length, one in methods.items()]


def _marks(run: Run, scan: Scan | None, curve: Sequence[Row], pattern: Any) -> Iterator[Row]:
    """The run's controllers, less those that the curve shows as they are."""
    shown = {row["controller"] for row in curve if row["source"] == MEASURED or run.kind == "replay"}
    for one in run.methods:
        if one.controller not in shown and one.controller != ORACLE:
            yield _mark(run, scan, one)


def _mark(run: Run, scan: Scan | None, one: Method) -> Row:
    sums = None if scan is None else sums_of(run, scan, one.controller)
    low, high = (None, None) if sums is None else interval(sums.tokens, sums.seconds)
    return {
        "kind": "controller",
        "controller": one.controller,
        "length": one.submitted_len,
        "tokens_per_s": one.tokens_per_s,
        **{"low": low, "high": high, "source": REPLAYED if run.kind == "replay" else MEASURED},
        "privileged": one.privileged,
    }


def lengths_along(
    run: Run, scan: Scan | None, *, request: int | None = None, controllers: Sequence[str] | None = None
) -> pa.Table:
    """Submitted lengths along one request, by output position, and the best length of the same rounds.

    Columns: request, series (a controller, or `best length`), pos, length. The best length maximises tokens per second
    of the round that starts at a position (`specsim.oracle`), at the rounds of the first adaptive controller; it is
    there only where a trace tells of the text that was decoded.

    Args:
        run: the run.
        scan: of its round log.
        request: its number; default: the one with the median tau of the fastest adaptive controller, the lower of two.
        controllers: which; default: the fastest static length and the fastest adaptive controller.

    Raises:
        Missing: no round log, or no controller of lengths in it.
        ConfigError: no such request.
    """
    scanned = needed(scan)
    chosen = list(controllers) if controllers is not None else _shown(run)
    if run.rounds is None or not chosen:
        raise Missing("none of its controllers chooses lengths")
    number_ = _median_request(run, scanned, chosen[-1]) if request is None else request
    rounds = along(run.rounds, number_)
    rows: list[Row] = []
    for name in chosen:
        mine = rows_of(rounds, run, name).sort_by("pos")
        for pos, length in zip(mine["pos"].to_pylist(), mine["submitted_len"].to_pylist(), strict=True):
            rows.append({"request": number_, "series": name, "pos": pos, "length": length})
    at = rows_of(rounds, run, chosen[-1])["pos"].to_pylist()
    best = _best_lengths(run, number_)
    rows += [
        {"request": number_, "series": BEST, "pos": pos, "length": int(best[pos])} for pos in sorted(at) if pos in best
    ]
    return pa.Table.from_pylist(rows, schema=LENGTHS)


def _shown(run: Run) -> list[str]:
    """The fastest static length and the fastest adaptive controller, those that the run has of them."""
    static = fastest(list(by_number(run, STATIC).values()))
    mine = fastest([one for one in adaptive(run) if one.submitted_len > 0])
    return [one.controller for one in (static, mine) if one is not None]


def _median_request(run: Run, scan: Scan, controller: str) -> int:
    mine = rows_of(scan.requests, run, controller)
    if not mine.num_rows:
        raise Missing(f"{controller} has no rounds in the log")
    tau, request = column(mine, "tokens") / column(mine, "rounds"), column(mine, "request").astype(np.int64)
    order = np.lexsort((request, tau))
    return int(request[order[(len(order) - 1) // 2]])


def _best_lengths(run: Run, request: int) -> dict[int, int]:
    """Best length by position of a request; empty where no trace tells of the very text."""
    other_texts = run.document.get("other_texts_in_trace") if run.kind == "validation" else 0
    if (run.kind != "replay" and run.temperature != 0) or other_texts != 0:
        return {}
    try:
        with opened(run) as source:
            if source.meta.kind == "arm" or source.acceptance != "logged":
                return {}
            return _best_of(source, request)
    except Missing:
        return {}


def _best_of(source: Source, request: int) -> dict[int, int]:
    meta = source.meta
    tree = meta.kind == "tree"
    most = longest(meta)
    costs = make_costs(tree_latency(meta, source.latency) if tree else source.latency, most)
    for chunk in source.chunks(["ctx_len", *PASS_COLUMNS, *(["topk_q", "target_rank"] * tree)]):
        if not (chunk.request == request).any():
            continue
        found: dict[int, int] = {}
        for part in tree_parts(chunk, most) if tree else (chunk,):
            rows = tree_rows(part, most)[0] if tree else make_rows(part)
            best: npt.NDArray[np.int32] = best_round_lengths(rows, costs, most if tree else meta.block_len)
            mine = part.request == request
            found |= dict(zip(part.pos[mine].tolist(), best[mine].tolist(), strict=True))
        return found
    return {}
