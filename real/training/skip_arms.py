"""Early exits and layers left out, drawn for a training step, and their loss: a model learns to draft for itself.

A step has two arms (`real.builders.arm`), each on half of the rows, with the whole model's law and choice as labels,
through which no gradient goes:

    exit    stops after a depth drawn from `exits`, in a share `tail` of the steps with the last layers after it
    skip    leaves out layers, and halves of the others, with a chance that rises linearly with depth

Both go on from what the whole model's pass left at the first layer they leave out, so that an exit costs little more
than the head. The loss is that of early-exit training (LayerSkip, arXiv 2404.16710: layer dropout with a rate rising
with depth, exits through the model's own norm and head), with distillation instead of the text's tokens, and without
dropout in the pass that the texts' loss comes from.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, ClassVar

import numpy as np
import torch
import torch.nn.functional as F

from real.builders.arm import Arm
from real.drafters.subblocks import SubBlocks
from real.training.ranges import COUNT, NATURAL, NOT_NEGATIVE, SEED, SHARE, check_ranges
from specsim.controllers.base import Param
from specsim.errors import ConfigError


@dataclass(frozen=True, kw_only=True)
class ArmOptions:
    """Which arms are drawn, and how much they weigh.

    Args:
        exits: numbers of layers after which a draft may stop; None: all of `ends` to all but `ends`.
        exit_weight: of the exits' loss beside the texts'.
        tail: share of steps in which the last `ends` layers run after the exit.
        layer_dropout: chance that the skip arm leaves out the last layer but `ends`; it rises linearly from the first.
            Where chance leaves out nothing, it is that layer.
        sub_block_dropout: the same for the attention and for the MLP of layers not left out as a whole.
        skip_weight: of the skip arm's loss.
        ends: layers at either end that the skip arm keeps.
        soft: share of the arms' loss that is under the whole model's law instead of with its choice.
        seed: of the arms.
        first_step: of those with arms; before it there may be nothing to be like.

    Raises:
        ConfigError: a value out of range.
    """

    exits: list[int] | None = None
    exit_weight: float = 1.0
    tail: float = 0.5
    layer_dropout: float = 0.8
    sub_block_dropout: float = 0.1
    skip_weight: float = 1.0
    ends: int = 2
    soft: float = 0.5
    seed: int = 0
    first_step: int = 0

    ALLOWED: ClassVar[Mapping[str, Param]] = {
        **dict.fromkeys(("exit_weight", "skip_weight"), NOT_NEGATIVE),
        **dict.fromkeys(("tail", "layer_dropout", "sub_block_dropout", "soft"), SHARE),
        **{"ends": COUNT, "seed": SEED, "first_step": NATURAL},
    }

    def __post_init__(self) -> None:
        check_ranges("model.", self.ALLOWED, asdict(self))


class StepArms:
    """The arms of a model's steps.

    Args:
        blocks: the model.
        options: see there.

    Raises:
        ConfigError: exits or ends that the model's layers do not have.
    """

    def __init__(self, blocks: SubBlocks, options: ArmOptions) -> None:
        layers, ends, exits = blocks.n_layers, options.ends, options.exits
        if 2 * ends >= layers:
            raise ConfigError(f"model.ends={ends}: allowed is less than half of the target's {layers} layers")
        self.exits = tuple(range(ends, layers - ends + 1)) if exits is None else tuple(exits)
        if not self.exits or not all(1 <= depth < layers for depth in self.exits):
            raise ConfigError(f"model.exits={exits}: allowed are numbers of layers, 1..{layers - 1}, at least one")
        self._blocks, self._options = blocks, options

    def draw(self, step: int) -> tuple[Arm, Arm]:
        """(exit arm, skip arm) of a step, a pure function of seed and step."""
        given, layers = self._options, self._blocks.n_layers
        rng, ends = np.random.default_rng((given.seed, step)), given.ends
        depth, tail = self.exits[rng.integers(len(self.exits))], rng.random() < given.tail
        stop = layers - ends if tail and depth < layers - ends else layers
        middle = np.arange(ends, layers - ends)
        rising = np.arange(1, len(middle) + 1) / len(middle)
        whole = rng.random(len(middle)) < given.layer_dropout * rising
        attention, mlp = (rng.random((2, len(middle))) < given.sub_block_dropout * rising) | whole
        if not attention.any() and not mlp.any():
            attention[-1] = mlp[-1] = True  # a step without this loss would have other curves
        skip = Arm(frozenset(middle[attention].tolist()), frozenset(middle[mlp].tolist()))
        return Arm.blocks(range(depth, stop)), skip

    def of(self, step: int) -> list[tuple[str, Arm, float, slice]]:
        """(name, arm, weight, rows) of each arm of a step that weighs anything."""
        given = self._options
        if step < given.first_step:
            return []
        exit_arm, skip_arm = self.draw(step)
        parts = (("exit", exit_arm, given.exit_weight), ("skip", skip_arm, given.skip_weight))
        return [(*part, slice(place, None, 2)) for place, part in enumerate(parts) if part[2]]

    def logits(self, arm: Arm, state: torch.Tensor, **how: Any) -> torch.Tensor:
        """float[B, T, V] of an arm.

        Args:
            arm: which.
            state: float[B, T, H] that entered the first layer of which it leaves anything out.
            how: what the model takes besides, such as `position_ids`.
        """
        return self._blocks.model(arm, first_out(arm))(inputs_embeds=state, use_cache=False, **how).logits

    def like(self, left: torch.Tensor, whole: torch.Tensor) -> torch.Tensor:
        """Mean cross-entropy of float[N, V] logits with the choice and under the law of others."""
        soft, left, whole = self._options.soft, left.float(), whole.float()
        chosen = F.cross_entropy(left, whole.argmax(dim=-1))
        return (1 - soft) * chosen + soft * F.cross_entropy(left, whole.softmax(dim=-1))


def read_arms(texts: Sequence[str], layers: int | None) -> dict[str, Arm]:
    """Arms by their spelling; `layers`: of the model, where it is known.

    Raises:
        ConfigError: no spelling of an arm.
    """
    try:
        return {text: Arm.parse(text, layers) for text in texts}
    except ConfigError as error:
        raise ConfigError(f"model.check_arms: {error}") from None


def first_out(arm: Arm) -> int:
    """The first layer of which an arm leaves anything out."""
    return min(arm.attention | arm.mlp)
