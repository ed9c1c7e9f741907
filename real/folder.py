"""The folder of a real run: everything that happened, kept prompt by prompt so that a run can be continued.

    OUT/run.json               configuration and provenance; `finished` when all prompts are there
    OUT/requests/00003.json    one prompt with every controller's output and rounds, the raw record
    OUT/rounds.parquet         round log of all controllers, `run_id` is the controller's label (`Run.label`)
    OUT/outputs.jsonl          one line per prompt and controller

Owns these files. The last two are made from the first ones, which stay. Knows nothing about models.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from real.drafters.base import Built
from real.loop import Decoded, Round
from real.reference import labelled
from specsim.errors import ConfigError
from specsim.passes import PassRecord
from specsim.paths import replace_file
from specsim.provenance import provenance
from specsim.roundlog import RoundLogWriter
from specsim.schema import ROUND_LOG_SCHEMA

RUN, REQUESTS, ROUNDS, OUTPUTS = "run.json", "requests", "rounds.parquet", "outputs.jsonl"
SCHEMA = "specsim.real_run/1"
_COLUMNS = (
    *("round", "pos", "ctx_len", "arm", "drafted_len", "submitted_len", "accepted_len", "emitted_len", "draft_passes"),
    *("available_len", "scored_len", "forward_passes", "draft_s", "verify_s", "round_s"),
)
_SINCE = ("controller_s", "build_s")  # columns that folders of earlier versions do not have; 0 there


@dataclass(frozen=True, kw_only=True)
class Run:
    """One controller's decode of one prompt.

    Args:
        controller: its spelling.
        decoded: output and rounds.
        warmup: flagged in the round log and left out of results.
    """

    controller: str
    decoded: Decoded
    warmup: bool = False

    @property
    def label(self) -> str:
        """Its name in tables and logs, which says how drafts were verified if that was not live."""
        return labelled(self.controller, self.decoded.verification)


@dataclass(frozen=True, kw_only=True)
class Request:
    """One prompt decoded by every controller.

    Args:
        number: of the prompt in the run.
        id: of the prompt in its dataset.
        runs: in the order they were executed.
        lane: which process decoded it; controllers that learn over prompts do so within a lane.
    """

    number: int
    id: str
    runs: tuple[Run, ...]
    lane: int = 0


class RunFolder:
    """The folder of one run.

    Args:
        path: the folder; made when missing, its parent has to exist.
        config: JSON values that decide what the run produces.
        force: throw away a run of another configuration, or a finished one.
        reopen: take a finished run of this configuration as it is instead of refusing it.

    Raises:
        ConfigError: a folder that holds prompts of an unknown run, a run with other settings, or a finished run; or
            one that cannot be written.
    """

    def __init__(self, path: Path, config: Mapping[str, Any], *, force: bool = False, reopen: bool = False) -> None:
        self.path, self.config = path, json.loads(json.dumps(config, allow_nan=False))
        self.finished = False
        file = path / RUN
        try:
            if force and file.exists():
                self._clear()
            path.mkdir(exist_ok=True)
            (path / REQUESTS).mkdir(exist_ok=True)
            self._claim(file, reopen)
        except OSError as error:
            raise ConfigError(f"{path}: cannot be used ({error.strerror}); choose another folder") from error

    def _claim(self, file: Path, reopen: bool) -> None:
        if not file.exists():
            if self.done():
                raise ConfigError(
                    f"{self.path / REQUESTS} holds prompts, but {file} is missing, which tells of what run; choose "
                    "another folder or remove this one"
                )
            self._write(file, {"schema": SCHEMA, "config": self.config, "provenance": provenance(packages=())})
            return
        found = read_run(self.path)
        different = sorted(
            key for key in {*self.config, *found["config"]} if self.config.get(key) != found["config"].get(key)
        )
        if different:
            key = different[0]
            raise ConfigError(
                f"{self.path} holds a run with other settings ({', '.join(different)}; {key} was "
                f"{found['config'].get(key)!r}, now {self.config.get(key)!r}); repeat its command to continue it, "
                "choose another folder, or add --force to replace it"
            )
        self.finished = bool(found.get("finished"))
        if self.finished and not reopen:
            raise ConfigError(
                f"{self.path} holds this run, finished; choose another folder or add --force to replace it"
            )

    def _clear(self) -> None:
        shutil.rmtree(self.path / REQUESTS, ignore_errors=True)
        for name in (RUN, ROUNDS, OUTPUTS):
            (self.path / name).unlink(missing_ok=True)

    def remove(self) -> None:
        """Remove a folder that holds no prompt; an OSError where something of somebody else's is in it."""
        (self.path / RUN).unlink()
        (self.path / REQUESTS).rmdir()
        self.path.rmdir()

    def done(self) -> set[int]:
        """Numbers of the prompts that are kept."""
        # Editors and copies leave others beside them.
        return {int(file.stem) for file in (self.path / REQUESTS).glob("[0-9]*.json") if file.stem.isdecimal()}

    def save(self, request: Request) -> None:
        """Keep a prompt's runs; the file appears whole or not at all.

        Raises:
            ConfigError: the disk is full or the folder cannot be written; earlier prompts stay kept.
        """
        with self._keeping():
            self._write(self._file(request.number), _to_json(request))

    def load(self) -> Iterator[Request]:
        """The kept prompts in order.

        Raises:
            ConfigError: a file that cannot be read.
        """
        for number in sorted(self.done()):
            file = self._file(number)
            try:
                request = _from_json(json.loads(file.read_text(encoding="utf-8")))
                self._check(number, request)
            except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
                raise ConfigError(
                    f"{file}: cannot be read ({error!r}); delete it, and the prompt is decoded again"
                ) from error
            yield request

    def _check(self, number: int, request: Request) -> None:
        """Raise a ValueError for a prompt that cannot be this run's."""
        if request.number != number:
            raise ValueError(f"it holds prompt {request.number}")
        runs = sorted(run.controller for run in request.runs if not run.warmup)
        asked = sorted(self.config.get("controllers", runs))
        if runs != asked:
            raise ValueError(f"it holds runs of {', '.join(runs) or 'nothing'}; this run is of {', '.join(asked)}")

    def finish(self, requests: Sequence[Request], *, texts: Mapping[tuple[int, str], str], **more: Any) -> None:
        """Write the round log and the outputs, and mark the run as finished.

        Args:
            requests: all of them, in order.
            texts: decoded text of (number, controller).
            more: further JSON values for run.json.

        Raises:
            ConfigError: the disk is full or the folder cannot be written; every prompt stays kept.
        """
        with self._keeping():
            with RoundLogWriter(self.path / ROUNDS, {"config": self.config}) as writer:
                for request in requests:
                    for run in request.runs:
                        writer.write(round_columns(request.number, run, request.lane))
            with replace_file(self.path / OUTPUTS) as temporary, temporary.open("w", encoding="utf-8") as file:
                for request in requests:
                    for run in request.runs:
                        if not run.warmup:
                            text = texts.get((request.number, run.controller), "")
                            file.write(json.dumps(_output_line(request, run, text), ensure_ascii=False) + "\n")
            self._write(self.path / RUN, {**read_run(self.path), **more, "finished": True})
        self.finished = True

    @contextmanager
    def _keeping(self) -> Iterator[None]:
        """Say what a failed write did not cost."""
        try:
            yield
        except (OSError, ConfigError) as error:
            raise ConfigError(
                f"{error}. {len(self.done())} prompts are kept in {self.path}; make room and repeat the command, which "
                "continues after them"
            ) from error

    def _file(self, number: int) -> Path:
        return self.path / REQUESTS / f"{number:05d}.json"

    def _write(self, file: Path, document: Any) -> None:
        with replace_file(file) as temporary:
            temporary.write_text(json.dumps(document, allow_nan=False, indent=1), encoding="utf-8")


