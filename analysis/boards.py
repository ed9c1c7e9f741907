"""Dashboards by code: a workspace and a report of Weights & Biases that show `analysis.panels` for groups of runs.

Owns how a panel is said to Weights & Biases. Building a workspace needs no network; saving one, and what a report says
of its project, do.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import wandb_workspaces.reports.v2.interface as wr  # not v2: it does not say what it exports
import wandb_workspaces.workspaces as ws

from analysis.keys import ROUND
from analysis.panels import SECTIONS, Panel

COLUMNS, WIDTH, HEIGHT = 3, 8, 6  # panels of a row; cells of a panel, of 24 in a row


def shown(panel: Panel, place: int = 0) -> Any:
    """A panel as Weights & Biases has it, `place` counted from the first of its grid."""
    layout = wr.Layout(x=place % COLUMNS * WIDTH, y=place // COLUMNS * HEIGHT, w=WIDTH, h=HEIGHT)
    if panel.kind == "curve":
        return wr.LinePlot(title=panel.title, x=ROUND, y=list(panel.keys), layout=layout)
    if panel.kind == "bars":
        return wr.BarPlot(title=panel.title, metrics=list(panel.keys), layout=layout)
    (key,) = panel.keys
    if panel.kind == "value":
        return wr.ScalarChart(title=panel.title, metric=key, groupby_aggfunc="max", layout=layout)
    if panel.kind == "picture":
        return wr.MediaBrowser(title=panel.title, media_keys=[key], layout=layout)
    return wr.WeavePanelSummaryTable(table_name=key, layout=layout)


def workspace(entity: str, project: str, groups: Sequence[str]) -> ws.Workspace:
    """A workspace of the panels, of the runs of these groups."""
    return ws.Workspace(
        entity=entity,
        project=project,
        name=_title(groups),
        sections=[
            ws.Section(
                name=section.title,
                is_open=True,
                panels=[shown(panel, place) for place, panel in enumerate(section.panels)],
            )
            for section in SECTIONS
        ],
        runset_settings=ws.RunsetSettings(filters=_of(groups)),
    )


def report(entity: str, project: str, groups: Sequence[str]) -> wr.Report:
    """A report of the panels, of the runs of these groups."""
    blocks: list[Any] = []
    for section in SECTIONS:
        runs = wr.Runset(entity=entity, project=project, name=_title(groups), filters=_of(groups))
        panels = [shown(panel, place) for place, panel in enumerate(section.panels)]
        blocks += [wr.H2(section.title), wr.P(section.text), wr.PanelGrid(runsets=[runs], panels=panels)]
    return wr.Report(
        entity=entity,
        project=project,
        title=_title(groups),
        description=f"Runs of {', '.join(groups)}",
        blocks=blocks,
        width="fluid",
    )


def _title(groups: Sequence[str]) -> str:
    more = f" and {len(groups) - 1} more" if len(groups) > 1 else ""
    return f"{groups[0]:.80}{more}"


def _of(groups: Sequence[str]) -> str:
    return f"Group in {list(groups)!r}"  # names of groups hold no quotes
