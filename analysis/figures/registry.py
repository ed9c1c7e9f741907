"""Every figure there is: what it is called, what draws it, and where its table comes from.

Owns the list. A figure is drawn from a run's derived table (`analysis.derive`) and from a file of the papers'
experiments by the same function.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import pyarrow as pa
from matplotlib.axes import Axes

from analysis import derive
from analysis.figures import acceptance, arms, latency, lengths, speed, theory
from analysis.figures.style import COLUMN, WIDE, names
from analysis.paper_data import PLACES, Tables, compared, labelled, median_prompt, predicted

ROOM, LETTER = 18, 0.055  # letters of a label beside the axes for which there is room, and inches of one more
Draw = Callable[[pa.Table, Axes], Axes]


@dataclass(frozen=True, kw_only=True)
class Kind:
    """A figure.

    Args:
        shows: what, in a line.
        draw: the function.
        derived: the name of the derived table that it draws of a run; None for figures of the papers alone.
        adapt: from that table to the columns of the function.
        paper: where its tables are in a paper's folder; None for figures of runs alone.
        width, height: inches of a figure; title and legend come on top of the height.
        row: inches more of height for every row of the table.
        column: inches of width for every row, where that is more than `width`; at most two columns of a page.
        together: one picture of all runs read together.
    """

    shows: str
    draw: Draw
    derived: str | None = None
    adapt: Callable[[pa.Table], pa.Table] = lambda table: table
    paper: Tables | None = None
    width: float = COLUMN
    height: float = 2.5
    row: float = 0.0
    column: float = 0.0
    together: bool = False

    def size(self, table: pa.Table) -> tuple[float, float]:
        """Width and height for a table, inches."""
        width = max(self.width, self.column * table.num_rows)
        if self.row and "label" in table.column_names:
            shown = names(table["label"].to_pylist()).values()
            width += LETTER * max(0, max(map(len, shown)) - ROOM)
        return min(WIDE, width), self.height + self.row * table.num_rows


def _label(table: pa.Table) -> pa.Table:
    return table.rename_columns(["label" if name == "controller" else name for name in table.column_names])


def _points(table: pa.Table) -> pa.Table:
    """A run's controllers as points: fixed ones have the label `static`; its own knowledge makes a method."""
    rows = [
        {
            "method": "run",
            "label": "static" if row["controller"].startswith(("static:", "arm:")) else row["controller"],
            **{"tau": row["tau"], "eta": row["speedup"]},
        }
        for row in table.to_pylist()
    ]
    return pa.Table.from_pylist(rows)


def _one_method(table: pa.Table) -> pa.Table:
    return table.append_column("method", pa.repeat(pa.scalar("run"), table.num_rows))


FIGURES: Mapping[str, Kind] = {
    "gains": Kind(
        shows="Figure 1 of LibraSpec: speedup without and with it",
        draw=speed.speedup_gains,
        derived="gains",
        paper=Tables("gains.parquet", ("target", "temperature")),
        column=0.95,
        together=True,
    ),
    "lengths": Kind(
        shows="Figures 2 and 5: submitted lengths along a decode, beside the best ones",
        draw=lengths.lengths_along,
        derived="lengths",
        paper=Tables("lengths.parquet", ("target", "dataset", "method", "drafter"), shown=median_prompt),
        width=WIDE,
    ),
    "breakdown": Kind(
        shows="Figure 3: milliseconds of a round, by part",
        draw=speed.latency_breakdown,
        derived="breakdown",
        adapt=_label,
        paper=Tables("breakdown.parquet", ("target", "dataset", "temperature"), prepare=labelled),
        height=0.8,
        row=0.18,
    ),
    "max-lengths": Kind(
        shows="Figure 4: speedup of LibraSpec by its maximum length",
        draw=lengths.speedup_by_max,
        derived="max-lengths",
        paper=Tables("max_lengths.parquet", (*PLACES, "drafter")),
    ),
    "depths": Kind(
        shows="confidence, accepted share and calibration error by draft position",
        draw=acceptance.error_by_depth,
        derived="reliability",
        paper=Tables("calibration.parquet", PLACES),
    ),
    "reliability": Kind(
        shows="accepted share by confidence, with the expected calibration error",
        draw=acceptance.reliability,
        derived="reliability",
        paper=Tables("calibration.parquet", PLACES),
        height=2.7,
    ),
    "survival": Kind(
        shows="chance that a draft's first tokens are all accepted", draw=acceptance.survival, derived="survival"
    ),
    "hazard": Kind(
        shows="chance that a draft token is the first to be rejected", draw=acceptance.hazard, derived="survival"
    ),
    "throughput": Kind(
        shows="tokens per second by static length, with controllers and the oracle",
        draw=lengths.throughput,
        derived="throughput",
    ),
    "arms": Kind(shows="tokens per second by arm, with controllers", draw=lengths.throughput, derived="arms"),
    "speedups": Kind(
        shows="speedup of every controller with its interval (SP2ec's ablation)",
        draw=speed.speedups,
        derived="acceptance",
        adapt=_label,
        paper=Tables("rows.parquet", PLACES, prepare=compared),
        height=0.6,
        row=0.18,
    ),
    "acceptance": Kind(
        shows="MAT (tau) against speedup",
        draw=speed.speed_by_acceptance,
        derived="acceptance",
        adapt=_points,
        paper=Tables("acceptance.parquet", ("target", "dataset", "temperature")),
        height=2.7,
    ),
    "contexts": Kind(
        shows="speedup by the length of prompts",
        draw=speed.speed_by_context,
        paper=Tables("contexts.parquet", ("target", "temperature")),
        width=WIDE,
    ),
    "pulls": Kind(
        shows="SP2ec's pull distribution: which arms the controllers chose",
        draw=arms.pull_shares,
        derived="pulls",
        adapt=_label,
        paper=Tables("pulls.parquet", (*PLACES, "drafter")),
    ),
    "regret": Kind(
        shows="seconds beyond the best fixed length or arm, along prompts",
        draw=arms.regret_along,
        derived="regret",
        adapt=_label,
        paper=Tables("regret.parquet", (*PLACES, "drafter", "against")),
    ),
    "latency": Kind(
        shows="the latency model and what it was fitted to", draw=latency.latency_fit, derived="latency", height=2.3
    ),
    "residuals": Kind(
        shows="what the latency model leaves over", draw=latency.residuals, derived="latency", height=1.9
    ),
    "predictions": Kind(
        shows="measured speedup by the predicted one",
        draw=speed.predictions,
        derived="predictions",
        adapt=_one_method,
        paper=Tables("rows.parquet", ("target", "temperature"), prepare=predicted),
        height=3.2,
    ),
    "theory": Kind(
        shows="which of the theorems' assumptions and conclusions hold on the trace",
        draw=theory.verdicts,
        derived="theory",
        width=WIDE,
        height=0.2,
        row=0.27,
    ),
}
UNKNOWN = {kind.derived for kind in FIGURES.values() if kind.derived is not None} - set(derive.TABLES)
assert not UNKNOWN, f"no derived tables of these names: {UNKNOWN}"
