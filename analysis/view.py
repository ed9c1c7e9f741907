"""The panels of `analysis.panels` as a local page: what Weights & Biases would show, without it and without a network.

Owns how a panel is drawn from what is logged (`analysis.logged`). The page is one HTML file with everything in it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any, NamedTuple

import plotly.graph_objects as go
from plotly.offline import get_plotlyjs

from analysis import keys
from analysis.logged import Logged
from analysis.panels import SECTIONS, Panel

ENDS = ("_low", "_high")
NOTHING = "not known: no value of it is in the folder"
STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 90rem; padding: 0 1rem; color: #222 }
.panels { display: grid; grid-template-columns: repeat(auto-fill, minmax(min(28rem, 100%), 1fr)); gap: 1rem }
.panel { border: 1px solid #ddd; border-radius: 4px; padding: .5rem; min-width: 0; overflow-x: auto }
.panel h4 { margin: .2rem 0 .5rem } .wide { grid-column: 1 / -1 } .value { font-size: 2.5rem }
table { border-collapse: collapse; font-size: 13px } td, th { padding: .15rem .5rem; border-bottom: 1px solid #eee }
td { text-align: right } td:first-child { text-align: left }
"""


class Series(NamedTuple):
    """One line, or one set of bars: `x` are rounds, or controllers."""

    name: str
    x: list[Any]
    y: list[float | None]


def series_of(panel: Panel, one: Logged) -> list[Series]:
    """What a panel of curves or bars shows of a comparison; nothing where no value of it is known."""
    if panel.kind == "bars":
        labels = [controller.label for controller in one.controllers]
        found = [
            Series(key, labels, [controller.result.get(key) for controller in one.controllers]) for key in panel.keys
        ]
    else:
        found = []
        for controller in one.controllers:
            points = list(controller.points())
            rounds = [point[keys.ROUND] for point in points]
            for key in panel.keys:
                name = f"{controller.label} {key}" if len(panel.keys) > 1 else controller.label
                found.append(Series(name, rounds, [point[key] for point in points]))
    return [series for series in found if any(value is not None for value in series.y)]


def figure_of(panel: Panel, found: Sequence[Series]) -> go.Figure:
    """Curves, or bars from top to bottom; a key that others give the ends of an interval of has error bars."""
    figure = go.Figure()
    by_name = {series.name: series for series in found}
    for series in found:
        if panel.kind == "curve":
            figure.add_scatter(x=series.x, y=series.y, name=series.name, mode="lines")
        elif not series.name.endswith(ENDS):
            figure.add_bar(x=series.y, y=series.x, name=series.name, orientation="h", error_x=_errors(series, by_name))
    lines = len(found) if panel.kind == "curve" else len(found[0].x)
    figure.update_layout(
        height=300 + 18 * lines,
        margin={"l": 10, "r": 10, "t": 10, "b": 10},
        template="plotly_white",
        legend={"orientation": "h", "font": {"size": 10}, "y": -0.2, "yanchor": "top"},
        showlegend=sum(not series.name.endswith(ENDS) for series in found) > 1,
    )
    if panel.kind == "curve":
        figure.update_xaxes(title=keys.ROUND)
    else:
        figure.update_yaxes(autorange="reversed", automargin=True)
    return figure


def _errors(series: Series, by_name: Mapping[str, Series]) -> dict[str, Any] | None:
    """Plotly's error bars from the ends of an interval; None where there are none."""
    if not all(series.name + end in by_name for end in ENDS):
        return None
    low, high = (by_name[series.name + end].y for end in ENDS)
    up = [None if b is None or y is None else b - y for y, b in zip(series.y, high, strict=True)]
    down = [None if a is None or y is None else y - a for y, a in zip(series.y, low, strict=True)]
    return {"type": "data", "symmetric": False, "array": up, "arrayminus": down}


def rows_of(panel: Panel, one: Logged) -> tuple[Sequence[str], Sequence[Sequence[Any]]]:
    """Columns and rows of a table's panel."""
    if panel.keys == (keys.CONTROLLERS,):
        return keys.CONTROLLER_COLUMNS, [keys.row_of(controller.result) for controller in one.controllers]
    return keys.LATENCY_COLUMNS, [] if one.latency is None else one.latency[1]


def page(groups: Sequence[Logged]) -> str:
    """The page of some comparisons, a part each."""
    parts = [f"<h1>Panels</h1><style>{STYLE}</style><script>{get_plotlyjs()}</script>"]
    for one in groups:
        notes = "".join(f"<p>{escape(note)}</p>" for note in one.notes)
        parts.append(f"<h2>{escape(one.name)}</h2>{notes}")
        for section in SECTIONS:
            panels = [panel for panel in section.panels if panel.of != keys.SWEEP]
            if panels:
                shown = "".join(_panel(panel, one) for panel in panels)
                text = f"<h3>{escape(section.title)}</h3><p>{escape(section.text)}</p>"
                parts.append(f'{text}<div class="panels">{shown}</div>')
    body = "\n".join(parts)
    return f'<!doctype html><html lang="en"><meta charset="utf-8"><title>Panels</title><body>{body}</body></html>\n'


def _panel(panel: Panel, one: Logged) -> str:
    wide = " wide" if panel.keys == (keys.CONTROLLERS,) else ""
    return f'<div class="panel{wide}"><h4>{escape(panel.title)}</h4>{_content(panel, one)}</div>'


def _content(panel: Panel, one: Logged) -> str:
    if panel.kind == "value":
        return (
            ""
            if one.best is None
            else f'<div class="value">{_cell(one.best.result["speedup"])}</div>{escape(one.best.label)}'
        )
    if panel.kind == "table":
        columns, rows = rows_of(panel, one)
        head = "".join(f"<th>{escape(name)}</th>" for name in columns)
        body = "".join("<tr>" + "".join(f"<td>{_cell(value)}</td>" for value in row) + "</tr>" for row in rows)
        return f"<table><tr>{head}</tr>{body}</table>" if rows else NOTHING
    found = series_of(panel, one)
    return _drawn(figure_of(panel, found)) if found else NOTHING


def _drawn(figure: go.Figure) -> str:
    return figure.to_html(full_html=False, include_plotlyjs=False, config={"displayModeBar": False})


def _cell(value: Any) -> str:
    if isinstance(value, float) and not value.is_integer():
        return f"{value:.4g}"
    return "" if value is None else escape(f"{value:g}" if isinstance(value, float) else str(value))
