"""Reads an offline run's `.wandb` file: the log format of LevelDB around protobuf records (7 bytes of file header).

Its fixtures give wandb's tests a place of their own, and a server that notices whoever calls.
"""

from __future__ import annotations

import json
import socket
import struct
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from wandb.proto import wandb_internal_pb2

BLOCK, HEADER = 32768, 7
FULL, FIRST, MIDDLE, LAST = 1, 2, 3, 4


@pytest.fixture(scope="module")
def server() -> Iterator[socket.socket]:
    """Where W&B would be; accepts nothing, so that whoever calls waits in its queue."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        listening.setblocking(False)
        yield listening


@pytest.fixture(autouse=True, scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory, server: socket.socket) -> Iterator[None]:
    """wandb as a user has it who set nothing, but with its caches in a temporary folder."""
    with pytest.MonkeyPatch.context() as patch:
        for name in ("WANDB_MODE", "WANDB_DIR", "WANDB_SWEEP_ID", "WANDB_RUN_ID", "WANDB_API_KEY"):
            patch.delenv(name, raising=False)
        for name in ("WANDB_DATA_DIR", "WANDB_CACHE_DIR", "WANDB_CONFIG_DIR"):
            patch.setenv(name, str(tmp_path_factory.mktemp(name)))
        patch.setenv("WANDB_BASE_URL", f"http://127.0.0.1:{server.getsockname()[1]}")
        yield


@dataclass
class Tracked:
    """One run as its file tells it.

    Args:
        info: run id, name, group, job type, project.
        config, summary: values by key; nested keys joined with a dot.
        history: rows in order, as logged, each with wandb's own `_step`.
        axes: x-axis of each metric defined with one.
        artifacts: (type, files) of each.
        exit_code: None when the file ends without one.
    """

    info: dict[str, str] = field(default_factory=dict)
    config: dict[str, Any] = field(default_factory=dict)
    summary: dict[str, Any] = field(default_factory=dict)
    history: list[dict[str, Any]] = field(default_factory=list)
    axes: dict[str, str] = field(default_factory=dict)
    artifacts: list[tuple[str, list[str]]] = field(default_factory=list)
    exit_code: int | None = None


def records(path: Path) -> Iterator[Any]:
    """The protobuf records of a file."""
    data = path.read_bytes()
    assert data[:4] == b":W&B"
    place, parts = HEADER, b""
    while place < len(data):
        left = BLOCK - place % BLOCK
        if left < HEADER:
            place += left
            continue
        _, size, kind = struct.unpack_from("<IHB", data, place)
        body = data[place + HEADER : place + HEADER + size]
        assert len(body) == size, f"{path}: cut off at {place}"
        assert kind in (FULL, FIRST, MIDDLE, LAST)
        place += HEADER + size
        parts += body
        if kind in (FULL, LAST):
            record = wandb_internal_pb2.Record()
            record.ParseFromString(parts)
            parts = b""
            yield record


def read_tracked(path: Path) -> Tracked:
    """What one `.wandb` file holds."""
    run = Tracked()
    for record in records(path):
        kind = record.WhichOneof("record_type")
        if kind == "run":
            found = record.run
            run.info = {
                "id": found.run_id,
                "name": found.display_name,
                "group": found.run_group,
                "job_type": found.job_type,
                "project": found.project,
            }
            run.config.update(_values(found.config.update))
        elif kind == "config":
            run.config.update(_values(record.config.update))
        elif kind == "summary":
            run.summary.update(_values(record.summary.update))
        elif kind == "history":
            run.history.append(_values(record.history.item))
        elif kind == "metric":
            run.axes[record.metric.name or record.metric.glob_name] = record.metric.step_metric
        elif kind == "artifact":
            files = [entry.path for entry in record.artifact.manifest.contents]
            run.artifacts.append((record.artifact.type, files))
        elif kind == "exit":
            run.exit_code = record.exit.exit_code
    return run


def read_all(folder: Path, *, patience_s: float = 30.0) -> list[Tracked]:
    """Every run of a folder that wandb wrote `wandb/` into, in order of name of its file.

    Closing a run returns before wandb's service has written its last record, so this waits for that.
    """
    deadline = time.perf_counter() + patience_s
    while True:
        try:
            runs = [read_tracked(path) for path in sorted(folder.glob("wandb/offline-run-*/run-*.wandb"))]
            unfinished = [run for run in runs if run.exit_code is None]
        except (AssertionError, struct.error):
            unfinished = ["in the middle of a record"]
        if not unfinished:
            return runs
        assert time.perf_counter() < deadline, unfinished
        time.sleep(0.05)


def _values(items: Any) -> dict[str, Any]:
    return {".".join(item.nested_key) or item.key: json.loads(item.value_json) for item in items}
