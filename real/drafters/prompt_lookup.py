"""Prompt lookup: copy what followed the last tokens when they occurred before. No model at all.

Source: transformers 5.24, `PromptLookupCandidateGenerator` (generation/candidate_generator.py). Its proposal is a point
mass: a probability of 1 on one token and an entropy of 0, whatever the text. A rule that stops drafting when the
drafter's confidence falls therefore sees no information here and always drafts its maximum.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

import torch

from real.drafters.base import Drafter
from real.draws import Draws
from real.verify import Draft, Processor
from specsim.errors import ConfigError

MAX_NGRAM_LEN = 2


def lookup(
    context: Sequence[int], max_len: int, *, max_ngram_len: int = MAX_NGRAM_LEN, stop_ids: Collection[int] = ()
) -> list[int]:
    """Up to `max_len` tokens that may follow `context`; empty when nothing is found.

    Tries n-grams from `max_ngram_len` tokens down to 1: the last n tokens are searched in the context, the leftmost
    occurrence with at least one following token wins, and what follows it is copied, not beyond the end of the
    context and not from a stop token on. A match right before a stop token ends the search with nothing found, as in
    the library.

    Args:
        context: prompt and committed output, token ids.
        max_len: tokens wanted.
        max_ngram_len: longest n-gram tried.
        stop_ids: end-of-text tokens, never proposed.
    """
    context = list(context)
    n = len(context)
    if max_len < 1:
        return []
    for ngram_len in range(min(max_ngram_len, n - 1), 0, -1):
        ngram = context[n - ngram_len :]
        # The last start that leaves a following token: the n-gram itself, at n - ngram_len, has none.
        for start in range(n - ngram_len):
            if context[start] == ngram[0] and context[start : start + ngram_len] == ngram:
                copied = context[start + ngram_len : start + ngram_len + max_len]
                return _before_stop(copied, stop_ids)
    return []


def _before_stop(tokens: list[int], stop_ids: Collection[int]) -> list[int]:
    for place, token in enumerate(tokens):
        if token in stop_ids:
            return tokens[:place]
    return tokens


class PromptLookupDrafter(Drafter):
    """Prompt lookup in the decode loop. One look-up yields the whole draft, so a pass is `max_draft_len` tokens.

    Args:
        max_draft_len: most tokens copied.
        max_ngram_len: longest n-gram tried.
        stop_ids: tokens never proposed.

    Raises:
        ConfigError: a length below 1.
    """

    def __init__(
        self, *, max_draft_len: int = 24, max_ngram_len: int = MAX_NGRAM_LEN, stop_ids: Collection[int] = ()
    ) -> None:
        self.name = f"prompt-lookup:ngram={max_ngram_len}"
        for what, value in (("max_draft_len", max_draft_len), ("ngram", max_ngram_len)):
            if value < 1:
                raise ConfigError(f"{self.name}: {what} is {value}; allowed: 1 or more")
        self.block_len = self.max_draft_len = max_draft_len
        self.max_ngram_len, self.stop_ids = max_ngram_len, frozenset(stop_ids)

    def start(self, prompt: torch.Tensor, capacity: int, draws: Draws, processors: Sequence[Processor]) -> None:
        self._text, self._device = prompt.tolist(), prompt.device

    def propose(self, count: int, arm: int) -> Draft:
        found = lookup(self._text, count, max_ngram_len=self.max_ngram_len, stop_ids=self.stop_ids)
        return Draft(
            torch.tensor(found, dtype=torch.int64, device=self._device), torch.ones(len(found), device=self._device)
        )

    def commit(self, tokens: Sequence[int]) -> None:
        self._text += tokens
