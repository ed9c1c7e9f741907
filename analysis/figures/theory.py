"""The figure of theory verdicts: properties of a trace, whether they hold, and on what evidence."""

from __future__ import annotations

import textwrap

import pyarrow as pa
from matplotlib.axes import Axes

from analysis.figures.style import BLACK, BLUE, GRAY, VERMILION, legend
from analysis.figures.tables import values

VERDICTS = {"holds": (BLUE, "o"), "violated": (VERMILION, "X"), "not decidable": (GRAY, "$?$")}
_LINE = 96  # letters of evidence on a line
_LINES = 2


def verdicts(data: pa.Table, ax: Axes) -> Axes:
    """A line for every property: a sign for its verdict, and the evidence beside it.

    Args:
        data: columns property, verdict, evidence, of one trace.
        ax: where, two columns wide.
    """
    rows = data.to_pylist()
    for verdict, (own, form) in VERDICTS.items():
        at = [y for y, row in enumerate(rows) if row["verdict"] == verdict]
        if at:
            ax.scatter([0.0] * len(at), at, s=34, marker=form, color=own, label=verdict)
    for y, row in enumerate(rows):
        told = textwrap.shorten(row["evidence"], _LINE * _LINES, placeholder=" ...")
        ax.text(0.35, y, textwrap.fill(told, _LINE), fontsize=6, va="center", color=BLACK)
    ax.set_xlim(-0.3, 10)
    ax.set_ylim(len(rows) - 0.4, -0.6)
    ax.set_xticks([])
    ax.set_yticks(range(len(rows)), values(data, "property"))
    ax.grid(visible=False)
    ax.spines["bottom"].set_visible(False)
    legend(ax)
    return ax
