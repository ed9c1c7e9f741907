"""The folder of a replay turned into runs, one for each of its traces.

Owns which files of the folder say what, and which values are relied on. All numbers are the document's.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from analysis.folder_files import RESULTS, json_object, pair_of, round_log
from analysis.loaded import Method, Run
from analysis.rules import (
    AMOUNT,
    COUNT,
    FLAG,
    INTERVAL,
    MAYBE,
    MAYBE_POSITIVE,
    OBJECT,
    POSITIVE,
    TEXT,
    WORD,
    Rule,
    rows_of,
)
from specsim.controllers import DEFAULT_SETS
from specsim.errors import ConfigError, TraceError
from specsim.outdir import run_ids_of
from specsim.report import spelled
from specsim.trace import open_trace

CONFIG, PROVENANCE = "config.json", "provenance.json"
REPLAY_AGAIN = "make the folder again with python -m specsim.replay"
PAIR = Rule(
    lambda value: INTERVAL.sound(value) or value == [None, None], "two numbers, two nulls, or null"
)  # a replay of one request writes two nulls
ENTRY: Mapping[str, Rule] = {"path": TEXT, "rows": COUNT, "latency": OBJECT, "target": WORD, "drafter": WORD}
REPLAYED: Mapping[str, Rule] = {
    **{"trace": TEXT, "controller": TEXT, "params": OBJECT, "tokens": POSITIVE, "rounds": POSITIVE, "tau": POSITIVE},
    **{"time_s": POSITIVE, "plain_time_s": POSITIVE, "speedup": MAYBE_POSITIVE, "speedup_ci95": PAIR},
    **{"mean_submitted": AMOUNT, "acceptance_rate": MAYBE, "privileged": FLAG},
    "regret_best_fixed_s": MAYBE,
}


def replay_runs(folder: Path, name: str, document: Mapping[str, Any]) -> list[Run]:
    """A run for each trace of a replay; with several their names are NAME/TRACE.

    Raises:
        ConfigError: a file is missing or broken.
    """
    file = folder / RESULTS
    entries = rows_of(document, "traces", ENTRY, file, REPLAY_AGAIN)
    rows = rows_of(document, "results", REPLAYED, file, REPLAY_AGAIN)
    for number, row in enumerate(rows):
        if (row["regret_best_fixed_s"] or 0.0) >= row["time_s"]:  # the best fixed one would have taken no time
            raise ConfigError(
                f"{file}: results[{number}].regret_best_fixed_s is {row['regret_best_fixed_s']!r:.60}; allowed: less "
                f"than time_s, {row['time_s']!r:.60}; {REPLAY_AGAIN}"
            )
    config = json_object(folder / CONFIG, REPLAY_AGAIN)
    rounds = None
    if document.get("acceptance") != "expected":
        rounds = round_log(folder, REPLAY_AGAIN)
    provenance = json_object(folder / PROVENANCE, REPLAY_AGAIN)
    stems = [Path(entry["path"]).stem for entry in entries]
    runs = []
    for entry, stem in zip(entries, stems, strict=True):
        mine = [row for row in rows if row["trace"] == entry["path"]]
        methods = tuple(_replayed(row, known) for row, known in zip(mine, _unique(map(spelled, mine)), strict=True))
        notes: list[str] = []
        names = _names_in_log(entry["path"], mine, config.get("controllers"))
        if rounds is None:
            notes.append("expected acceptance: there are no single rounds to log")
        elif names is None:
            notes.append(f"{CONFIG} is of other controllers than {RESULTS}: rounds cannot be told apart")
        known = {}
        if names is not None and rounds is not None:
            known = {method.controller: name for method, name in zip(methods, names, strict=True)}
        trace = _find_trace(folder, entry, config, notes)
        meta = _meta(trace)
        shown = stem if stems.count(stem) == 1 else entry["path"]
        runs.append(
            Run(
                folder=folder,
                name=name if len(entries) == 1 else f"{name}/{shown}",
                kind="replay",
                trace_name=entry["path"],
                target=entry.get("target"),
                drafter=entry.get("drafter"),
                dataset=meta.get("dataset"),
                temperature=meta.get("temperature"),
                methods=methods,
                rounds=None if names is None else rounds,
                run_ids=known,
                trace=trace,
                latency=entry["latency"],
                provenance=provenance,
                notes=tuple(notes),
                document=document,
            )
        )
    return runs


def _replayed(row: Mapping[str, Any], controller: str) -> Method:
    return Method(
        controller=controller,
        tokens=row["tokens"],
        rounds=row["rounds"],
        tau=row["tau"],
        time_s=row["time_s"],
        plain_s=row["plain_time_s"],
        speedup=row["speedup"],
        ci95=pair_of(row["speedup_ci95"]),
        submitted_len=row["mean_submitted"],
        acceptance_rate=row["acceptance_rate"],
        privileged=row["privileged"],
        best_static_s=None if row["regret_best_fixed_s"] is None else row["time_s"] - row["regret_best_fixed_s"],
    )


def _unique(names: Iterable[str]) -> list[str]:
    """A name given again gets #2, #3 and so on after it, as in round logs."""
    seen: dict[str, int] = {}
    unique = []
    for name in names:
        seen[name] = seen.get(name, 0) + 1
        unique.append(name if seen[name] == 1 else f"{name}#{seen[name]}")
    return unique


def _names_in_log(trace: str, rows: Sequence[Mapping[str, Any]], given: Any) -> list[str] | None:
    """`run_id` of each result of a trace, from the spellings that were asked for."""
    asked = [given] if isinstance(given, list) else list(DEFAULT_SETS.values())
    names = [row["controller"] for row in rows]
    for spellings in asked:
        if [str(spelling).partition(":")[0] for spelling in spellings] == names:
            return run_ids_of(trace, [str(spelling) for spelling in spellings])
    return None


def _find_trace(folder: Path, entry: Mapping[str, Any], config: Mapping[str, Any], notes: list[str]) -> Path | None:
    given = Path(entry["path"])
    for path in dict.fromkeys((given, folder / given, folder / given.name, folder.parent / given.name)):
        if not path.is_file():
            continue
        try:
            with open_trace(path) as reader:
                rows, meta = reader.rows, reader.meta
        except TraceError as error:
            notes.append(f"the trace is of no use any more: {error}")
            return None
        whole = config.get("max_requests") is None and not entry.get("quarantined_requests")
        if rows != entry["rows"] if whole else rows < entry["rows"]:
            notes.append(f"{path} has {rows} rows, the replayed trace {entry['rows']}: another file by now")
            return None
        if (meta.target, meta.drafter) != (entry.get("target"), entry.get("drafter")):
            notes.append(
                f"{path} is of {meta.target} and {meta.drafter}, the replayed trace was not: another file by now"
            )
            return None
        return path
    notes.append(f"the trace {given} is not where it was, nor beside the folder")
    return None


def _meta(trace: Path | None) -> dict[str, Any]:
    if trace is None:
        return {}
    with open_trace(trace) as reader:
        return {"dataset": reader.meta.dataset, "temperature": reader.meta.temperature}
