"""The tables of the papers' experiments (`python -m real.paper`), read for drawing.

Owns which columns a figure relies on, so that a file of another version or a broken one is refused by name, and how a
table is cut into pictures: one for each place (target, dataset, method, ...) that it holds. The columns are described
by `real.paper.figures`, `real.paper.arms` and `real.paper.regret`, which this package does not import.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from specsim.errors import ConfigError

PLACES = ("target", "dataset", "temperature", "method")
TEXTS = ("target", "dataset", "method", "drafter", "controller", "series", "label", "against")
WITH_GAPS = ("request", "static", "best_static", "rank", "predicted", "eta_ci95")
INTERVALS = ("eta_ci95",)
ROWS = ("target", "dataset", "temperature", "method", "drafter", "label", "controller", "eta", "eta_ci95", "predicted")
COLUMNS = {  # that are drawn, by file
    "gains.parquet": ("target", "temperature", "dataset", "method", "without", "libraspec", "gain"),
    "lengths.parquet": ("target", "dataset", "method", "drafter", "request", "series", "pos", "length"),
    "deviations.parquet": ("target", "dataset", "method", "drafter", "request", "series", "mad"),
    "breakdown.parquet": (
        *("target", "dataset", "temperature", "method", "controller", "draft_ms", "verify_ms", "rest_ms"),
    ),
    "max_lengths.parquet": (*PLACES, "drafter", "max_len", "libraspec", "static", "best_static"),
    "calibration.parquet": (*PLACES, "depth", "bin", "n", "mean_q", "accepted", "ece"),
    "acceptance.parquet": ("target", "dataset", "temperature", "method", "label", "tau", "eta"),
    "contexts.parquet": ("target", "temperature", "method", "label", "prompt_len", "eta"),
    "pulls.parquet": (*PLACES, "drafter", "label", "arm", "rank", "share"),
    "regret.parquet": (*PLACES, "drafter", "label", "against", "prompt", "cumulative_s"),
    "rows.parquet": ROWS,
}
AGAIN = "make it again with python -m real.paper"


@dataclass(frozen=True, kw_only=True)
class Part:
    """One picture's table.

    Args:
        title: the place it is of.
        table: its rows.
    """

    title: str
    table: pa.Table


@dataclass(frozen=True)
class Tables:
    """Where a figure's tables are in a paper's folder.

    Args:
        file: the data file.
        keys: columns by whose values it is cut into pictures.
        prepare: from the rows of a picture to the columns its function draws; None leaves nothing to draw.
        shown: which of the rows, where a second file decides.
    """

    file: str
    keys: tuple[str, ...]
    prepare: Callable[[pa.Table], pa.Table | None] = lambda table: table
    shown: Callable[[Path, pa.Table, Sequence[str]], pa.Table] | None = None

    def parts(self, folder: Path) -> Iterator[Part]:
        """The pictures' tables; none where the folder has no such file.

        Raises:
            ConfigError: a data file that cannot be used.
        """
        if not (folder / self.file).is_file():
            return
        for title, rows in _by_place(read_data(folder / self.file), self.keys):
            chosen = rows if self.shown is None else self.shown(folder, rows, self.keys)
            table = self.prepare(chosen)
            if table is not None:
                yield Part(title=title, table=table)


def read_data(file: Path) -> pa.Table:
    """The table of a figure's file.

    Raises:
        ConfigError: no parquet, no rows, or a column that is missing, of another type or with gaps.
    """
    try:
        table = pq.read_table(file)
    except (OSError, pa.ArrowException) as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise ConfigError(f"{file}: cannot be read ({reason}); {AGAIN}") from None
    for wrong in _faults(table, COLUMNS[file.name]):
        raise ConfigError(f"{file}: {wrong}; {AGAIN}")
    return table


def _faults(table: pa.Table, columns: Sequence[str]) -> Iterator[str]:
    for name in columns:
        if table.column_names.count(name) != 1:
            yield f"column {name} is missing"
        elif not _fits(name, table[name].type):
            allowed = "text" if name in TEXTS else "pairs of numbers" if name in INTERVALS else "numbers"
            yield f"column {name} is {table[name].type}; allowed: {allowed}"
        elif table[name].null_count and name not in WITH_GAPS:
            yield f"column {name} has nulls"
        elif name in INTERVALS and any(pair is not None and len(pair) != 2 for pair in table[name].to_pylist()):
            yield f"column {name} holds lists of other lengths than 2"
    if not len(table):
        yield "has no rows"


def _fits(name: str, kind: pa.DataType) -> bool:
    if name in TEXTS:
        return pa.types.is_string(kind)
    # A column of nulls alone has no type.
    if name in WITH_GAPS and pa.types.is_null(kind):
        return True
    if name in INTERVALS:
        return pa.types.is_list(kind) and pa.types.is_floating(kind.value_type)
    return pa.types.is_integer(kind) or pa.types.is_floating(kind)


def shown_prompt(lengths: pa.Table, deviations: pa.Table) -> pa.Table:
    """The rows of the prompt whose LibraSpec deviation is the median of all prompts', the lower of two.

    Args:
        lengths: of one cell.
        deviations: columns request (null: all), series, mad, of the same cell.

    Raises:
        ConfigError: none of LibraSpec's is among them.
    """
    mine = [row for row in deviations.to_pylist() if row["series"] == "LibraSpec" and row["request"] is not None]
    ranked = sorted(mine, key=lambda row: (row["mad"], row["request"]))
    if not ranked:
        raise ConfigError("deviations.parquet: none of LibraSpec's at a place of lengths.parquet; make both again")
    return lengths.filter(pc.field("request") == ranked[(len(ranked) - 1) // 2]["request"])


def median_prompt(folder: Path, rows: pa.Table, keys: Sequence[str]) -> pa.Table:
    """`shown_prompt` of a place, by the folder's deviations."""
    deviations = read_data(folder / "deviations.parquet")
    for key in keys:
        deviations = deviations.filter(pc.field(key) == rows[key][0])
    return shown_prompt(rows, deviations)


