"""Figures of bandits' regret, from a comparison of `specsim.regret`: (case, axes) -> axes.

A case is an entry of `cases` in a `specsim.regret/1` document, or what `specsim.regret.compare.compare` returns.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from matplotlib.axes import Axes


def regret_curves(case: Mapping[str, Any], ax: Axes) -> Axes:
    """Mean pseudo-regret in seconds by rounds played, a line for every policy, with the middle 95 % of its runs.

    Args:
        case: the comparison.
        ax: where.
    """
    for row in case["results"]:
        curve = row["curve"]
        if not curve["rounds"]:
            continue
        (line,) = ax.plot(curve["rounds"], curve["pseudo_s"], label=row["policy"])
        low, high = np.array(curve["pseudo_band95_s"]).T
        ax.fill_between(curve["rounds"], low, high, color=line.get_color(), alpha=0.15, linewidth=0)
    ax.set_xlabel("rounds")
    ax.set_ylabel("regret against the best arm (s)")
    ax.legend()
    return ax


def arm_throughput(case: Mapping[str, Any], ax: Axes) -> Axes:
    """Tokens per second of every arm alone, the best one marked.

    Args:
        case: the comparison.
        ax: where.
    """
    rates, best = case["arm_throughput"], case["best_arm"]
    ax.plot(range(len(rates)), rates, "o-", color="tab:gray")
    ax.plot([best], [rates[best]], "*", markersize=14, color="tab:orange", label=f"best: {best}")
    ax.set_xlabel("arm")
    ax.set_ylabel("tokens per second")
    ax.legend()
    return ax


def mean_pulls(case: Mapping[str, Any], ax: Axes) -> Axes:
    """Mean rounds played with every arm, a line for every policy.

    Args:
        case: the comparison.
        ax: where.
    """
    for row in case["results"]:
        ax.plot(range(len(row["mean_pulls"])), row["mean_pulls"], "o-", label=row["policy"])
    ax.axvline(case["best_arm"], color="black", linewidth=0.8)
    ax.set_xlabel("arm")
    ax.set_ylabel("pulls per run")
    ax.legend()
    return ax
