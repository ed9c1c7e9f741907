"""Round logs and run folders with known contents, for the tests of analysis/; and sums over them by numpy alone."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from specsim.errors import run_cli
from specsim.roundlog import RoundLogWriter, read_round_log

PLAIN, LENGTH, RULE = "plain", "static:length=3", "libraspec"


def random_log(path: Path, *, rounds: int, runs: Sequence[str], requests: int, arms: int = 0, seed: int = 0) -> Path:
    """A round log whose rows are independent draws in no order."""
    rng = np.random.default_rng(seed)
    submitted = rng.integers(0, 6, rounds).astype(np.int16)
    accepted = np.minimum(rng.integers(0, 6, rounds), submitted).astype(np.int16)
    seconds = rng.uniform(0.001, 0.01, (3, rounds))
    with RoundLogWriter(path, {"source": "a test"}) as writer:
        writer.write(
            {
                "run_id": rng.choice(np.array(runs, object), rounds),
                "lane": 0,
                "request": rng.integers(0, requests, rounds).astype(np.int32),
                "round": np.arange(rounds, dtype=np.int32),
                "pos": np.arange(rounds, dtype=np.int32),
                "ctx_len": None,
                "arm": rng.integers(-1, arms, rounds).astype(np.int16) if arms else -1,
                "drafted_len": submitted,
                "submitted_len": submitted,
                "accepted_len": accepted,
                "emitted_len": (accepted + 1).astype(np.int16),
                "draft_passes": submitted,
                "draft_s": seconds[0],
                "verify_s": seconds[1],
                "overhead_s": seconds[2],
                "round_s": seconds.sum(axis=0),
                "warmup": rng.random(rounds) < 0.1,
            }
        )
    return path


def counted(path: Path) -> list[dict[str, Any]]:
    """The rounds that count, row by row."""
    _, columns = read_round_log(path)
    rows = [dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)]
    return [row for row in rows if not row["warmup"]]


def real_folder(folder: Path, decodes: Mapping[tuple[int, str], Sequence[tuple[int, int, float]]], **more: Any) -> Path:
    """A finished real run.

    Args:
        folder: to make.
        decodes: (submitted, accepted, seconds) of every round, by request and controller.
        more: further keys of run.json.
    """
    folder.mkdir()
    names = list(dict.fromkeys(name for _, name in decodes))
    with RoundLogWriter(folder / "rounds.parquet", {}) as writer:
        for (request, name), rounds in decodes.items():
            submitted, accepted, seconds = (np.array(column) for column in zip(*rounds, strict=True))
            writer.write(
                {
                    **{"run_id": name, "lane": 0, "request": request, "round": np.arange(len(rounds), dtype=np.int32)},
                    **{"pos": np.arange(len(rounds), dtype=np.int32), "ctx_len": 5, "arm": -1},
                    **{"drafted_len": submitted.astype(np.int16), "submitted_len": submitted.astype(np.int16)},
                    **{"accepted_len": accepted.astype(np.int16), "emitted_len": (accepted + 1).astype(np.int16)},
                    **{"draft_passes": 0, "draft_s": 0.0, "verify_s": seconds, "overhead_s": 0.0, "round_s": seconds},
                    "warmup": False,
                }
            )
    results = [result_of(name, decodes) for name in names]
    document = {
        "schema": "specsim.real_run/1",
        "config": {"target": "t", "drafter": "d", "dataset": "lab", "temperature": 0.0, "requests": 3},
        "provenance": {"created": "2026-01-01T00:00:00Z"},
        "results": results,
        "finished": True,
        **more,
    }
    (folder / "run.json").write_text(json.dumps(document))
    return folder


def result_of(name: str, decodes: Mapping[tuple[int, str], Sequence[tuple[int, int, float]]]) -> dict[str, Any]:
    """What run.json says of a controller (`real.results`), by its own arithmetic."""
    tokens = rounds = submitted = accepted = 0
    seconds = plain = 0.0
    for (request, other), rows in decodes.items():
        if other != name:
            continue
        mine = sum(row[1] + 1 for row in rows)
        base = decodes[request, PLAIN]
        plain += sum(row[2] for row in base) * mine / sum(row[1] + 1 for row in base)
        tokens, rounds, seconds = tokens + mine, rounds + len(rows), seconds + sum(row[2] for row in rows)
        submitted, accepted = submitted + sum(row[0] for row in rows), accepted + sum(row[1] for row in rows)
    return {
        **{"controller": name, "tokens": tokens, "rounds": rounds, "tau": tokens / rounds, "decode_s": seconds},
        **{"speedup": plain / seconds, "submitted_len": submitted / rounds},
        "acceptance_rate": accepted / submitted if submitted else None,
    }


def validation_folder(folder: Path, decodes: Mapping[tuple[int, str], Sequence[tuple[int, int, float]]]) -> Path:
    """A finished validation, which foretold every speedup 10 % too high."""
    real_folder(folder, decodes)
    about = json.loads((folder / "run.json").read_text())
    rows = []
    for row in about.pop("results"):
        keys = ("tokens", "rounds", "tau", "decode_s", "speedup")
        measured = {key: row[key] for key in keys} | {"mean_of_ratios": 1.0, "ci95": [0.9, 1.4]}
        rows.append({"controller": row["controller"], "measured": measured, "predicted": 1.1 * row["speedup"]})
    (folder / "run.json").write_text(json.dumps(about))
    document = {"schema": "specsim.validation/1", "results": rows, "not_predicted": None}
    (folder / "results.json").write_text(json.dumps(document))
    return folder


def status(main: Any, *words: str | Path) -> int:
    """Exit status of a command."""
    with pytest.raises(SystemExit) as left:
        run_cli(main, [str(word) for word in words])
    return int(left.value.code or 0)
