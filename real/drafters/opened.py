"""Some tokens of a text in the whole target, with the state before and after each of its sub-blocks.

Owns the way from a cache and some tokens to what KnapSpec and CLaSp search through: the target's states, and a
sub-block run on a batch of states at those tokens. Sub-block 2i is the attention of layer i, 2i + 1 its MLP.
"""

from __future__ import annotations

from typing import Any

import torch

from real.cache import Branches, KVCache, forward
from real.drafters.layer_skip import own_layers
from real.drafters.subblocks import SubBlocks


class Opened:
    """One pass of the whole target over some tokens, looked into; the cache is as before afterwards.

    Args:
        blocks: the target in pieces.
        tokens: int64[T].
        cache: holds at least what stands before them.
        start: how many tokens that is.

    Attributes:
        states: float[T, H] before the first sub-block and after each: 2 * layers + 1 of them.
        how: of each layer, what the target tells its attention besides the states, `cache` among it.
    """

    def __init__(self, blocks: SubBlocks, tokens: torch.Tensor, cache: KVCache, start: int) -> None:
        self.blocks, self._cache, self._start = blocks, cache, start
        self.states: list[torch.Tensor] = []
        self.how: list[dict[str, Any]] = []
        handles, layers = [], own_layers(blocks.target)
        for layer in layers:
            norm: Any = layer.post_attention_layernorm
            handles.append(layer.register_forward_pre_hook(self._entered, with_kwargs=True))
            # What the MLP's norm reads is what the attention left.
            handles.append(norm.register_forward_pre_hook(self._between))
        handles.append(layers[-1].register_forward_hook(self._left))
        try:
            with cache.aside(start):
                forward(blocks.target, tokens, cache, keep=1)
        finally:
            for handle in handles:
                handle.remove()

    def _entered(self, module: torch.nn.Module, inputs: tuple[Any, ...], how: dict[str, Any]) -> None:
        told = dict(how)
        states = inputs[0] if inputs else told.pop("hidden_states")
        self.states.append(states[0])
        self.how.append(told)

    def _between(self, module: torch.nn.Module, inputs: tuple[Any, ...]) -> None:
        self.states.append(inputs[0][0])

    def _left(self, module: torch.nn.Module, inputs: Any, output: Any) -> None:
        self.states.append((output[0] if isinstance(output, tuple) else output)[0])

    def run(self, part: int, states: torch.Tensor) -> torch.Tensor:
        """float[B, T, H] of the same: a sub-block on B branches, each of which sees the text before and itself."""
        told = self.how[part // 2]
        view = Branches(self._cache, self._start)
        return self.blocks.half(part)(states, **{k: view if v is self._cache else v for k, v in told.items()})

    def run_layer(self, layer: int, states: torch.Tensor) -> torch.Tensor:
        """Like `run`, a whole layer."""
        return self.run(2 * layer + 1, self.run(2 * layer, states))
