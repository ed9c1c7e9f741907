"""Weights & Biases: one group of runs per comparison. The only file that imports wandb.

Owns what is logged and under which names, and that a failure of tracking never costs a result. Runs are offline unless
the user asks for more (`mode`, or the variable WANDB_MODE); everything logged is in the run folder as well.

One run per controller (job type `controller`) with a row per round, and one for the whole (job type `comparison`) with
the tables and files, all in one group. The x-axis of a controller's curves is its own count of rounds, `round`, which
goes on over prompts: wandb's step, which counts calls, means nothing here. Under a sweep's agent only the run of the
whole is opened, as the agent's.

A training is one run (job type `training`) with its curves over `step`. One that was interrupted and goes on is another
run of the same group, which begins with the points kept so far.
"""

from __future__ import annotations

import os
import secrets
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import wandb

from real.folder import Request, Run
from real.interleave import PLAIN
from real.reference import LIVE, labelled
from real.results import Result, best_of
from specsim.errors import ConfigError
from specsim.latency import LatencyModel
from specsim.paths import temporary_beside

ROUND, STEP = "round", "step"
DISABLED = "disabled"
SWEEP = "WANDB_SWEEP_ID"
ROOM_BYTES = 16 << 20
ONLINE_TIMEOUT_S = 20.0  # wandb waits 90 s for a server that does not answer
MODES = ("online", "offline", "shared", DISABLED)
COLUMNS = (
    "drafted_len",
    "submitted_len",
    "accepted_len",
    "emitted_len",
    "draft_s",
    "verify_s",
    "overhead_s",
    "round_s",
    "controller_s",
    "build_s",
)


@dataclass(frozen=True, kw_only=True)
class Tracking:
    """How to track.

    Args:
        mode: online, offline or disabled; None: what WANDB_MODE says, else offline, but online under a sweep's agent.
        project, entity, tags: as in `wandb.init`.

    Raises:
        ConfigError: an unknown mode.
    """

    mode: str | None = None
    project: str = "specsim"
    entity: str | None = None
    tags: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.mode is not None and self.mode not in MODES:
            raise ConfigError(f"tracking mode {self.mode!r}: allowed: {', '.join(MODES)}")

    @property
    def effective_mode(self) -> str:
        # A sweep's agent waits for what its runs report; whoever starts one wants them online.
        return self.mode or os.environ.get("WANDB_MODE") or ("online" if SWEEP in os.environ else "offline")


class _Guard:
    """Does what may fail, until it fails: then says so once, and does nothing more.

    Args:
        tracking: nothing is done when it is disabled.
        warn: receives the message of a failure.
    """

    def __init__(self, tracking: Tracking, warn: Callable[[str], None]) -> None:
        self.on, self._warn = tracking.effective_mode != DISABLED, warn

    def __call__(self, doing: str, call: Callable[[], None]) -> None:
        if not self.on:
            return
        try:
            call()
        except Exception as error:  # noqa: BLE001 - whatever wandb raises, the results matter more
            self.on = False
            reason = " ".join(str(error).split())
            self._warn(f"W&B: {doing} failed ({reason}); the run goes on without it, its results are kept locally")


def _check_folder(folder: Path) -> None:
    """Raise for a folder that wandb could not write: it would take a temporary one, or go on without a word."""
    place = folder / "wandb"
    place.mkdir(parents=True, exist_ok=True)
    temporary_beside(place / "writable").unlink()
    if shutil.disk_usage(place).free < ROOM_BYTES:
        raise OSError(f"{place}: less than {ROOM_BYTES >> 20} MiB are free")


def _open_run(
    tracking: Tracking,
    folder: Path,
    *,
    group: str,
    job_type: str,
    name: str,
    config: Mapping[str, Any],
    id: str | None = None,
) -> wandb.Run:
    """A new run whose files lie in `folder/wandb`."""
    return wandb.init(
        id=id or secrets.token_hex(4),
        project=tracking.project,
        entity=tracking.entity,
        tags=tracking.tags,
        mode=tracking.effective_mode,  # pyright: ignore[reportArgumentType] - wandb checks it
        dir=str(folder),
        group=group,
        job_type=job_type,
        name=name,
        config=dict(config),
        reinit="create_new",
        # Provenance is in the config; measuring beside a comparison of times would disturb it.
        settings=wandb.Settings(
            console="off",
            silent=True,
            disable_git=True,
            save_code=False,
            x_disable_stats=True,
            init_timeout=ONLINE_TIMEOUT_S,
        ),
    )


