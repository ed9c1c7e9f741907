"""Tables of handwritten digits (`real.vision.digits`) as batches of questions with their answers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from lightning.pytorch import LightningDataModule

from real.training.ranges import COUNT, SEED
from real.training.text_data import Batches, Steps
from real.vision.digits import ASKED, Digits, Table, draw_table, load_digits
from specsim.controllers.base import Param


@dataclass(frozen=True, kw_only=True)
class Asked:
    """A table, a question about it and the answer."""

    table: Table
    question: str
    answer: str


class DigitTables(LightningDataModule):
    """Tables drawn anew for every step, a pure function of seed and step, each with a question drawn for it.

    Args:
        batch: tables in a step.
        checks: tables of held-out digits to check by; the questions take turns.
        seed: of both.

    Attributes:
        about: for the card, set by `setup`.
        ALLOWED: values of the arguments.
    """

    ALLOWED: ClassVar[Mapping[str, Param]] = {**dict.fromkeys(("batch", "checks"), COUNT), "seed": SEED}

    def __init__(self, batch: int = 12, checks: int = 96, seed: int = 0) -> None:
        super().__init__()
        self.batch, self.checks, self.seed = batch, checks, seed
        self.about = ""

    def setup(self, stage: str) -> None:
        """Read the digits.

        Raises:
            ConfigError: they are not there.
        """
        self._training, held_out = load_digits(held_out=False), load_digits(held_out=True)
        self._checks = [_asked(held_out, number, self.seed, number) for number in range(self.checks)]
        self.about = (
            f"tables of handwritten digits (scikit-learn's load_digits), drawn anew for every step: "
            f"{len(self._training.labels)} digits for training, {len(held_out.labels)} by other writers held out"
        )

    def batch_of(self, step: int) -> list[Asked]:
        """What a training step sees (from 0)."""
        numbers = range(step * self.batch, (step + 1) * self.batch)
        return [_asked(self._training, None, self.seed, number) for number in numbers]

    def train_dataloader(self) -> Steps:
        """A list of `batch` Asked a step, from the Trainer's step on."""
        return Steps(self.batch_of, lambda: self.trainer.global_step if self.trainer else 0)

    def val_dataloader(self) -> Batches:
        """The held-out tables in batches of the training's size."""
        return Batches([self._checks[at : at + self.batch] for at in range(0, len(self._checks), self.batch)])

    def transfer_batch_to_device(self, batch: list[Asked], device: torch.device, dataloader_idx: int) -> list[Asked]:
        """Tables stay where they are."""
        return batch


def _asked(digits: Digits, turn: int | None, *key: int) -> Asked:
    """A table by its key, with the question whose turn it is, or with one drawn."""
    rng = np.random.default_rng(key)
    table, questions = draw_table(digits, rng), list(ASKED)
    question = questions[(rng.integers(len(questions)) if turn is None else turn) % len(questions)]
    return Asked(table=table, question=question, answer=ASKED[question](table.grid))
