"""From a table to a panel: plot, caption, data; or the line that says why there is none. Owns which kinds there are."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import plotly.graph_objects as go
import pyarrow as pa

from analysis.report import captions, plots
from analysis.report.parts import Panel
from analysis.report.thin import thin
from analysis.report.wording import listed


@dataclass(frozen=True, kw_only=True)
class Kind:
    """A kind of plot.

    Attributes:
        title: heading of its panel.
        draw: table to figure.
        say: table to caption; of the whole table, before points are left out.
        series: columns that name a series of the table, for leaving points out evenly.
        columns: that are listed under the plot; empty for all.
    """

    title: str
    draw: Callable[[pa.Table], go.Figure]
    say: Callable[[pa.Table], str]
    series: Sequence[str] = ()
    columns: Sequence[str] = ()


LENGTHS = Kind(
    title="Draft length along a decode", draw=plots.lengths_along, say=captions.lengths_along, series=("series",)
)
RELIABILITY = Kind(title="Reliability of q", draw=plots.reliability, say=captions.reliability, series=("depth",))
PULLS = Kind(title="Pulls of arms", draw=plots.pulls, say=captions.pulls, series=("controller",))
REGRET = Kind(title="Regret along prompts", draw=plots.regret_along, say=captions.regret_along, series=("controller",))
LATENCY = Kind(
    title="Latency: points, fit, residuals", draw=plots.latency_points, say=captions.latency_points, series=("kind",)
)
BREAKDOWN = Kind(title="Parts of a round", draw=plots.breakdown, say=captions.breakdown)
RUN_KINDS: Mapping[str, Kind] = {  # in the order they are shown, by their names in analysis.derive.TABLES
    "throughput": Kind(
        title="Throughput over static length", draw=plots.throughput, say=captions.throughput, series=("kind",)
    ),
    "arms": Kind(title="Throughput of single arms", draw=plots.throughput, say=captions.throughput, series=("kind",)),
    "lengths": LENGTHS,
    "survival": Kind(
        title="Survival and hazard by position", draw=plots.survival, say=captions.survival, series=("source",)
    ),
    "reliability": RELIABILITY,
    "latency": LATENCY,
    "breakdown": BREAKDOWN,
    "regret": REGRET,
    "pulls": PULLS,
    "acceptance": Kind(title="Tokens per round against speedup", draw=plots.acceptance, say=captions.acceptance),
    "predictions": Kind(title="Predicted against measured", draw=plots.predictions, say=captions.predictions),
}
ARMS_ONLY = ("arms", "pulls")  # nobody misses them in a run without arms


def panel(kind: Kind, table: pa.Table, key: str, *, whole: str, title: str | None = None, before: str = "") -> Panel:
    """A panel of a table.

    Args:
        kind: of plot.
        table: what is drawn.
        key: its id on the page.
        whole: how to get every row, for captions of what was thinned out.
        title: where it is not the kind's.
        before: a sentence that opens the caption.
    """
    shown = thin(table, kind.series)
    caption = f"{before} {kind.say(table)}".strip()
    if shown.num_rows < table.num_rows:
        caption += f" {shown.num_rows} of {table.num_rows} points are drawn, evenly chosen."
    figure = json.loads(str(kind.draw(shown).to_json()))
    return Panel(
        key=key,
        title=title or kind.title,
        caption=caption,
        figure=figure,
        data=listed(table.select(list(kind.columns)) if kind.columns else table, kind.series, whole),
    )