class Tracker:
    """The tracked runs of one comparison. Every failure is said once, and nothing is tracked from then on.

    Args:
        tracking: mode, project and so on.
        folder: where wandb's files go, in `folder/wandb`, unless WANDB_DIR says otherwise.
        group: names the comparison.
        controllers: spellings, a run each.
        config: of every run; JSON values.
        warn: receives the message of a failure.
    """

    def __init__(
        self,
        tracking: Tracking,
        *,
        folder: Path,
        group: str,
        controllers: Sequence[str],
        config: Mapping[str, Any],
        warn: Callable[[str], None],
    ) -> None:
        self._tracking, self._folder = tracking, wandb_folder(folder)
        self._group, self._config = group, config
        self._whole: wandb.Run | None = None
        self._runs: dict[str, wandb.Run] = {}
        self._counts: dict[str, _Count] = {}
        self._try = _Guard(tracking, warn)
        self._try("starting", lambda: self._start(controllers))

    def add(self, request: Request) -> None:
        """Log the rounds of one prompt's runs; those of warm-ups are left out."""
        self._try("logging", lambda: self._add(request))

    def finish(
        self, results: Sequence[Result], latency: LatencyModel | None, files: Mapping[str, Sequence[Path]]
    ) -> None:
        """Log what the comparison came to and close every run.

        Args:
            results: per controller.
            latency: the model that cost-aware controllers decided by.
            files: artifacts, by type.
        """
        self._try("finishing", lambda: self._finish(results, latency, files))
        self._close(0 if self._try.on else 1)

    def abort(self) -> None:
        """Close every run as failed."""
        self._close(1)

    def _start(self, controllers: Sequence[str]) -> None:
        _check_folder(self._folder)
        # A sweep's agent, or the user, may have chosen this run's id; all others need ids of their own.
        self._whole = self._open("comparison", "comparison", {}, id=os.environ.get("WANDB_RUN_ID"))
        if SWEEP in os.environ:
            return
        for spelling in controllers:
            verification = LIVE if spelling == PLAIN else self._config.get("verification", LIVE)
            name, facts = labelled(spelling, verification), {"controller": spelling, "verification": verification}
            run = self._open("controller", name, facts)
            run.define_metric(ROUND)
            run.define_metric("*", step_metric=ROUND)
            self._runs[spelling], self._counts[spelling] = run, _Count()

    def _add(self, request: Request) -> None:
        for run in request.runs:
            if not run.warmup and run.controller in self._runs:
                for row in self._counts[run.controller].rows(request.number, run):
                    self._runs[run.controller].log(row)

    def _finish(
        self, results: Sequence[Result], latency: LatencyModel | None, files: Mapping[str, Sequence[Path]]
    ) -> None:
        assert self._whole is not None
        _check_folder(self._folder)
        self._log_results(self._whole, results)
        if latency is not None:
            self._log_latency(self._whole, latency)
        for kind, paths in files.items():
            artifact = wandb.Artifact(f"{kind}-{self._group}", type=kind)
            for path in paths:
                artifact.add_file(str(path))
            self._whole.log_artifact(artifact)

    def _open(self, job_type: str, name: str, config: Mapping[str, Any], *, id: str | None = None) -> wandb.Run:
        return _open_run(
            self._tracking,
            self._folder,
            group=self._group,
            job_type=job_type,
            name=name,
            config={**self._config, **config},
            id=id,
        )

    def _log_results(self, whole: wandb.Run, results: Sequence[Result]) -> None:
        rows = [result.to_json() for result in results]
        if not rows:
            return
        whole.log({"controllers": wandb.Table(columns=list(rows[0]), data=[list(row.values()) for row in rows])})
        for result, row in zip(results, rows, strict=True):
            values = {key: value for key, value in row.items() if key != "controller" and value is not None}
            whole.summary.update({f"{result.label}/{key}": value for key, value in values.items()})
            if result.controller in self._runs:
                self._runs[result.controller].summary.update(values)
        best = best_of(results)
        if best is not None:
            # What sweeps maximise.
            whole.summary.update({"best_controller": best.label, "best_speedup": best.speedup})

    def _log_latency(self, whole: wandb.Run, latency: LatencyModel) -> None:
        lengths = range(1, 1 + int(self._config.get("max_draft_len", 24)) + 1)
        rows = [[s, float(latency.verify_s(s))] for s in lengths]
        whole.log({"latency": wandb.Table(columns=["token positions", "verify_s"], data=rows)})
        whole.config.update({"latency_model": latency.to_dict()})

    def _close(self, exit_code: int) -> None:
        self._try.on = False
        for run in (*self._runs.values(), self._whole):
            if run is not None:
                with suppress(Exception):  # whatever failed has been said
                    run.finish(exit_code=exit_code)
        self._whole, self._runs = None, {}


