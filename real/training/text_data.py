"""The standard library as batches of windows, with a tokenizer of its own."""

from __future__ import annotations

import platform
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
import torch
from lightning.pytorch import LightningDataModule
from transformers import PreTrainedTokenizerFast

from real.training.corpus import Document, stdlib_documents
from real.training.ranges import COUNT, SEED
from real.training.tokenizer import SMALLEST, train_tokenizer
from real.training.windows import Windows
from specsim.controllers.base import Param
from specsim.errors import ConfigError


class Steps:
    """Batches from a step on, without end. `first` is asked when iteration begins, after a checkpoint was loaded."""

    def __init__(self, batch: Callable[[int], Any], first: Callable[[], int]) -> None:
        self._batch, self._first = batch, first

    def __iter__(self) -> Iterator[Any]:
        step = self._first()
        while True:
            yield self._batch(step)
            step += 1


class Batches:
    """Batches of one pass. (Lightning takes a plain list for several loaders.)"""

    def __init__(self, batches: Sequence[Any]) -> None:
        self._batches = batches

    def __len__(self) -> int:
        return len(self._batches)

    def __iter__(self) -> Iterator[Any]:
        return iter(self._batches)


class StdlibText(LightningDataModule):
    """Windows of the standard library's sources (`real.training.corpus`).

    Args:
        vocabulary: entries of the tokenizer, which is trained on the training files.
        length: tokens in a window.
        batch: windows in a step.
        validation_windows: of held-out files, spread evenly over them.
        seed: of the order.
        files: at most so many training files, the first by name (for tests).

    Attributes:
        tokenizer: set by `setup`.
        ALLOWED: values of the arguments.
    """

    ALLOWED: ClassVar[Mapping[str, Param]] = {
        **dict.fromkeys(("length", "batch", "validation_windows", "files"), COUNT),
        "vocabulary": Param(kind=int, low=SMALLEST),
        "seed": SEED,
    }

    def __init__(
        self,
        vocabulary: int = 4096,
        length: int = 256,
        batch: int = 12,
        validation_windows: int = 96,
        seed: int = 0,
        files: int | None = None,
    ) -> None:
        super().__init__()
        self.vocabulary, self.length, self.batch = vocabulary, length, batch
        self.validation_windows, self.seed, self.files = validation_windows, seed, files
        self.tokenizer: PreTrainedTokenizerFast
        self.about = ""

    def setup(self, stage: str) -> None:
        """Read, train the tokenizer, cut.

        Raises:
            ConfigError: too little text.
        """
        documents = stdlib_documents()
        kept = [document for document in documents if not document.held_out][: self.files]
        held_out = [document for document in documents if document.held_out]
        self.tokenizer = self._make_tokenizer(kept)
        training, checking = self._stream(kept), self._stream(held_out)
        if len(checking) <= self.length:
            raise ConfigError(f"data.length {self.length}: the held-out text has {len(checking)} tokens; use less")
        try:
            self._windows = Windows(training, self.length, self.batch, self.seed)
        except ValueError as error:
            raise ConfigError(f"data: {error}; use a smaller batch or length") from None
        spread = np.linspace(0, len(checking) - self.length - 1, self.validation_windows).astype(np.int64)
        self._checks = checking[spread[:, None] + np.arange(self.length + 1)]
        self.about = (
            f"sources of the standard library of Python {platform.python_version()}: {len(kept)} files, "
            f"{len(training)} tokens for training; {len(held_out)} whole files, {len(checking)} tokens held out"
        )

    def _make_tokenizer(self, documents: Sequence[Document]) -> PreTrainedTokenizerFast:
        return train_tokenizer((document.text for document in documents), self.vocabulary, self.length)

    def _stream(self, documents: Sequence[Document]) -> np.ndarray:
        """int64[N] tokens of all documents, each closed by the end of text."""
        end = self.tokenizer.eos_token_id
        ids = self.tokenizer([document.text for document in documents], verbose=False)["input_ids"]
        return np.concatenate([np.array([*one, end], dtype=np.int64) for one in ids])

    def _training_batch(self, step: int) -> torch.Tensor:
        return torch.from_numpy(self._windows.batch(step))

    def train_dataloader(self) -> Steps:
        """int64[batch, length + 1] a step, from the Trainer's step on."""
        return Steps(self._training_batch, lambda: self.trainer.global_step if self.trainer else 0)

    def val_dataloader(self) -> Batches:
        """The held-out windows in batches of the training's size."""
        return Batches(torch.from_numpy(self._checks).split(self.batch))
