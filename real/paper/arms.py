"""The data of the second paper's figures (SP2ec, arXiv 2610.18735): acceptance against speed, and who pulled which arm.

Owns the columns. MAT, the mean accepted tokens of the paper's tables, is tau here: tokens of a round, the target's own
included. The best arms of a cell are those of its sweep (`arms` of a method), ranked by measured speedup.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from analysis.paper_tables import fastest
from real.builders.arm import read_arms
from real.compare import counted
from real.drafters.choose import parse_drafter
from real.paper.config import STATIC
from real.paper.paired import compare
from real.paper.reading import ANY_LAYERS
from real.paper.summary import Measured, Row, Summary, place_of, rows_of, times_of

TOP = 3  # arms beyond these are what the paper calls wasted pulls
ARM = "arm:index="


def ranks(values: Sequence[float]) -> npt.NDArray[np.float64]:
    """float64[n] ranks from 1 up, equal values sharing the mean of theirs."""
    given = np.asarray(values, np.float64)
    below = (given[None, :] < given[:, None]).sum(axis=1)
    return below + ((given[None, :] == given[:, None]).sum(axis=1) + 1) / 2


def spearman(one: Sequence[float], other: Sequence[float]) -> float | None:
    """Spearman's rank correlation; None with fewer than two values, or where one side has equal values only."""
    a, b = ranks(one), ranks(other)
    a, b = a - a.mean(), b - b.mean()
    scale = float(np.sqrt((a @ a) * (b @ b)))
    return float(a @ b) / scale if scale else None


def points(rows: Sequence[Row]) -> pa.Table:
    """tau and speedup of every row, to be drawn against each other."""
    keys = ("target", "dataset", "temperature", "method", "label", "controller", "tau", "eta")
    return pa.Table.from_pylist([{key: row[key] for key in keys} for row in rows])


def acceptance(summaries: Sequence[Summary]) -> list[Row]:
    """How tau goes with speed, a row for every target, dataset and temperature.

    `spearman` is over all rows that are no variant of another's controller and drafter; `higher` and `lower` are the
    two of them whose taus differ most while the one with more is slower, the interval of their ratio below 1 (None:
    there are none). They decoded the same prompts.
    """
    groups: dict[tuple[Any, ...], list[Summary]] = {}
    for one in summaries:
        groups.setdefault((one.cell.target, one.cell.dataset, one.cell.temperature), []).append(one)
    return [_accepted(group) for group in groups.values()]


def _accepted(group: Sequence[Summary]) -> Row:
    points = {(row["drafter"], row["controller"]): (row, one) for one in group for row in one.rows}
    found = list(points.values())
    widest: tuple[float, Row, Row, Any] | None = None
    for more, mine in found:
        for less, other in found:
            gap = more["tau"] - less["tau"]
            if gap <= 0 or more["eta"] >= less["eta"] or (widest is not None and gap <= widest[0]):
                continue
            seed = mine.cell.config.seed
            ratio = compare(mine.times[more["controller"]], other.times[less["controller"]], seed=seed)
            if not ratio.at_least_as_fast:
                widest = (gap, more, less, ratio)
    row = found[0][0]
    example = {"higher": None, "lower": None, "ratio": None, "ci95": None}
    if widest is not None:
        example = {"higher": _named(widest[1]), "lower": _named(widest[2])}
        example |= {"ratio": widest[3].ratio, "ci95": widest[3].ci95}
    told = {key: row[key] for key in ("target", "dataset", "temperature")}
    rho = spearman([row["tau"] for row, _ in found], [row["eta"] for row, _ in found])
    return {**told, "points": len(found), "spearman": rho, **example}


def _named(row: Row) -> Row:
    return {key: row[key] for key in ("method", "label", "controller", "tau", "eta")}


def contexts(rows: Sequence[Row]) -> pa.Table:
    """Speedup by the length of prompts, of every method's fastest variants; datasets differ in it."""
    keys = ("target", "dataset", "temperature", "method", "label", "controller", "prompt_len", "tau", "eta", "eta_ci95")
    found = []
    for target, temperature in dict.fromkeys((row["target"], row["temperature"]) for row in rows):
        mine = [row for row in rows if (row["target"], row["temperature"]) == (target, temperature)]
        found += [{key: row[key] for key in keys} for row in fastest(mine).values()]
    return pa.Table.from_pylist(found)


