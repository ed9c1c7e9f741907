"""Texts a target wrote (`real.continuations`) as batches for training a drafter, and to check it by."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np
import torch
from lightning.pytorch import LightningDataModule

from real.training.ranges import COUNT, SEED
from real.training.text_data import Batches, Steps
from real.training.texts import Text, read_texts
from specsim.controllers.base import Param
from specsim.errors import ConfigError

CHECKED = 4  # texts of a batch when checking, where every place of a text is tried


@dataclass(frozen=True)
class TextBatch:
    """Some of the data's texts.

    Args:
        step: training step it belongs to, or -1; what is random in a step depends on it.
        numbers: of the texts in the data.
        texts: the texts.
    """

    step: int
    numbers: tuple[int, ...]
    texts: tuple[Text, ...]


class WrittenTexts(LightningDataModule):
    """Texts in shuffled order, epoch after epoch; a step's batch is a pure function of seed and step.

    Args:
        folder: shards of `real.continuations`.
        batch: texts in a step.
        seed: of the order, and of what the module draws.
        checks: held-out texts to check by, greedy ones.
        shortest: texts with fewer tokens written by the target are left out.

    Attributes:
        training, checking: the texts, set by `setup`.
        ALLOWED: values of the arguments.
    """

    ALLOWED: ClassVar[Mapping[str, Param]] = {**dict.fromkeys(("batch", "checks", "shortest"), COUNT), "seed": SEED}

    def __init__(self, folder: str, batch: int = 8, seed: int = 0, checks: int = 64, shortest: int = 16) -> None:
        super().__init__()
        self.folder, self.batch, self.seed, self.checks, self.shortest = Path(folder), batch, seed, checks, shortest
        self.training: list[Text] = []
        self.checking: list[Text] = []
        self._epoch, self._order = -1, np.empty(0, np.int64)

    def setup(self, stage: str) -> None:
        """Read the shards.

        Raises:
            ConfigError: none, fewer texts than a batch, or none to check by when the Trainer checks.
        """
        texts = [text for text in read_texts(self.folder) if len(text.tokens) - text.prompt_len >= self.shortest]
        self.training = [text for text in texts if not text.held_out]
        self.checking = [text for text in texts if text.held_out and text.greedy][: self.checks]
        if len(self.training) < self.batch:
            raise ConfigError(f"{self.folder}: {len(self.training)} texts for a batch of {self.batch}; make more texts")
        if not self.checking and self.trainer is not None and self.trainer.limit_val_batches:
            raise ConfigError(
                f"{self.folder}: no greedy text begun with held-out files to check by; make some "
                "(real.continuations --held-out-texts), or do without: --trainer.limit_val_batches 0"
            )

    @property
    def about(self) -> str:
        """For the card."""
        count = sum(len(text.tokens) - text.prompt_len for text in self.training)
        return (
            f"{len(self.training)} texts ({count} tokens) the target wrote itself, half of them greedily; checked on "
            f"{len(self.checking)} greedy texts begun with held-out files"
        )

    def texts_of(self, step: int) -> TextBatch:
        """The batch of a training step (from 0)."""
        per_epoch = len(self.training) // self.batch
        epoch, place = divmod(step, per_epoch)
        if epoch != self._epoch:
            self._order = np.random.default_rng((self.seed, epoch)).permutation(len(self.training))
            self._epoch = epoch
        numbers = tuple(self._order[place * self.batch :][: self.batch].tolist())
        return TextBatch(step, numbers, tuple(self.training[number] for number in numbers))

    def train_dataloader(self) -> Steps:
        """A TextBatch a step, from the Trainer's step on."""
        return Steps(self.texts_of, lambda: self.trainer.global_step if self.trainer else 0)

    def val_dataloader(self) -> Batches:
        """The texts to check by; their numbers go on after the training's."""
        numbers = range(len(self.training), len(self.training) + len(self.checking))
        starts = range(0, len(self.checking), CHECKED)
        return Batches(
            [TextBatch(-1, tuple(numbers[at : at + CHECKED]), tuple(self.checking[at : at + CHECKED])) for at in starts]
        )

    def transfer_batch_to_device(self, batch: TextBatch, device: torch.device, dataloader_idx: int) -> TextBatch:
        """Texts stay where they are."""
        return batch