class Curves:
    """The tracked run of one training. Every failure is said once, and nothing is tracked from then on.

    Args:
        tracking: mode, project and so on.
        folder: where wandb's files go, in `folder/wandb`, unless WANDB_DIR says otherwise.
        name: of the run and its group.
        config: JSON values.
        warn: receives the message of a failure.
    """

    def __init__(
        self,
        tracking: Tracking,
        *,
        folder: Path,
        name: str,
        config: Mapping[str, Any],
        warn: Callable[[str], None],
    ) -> None:
        self._tracking, self._folder, self._name, self._config = tracking, wandb_folder(folder), name, config
        self._run: wandb.Run | None = None
        self._try = _Guard(tracking, warn)
        self._try("starting", self._start)

    def add(self, row: Mapping[str, float]) -> None:
        """Log one point: `step` and metrics."""
        self._try("logging", lambda: self._opened.log(dict(row)))

    def finish(self, summary: Mapping[str, float], result: Path) -> None:
        """Log what the training came to, and its result, a folder, and close the run."""
        self._try("finishing", lambda: self._finish(summary, result))
        self._close(0 if self._try.on else 1)

    def abort(self) -> None:
        """Close the run as failed."""
        self._close(1)

    @property
    def _opened(self) -> wandb.Run:
        assert self._run is not None
        return self._run

    def _start(self) -> None:
        _check_folder(self._folder)
        self._run = _open_run(
            self._tracking,
            self._folder,
            group=self._name,
            job_type="training",
            name=self._name,
            config=self._config,
            id=os.environ.get("WANDB_RUN_ID"),
        )
        self._run.define_metric(STEP)
        self._run.define_metric("*", step_metric=STEP)

    def _finish(self, summary: Mapping[str, float], result: Path) -> None:
        _check_folder(self._folder)
        self._opened.summary.update(dict(summary))
        artifact = wandb.Artifact(f"model-{self._name}", type="model")
        for path in sorted(result.iterdir()):  # not add_dir: it writes to the terminal
            artifact.add_file(str(path))
        self._opened.log_artifact(artifact)

    def _close(self, exit_code: int) -> None:
        self._try.on = False
        if self._run is not None:
            with suppress(Exception):  # whatever failed has been said
                self._run.finish(exit_code=exit_code)
        self._run = None


def wandb_folder(folder: Path) -> Path:
    """Where wandb's files go: `folder`, unless WANDB_DIR says otherwise."""
    return Path(os.environ.get("WANDB_DIR") or folder)


class _Count:
    """A controller's rounds so far."""

    def __init__(self) -> None:
        self.rounds = self.tokens = 0
        self.seconds = 0.0

    def rows(self, number: int, run: Run) -> Iterator[dict[str, Any]]:
        self.seconds += run.decoded.early_build_s
        for row in run.decoded.rounds:
            self.rounds += 1
            self.tokens += row.emitted_len
            self.seconds += row.round_s
            yield {
                ROUND: self.rounds,
                "request": number,
                **{name: getattr(row, name) for name in COLUMNS},
                "tau": self.tokens / self.rounds,
                "tokens_per_s": self.tokens / self.seconds,
            }
