"""Runs made by hand for derived tables: of a trace alone, without a folder of results."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa

from analysis.loaded import Method, Run
from specsim.latency import LatencyModel
from specsim.schema import TraceMeta
from specsim.trace import TraceChunk, write_trace
from tests.worlds import World


def method(controller: str, **more: Any) -> Method:
    """A row of results; tokens 10, rounds 5, 2 seconds where nothing else is said."""
    told = {
        "tokens": 10.0,
        "rounds": 5.0,
        "tau": 2.0,
        "time_s": 2.0,
        "plain_s": 3.0,
        "speedup": 1.5,
        "ci95": (1.2, 1.8),
    }
    return Method(controller=controller, **{**told, "submitted_len": 3.0, "acceptance_rate": 0.5, **more})


def run_of(folder: Path, methods: tuple[Method, ...] = (), **more: Any) -> Run:
    """A validation of these methods, without files."""
    told: dict[str, Any] = {
        **{
            "folder": folder,
            "name": "hand",
            "kind": "validation",
            "trace_name": None,
            "target": "t",
            "drafter": "d:x=1",
        },
        **{"dataset": "lab", "temperature": 0.0, "methods": methods, "rounds": None, "run_ids": {}, "trace": None},
        **{"latency": None, "provenance": {}, "notes": (), "document": {"other_texts_in_trace": 0}},
    }
    return Run(**{**told, **more})


def traced(path: Path, meta: TraceMeta, chunk: TraceChunk, latency: LatencyModel, **more: Any) -> Run:
    """A run of a trace alone."""
    write_trace(path, meta, chunk)
    return run_of(path.parent, trace=path, latency=latency.to_dict(), **more)


def world_run(path: Path, world: World, **more: Any) -> Run:
    """A run of a random world's trace."""
    return traced(path, world.meta, world.chunk, world.latency, **more)


def rows(table: pa.Table, **where: Any) -> list[dict[str, Any]]:
    """Rows with these values."""
    return [row for row in table.to_pylist() if all(row[key] == value for key, value in where.items())]
