"""Figures about draft lengths: functions of a table and axes."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from matplotlib.axes import Axes

from analysis.figures.style import BLACK, BLUE, GRAY, ORANGE, colour, dash, legend, marker, names
from analysis.figures.tables import values

ROLES = {"static": (GRAY, 1.2), "oracle": (ORANGE, 3.0), "best length": (ORANGE, 3.0), "LibraSpec": (BLUE, 1.2)}


def lengths_along(data: pa.Table, ax: Axes) -> Axes:
    """Figures 2 and 5: speculative length along one decode, by series.

    Args:
        data: columns series, pos, length of one request.
        ax: where.
    """
    series = values(data, "series")
    shown, adaptive = names(series), 0
    # Wide lines first, so that they lie behind the others.
    for name in sorted(series, key=lambda one: (-ROLES.get(one, (BLUE, 1.2))[1], one)):
        mine = data.filter(pc.field("series") == name).sort_by("pos")
        if name in ROLES or name.startswith("static:"):
            own, width = ROLES.get(name, ROLES["static"])
        else:
            own, width, adaptive = colour(adaptive), 1.2, adaptive + 1
        ax.step(
            mine["pos"].to_numpy(),
            mine["length"].to_numpy(),
            where="post",
            label=shown[name],
            color=own,
            linewidth=width,
        )
    ax.set_ylim(bottom=0)
    ax.set_xlabel("output token")
    ax.set_ylabel("submitted tokens")
    legend(ax)
    return ax


def throughput(data: pa.Table, ax: Axes) -> Axes:
    """Tokens per second by static length (or by arm) with its interval, and where controllers and the oracle are.

    Args:
        data: columns kind (`static` or `arm` for the curve, `controller`, `oracle`), controller, length (nulls allowed
            for controllers: they are lines then), tokens_per_s, low, high (nulls allowed), source.
        ax: where.
    """
    curve = data.filter(pc.field("kind").isin(["static", "arm"])).sort_by("length")
    arms = "arm" in values(curve, "kind")
    x, y = curve["length"].to_numpy(), curve["tokens_per_s"].to_numpy()
    low, high = (curve[end].cast(pa.float64()).to_numpy() for end in ("low", "high"))
    known = np.isfinite(low) & np.isfinite(high)
    ax.fill_between(x, low, high, where=known.tolist(), color=GRAY, alpha=0.25, linewidth=0)
    source = curve["source"][0].as_py()
    ax.plot(x, y, "-" if len(x) > 20 else ".-", color=GRAY, label=f"{'arms' if arms else 'static'}, {source}")
    marks = [row for row in data.to_pylist() if row["kind"] not in ("static", "arm")]
    fixed = [row for row in marks if row["controller"].startswith(("static:", "arm:"))]
    if fixed:
        # "#2" tells the second of two equal controllers
        at = [float(row["controller"].rpartition("=")[2].partition("#")[0]) for row in fixed]
        speeds = [row["tokens_per_s"] for row in fixed]
        ax.plot(at, speeds, ".", color=BLACK, linestyle="none", label=f"{'arms' if arms else 'static'}, measured")
        marks = [row for row in marks if row not in fixed]
    shown = names([row["controller"] for row in marks])
    for number, row in enumerate(marks):
        own, form = (ORANGE, "*") if row["kind"] == "oracle" else (colour(number), marker(number))
        if row["length"] is None:
            level = row["tokens_per_s"]
            ax.axhline(level, color=own, linestyle=dash(number), linewidth=0.9, label=shown[row["controller"]])
            continue
        if row["low"] is not None and row["kind"] != "oracle":
            ax.plot([row["length"]] * 2, [row["low"], row["high"]], color=own, linewidth=0.7, alpha=0.6)
        size = 8 if form == "*" else 4.5
        ax.plot(
            row["length"],
            row["tokens_per_s"],
            form,
            markersize=size,
            color=own,
            markeredgecolor=BLACK if form == "*" else own,
            markeredgewidth=0.5,
            linestyle="none",
            label=shown[row["controller"]],
        )
    ax.margins(y=0.08)
    ax.set_ylim(bottom=0)
    ax.set_xlabel("arm" if arms else "static length, or mean submitted length")
    ax.set_ylabel("tokens per second")
    legend(ax)
    return ax


def speedup_by_max(data: pa.Table, ax: Axes) -> Axes:
    """Figure 4: speedup of LibraSpec by its maximum length, beside static lengths.

    Args:
        data: columns max_len, libraspec, static (nulls allowed), best_static (nulls allowed).
        ax: where.
    """
    data = data.sort_by("max_len")
    at = data["max_len"].to_numpy()
    ax.plot(at, data["libraspec"].to_numpy(), "o-", label="LibraSpec", color=BLUE)
    for column, style in (("static", "s--"), ("best_static", ":")):
        found = np.array(data[column].to_pylist(), np.float64)
        if np.isfinite(found).any():
            ax.plot(at, found, style, label=column.replace("_", " "), color=GRAY)
    ax.set_xlabel("maximum length")
    ax.set_ylabel("speedup over plain decoding")
    legend(ax)
    return ax
