"""The figures of the second paper's experiments (SP2ec, arXiv 2610.18735): functions of a table and axes.

The tables' columns are described by `real.paper.arms` and `real.paper.regret`; `analysis.paper` draws them.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from matplotlib.axes import Axes


def _values(data: pa.Table, column: str) -> list[str]:
    """The different values of a column, in their order."""
    return list(dict.fromkeys(data[column].to_pylist()))


def speed_by_acceptance(data: pa.Table, ax: Axes) -> Axes:
    """Speedup over tau, a point for every rule and arm; fixed arms small.

    Args:
        data: columns method, label, tau, eta.
        ax: where.
    """
    for number, method in enumerate(_values(data, "method")):
        mine = data.filter(pc.field("method") == method)
        sizes = [16 if label == "static" else 48 for label in mine["label"].to_pylist()]
        ax.scatter(mine["tau"].to_numpy(), mine["eta"].to_numpy(), s=sizes, color=f"C{number % 10}", label=method)
    for row in data.filter(pc.field("label") != "static").to_pylist():
        ax.annotate(row["label"], (row["tau"], row["eta"]), xytext=(4, 3), textcoords="offset points", fontsize=7)
    ax.axhline(1.0, color="black", linewidth=0.8)
    ax.set_xlabel("tau, tokens per round")
    ax.set_ylabel("speedup over plain decoding")
    ax.legend()
    return ax


def pull_shares(data: pa.Table, ax: Axes) -> Axes:
    """Share of the pulls by arm, a line for every controller; the arm best throughout is marked.

    Args:
        data: columns label, arm, rank (nulls allowed), share, of one cell.
        ax: where.
    """
    for label in _values(data, "label"):
        mine = data.filter(pc.field("label") == label).sort_by("arm")
        ax.plot(mine["arm"].to_numpy(), mine["share"].to_numpy(), "o-", label=label)
    for arm in sorted(set(data.filter(pc.field("rank") == 1)["arm"].to_pylist())):
        ax.axvline(arm, color="black", linewidth=0.8, linestyle=":", label="best fixed arm")
    ax.set_xticks(np.unique(data["arm"].to_numpy()))
    ax.set_xlabel("arm (0: leaves out the least)")
    ax.set_ylabel("share of pulls")
    ax.set_ylim(bottom=0)
    ax.legend()
    return ax


def speed_by_context(data: pa.Table, ax: Axes) -> Axes:
    """Speedup by the length of prompts, a line for every method and label.

    Args:
        data: columns method, label, prompt_len, eta.
        ax: where.
    """
    for method in _values(data, "method"):
        for label in _values(data.filter(pc.field("method") == method), "label"):
            found = (pc.field("method") == method) & (pc.field("label") == label)
            mine = data.filter(found).sort_by("prompt_len")
            ax.plot(mine["prompt_len"].to_numpy(), mine["eta"].to_numpy(), "o-", label=f"{method} {label}")
    ax.axhline(1.0, color="black", linewidth=0.8)
    ax.set_xlabel("tokens of the prompt")
    ax.set_ylabel("speedup over plain decoding")
    ax.legend(fontsize=7)
    return ax


def regret_along(data: pa.Table, ax: Axes) -> Axes:
    """Regret in seconds, added up over prompts, a line for every controller.

    Args:
        data: columns label, prompt, cumulative_s, of one cell and one best arm.
        ax: where.
    """
    for label in _values(data, "label"):
        mine = data.filter(pc.field("label") == label).sort_by("prompt")
        ax.plot(mine["prompt"].to_numpy() + 1, mine["cumulative_s"].to_numpy(), label=label)
    ax.axhline(0.0, color="black", linewidth=0.8)
    ax.set_xlabel("prompts")
    ax.set_ylabel("seconds beyond the best fixed arm")
    ax.legend()
    return ax
