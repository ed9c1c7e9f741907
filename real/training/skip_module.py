"""Training a model on so that it can draft for itself: early exits and layers left out learn to say what it says.

A step runs the whole model once, with the texts' own loss on their sources, and the arms of `real.training.skip_arms`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np
import torch

from real.builders.cossim import removable
from real.compat import logits_width
from real.continuations import write_texts
from real.drafters.subblocks import SubBlocks
from real.models import Loaded, load_text_target
from real.target import hidden_states
from real.training.language_model import CausalModule, cross_entropy
from real.training.mixed_data import MixedText
from real.training.ranges import NATURAL
from real.training.skip_arms import ArmOptions, StepArms, first_out, read_arms
from real.training.skip_checks import cossim_arms, followed
from real.training.texts import Text
from specsim.errors import ConfigError


class SkipFriendlyModel(CausalModule):
    """A target trained on for self-speculation.

    Args:
        start: target whose weights training begins from, as for `real.models.load_text_target`; layers like Llama's.
        exits, exit_weight, tail, layer_dropout, sub_block_dropout, skip_weight, ends, soft, seed: see ArmOptions.
        checks: texts the model writes for a check.
        check_arms: arms checked, by their spelling.
        check_removed: numbers of blocks that cosSim removes; its arms are checked as well.
        muon_lr, adam_lr, warmup_steps: see TrainModule.

    Raises:
        ConfigError: a target that cannot be taken apart, or arms it does not have.
    """

    ALLOWED: ClassVar = {
        **CausalModule.ALLOWED,
        **ArmOptions.ALLOWED,
        "checks": NATURAL,
    }

    def __init__(
        self,
        start: str = "lab",
        exits: list[int] | None = None,
        exit_weight: float = 1.0,
        tail: float = 0.5,
        layer_dropout: float = 0.8,
        sub_block_dropout: float = 0.1,
        skip_weight: float = 1.0,
        ends: int = 2,
        soft: float = 0.5,
        checks: int = 24,
        check_arms: list[str] = [],  # noqa: B006 - shown as the default
        check_removed: list[int] = [],  # noqa: B006
        seed: int = 0,
        muon_lr: float = 0.01,
        adam_lr: float = 0.0015,
        warmup_steps: int = 100,
    ) -> None:
        loaded = load_text_target(start, device="cpu")
        super().__init__(loaded.model.requires_grad_(True), muon_lr, adam_lr, warmup_steps)
        self._start, self._blocks = loaded, SubBlocks(self.net)
        self.net.train()
        layers = self._blocks.n_layers
        self.arms = StepArms(
            self._blocks,
            ArmOptions(
                exits=exits,
                exit_weight=exit_weight,
                tail=tail,
                layer_dropout=layer_dropout,
                sub_block_dropout=sub_block_dropout,
                skip_weight=skip_weight,
                ends=ends,
                soft=soft,
                seed=seed,
            ),
        )
        self.check_arms = read_arms(check_arms, layers)
        if check_removed and not all(1 <= count <= len(removable(layers)) for count in check_removed):
            raise ConfigError(f"model.check_removed={check_removed}: allowed are 1..{len(removable(layers))}")
        self.check_removed = tuple(check_removed)
        self.checks = checks
        self._beginnings: list[list[int]] = []

    @classmethod
    def check(cls, given: Mapping[str, Any]) -> None:
        super().check(given)
        read_arms(given.get("check_arms") or [], None)

    def setup(self, stage: str) -> None:
        data, window = self._data(), self.net.config.max_position_embeddings
        if data.length > window:
            raise ConfigError(f"data.length={data.length}: allowed is up to the window of {self._start.name}, {window}")
        if data.batch + data.own < 2:
            raise ConfigError(f"data.batch={data.batch}: allowed is 2 or more rows with data.own, one for each arm")
        if data.tokenizer.get_vocab() != self._start.tokenizer.get_vocab():
            raise ConfigError(f"data.target={data.target}: allowed is a target with the tokenizer of model.start")
        if data.highest >= logits_width(self.net):
            size = logits_width(self.net)
            raise ConfigError(
                f"{data.folder}: token {data.highest}; {self._start.name} has {size}: another target wrote these texts"
            )

    def training_step(self, batch: torch.Tensor, batch_idx: int) -> torch.Tensor:
        parts = self.arms.of(self.global_step)
        with hidden_states(self.net, [first_out(arm) - 1 for _, arm, _, _ in parts]) as states:
            logits = self.net(input_ids=batch[:, :-1], use_cache=False).logits
        sources = self._data().batch  # what the start wrote itself teaches nothing about sources
        loss = cross_entropy(logits[:sources], batch[:sources])
        self.log("train/loss", loss.detach())
        for name, arm, weight, rows in parts:
            left = self.arms.logits(arm, states[first_out(arm) - 1][rows])
            part = self.arms.like(left.flatten(0, 1), logits[rows].detach().flatten(0, 1))
            self.log(f"train/{name}", part.detach())
            loss = loss + weight * part
        return loss

    def on_validation_epoch_start(self) -> None:
        self._beginnings = []

    def validation_step(self, batch: torch.Tensor, batch_idx: int) -> None:
        super().validation_step(batch, batch_idx)
        self._beginnings += batch[:, : max(1, self._data().length // 4)].tolist()

    def on_validation_epoch_end(self) -> None:
        if not self.checks:
            return
        every = max(1, len(self._beginnings) // self.checks)
        with torch.autocast(self.device.type, enabled=False):
            texts = self._write(self._beginnings[::every][: self.checks])
            arms = {**self.check_arms, **cossim_arms(self._blocks, self.check_removed, texts)}
            metrics = followed(self._blocks, arms, texts)
        self.log_dict({f"val/{name}": value for name, value in metrics.items()})

    def _write(self, beginnings: list[list[int]]) -> list[Text]:
        """What the model itself writes greedily, in windows of three quarters of the data's."""
        tokenizer = self._data().tokenizer
        now = Loaded(
            model=self.net,
            tokenizer=tokenizer,
            name=self._start.name,
            stop_ids=self._start.stop_ids,
            device=self.device.type,
            dtype="float32",
        )
        length, greedy = max(2, self._data().length * 3 // 4), np.ones(len(beginnings), dtype=bool)
        return write_texts(now, beginnings, length=length, temperature=1.0, greedy=greedy, seed=0, held_out=True)

    def about(self) -> dict[str, str]:
        return {**super().about(), "start": self._start.name}

    def _data(self) -> MixedText:
        data = super()._data()
        if not isinstance(data, MixedText):
            raise ConfigError("a skip-friendly model is trained on real.training.mixed_data.MixedText")
        return data
