"""The model whose output is wanted: prompt in, draft scored, rejected tokens taken back.

Owns the target's cache. Knows nothing about who drafts or decides.
"""

from __future__ import annotations

from typing import Any

import torch

from real.cache import CACHES, KVCache, check_model, forward
from specsim.errors import ConfigError


class Target:
    """A causal language model under decoding.

    Args:
        model: transformers causal language model in eval mode.
        cache: `dynamic` (grows) or `static` (fixed shapes, for compiled models).
        merge_prompt: let the first round take the prompt in, which saves a pass per request; its time then holds the
            prompt's. For use, not for measuring rounds.

    Raises:
        ConfigError: a model that tokens cannot be taken back from (`real.cache.check_model`), or an unknown cache.
    """

    def __init__(self, model: Any, *, cache: str = "dynamic", merge_prompt: bool = False) -> None:
        if cache not in CACHES:
            raise ConfigError(f"cache {cache!r}: allowed: {', '.join(CACHES)}")
        check_model(model, static=cache == "static")
        self.model, self._static, self._merge = model, cache == "static", merge_prompt
        self.device = next(model.parameters()).device
        self.window: int | None = getattr(model.config, "max_position_embeddings", None)

    def start(self, prompt: torch.Tensor, capacity: int) -> None:
        """Take in all of the prompt (int64[P], P >= 1) but its last token, which the first round scores."""
        self._cache, self._waiting = KVCache(capacity, static=self._static), prompt[:-1]
        if len(prompt) > 1 and not self._merge:
            forward(self.model, prompt[:-1], self._cache, keep=1)
            self._waiting = prompt[:0]

    def score(self, tokens: torch.Tensor) -> torch.Tensor:
        """float[s, V] logits of what follows each of int64[s] tokens: the last committed one and the draft."""
        if not len(self._waiting):
            return forward(self.model, tokens, self._cache)
        waiting, self._waiting = self._waiting, self._waiting[:0]
        return forward(self.model, torch.cat([waiting, tokens]), self._cache, keep=len(tokens))

    def commit(self, length: int) -> None:
        """Keep the first `length` tokens of the text; what was scored beyond them is forgotten."""
        self._cache.crop_to(length)
