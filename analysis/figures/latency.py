"""Figures of a latency model: its fit, and what the fit leaves over."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from matplotlib.axes import Axes

from analysis.figures.style import BLACK, BLUE, ORANGE, legend
from analysis.figures.tables import numbers

_KINDS = (("verify", "verification", "token positions", BLUE, "o"), ("draft", "drafting", "passes", ORANGE, "s"))


def latency_fit(data: pa.Table, ax: Axes) -> Axes:
    """Milliseconds of a pass over s positions: measured points and the fit; drafting by passes of a mean round.

    Args:
        data: columns kind (`verify`, `draft`, `fit`), s, measured_s, fitted_s, low, high (nulls allowed).
        ax: where.
    """
    line = data.filter(pc.field("kind") == "fit").sort_by("s")
    ax.plot(numbers(line, "s"), numbers(line, "fitted_s") * 1e3, color=BLACK, linewidth=0.9, label="verification, fit")
    for kind, name, unit, own, form in _KINDS:
        mine = data.filter(pc.field("kind") == kind)
        if not mine.num_rows:
            continue
        s = numbers(mine, "s")
        ax.vlines(s, numbers(mine, "low") * 1e3, numbers(mine, "high") * 1e3, color=own, linewidth=0.8)
        ax.plot(s, numbers(mine, "measured_s") * 1e3, form, color=own, linestyle="none", label=f"{name} ({unit})")
        if kind == "draft":
            ax.plot(s, numbers(mine, "fitted_s") * 1e3, "x", color=BLACK, linestyle="none", label=f"{name}, fit")
    ax.set_ylim(bottom=0)
    ax.set_xlabel("token positions, or drafter passes")
    ax.set_ylabel("ms")
    legend(ax)
    return ax


def residuals(data: pa.Table, ax: Axes) -> Axes:
    """Measured over fitted seconds, less 1, in per cent, by s.

    Args:
        data: as for `latency_fit`.
        ax: where.
    """
    for kind, name, unit, own, form in _KINDS:
        mine = data.filter((pc.field("kind") == kind) & (pc.field("fitted_s") > 0))
        if not mine.num_rows:
            continue
        s, off = numbers(mine, "s"), numbers(mine, "residual_s") / numbers(mine, "fitted_s") * 100
        ax.vlines(s, np.zeros(len(s)), off, color=own, linewidth=0.8)
        ax.plot(s, off, form, color=own, linestyle="none", label=f"{name} ({unit})")
    ax.axhline(0.0, color=BLACK, linewidth=0.6)
    ax.margins(y=0.15)
    ax.set_xlabel("token positions, or drafter passes")
    ax.set_ylabel("measured over fitted, %")
    legend(ax)
    return ax
