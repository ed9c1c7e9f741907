"""Keeping a training run: checkpoints it goes on from, its curves, and what came out of it.

Owns the run folder: `settings.json` (what decides the numbers), `last.ckpt`, `curves.jsonl`, and where the result goes.
Every file is written in one step, so that an interrupted run leaves none half written.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

import click
import torch
from lightning.pytorch import Callback, LightningModule, Trainer

from real.places import reason_of
from real.tracking import MODES, Curves, Tracking
from real.training.module import TrainModule
from real.training.ranges import COUNT, only
from real.training.settings_file import SETTINGS, check_same, write_settings
from specsim.controllers.base import Param
from specsim.errors import ConfigError
from specsim.paths import replace_file

CHECKPOINT, CURVES, RESULT = "last.ckpt", "curves.jsonl", "result"
ELSEWHERE = "choose another keep.out, or add --keep.force true to throw it away"
CARD, RESULT_FILES = "README.md", (".md", ".json", ".safetensors")


class Keeper(Callback):
    """Saves every so many steps; the same settings in the same folder go on from there, bit for bit.

    Args:
        out: the run folder.
        result: folder of what was trained; default `result` in the run folder.
        every: steps between checkpoints.
        log_every: steps between the points of the curves.
        force: throw away what the run folder holds.
        wandb: mode of tracking: online, offline or disabled; default: what WANDB_MODE says, else offline.
        project: of tracking.

    Attributes:
        settings: JSON values that decide the numbers; the command line sets them.
        command: for the card.
        ALLOWED: values of the arguments.
    """

    ALLOWED: ClassVar[Mapping[str, Param]] = {"every": COUNT, "log_every": COUNT, "wandb": only(*MODES)}

    def __init__(
        self,
        out: str,
        result: str | None = None,
        every: int = 100,
        log_every: int = 10,
        force: bool = False,
        wandb: str | None = None,
        project: str = "specsim",
    ) -> None:
        self.tracking = Tracking(mode=wandb, project=project)
        self._curves: Curves | None = None
        self.out, self.result = Path(out), Path(result) if result else Path(out) / RESULT
        self.every, self.log_every, self.force = every, log_every, force
        self.settings: dict[str, Any] = {}
        self.command = ""
        self.rows: list[dict[str, float]] = []
        self._data: str | None = None

    def open(self) -> None:
        """Check the folders; nothing is written or removed yet.

        Raises:
            ConfigError: the run folder holds a run with other settings, or cannot be read; or the result would replace
                something that no training left.
        """
        self._check_result()
        if self.force or check_same(self.out, self.settings, holds="a training", advice=ELSEWHERE):
            return
        if (self.out / CHECKPOINT).exists():
            raise ConfigError(f"{self.out} holds a {CHECKPOINT} without its {SETTINGS}; {ELSEWHERE}")

    def checkpoint(self, module: LightningModule) -> Path | None:
        """The checkpoint to go on from, if there is one.

        Raises:
            ConfigError: it cannot be read, or is not this module's.
        """
        path = self.out / CHECKPOINT
        if self.force or not path.exists():
            return None
        try:
            found = torch.load(path, map_location="cpu", weights_only=True)
            weights, rows = found["state_dict"], found["callbacks"][self.state_key]["rows"]
            fits = {name: part.shape for name, part in weights.items()}
            started = bool(found["optimizer_states"]) and found["global_step"] > 0 and isinstance(rows, list)
        except Exception as error:
            raise ConfigError(f"{path}: is no checkpoint of a training ({reason_of(error)}); {ELSEWHERE}") from error
        if not started or fits != {name: part.shape for name, part in module.state_dict().items()}:
            raise ConfigError(f"{path}: is a checkpoint of another training; {ELSEWHERE}")
        return path

    def _check_result(self) -> None:
        """Only what an earlier training left may be replaced: nothing else is ever removed."""
        here, taken = self.result.resolve(), (Path.cwd().resolve(), self.out.resolve())
        if any(path == here or here in path.parents for path in taken):
            raise ConfigError(
                f"keep.result {self.result}: it would replace {taken[0]} or keep.out; choose a new folder"
            )
        if not self.result.exists():
            return
        known = self.result.is_dir() and (self.result / CARD).is_file() and (self.result / "config.json").is_file()
        strange = [file.name for file in self.result.iterdir() if file.suffix not in RESULT_FILES] if known else []
        if not known or strange:
            what = f"holds {strange[0]!r}" if strange else "is not what a training left"
            raise ConfigError(f"keep.result {self.result} {what} and would be replaced; choose a new folder")

    def state_dict(self) -> dict[str, Any]:
        return {"rows": self.rows, "data": self._data}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.rows, self._data = state_dict["rows"], state_dict["data"]

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._check_data(pl_module)
        if self.force:  # not before everything else was found to be in order
            for name in (CHECKPOINT, CURVES, SETTINGS):
                (self.out / name).unlink(missing_ok=True)
        try:
            self.out.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ConfigError(f"{self.out}: cannot be made ({error}); choose another keep.out") from error
        self._curves = Curves(
            self.tracking,
            folder=self.out,
            name=self.out.name,
            config=self.settings,
            warn=lambda text: click.echo(text, err=True),
        )
        for row in self.rows:
            self._curves.add(row)

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        if self._curves is not None:
            self._curves.abort()

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        loss = outputs["loss"] if isinstance(outputs, Mapping) else outputs
        if not torch.isfinite(loss):
            raise self._diverged(trainer, f"the loss is {float(loss)}")
        if trainer.global_step % self.log_every == 0 or trainer.global_step == trainer.max_steps:
            self._note(trainer, "train/")
        # Lightning going on from a checkpoint of before a check would leave that check out.
        if not (trainer.enable_validation and trainer.global_step % float(trainer.val_check_batch or 1) == 0):
            self._save_if_due(trainer)

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._note(trainer, "val/")
        self._save_if_due(trainer)

    def on_fit_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        assert isinstance(pl_module, TrainModule)
        self._check_data(pl_module)  # a finished run does not start again
        if trainer.global_step < trainer.max_steps:  # max_time, max_epochs, a limit of 0 batches
            raise ConfigError(
                f"stopped after {trainer.global_step} of trainer.max_steps={trainer.max_steps} steps: no result is "
                "written; leave the Trainer's other limits out"
            )
        self._save(trainer)
        self._publish(pl_module)
        if self._curves is not None:
            self._curves.finish(self.checked(), self.result)

    def checked(self) -> dict[str, float]:
        """The last check's metrics and its step."""
        checks = [row for row in self.rows if any(name.startswith("val/") for name in row)]
        return checks[-1] if checks else {}

    def _check_data(self, module: LightningModule) -> None:
        assert isinstance(module, TrainModule)
        data = module.about()["data"]
        if self._data not in (None, data):
            raise ConfigError(
                f"{self.out} holds a training on other data ({self._data}; now: {data}), which cannot go on with "
                f"these; {ELSEWHERE}"
            )
        self._data = data

    def _note(self, trainer: Trainer, prefix: str) -> None:
        metrics = {name: float(value) for name, value in trainer.callback_metrics.items() if name.startswith(prefix)}
        self.rows.append({"step": trainer.global_step, **metrics})
        if self._curves is not None:
            self._curves.add(self.rows[-1])
        text = ", ".join(f"{name} {value:.4g}" for name, value in metrics.items())
        click.echo(f"step {trainer.global_step} of {trainer.max_steps}: {text}", err=True)

    def _save_if_due(self, trainer: Trainer) -> None:
        if trainer.global_step % self.every == 0:
            self._save(trainer)

    def _diverged(self, trainer: Trainer, what: str) -> ConfigError:
        kept = "the last checkpoint is kept" if (self.out / CHECKPOINT).exists() else "nothing was kept"
        return ConfigError(
            f"step {trainer.global_step}: {what}; {kept}, no result is written. Lower model.muon_lr and model.adam_lr, "
            "with another keep.out or --keep.force true"
        )

    def _save(self, trainer: Trainer) -> None:
        if not all(bool(torch.isfinite(part).all()) for part in trainer.lightning_module.parameters()):
            raise self._diverged(trainer, "weights are no longer finite")
        # Not before: a run that cannot even begin should not claim the folder for its settings.
        write_settings(self.out, self.settings)
        with replace_file(self.out / CHECKPOINT) as temporary:
            trainer.save_checkpoint(temporary)
        with replace_file(self.out / CURVES) as temporary:
            temporary.write_text("".join(json.dumps(row) + "\n" for row in self.rows), encoding="utf-8")

    def _publish(self, module: TrainModule) -> None:
        """The result's folder appears whole or not at all."""
        try:
            self.result.parent.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryDirectory(prefix=".result-", dir=self.result.parent) as scratch:
                made = Path(scratch) / "made"
                made.mkdir()
                module.export(made)
                (made / CARD).write_text(self._card(module), encoding="utf-8")
                for file in made.iterdir():
                    file.chmod(0o644)  # safetensors writes for the user alone
                made.chmod(0o755)
                if self.result.exists():  # checked by `open`; gone only once the new one is in its place
                    self.result.replace(Path(scratch) / "old")
                made.replace(self.result)
        except OSError as error:
            raise ConfigError(f"{self.result}: cannot be written ({error}); choose another keep.result") from error

    def _card(self, module: TrainModule) -> str:
        about = module.about()
        figures = ", ".join(f"{name} {value:.4g}" for name, value in self.checked().items())
        lines = [
            f"# {about.pop('title')}",
            "",
            *(f"* {name}: {value}" for name, value in about.items()),
            f"* steps: {module.trainer.global_step}",
            f"* command: `{self.command}`",
            f"* validation: {figures}",
        ]
        return "\n".join(lines) + "\n"
