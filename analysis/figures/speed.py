"""Figures about speed: gains, speedups with intervals, acceptance and context against speed, predictions, parts."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from matplotlib.axes import Axes

from analysis.figures.style import BLACK, BLUE, GRAY, ORANGE, colour, legend, marker, names
from analysis.figures.tables import numbers, values


def speedup_gains(data: pa.Table, ax: Axes) -> Axes:
    """Figure 1: bars of the speedup without and with LibraSpec, and what it adds or takes.

    Args:
        data: columns dataset, method, without, libraspec, gain.
        ax: where.
    """
    rows = data.to_pylist()
    at = np.arange(len(rows))
    ax.bar(at - 0.2, [row["without"] for row in rows], 0.4, label="without LibraSpec", color=GRAY)
    ax.bar(at + 0.2, [row["libraspec"] for row in rows], 0.4, label="LibraSpec", color=BLUE)
    for x, row in zip(at, rows, strict=True):
        top = max(row["without"], row["libraspec"])
        ax.annotate(f"{row['gain']:+.2f}", (x, top), ha="center", va="bottom", fontsize=7)
    ax.axhline(1.0, color=BLACK, linewidth=0.6)
    ax.set_xlim(-0.6, len(rows) - 0.4)
    ax.set_xticks(at, [f"{row['method']}\n{row['dataset']}" for row in rows])
    ax.grid(visible=False, axis="x")
    ax.set_ylabel("speedup over plain decoding")
    legend(ax)
    return ax


def speedups(data: pa.Table, ax: Axes) -> Axes:
    """Speedup of every controller with its 95 % interval; the second paper's ablation is such a comparison.

    Args:
        data: columns label, speedup, low, high (nulls allowed), privileged.
        ax: where.
    """
    rows = data.to_pylist()
    shown = names([row["label"] for row in rows])
    for y, row in enumerate(rows):
        own = ORANGE if row["privileged"] else BLUE
        ax.barh(y, row["speedup"], color=own, height=0.6)
        if row["low"] is not None:
            ax.plot([row["low"], row["high"]], [y, y], color=BLACK, linewidth=0.9)
        end = max(row["speedup"], row["high"] or 0.0)
        ax.annotate(f" {row['speedup']:.2f}", (end, y), va="center", fontsize=7, annotation_clip=False)
    ax.axvline(1.0, color=BLACK, linewidth=0.6)
    ax.set_yticks(range(len(rows)), [shown[row["label"]] for row in rows])
    ax.invert_yaxis()
    ax.margins(x=0.12)
    ax.set_xlim(left=0)
    ax.grid(visible=False, axis="y")
    ax.set_xlabel("speedup over plain decoding")
    return ax


def latency_breakdown(data: pa.Table, ax: Axes) -> Axes:
    """Figure 3: milliseconds of a round, by part, one bar a method or controller.

    Args:
        data: columns label, draft_ms, verify_ms, rest_ms.
        ax: where.
    """
    rows = data.to_pylist()
    shown = names([row["label"] for row in rows])
    at, left = np.arange(len(rows)), np.zeros(len(rows))
    for part, own in (("draft", ORANGE), ("verify", BLUE), ("rest", GRAY)):
        widths = np.array([row[f"{part}_ms"] for row in rows])
        ax.barh(at, widths, left=left, height=0.6, label=part, color=own)
        left += widths
    ax.set_yticks(at, [shown[row["label"]] for row in rows])
    ax.invert_yaxis()
    ax.grid(visible=False, axis="y")
    ax.set_xlabel("ms per round")
    legend(ax)
    return ax


def speed_by_acceptance(data: pa.Table, ax: Axes) -> Axes:
    """Speedup over tau, a point for every rule, length and arm: colours tell methods, markers tell rules; fixed small.

    Args:
        data: columns method, label (`static` for fixed ones), tau, eta.
        ax: where.
    """
    methods, labels = values(data, "method"), [label for label in values(data, "label") if label != "static"]
    shown = names(labels)
    for number, method in enumerate(methods):
        mine = data.filter((pc.field("method") == method) & (pc.field("label") == "static"))
        name = method if len(methods) > 1 else "fixed"
        own = colour(number) if len(methods) > 1 else GRAY
        ax.scatter(numbers(mine, "tau"), numbers(mine, "eta"), s=7, color=own, label=name)
    for form, label in enumerate(labels):
        for number, method in enumerate(methods):
            mine = data.filter((pc.field("method") == method) & (pc.field("label") == label))
            own = colour(number) if len(methods) > 1 else colour(form + 1)
            ax.scatter(
                *(numbers(mine, "tau"), numbers(mine, "eta")),
                s=26,
                marker=marker(form + 1),
                color=own,
                edgecolors=BLACK,
                linewidths=0.4,
                zorder=3,
            )
        own = GRAY if len(methods) > 1 else colour(form + 1)
        ax.scatter(
            [], [], s=26, marker=marker(form + 1), color=own, edgecolors=BLACK, linewidths=0.4, label=shown[label]
        )
    return _over_plain(ax, "tau, tokens per round")


def speed_by_context(data: pa.Table, ax: Axes) -> Axes:
    """Speedup by the length of prompts: colours tell methods, markers tell labels.

    Args:
        data: columns method, label, prompt_len, eta.
        ax: where.
    """
    methods, labels = values(data, "method"), values(data, "label")
    for number, method in enumerate(methods):
        for form, label in enumerate(labels):
            mine = data.filter((pc.field("method") == method) & (pc.field("label") == label)).sort_by("prompt_len")
            if mine.num_rows:
                style = "--" if label == "static" else "-"
                ax.plot(
                    *(numbers(mine, "prompt_len"), numbers(mine, "eta")),
                    linestyle=style,
                    marker=marker(form),
                    color=colour(number),
                    label=f"{method} {label}",
                )
    return _over_plain(ax, "tokens of the prompt")


def _over_plain(ax: Axes, label: str) -> Axes:
    """Axes of speedups by something, with the line of plain decoding and a legend."""
    ax.axhline(1.0, color=BLACK, linewidth=0.6)
    ax.set_xlabel(label)
    ax.set_ylabel("speedup over plain decoding")
    legend(ax)
    return ax


def predictions(data: pa.Table, ax: Axes) -> Axes:
    """Measured speedup with its interval by the predicted one; the line is a perfect prediction.

    Args:
        data: columns method, predicted, measured, low, high (nulls allowed); one method's points in one colour.
        ax: where.
    """
    x, y = numbers(data, "predicted"), numbers(data, "measured")
    ends = np.concatenate([x, y, *(numbers(data, end) for end in ("low", "high"))])
    reach = np.array([np.nanmin(ends), np.nanmax(ends)])
    reach += np.array([-0.05, 0.05]) * max(float(np.ptp(reach)), 0.1)
    ax.plot(reach, reach, color=BLACK, linewidth=0.6, linestyle=":")
    for number, method in enumerate(values(data, "method")):
        mine = data.filter(pc.field("method") == method)
        x, y = numbers(mine, "predicted"), numbers(mine, "measured")
        own = colour(number)
        ax.vlines(x, numbers(mine, "low"), numbers(mine, "high"), color=own, linewidth=0.7, alpha=0.6)
        ax.plot(x, y, marker(number), color=own, linestyle="none", label=method)
    error = float(np.median(np.abs(numbers(data, "predicted") / numbers(data, "measured") - 1)))
    said = f"median error {error:.1%}"
    ax.text(0.97, 0.03, said, transform=ax.transAxes, ha="right", va="bottom", fontsize=7, color=GRAY)
    ax.set_xlim(*reach)
    ax.set_ylim(*reach)
    ax.set_aspect("equal")
    ax.set_xlabel("predicted speedup")
    ax.set_ylabel("measured speedup")
    if len(values(data, "method")) > 1:
        legend(ax)
    return ax
