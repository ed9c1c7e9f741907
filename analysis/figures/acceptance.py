"""Figures about what is accepted: survival, hazard, and whether confidences mean what they say."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator

from analysis.derive.acceptance import all_depths, by_depth
from analysis.figures.style import BLACK, BLUE, GRAY, ORANGE, VERMILION, colour, dash, legend, names
from analysis.figures.tables import numbers, values

FEW = 30  # drafts below which a hazard says little


def survival(data: pa.Table, ax: Axes) -> Axes:
    """Chance that all of a draft's first d tokens are accepted, by d, a line for every source, with its interval.

    Args:
        data: columns source, depth, survival, low, high (nulls allowed).
        ax: where.
    """
    sources = values(data, "source")
    shown = names(sources)
    for number, source in enumerate(sources):
        mine = data.filter(pc.field("source") == source).sort_by("depth")
        depth = np.append(0, numbers(mine, "depth"))
        ends = [np.append(1.0, numbers(mine, end)) for end in ("low", "high")]
        known = np.isfinite(ends).all(axis=0).tolist()
        own = colour(number)
        ax.fill_between(depth, *ends, where=known, color=own, alpha=0.2, linewidth=0)
        chance = np.append(1.0, numbers(mine, "survival"))
        ax.plot(depth, chance, dash(number), marker=".", color=own, label=shown[source])
    ax.set_ylim(0, 1.02)
    ax.set_xlim(left=0)
    ax.set_xlabel("draft tokens")
    ax.set_ylabel("survival")
    return _by_position(ax, sources)


def hazard(data: pa.Table, ax: Axes) -> Axes:
    """Chance that draft token d is rejected though all before it were accepted; faint where fewer than 30 were seen.

    Args:
        data: columns source, depth, hazard, n.
        ax: where.
    """
    sources = values(data, "source")
    shown = names(sources)
    for number, source in enumerate(sources):
        mine = data.filter(pc.field("source") == source).sort_by("depth")
        own, depth, rate = colour(number), numbers(mine, "depth"), numbers(mine, "hazard")
        sure = numbers(mine, "n") >= FEW
        ax.plot(depth, rate, "-", color=own, alpha=0.3, linewidth=0.8)
        ax.plot(depth, np.where(sure, rate, np.nan), dash(number), marker=".", color=own, label=shown[source])
    ax.set_ylim(bottom=0)
    ax.set_xlabel("draft position")
    ax.set_ylabel("hazard")
    return _by_position(ax, sources)


def _by_position(ax: Axes, sources: Sequence[str]) -> Axes:
    """Axes over whole positions; a legend where there is more than one source."""
    ax.xaxis.set_major_locator(MaxNLocator(integer=True))
    if len(sources) > 1:
        legend(ax)
    return ax


def error_by_depth(data: pa.Table, ax: Axes) -> Axes:
    """Figure 4's explanation: mean confidence, accepted share and calibration error per draft position.

    Args:
        data: columns depth (rows of all depths, null, are left out), bin, n, mean_q, accepted, ece.
        ax: where.
    """
    data = by_depth(data)
    depths = numbers(data, "depth")
    for column, own in (("mean_q", ORANGE), ("accepted", BLUE)):
        ax.plot(depths, numbers(data, column), "o-", label=column.replace("_", " "), color=own)
    ax.plot(depths, numbers(data, "ece"), "s--", label="calibration error", color=VERMILION)
    ax.set_xlabel("draft position")
    ax.xaxis.set_major_locator(MaxNLocator(integer=True))
    ax.set_ylim(0, 1.02)
    ax.set_ylabel("share")
    legend(ax)
    return ax


def reliability(data: pa.Table, ax: Axes) -> Axes:
    """Accepted share by confidence, all draft positions together, with the expected calibration error.

    The diagonal is perfect calibration; a point's area goes with the tokens in its bin.

    Args:
        data: as for `error_by_depth`; its rows of all depths are made from the others where there are none.
        ax: where.
    """
    data = all_depths(data).sort_by("bin")
    q, accepted, n = (numbers(data, column) for column in ("mean_q", "accepted", "n"))
    ax.plot([0, 1], [0, 1], color=BLACK, linewidth=0.6, linestyle=":")
    ax.plot(q, accepted, "-", color=BLUE)
    ax.scatter(q, accepted, s=4 + 60 * n / n.max(), color=BLUE, zorder=3)
    said = f"expected calibration error {data['ece'][0].as_py():.3f}\n{int(n.sum())} draft tokens"
    # The corner that the points are farthest from.
    low = np.mean(accepted) > np.mean(q)
    x, y = (0.97, 0.04) if low else (0.03, 0.96)
    across, up = ("right", "bottom") if low else ("left", "top")
    ax.text(x, y, said, transform=ax.transAxes, fontsize=7, color=GRAY, ha=across, va=up)
    ax.set_xlim(-0.02, 1.02)
    ax.set_ylim(-0.02, 1.02)
    ax.set_xlabel("confidence q")
    ax.set_ylabel("accepted share")
    return ax
