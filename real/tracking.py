"""Weights & Biases: one group of runs per comparison. The only file of this package that imports wandb.

Owns what is logged when, and that a failure of tracking never costs a result. Its names are those of `analysis.keys`,
which logging a run folder later (`python -m analysis.wandb`) has too; runs are opened by `analysis.tracking`, offline
unless the user asks for more. Everything logged is in the run folder as well.

One run per controller (job type `controller`) with a row per round, and one for the whole (job type `comparison`) with
the tables and files, all in one group. The x-axis of a controller's curves is its own count of rounds, `round`, which
goes on over prompts: wandb's step, which counts calls, means nothing here. Under a sweep's agent only the run of the
whole is opened, as the agent's.

A training is one run (job type `training`) with its curves over `step`. One that was interrupted and goes on is another
run of the same group, which begins with the points kept so far.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import wandb

from analysis import keys
from analysis.tracking import (
    AGENT,
    DISABLED,
    MODES,
    Tracking,
    check_folder,
    define_axes,
    log_files,
    log_table,
    open_run,
    wandb_folder,
)
from real.folder import Request, Run
from real.interleave import PLAIN
from real.reference import LIVE, labelled
from real.results import FIELDS, Result, Sums, best_of, sums_of
from specsim.latency import LatencyModel
from specsim.metrics import bootstrap_ratios

__all__ = ("MODES", "Curves", "Tracker", "Tracking", "wandb_folder")
STEP = "step"  # the x-axis of a training


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
        self._sums: list[dict[str, Sums]] = []  # per prompt, by controller
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
        check_folder(self._folder)
        # A sweep's agent, or the user, may have chosen this run's id; all others need ids of their own.
        self._whole = self._open(keys.COMPARISON, keys.COMPARISON, {}, id=os.environ.get("WANDB_RUN_ID"))
        if AGENT in os.environ:
            return
        for spelling in controllers:
            verification = LIVE if spelling == PLAIN else self._config.get("verification", LIVE)
            name, facts = labelled(spelling, verification), {keys.LABEL: spelling, keys.VERIFICATION: verification}
            run = self._open(keys.CONTROLLER, name, facts)
            define_axes(run)
            self._runs[spelling], self._counts[spelling] = run, _Count()

    def _add(self, request: Request) -> None:
        spellings = [run.controller for run in request.runs if not run.warmup]
        self._sums.append(dict(zip(spellings, sums_of(request, spellings), strict=True)))
        for run in request.runs:
            if not run.warmup and run.controller in self._runs:
                for row in self._counts[run.controller].rows(request.number, run):
                    self._runs[run.controller].log(row)

    def _finish(
        self, results: Sequence[Result], latency: LatencyModel | None, files: Mapping[str, Sequence[Path]]
    ) -> None:
        assert self._whole is not None
        check_folder(self._folder)
        self._log_results(self._whole, results)
        if latency is not None:
            self._log_latency(self._whole, latency)
        for kind, paths in files.items():
            log_files(self._whole, f"{kind}-{self._group}", kind, paths)

    def _open(self, job_type: str, name: str, config: Mapping[str, Any], *, id: str | None = None) -> wandb.Run:
        return open_run(
            self._tracking,
            self._folder,
            group=self._group,
            job_type=job_type,
            name=name,
            config={**self._config, **config},
            id=id,
        )

    def _log_results(self, whole: wandb.Run, results: Sequence[Result]) -> None:
        rows = [{**result.to_json(), **self._interval(result.controller)} for result in results]
        if not rows:
            return
        log_table(whole, keys.CONTROLLERS, keys.CONTROLLER_COLUMNS, [keys.row_of(row) for row in rows])
        for result, row in zip(results, rows, strict=True):
            values = keys.summary_of(row)
            whole.summary.update(keys.of_whole(result.label, values))
            if result.controller in self._runs:
                self._runs[result.controller].summary.update(values)
        best = best_of(results)
        if best is not None:
            whole.summary.update({keys.BEST_CONTROLLER: best.label, keys.BEST_SPEEDUP: best.speedup})

    def _log_latency(self, whole: wandb.Run, latency: LatencyModel) -> None:
        lengths = range(1, 1 + int(self._config.get("max_draft_len", 24)) + 1)
        rows = [[s, float(latency.verify_s(s))] for s in lengths]
        log_table(whole, keys.LATENCY, keys.LATENCY_COLUMNS, rows)
        whole.config.update({keys.LATENCY_MODEL: latency.to_dict()})

    def _interval(self, controller: str) -> dict[str, float | None]:
        """95 % of the speedup, over prompts; None where plain decoding is missing or prompts are fewer than two."""
        plain_s, decode_s = (
            np.array([sums[controller][FIELDS.index(name)] for sums in self._sums]) for name in ("plain_s", "decode_s")
        )
        known = len(self._sums) > 1 and bool((plain_s > 0).all())
        low, high = (
            bootstrap_ratios(plain_s, [decode_s], int(self._config.get("seed", 0)))[0] if known else (None, None)
        )
        return {"speedup_low": low, "speedup_high": high}

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
        check_folder(self._folder)
        self._run = open_run(
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
        check_folder(self._folder)
        self._opened.summary.update(dict(summary))
        log_files(self._opened, f"model-{self._name}", "model", sorted(result.iterdir()))

    def _close(self, exit_code: int) -> None:
        self._try.on = False
        if self._run is not None:
            with suppress(Exception):  # whatever failed has been said
                self._run.finish(exit_code=exit_code)
        self._run = None


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
                keys.ROUND: self.rounds,
                keys.REQUEST: number,
                **{name: getattr(row, name) for name in keys.COLUMNS},
                keys.TAU: self.tokens / self.rounds,
                keys.TOKENS_PER_S: self.tokens / self.seconds,
            }
