"""A run as a section of the page: answer, table, every plot that its files allow, a line for each that they do not."""

from __future__ import annotations

import pyarrow as pa

from analysis import derive
from analysis.compare import compare, sides_of
from analysis.loaded import Run
from analysis.report import provenance
from analysis.report.panels import ARMS_ONLY, RUN_KINDS, panel
from analysis.report.parts import Cell, Column, Gap, Grid, Panel, Row, Section
from analysis.report.results import answer, candidates
from analysis.report.results import grid as results_grid
from analysis.report.wording import joined, told
from analysis.rounds import Scan
from analysis.tables import best_static

THEORY = "Theory"


def section(run: Run, scan: Scan | None, key: str) -> Section:
    """The section of a run.

    Args:
        run: what was read of it.
        scan: of its round log, None where there is none.
        key: its id on the page.

    Raises:
        SpecsimError: a trace or a log that breaks its format.
    """
    panels: list[Panel] = []
    gaps: list[Gap] = []
    for name, kind in RUN_KINDS.items():
        try:
            table = derive.TABLES[name](run, scan)
        except derive.Missing as reason:
            if name not in ARMS_ONLY or _has_arms(scan):
                gaps.append(Gap(kind.title, str(reason)))
            continue
        panels.append(panel(kind, table, f"{key}-{name}", whole=f"analysis.derive.TABLES[{name!r}]"))
    after: list[Grid] = []
    try:
        after.append(verdicts(derive.theory(run, scan), run.name))
    except derive.Missing as reason:
        gaps.append(Gap(THEORY, str(reason)))
    return Section(
        key=key,
        title=run.name,
        answer=answer(candidates(run), fixed_best=None if (best := best_static(run)) is None else best[1]),
        lines=[
            _of_what(run),
            *_runner_up(run, scan),
            *_chosen(run),
            *_free(run, scan),
            *(f"Note: {note}." for note in run.notes),
        ],
        grids=[results_grid(run)] if run.methods else [],
        panels=panels,
        after=after,
        gaps=gaps,
        provenance=provenance.of_run(run),
    )


def _runner_up(run: Run, scan: Scan | None) -> list[str]:
    """Whether the best controller is surely faster than the second best: on the same requests, so better told apart."""
    ranked = sorted(
        (one for one in run.methods if one.speedup is not None and one.rival),
        key=lambda one: -(one.speedup or 0),
    )
    if scan is None or len(ranked) < 2:
        return []
    sides = sides_of(run, scan)
    said = compare(sides[ranked[0].controller], sides[ranked[1].controller])
    return [f"Of the two best, request by request: {said.statement()}."]


def _chosen(run: Run) -> list[str]:
    """What the answer owes to luck, and who does without it."""
    if run.trace is None or len(candidates(run)) < 2:
        return []
    return [
        "The best was chosen by the requests it is judged by, which flatters it; python -m analysis.recommend chooses "
        "by some of the trace's requests and judges by the others."
    ]


def _free(run: Run, scan: Scan | None) -> list[str]:
    """That drafts were priced at nothing, which flatters long ones; the seconds of arms stand in their trace."""
    draft = (run.latency or {}).get("draft")
    if run.kind != "replay" or draft is None or _has_arms(scan) or any(draft.get(key) for key in ("pass_s", "token_s")):
        return []
    return ["Drafting costs nothing in this latency model: long drafts are flattered unless your drafter is free."]


def _has_arms(scan: Scan | None) -> bool:
    return scan is not None and scan.pulls.num_rows > 0


def _of_what(run: Run) -> str:
    said = [
        f"{name} {told(value)}"
        for name, value in (
            ("target", run.target),
            ("drafter", run.drafter),
            ("dataset", run.dataset),
            ("temperature", run.temperature),
        )
        if value is not None
    ]
    what = {"replay": "Replayed on a trace", "real": "Decoded with models", "validation": "Decoded and predicted"}[
        run.kind
    ]
    return f"{what}: {joined(said)}." if said else f"{what}."


def verdicts(table: pa.Table, name: str) -> Grid:
    """Statements of the papers and whether they hold; columns statement, verdict, evidence."""
    return Grid(
        caption=f"Statements of the papers, checked on {name} (python -m specsim.theory check).",
        label=f"Theory checked on {name}",
        columns=[Column(column, number=False) for column in ("statement", "verdict", "evidence")],
        rows=[
            Row([Cell(told(row["statement"])), Cell(told(row["verdict"])), Cell(told(row["evidence"]))])
            for row in table.to_pylist()
        ],
        sortable=True,
    )
