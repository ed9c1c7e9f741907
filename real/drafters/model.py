"""Drafting with a causal language model: a second, smaller one, or the target with layers left out.

Owns the drafter's own cache. The target's early layers could be shared instead for a drafter made of them; an own cache
keeps one code path for all three, and the recorder (`real.record`) does the same, so that traces predict it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from real.branches import greedy_choice
from real.cache import KVCache, forward
from real.drafters.base import Drafter
from real.draws import Draws
from real.verify import Draft, Processor, process, text_for
from specsim.errors import ConfigError

DRAFT_SAMPLING = ("greedy", "sample")


class ModelDrafter(Drafter):
    """Drafts token by token with a model of its own.

    Args:
        model: causal language model on the target's device.
        name: for logs and tables.
        max_draft_len: most tokens proposed in a round.
        sampling: `greedy` takes the model's first choice whatever the target's temperature; `sample` draws from the
            model's distribution under the target's settings. Both keep the target's law; see `real.loop` for which
            controllers go with `sample`.
        merge_prompt: let the first draft pass take the prompt in, as `real.target.Target` can.
        width: ids the target knows; a drafter with a wider (padded) vocabulary never proposes the others.

    Raises:
        ConfigError: an unknown kind of sampling, or a limit below 1.
    """

    block_len = 1

    def __init__(
        self,
        model: Any,
        *,
        name: str,
        max_draft_len: int = 24,
        sampling: str = "greedy",
        width: int | None = None,
        merge_prompt: bool = False,
    ) -> None:
        if sampling not in DRAFT_SAMPLING:
            raise ConfigError(f"draft sampling {sampling!r}: allowed: {', '.join(DRAFT_SAMPLING)}")
        if max_draft_len < 1:
            raise ConfigError(f"max_draft_len {max_draft_len}: a drafter proposes 1 token or more")
        self.model, self.name, self.max_draft_len, self.samples = model, name, max_draft_len, sampling == "sample"
        self.window = getattr(model.config, "max_position_embeddings", None)
        self.width, self._merge = width, merge_prompt
        self._known = int(model.get_input_embeddings().weight.shape[0])

    def start(self, prompt: torch.Tensor, capacity: int, draws: Draws, processors: Sequence[Processor]) -> None:
        self._cache = KVCache(capacity)
        self._draws, self._processors = draws, processors
        self._text = prompt.tolist()
        self._prompt_len, self._device = len(prompt), prompt.device
        if len(prompt) > 1 and self._room() > 0 and not self._merge:
            forward(self.model, self._readable(prompt[:-1]), self._cache, keep=1)
        self._draft = Draft.nothing(self._device)

    def propose(self, count: int, arm: int) -> Draft:
        already = len(self._draft.tokens)
        count = min(count, self._room())
        feed = self._readable(torch.tensor(self._text[self._cache.length :], device=self._device))
        for number in range(already, count):
            if number:
                feed = self._draft.tokens[-1:]
            # Only the last row matters: what follows everything fed.
            logits = forward(self.model, feed, self._cache, keep=1)[:, : self.width]
            self._draft = self._draft.then(self._sampled(logits, number) if self.samples else _greedy(logits))
        return self._draft

    def commit(self, tokens: Sequence[int]) -> None:
        self._text += tokens
        # All but the last committed token may be in the cache already: the accepted part of the draft.
        self._cache.crop_to(min(self._cache.length, len(self._text) - 1))
        self._draft = Draft.nothing(self._device)

    def _room(self) -> int:
        """Draft tokens that fit the drafter's own context window after the text."""
        return self.max_draft_len if self.window is None else min(self.max_draft_len, self.window - len(self._text))

    def _readable(self, tokens: torch.Tensor) -> torch.Tensor:
        """Tokens with ids the drafter has no embedding for (only the target's padding has) replaced by its last one.

        That costs acceptance, not correctness; an unknown id would end the run.
        """
        return tokens.clamp(max=self._known - 1)

    def _sampled(self, logits: torch.Tensor, number: int) -> Draft:
        if self.width is not None and logits.shape[1] < self.width:  # ids only the target has are never drafted
            # Before the processors: they may hold one bias per id of the target.
            logits = torch.nn.functional.pad(logits, (0, self.width - logits.shape[1]), value=-torch.inf)
        text = text_for(self._processors, self._text, self._device)
        # The row follows the text and the whole draft so far, whose rows were processed before.
        scores = process(self._processors, torch.cat([text, self._draft.tokens]), text[:0], logits)
        law = torch.softmax(scores.float(), dim=-1)
        token = self._draws.drafted(law, len(self._text) - self._prompt_len + number)
        q = torch.softmax(logits.float(), dim=-1)[0, token]
        return Draft(token, q, law)


def _greedy(logits: torch.Tensor) -> Draft:
    token, q, _ = greedy_choice(logits)
    return Draft(token, q)
