"""The results table of a run, and the answer it gives."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from analysis.loaded import Run
from analysis.recommend.decision import SMALL
from analysis.report.parts import Answer, Cell, Column, Grid, Row
from analysis.report.wording import fixed, number, span
from analysis.tables import results_table

ROWS: tuple[tuple[str, str, int], ...] = (  # over the column, the key of a row of `results_table`, digits shown
    ("speedup", "speedup", 3),
    ("95 % low", "low", 3),
    ("95 % high", "high", 3),
    ("tau", "tau", 2),
    ("draft length", "submitted_len", 2),
    ("accepted", "acceptance_rate", 2),
    ("tokens/s", "tokens_per_s", 2),
    ("vs best static", "vs_best_static", 3),
    ("seconds", "time_s", 2),
    ("plain s", "plain_s", 2),
    ("tokens", "tokens", 0),
    ("rounds", "rounds", 0),
)
ROUNDING = 1e-9  # seconds of one setting, added up in two ways
PREDICTED = (("predicted", "predicted", 3), ("error", "error", 3))


class Candidate(NamedTuple):
    """What an answer may name: a controller that can be deployed, its speedup, and the interval of that if known."""

    name: str
    speedup: float
    ci95: tuple[float, float] | None


def candidates(run: Run) -> list[Candidate]:
    """Controllers of a run besides plain decoding that could decode for somebody and have a speedup."""
    return [Candidate(one.name, one.speedup, one.ci95) for one in run.methods if one.rival and one.speedup is not None]


def answer(found: Sequence[Candidate], what: str = "controllers", *, fixed_best: float | None = None) -> Answer:
    """Which controller pays, by how much; that none is shown to; or that all lose.

    Args:
        found: what may be named.
        what: they are, for people.
        fixed_best: speedup of the best static length or arm in hindsight, told where it is above all of them and 1.
    """
    if not found:
        return Answer("open", "Nothing to compare.", "No controller besides plain decoding has a speedup here.")
    fastest = max(found, key=lambda one: one.speedup)
    sure = [one for one in found if one.ci95 is not None and one.ci95[0] > 1]
    best = max(sure, key=lambda one: one.speedup, default=fastest)
    many = f"best of {len(found)} {what}" if len(found) > 1 else "only controller"
    if best is not fastest:
        many = f"fastest shown to pay; {fastest.name} looks faster ({fastest.speedup:.3f}x) but is not shown to pay"
    beyond = fixed_best is not None and fixed_best > max(best.speedup, 1.0) * (1 + ROUNDING)
    hindsight = f" In hindsight the best static setting gives {fixed_best:.3f}x." if beyond else ""
    gives = f"{best.speedup:.3f}x the speed of plain decoding"
    gives += ", without an interval" if best.ci95 is None else f" (95 % interval {span(best.ci95, 3)})"
    if sure:
        return Answer("pays", f"{best.name} pays:", f"{gives}, the {many}.{hindsight}")
    said = f"The {many}, {best.name}, gives {gives}"
    if all(one.ci95 is not None and one.ci95[1] < 1 + SMALL for one in found):
        return Answer("loses", "Do not speculate here.", f"{said}.{hindsight}")
    return Answer("open", "Not shown to pay.", f"{said}: too few requests to tell that from no gain.{hindsight}")


def grid(run: Run) -> Grid:
    """Every controller with its numbers (`analysis.tables`), the fastest first; cells sort by the full values."""
    table = results_table(run)
    best = max(candidates(run), key=lambda one: one.speedup, default=None)
    shown = [*ROWS, *(PREDICTED if any(row["predicted"] is not None for row in table.rows) else ())]
    ranked = sorted(table.rows, key=lambda row: (row["speedup"] is None, -(row["speedup"] or 0)))
    caption = (
        f"Controllers of {run.name}. Speedup is over plain decoding of the same tokens, its interval by bootstrap over "
        "requests; tau is tokens per round; accepted is the share of submitted draft tokens."
    )
    return Grid(
        caption=" ".join([caption, *(note for note in table.notes if note not in _noted(run))]),
        label=f"Results of {run.name}",
        columns=[Column("controller", number=False), *(Column(name) for name, _, _ in shown)],
        rows=[_row(row, shown, best=best is not None and row["name"] == best.name) for row in ranked],
        sortable=True,
        sorted_by=1,
    )


def _row(row: Mapping[str, Any], shown: Sequence[tuple[str, str, int]], *, best: bool) -> Row:
    low, high = row["ci95"] or (None, None)
    values = {**row, "low": low, "high": high}
    cells = [number(values[key], fixed(values[key], digits)) for _, key, digits in shown]
    return Row([Cell(row["name"]), *cells], best=best)


def _noted(run: Run) -> list[str]:
    """Notes that the page tells elsewhere."""
    return [f"Note: {note}." for note in run.notes]
