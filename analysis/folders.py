"""A run folder of each kind turned into runs: replays, real runs, validations, and real runs that were interrupted.

Owns which files of a folder say what, and which values of their documents are relied on. Numbers are the documents';
what a document lacks (an interval, mean submitted lengths) is from the round log, by the formulas of `real.results`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

from analysis.loaded import Method, Run
from analysis.perrequest import Requests, per_request, with_early_builds
from analysis.rounds import scan
from analysis.rules import AMOUNT, COUNT, FLAG, INTERVAL, MAYBE, OBJECT, POSITIVE, TEXT, Rule, check, read_json, rows_of
from specsim.controllers import DEFAULT_SETS
from specsim.errors import ConfigError, SpecsimError, TraceError
from specsim.metrics import bootstrap_ratios
from specsim.outdir import run_ids_of
from specsim.report import spelled
from specsim.roundlog import stream_round_log
from specsim.trace import open_trace

PLAIN, ASSISTED = "plain", "reference-assisted"
RESULTS, RUN, ROUNDS, TRACE = "results.json", "run.json", "rounds.parquet", "trace.parquet"
CONFIG, PROVENANCE, REQUESTS = "config.json", "provenance.json", "requests"
REAL_SCHEMA = "specsim.real_run/1"
REPLAY_AGAIN = "make the folder again with python -m specsim.replay"
REAL_AGAIN = "make the folder again with python -m real.run, or with --force"
VALIDATE_AGAIN = "make the folder again with python -m real.validate"
SEED = 0

PAIR = Rule(
    lambda value: INTERVAL.sound(value) or value == [None, None], "two numbers, two nulls, or null"
)  # a replay of one request writes two nulls
ENTRY: Mapping[str, Rule] = {"path": TEXT, "rows": COUNT, "latency": OBJECT}
REPLAYED: Mapping[str, Rule] = {
    **{"trace": TEXT, "controller": TEXT, "params": OBJECT, "tokens": POSITIVE, "rounds": POSITIVE, "tau": POSITIVE},
    **{"time_s": POSITIVE, "plain_time_s": POSITIVE, "speedup": MAYBE, "speedup_ci95": PAIR},
    **{"mean_submitted": AMOUNT, "acceptance_rate": MAYBE, "privileged": FLAG},
    "regret_best_fixed_s": MAYBE,
}
RESULT: Mapping[str, Rule] = {
    **{"controller": TEXT, "tokens": POSITIVE, "rounds": POSITIVE, "tau": POSITIVE, "decode_s": POSITIVE},
    **{"speedup": MAYBE, "submitted_len": AMOUNT, "acceptance_rate": MAYBE},
}
VALIDATED: Mapping[str, Rule] = {"controller": TEXT, "measured": OBJECT, "predicted": MAYBE}
MEASURED: Mapping[str, Rule] = {
    **{"tokens": POSITIVE, "rounds": POSITIVE, "tau": POSITIVE, "decode_s": POSITIVE, "speedup": POSITIVE},
    "ci95": INTERVAL,
}


def replay_runs(folder: Path, name: str, document: Mapping[str, Any]) -> list[Run]:
    """A run for each trace of a replay; with several their names are NAME/TRACE.

    Raises:
        ConfigError: a file is missing or broken.
    """
    file = folder / RESULTS
    entries = rows_of(document, "traces", ENTRY, file, REPLAY_AGAIN)
    rows = rows_of(document, "results", REPLAYED, file, REPLAY_AGAIN)
    config = _object(folder / CONFIG, REPLAY_AGAIN)
    rounds = None
    if document.get("acceptance") != "expected":
        rounds = _log(folder, REPLAY_AGAIN)
    provenance = _object(folder / PROVENANCE, REPLAY_AGAIN)
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
        ci95=_pair(row["speedup_ci95"]),
        submitted_len=row["mean_submitted"],
        acceptance_rate=row["acceptance_rate"],
        privileged=row["privileged"],
        best_static_s=None if row["regret_best_fixed_s"] is None else row["time_s"] - row["regret_best_fixed_s"],
    )


def _unique(names: Any) -> list[str]:
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


def real_run(folder: Path, name: str, document: Mapping[str, Any]) -> Run:
    """A real run; one that was interrupted has no methods, and a note that says how far it came.

    Raises:
        ConfigError: a file is missing or broken.
    """
    check(document, {"config": OBJECT}, f"{folder / RUN}: run", REAL_AGAIN)
    config = document["config"]
    finished = document.get("finished") is True
    notes: list[str] = []
    methods: tuple[Method, ...] = ()
    names: dict[str, str] = {}
    rounds = None
    if finished:
        rounds = _log(folder, REAL_AGAIN)
        if "results" in document:
            rows = rows_of(document, "results", RESULT, folder / RUN, REAL_AGAIN)
            methods, names = _with_intervals(folder, [_result(row) for row in rows], rounds, notes)
        else:
            notes.append(f"{RUN} has no results; repeat the command of the run, which makes them again")
    else:
        notes.append(_interrupted(folder, config))
    validation = (folder / TRACE).is_file() or "repeats" in config
    trace = folder / TRACE if (folder / TRACE).is_file() else None
    return _real(
        folder, name, "validation" if validation else "real", document, document, methods, rounds, names, trace, notes
    )


def validation_run(folder: Path, name: str, document: Mapping[str, Any]) -> Run:
    """A validation.

    Raises:
        ConfigError: a file is missing or broken.
    """
    file = folder / RESULTS
    rows = rows_of(document, "results", VALIDATED, file, VALIDATE_AGAIN)
    for number, row in enumerate(rows):
        check(row["measured"], MEASURED, f"{file}: results[{number}].measured", VALIDATE_AGAIN)
    about = _object(folder / RUN, VALIDATE_AGAIN)
    check(about, {"config": OBJECT}, f"{folder / RUN}: run", VALIDATE_AGAIN)
    rounds = _log(folder, VALIDATE_AGAIN)
    notes: list[str] = []
    names = {row["controller"]: row["controller"] for row in rows}
    with _as_config():
        found = per_request(scan(rounds), names)
    methods = tuple(_validated(row, found, rounds) for row in rows)
    trace: Path | None = folder / TRACE
    if not trace.is_file():
        trace = None
        notes.append(f"no trace: {document.get('not_predicted') or 'there is no ' + TRACE}")
    return _real(folder, name, "validation", about, document, methods, rounds, names, trace, notes)


def _validated(row: Mapping[str, Any], found: Mapping[str, Requests], rounds: Path) -> Method:
    seen = row["measured"]
    if row["controller"] not in found:
        raise ConfigError(f"{rounds}: no round of {row['controller']}, which {RESULTS} has; {VALIDATE_AGAIN}")
    mine = found[row["controller"]]
    submitted, accepted = mine.submitted.sum(), mine.accepted.sum()
    return Method(
        controller=row["controller"],
        tokens=seen["tokens"],
        rounds=seen["rounds"],
        tau=seen["tau"],
        time_s=seen["decode_s"],
        plain_s=seen["speedup"] * seen["decode_s"],
        speedup=seen["speedup"],
        ci95=_pair(seen["ci95"]),
        submitted_len=float(submitted / mine.rounds.sum()),
        acceptance_rate=float(accepted / submitted) if submitted else None,
        predicted=row["predicted"],
    )


def _result(row: Mapping[str, Any]) -> Method:
    assisted = row.get("verification") == ASSISTED
    return Method(
        controller=row["controller"],
        tokens=row["tokens"],
        rounds=row["rounds"],
        tau=row["tau"],
        time_s=row["decode_s"],
        plain_s=None if row["speedup"] is None else row["speedup"] * row["decode_s"],
        speedup=row["speedup"],
        ci95=None,
        submitted_len=row["submitted_len"],
        acceptance_rate=row["acceptance_rate"],
        label=f"{row['controller']} ({ASSISTED})" if assisted else None,
    )


def _with_intervals(
    folder: Path, methods: Sequence[Method], rounds: Path, notes: list[str]
) -> tuple[tuple[Method, ...], dict[str, str]]:
    """The methods with intervals by bootstrap over requests, and their names in the log."""
    names = {method.controller: method.name for method in methods}
    with _as_config():
        found = per_request(scan(rounds), names)
    lacking = [method.name for method in methods if method.controller not in found]
    if lacking:
        raise ConfigError(f"{rounds}: no round of {lacking[0]}, which {RUN} has; {REAL_AGAIN}")
    found, note = with_early_builds(folder, found, {method.controller: method.time_s for method in methods})
    notes += [] if note is None else [note]
    if PLAIN not in found:
        notes.append("no plain decoding, so no speedup")
        return tuple(methods), names
    return tuple(_with_interval(method, found) for method in methods), names


def _with_interval(method: Method, found: Mapping[str, Requests]) -> Method:
    mine, plain = found[method.controller], found[PLAIN]
    if method.speedup is None or mine.request.tolist() != plain.request.tolist():
        return method
    interval = bootstrap_ratios(mine.plain_seconds(plain), [mine.time_s], SEED)[0]
    return replace(method, ci95=_pair(interval))


def _interrupted(folder: Path, config: Mapping[str, Any]) -> str:
    kept = sum(file.stem.isdecimal() for file in (folder / REQUESTS).glob("[0-9]*.json"))
    asked = config.get("requests") or (config.get("dataset") or {}).get("requests")
    return f"not finished: {kept} of {asked} prompts are kept; repeat the command of the run, which goes on after them"


def _real(
    folder: Path,
    name: str,
    kind: Literal["real", "validation"],
    about: Mapping[str, Any],
    document: Mapping[str, Any],
    methods: tuple[Method, ...],
    rounds: Path | None,
    names: Mapping[str, str],
    trace: Path | None,
    notes: Sequence[str],
) -> Run:
    config = about["config"]
    data = config.get("dataset")
    latency = next((folder / file for file in ("calibration.json", "latency.json") if (folder / file).is_file()), None)
    temperature = config.get("temperature", 0.0 if kind == "validation" else None)
    return Run(
        folder=folder,
        name=name,
        kind=kind,
        trace_name=None if trace is None else str(trace),
        target=config.get("target"),
        drafter=config.get("drafter"),
        dataset=data.get("data") if isinstance(data, dict) else data,
        temperature=temperature,
        methods=methods,
        rounds=rounds,
        run_ids=dict(names),
        trace=trace,
        latency=None
        if latency is None
        else _object(latency, "remove it, or make it again with python -m real.calibrate"),
        provenance=about.get("provenance") or {},
        notes=(*notes, *(["no latency model in the folder"] if latency is None else [])),
        document=document,
    )


def _log(folder: Path, advice: str) -> Path:
    """The round log of a folder, of which the first piece can be read."""
    path = folder / ROUNDS
    if not path.is_file():
        raise ConfigError(f"{path}: the round log is missing; {advice}")
    with _as_config():
        next(stream_round_log(path, ("run_id",)), None)
    return path


@contextmanager
def _as_config() -> Any:
    """What is wrong with a file inside a folder is a folder that cannot be used."""
    try:
        yield
    except SpecsimError as error:
        raise ConfigError(str(error)) from error


def _object(file: Path, advice: str) -> dict[str, Any]:
    document = read_json(file, "JSON object", advice)
    if not isinstance(document, dict):
        raise ConfigError(f"{file}: no JSON object there; {advice}")
    return document


def _meta(trace: Path | None) -> dict[str, Any]:
    if trace is None:
        return {}
    with open_trace(trace) as reader:
        return {"dataset": reader.meta.dataset, "temperature": reader.meta.temperature}


def _pair(interval: Sequence[float | None] | None) -> tuple[float, float] | None:
    if interval is None or interval[0] is None or interval[1] is None:
        return None
    return (interval[0], interval[1])
