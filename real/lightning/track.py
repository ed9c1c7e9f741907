"""Tracking a comparison in Weights & Biases: a Lightning callback around `real.tracking`. Process 0 only.

Owns when something is logged. By default that is after the last prompt, since a service beside the decoding would take
part in the times that are measured.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import click
from lightning.pytorch import Callback, LightningModule, Trainer

from analysis import keys
from real.folder import OUTPUTS, ROUNDS, RUN, Request, RunFolder, read_run
from real.lightning.module import DecodeModule
from real.lightning.record import CONFIG, LATENCY, recorder_of, run_digest
from real.tracking import Tracker, Tracking
from specsim.errors import ConfigError


class WandbTracker(Callback):
    """Tracks what the recorder has kept.

    Args:
        mode: online, offline or disabled; default: what WANDB_MODE says, else offline.
        project, entity, tags: of the runs.
        live: log after every prompt instead of at the end. The curves can be watched, and the service that sends them
            runs beside the decoding.
        traces: further files to keep as artifacts, e.g. the traces recorded for a prediction.

    Raises:
        ConfigError: in `setup`, for a file of `traces` that is missing, or without a recorder.
    """

    def __init__(
        self,
        mode: str | None = None,
        project: str = keys.PROJECT,
        entity: str | None = None,
        tags: list[str] = [],  # noqa: B006 - shown as the default
        live: bool = False,
        traces: list[str] = [],  # noqa: B006
    ) -> None:
        self.tracking = Tracking(mode=mode, project=project, entity=entity, tags=tuple(tags))
        self.live, self.traces = live, [Path(trace) for trace in traces]
        self._tracker: Tracker | None = None
        self._added: set[int] = set()
        self._due = False

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        callbacks: list[Callback] = trainer.callbacks  # pyright: ignore[reportAttributeAccessIssue]
        recorder = recorder_of(trainer)
        if recorder is None or callbacks.index(recorder) > callbacks.index(self):
            raise ConfigError("tracking needs a recorder; list real.lightning.record.Recorder before it")
        for trace in self.traces:
            if not trace.is_file():
                raise ConfigError(f"track.traces: {trace} is not a file; name traces that exist")

    def on_test_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        folder = _folder(trainer)
        self._tracker, self._added = None, set()
        # A run that was finished before is not tracked a second time.
        self._due = trainer.is_global_zero and not folder.finished
        if self.live and self._due:
            self._add(pl_module, folder, folder.load())

    def on_test_batch_end(
        self,
        trainer: Trainer,
        pl_module: LightningModule,
        outputs: Any,
        batch: Any,
        batch_idx: int,
        dataloader_idx: int = 0,
    ) -> None:
        if self._tracker is not None:
            self._add(pl_module, _folder(trainer), outputs)

    def on_test_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        assert isinstance(pl_module, DecodeModule)
        folder = _folder(trainer)
        if not self._due or not folder.finished:
            return
        # Everything, or what other processes decoded.
        self._add(pl_module, folder, folder.load())
        assert self._tracker is not None
        names = [name for name in (RUN, ROUNDS, OUTPUTS, CONFIG) if (folder.path / name).is_file()]
        files = {"rounds": [folder.path / name for name in names], "latency": [folder.path / LATENCY]}
        if self.traces:
            files["trace"] = self.traces
        self._tracker.finish(pl_module.results, pl_module.latency, files)

    # Prediction is tracked like testing.
    on_predict_start = on_test_start
    on_predict_batch_end = on_test_batch_end
    on_predict_end = on_test_end

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        if self._tracker is not None:
            self._tracker.abort()

    def _add(self, pl_module: LightningModule, folder: RunFolder, requests: Iterable[Request]) -> None:
        assert isinstance(pl_module, DecodeModule)
        if self._tracker is None:
            effective, found = pl_module.description(), read_run(folder.path)
            origin = {"effective": effective, keys.PROVENANCE: found["provenance"], keys.KIND: "real"}
            self._tracker = Tracker(
                self.tracking,
                folder=folder.path,
                group=re.sub(r"[^\w.-]+", "-", f"{folder.path.name}-{run_digest(folder.config)}"),
                controllers=pl_module.controllers,
                config={**folder.config, **origin},
                warn=lambda text: click.echo(text, err=True),
            )
        for request in requests:
            if request.number not in self._added:
                self._tracker.add(request)
                self._added.add(request.number)


def _folder(trainer: Trainer) -> RunFolder:
    recorder = recorder_of(trainer)
    assert recorder is not None
    assert recorder.folder is not None
    return recorder.folder
