"""SpecVLM live: draft passes of the target that see only some of the visual tokens.

Which ones, `real.builders.specvlm` says, from the target's attention to them. The target sees all. An arm is a share of
visual tokens left out; its draft passes run the whole target, or what one set of sub-blocks leaves of it, over a cache
of their own: copies of the target's keys and values of the tokens kept, to which the text is added as it is committed.
Copies cost memory once per arm and prompt; a mask would cost none, but a masked pass reads all keys all the same.

The published code prefills a draft model with the shorter prompt, so that tokens kept move together and have seen only
each other. Here they are the target's own: each has seen all visual tokens before it and keeps its rotary position.

Owns the scores' pass over the prompt's last text and the copies.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from time import perf_counter
from typing import Any

import numpy as np
import torch

from real.builders.arm import Arm
from real.builders.specvlm import SHARE, Ranks, attention_scores, kept_count, sequence_positions, two_stage
from real.cache import KVCache, forward
from real.drafters.family import Family, Observation
from real.target import decoder_layers
from real.vision.model import VisionModel
from specsim.errors import ConfigError


@contextmanager
def _attention_to(model: Any, visual: Sequence[int]) -> Iterator[list[torch.Tensor]]:
    """While it is open, a pass computes eagerly and leaves float32[n] attention to visual tokens, of each layer."""
    found: list[torch.Tensor] = []
    attentions: list[Any] = [layer.self_attn for layer in decoder_layers(model)]
    configs = {id(attention.config): attention.config for attention in attentions}.values()
    before = [config._attn_implementation for config in configs]

    def hook(module: torch.nn.Module, inputs: Any, output: Any) -> None:
        if output[1] is None:
            raise ConfigError(f"{type(module).__name__} gives no attention weights; SpecVLM needs them")
        found.append(attention_scores([output[1][0].float()], visual))

    handles = [attention.register_forward_hook(hook) for attention in attentions]
    try:
        for config in configs:
            config._attn_implementation = "eager"
        yield found
    finally:
        for config, implementation in zip(configs, before, strict=True):
            config._attn_implementation = implementation
        for handle in handles:
            handle.remove()


@torch.inference_mode()
def visual_attention(model: Any, ids: torch.Tensor, visual: Sequence[int], cache: KVCache) -> np.ndarray:
    """float32[n]: the target's attention to each visual token, from the text behind the last one (SpecVLM's queries).

    One pass over that text with eager attention, on copies of what the cache holds before it: the target's own keys and
    values stay as they are.

    Args:
        model: the language model (`VisionModel.text`).
        ids: int64[P], the prompt.
        visual: places of visual tokens, ascending, at least one.
        cache: holds at least the prompt but its last token.

    Raises:
        ConfigError: layers that give no attention weights.
    """
    after = visual[-1] + 1
    scratch = KVCache(len(ids))
    scratch.shift = cache.shift
    scratch.append_rows(cache, torch.arange(after, device=ids.device))
    with _attention_to(model, visual) as scores:
        forward(model, ids[after:], scratch, keep=1)
    return torch.stack(scores).mean(0).cpu().numpy()


class _View:
    """A cache of some of a prompt's tokens and of all text behind it.

    Args:
        cache: the target's, holding the prompt but its last token.
        prompt: tokens of it.
        rows: int64[kept] places of those kept.
    """

    def __init__(self, cache: KVCache, prompt: int, rows: torch.Tensor) -> None:
        self._left_out, self._known, self._device = prompt - len(rows), len(rows), rows.device
        self._cache = KVCache(cache.capacity)
        self._cache.shift = cache.shift + self._left_out  # later tokens are at the target's rotary positions
        self._cache.append_rows(cache, rows)

    def behind(self, cache: KVCache) -> KVCache:
        """The cache, with the text that was committed since, and without what drafts have left in it."""
        self._cache.crop_to(self._known)
        self._cache.append_rows(cache, torch.arange(self._known + self._left_out, cache.length, device=self._device))
        self._known = self._cache.length
        return self._cache


class PrunedFamily(Family):
    """Arms that leave out shares of the visual tokens, for a self-speculating drafter of a vision-language target.

    Args:
        model: the target.
        drop_rates: share of visual tokens left out by each arm, ascending; 0 sees everything.
        arm: sub-blocks that all of them leave out besides.
        share: as in `real.builders.specvlm.two_stage`.

    Attributes:
        scoring_s: seconds that the last prompt's scores and choices took; they belong to its prefill.
        kept: int64 ranks of the visual tokens that each arm keeps of the last prompt.

    Raises:
        ConfigError: no rate, rates out of range or not ascending.
    """

    def __init__(
        self, model: VisionModel, drop_rates: Sequence[float], *, arm: Arm | None = None, share: float = SHARE
    ) -> None:
        rates = tuple(drop_rates)
        if not rates or list(rates) != sorted(set(rates)) or min(rates) < 0 or max(rates) > 1:
            raise ConfigError(f"SpecVLM: drop rates {list(rates)}; allowed: ascending, each 0..1, at least one")
        self._model, self.rates, self.size = model, rates, len(rates)
        self._arm, self._share = arm or Arm(), share
        self.scoring_s = 0.0
        self.kept: tuple[Ranks, ...] = ()

    def start(self, prompt: torch.Tensor) -> None:
        self._views: dict[int, _View] = {}

    def look(self, prompt: torch.Tensor, cache: KVCache) -> None:
        started = perf_counter()
        self._marks, self._device = self._model.visual(prompt).cpu().numpy().astype(np.int64), prompt.device
        places = np.flatnonzero(self._marks).tolist()
        scores = visual_attention(self._model.text, prompt, places, cache) if places else np.zeros(0, np.float32)
        counts = [kept_count(len(places), rate) for rate in self.rates]
        self.kept = tuple(two_stage(scores, keep, share=self._share) for keep in counts)
        self.scoring_s = perf_counter() - started

    def view(self, number: int, cache: KVCache) -> KVCache:
        if len(self.kept[number]) == int(self._marks.sum()):
            return cache
        view = self._views.get(number)
        if view is None:
            rows = sequence_positions(self._marks[:-1].tolist(), 1, self.kept[number])
            view = self._views[number] = _View(cache, len(self._marks) - 1, torch.from_numpy(rows).to(self._device))
        return view.behind(cache)

    def arm(self, number: int) -> Arm:
        return self._arm

    def observe(self, seen: Observation) -> None:
        pass