def read_run(path: Path) -> dict[str, Any]:
    """`run.json` of a run folder.

    Raises:
        ConfigError: no such file, or not one of ours.
    """
    file = path / RUN
    try:
        document = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise ConfigError(f"{file}: cannot be read ({error}); it is not the folder of a run") from None
    known = isinstance(document, dict) and document.get("schema") == SCHEMA
    if not known or not isinstance(document.get("config"), dict):
        raise ConfigError(f"{file}: not the description of a run of this version ({SCHEMA})")
    return document


def round_columns(number: int, run: Run, lane: int = 0) -> dict[str, Any]:
    """Round-log columns of one decode."""
    rounds = run.decoded.rounds
    columns: dict[str, Any] = {
        name: [getattr(row, name) for row in rounds]
        for name in ROUND_LOG_SCHEMA.names
        if name not in ("run_id", "lane", "request", "warmup")
    }
    return {"run_id": run.label, "lane": lane, "request": number, "warmup": run.warmup, **columns}


def _output_line(request: Request, run: Run, text: str) -> dict[str, Any]:
    decoded = run.decoded
    return {
        "request": request.number,
        "id": request.id,
        "controller": run.controller,
        "verification": decoded.verification,
        "prompt_len": decoded.prompt_len,
        "tokens": decoded.output,
        "text": text,
        "reason": decoded.reason,
        "rounds": len(decoded.rounds),
        "prefill_s": decoded.prefill_s,
        "decode_s": decoded.decode_s,
        "controller_s": decoded.controller_s,
        **decoded.built._asdict(),
    }


