"""A tiny random block-diffusion drafter, and its denoising written down a second time. Shared by test_real_fastdllm*.

The reference has no cache: every pass runs the whole text and the block in work under a mask by blocks. Only the dual
cache needs the keys of an earlier pass, by its definition; the reference takes them from the library's own cache.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from transformers import DynamicCache

from real.cache import cache_argument
from real.drafters.fastdllm import FastDLLMDrafter
from tests.real_tiny import VOCABULARY, tiny_family

MASK = VOCABULARY  # the target's ids, then the mask
BLOCK, SMALL = 8, 4


def block_model(kind: str = "qwen2", seed: int = 3, vocabulary: int = VOCABULARY) -> Any:
    """Random weights for some ids and the mask."""
    return tiny_family(kind, seed=seed, vocabulary=vocabulary + 1)


def quiet_target() -> Any:
    """A target that looks back little, so that a drafter that looks ahead too agrees with it now and then."""
    model = tiny_family("qwen2")
    with torch.no_grad():
        for layer in model.model.layers:
            layer.self_attn.o_proj.weight *= 0.3
    return model


def twin_model(target: Any, noise: float = 0.05) -> Any:
    """A drafter that has learned something: the target's weights, disturbed, and a mask that says nothing."""
    twin, own = block_model(), target.state_dict()
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for name, weights in twin.state_dict().items():
            weights[: len(own[name])] = own[name]
            if weights.ndim > 1:
                weights += noise * weights.std() * torch.randn(weights.shape, generator=generator)
        twin.model.embed_tokens.weight[MASK] = 0.0
    return twin


def block_drafter(model: Any = None, **options: Any) -> FastDLLMDrafter:
    own: dict[str, Any] = {
        "mask_id": MASK,
        "bd_size": BLOCK,
        "small": SMALL,
        "block": 3,
        "max_draft_len": 20,
        "width": VOCABULARY,
    }
    return FastDLLMDrafter(block_model() if model is None else model, name="tiny", **(own | options))


class Denoised(NamedTuple):
    """tokens, q: of the leading filled positions; passes: made, and per pass its confidences and positions filled."""

    tokens: list[int]
    q: list[float]
    passes: list[tuple[list[float], int]]


@torch.inference_mode()
def denoise(
    model: Any, text: list[int], count: int, *, threshold: float, dual: bool = False, free_first: bool = True
) -> Denoised:
    """Fill masks after `text` until the first `count` are filled.

    Args:
        free_first: where the text ends with a block, what its last output says is known without a pass.
    """
    line, probability, log = list(text), {}, []

    def filled() -> int:
        return next((i for i, token in enumerate(line[len(text) :]) if token == MASK), len(line) - len(text))

    while filled() < count:
        if len(line) % BLOCK == 0:
            free = free_first and len(line) == len(text)
            token, q = likeliest(whole(model, line)[-1])
            probability[len(line)] = q
            line.append(token)
            if not free:
                log.append(([], filled()))
            if filled() == count:
                break
        line += [MASK] * (-len(line) % BLOCK)
        log += fill(model, line, probability, filled, count, threshold=threshold, dual=dual)
    tokens = line[len(text) : len(text) + filled()]
    return Denoised(tokens, [probability[len(text) + i] for i in range(len(tokens))], log)


def fill(model: Any, line: list[int], probability: dict, filled: Any, count: int, *, threshold: float, dual: bool):
    """The passes over the last block of `line`."""
    begin, stale = len(line) - BLOCK, None
    for low in range(begin, len(line), SMALL):
        while MASK in line[low : low + SMALL] and filled() < count:
            if dual and stale is not None and line[low] != MASK:
                rows = dict(zip(range(low + 1, low + SMALL), in_block(model, line, low, stale), strict=False))
            else:
                stale = list(line)
                rows = dict(enumerate(whole(model, line), start=1))
            places = [p for p in range(low, low + SMALL) if line[p] == MASK]
            guesses = {p: likeliest(rows[p]) for p in places}
            best = max(places, key=lambda p: guesses[p][1])
            for p in places:
                if p == best or guesses[p][1] > threshold:
                    line[p], probability[p] = guesses[p]
            yield [guesses[p][1] for p in places], filled()


def likeliest(row: torch.Tensor) -> tuple[int, float]:
    law = row[:VOCABULARY].float().softmax(-1)
    return int(row[:VOCABULARY].argmax()), float(law.max())


def additive(visible: torch.Tensor) -> torch.Tensor:
    return torch.zeros(visible.shape).masked_fill(~visible, torch.finfo(torch.float32).min)[None, None]


def whole(model: Any, line: list[int]) -> torch.Tensor:
    """Logits after every token of whole blocks, under the mask by blocks, without a cache."""
    of = torch.arange(len(line)) // BLOCK
    mask = additive(of[None, :] <= of[:, None])
    return model(input_ids=torch.tensor([line]), attention_mask=mask, use_cache=False).logits[0]


def in_block(model: Any, line: list[int], low: int, stale: list[int]) -> torch.Tensor:
    """Logits of a small block that sees the other tokens as they were in a pass over `stale`."""
    cache: Any = DynamicCache()
    of = torch.arange(len(stale)) // BLOCK
    given: Any = {cache_argument(model): cache}
    model(input_ids=torch.tensor([stale]), attention_mask=additive(of[None, :] <= of[:, None]), **given)
    others = [p for p in range(len(stale)) if not low <= p < low + SMALL]
    for layer in cache.layers:
        layer.keys, layer.values = layer.keys[:, :, others], layer.values[:, :, others]
    return model(
        input_ids=torch.tensor([line[low : low + SMALL]]),
        position_ids=torch.arange(low, low + SMALL)[None],
        attention_mask=additive(torch.ones(SMALL, len(stale), dtype=torch.bool)),
        **given,
    ).logits[0]
