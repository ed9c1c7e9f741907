"""Plain result files as sections: checks of the papers' statements, regret of bandits, latency fits."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import plotly.graph_objects as go
import pyarrow as pa

from analysis import derive
from analysis.report import captions, plots, provenance
from analysis.report.panels import LATENCY, REGRET, Kind, panel
from analysis.report.parts import Cell, Column, Gap, Grid, Panel, Row, Section
from analysis.report.sections import verdicts
from analysis.report.wording import fixed, number, told
from specsim.errors import ConfigError
from specsim.latency import LatencyModel

Document = Mapping[str, Any]


def theory(file: Path, document: Document, key: str) -> Section:
    """Verdicts of `specsim.theory check --json`, a table per trace."""
    traces = _list(document, "traces", file)
    grids = [verdicts(derive.verdicts([trace]), told(trace["path"])) for trace in traces]
    return Section(key=key, title=f"Theory: {file.name}", grids=grids)


def regret(file: Path, document: Document, key: str) -> Section:
    """Regret of bandits on each case: a table of the policies and their curves."""
    grids: list[Grid] = []
    panels: list[Panel] = []
    for place, case in enumerate(_list(document, "cases", file)):
        rows = [_policy(one) for one in _list(case, "results", file) if isinstance(one.get("regret_s"), Mapping)]
        name = told(case.get("case"))
        grids.append(
            Grid(
                caption=f"{name}: regret after {told(case.get('rounds'))} rounds, {told(case.get('runs'))} runs.",
                label=f"Regret, {name}",
                columns=[
                    Column("policy", number=False),
                    *map(Column, ("regret s", "2.5 %", "97.5 %", "relative loss")),
                ],
                rows=rows,
                sortable=True,
            )
        )
        curves = _curves(case)
        if curves.num_rows:
            panels.append(panel(_ROUNDS, curves, f"{key}-{place}", whole=str(file), title=f"Pseudo-regret: {name}"))
    gaps = [] if grids else [Gap("Regret", f"a document of kind {told(document.get('kind'))} holds no cases")]
    return Section(key=key, title=f"Regret: {file.name}", grids=grids, panels=panels, gaps=gaps)


def _policy(one: Mapping[str, Any]) -> Row:
    mean = one["regret_s"].get("mean")
    low, high = one["regret_s"].get("band95") or (None, None)
    loss = one.get("relative_loss")
    return Row(
        [
            Cell(told(one.get("policy"))),
            number(mean, fixed(mean)),
            number(low, fixed(low)),
            number(high, fixed(high)),
            number(loss, fixed(None if loss is None else 100 * loss, 1, " %")),
        ]
    )


def _curves(case: Mapping[str, Any]) -> pa.Table:
    rows = [
        {"controller": one["policy"], "prompt": at, "cumulative_s": value, "low": band[0], "high": band[1]}
        for one in case.get("results", [])
        if isinstance(one.get("curve"), Mapping)
        for at, value, band in zip(
            one["curve"]["rounds"], one["curve"]["pseudo_s"], one["curve"]["pseudo_band95_s"], strict=True
        )
    ]
    return pa.Table.from_pylist(rows)


def _by_rounds(table: pa.Table) -> go.Figure:
    fig = plots.regret_along(table)
    fig.update_xaxes(title={"text": "rounds"})
    return fig


_ROUNDS = Kind(
    title=REGRET.title,
    draw=_by_rounds,
    say=lambda table: captions.regret_along(table).replace("After the last prompt", "After the last round"),
    series=REGRET.series,
)


def fit(file: Path, document: Document, key: str) -> Section:
    """A latency fit: its points with residuals, warnings, numbers.

    Raises:
        ConfigError: a document without a model.
    """
    model = document.get("model")
    if not isinstance(model, Mapping):
        raise ConfigError(f"{file}: model is missing; make the file again with python -m specsim.latency fit --json")
    rows = derive.fit_points(LatencyModel.from_dict(model, where=f"{file}: model"))
    return Section(
        key=key,
        title=f"Latency fit: {file.name}",
        lines=[f"Warning: {one}." for one in document.get("warnings", [])],
        panels=[panel(LATENCY, pa.Table.from_pylist(rows), f"{key}-points", whole=str(file))] if rows else [],
        gaps=[] if rows else [Gap(LATENCY.title, "the model holds no measured points")],
        provenance=Grid(
            caption="The model.",
            columns=[Column("what", number=False), Column("value", number=False)],
            rows=[Row([Cell(name), Cell(value)]) for name, value in provenance.latency(model)],
        ),
    )


def _list(document: Mapping[str, Any], key: str, file: Path) -> list[Any]:
    found = document.get(key, [])
    if not isinstance(found, list):
        raise ConfigError(f"{file}: {key} is no list; make the file again")
    return found


_SECTIONS: dict[str, Callable[[Path, Document, str], Section]] = {"theory": theory, "regret": regret, "fits": fit}


def section(kind: str, file: Path, document: Document, key: str) -> Section:
    """The section of a result file.

    Args:
        kind: theory, regret or fits.
        file: for messages.
        document: what it holds.
        key: its id on the page.

    Raises:
        ConfigError: it lacks something.
    """
    try:
        return _SECTIONS[kind](file, document, key)
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise ConfigError(f"{file}: lacks what is shown of it ({error!r:.80}); make the file again") from None
