"""Wall-time regret in the second paper's sense (SP2ec, arXiv 2610.18735), measured, and as a replay foresees it.

    regret of a prompt = seconds of a controller - seconds of the best fixed arm, for as many tokens

Owns these numbers. The best arm is one of the same cell's sweep: of the whole dataset, or, as the paper defines it, of
each prompt by itself. Seconds are measured on the same prompts, interleaved. The best of several noisy measurements is
a little too good, the more so prompt by prompt; so regret over it is an upper estimate.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations
from typing import Any

import numpy as np
import numpy.typing as npt

from real.paper.arms import ARM
from real.paper.config import STATIC
from real.paper.paired import RESAMPLES, Times, compare
from real.paper.summary import Row, Summary, best, place_of

DATASET, PROMPT = "dataset", "prompt"  # what the best arm is the best of


def regrets(one: Summary) -> tuple[list[Row], list[Row]]:
    """Regret of every controller of a cell but the swept arms.

    Returns:
        Rows (label, controller, against `dataset` or `prompt`, prompt, regret_s, cumulative_s in the order of prompts),
        and rows (label, controller, against, the arm, seconds a prompt with their 95 % interval, `relative`: of the
        best arm's seconds, with its interval, and as predicted by replay, over the arm that it predicts to be the best
        of the dataset, or None); with the cell's place. Both empty for cells without a sweep of arms.
    """
    swept = [row for row in one.rows if row["label"] == STATIC and row["controller"].startswith(ARM)]
    if not swept:
        return [], []
    leader = best(swept)["controller"]
    speeds = {row["controller"]: one.times[row["controller"]] for row in swept}
    whole, along = [], []
    for row in one.rows:
        if row["label"] == STATIC:
            continue
        mine = one.times[row["controller"]]
        # Seconds of every arm for as many tokens as the controller emitted, which at temperature 0 are the same.
        others = {name: mine.plain_s * times.time_s / times.plain_s for name, times in speeds.items()}
        lowest = np.min(list(others.values()), axis=0)
        told = {**place_of(one.cell), "label": row["label"], "controller": row["controller"]}
        for against, arm, fixed_s in ((DATASET, leader, others[leader]), (PROMPT, None, lowest)):
            gap_s = mine.time_s - fixed_s
            foreseen = _foreseen(row, swept) if against == DATASET else None
            numbers = _numbers(mine, fixed_s, seed=one.cell.config.seed)
            whole.append({**told, "against": against, "arm": arm, **numbers, "predicted": foreseen})
            along += [
                {**told, "against": against, "prompt": prompt, "regret_s": float(gap), "cumulative_s": float(total)}
                for prompt, (gap, total) in enumerate(zip(gap_s, gap_s.cumsum(), strict=True))
            ]
    return along, whole


def _numbers(mine: Times, fixed_s: npt.NDArray[np.float64], *, seed: int) -> Row:
    gap_s = mine.time_s - fixed_s
    ratio = compare(Times(plain_s=mine.plain_s, time_s=fixed_s), mine, seed=seed)
    return {
        "regret_s": float(gap_s.mean()),
        "regret_s_ci95": mean_interval(gap_s, seed=seed),
        "relative": ratio.ratio - 1,
        "relative_ci95": None if ratio.ci95 is None else tuple(end - 1 for end in ratio.ci95),
    }


def mean_interval(values: npt.NDArray[np.float64], *, seed: int) -> tuple[float, float] | None:
    """95 % bootstrap interval of the mean of float64[B] over prompts; None with one."""
    if len(values) < 2:
        return None
    draws = np.random.default_rng(seed).integers(0, len(values), size=(RESAMPLES, len(values)))
    low, high = np.percentile(values[draws].mean(axis=1), [2.5, 97.5])
    return float(low), float(high)


def _foreseen(row: Row, swept: Sequence[Row]) -> float | None:
    """Relative regret by replay: predicted speedups are over the same plain decoding, so their ratio is that of
    seconds."""
    if row["predicted"] is None or any(one["predicted"] is None for one in swept):
        return None
    return max(one["predicted"] for one in swept) / row["predicted"] - 1


def order(one: Summary) -> Row:
    """Whether the replay foresaw which of two is faster, over all pairs of a cell's controllers and arms.

    `separated`: pairs whose ratio's interval leaves out 1; `foreseen`: those of them with predictions; `agreed`: where
    the prediction has the same one ahead; `against`: the others, as (faster, slower, ratio, predicted ratio).
    """
    rows = list({row["controller"]: row for row in one.rows}.values())
    separated = foreseen = agreed = 0
    wrong: list[list[Any]] = []
    for mine, other in combinations(rows, 2):
        ratio = compare(*(one.times[row["controller"]] for row in (mine, other)), seed=one.cell.config.seed)
        if ratio.ci95 is None or ratio.ci95[0] <= 1 <= ratio.ci95[1]:
            continue
        separated += 1
        if mine["predicted"] is None or other["predicted"] is None:
            continue
        foreseen += 1
        guess = mine["predicted"] / other["predicted"]
        if (guess > 1) == (ratio.ratio > 1):
            agreed += 1
        else:
            names = mine["controller"], other["controller"]
            ahead = ratio.ratio > 1
            told = names if ahead else names[::-1]
            wrong.append([*told, *((value if ahead else 1 / value) for value in (ratio.ratio, guess))])
    pairs = len(rows) * (len(rows) - 1) // 2
    counts = {"pairs": pairs, "separated": separated, "foreseen": foreseen, "agreed": agreed}
    return {**place_of(one.cell), **counts, "against": wrong}
