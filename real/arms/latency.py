"""Seconds of one attention, by context, and of one MLP: measured inside passes of the target itself.

KnapSpec's code times the first layer alone, again and again. Here a pass over one token goes through all layers, so
that weights come from where they come from in a decode, and passes at different contexts take turns in random order.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple

import numpy as np
import torch

from real.arms.opened import Opened
from real.arms.spent import Spent
from real.builders.knapspec import Latency
from real.cache import KVCache, forward
from real.drafters.subblocks import SubBlocks

ATTENTION: Final = "attention"
MLP: Final = "mlp"
_UNTIMED: Final = 1  # passes at each context before those that count


class Measured(NamedTuple):
    """What was measured, in seconds per sub-block (medians over passes), and the line through it.

    Args:
        past: cached tokens of each measurement.
        attention, mlp: one of either kind, mean over the layers.
        latency: the fit.
    """

    past: tuple[int, ...]
    attention: tuple[float, ...]
    mlp: tuple[float, ...]
    latency: Latency

    def to_json(self) -> dict[str, Any]:
        """For `arms.json`."""
        return {"past": list(self.past), "attention_s": list(self.attention), "mlp_s": list(self.mlp)}


@torch.inference_mode()
def measure(
    blocks: SubBlocks,
    texts: Sequence[torch.Tensor],
    *,
    repeats: int,
    seed: int,
    done: Callable[[], None] = lambda: None,
) -> Measured:
    """Time every sub-block behind each of some texts.

    Args:
        blocks: the target in pieces.
        texts: int64[P] each, of at least two different lengths; the last token is the one that is run.
        repeats: passes at each that count.
        seed: of the order.
        done: called after every round of passes.

    Raises:
        ConfigError: fewer than two lengths.
    """
    passes = [_Pass(blocks, text) for text in texts]
    rng, seconds = np.random.default_rng(seed), np.zeros((repeats, len(passes), 2))
    for repeat in range(-_UNTIMED, repeats):
        for number in rng.permutation(len(passes)):
            found = passes[number].run()
            if repeat >= 0:
                seconds[repeat, number] = found
        done()
    past = tuple(one.past for one in passes)
    attention, mlp = np.median(seconds, axis=0).T.tolist()
    return Measured(past, tuple(attention), tuple(mlp), Latency.fit(past, attention, mlp))


class _Pass:
    """Passes over the last token of a text, half a layer at a time."""

    def __init__(self, blocks: SubBlocks, text: torch.Tensor) -> None:
        self.past, self._blocks, self._cache = len(text) - 1, blocks, KVCache(len(text))
        forward(blocks.target, text[:-1], self._cache, keep=1)
        self._opened = Opened(blocks, text[-1:], self._cache, self.past)

    def run(self) -> tuple[float, float]:
        """Seconds of an attention and of an MLP, means over the layers."""
        spent = Spent(self._blocks.target.device, (ATTENTION, MLP))
        states, how = self._opened.states[0][None], self._opened.how
        for part in range(2 * self._blocks.n_layers):
            with spent.on(MLP if part % 2 else ATTENTION):
                # On the cache itself, which appends in place as a decode does.
                states = self._blocks.half(part)(states, **how[part // 2])
        self._cache.crop_to(self.past)
        attention, mlp = (spent.seconds[kind] / self._blocks.n_layers for kind in (ATTENTION, MLP))
        return attention, mlp
