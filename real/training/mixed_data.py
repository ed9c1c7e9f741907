"""The standard library in a target's own tokens, and beside it texts that this target wrote."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import ClassVar

import numpy as np
import torch
from transformers import PreTrainedTokenizerFast

from real.models import load_tokenizer
from real.training.corpus import Document
from real.training.ranges import NATURAL
from real.training.text_data import StdlibText
from real.training.texts import read_texts
from real.training.windows import Windows
from specsim.controllers.base import Param
from specsim.errors import ConfigError


class MixedText(StdlibText):
    """Windows of sources and, as the last rows of every batch, windows of the target's own texts, one after the other.

    Args:
        target: whose tokenizer is used, as for `real.models.load_target`.
        folder: shards of `real.continuations`, needed for rows of them.
        own: rows of them in a step, besides the `batch` rows of sources.
        length, batch, validation_windows, seed, files: see StdlibText.

    Attributes:
        highest: token in those texts, set by `setup`; 0 without any.
        ALLOWED: values of the arguments.
    """

    ALLOWED: ClassVar[Mapping[str, Param]] = {
        **{key: param for key, param in StdlibText.ALLOWED.items() if key != "vocabulary"},
        "own": NATURAL,
    }

    def __init__(
        self,
        target: str,
        folder: str | None = None,
        own: int = 0,
        length: int = 256,
        batch: int = 8,
        validation_windows: int = 96,
        seed: int = 0,
        files: int | None = None,
    ) -> None:
        # Its vocabulary is the target's.
        super().__init__(length=length, batch=batch, validation_windows=validation_windows, seed=seed, files=files)
        if own and folder is None:
            raise ConfigError(f"data.own={own}: name the target's texts in data.folder, or leave them out: data.own=0")
        self.target, self.folder, self.own = target, folder, own
        self.highest = 0

    def setup(self, stage: str) -> None:
        """Read and cut both.

        Raises:
            ConfigError: too little text.
        """
        super().setup(stage)
        if not self.own:
            return
        assert self.folder is not None
        texts = [text.tokens for text in read_texts(Path(self.folder)) if not text.held_out]
        self.highest = max((int(ids.max()) for ids in texts), default=0)
        stream = np.concatenate([*texts, np.empty(0, np.int64)]).astype(np.int64)
        try:
            self._own = Windows(stream, self.length, self.own, self.seed)
        except ValueError as error:
            raise ConfigError(f"{self.folder}: {error}; make more texts, or use a smaller data.own") from None
        rows = f"{self.own} of {self.batch + self.own} windows of a step"
        self.about += f"; {rows} from {len(texts)} texts that {self.target} wrote"

    def _make_tokenizer(self, documents: Sequence[Document]) -> PreTrainedTokenizerFast:
        tokenizer = load_tokenizer(self.target)
        if tokenizer.eos_token_id is None:
            raise ConfigError(f"data.target {self.target!r}: its tokenizer has no end of text; choose another")
        return tokenizer

    def _training_batch(self, step: int) -> torch.Tensor:
        rows = super()._training_batch(step)
        return torch.cat([rows, torch.from_numpy(self._own.batch(step))]) if self.own else rows
