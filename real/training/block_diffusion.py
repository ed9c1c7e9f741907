"""Noisy copies of blocks beside a clean text, as one pass of a causal language model with a mask.

The conventions are those of `real.drafters.fastdllm_load`: blocks count from the text's first token; a noisy block sees
itself and the clean blocks before it; a clean block sees itself and those before it; position p is predicted by the
output at p - 1, and the first position of a block by the last output of the clean block before.
Source: Fast-dLLM v2 (arXiv 2509.26328), training with concatenated noisy and clean sequences.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch


def block_logits(
    model: Any, ids: torch.Tensor, blocks: torch.Tensor, noisy: torch.Tensor, size: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Run a text and noisy copies of some of its blocks.

    Args:
        model: transformers causal language model.
        ids: int64[B, T] clean texts, T a multiple of `size`.
        blocks: int64[B, N] which block each noisy copy stands for.
        noisy: int64[B, N, size] its tokens.
        size: tokens of a block.

    Returns:
        (float[B, T, H], float[B, N, size, H]) last hidden states of the clean text and of the noisy copies.
    """
    batch, length = ids.shape
    device, count = ids.device, blocks.shape[1]
    clean = torch.arange(length, device=device)
    places = blocks[:, :, None] * size + torch.arange(size, device=device)
    positions = torch.cat([clean.expand(batch, -1), places.flatten(1)], dim=1)
    number = positions // size
    copy = torch.arange(count, device=device).repeat_interleave(size)
    mine = torch.cat([torch.full((length,), -1, device=device), copy])  # -1: the clean text
    to_clean = (mine == -1)[None, None, :]
    earlier = number[:, None, :] < number[:, :, None]
    same = number[:, None, :] == number[:, :, None]
    own = (mine[None, :] == mine[:, None])[None]
    seen = (to_clean & earlier) | (own & same)
    dtype = model.get_input_embeddings().weight.dtype
    mask = torch.zeros(seen.shape, dtype=dtype, device=device).masked_fill_(~seen, torch.finfo(dtype).min)
    states = model.base_model(
        input_ids=torch.cat([ids, noisy.flatten(1)], dim=1),
        attention_mask=mask[:, None],
        position_ids=positions,
        use_cache=False,
    ).last_hidden_state
    return states[:, :length], states[:, length:].unflatten(1, (count, size))


def draw_masks(count: int, size: int, rng: np.random.Generator) -> np.ndarray:
    """bool[count, size], True where a copy is masked; never the first token of a block.

    Half of the copies are masked from a random place to the end, which is how a drafter meets a block. The others come
    in pairs with complementary masks of a random rate, so that every token is learned from both sides.
    """
    ends = count - count // 4 * 2
    cuts = rng.integers(1, size, size=(ends, 1))
    suffix = np.arange(size)[None, :] >= cuts
    rates = rng.random((count // 4, 1))
    random = rng.random((count // 4, size)) < rates
    masks = np.concatenate([suffix, random, ~random])
    masks[:, 0] = False
    return masks
