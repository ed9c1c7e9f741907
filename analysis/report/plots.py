"""Plots of runs, each a function of a derived table (`analysis.derive`), whose function says what the columns mean.
Colours of series follow the order in which names first appear."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import plotly.graph_objects as go
import pyarrow as pa
import pyarrow.compute as pc
from plotly.subplots import make_subplots

from analysis.report.style import (
    CLAIRVOYANT,
    GREY,
    HEIGHT,
    PALETTE,
    asymmetric,
    figure,
    lines,
    looks,
    name_axis,
    ones,
    short,
)

DRAWN_DEPTHS = (1, 2, 4, 8, 16)  # of reliability: more lines would hide each other


def parts(table: pa.Table, column: str) -> Iterator[tuple[Any, pa.Table]]:
    """The rows of each series, in the order in which they first appear; null is a series, too."""
    for name in dict.fromkeys(table[column].to_pylist()):
        yield name, table.filter(pc.field(column).is_null() if name is None else pc.field(column) == name)


def band(fig: go.Figure, x: list[float], low: list[float | None], high: list[float | None], color: str) -> None:
    """A pale band between two lines; nothing where an end is missing."""
    known = [(a, b, c) for a, b, c in zip(x, low, high, strict=True) if b is not None and c is not None]
    if not known:
        return
    at, lower, upper = zip(*known, strict=True)
    fig.add_scatter(
        x=[*at, *at[::-1]],
        y=[*upper, *lower[::-1]],
        fill="toself",
        fillcolor=_pale(color),
        line={"width": 0},
        mode="lines",
        hoverinfo="skip",
        showlegend=False,
    )


def _pale(color: str) -> str:
    red, green, blue = (int(color[place : place + 2], 16) for place in (1, 3, 5))
    return f"rgba({red},{green},{blue},0.18)"


def throughput(table: pa.Table) -> go.Figure:
    """Tokens per second of every static length (or single arm), with the controllers' and the oracle's beside them.

    Those without a length of their own, controllers of arms, are lines across.
    """
    arms = "arm" in table["kind"].to_pylist()
    fig = figure("arm" if arms else "draft length (mean, for controllers)", "tokens per second")
    beside = pc.field("kind").isin(["controller", "oracle"])
    marks = table.filter(beside)
    named = looks(marks["controller"].to_pylist())
    curve = table.filter(~beside).sort_by("length")
    x, rate = curve["length"].to_pylist(), curve["tokens_per_s"].to_pylist()
    band(fig, x, curve["low"].to_pylist(), curve["high"].to_pylist(), GREY)
    fig.add_scatter(
        x=x,
        y=rate,
        name="single arms" if arms else "static lengths",
        mode="markers" if arms else "lines+markers",
        line={"color": GREY},
        marker={"color": GREY, "size": 9 if arms else 6},
    )
    for row in marks.to_pylist():
        look, name = named[row["controller"]], short(row["controller"])
        if row["length"] is None:
            ends = [min(x, default=0), max(x, default=1)]
            fig.add_scatter(x=ends, y=[row["tokens_per_s"]] * 2, name=name, mode="lines", line=look.line)
            continue
        fig.add_scatter(
            x=[row["length"]],
            y=[row["tokens_per_s"]],
            name=name,
            mode="markers",
            marker={"color": look.color, "symbol": look.symbol, "size": 11},
            error_y={**asymmetric([row["tokens_per_s"]], [row["low"]], [row["high"]]), "color": look.color},
        )
    return fig


def lengths_along(table: pa.Table) -> go.Figure:
    """Draft length along one decode, a step per round."""
    fig = figure("output token", "draft length")
    named = looks(table["series"].to_pylist())
    for name, rows in parts(table, "series"):
        fig.add_scatter(
            x=rows["pos"].to_pylist(),
            y=rows["length"].to_pylist(),
            name=short(name),
            mode="lines",
            line={**named[name].line, "shape": "hv", "width": 4 if name in CLAIRVOYANT else 1.8},
            opacity=0.6 if name in CLAIRVOYANT else 1,
        )
    return fig


def survival(table: pa.Table) -> go.Figure:
    """Share of drafts accepted to each position (above) and hazard of the first refusal there (below)."""
    fig = _two("survival", "hazard", "draft position")
    named = looks(table["source"].to_pylist())
    for name, rows in parts(table, "source"):
        look, x = named[name], rows["depth"].to_pylist()
        band(fig, x, rows["low"].to_pylist(), rows["high"].to_pylist(), look.color)
        for row, column in ((1, "survival"), (2, "hazard")):
            fig.add_scatter(
                row=row,
                col=1,
                x=x,
                y=rows[column].to_pylist(),
                name=short(name),
                mode="lines+markers",
                line=look.line,
                marker={"symbol": look.symbol},
                customdata=rows["n"].to_pylist(),
                hovertemplate="position %{x}: %{y:.3f}<br>%{customdata} drafts seen",
                legendgroup=name,
                showlegend=row == 1,
            )
    fig.update_yaxes(rangemode="tozero")
    return fig


def reliability(table: pa.Table) -> go.Figure:
    """Accepted share by confidence q, of all positions and of some; on the diagonal q is the chance of acceptance."""
    fig = figure("confidence q (mean of the bin)", "accepted share")
    fig.add_scatter(
        x=[0, 1], y=[0, 1], name="calibrated", mode="lines", line={"color": GREY, "width": 1, "dash": "dash"}
    )
    drawn = table.filter(pc.field("depth").is_null() | pc.field("depth").isin(list(DRAWN_DEPTHS)))
    most = max(drawn["n"].to_pylist())
    named = looks([depth_name(depth) for depth in drawn["depth"].to_pylist()])
    for depth, rows in parts(drawn, "depth"):
        look = named[depth_name(depth)]
        fig.add_scatter(
            x=rows["mean_q"].to_pylist(),
            y=rows["accepted"].to_pylist(),
            name=depth_name(depth),
            mode="lines+markers",
            line={**look.line, "width": 2.5 if depth is None else 1.2},
            marker={"size": [5 + 13 * (n / most) ** 0.5 for n in rows["n"].to_pylist()], "symbol": look.symbol},
            customdata=rows["n"].to_pylist(),
            hovertemplate="q %{x:.3f}<br>accepted %{y:.3f}<br>%{customdata} draft tokens",
        )
    fig.update_xaxes(range=[0, 1.02])
    fig.update_yaxes(range=[0, 1.04])
    return fig


def depth_name(depth: int | None) -> str:
    """A draft position for people; None is all of them."""
    return "all positions" if depth is None else f"position {depth}"


def latency_points(table: pa.Table) -> go.Figure:
    """Measured milliseconds and the fit (above), and what the fit leaves (below)."""
    drafts = "draft" in table["kind"].to_pylist()
    x = "token positions of a pass" + ("; for drafting, passes of a round" if drafts else "")
    fig = _two("ms", "residual, ms", x)
    for kind, rows in parts(table, "kind"):
        rows = rows.sort_by("s")
        s = rows["s"].to_pylist()
        measured, fitted, left = (_ms(rows[name]) for name in ("measured_s", "fitted_s", "residual_s"))
        if kind == "fit":
            fig.add_scatter(row=1, col=1, x=s, y=fitted, name="fit", mode="lines", line={"color": GREY})
            continue
        number = ("verify", "draft").index(kind) if kind in ("verify", "draft") else 2
        fig.add_scatter(
            row=1,
            col=1,
            x=s,
            y=measured,
            name=f"{short(kind)}, measured",
            mode="markers",
            marker={"color": PALETTE[number], "size": 9, "symbol": ("circle", "square", "diamond")[number]},
            error_y=asymmetric(measured, _ms(rows["low"]), _ms(rows["high"])) | {"color": PALETTE[number]},
        )
        fig.add_scatter(
            row=2,
            col=1,
            x=s,
            y=left,
            showlegend=False,
            name=f"{short(kind)}, residual",
            mode="markers",
            marker={"color": PALETTE[number], "size": 7, "symbol": ("circle", "square", "diamond")[number]},
        )
    fig.update_yaxes(rangemode="tozero", row=1)
    fig.add_hline(0.0, row=2, line={"width": 1, "color": GREY})  # pyright: ignore[reportArgumentType]
    return fig


def breakdown(table: pa.Table) -> go.Figure:
    """Milliseconds of a mean round, by part; of a run or, with a column `method`, of the papers' experiments."""
    fig = figure("ms per round", "", barmode="stack", height=200 + 32 * table.num_rows)
    name_axis(fig)
    names = [lines(of_row(row)) for row in table.to_pylist()]
    for part, color in (("draft", PALETTE[1]), ("verify", PALETTE[0]), ("rest", GREY)):
        fig.add_bar(orientation="h", x=table[f"{part}_ms"].to_pylist(), y=names, name=part, marker={"color": color})
    return fig


