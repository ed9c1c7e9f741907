"""Validations of a tiny model whose times are known, for the tests of `real.validate`."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from real import calibrate, validate
from real.folder import Request, Run
from real.loop import Decoded, Round
from real.measure import measure
from specsim.errors import run_cli
from specsim.latency import LatencyModel, Table

TEXTS = ("abcabcabd", "hello hello", "xyzzy xy")
SPELLINGS = ("static:length=2", "lambda")
NEW, MAX_DRAFT = 14, 4
COSTS = LatencyModel(
    verify=Table(s=(1.0, 2.0, 3.0, 5.0), times_s=(0.05, 0.08, 0.09, 0.12)),
    ctx_s=1e-4,
    draft_pass_s=0.02,
    overhead_s=0.003,
)


def steadied(*args, **options):
    """Measures for real, then says what `COSTS` does: times of a tiny model on a busy machine are noise."""
    return [
        replace(
            one,
            verify_s=float(COSTS.verify_s(one.s, one.ctx_len)),
            draft_s=COSTS.draft_pass_s * one.passes,
            overhead_s=COSTS.overhead_s,
        )
        for one in measure(*args, **options)
    ]


def run(tiny: Path, out: Path, *changes: str, controllers=SPELLINGS) -> int:
    """Exit status of the command."""
    arguments = {
        "--target": str(tiny / "model"),
        "--drafter": "layer-skip:skip=1",
        "--dataset": str(tiny / "p.jsonl"),
        "--requests": "3",
        "--max-new-tokens": str(NEW),
        "--max-draft-len": str(MAX_DRAFT),
        "--repeats": "2",
        "--device": "cpu",
        "--out": str(out),
    }
    flags = [change for change in changes if "=" not in change]
    arguments |= dict(change.split("=", 1) for change in changes if "=" in change)
    words = [*(f"{key}={value}" for key, value in arguments.items()), *flags]
    words += [f"--controllers={name}" for name in controllers]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(calibrate, "measure", steadied)
        with pytest.raises(SystemExit) as left:
            run_cli(validate.main, words)
    return left.value.code


def results(out: Path) -> dict:
    return json.loads((out / "results.json").read_text())


def decode_of(tokens: int, *seconds: float) -> Decoded:
    rows = [
        Round(
            arm=-1,
            drafted_len=0,
            submitted_len=0,
            draft_passes=0,
            available_len=0,
            q=np.zeros(0, np.float32),
            round=number,
            round_s=value,
        )
        for number, value in enumerate(seconds)
    ]
    return Decoded(prompt_len=5, output=list(range(tokens)), rounds=rows)


def request_of(number: int, *, warmup: Decoded | None = None, **decoded: Decoded) -> Request:
    runs = [Run(controller=name, decoded=value) for name, value in decoded.items()]
    if warmup is not None:
        runs = [Run(controller=name, decoded=warmup, warmup=True) for name in decoded] + runs
    return Request(number=number, id=str(number), runs=tuple(runs))
