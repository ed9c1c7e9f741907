"""Numbers of one policy in one case: regret with bands over runs, its parts, and how it grows. Prints nothing."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from specsim.controllers import Controller
from specsim.errors import ConfigError
from specsim.regret.runner import Output
from specsim.regret.worlds import Case

FIT_FROM = 2000  # rounds before which the initial pulls and the climb dominate
FIT_SPAN = 10.0  # a logarithm and a power differ too little over less than a decade
LEARNING = 0.1  # share of the rounds that any policy must spend on learning, above which growth is not yet asymptotic
DECISIVE = 0.01  # difference of R2 below which neither form is preferred


def spread(values: NDArray[np.float64]) -> dict[str, Any]:
    """Mean with its standard error, the central 95 % of runs, and the tail."""
    runs = values.size
    low, high = np.percentile(values, [2.5, 97.5])
    sd = float(values.std(ddof=1)) if runs > 1 else None
    return {
        "mean": float(values.mean()),
        "se": None if sd is None else sd / math.sqrt(runs),
        "sd": sd,
        "median": float(np.median(values)),
        "band95": [float(low), float(high)],
        "max": float(values.max()),
    }


def r_squared(values: NDArray[np.float64], fitted: NDArray[np.float64]) -> float | None:
    total = float(((values - values.mean()) ** 2).sum())
    return None if total == 0 else 1 - float(((values - fitted) ** 2).sum()) / total


def fit_growth(
    rounds: NDArray[np.int64], regret: NDArray[np.float64], apart: float | None, *, fit_from: int = FIT_FROM
) -> dict[str, Any]:
    """a ln n + b and b n^g, fitted where n >= fit_from, and what may be concluded.

    Args:
        rounds, regret: the curve, mean over runs.
        apart: rounds per unit of ln n that the neighbours of the best arm need before they are told apart.
        fit_from: first round used.
    """
    used = (rounds >= fit_from) & np.isfinite(regret)
    n, y = rounds[used].astype(np.float64), regret[used]
    result: dict[str, Any] = {"fit_from": fit_from, "range": None, "log": None, "power": None}
    if n.size < 6 or n[-1] / n[0] < FIT_SPAN * 0.95:
        span = "no rounds" if n.size == 0 else f"{n[0]:.0f} to {n[-1]:.0f}"
        return result | {
            "verdict": "undecided",
            "why": f"range too short: {span}, at least a decade from {fit_from} is needed",
        }
    result["range"] = [int(n[0]), int(n[-1])]
    if (y <= 0).any() or np.ptp(y) <= 1e-9 * abs(y).max():
        return result | {"verdict": "none", "why": "no growth to fit"}
    slope, offset = np.polyfit(np.log(n), y, 1)
    result["log"] = {"a": float(slope), "b": float(offset), "r2": r_squared(y, slope * np.log(n) + offset)}
    power, scale = np.polyfit(np.log(n), np.log(y), 1)
    fitted = np.exp(scale) * n**power
    result["power"] = {"b": float(np.exp(scale)), "g": float(power), "r2": r_squared(y, fitted)}
    ahead = (result["log"]["r2"] or 0.0) - (result["power"]["r2"] or 0.0)
    verdict = "log" if ahead > DECISIVE else "power" if ahead < -DECISIVE else "undecided"
    why = f"R2 {result['log']['r2']:.3f} of the logarithm, {result['power']['r2']:.3f} of the power"
    better = verdict
    if apart is not None and apart * math.log(n[-1]) > LEARNING * n[-1]:
        verdict = "undecided"
        why += (
            f"; gaps too small for this range: telling the best arm's neighbours apart takes "
            f"{apart * math.log(n[-1]):.0f} of {n[-1]:.0f} rounds at least, so either form may only hold here"
        )
    return result | {"verdict": verdict, "better_fit": better, "why": why}


def measure(spelling: str, controller: Controller, case: Case, out: Output, best: Output) -> dict[str, Any]:
    """Result of one policy.

    Args:
        spelling: as given.
        controller: as built.
        case: the case.
        out: its runs.
        best: the runs of the best single arm, on the same random numbers.
    """
    job = case.job
    for who, runs in ((spelling, out), ("best-arm", best)):
        short = np.flatnonzero(runs.quota[:, 3] == 0)
        if short.size:
            # On a log of rounds a policy that emits less per round meets the end of the text first.
            raise ConfigError(
                f"{who}: run {short[0]} ends before {job.quota:g} tokens, so their time is unknown; lower --quota"
            )
    regret = out.quota[:, 0] - best.quota[:, 0]
    outside = np.ones(job.world.arms, bool)
    outside[case.top3] = False
    pulled = np.maximum(out.pulls.sum(axis=1), 1)
    reached = np.isfinite(out.pseudo).all(axis=0)
    grid = job.grid[reached]
    pseudo = out.pseudo[:, reached]
    # Time regret after n rounds, sum T - sum N / nu*; the pseudo-regret is its mean without the noise.
    rate = float(case.throughput[job.best])
    timed = out.seconds[:, reached] - out.tokens[:, reached] / rate
    curve = {"rounds": grid.tolist()}
    if grid.size:
        curve |= {
            "pseudo_s": pseudo.mean(axis=0).tolist(),
            "pseudo_band95_s": np.percentile(pseudo, [2.5, 97.5], axis=0).T.tolist(),
            "time_regret_s": timed.mean(axis=0).tolist(),
        }
    return {
        "policy": spelling,
        "controller": controller.name,
        "params": controller.config,
        "privileged": controller.privilege != "none",
        "regret_s": spread(regret),
        "pseudo_regret_s": spread(out.quota[:, 2]),
        "relative_loss": float(1 - best.quota[:, 0].sum() / out.quota[:, 0].sum()),
        "throughput": float(out.quota[:, 1].sum() / out.quota[:, 0].sum()),
        "outside_top3": spread(out.pulls[:, outside].sum(axis=1) / pulled),
        "mean_pulls": out.pulls.mean(axis=0).tolist(),
        "first_pulls_s": float(out.first_s.mean()),
        "reset_pulls_s": float(out.again_s.mean()),
        "switches": float(out.switches.mean()),
        "switch_share": float(out.switches.sum() / np.maximum(out.rounds.sum(), 1)),
        "rounds": float(out.quota[:, 3].mean()),
        "growth": fit_growth(grid, pseudo.mean(axis=0) if grid.size else np.zeros(0), case.apart),
        "curve": curve,
    }
