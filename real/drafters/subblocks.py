"""The target with single attentions and MLPs left out: the network of a self-speculating draft pass.

Owns the halves of a decoder layer and the check that a layer is nothing but its two halves. No weight is copied.
"""

from __future__ import annotations

from typing import Any

import torch

from real.builders.arm import Arm
from real.cache import KVCache, check_model, forward
from real.drafters.layer_skip import own_layers, with_layers
from real.target import hidden_states
from specsim.errors import ConfigError

PARTS = ("input_layernorm", "self_attn", "post_attention_layernorm", "mlp")


class AttentionOnly(torch.nn.Module):
    """A decoder layer without its MLP."""

    def __init__(self, layer: Any) -> None:
        super().__init__()
        self.norm, self.self_attn = layer.input_layernorm, layer.self_attn

    def forward(self, hidden_states: torch.Tensor, **how: Any) -> torch.Tensor:
        """float[1, tokens, H] of the same; `how` is what the model tells its layers."""
        return hidden_states + self.self_attn(hidden_states=self.norm(hidden_states), **how)[0]


class MlpOnly(torch.nn.Module):
    """A decoder layer without its attention; it writes no keys and values."""

    def __init__(self, layer: Any) -> None:
        super().__init__()
        self.norm, self.mlp = layer.post_attention_layernorm, layer.mlp

    def forward(self, hidden_states: torch.Tensor, **how: Any) -> torch.Tensor:
        """As for `AttentionOnly`."""
        return hidden_states + self.mlp(self.norm(hidden_states))


class _Both(torch.nn.Module):
    """The halves one after the other: what a layer has to equal."""

    def __init__(self, layer: Any) -> None:
        super().__init__()
        self.first, self.second = AttentionOnly(layer), MlpOnly(layer)

    def forward(self, hidden_states: torch.Tensor, **how: Any) -> torch.Tensor:
        return self.second(self.first(hidden_states, **how))


