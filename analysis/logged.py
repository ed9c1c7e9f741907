"""What a run folder comes to in the keys of `analysis.keys`: summaries, curves, tables and files, ready to be logged.

Owns how a folder's numbers become these keys, for every kind of run; knows nothing about wandb. Numbers are those of
the folder's documents; what these lack (shares of seconds, speedups of single requests) is summed from the round log.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.compute as pc

from analysis import keys
from analysis.curves import Curve, read_curves, read_live
from analysis.loaded import PLAIN, Method, Run
from analysis.perrequest import Requests, per_request
from analysis.rounds import Scan, scan
from specsim.latency import LatencyModel

SIMULATED = "simulated"  # verification of a replay: no target was asked
KEPT_BYTES = 64 << 20  # larger files stay where they are
DOCUMENTS = (
    *("results.json", "run.json", "config.json", "config.yaml", "provenance.json", "rounds.parquet"),
    *("outputs.jsonl", "calibration.json"),
)
POSITIONS = 25  # of the latency table, where nothing says how long drafts can be


@dataclass(frozen=True, kw_only=True)
class Controller:
    """One controller's run.

    Args:
        label: its name.
        config: what its config says beyond the group's.
        result: values of `keys.CONTROLLER_COLUMNS`; None where the folder does not know.
        curve: along its rounds; None without a round log.
    """

    label: str
    config: Mapping[str, Any]
    result: Mapping[str, Any]
    curve: Curve | None

    def points(self) -> Iterator[dict[str, Any]]:
        """Rows of the curve."""
        return iter(()) if self.curve is None else self.curve.points()


@dataclass(frozen=True, kw_only=True)
class Logged:
    """One comparison, as a group of runs.

    Args:
        name: of the run that was read, made fit for a group's name.
        config: of every run of the group.
        controllers: a run each.
        latency: the latency model's document, and rows of its table; None without one.
        files: to keep, by kind.
        finished: whether the run that was read came to its end.
        notes: what is missing, and why.
    """

    name: str
    config: Mapping[str, Any]
    controllers: Sequence[Controller]
    latency: tuple[Mapping[str, Any], Sequence[Sequence[float]]] | None
    files: Mapping[str, Sequence[Path]]
    finished: bool
    notes: Sequence[str]

    @property
    def best(self) -> Controller | None:
        """The fastest that could be deployed, plain decoding apart, by tokens per second (`real.results.best_of`)."""
        rivals = [one for one in self.controllers if one.config["deployable"] and one.config[keys.LABEL] != PLAIN]
        return max(rivals, key=lambda one: one.result["tokens_per_s"], default=None)


def fit_name(text: str) -> str:
    """A name that groups and artifacts may have."""
    return re.sub(r"[^\w.-]+", "-", text, flags=re.ASCII)


def logged(runs: Sequence[Run]) -> Iterator[Logged]:
    """Read what is to be logged of each run. A round log is streamed twice, and held in some thousand points.

    Raises:
        ConfigError: the latency model cannot be used.
        TraceError: the round log cannot be used.
    """
    for rounds, group in groupby(runs, key=lambda run: run.rounds):
        mine = list(group)  # traces of one replay share their log
        if rounds is None:
            yield from (_logged(run, None, {}) for run in mine)
            continue
        sums = scan(rounds)
        curves = read_curves(rounds, [run_id for run in mine for run_id in run.run_ids.values()])
        for run in mine:
            if run.kind != "replay":
                timed = read_live(run.folder, list(run.run_ids))
                for controller, run_id in run.run_ids.items():
                    curves[run_id].live = timed[controller]
            yield _logged(run, sums, curves)


def _logged(run: Run, sums: Scan | None, curves: Mapping[str, Curve]) -> Logged:
    by_request = {} if sums is None else per_request(sums, run.run_ids)
    files, left = _files(run)
    controllers = [_controller(run, method, sums, by_request, curves) for method in run.methods]
    return Logged(
        name=fit_name(run.name),
        config=_config(run),
        controllers=controllers,
        latency=None if run.latency is None else (run.latency, _latency_rows(run, run.latency, sums)),
        files=files,
        finished=bool(run.methods),
        notes=(*run.notes, *left),
    )


def _config(run: Run) -> dict[str, Any]:
    known = {"target": run.target, "drafter": run.drafter, "dataset": run.dataset, "temperature": run.temperature}
    settings = run.document.get("config") or {key: run.document.get(key) for key in ("seed", "acceptance")}
    return {
        **settings,
        **{key: value for key, value in known.items() if value is not None},
        "trace": run.trace_name,
        keys.PROVENANCE: dict(run.provenance),
        keys.KIND: run.kind,
        "notes": list(run.notes),
    }


def _controller(
    run: Run,
    method: Method,
    sums: Scan | None,
    by_request: Mapping[str, Requests],
    curves: Mapping[str, Curve],
) -> Controller:
    result: dict[str, Any] = dict.fromkeys(keys.CONTROLLER_COLUMNS)
    low, high = method.ci95 or (None, None)
    result |= {
        keys.LABEL: method.controller,
        **{"tokens": method.tokens, "rounds": method.rounds, "tau": method.tau, "tokens_per_s": method.tokens_per_s},
        **{"speedup": method.speedup, "speedup_low": low, "speedup_high": high},
        **{"submitted_len": method.submitted_len, "acceptance_rate": method.acceptance_rate},
        **{"decode_s": method.time_s, keys.VERIFICATION: _verification(run)},
    }
    mine = by_request.get(method.controller)
    if sums is not None and mine is not None:
        result |= _from_rounds(method, mine, by_request.get(PLAIN), sums, run.run_ids[method.controller])
    result |= _from_document(run, method)
    config = {keys.LABEL: method.controller, keys.VERIFICATION: result[keys.VERIFICATION]}
    return Controller(
        label=method.name,
        config={**config, "deployable": not method.privileged},
        result=result,
        curve=curves.get(run.run_ids.get(method.controller, "")),
    )


def _verification(run: Run) -> str:
    return SIMULATED if run.kind == "replay" else (run.document.get("config") or {}).get(keys.VERIFICATION, "live")


def _from_rounds(method: Method, mine: Requests, plain: Requests | None, sums: Scan, run_id: str) -> dict[str, Any]:
    rows = sums.requests.filter(pc.field("run_id") == run_id)
    found: dict[str, Any] = {}
    for name in ("draft", "verify"):
        share = float(rows[f"{name}_s"].to_numpy().astype(np.float64).sum() / method.time_s)
        found[f"{name}_share"] = share if np.isfinite(share) else None  # null where a time was not measured
    ratios = None
    if plain is not None and plain.request.tolist() == mine.request.tolist():
        ratios = float(np.mean(mine.plain_seconds(plain) / mine.time_s))
    return {**found, "prompts": len(mine.request), "speedup_mean_of_ratios": ratios}


def _from_document(run: Run, method: Method) -> dict[str, Any]:
    """What a folder's own document says under the same names, and outputs that differ."""
    if run.kind == "validation" and "differences" in run.document:
        return {"different": sum(one.get("controller") == method.controller for one in run.document["differences"])}
    if run.kind != "real":
        return {}
    rows = [row for row in run.document.get("results", []) if row["controller"] == method.controller]
    return {key: row[key] for row in rows for key in keys.SUMMARY if row.get(key) is not None}


def _latency_rows(run: Run, latency: Mapping[str, Any], sums: Scan | None) -> list[list[float]]:
    model = LatencyModel.from_dict(latency, where=f"{run.folder}: latency model")
    longest = (run.document.get("config") or {}).get("max_draft_len")
    if longest is None and sums is not None:
        longest = max(sums.depths["depth"].to_pylist(), default=None)
    return [[s, float(model.verify_s(s))] for s in range(1, 1 + (longest or POSITIONS - 1) + 1)]


def _files(run: Run) -> tuple[dict[str, list[Path]], list[str]]:
    """Files by kind, and what is said of those that are too large."""
    found = {
        "rounds": [run.folder / name for name in DOCUMENTS],
        "latency": [run.folder / "latency.json"],
        "trace": [] if run.trace is None else [run.trace],
    }
    notes = []
    kept: dict[str, list[Path]] = {}
    for kind, paths in found.items():
        for path in paths:
            size = path.stat().st_size if path.is_file() else -1
            if size > KEPT_BYTES:
                notes.append(f"{path} stays where it is: {size >> 20} MiB are too many for an artifact")
            elif size >= 0:
                kept.setdefault(kind, []).append(path)
    return kept, notes