def of_row(row: Mapping[str, Any]) -> str:
    """A controller, with its method where there are several."""
    return f"{row['method']}, {row['controller']}" if "method" in row else row["controller"]


def _ms(column: pa.ChunkedArray) -> list[float | None]:
    return [None if value is None else 1000 * value for value in column.to_pylist()]


def _two(above: str, below: str, x: str) -> go.Figure:
    fig = make_subplots(rows=2, cols=1, shared_xaxes=True, vertical_spacing=0.08, row_heights=[0.62, 0.38])
    style = figure(x, above, height=HEIGHT + 80).layout.to_plotly_json()
    axes = {name: style.pop(name) for name in ("xaxis", "yaxis")}
    fig.update_layout(**style)
    fig.update_xaxes(**{**axes["xaxis"], "title": None})
    fig.update_yaxes(**axes["yaxis"])
    fig.update_xaxes(title={"text": x, "standoff": 8}, row=2)
    fig.update_yaxes(title={"text": below}, row=2)
    return fig


def acceptance(table: pa.Table) -> go.Figure:
    """Speedup against tau: what accepts more is not always faster."""
    fig = figure("tau: tokens per round", "speedup over plain decoding")
    named = looks(table["controller"].to_pylist())
    ones(fig)
    for row in table.to_pylist():
        look = named[row["controller"]]
        fig.add_scatter(
            x=[row["tau"]], y=[row["speedup"]], name=short(row["controller"]), mode="markers",
            marker={"color": look.color, "symbol": look.symbol, "size": 11},
        )  # fmt: skip
    return fig


