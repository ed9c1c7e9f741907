"""Cells with known rounds and a small experiment on a tiny model, for the tests of real/paper."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from real.folder import Request, Run
from real.loop import Decoded, Round
from real.paper.config import Cell, Dataset, Method, Pair, PaperConfig
from real.paper.summary import Measured


def rounds(*told: tuple[int, int, float]) -> list[Round]:
    """Rounds of (submitted, accepted, seconds); a quarter of the time drafts, half verifies; a plain round drafts
    nothing."""
    found, pos = [], 0
    for number, (submitted, accepted, seconds) in enumerate(told):
        draft_s = seconds / 4 if submitted else 0.0
        found.append(
            Round(
                arm=-1,
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


def decoded(tokens: Sequence[int], told: Sequence[tuple[int, int, float]]) -> Decoded:
    done = rounds(*told)
    assert sum(row.emitted_len for row in done) == len(tokens)
    return Decoded(prompt_len=5, output=list(tokens), reason="length", rounds=done)


def plain(tokens: Sequence[int], seconds: float) -> Decoded:
    """Plain decoding, `seconds` a token."""
    return decoded(tokens, [(0, 0, seconds)] * len(tokens))


def cell_of(
    prompts: Sequence[Mapping[str, Decoded]],
    *,
    static: tuple[int, ...],
    controllers: Mapping[str, str],
    predicted: Mapping[str, float | None],
    name: str = "Drafter",
    dataset: str = "A",
    folder: Path = Path("nowhere"),
) -> Measured:
    """A finished cell of these decodes (spelling to decode for every prompt, plain decoding included)."""
    from real.compare import measured

    method = Method(name=name, drafter="prompt-lookup:ngram=2", max_draft_len=8, static=static, controllers=controllers)
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
