"""The files of an experiment: results.json, a Markdown table, and the data of its figures.

Owns which experiment gives which files. All are made from the cells' folders, again with every call.

    OUT/results.json       every row, how lambda compares, how good the predictions are
    OUT/rows.parquet       the rows
    OUT/EXPERIMENT.md      the table
    OUT/gains.parquet, lengths.parquet, deviations.parquet, breakdown.parquet, max_lengths.parquet, calibration.parquet
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from real.paper import figures
from real.paper.cells import write_json
from real.paper.config import PaperConfig
from real.paper.summary import Measured, Row, lambda_verdicts, load_cell, prediction_summary, rows_of
from real.paper.tables import markdown
from real.validation import CALIBRATION
from specsim.errors import ConfigError
from specsim.latency import load_latency
from specsim.paths import replace_file
from specsim.provenance import provenance

SCHEMA = "specsim.paper/1"
RESULTS = "results.json"
Tables = dict[str, pa.Table]


def _gains(cells: Sequence[Measured], rows: Sequence[Row]) -> Tables:
    return {"gains": figures.gains(rows)}


def _lengths(cells: Sequence[Measured], rows: Sequence[Row]) -> Tables:
    found = [figures.lengths(cell) for cell in cells]
    along = [row for rows, _ in found for row in rows]
    return {
        "lengths": pa.Table.from_pylist(along),
        "deviations": pa.Table.from_pylist([row for _, rows in found for row in rows]),
    }


def _breakdown(cells: Sequence[Measured], rows: Sequence[Row]) -> Tables:
    return {"breakdown": figures.breakdown(rows)}


def _limits(cells: Sequence[Measured], rows: Sequence[Row]) -> Tables:
    judged = [row for cell in cells for row in figures.calibration(cell)]
    return {"max_lengths": figures.max_lengths(rows), "calibration": pa.Table.from_pylist(judged)}


FIGURES: Mapping[str, Callable[[Sequence[Measured], Sequence[Row]], Tables]] = {
    "figure1": _gains,
    "figure2": _lengths,
    "figure3": _breakdown,
    "figure4": _limits,
    "figure5": _lengths,
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
    cells = [load_cell(cell, place) for cell in config.cells()]
    rows = [row for cell in cells for row in rows_of(cell)]
    tables = {"rows": pa.Table.from_pylist(rows)}
    if config.experiment in FIGURES:
        tables |= FIGURES[config.experiment](cells, rows)
    document = {
        "schema": SCHEMA,
        "experiment": config.experiment,
        "config": asdict(config),
        "provenance": provenance(packages=()),
        "machines": sorted({_machine(cell) for cell in cells}),
        "rows": rows,
        "lambda": lambda_verdicts(cells),
        "prediction": prediction_summary(rows),
        "not_predicted": [_unpredicted(cell) for cell in cells if cell.document["not_predicted"] is not None],
        "differences": [{"cell": cell.folder.name, **one} for cell in cells for one in cell.document["differences"]],
        "deviations": tables["deviations"].to_pylist() if "deviations" in tables else [],
        "depths": _by_depth(tables["calibration"]) if "calibration" in tables else [],
    }
    for name, table in tables.items():
        if not table.num_rows:
            raise ConfigError(
                f"{config.experiment}: none of its cells gives data for {name}; it needs labels as in docs/paper.md, "
                "greedy decoding and a drafter that can be recorded"
            )
        with replace_file(out / f"{name}.parquet") as temporary:
            pq.write_table(table, temporary)
    with replace_file(out / f"{config.experiment}.md") as temporary:
        temporary.write_text(markdown(config.experiment, rows), encoding="utf-8")
    write_json(out / RESULTS, document)
    return document


def is_lossless(document: Mapping[str, Any]) -> bool:
    """Whether every difference from plain decoding is a near tie below float32, and every replayed decision the
    run's."""
    exact = document["config"]["dtype"] == "float32"
    explained = all(one["near_tie"] and not exact for one in document["differences"])
    return explained and all(row["shadow"] is None for row in document["rows"])


def _machine(cell: Measured) -> str:
    found = load_latency(cell.folder / CALIBRATION).provenance
    return f"{found['device']}, {found['threads']} threads, {found['dtype']}"


def _unpredicted(cell: Measured) -> dict[str, Any]:
    return {"cell": cell.folder.name, "why": cell.document["not_predicted"]}


def _by_depth(table: pa.Table) -> list[dict[str, Any]]:
    """Calibration error per method, dataset and depth, without the bins."""
    keys = ("target", "dataset", "temperature", "method", "depth", "ece")
    rows = table.select(keys).to_pylist()
    return [dict(zip(keys, values, strict=True)) for values in dict.fromkeys(tuple(row.values()) for row in rows)]
