"""Wall-time regret in the second paper's sense (SP2ec, arXiv 2610.18735), measured, and as a replay foresees it.

    regret of a prompt = seconds of a controller - seconds of the best fixed arm, for as many tokens

Owns these numbers. The best arm is one of the same cell's sweep: of the whole dataset, or, as the paper defines it, of
each prompt by itself. Seconds are measured on the same prompts, interleaved. The best of several noisy measurements is
a little too good, the more so prompt by prompt; so regret over it is an upper estimate. What a replay foresees is the
same numbers from replayed seconds of the same prompts, over the arm that is best there.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from itertools import combinations
from typing import Any

import numpy as np

from analysis.paired import RESAMPLES
from real.foretold import foretell
from real.paper.arms import ARM
from real.paper.config import STATIC
from real.paper.paired import Float64Array, Times, compare
from real.paper.summary import Measured, Row, Summary, best, place_of
from real.validation import CALIBRATION, TRACE
from specsim.latency import load_latency
from specsim.trace import open_trace

DATASET, PROMPT = "dataset", "prompt"  # what the best arm is the best of


def regrets(one: Summary, replayed: Mapping[str, Float64Array] | None = None) -> tuple[list[Row], list[Row]]:
    """Regret of every controller of a cell but the swept arms.

    Args:
        one: the cell.
        replayed: float64[B] seconds of each controller on every prompt, as `replayed_seconds` returns them.

    Returns:
        Rows (label, controller, against `dataset` or `prompt`, prompt, regret_s, cumulative_s in the order of prompts,
        predicted_s), and rows (label, controller, against, the arm, regret_s of a prompt and `relative`, of the best
        arm's seconds, each with its 95 % interval; and the same as replayed: predicted_arm, predicted_s, `predicted`),
        with the cell's place. Both empty for cells without a sweep of arms. Predictions are None where the controller
        or an arm has none.
    """
    swept = [row for row in one.rows if row["label"] == STATIC and row["controller"].startswith(ARM)]
    if not swept:
        return [], []
    leader, seed = best(swept)["controller"], one.cell.config.seed
    speeds = {row["controller"]: one.times[row["controller"]] for row in swept}
    foreseen = {name: replayed[name] for name in speeds} if replayed and set(speeds) <= set(replayed) else {}
    foreseen_leader = min(foreseen, key=lambda name: foreseen[name].sum(), default=None)
    whole, along = [], []
    for row in one.rows:
        if row["label"] == STATIC:
            continue
        mine = one.times[row["controller"]]
        # Seconds of every arm for as many tokens as the controller emitted, which at temperature 0 are the same.
        others = {name: mine.plain_s * times.time_s / times.plain_s for name, times in speeds.items()}
        ahead_s = replayed.get(row["controller"]) if replayed and foreseen else None
        told = {**place_of(one.cell), "label": row["label"], "controller": row["controller"]}
        for against in (DATASET, PROMPT):
            arm, fixed_s = _fixed(others, leader if against == DATASET else None)
            predicted_arm, predicted = None, _NOTHING
            gaps_s: list[float | None] = [None] * len(mine.time_s)
            if ahead_s is not None:
                predicted_arm, least_s = _fixed(foreseen, foreseen_leader if against == DATASET else None)
                predicted = _numbers(ahead_s, least_s, seed=seed)
                gaps_s = (ahead_s - least_s).tolist()
            whole.append(
                {
                    **told,
                    **{"against": against, "arm": arm, **_numbers(mine.time_s, fixed_s, seed=seed)},
                    "predicted_arm": predicted_arm,
                    **{name: predicted[key] for key, name in _PREDICTED.items()},
                }
            )
            gap_s = mine.time_s - fixed_s
            along += [
                {
                    **{**told, "against": against, "prompt": prompt},
                    **{"regret_s": float(gap), "cumulative_s": float(total), "predicted_s": ahead},
                }
                for prompt, (gap, total, ahead) in enumerate(zip(gap_s, gap_s.cumsum(), gaps_s, strict=True))
            ]
    return along, whole


_PREDICTED = {
    "regret_s": "predicted_s",
    "regret_s_ci95": "predicted_s_ci95",
    "relative": "predicted",
    "relative_ci95": "predicted_ci95",
}
_NOTHING: Row = dict.fromkeys(_PREDICTED)


def _fixed(seconds: Mapping[str, Float64Array], arm: str | None) -> tuple[str | None, Float64Array]:
    """float64[B] of an arm, or of each prompt's own best one where none is named."""
    return arm, np.min(list(seconds.values()), axis=0) if arm is None else seconds[arm]


def _numbers(time_s: Float64Array, fixed_s: Float64Array, *, seed: int) -> Row:
    # Any seconds of plain decoding, the same for both, cancel.
    ratio = compare(Times(plain_s=time_s, time_s=fixed_s), Times(plain_s=time_s, time_s=time_s), seed=seed)
    return {
        "regret_s": float((time_s - fixed_s).mean()),
        "regret_s_ci95": mean_interval(time_s - fixed_s, seed=seed),
        "relative": ratio.ratio - 1,
        "relative_ci95": None if ratio.ci95 is None else tuple(end - 1 for end in ratio.ci95),
    }


def replayed_seconds(cell: Measured) -> dict[str, Float64Array]:
    """Seconds of every controller on each prompt, by replay of the cell's own trace with its own calibration.

    Only of controllers whose speedup this gives as the cell has it: one that is told the seconds of arms beforehand
    (`sp2ec-2d`) may decide otherwise on a trace. Empty for a cell without predictions, or of a single arm.

    Returns:
        float64[B] by spelling, in the order of the prompts.

    Raises:
        ConfigError: a trace or a calibration that cannot be read.
    """
    told = {one["controller"]: one["predicted"] for one in cell.document["results"]}
    names = [name for name in cell.cell.method.spellings() if told[name] is not None]
    if not names or open_trace(cell.folder / TRACE).meta.kind != "arm":
        return {}
    latency = load_latency(cell.folder / CALIBRATION)
    found = foretell(cell.folder / TRACE, latency, names, seed=cell.cell.config.seed)
    return {name: one.time_s for name, one in zip(names, found, strict=True) if math.isclose(one.speedup, told[name])}


def mean_interval(values: Float64Array, *, seed: int) -> tuple[float, float] | None:
    """95 % bootstrap interval of the mean of float64[B] over prompts; None with one."""
    if len(values) < 2:
        return None
    draws = np.random.default_rng(seed).integers(0, len(values), size=(RESAMPLES, len(values)))
    low, high = np.percentile(values[draws].mean(axis=1), [2.5, 97.5])
    return float(low), float(high)


def order(one: Summary) -> Row:
    """Whether the replay foresaw which of two is faster, over all pairs of a cell's controllers and arms.

    `separated`: pairs whose ratio's interval leaves out 1; `foreseen`: those of them that the replay tells apart too,
    whose predicted ratio is further from 1 than two standard deviations between replays; `agreed`: where it has the
    same one ahead; `against`: the others, as (faster, slower, ratio, predicted ratio); `untold`: separated pairs with
    predictions too close to each other.
    """
    rows = list({row["controller"]: row for row in one.rows}.values())
    separated = foreseen = agreed = untold = 0
    wrong: list[list[Any]] = []
    for mine, other in combinations(rows, 2):
        ratio = compare(*(one.times[row["controller"]] for row in (mine, other)), seed=one.cell.config.seed)
        if ratio.ci95 is None or ratio.ci95[0] <= 1 <= ratio.ci95[1]:
            continue
        separated += 1
        if mine["predicted"] is None or other["predicted"] is None:
            continue
        guess = mine["predicted"] / other["predicted"]
        if abs(guess - 1) <= 2 * math.hypot(*(row["predicted_sd"] / row["predicted"] for row in (mine, other))):
            untold += 1
            continue
        foreseen += 1
        if (guess > 1) == (ratio.ratio > 1):
            agreed += 1
        else:
            names = mine["controller"], other["controller"]
            ahead = ratio.ratio > 1
            told = names if ahead else names[::-1]
            wrong.append([*told, *((value if ahead else 1 / value) for value in (ratio.ratio, guess))])
    pairs = len(rows) * (len(rows) - 1) // 2
    counts = {"pairs": pairs, "separated": separated, "foreseen": foreseen, "agreed": agreed, "untold": untold}
    return {**place_of(one.cell), **counts, "against": wrong}