def construction(cell: Measured) -> list[Row]:
    """What making a cell's arms took, of whole generations, prompts and construction included.

    Of arms made on the way a row (label, controller) for every rule but the swept arms; of a file's, if it tells what
    building them took (`real.arms`), one labelled `beforehand`. Each has the seconds of construction and of the
    generations it fell into, their ratio, the tokens generated, and how many tokens a generation with one construction
    would need for it to take 1 %; and of arms made on the way, if the target was timed for them, the seconds of that,
    once for a session and in no other number. Empty for other drafters.
    """
    place, method = place_of(cell.cell), cell.cell.method
    found = []
    for label, spelling in method.labels():
        runs = [counted(request, spelling).decoded for request in cell.requests]
        build_s, whole_s = sum(run.build_s for run in runs), sum(run.prefill_s + run.decode_s for run in runs)
        if label != STATIC and build_s > 0:
            families = sum(run.built.families for run in runs)
            told = {**place, "label": label, "controller": spelling}
            numbers = _overhead(build_s, whole_s, sum(len(run.output) for run in runs), families)
            found.append({**told, **numbers, "timing_s": runs[0].built.timing_s or None})
    options = parse_drafter(method.drafter, target=cell.cell.target, n_layers=ANY_LAYERS).options
    if "arms" in options and "build" not in options:
        told = read_arms(options["arms"]).construction
        if told.get("generated"):
            build_s = sum(told["seconds"].values())
            numbers = _overhead(build_s, told["generation_s"], told["generated"], 1)
            found.append({**place, "label": "beforehand", "controller": None, **numbers, "timing_s": None})
    return found


def _overhead(build_s: float, whole_s: float, tokens: int, families: int) -> Row:
    token_s = (whole_s - build_s) / tokens
    return {
        "build_s": build_s,
        "whole_s": whole_s,
        "share": build_s / whole_s,
        "tokens": tokens,
        "families": families,
        "tokens_for_1_percent": 99 * build_s / families / token_s,
    }


def arm_order(rows: Sequence[Row]) -> list[int]:
    """Swept arms of a cell, the fastest first, by measured speedup; empty without a sweep."""
    swept = [row for row in rows if row["label"] == STATIC and row["controller"].startswith(ARM)]
    ordered = sorted(swept, key=lambda row: -row["eta"])
    return [int(row["controller"].removeprefix(ARM)) for row in ordered]


def pulls(cell: Measured) -> tuple[list[Row], list[Row]]:
    """Which arms a cell's controllers chose, rounds that drafted.

    Returns:
        Rows (label, controller, arm, rank from 1 in the sweep or None, pulls, share, tokens and milliseconds of such a
        round), and rows (label, controller, rounds, share of the best arm, share of each prompt's own best arm, share
        outside the best three), with the cell's place. A share over all arms needs all that were pulled swept; else it
        is None. Both are empty for cells without a sweep of arms.
    """
    rows = rows_of(cell)
    order = arm_order(rows)
    if not order:
        return [], []
    times = {arm: times_of(cell, f"{ARM}{arm}") for arm in order}
    # Of each prompt, the arm that decodes most per second.
    speeds = np.stack([times[arm].plain_s / times[arm].time_s for arm in order])
    own = [order[index] for index in speeds.argmax(axis=0).tolist()]
    by_arm: list[Row] = []
    by_rule: list[Row] = []
    for label, spelling in cell.cell.method.labels():
        if label == STATIC:
            continue
        played = [
            [row for row in counted(request, spelling).decoded.rounds if row.submitted_len] for request in cell.requests
        ]
        told = {**place_of(cell.cell), "label": label, "controller": spelling}
        counts = Counter(row.arm for rounds in played for row in rounds)
        total = sum(counts.values())
        if not total or -1 in counts:  # chooses no arm
            continue
        for arm in sorted({*counts, *order}):
            mine = [row for rounds in played for row in rounds if row.arm == arm]
            by_arm.append(
                {
                    **told,
                    "arm": arm,
                    "rank": order.index(arm) + 1 if arm in order else None,
                    "pulls": len(mine),
                    "share": len(mine) / total,
                    "tokens": float(np.mean([row.emitted_len for row in mine])) if mine else None,
                    "round_ms": float(np.mean([row.round_s for row in mine])) * 1e3 if mine else None,
                }
            )
        by_rule.append({**told, "rounds": total, **_shares(counts, order, own, played)})
    return by_arm, by_rule


def _shares(counts: Mapping[int, int], order: Sequence[int], own: Sequence[int], played: Sequence[Any]) -> Row:
    total, known = sum(counts.values()), set(counts) <= set(order)
    hits = sum(row.arm == arm for rounds, arm in zip(played, own, strict=True) for row in rounds)
    return {
        "best_arm": order[0],
        "best": counts.get(order[0], 0) / total,
        "own_best": hits / total,
        "outside_top3": 1 - sum(counts.get(arm, 0) for arm in order[:TOP]) / total if known else None,
    }
