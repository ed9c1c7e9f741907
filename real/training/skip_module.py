"""Training a model on so that it can draft for itself: early exits and layers left out learn to say what it says.

A step runs the whole model once, with the texts' own loss on their sources, and two arms (`real.builders.arm`) of it,
each on half of the rows, with the whole model's law and choice as labels, through which no gradient goes:

    exit    stops after a depth drawn from `exits`, in a share `tail` of the steps with the last layers after it
    skip    leaves out layers, and halves of the others, with a chance that rises linearly with depth

Both go on from what the whole model's pass left at the first layer they leave out, so that an exit costs little more
than the head. The loss is that of early-exit training (LayerSkip, arXiv 2404.16710: layer dropout with a rate rising
with depth, exits through the model's own norm and head), with distillation instead of the text's tokens, and without
dropout in the pass that the texts' loss comes from.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
import torch
import torch.nn.functional as F

from real.builders.arm import Arm
from real.builders.cossim import removable
from real.compat import logits_width
from real.continuations import write_texts
from real.drafters.subblocks import SubBlocks
from real.models import Loaded, load_text_target
from real.target import hidden_states
from real.training.language_model import CausalModule, cross_entropy
from real.training.mixed_data import MixedText
from real.training.ranges import COUNT, NATURAL, NOT_NEGATIVE, SEED, SHARE
from real.training.skip_checks import cossim_arms, followed
from real.training.texts import Text
from specsim.errors import ConfigError


class SkipFriendlyModel(CausalModule):
    """A target trained on for self-speculation.

    Args:
        start: target whose weights training begins from, as for `real.models.load_text_target`; layers like Llama's.
        exits: numbers of layers after which a draft may stop; None: all of `ends` to all but `ends`.
        exit_weight: of the exits' loss beside the texts'.
        tail: share of steps in which the last `ends` layers run after the exit.
        layer_dropout: chance that the skip arm leaves out the last layer but `ends`; it rises linearly from the first.
            Where chance leaves out nothing, it is that layer.
        sub_block_dropout: the same for the attention and for the MLP of layers not left out as a whole.
        skip_weight: of the skip arm's loss.
        ends: layers at either end that the skip arm keeps.
        soft: share of the arms' loss that is under the whole model's law instead of with its choice.
        checks: texts the model writes for a check.
        check_arms: arms checked, by their spelling.
        check_removed: numbers of blocks that cosSim removes; its arms are checked as well.
        seed: of the arms.
        muon_lr, adam_lr, warmup_steps: see TrainModule.

    Raises:
        ConfigError: a target that cannot be taken apart, or arms it does not have.
    """

    ALLOWED: ClassVar = {
        **CausalModule.ALLOWED,
        **dict.fromkeys(("exit_weight", "skip_weight"), NOT_NEGATIVE),
        **dict.fromkeys(("tail", "layer_dropout", "sub_block_dropout", "soft"), SHARE),
        **{"ends": COUNT, "checks": NATURAL, "seed": SEED},
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
        if 2 * ends >= layers:
            raise ConfigError(f"model.ends={ends}: allowed is less than half of the target's {layers} layers")
        self.exits = tuple(range(ends, layers - ends + 1)) if exits is None else tuple(exits)
        if not self.exits or not all(1 <= depth < layers for depth in self.exits):
            raise ConfigError(f"model.exits={exits}: allowed are numbers of layers, 1..{layers - 1}, at least one")
        self.check_arms = _read(check_arms, layers)
        if check_removed and not all(1 <= count <= len(removable(layers)) for count in check_removed):
            raise ConfigError(f"model.check_removed={check_removed}: allowed are 1..{len(removable(layers))}")
        self.check_removed = tuple(check_removed)
        self.exit_weight, self.skip_weight, self.tail, self.soft = exit_weight, skip_weight, tail, soft
        self.layer_dropout, self.sub_block_dropout, self.ends = layer_dropout, sub_block_dropout, ends
        self.checks, self.seed = checks, seed
        self._beginnings: list[list[int]] = []

    @classmethod
    def check(cls, given: Mapping[str, Any]) -> None:
        super().check(given)
        _read(given.get("check_arms") or [], None)

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
        exit_arm, skip_arm = self.draw(self.global_step)
        parts = [("exit", exit_arm, self.exit_weight), ("skip", skip_arm, self.skip_weight)]
        inputs = [first_out(arm) - 1 for _, arm, weight in parts if weight]
        with hidden_states(self.net, inputs) as states:
            logits = self.net(input_ids=batch[:, :-1], use_cache=False).logits
        sources = self._data().batch  # what the start wrote itself teaches nothing about sources
        loss = cross_entropy(logits[:sources], batch[:sources])
        self.log("train/loss", loss.detach())
        for place, (name, arm, weight) in enumerate(parts):
            if weight:
                first, rows = first_out(arm), slice(place, None, 2)
                left = self._blocks.model(arm, first)(inputs_embeds=states[first - 1][rows], use_cache=False).logits
                part = self._like(left, logits[rows].detach())
                self.log(f"train/{name}", part.detach())
                loss = loss + weight * part
        return loss

    def _like(self, left: torch.Tensor, whole: torch.Tensor) -> torch.Tensor:
        """Mean cross-entropy of float[B, T, V] logits with the choice and under the law of others."""
        left, whole = left.flatten(0, 1).float(), whole.flatten(0, 1).float()
        chosen = F.cross_entropy(left, whole.argmax(dim=-1))
        return (1 - self.soft) * chosen + self.soft * F.cross_entropy(left, whole.softmax(dim=-1))

    def draw(self, step: int) -> tuple[Arm, Arm]:
        """(exit arm, skip arm) of a step, a pure function of seed and step."""
        rng, layers, ends = np.random.default_rng((self.seed, step)), self._blocks.n_layers, self.ends
        depth, tail = self.exits[rng.integers(len(self.exits))], rng.random() < self.tail
        stop = layers - ends if tail and depth < layers - ends else layers
        middle = np.arange(ends, layers - ends)
        rising = np.arange(1, len(middle) + 1) / len(middle)
        whole = rng.random(len(middle)) < self.layer_dropout * rising
        attention, mlp = (rng.random((2, len(middle))) < self.sub_block_dropout * rising) | whole
        if not attention.any() and not mlp.any():
            attention[-1] = mlp[-1] = True  # a step without this loss would have other curves
        skip = Arm(frozenset(middle[attention].tolist()), frozenset(middle[mlp].tolist()))
        return Arm.blocks(range(depth, stop)), skip

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


def _read(texts: Sequence[str], layers: int | None) -> dict[str, Arm]:
    try:
        return {text: Arm.parse(text, layers) for text in texts}
    except ConfigError as error:
        raise ConfigError(f"model.check_arms: {error}") from None


def first_out(arm: Arm) -> int:
    """The first layer of which an arm leaves anything out."""
    return min(arm.attention | arm.mlp)
