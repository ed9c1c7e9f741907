"""Whole runs of `python -m real.run` on a tiny model, in this process or another, for the tests of real/lightning."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from real.folder import RunFolder, read_run
from real.run import main
from specsim.errors import run_cli
from specsim.roundlog import read_round_log
from tests.conftest import ROOT
from tests.real_tiny import save_tiny

CONTROLLERS = ["plain", "static:length=3", "libraspec"]
PROMPTS = ["def add(a, b): return a", "for i in range(10): print(i)", "the quick brown fox", "a b c a b c a b", "x = 1"]
LATENCY = {
    "schema": "specsim.latency/1",
    "verify": {"form": "affine", "c_s": 0.0001, "b_s": 0.001},
    "draft": {"pass_s": 0.0003},
}
# Lightning 2.6 with torch 2.13, and with jsonargparse 4.53.
THIRD_PARTY_WARNINGS = (
    "ignore:.*LeafSpec.*:FutureWarning",
    "ignore::jsonargparse._deprecated.JsonargparseDeprecationWarning",
)
DECISIONS = ("run_id", "request", "round", "pos", "drafted_len", "submitted_len", "accepted_len", "emitted_len")


def make_place(folder: Path) -> Path:
    """A tiny model, prompts, a latency model and a configuration in a folder; the configuration's path."""
    save_tiny(folder / "tiny")
    lines = [json.dumps({"prompt": text}) for text in PROMPTS]
    (folder / "prompts.jsonl").write_text("\n".join(lines) + "\n")
    (folder / "latency.json").write_text(json.dumps(LATENCY))
    config = {
        "model": {
            "target": str(folder / "tiny"),
            "drafter": "early-exit:layers=2",
            "controllers": CONTROLLERS,
            "latency": str(folder / "latency.json"),
            "max_new_tokens": 12,
            "max_draft_len": 6,
        },
        "data": {"dataset": str(folder / "prompts.jsonl")},
        "record": {"out": str(folder / "out")},
        "trainer": {"accelerator": "cpu"},
    }
    path = folder / "tiny.yaml"
    path.write_text(yaml.safe_dump(config))
    return path


def run(*args: str) -> int:
    """Exit status of `python -m real.run ARGS`, run in this process."""
    before = sys.argv
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        with pytest.raises(SystemExit) as leaving:
            run_cli(main, list(args))
    finally:
        sys.argv = before
        for number, handler in handlers.items():
            signal.signal(number, handler)
    code = leaving.value.code
    return code if isinstance(code, int) else 0 if code is None else 1


def start(*args: str, **environment: str) -> subprocess.Popen[str]:
    """The same in another process, in a group of its own."""
    return subprocess.Popen(
        [sys.executable, "-m", "real.run", *args],
        cwd=ROOT,
        env={**os.environ, "OMP_NUM_THREADS": "1", "WANDB_MODE": "disabled", **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def decisions(out: Path) -> list[tuple[Any, ...]]:
    """Rounds of a finished run without times and warm-ups, sorted."""
    _, columns = read_round_log(out / "rounds.parquet")
    kept = ~columns["warmup"].astype(bool)
    return sorted(zip(*(columns[name][kept].tolist() for name in DECISIONS), strict=True))


def kept_requests(out: Path) -> list[int]:
    """Numbers of the prompts that a run folder keeps."""
    return sorted(RunFolder(out, read_run(out)["config"], reopen=True).done())
