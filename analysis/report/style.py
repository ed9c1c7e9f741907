"""How plots look: colours that read on white and on dark ground, lines and marks told apart without colour, names that
plotly takes for text. Colours of the ground and of writing are the page's (report.css, report.js)."""

from __future__ import annotations

import html
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import plotly.graph_objects as go

# Luminance between 0.13 and 0.28, so that each has a contrast of 3 or more to both grounds (tests/test_report.py).
PALETTE = ("#2f7fd6", "#c8620a", "#1d9150", "#d6453d", "#9a5fd0", "#118a9b", "#d0488f", "#8a7a10", "#5f7f99", "#a3663a")
GREY = "#80868f"
DASHES = ("solid", "dash", "dot", "dashdot", "longdash")
SYMBOLS = ("circle", "square", "diamond", "triangle-up", "cross", "x", "triangle-down", "star", "hexagon", "pentagon")
CLAIRVOYANT = ("oracle", "best length")  # are grey
HEIGHT, BELOW = 340, 54  # pixels: of a plot, legend not counted, and of that below the axis
LONGEST, LINE = 30, 16  # characters of a name in a plot, and of one line of it on an axis
FONT = 'system-ui, -apple-system, "Segoe UI", Roboto, "DejaVu Sans", sans-serif'


@dataclass(frozen=True)
class Look:
    """Colour, dash and mark of a series."""

    color: str
    dash: str
    symbol: str

    @property
    def line(self) -> dict[str, str]:
        """For plotly's `line`."""
        return {"color": self.color, "dash": self.dash}


def looks(names: Sequence[str]) -> Mapping[str, Look]:
    """One look for each name, in their order; what no deployed controller can know is grey."""
    found: dict[str, Look] = {}
    for name in dict.fromkeys(names):
        if name in CLAIRVOYANT:
            found[name] = Look(GREY, "solid", "star")
            continue
        number = sum(one not in CLAIRVOYANT for one in found)
        found[name] = Look(
            PALETTE[number % len(PALETTE)],
            DASHES[number // len(PALETTE) % len(DASHES)],
            SYMBOLS[(number + number // len(PALETTE)) % len(SYMBOLS)],
        )
    return found


def as_text(text: str) -> str:
    """Text that plotly shows as it stands: it reads tags, and formulas between dollars, which need MathJax."""
    return html.escape(text, quote=False).replace("$", "&#36;")


def short(name: str) -> str:
    """A name for a legend or an axis: cut in the middle if long, and free of what plotly would take for markup."""
    if len(name) > LONGEST:
        half = (LONGEST - 1) // 2
        name = f"{name[:half]}…{name[-half:]}"
    return as_text(name)


def lines(name: str) -> str:
    """The same for an axis of names: in lines of a few characters, so that a narrow screen has room for the plot."""
    pieces = re.findall(r"[^,:/-]+[,:/-]*|[,:/-]+", name if len(name) <= LONGEST else f"{name[: LONGEST - 1]}…")
    found = [""]
    for piece in pieces:
        if found[-1] and len(found[-1]) + len(piece) > LINE:
            found.append("")
        found[-1] += piece
    return "<br>".join(as_text(line) for line in found)


def figure(x: str, y: str, *, height: int = HEIGHT, **layout: Any) -> go.Figure:
    """An empty figure with titled axes."""
    axis = {"ticks": "outside", "showline": True, "zeroline": False}
    return go.Figure(
        layout={
            "template": "none",
            "height": height,
            # Fixed: margins that plotly finds by drawing again and again may never settle. The page adds the legend.
            "margin": {"l": 66, "r": 14, "t": 12, "b": BELOW, "autoexpand": False},
            "font": {"family": FONT, "size": 13},
            "colorway": list(PALETTE),
            "hovermode": "closest",
            "legend": {
                "orientation": "h",
                "yref": "container",
                "y": 0,
                "yanchor": "bottom",
                "xref": "container",
                "x": 0,
                "xanchor": "left",
                "font": {"size": 11},
            },
            "xaxis": {**axis, "title": {"text": as_text(x), "standoff": 8}},
            "yaxis": {**axis, "title": {"text": as_text(y)}},
            **layout,
        }
    )


def name_axis(fig: go.Figure) -> None:
    """Make the y axis one of names, the first on top."""
    fig.update_yaxes(type="category", autorange="reversed", tickfont={"size": 11}, title=None)
    fig.update_layout(margin={"l": 7 * LINE + 10})


def ones(fig: go.Figure, *, axis: str = "y") -> None:
    """A line at 1: plain decoding. Its colour is set on the page."""
    (fig.add_hline if axis == "y" else fig.add_vline)(1.0, line={"width": 1, "dash": "dot", "color": GREY})


def asymmetric(
    values: Sequence[float | None], low: Sequence[float | None], high: Sequence[float | None]
) -> dict[str, Any]:
    """plotly's error bars from intervals; none where an end is missing."""
    above = [_beyond(value, end) for value, end in zip(values, high, strict=True)]
    below = [_beyond(end, value) for value, end in zip(values, low, strict=True)]
    return {"type": "data", "symmetric": False, "array": above, "arrayminus": below, "width": 3, "thickness": 1.2}


def _beyond(low: float | None, high: float | None) -> float:
    return 0.0 if low is None or high is None else max(0.0, high - low)
