"""Plots of the papers' experiments (`python -m real.paper`), each a function of a figure's table. Those that runs
have, too, are drawn by `plots`, some after a function here gave their columns its names."""

from __future__ import annotations

import plotly.graph_objects as go
import pyarrow as pa

from analysis.report.plots import parts
from analysis.report.style import GREY, PALETTE, figure, looks, ones, short


def gains(table: pa.Table) -> go.Figure:
    """Speedup without and with LibraSpec, by method and dataset."""
    fig = figure("", "speedup over plain decoding", barmode="group")
    names = [short(f"{row['method']}, {row['dataset']}") for row in table.to_pylist()]
    for column, name, color in (("without", "without LibraSpec", GREY), ("libraspec", "with LibraSpec", PALETTE[0])):
        fig.add_bar(x=names, y=table[column].to_pylist(), name=name, marker={"color": color})
    ones(fig)
    return fig


def max_lengths(table: pa.Table) -> go.Figure:
    """Speedup by the maximum length."""
    fig = figure("maximum length", "speedup over plain decoding")
    table = table.sort_by("max_len")
    x = table["max_len"].to_pylist()
    for column, name, look in (
        ("libraspec", "LibraSpec", {"color": PALETTE[0]}),
        ("static", "static", {"color": PALETTE[1], "dash": "dash"}),
        ("best_static", "best static", {"color": GREY, "dash": "dot"}),
    ):
        values = table[column].to_pylist()
        if any(value is not None for value in values):
            fig.add_scatter(x=x, y=values, name=name, mode="lines+markers", line=look)
    return fig


def depths(table: pa.Table) -> go.Figure:
    """Mean confidence, accepted share and calibration error by draft position (`by_depth` of `analysis.derive`)."""
    fig = figure("draft position", "share")
    for number, (column, name) in enumerate(
        (("mean_q", "mean confidence"), ("accepted", "accepted"), ("ece", "calibration error"))
    ):
        look = looks(("mean_q", "accepted", "ece"))[column]
        fig.add_scatter(
            x=table["depth"].to_pylist(), y=table[column].to_pylist(), name=name, mode="lines+markers",
            line={"color": PALETTE[number], "dash": look.dash}, marker={"symbol": look.symbol},
        )  # fmt: skip
    fig.update_yaxes(range=[0, 1.04])
    return fig


def contexts(table: pa.Table) -> go.Figure:
    """Speedup by the length of the prompt."""
    fig = figure("prompt length, tokens", "speedup over plain decoding")
    series = [f"{row['method']}, {row['label']}" for row in table.to_pylist()]
    named = looks(series)
    for name, rows in parts(table.append_column("series", pa.array(series)), "series"):
        rows = rows.sort_by("prompt_len")
        fig.add_scatter(
            x=rows["prompt_len"].to_pylist(), y=rows["eta"].to_pylist(), name=short(name), mode="lines+markers",
            line=named[name].line, marker={"symbol": named[name].symbol},
        )  # fmt: skip
    return fig


def mat(table: pa.Table) -> go.Figure:
    """Speedup against tau, a series per method."""
    fig = figure("tau: tokens per round", "speedup over plain decoding")
    ones(fig)
    named = looks(table["method"].to_pylist())
    for name, rows in parts(table, "method"):
        fig.add_scatter(
            x=rows["tau"].to_pylist(), y=rows["eta"].to_pylist(), name=short(name), mode="markers",
            marker={"color": named[name].color, "symbol": named[name].symbol, "size": 9},
            customdata=[short(f"{row['label']} {row['controller']}") for row in rows.to_pylist()],
            hovertemplate="%{customdata}<br>tau %{x:.2f}<br>speedup %{y:.3f}",
        )  # fmt: skip
    return fig


def labelled(table: pa.Table) -> pa.Table:
    """The table with `label` as its controller, and bands that are not known."""
    table = table.set_column(table.column_names.index("controller"), "controller", table["label"])
    for name in ("low", "high"):
        table = table.append_column(name, pa.nulls(table.num_rows, pa.float64()))
    return table
