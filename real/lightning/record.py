"""The recorder: a Lightning callback that keeps every decoded prompt in a run folder, so that nothing is done twice.

Owns when what is written, by which process, and where a run folder lies. A prompt is kept as soon as it is decoded, by
the process that decoded it; process 0 writes the tables when all are there. A later run with the same settings leaves
out what is kept, after its controllers were told of it.
"""

from __future__ import annotations

import hashlib
import json
import re
from contextlib import suppress
from importlib import metadata
from pathlib import Path
from typing import Any

import click
from lightning.pytorch import Callback, LightningModule, Trainer

from real.arm_shape import arms_of_run, warnings_of
from real.folder import Request, RunFolder
from real.lightning.data import PromptData
from real.lightning.module import DecodeModule
from real.lightning.zero import from_zero
from real.results import warmup_rounds
from specsim.errors import ConfigError
from specsim.latency import load_latency, save_latency
from specsim.paths import replace_file

RUNS, CONFIG, LATENCY = "runs", "config.yaml", "latency.json"
PACKAGES = ("torch", "transformers", "tokenizers", "lightning", "numpy")


class Recorder(Callback):
    """Keeps a run in a folder (`real.folder`).

    Args:
        out: the folder; default: one in `runs/` named after the settings, so that other settings get another folder.
        force: throw away what the folder holds.

    Attributes:
        folder: the opened folder, once the Trainer has called `setup`.
        config_text: configuration file to lay beside the results; the command line sets it.

    Raises:
        ConfigError: in `setup`, when the folder holds a run with other settings or cannot be written; later, when the
            disk is full. Prompts kept so far stay.
    """

    def __init__(self, out: str | None = None, force: bool = False) -> None:
        self.out, self.force = out, force
        self.folder: RunFolder | None = None
        self.config_text: str | None = None
        self._kept: set[int] = set()
        self._made: list[Path] = []

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        module, data = _ours(trainer, pl_module)
        settings = settings_of(trainer, module, data)
        path = Path(self.out) if self.out else default_folder(settings)
        # One process makes or clears the folder, before the others look at it.
        from_zero(trainer, lambda: self._open(path, settings))
        if self.folder is None:
            self.folder = RunFolder(path, settings, reopen=True)
        data.kept = self._kept = without_gaps(self.folder.done(), trainer.world_size)
        if module.latency is None and (path / LATENCY).exists():
            module.latency = load_latency(path / LATENCY)  # measured when the run began

    def _open(self, path: Path, settings: dict[str, Any]) -> None:
        try:
            if not path.exists() or not any(path.iterdir()):
                self._made = [path, *(parent for parent in path.parents if not parent.exists())]
            path.parent.mkdir(parents=True, exist_ok=True)
            self.folder = RunFolder(path, settings, force=self.force, reopen=True)
        except OSError as error:
            raise ConfigError(f"{path}: cannot be made ({error.strerror}); choose another folder") from error
        except ConfigError as error:
            raise ConfigError(str(error).replace("--force", "--record.force true")) from error
        if self.force:
            (path / LATENCY).unlink(missing_ok=True)
        if self.config_text is not None:
            with replace_file(path / CONFIG) as temporary:
                temporary.write_text(self.config_text, encoding="utf-8")

    def kept_by(self, rank: int) -> list[Request]:
        """Prompts that a process decoded in earlier runs and need not decode again, in order."""
        assert self.folder is not None
        return [request for request in self.folder.load() if request.lane == rank and request.number in self._kept]

    def on_test_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        module, _ = _ours(trainer, pl_module)
        assert self.folder is not None
        assert module.latency is not None
        if trainer.is_global_zero:
            save_latency(self.folder.path / LATENCY, module.latency)
        for request in self.kept_by(trainer.global_rank):
            module.recall(request)

    def on_test_batch_end(
        self,
        trainer: Trainer,
        pl_module: LightningModule,
        outputs: Any,
        batch: Any,
        batch_idx: int,
        dataloader_idx: int = 0,
    ) -> None:
        assert self.folder is not None
        for request in outputs:
            self.folder.save(request)

    def on_test_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        trainer.strategy.barrier("every prompt is kept")
        module, data = _ours(trainer, pl_module)
        folder = self.folder
        assert folder is not None
        if not trainer.is_global_zero or folder.finished:
            return
        missing = len(data.prompts) - len(folder.done())
        if missing:
            click.echo(
                f"{folder.path}: {missing} of {len(data.prompts)} prompts are missing; tables not written", err=True
            )
            return
        self._finish(folder, module)

    # Prediction is recorded like testing.
    on_predict_start = on_test_start
    on_predict_batch_end = on_test_batch_end
    on_predict_end = on_test_end

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        if isinstance(exception, KeyboardInterrupt) and self.folder is not None and trainer.is_global_zero:
            kept = len(self.folder.done())
            click.echo(f"{self.folder.path}: {kept} prompts are kept; the same command continues after them", err=True)
        elif isinstance(exception, ConfigError) and self._made and trainer.is_global_zero:
            self._unmake()

    def _unmake(self) -> None:
        """Remove the folder of a run that was refused before anything was decoded or measured; the corrected command
        would find it holding a run with other settings."""
        if self.folder is None or self.folder.done() or (self.folder.path / LATENCY).exists():
            return
        with suppress(OSError):
            (self.folder.path / CONFIG).unlink(missing_ok=True)
            self.folder.remove()
            for parent in self._made[1:]:
                parent.rmdir()

    def _finish(self, folder: RunFolder, module: DecodeModule) -> None:
        assert module.session is not None
        decode = module.session.loaded.tokenizer.decode
        requests = list(folder.load())
        texts = {
            (request.number, run.controller): decode(run.decoded.output) for request in requests for run in request.runs
        }
        arms = arms_of_run(requests, module.session.drafter)
        for line in warnings_of(arms):
            click.echo(line, err=True)
        folder.finish(
            requests,
            texts=texts,
            **({} if arms is None else {"arms": arms}),
            results=[result.to_json() for result in module.results],
            warmup_rounds=warmup_rounds(requests),
            effective=module.description(),
            software={name: metadata.version(name) for name in PACKAGES},
        )