class SubBlocks:
    """A target in pieces that arms put together.

    Args:
        target: causal language model with decoder layers in `model.layers`, each an attention and an MLP behind norms
            of their own, both added to what came in: Llama, Qwen2, Qwen3, Mistral and others that compute the same.

    Attributes:
        n_layers: its decoder layers.
        attention, mlp, head: numbers that a pass reads for one attention, one MLP (means over layers), and the head.

    Raises:
        ConfigError: layers of other parts, or that compute something else from them.
    """

    def __init__(self, target: Any) -> None:
        self.target, self._layers = target, own_layers(target)
        self.n_layers = len(self._layers)
        check_halves(target)
        self._attention = [AttentionOnly(layer) for layer in self._layers]
        self._mlp = [MlpOnly(layer) for layer in self._layers]
        self.attention, self.mlp = (
            sum(weights.numel() for half in halves for weights in half.parameters()) / self.n_layers
            for halves in (self._attention, self._mlp)
        )
        self.head = target.get_output_embeddings().weight.numel()

    def model(self, arm: Arm, first: int = 0) -> Any:
        """The target without the arm's sub-blocks; itself for an arm that leaves nothing out.

        Args:
            arm: which.
            first: leave out all layers before this one too; such a model reads, as embeddings, what enters this layer.

        Raises:
            ConfigError: an arm of other layers, or that leaves nothing.
        """
        kept = [number for number in self.kept(arm.check(self.n_layers)) if number >= first]
        whole = not arm.skipped() and not first
        return self.target if whole else with_layers(self.target, {n: self._part(n, arm) for n in kept})

    def kept(self, arm: Arm) -> tuple[int, ...]:
        """The layers of which an arm leaves anything, ascending: those its model has."""
        return tuple(n for n in range(self.n_layers) if n not in arm.attention or n not in arm.mlp)

    def _part(self, number: int, arm: Arm) -> torch.nn.Module:
        if number in arm.attention:
            return self._mlp[number]
        return self._attention[number] if number in arm.mlp else self._layers[number]

    def half(self, number: int) -> torch.nn.Module:
        """Sub-block 2i, the attention of layer i, or 2i + 1, its MLP; called with states and what the layer is told."""
        return (self._mlp if number % 2 else self._attention)[number // 2]

    def predict(self, states: torch.Tensor) -> torch.Tensor:
        """int64[B, T]: the most probable next tokens by float[B, T, H] states that left the last layer."""
        head, norm = self.target.get_output_embeddings(), self.target.model.norm
        # One by one: the logits of all branches at once would fill the memory.
        return torch.stack([head(norm(one)).argmax(dim=-1) for one in states])

    def states(self, model: Any, arm: Arm, tokens: torch.Tensor, cache: KVCache) -> tuple[torch.Tensor, torch.Tensor]:
        """A pass of an arm's model, and what went through it.

        Args:
            model: of this arm.
            arm: which.
            tokens, cache: as for `real.cache.forward`.

        Returns:
            (float[1, V] logits of what follows the tokens; float[layers + 1, H]: at the last of them, what entered each
            decoder layer and what left the last one; a layer left out hands on what entered it).
        """
        entered: list[torch.Tensor] = []
        handle = own_layers(model)[0].register_forward_pre_hook(lambda module, inputs: entered.append(inputs[0]))
        kept = self.kept(arm)
        try:
            with hidden_states(model, range(len(kept))) as found:
                logits = forward(model, tokens, cache, keep=1)
        finally:
            handle.remove()
        after = {number: found[place] for place, number in enumerate(kept)}
        for number in range(self.n_layers):
            entered.append(after.get(number, entered[-1]))
        return logits, torch.stack([state[0, -1] for state in entered])

    def cost(self, arm: Arm) -> float:
        """What a pass of the arm costs by the numbers it reads, for every second of the target's own over one token.

        That is what a pass over one token costs where memory is the limit. Mixtures of experts read fewer than this
        counts.
        """
        whole = self.head + self.n_layers * (self.attention + self.mlp)
        return 1.0 - arm.skipped(self.attention, self.mlp) / whole


def check_halves(target: Any) -> None:
    """Refuse a model whose layers are not their two halves, by running both on a few tokens; once for each model.

    Raises:
        ConfigError: parts missing, halves that cannot be run, or logits that differ.
    """
    if getattr(target, "_specsim_halves", False):
        return
    name, advice = type(target).__name__, "layer-skip leaves out whole layers of any model with model.layers"
    for number, layer in enumerate(own_layers(target)):
        missing = [part for part in PARTS if not hasattr(layer, part)]
        if missing:
            raise ConfigError(
                f"{name}: decoder layer {number} has no {missing[0]}; single attentions and MLPs can be left out of "
                f"layers like those of Llama, Qwen and Mistral ({', '.join(PARTS)}); {advice}"
            )
    check_model(target)  # what is wrong with the model as a whole should be said as such
    try:
        gap, scale = _gap(target)
    except torch.OutOfMemoryError:
        raise
    except (AttributeError, IndexError, RuntimeError, TypeError, ValueError) as error:
        raise ConfigError(
            f"{name}: its decoder layers cannot be run in halves ({type(error).__name__}: {error}); {advice}"
        ) from error
    # The same operations in the same order; only kernels that are not repeatable may differ by their rounding.
    allowed = (1e-4 if next(target.parameters()).dtype.itemsize >= 4 else 5e-2) * scale
    if not gap <= allowed:
        raise ConfigError(
            f"{name}: a decoder layer is more than its attention and its MLP behind their norms: run in halves, logits "
            f"differ by {gap:.2g} (allowed {allowed:.2g}); {advice}"
        )
    target._specsim_halves = True


@torch.inference_mode()
def _gap(target: Any) -> tuple[float, float]:
    """(largest difference of the logits of some tokens in whole and in halved layers, their largest size)."""
    size = int(target.get_input_embeddings().weight.shape[0])
    ids = (torch.arange(9, device=next(target.parameters()).device) * 7 + 3) % size
    halved = with_layers(target, {number: _Both(layer) for number, layer in enumerate(own_layers(target))})
    whole, split = (forward(model, ids, KVCache(len(ids))).float() for model in (target, halved))
    return float((whole - split).abs().max()), float(whole.abs().max())
