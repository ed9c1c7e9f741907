"""What a finished cell says: a row per controller, and how `lambda` compares. Reads the cell's folder, loads no model.

Owns the rows of all tables: measured and predicted speedup, both with and without looping text, and where a round's
time goes. The measured and predicted numbers are the validation's (`real.evaluation`).
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from real.compare import counted
from real.folder import Request, Run, RunFolder, read_run
from real.interleave import PLAIN
from real.loops import looping
from real.paper.cells import RESULTS
from real.paper.config import FIXED, LAMBDA, LIBRASPEC, SP2EC, STATIC, UCBSPEC, Cell
from real.paper.loops import fresh_sums
from real.paper.paired import Times, compare
from specsim.errors import ConfigError
from specsim.metrics import bootstrap_ratios

PARTS = ("draft_s", "verify_s", "rest_s")
Row = dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class Measured:
    """A finished cell.

    Args:
        cell: what was measured.
        folder: its folder.
        document: its results.json, a validation's.
        requests: its prompts, decoded.
    """

    cell: Cell
    folder: Path
    document: Mapping[str, Any]
    requests: Sequence[Request]


def load_cell(cell: Cell, place: Path) -> Measured:
    """Read a finished cell.

    Raises:
        ConfigError: its folder cannot be read.
    """
    folder = place / cell.folder()
    file = folder / RESULTS
    try:
        document = json.loads(file.read_text(encoding="utf-8"))
        _check(document, cell)
    except (OSError, ValueError, RecursionError) as error:
        raise ConfigError(
            f"{file}: cannot be read ({error}); delete it and repeat the command, which makes it again"
        ) from None
    requests = list(RunFolder(folder, read_run(folder)["config"], reopen=True).load())
    if len(requests) != cell.prompts().requests:
        raise ConfigError(
            f"{folder}: {len(requests)} of {cell.prompts().requests} prompts are there; delete {RESULTS} in it and "
            "repeat the command, which decodes the others"
        )
    return Measured(cell=cell, folder=folder, document=document, requests=requests)


DOCUMENT = ("results", "differences", "not_predicted", "other_texts_in_trace", "machine")
RESULT = ("controller", "measured", "predicted", "error", "in_sample_error", "shadow")
MEASURED = ("speedup", "ci95", "tau", "tokens", "rounds")


def _check(document: Any, cell: Cell) -> None:
    """Raise a ValueError for a document that is not of this cell."""
    _has(document, DOCUMENT, "the file")
    if not isinstance(document["results"], list):
        raise ValueError("results is no list")
    for one in document["results"]:
        _has(one, RESULT, "a result")
        _has(one["measured"], MEASURED, "a measured result")
    lacking = set(cell.method.spellings()) - {one["controller"] for one in document["results"]}
    if lacking:
        raise ValueError(f"no result of {min(lacking)}")


def _has(document: Any, keys: Sequence[str], what: str) -> None:
    if not isinstance(document, dict):
        raise ValueError(f"{what} is no JSON object")
    for key in keys:
        if key not in document:
            raise ValueError(f"{what} has no {key}")


def rows_of(cell: Measured) -> list[Row]:
    """One row per label and controller, in the order of the configuration; plain decoding has none."""
    results = {one["controller"]: one for one in cell.document["results"]}
    return [_row(cell, label, results[spelling]) for label, spelling in cell.cell.method.labels()]


def place_of(cell: Cell) -> Row:
    """What every row says about where it was measured."""
    return {
        "target": cell.target,
        "dataset": cell.dataset,
        "temperature": cell.temperature,
        "method": cell.method.name,
        "drafter": cell.method.drafter,
    }


def _row(cell: Measured, label: str, one: Mapping[str, Any]) -> Row:
    spelling, seen = one["controller"], one["measured"]
    runs = [counted(request, spelling) for request in cell.requests]
    rounds = [row for run in runs for row in run.decoded.rounds]
    total = {name: float(sum(getattr(row, name) for row in rounds)) for name in ("draft_s", "verify_s", "round_s")}
    parts = {**total, "rest_s": total["round_s"] - total["draft_s"] - total["verify_s"]}
    counts = ("submitted_len", "scored_len", "draft_passes", "forward_passes", "accepted_len")
    return {
        **place_of(cell.cell),
        "draft_sampling": cell.cell.method.draft_sampling,
        "label": label,
        "controller": spelling,
        "prompts": len(runs),
        "prompt_len": float(np.mean([run.decoded.prompt_len for run in runs])),
        "tokens": seen["tokens"],
        "rounds": seen["rounds"],
        "eta": seen["speedup"],
        "eta_ci95": seen["ci95"],
        "tau": seen["tau"],
        "predicted": one["predicted"],
        "predicted_sd": one.get("predicted_sd") or 0.0,  # cells of older calibrations were replayed once
        "error": one["error"],
        "in_sample_error": one["in_sample_error"],
        "shadow": one["shadow"],
        **{f"{name[:-2]}_ms": parts[name] / len(rounds) * 1e3 for name in PARTS},
        **{f"mean_{name}": float(np.mean([getattr(row, name) for row in rounds])) for name in counts},
        **_without_loops(cell, spelling, runs),
    }


def _without_loops(cell: Measured, spelling: str, runs: Sequence[Run]) -> Row:
    """The speedup, tau and interval over tokens that do not loop, and how many do (`real.loops`)."""
    fresh = np.array([fresh_sums(run) for run in runs])
    base = np.array([fresh_sums(counted(request, PLAIN)) for request in cell.requests])
    loops = sum(int(looping(run.decoded.output).sum()) for run in runs)
    tokens = sum(len(run.decoded.output) for run in runs)
    # As in `real.results`: plain decoding's seconds, for as many tokens. An output always begins with fresh ones.
    plain_s = base[:, 2] * fresh[:, 0] / base[:, 0]
    interval = bootstrap_ratios(plain_s, [fresh[:, 2]], cell.cell.config.seed)[0]
    return {
        "loop_share": loops / tokens,
        "eta_fresh": float(plain_s.sum() / fresh[:, 2].sum()),
        "eta_fresh_ci95": None if interval[0] is None else interval,
        "tau_fresh": float(fresh[:, 0].sum() / fresh[:, 1].sum()),
    }


def times_of(cell: Measured, spelling: str) -> Times:
    """A controller's seconds and plain decoding's for as many tokens, per prompt."""
    plain, own = [], []
    for request in cell.requests:
        run, base = counted(request, spelling).decoded, counted(request, PLAIN).decoded
        plain.append(base.decode_s * len(run.output) / len(base.output))
        own.append(run.decode_s)
    return Times(plain_s=np.array(plain), time_s=np.array(own))


def best(rows: Sequence[Row]) -> Row:
    """The fastest variant."""
    return max(rows, key=lambda row: row["eta"])


@dataclass(frozen=True, kw_only=True)
class Summary:
    """What is kept of a cell when its rounds are not: they would not all fit in memory.

    Args:
        cell: what was measured.
        rows: as from `rows_of`.
        times: per prompt, by controller.
    """

    cell: Cell
    rows: Sequence[Row]
    times: Mapping[str, Times]


def summarise(cell: Measured) -> Summary:
    """The summary of a cell."""
    times = {spelling: times_of(cell, spelling) for spelling in cell.cell.method.spellings()}
    return Summary(cell=cell.cell, rows=rows_of(cell), times=times)


RIVALS = (
    *((LAMBDA, LIBRASPEC), (LAMBDA, STATIC), (LIBRASPEC, STATIC)),
    *((SP2EC, UCBSPEC), (SP2EC, STATIC), (UCBSPEC, STATIC)),
)


def comparisons(cells: Sequence[Summary]) -> list[dict[str, Any]]:
    """`lambda` against LibraSpec and the best static length, LibraSpec against the latter, and of arms SP2ec against
    UCBSpec and the best fixed arm, UCBSpec against the latter, variants of SP2ec against it: at least as fast, and if
    not, what costs it.

    Cells of one method are variants of each other (tree budgets, say); each side is its fastest variant. They decoded
    the same prompts, each with plain decoding beside it.
    """
    groups: dict[tuple[Any, ...], list[Summary]] = {}
    for one in cells:
        key = (one.cell.target, one.cell.dataset, one.cell.temperature, one.cell.method.name)
        groups.setdefault(key, []).append(one)
    found = [_compared(group, *rivals) for group in groups.values() for rivals in (*RIVALS, *_variants(group))]
    return [one for one in found if one is not None]


def _variants(cells: Sequence[Summary]) -> list[tuple[str, str]]:
    """Labels such as `SP2ec, beta 1`, each with SP2ec's."""
    labels = dict.fromkeys(row["label"] for one in cells for row in one.rows)
    return [(label, SP2EC) for label in labels if label.startswith(f"{SP2EC}, ")]


