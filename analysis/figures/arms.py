"""Figures about learning: who pulled which arm, and regret along prompts."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator

from analysis.figures.style import BLACK, colour, dash, legend, marker, names
from analysis.figures.tables import numbers, values


def pull_shares(data: pa.Table, ax: Axes) -> Axes:
    """Share of the pulls by arm, a line for every controller; the arm best throughout is marked.

    Args:
        data: columns label, arm, rank (nulls allowed), share, of one run or cell.
        ax: where.
    """
    labels = values(data, "label")
    shown = names(labels)
    for number, label in enumerate(labels):
        mine = data.filter(pc.field("label") == label).sort_by("arm")
        ax.plot(
            *(numbers(mine, "arm"), numbers(mine, "share")),
            "-",
            marker=marker(number),
            color=colour(number),
            label=shown[label],
        )
    for arm in sorted(set(data.filter(pc.field("rank") == 1)["arm"].to_pylist())):
        ax.axvline(arm, color=BLACK, linewidth=0.8, linestyle=":", label="best fixed arm")
    ax.xaxis.set_major_locator(MaxNLocator(integer=True))
    ax.set_xlabel("arm (0: leaves out the least)")
    ax.set_ylabel("share of pulls")
    ax.set_ylim(bottom=0)
    legend(ax)
    return ax


def regret_along(data: pa.Table, ax: Axes) -> Axes:
    """Regret in seconds, added up over prompts, a line for every controller, with a band where the table has one.

    Args:
        data: columns label, against, prompt (from 0), cumulative_s, of one best choice; low, high (nulls allowed) or
            neither.
        ax: where.
    """
    labels = values(data, "label")
    shown = names(labels)
    for number, label in enumerate(labels):
        mine = data.filter(pc.field("label") == label).sort_by("prompt")
        at = numbers(mine, "prompt") + 1
        if "low" in data.column_names:
            ax.fill_between(
                at, numbers(mine, "low"), numbers(mine, "high"), color=colour(number), alpha=0.13, linewidth=0
            )
        ax.plot(at, numbers(mine, "cumulative_s"), dash(number), color=colour(number), label=shown[label])
    ax.axhline(0.0, color=BLACK, linewidth=0.6)
    ax.xaxis.set_major_locator(MaxNLocator(integer=True))
    ax.set_xlabel("prompts")
    (against,) = values(data, "against")
    known = {"dataset": "the best fixed arm", "prompt": "each prompt's best arm"}
    ax.set_ylabel(f"seconds beyond {known.get(against) or names([against])[against]}")
    legend(ax)
    return ax
