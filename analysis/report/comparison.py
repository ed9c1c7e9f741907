"""Several runs side by side: the controllers they share, with each run's speedup."""

from __future__ import annotations

from collections.abc import Sequence

import plotly.graph_objects as go
import pyarrow as pa

from analysis.loaded import PLAIN, Run
from analysis.report.panels import Kind, panel
from analysis.report.parts import Answer, Cell, Column, Comparison, Grid, Row
from analysis.report.plots import parts
from analysis.report.style import asymmetric, figure, lines, looks, name_axis, ones, short
from analysis.report.wording import fixed, joined, number, span

POINTS = pa.schema(
    [
        *((name, pa.string()) for name in ("run", "controller")),
        ("privileged", pa.bool_()),
        *((name, pa.float64()) for name in ("speedup", "low", "high")),
    ]
)
MOST = 3  # runs that the first sentence names


def comparison(runs: Sequence[Run]) -> Comparison | None:
    """The controllers that at least two runs have, or None where there are none besides plain decoding."""
    titles = dict(zip((run.name for run in runs), _stripped([run.name for run in runs]), strict=True))
    found = {run.name: {one.controller: one for one in run.methods} for run in runs}
    names = list(dict.fromkeys(one.controller for run in runs for one in run.methods if one.controller != PLAIN))
    shared = [name for name in names if sum(name in methods for methods in found.values()) > 1]
    if not shared:
        return None
    rows, points = [], []
    for name in shared:
        cells = [Cell(name)]
        for run in runs:
            one = found[run.name].get(name)
            speedup = None if one is None else one.speedup
            known = one is not None and one.ci95 is not None
            text = fixed(speedup, 3) + (f" ({span(one.ci95)})" if one is not None and known else "")
            cells.append(number(speedup, text))
            if one is not None and speedup is not None:
                low, high = one.ci95 or (None, None)
                told = {"run": titles[run.name], "controller": name, "privileged": one.privileged}
                points.append(told | {"speedup": speedup, "low": low, "high": high})
        rows.append(Row(cells))
    table = pa.Table.from_pylist(points, schema=POINTS)
    kind = Kind(title="Speedup by run", draw=by_run, say=_best, series=("controller",))
    return Comparison(
        lines=[f"{len(shared)} controllers are in more than one of the {len(runs)} runs."],
        grid=Grid(
            caption="Speedup over plain decoding with its 95 % interval, by run.",
            label="Comparison of runs",
            columns=[Column("controller", number=False), *(Column(titles[run.name]) for run in runs)],
            rows=rows,
            sortable=True,
        ),
        panels=[panel(kind, table, "compared-speedup", whole="python -m analysis.tables --format csv")]
        if points
        else [],
    )


def by_run(table: pa.Table) -> go.Figure:
    """Speedup of every controller, a place for each run; columns run, controller, speedup, low, high."""
    fig = figure("speedup", "", height=150 + 50 * len(set(table["run"].to_pylist())))
    name_axis(fig)
    named = looks(table["controller"].to_pylist())
    ones(fig, axis="x")
    for name, rows in parts(table, "controller"):
        speedup, color = rows["speedup"].to_pylist(), named[name].color
        fig.add_scatter(
            x=speedup,
            y=[lines(run) for run in rows["run"].to_pylist()],
            name=short(name),
            mode="markers",
            marker={"color": color, "symbol": named[name].symbol, "size": 10},
            error_x={**asymmetric(speedup, rows["low"].to_pylist(), rows["high"].to_pylist()), "color": color},
        )
    return fig


def _best(table: pa.Table) -> str:
    told = []
    for run, rows in parts(table, "run"):
        best = max(
            (row for row in rows.to_pylist() if not row["privileged"]), key=lambda row: row["speedup"], default=None
        )
        if best is None:
            continue
        told.append(f"{best['controller']} ({fixed(best['speedup'], 3)}x) on {run}")
    return (
        f"Fastest that can be deployed, of those that runs share: {joined(told)}. Bars are 95 % intervals; the dotted "
        "line is plain decoding."
    )


def lead(answers: Sequence[tuple[str, Answer]]) -> Answer:
    """The sentence at the top of the page, of one or several runs and experiments, told by their titles."""
    if not answers:
        return Answer("open", "Nothing to compare.", "No run of controllers was named.")
    if len(answers) == 1:
        return answers[0][1]
    paying = [f"{said.verdict.removesuffix(' pays:')} on {name}" for name, said in answers if said.kind == "pays"]
    if paying:
        shown = "; ".join(paying[:MOST]) + ("" if len(paying) <= MOST else "; and others")  # names hold commas
        return Answer("pays", f"Speculation pays in {len(paying)} of {len(answers)}:", f"{shown}.")
    if all(said.kind == "loses" for _, said in answers):
        return Answer("loses", "Do not speculate:", f"no controller beats plain decoding in any of {len(answers)}.")
    return Answer("open", "Not shown to pay:", f"none is surely faster than plain decoding in any of {len(answers)}.")


def _stripped(names: Sequence[str]) -> list[str]:
    """Names without the folder, if all of them are of one."""
    folders = {name.rpartition("/")[0] for name in names}
    return [name.rpartition("/")[2] for name in names] if len(folders) == 1 else list(names)
