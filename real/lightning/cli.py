"""The Lightning command line of comparisons: one YAML file or flags for module, prompts, recorder, tracker and Trainer.

Owns which classes the command offers and the Trainer's defaults. Extending it is adding a subcommand here.
"""

from __future__ import annotations

import logging
from typing import Any

from lightning.pytorch import Trainer
from lightning.pytorch.cli import LightningArgumentParser, LightningCLI
from rich.console import Console

from real.lightning.data import PromptData
from real.lightning.module import DecodeModule
from real.lightning.progress import ProgressLines
from real.lightning.record import Recorder
from real.lightning.track import WandbTracker
from real.parser import TRAINER_DEFAULTS, OneLineParser, trainer_refusals
from real.results import results_table, times_table

_UNUSED = {"model", "dataloaders", "datamodule", "ckpt_path", "weights_only", "verbose", "return_predictions"}


class RunCLI(LightningCLI):
    """`test` and `predict` of a DecodeModule over PromptData, recorded and tracked."""

    def __init__(self) -> None:
        logging.getLogger("lightning.pytorch").setLevel(logging.WARNING)  # devices found, tips
        super().__init__(
            DecodeModule,
            PromptData,
            save_config_callback=None,  # the recorder writes it, once it knows that the folder is free
            trainer_defaults={**TRAINER_DEFAULTS, "callbacks": ProgressLines()},
            seed_everything_default=False,  # all randomness is keyed
            parser_class=OneLineParser,
            auto_configure_optimizers=False,
            load_from_checkpoint_support=False,
            parser_kwargs={
                "prog": "python -m real.run",
                "description": "Compare controllers on prompts with a real model.",
                "test": {"description": "Decode with every controller, record, and log the metrics."},
                "predict": {"description": "Decode with every controller and record."},
            },
        )

    @staticmethod
    def subcommands() -> dict[str, set[str]]:
        return {"test": _UNUSED, "predict": _UNUSED}

    def add_arguments_to_parser(self, parser: LightningArgumentParser) -> None:
        parser.add_lightning_class_args(Recorder, "record")
        parser.add_lightning_class_args(WandbTracker, "track")

    def instantiate_trainer(self, **kwargs: Any) -> Trainer:
        with trainer_refusals():
            return super().instantiate_trainer(**kwargs)

    def after_instantiate_classes(self) -> None:
        self.recorder: Recorder = self._get(self.config_init, "record")
        self.recorder.config_text = self.resolved()

    def resolved(self) -> str:
        """The configuration in force, as YAML that `--config` takes."""
        assert self.subcommand is not None
        return self._parser(self.subcommand).dump(self.config[self.subcommand], skip_none=False)

    def test(self, model: DecodeModule, datamodule: PromptData) -> None:
        """Decode, record, and show the metrics."""
        self.trainer.test(model, datamodule, verbose=False)
        self._report()

    def predict(self, model: DecodeModule, datamodule: PromptData) -> None:
        """Decode and record."""
        self.trainer.predict(model, datamodule, return_predictions=False)
        self._report()

    def _report(self) -> None:
        folder = self.recorder.folder
        if not self.trainer.is_global_zero or folder is None:
            return
        console = Console()
        if self.model.results:
            console.print(results_table(self.model.results, greedy=self.model.greedy))
            console.print(times_table(self.model.results))
        state = "rounds.parquet, outputs.jsonl, run.json" if folder.finished else "not finished"
        console.print(f"{folder.path}: {state}", markup=False, highlight=False, soft_wrap=True)
