"""Tiny DFlash networks for tests: random ones, and ones fitted for a second to a text so that drafts are accepted."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F

from real.compat import logits_width
from real.drafters.dflash_net import DFlashConfig, DFlashNetwork, embedding_of, head_of
from real.target import decoder_layers, hidden_states

MASK = 0


def tiny_config(model: Any, **options: Any) -> DFlashConfig:
    """Two layers over layers 0 and 2 of a three-layer target, blocks of 4 (3 draft tokens) unless told otherwise."""
    sizes: dict[str, Any] = {
        "vocab_size": logits_width(model),
        "hidden_size": model.get_input_embeddings().weight.shape[1],
        "intermediate_size": 48,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 8,
        "target_layer_ids": (0, 2),
        "num_target_layers": len(decoder_layers(model)),
        "block_size": 4,
        "mask_token_id": MASK,
        "max_position_embeddings": 256,
    }
    return DFlashConfig(**(sizes | options))


def tiny_dflash(model: Any, *, seed: int = 0, spread: float = 0.3, **options: Any) -> DFlashNetwork:
    """A random network for a target; `spread` is the standard deviation of its matrices."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        network = DFlashNetwork(tiny_config(model, **options))
        for name, weights in network.named_parameters():
            if weights.ndim > 1 and not name.startswith(("embed_tokens", "lm_head")):
                torch.nn.init.normal_(weights, std=spread)
    return network.eval().requires_grad_(False)


@torch.no_grad()
def features_of(model: Any, text: torch.Tensor, layers: tuple[int, ...]) -> torch.Tensor:
    """float[1, L, len(layers) * H] hidden states of a text after some layers, by one pass without a cache."""
    with hidden_states(model, layers) as found:
        model(input_ids=text[None], use_cache=False)
    return torch.cat([found[layer] for layer in layers], dim=-1).clone()


def fitted_dflash(model: Any, text: torch.Tensor, *, steps: int = 120, noise: float = 0.0, **options: Any) -> Any:
    """A network that learned to continue `text` (int64[L]) at every place of it, disturbed by a share of its weights.

    All blocks are one pass with a mask, as in training proper.
    """
    network = tiny_dflash(model, spread=0.1, **options).requires_grad_(True)
    config = network.config
    size = config.block_size
    features = features_of(model, text, config.target_layer_ids)
    anchors = torch.arange(1, len(text) - size + 1)
    offsets = torch.arange(size)
    places = (anchors[:, None] + offsets).flatten()
    own = torch.arange(len(anchors)).repeat_interleave(size)
    visible = torch.cat([torch.arange(len(text))[None] < anchors[own][:, None], own[:, None] == own[None, :]], dim=1)
    wanted = text[anchors[:, None] + offsets[1:]].flatten()
    optimizer = torch.optim.Adam(network.parameters(), lr=1e-2)
    weight, bias = (None if part is None else part.detach() for part in head_of(network, model))
    embedding = embedding_of(network, model).detach()
    for _ in range(steps):
        blocks = network.noise(text[anchors], size, embedding).flatten(0, 1)[None]
        hidden = network(
            blocks,
            network.context(features),
            context_positions=torch.arange(len(text)),
            block_positions=places,
            visible=visible,
        )
        rows = hidden[0].unflatten(0, (-1, size))[:, 1:].flatten(0, 1)
        loss = F.cross_entropy(network.logits(rows, weight, bias), wanted)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for weights in network.parameters():
            if weights.ndim > 1:
                weights += noise * weights.std() * torch.randn(weights.shape, generator=generator)
    return network.eval().requires_grad_(False)
