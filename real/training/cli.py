"""The Lightning command line of training: one YAML file or flags for module, data, keeper and Trainer.

Owns which classes the command offers, the Trainer's defaults and what a run's settings are.
"""

from __future__ import annotations

import importlib
import json
import logging
import sys
import warnings
from typing import Any

import torch
from lightning.pytorch import LightningDataModule, Trainer
from lightning.pytorch.cli import ArgsType, LightningArgumentParser, LightningCLI

from real.models import MAX_THREADS
from real.parser import TRAINER_DEFAULTS, OneLineParser, trainer_refusals
from real.training.keep import Keeper
from real.training.module import TrainModule
from real.training.ranges import COUNT, NOT_NEGATIVE, SEED, check_ranges, only
from specsim.controllers.base import Param
from specsim.errors import ConfigError

TRAINING_DEFAULTS = {
    **TRAINER_DEFAULTS,
    "accelerator": "auto",
    "num_sanity_val_steps": 0,
    "max_epochs": -1,  # the data has no end; max_steps decides
    "max_steps": 1000,
    "check_val_every_n_epoch": None,
    "val_check_interval": 100,
}
COMMAND_ALLOWED = {"threads": Param(kind=int, low=1, high=MAX_THREADS), "seed_everything": SEED}
TRAINER_ALLOWED = {
    "max_steps": COUNT,  # over which the learning rate falls to 0
    "gradient_clip_val": NOT_NEGATIVE,
    "devices": only(1, "auto"),  # one process keeps the folder
    "num_nodes": only(1),
    "accumulate_grad_batches": only(1),  # a step is a batch here
    "fast_dev_run": only(False),  # would keep and publish the model of a single step
}
DECIDING = ("max_steps", "precision", "gradient_clip_val")
_UNUSED = {"model", "train_dataloaders", "val_dataloaders", "datamodule", "ckpt_path", "weights_only"}


class TrainCLI(LightningCLI):
    """`fit` of a TrainModule on a data module, kept in a folder."""

    def __init__(self) -> None:
        logging.getLogger("lightning.pytorch").setLevel(logging.WARNING)  # devices found, tips
        warnings.filterwarnings("ignore", message=".*does not have many workers.*")  # batches are made in no time
        super().__init__(
            TrainModule,
            LightningDataModule,
            subclass_mode_model=True,
            subclass_mode_data=True,
            save_config_callback=None,  # the keeper keeps what decides the numbers
            trainer_defaults=TRAINING_DEFAULTS,
            seed_everything_default=0,
            parser_class=OneLineParser,
            auto_configure_optimizers=False,
            load_from_checkpoint_support=False,
            parser_kwargs={
                "prog": "python -m real.train",
                "description": "Train a small target, or drafters for a target.",
                "fit": {"description": "Train; the same command again goes on after an interruption."},
            },
        )

    @staticmethod
    def subcommands() -> dict[str, set[str]]:
        return {"fit": _UNUSED}

    def add_arguments_to_parser(self, parser: LightningArgumentParser) -> None:
        parser.add_lightning_class_args(Keeper, "keep")
        parser.add_argument("--threads", type=int, default=1, help="of torch; results depend on it in the last bits")

    def parse_arguments(self, parser: LightningArgumentParser, args: ArgsType) -> None:
        """Parse, and check what can be checked before the target is loaded."""
        super().parse_arguments(parser, args)
        config = self.config[self.config["subcommand"]]
        check_ranges("", COMMAND_ALLOWED, config)
        check_ranges("trainer.", TRAINER_ALLOWED, config["trainer"])
        check_ranges("keep.", Keeper.ALLOWED, config["keep"])
        for key in ("data", "model"):
            module, _, name = config[key]["class_path"].rpartition(".")
            kind, given = getattr(importlib.import_module(module), name), config[key].get("init_args", {})
            if issubclass(kind, TrainModule):
                kind.check(given)
            else:
                check_ranges("data.", getattr(kind, "ALLOWED", {}), given)
        simple: dict[str, Any] = {
            key: value for key, value in config["trainer"].items() if isinstance(value, (str, int, float))
        }
        with trainer_refusals():
            Trainer(**simple)

    def instantiate_trainer(self, **kwargs: Any) -> Trainer:
        with trainer_refusals():
            return super().instantiate_trainer(**kwargs)

    def instantiate_classes(self) -> None:
        try:
            super().instantiate_classes()
        except ValueError as error:
            # The parser tries a module's types one by one, and wraps what one of them refuses.
            refusal: BaseException | None = error
            while refusal is not None and not isinstance(refusal, ConfigError):
                refusal = refusal.__cause__
            raise refusal or error from error

    def after_instantiate_classes(self) -> None:
        assert self.subcommand is not None
        whole = self._parser(self.subcommand).dump(self.config[self.subcommand], skip_none=False, format="json")
        self.keeper: Keeper = self._get(self.config_init, "keep")
        self.keeper.settings = settings_of(whole)
        self.keeper.command = " ".join(["python -m real.train", *sys.argv[1:]])
        torch.set_num_threads(self._get(self.config, "threads"))

    def fit(self, model: TrainModule, datamodule: LightningDataModule) -> None:
        """Train from the start, or on from the folder's checkpoint."""
        self.keeper.open()
        checkpoint = self.keeper.checkpoint(model)
        self.trainer.fit(model, datamodule=datamodule, ckpt_path=checkpoint, weights_only=True)


def settings_of(dumped: str) -> dict[str, Any]:
    """What of a run's configuration decides its numbers, as JSON values."""
    whole = json.loads(dumped)
    trainer = {key: whole["trainer"].get(key) for key in DECIDING}
    return {"model": whole["model"], "data": whole["data"], "threads": whole["threads"], "trainer": trainer}
