"""Cells with known rounds and a small experiment on a tiny model, for the tests of real/paper."""

from __future__ import annotations

import json
import signal
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from real import calibrate
from real.folder import Request, Run, RunFolder, read_run
from real.loop import Decoded, Round
from real.measure import measure
from real.paper import __main__ as command
from real.paper.config import Cell, Dataset, Method, Pair, PaperConfig
from real.paper.summary import Measured
from specsim.errors import run_cli
from specsim.latency import LatencyModel, Table
from tests.real_tiny import save_tiny

# A configuration of one cell, in which tests change what they are about.
GOOD: dict[str, Any] = {
    "experiment": "table1",
    "datasets": {"A": {"data": "humaneval", "requests": 3}},
    "pairs": [
        {
            "target": "t",
            "methods": [
                {
                    "name": "M",
                    "drafter": "prompt-lookup",
                    "max_draft_len": 8,
                    "static": "3..5",
                    "controllers": {"LibraSpec": "libraspec"},
                }
            ],
        }
    ],
}


Told = tuple[int, int, float] | tuple[int, int, float, int]


def rounds(*told: Told) -> list[Round]:
    """Rounds of (submitted, accepted, seconds) and the arm, where there are some; a quarter of the time drafts, half
    verifies; a plain round drafts nothing."""
    found, pos = [], 0
    for number, (submitted, accepted, seconds, *arm) in enumerate(told):
        draft_s = seconds / 4 if submitted else 0.0
        found.append(
            Round(
                arm=arm[0] if arm else -1,
                drafted_len=submitted,
                submitted_len=submitted,
                scored_len=submitted,
                draft_passes=int(submitted > 0),
                forward_passes=int(submitted > 0),
                available_len=submitted,
                q=np.full(submitted, 0.5, np.float32),
                round=number,
                pos=pos,
                ctx_len=5 + pos,
                accepted_len=accepted,
                emitted_len=accepted + 1,
                draft_s=draft_s,
                verify_s=seconds / 2,
                round_s=seconds,
            )
        )
        pos += accepted + 1
    return found


def decoded(tokens: Sequence[int], told: Sequence[Told]) -> Decoded:
    done = rounds(*told)
    assert sum(row.emitted_len for row in done) == len(tokens)
    return Decoded(prompt_len=5, output=list(tokens), reason="length", rounds=done)


def plain(tokens: Sequence[int], seconds: float) -> Decoded:
    """Plain decoding, `seconds` a token."""
    return decoded(tokens, [(0, 0, seconds)] * len(tokens))


def cell_of(
    prompts: Sequence[Mapping[str, Decoded]],
    *,
    static: tuple[int, ...] = (),
    arms: tuple[int, ...] = (),
    controllers: Mapping[str, str],
    predicted: Mapping[str, float | None],
    name: str = "Drafter",
    dataset: str = "A",
    folder: Path = Path("nowhere"),
) -> Measured:
    """A finished cell of these decodes (spelling to decode for every prompt, plain decoding included)."""
    from real.compare import measured

    drafter = "self:arms=arms.json" if arms else "prompt-lookup:ngram=2"
    method = Method(name=name, drafter=drafter, max_draft_len=8, static=static, arms=arms, controllers=controllers)
    pair = Pair(target="t", datasets=(dataset,), methods=(method,))
    data = {dataset: Dataset(data="humaneval", requests=len(prompts))}
    config = PaperConfig(experiment="table1", datasets=data, pairs=(pair,))
    cell = Cell(pair=pair, dataset=dataset, temperature=0, method=method, config=config)
    requests = [
        Request(
            number=number,
            id=f"p{number}",
            runs=tuple(Run(controller=spelling, decoded=one) for spelling, one in runs.items()),
        )
        for number, runs in enumerate(prompts)
    ]
    results: list[dict[str, Any]] = []
    spellings = ["plain", *method.spellings()]
    for spelling, seen in zip(spellings, measured(requests, spellings, seed=0), strict=True):
        guess = predicted.get(spelling)
        results.append(
            {
                "controller": spelling,
                "measured": {"speedup": seen.speedup, "tau": seen.tau, "tokens": seen.tokens, "rounds": seen.rounds}
                | {"ci95": seen.ci95},
                "predicted": guess,
                "error": None if guess is None else guess / seen.speedup - 1,
                "in_sample_error": None,
                "shadow": None,
            }
        )
    document = {"results": results, "not_predicted": None, "other_texts_in_trace": 0, "differences": []}
    return Measured(cell=cell, folder=folder, document=document, requests=requests)


TEXTS = ("abcabcabd abcabc", "hello hello he", "xyzzy xy xyzzy")
COSTS = LatencyModel(
    verify=Table(s=(1.0, 2.0, 3.0, 5.0), times_s=(0.05, 0.08, 0.09, 0.12)),
    ctx_s=1e-4,
    draft_pass_s=0.02,
    overhead_s=0.003,
)
EXIT = {
    "name": "Exit",
    "drafter": "early-exit:layers=2",
    "max_draft_len": 4,
    "static": "1..2",
    "controllers": {"LibraSpec": "libraspec:block=2", "lambda": "lambda"},
}
LOOKUP = {
    "name": "Lookup",
    "drafter": "prompt-lookup:ngram=2",
    "max_draft_len": 4,
    "static": [4],
    "controllers": {"LibraSpec": "libraspec:block=2,max=3", "max=4": "libraspec:block=2,max=4"},
}


def steadied(*args: Any, **options: Any) -> list[Any]:
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


def tiny_place(folder: Path) -> Path:
    """The folder with a target and prompts in it."""
    save_tiny(folder / "model", seed=3, spread=0.08)  # pyright: ignore[reportArgumentType]
    (folder / "p.jsonl").write_text("\n".join(json.dumps({"prompt": text}) for text in TEXTS))
    return folder


def config(tiny: Path, **changes: Any) -> dict[str, Any]:
    return {
        "experiment": "table1",
        "temperatures": [0, 1],
        "max_new_tokens": 14,
        "repeats": 2,
        "device": "cpu",
        "datasets": {"Small": {"data": str(tiny / "p.jsonl"), "requests": 3}},
        "pairs": [{"target": str(tiny / "model"), "methods": [EXIT, LOOKUP]}],
        **changes,
    }


def run(document: dict[str, Any], out: Path, *more: str) -> int:
    """Exit status of the command."""
    file = out.parent / f"{out.name}.yaml"
    file.write_text(yaml.safe_dump(document))
    terminated = signal.getsignal(signal.SIGTERM)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(calibrate, "measure", steadied)
        with pytest.raises(SystemExit) as left:
            run_cli(command.main, [document["experiment"], f"--config={file}", f"--out={out}", *more])
    signal.signal(signal.SIGTERM, terminated)
    return int(left.value.code or 0)


def results(out: Path) -> dict[str, Any]:
    return json.loads((out / "results.json").read_text())


def decisions(place: Path) -> list[Any]:
    """What was decided in every round of every cell, times aside."""
    found = []
    for folder in sorted(path for path in place.iterdir() if path.is_dir()):
        for request in RunFolder(folder, read_run(folder)["config"], reopen=True).load():
            for one in sorted((one for one in request.runs if not one.warmup), key=lambda one: one.controller):
                lengths = [(row.pos, row.submitted_len, row.accepted_len) for row in one.decoded.rounds]
                found.append((folder.name, request.number, one.controller, one.decoded.output, lengths))
    return found
