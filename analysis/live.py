"""The folder of a live run turned into a run: real runs, validations, and those that were interrupted.

Owns which files of the folder say what, and which values are relied on. Numbers are the documents'; what they lack (an
interval, mean submitted lengths) is from the round log, by the formulas of `real.results`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

from analysis.folder_files import RESULTS, RUN, as_config, json_object, pair_of, round_log
from analysis.loaded import PLAIN, Method, Run
from analysis.perrequest import Requests, per_request, with_early_builds
from analysis.rounds import scan
from analysis.rules import AMOUNT, INTERVAL, MAYBE, MAYBE_POSITIVE, OBJECT, POSITIVE, TEXT, WORD, Rule, check, rows_of
from specsim.errors import ConfigError
from specsim.metrics import bootstrap_ratios

ASSISTED = "reference-assisted"
TRACE, REQUESTS = "trace.parquet", "requests"
REAL_SCHEMA = "specsim.real_run/1"
REAL_AGAIN = "make the folder again with python -m real.run, or with --force"
VALIDATE_AGAIN = "make the folder again with python -m real.validate"
SEED = 0

SETTINGS: Mapping[str, Rule] = {  # of a live run; null where a command has none
    **{"target": WORD, "drafter": WORD, "temperature": MAYBE, "requests": MAYBE},
    "dataset": Rule(
        lambda value: WORD.sound(value.get("data") if isinstance(value, dict) else value),
        "text, a JSON object with the text data, or null",
    ),
}
RESULT: Mapping[str, Rule] = {
    **{"controller": TEXT, "tokens": POSITIVE, "rounds": POSITIVE, "tau": POSITIVE, "decode_s": POSITIVE},
    **{"speedup": MAYBE_POSITIVE, "submitted_len": AMOUNT, "acceptance_rate": MAYBE},
}
VALIDATED: Mapping[str, Rule] = {"controller": TEXT, "measured": OBJECT, "predicted": MAYBE}
MEASURED: Mapping[str, Rule] = {
    **{"tokens": POSITIVE, "rounds": POSITIVE, "tau": POSITIVE, "decode_s": POSITIVE, "speedup": POSITIVE},
    "ci95": INTERVAL,
}


def real_run(folder: Path, name: str, document: Mapping[str, Any]) -> Run:
    """A real run; one that was interrupted has no methods, and a note that says how far it came.

    Raises:
        ConfigError: a file is missing or broken.
    """
    config = _settings(document, folder, REAL_AGAIN)
    finished = document.get("finished") is True
    notes: list[str] = []
    methods: tuple[Method, ...] = ()
    names: dict[str, str] = {}
    rounds = None
    if finished:
        rounds = round_log(folder, REAL_AGAIN)
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
        folder,
        name,
        "validation" if validation else "real",
        about=document,
        document=document,
        methods=methods,
        rounds=rounds,
        names=names,
        trace=trace,
        notes=notes,
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
    about = json_object(folder / RUN, VALIDATE_AGAIN)
    _settings(about, folder, VALIDATE_AGAIN)
    rounds = round_log(folder, VALIDATE_AGAIN)
    notes: list[str] = []
    names = {row["controller"]: row["controller"] for row in rows}
    with as_config():
        found = per_request(scan(rounds), names)
    methods = tuple(_validated(row, found, rounds) for row in rows)
    trace: Path | None = folder / TRACE
    if not trace.is_file():
        trace = None
        notes.append(f"no trace: {document.get('not_predicted') or 'there is no ' + TRACE}")
    return _real(
        folder,
        name,
        "validation",
        about=about,
        document=document,
        methods=methods,
        rounds=rounds,
        names=names,
        trace=trace,
        notes=notes,
    )


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
        ci95=pair_of(seen["ci95"]),
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
    with as_config():
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
    return replace(method, ci95=pair_of(interval))


def _settings(about: Mapping[str, Any], folder: Path, advice: str) -> Mapping[str, Any]:
    """Settings of a live run, those that are used here checked."""
    check(about, {"config": OBJECT}, f"{folder / RUN}: run", advice)
    config = about["config"]
    check({key: config.get(key) for key in SETTINGS}, SETTINGS, f"{folder / RUN}: run.config", advice)
    return config


def _interrupted(folder: Path, config: Mapping[str, Any]) -> str:
    kept = sum(file.stem.isdecimal() for file in (folder / REQUESTS).glob("[0-9]*.json"))
    asked = {**config, **_data(config)}.get("requests")
    return f"not finished: {kept} of {asked} prompts are kept; repeat the command of the run, which goes on after them"


def _data(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """The dataset's own settings, of a cell of an experiment; of other runs none."""
    data = config.get("dataset")
    return data if isinstance(data, dict) else {}


def _real(
    folder: Path,
    name: str,
    kind: Literal["real", "validation"],
    *,
    about: Mapping[str, Any],
    document: Mapping[str, Any],
    methods: tuple[Method, ...],
    rounds: Path | None,
    names: Mapping[str, str],
    trace: Path | None,
    notes: Sequence[str],
) -> Run:
    config = about["config"]
    latency = next((folder / file for file in ("calibration.json", "latency.json") if (folder / file).is_file()), None)
    temperature = config.get("temperature", 0.0 if kind == "validation" else None)
    return Run(
        folder=folder,
        name=name,
        kind=kind,
        trace_name=None if trace is None else str(trace),
        target=config.get("target"),
        drafter=config.get("drafter"),
        dataset=_data(config).get("data") if _data(config) else config.get("dataset") or None,
        temperature=temperature,
        methods=methods,
        rounds=rounds,
        run_ids=dict(names),
        trace=trace,
        latency=None
        if latency is None
        else json_object(latency, "remove it, or make it again with python -m real.calibrate"),
        provenance=about.get("provenance") or {},
        notes=(*notes, *(["no latency model in the folder"] if latency is None else [])),
        document=document,
    )