def without_gaps(done: set[int], processes: int) -> set[int]:
    """Kept prompts less those that follow one that is gone (deleted because it could not be read, say).

    Controllers may learn over prompts, so those after the gap are decoded again in the order they were decoded in.
    """
    kept: set[int] = set()
    for number in sorted(done):
        if number < processes or number - processes in kept:
            kept.add(number)
    return kept


def settings_of(trainer: Trainer, module: DecodeModule, data: PromptData) -> dict[str, Any]:
    """What decides the rounds of a run, as JSON values: a run continues only where all of it is the same."""
    return {
        **module.choices,
        "dataset": data.dataset,
        "requests": len(data.prompts),
        "prompt_seed": data.seed,
        "prompts_sha256": data.digest()[:16],
        "device": trainer.strategy.root_device.type,
        "processes": trainer.world_size,
    }


def default_folder(settings: dict[str, Any]) -> Path:
    """`runs/DATASET-TARGET-DIGEST` of a run's settings."""
    names = [re.sub(r"[^\w.-]+", "-", Path(settings[key]).stem) for key in ("dataset", "target")]
    return Path(RUNS) / "-".join([*names, run_digest(settings)])


def run_digest(settings: dict[str, Any]) -> str:
    """Eight letters and digits that stand for a run's settings."""
    return hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()[:8]


def recorder_of(trainer: Trainer) -> Recorder | None:
    """The Trainer's recorder, when it has one."""
    return next((callback for callback in trainer.callbacks if isinstance(callback, Recorder)), None)  # pyright: ignore[reportAttributeAccessIssue]


def _ours(trainer: Trainer, pl_module: LightningModule) -> tuple[DecodeModule, PromptData]:
    data = trainer.datamodule  # pyright: ignore[reportAttributeAccessIssue]
    if not isinstance(pl_module, DecodeModule) or not isinstance(data, PromptData):
        raise ConfigError("the recorder records a DecodeModule over PromptData; pass both to the Trainer")
    return pl_module, data
