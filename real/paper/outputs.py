"""The files of an experiment: results.json, a Markdown table, and the data of its figures.

Owns which experiment gives which files. All are made from the cells' folders, again with every call.

    OUT/results.json       every row, how lambda compares, how good the predictions are
    OUT/rows.parquet       the rows
    OUT/EXPERIMENT.md      the table
    OUT/gains.parquet, lengths.parquet, deviations.parquet, breakdown.parquet, max_lengths.parquet, calibration.parquet,
        pulls.parquet, shares.parquet, regret.parquet, regrets.parquet, acceptance.parquet,
        contexts.parquet, construction.parquet
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from analysis.arm_tables import sections_of
from analysis.grid import markdown
from analysis.paper_tables import tables_of
from real.paper import figures
from real.paper.arms import acceptance, construction, contexts, points, pulls
from real.paper.cells import write_json
from real.paper.config import PaperConfig
from real.paper.regret import order, regrets, replayed_seconds
from real.paper.summary import Measured, Row, Summary, comparisons, load_cell, prediction_summary, summarise
from specsim.errors import ConfigError
from specsim.paths import replace_file
from specsim.provenance import provenance

SCHEMA = "specsim.paper/1"
RESULTS = "results.json"


@dataclass(kw_only=True)
class Collected:
    """What is known of the cells gone over so far, their rounds left behind.

    Args:
        summaries: rows and times of each.
        data: rows of the figures that are made cell by cell, by file.
        machines: where it was measured.
        not_predicted: cells without a prediction, and why.
        differences: outputs that are not plain decoding's.
        orders: whether the replay foresaw who is faster, of each.
    """

    summaries: list[Summary] = field(default_factory=list)
    data: dict[str, list[Row]] = field(default_factory=dict)
    machines: set[str] = field(default_factory=set)
    not_predicted: list[dict[str, Any]] = field(default_factory=list)
    differences: list[dict[str, Any]] = field(default_factory=list)
    orders: list[Row] = field(default_factory=list)

    @property
    def rows(self) -> list[Row]:
        """Of all cells."""
        return [row for one in self.summaries for row in one.rows]

    def add(self, cell: Measured, experiment: str) -> None:
        """One more cell."""
        summary = summarise(cell)
        self.summaries.append(summary)
        given = PER_CELL[experiment](cell) if experiment in PER_CELL else {}
        if experiment == REGRET:
            along, whole = regrets(summary, replayed_seconds(cell) if cell.cell.method.arms else None)
            given = {"regret": along, "regrets": whole}
            self.orders.append(order(summary))
        for name, rows in given.items():
            self.data.setdefault(name, []).extend(rows)
        found = cell.document["machine"]
        self.machines.add(f"{found['device']}, {found['threads']} threads, {found['dtype']}, torch {found['torch']}")
        if cell.document["not_predicted"] is not None:
            self.not_predicted.append({"cell": cell.folder.name, "why": cell.document["not_predicted"]})
        self.differences += [{"cell": cell.folder.name, **one} for one in cell.document["differences"]]

    def tables(self, experiment: str) -> dict[str, pa.Table]:
        """Data of the experiment's figures, and all rows."""
        rows = self.rows
        whole = {name: make(rows) for name, make in OVERALL.get(experiment, {}).items()}
        return {"rows": pa.Table.from_pylist(rows), **whole} | {
            name: pa.Table.from_pylist(found) for name, found in self.data.items()
        }


def _pulls(cell: Measured) -> dict[str, list[Row]]:
    by_arm, by_rule = pulls(cell)
    return {"pulls": by_arm, "shares": by_rule}


def _lengths(cell: Measured) -> dict[str, list[Row]]:
    along, deviations = figures.lengths(cell)
    return {"lengths": along, "deviations": deviations}


PER_CELL: Mapping[str, Callable[[Measured], dict[str, list[Row]]]] = {
    "figure2": _lengths,
    "figure4": lambda cell: {"calibration": figures.calibration(cell)},
    "figure5": _lengths,
    "sp2ec-pulls": _pulls,
    "sp2ec-lengths": _pulls,
    "sp2ec-build": lambda cell: {"construction": construction(cell)},
}
REGRET, MAT, CONTEXT = "sp2ec-regret", "sp2ec-mat", "sp2ec-context"
OVERALL: Mapping[str, Mapping[str, Callable[[Sequence[Row]], pa.Table]]] = {
    "figure1": {"gains": figures.gains},
    "figure3": {"breakdown": figures.breakdown},
    "figure4": {"max_lengths": figures.max_lengths},
    MAT: {"acceptance": points},
    CONTEXT: {"contexts": contexts},
}


def write_outputs(config: PaperConfig, place: Path, out: Path) -> dict[str, Any]:
    """Write every file of an experiment whose cells are all finished; the document of results.json.

    Args:
        config: the experiment.
        place: folder of the cells' folders.
        out: folder of the files.

    Raises:
        ConfigError: a cell that cannot be read, or a figure that none of the cells can give.
    """
    found = Collected()
    for cell in config.cells():
        found.add(load_cell(cell, place), config.experiment)
    rows, tables = found.rows, found.tables(config.experiment)
    document = {
        "schema": SCHEMA,
        "experiment": config.experiment,
        "config": asdict(config),
        "provenance": provenance(packages=()),
        "machines": sorted(found.machines),
        "rows": rows,
        "comparisons": comparisons(found.summaries),
        "prediction": prediction_summary(rows),
        "not_predicted": found.not_predicted,
        "differences": found.differences,
        "deviations": found.data.get("deviations", []),
        "depths": _by_depth(found.data.get("calibration", [])),
        "acceptance": acceptance(found.summaries) if config.experiment == MAT else [],
        "contexts": contexts(rows).to_pylist() if config.experiment == CONTEXT else [],
        "shares": found.data.get("shares", []),
        "regrets": found.data.get("regrets", []),
        "construction": found.data.get("construction", []),
        "orders": found.orders,
    }
    for name, table in tables.items():
        if not table.num_rows:
            raise ConfigError(
                f"{config.experiment}: none of its cells gives data for {name}; it needs labels as in docs/paper.md, "
                "greedy decoding and a drafter that can be recorded; of arms a sweep (arms)"
            )
        with replace_file(out / f"{name}.parquet") as temporary:
            pq.write_table(table, temporary)
    with replace_file(out / f"{config.experiment}.md") as temporary:
        tables = [*tables_of(config.experiment, rows), *sections_of(config.experiment, document)]
        temporary.write_text(markdown(tables), encoding="utf-8")
    write_json(out / RESULTS, document)
    return document


def is_lossless(document: Mapping[str, Any]) -> bool:
    """Whether every difference from plain decoding is a near tie below float32, and every replayed decision the
    run's."""
    exact = document["config"]["dtype"] == "float32"
    explained = all(one["near_tie"] and not exact for one in document["differences"])
    return explained and all(row["shadow"] is None for row in document["rows"])


def _by_depth(rows: Sequence[Row]) -> list[Row]:
    """Calibration error per place, method and depth, without the bins."""
    keys = ("target", "dataset", "temperature", "method", "depth", "ece")
    return [
        dict(zip(keys, values, strict=True))
        for values in dict.fromkeys(tuple(row[key] for key in keys) for row in rows)
    ]