def _compared(cells: Sequence[Summary], label: str, against: str) -> dict[str, Any] | None:
    rows = [(row, one) for one in cells for row in one.rows]
    mine, other = _fastest(rows, (label,)), _fastest(rows, (STATIC, FIXED) if against == STATIC else (against,))
    if mine is None or other is None:
        return None
    ratio = compare(*(one.times[row["controller"]] for row, one in (mine, other)), seed=mine[1].cell.config.seed)
    place = {key: mine[0][key] for key in ("target", "dataset", "temperature", "method", "label")}
    told = {"against": against}
    for who, row in (("own", mine[0]), ("other", other[0])):
        told |= {f"{who}_controller": row["controller"], f"{who}_drafter": row["drafter"]}
    return {**place, **told, **ratio.to_json(), "explained": explain(mine[0], other[0])}


def _fastest(found: Sequence[tuple[Row, Summary]], labels: tuple[str, ...]) -> tuple[Row, Summary] | None:
    return max((one for one in found if one[0]["label"] in labels), key=lambda one: one[0]["eta"], default=None)


def explain(mine: Row, other: Row) -> dict[str, Any]:
    """Where two methods' milliseconds per output token differ, and whether the replay foresaw who is faster.

    `draft`, `verify` and `rest` are the first's less the other's; they add up to `total`.
    """
    parts = {
        name: mine[f"{name}_ms"] / mine["tau"] - other[f"{name}_ms"] / other["tau"]
        for name in ("draft", "verify", "rest")
    }
    predicted = None
    if mine["predicted"] is not None and other["predicted"] is not None:
        predicted = mine["predicted"] / other["predicted"]
    return {
        "ms_per_token": {**parts, "total": sum(parts.values())},
        "tau": [mine["tau"], other["tau"]],
        "submitted": [mine["mean_submitted_len"], other["mean_submitted_len"]],
        "predicted_ratio": predicted,
    }


def prediction_summary(rows: Sequence[Row]) -> dict[str, Any]:
    """The median absolute error over all rows with a prediction, and the bound it is held to.

    The bound is the larger of 5 % and the median of half the intervals, relative to the speedup (`real.compare`).
    """
    known = [row for row in rows if row["error"] is not None]
    if not known:
        return {"rows": len(rows), "predicted": 0, "median_error": None, "bound": None, "holds": None}
    half = [0.0 if row["eta_ci95"] is None else np.diff(row["eta_ci95"])[0] / 2 / row["eta"] for row in known]
    error, bound = float(np.median([abs(row["error"]) for row in known])), max(0.05, float(np.median(half)))
    return {"rows": len(rows), "predicted": len(known), "median_error": error, "bound": bound, "holds": error <= bound}