def predictions(table: pa.Table) -> go.Figure:
    """Measured speedup against the simulator's; on the diagonal it was right."""
    fig = figure("speedup predicted", "speedup measured")
    table = table.filter(pc.field("predicted").is_valid() & pc.field("measured").is_valid())
    both = table["predicted"].to_pylist() + table["measured"].to_pylist()
    ends = [min(both) * 0.97, max(both) * 1.03]
    fig.add_scatter(x=ends, y=ends, name="as predicted", mode="lines", line={"color": GREY, "width": 1, "dash": "dash"})
    named = looks(table["controller"].to_pylist())
    for row in table.to_pylist():
        look = named[row["controller"]]
        fig.add_scatter(
            x=[row["predicted"]], y=[row["measured"]], name=short(row["controller"]), mode="markers",
            marker={"color": look.color, "symbol": look.symbol, "size": 10},
            error_y={**asymmetric([row["measured"]], [row["low"]], [row["high"]]), "color": look.color},
        )  # fmt: skip
    return fig


def regret_along(table: pa.Table) -> go.Figure:
    """Seconds lost to the best in hindsight, added up over prompts, with bootstrap bands."""
    fig = figure("prompts", "cumulative regret, s")
    named = looks(table["controller"].to_pylist())
    for name, rows in parts(table, "controller"):
        x = rows["prompt"].to_pylist()
        band(fig, x, rows["low"].to_pylist(), rows["high"].to_pylist(), named[name].color)
        fig.add_scatter(x=x, y=rows["cumulative_s"].to_pylist(), name=short(name), mode="lines", line=named[name].line)
    return fig


def pulls(table: pa.Table) -> go.Figure:
    """Share of rounds each controller played with each arm."""
    fig = figure("share of rounds", "", barmode="stack")
    fig.update_xaxes(range=[0, 1])
    name_axis(fig)
    for number, (arm, rows) in enumerate(parts(table, "arm")):
        fig.add_bar(
            orientation="h",
            x=rows["share"].to_pylist(),
            y=[lines(name) for name in rows["controller"].to_pylist()],
            name=f"arm {short(str(arm))}",
            marker={
                "color": PALETTE[number % len(PALETTE)],
                "pattern": {"shape": _PATTERNS[number // len(PALETTE) % 4]},
            },
        )
    return fig


_PATTERNS = ("", "/", "x", ".")