def _to_json(request: Request) -> dict[str, Any]:
    return {
        "number": request.number,
        "id": request.id,
        "lane": request.lane,
        "runs": [
            {
                "controller": run.controller,
                "warmup": run.warmup,
                "prompt_len": run.decoded.prompt_len,
                "output": run.decoded.output,
                "reason": run.decoded.reason,
                "prefill_s": run.decoded.prefill_s,
                "early_build_s": run.decoded.early_build_s,
                "built": run.decoded.built._asdict(),
                "mismatches": run.decoded.mismatches,
                "rounds": {name: [getattr(row, name) for row in run.decoded.rounds] for name in _COLUMNS + _SINCE},
                "q": [row.q.tolist() for row in run.decoded.rounds],
                "records": [_record_to_json(row.record) for row in run.decoded.rounds],
            }
            for run in request.runs
        ],
    }


def _record_to_json(record: PassRecord | None) -> dict[str, list[float]] | None:
    return None if record is None else {key: values.tolist() for key, values in vars(record).items()}


def _record_from_json(document: dict[str, list[float]] | None) -> PassRecord | None:
    if document is None:
        return None
    return PassRecord(
        conf=np.array(document["conf"], np.float32),
        count=np.array(document["count"], np.int16),
        filled=np.array(document["filled"], np.int16),
    )


def _from_json(document: dict[str, Any]) -> Request:
    return Request(
        number=document["number"],
        id=document["id"],
        lane=document.get("lane", 0),
        runs=tuple(_run_from_json(run) for run in document["runs"]),
    )


def _run_from_json(run: dict[str, Any]) -> Run:
    columns = {name: run["rounds"][name] for name in (*_COLUMNS, *(name for name in _SINCE if name in run["rounds"]))}
    rows = [
        Round(q=np.array(q, np.float32), record=_record_from_json(record), **dict(zip(columns, values, strict=True)))
        for q, record, *values in zip(run["q"], run["records"], *columns.values(), strict=True)
    ]
    decoded = Decoded(
        prompt_len=run["prompt_len"],
        output=run["output"],
        reason=run["reason"],
        rounds=rows,
        prefill_s=run["prefill_s"],
        built=Built(**run.get("built", {})),
        early_build_s=run.get("early_build_s", 0.0),
        mismatches=run.get("mismatches"),
    )
    return Run(controller=run["controller"], decoded=decoded, warmup=run["warmup"])