def compared(rows: pa.Table) -> pa.Table | None:
    """Columns of `speedups` from a cell's rows: every rule, and of swept lengths or arms the fastest; None for one."""
    table = rows.to_pylist()
    swept = [row for row in table if row["label"] == "static"]
    best = max(swept, key=lambda row: row["eta"], default=None)
    chosen = [row for row in table if row["label"] != "static" or row is best]
    if len(chosen) < 2:
        return None
    return pa.Table.from_pylist(
        [
            {
                "label": f"{row['controller']} (best of {len(swept)})" if row is best else row["label"],
                "speedup": row["eta"],
                **_ends(row),
                "privileged": False,
            }
            for row in chosen
        ],
        schema=pa.schema(
            [
                ("label", pa.string()),
                *((name, pa.float64()) for name in ("speedup", "low", "high")),
                ("privileged", pa.bool_()),
            ]
        ),
    )


def predicted(rows: pa.Table) -> pa.Table | None:
    """Columns of `predictions` from rows; None where nothing was predicted."""
    found = [
        {"method": row["method"], "predicted": row["predicted"], "measured": row["eta"], **_ends(row)}
        for row in rows.to_pylist()
        if row["predicted"] is not None
    ]
    schema = pa.schema(
        [("method", pa.string()), *((name, pa.float64()) for name in ("predicted", "measured", "low", "high"))]
    )
    return pa.Table.from_pylist(found, schema=schema) if found else None


def labelled(rows: pa.Table) -> pa.Table:
    """Rows of Figure 3 with a label for each bar."""
    labels = [f"{row['method']}, {row['controller'].replace('static:length=', 'static ')}" for row in rows.to_pylist()]
    return rows.append_column("label", pa.array(labels, pa.string()))


def _ends(row: Mapping[str, Any]) -> dict[str, float | None]:
    low, high = row["eta_ci95"] or (None, None)
    return {"low": low, "high": high}


def _by_place(data: pa.Table, keys: Sequence[str]) -> Iterator[tuple[str, pa.Table]]:
    """The table split by the values of some columns, in their order, with a title each."""
    places: dict[tuple[Any, ...], None] = dict.fromkeys(zip(*(data[key].to_pylist() for key in keys), strict=True))
    for place in places:
        part = data
        for key, value in zip(keys, place, strict=True):
            part = part.filter(pc.field(key) == value)
        words = [f"T = {value}" if key == "temperature" else str(value) for key, value in zip(keys, place, strict=True)]
        yield ", ".join(dict.fromkeys(words)), part
