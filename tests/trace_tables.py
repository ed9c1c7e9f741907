"""A small valid trace as plain columns, to be broken one value at a time and written without the checking writer."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from specsim.schema import METADATA_KEY

META: dict[str, Any] = {
    "schema": "specsim.position_trace/1",
    "kind": "length",
    "coverage": "every-position",
    "target": "t",
    "drafter": "d",
    "block_len": 1,
    "max_draft_len": 2,
    "temperature": 0.0,
    "prefix_closed": True,
    "exact": True,
    "mismatches": 0,
    "dataset": "x",
    "requests": 2,
    "seed": 0,
    "device": "cpu",
    "dtype": "bfloat16",
    "created": "2026-11-30T12:00:00Z",
    "software": {},
    "git": None,
    "arms": None,
    "draft_len": None,
    "latency": None,
}


def columns() -> dict[str, list[Any]]:
    """Two requests of three positions, all columns recorded; the m of a row is 2, 1, 0."""
    lists = [[0.5, 0.25], [1.0], []] * 2
    return {
        "request": [0, 0, 0, 1, 1, 1],
        "pos": [0, 1, 2, 0, 1, 2],
        "ctx_len": [7, 8, 9, 4, 5, 6],
        "q": [list(v) for v in lists],
        "p": [list(v) for v in lists],
        "accept_prob": [list(v) for v in lists],
        "entropy": [list(v) for v in lists],
        "accept_len": [1, 1, 0, 2, 0, 0],
        "draft_s": [[0.1, 0.2], [0.1], [], None, [0.3], []],
        "verify_s": [0.1, None, 0.1, 0.2, 0.1, 0.1],
    }


def arm_columns() -> dict[str, list[Any]]:
    """One request of two positions and two arms."""
    return {
        "request": [0, 0],
        "pos": [0, 1],
        "ctx_len": [3, 4],
        "arm_accept_len": [[1, 2], [0, 4]],
        "arm_draft_s": [[0.1, 0.2], None],
    }


ARM_META: dict[str, Any] = META | {
    "kind": "arm",
    "draft_len": 4,
    "arms": [{"name": "a", "budget": 1, "draft_s": 0.1}, {"name": "b", "budget": 2, "draft_s": 0.2}],
}


def write_raw(
    path: Path,
    data: dict[str, Any],
    meta: dict[str, Any] | str | None = None,
    *,
    types: dict[str, pa.DataType] | None = None,
    row_group_size: int | None = None,
) -> Path:
    """Write columns as pyarrow infers them (int64, double, list<double>), with any metadata; checks nothing."""
    given = types or {}
    table = pa.table({n: v if isinstance(v, pa.Array) else pa.array(v, given.get(n)) for n, v in data.items()})
    if meta is not None:
        text = meta if isinstance(meta, str) else json.dumps(meta)
        table = table.replace_schema_metadata({METADATA_KEY: text.encode()})
    pq.write_table(table, path, row_group_size=row_group_size)
    return path
