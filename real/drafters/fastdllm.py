"""Drafting with a block-diffusion model of the Fast-dLLM v2 kind: masks filled block by block, several in a pass.

Owns the drafter's cache and the order in which masks are filled. Loading is `real.drafters.fastdllm_load`, which also
says what such a model expects.

One pass runs the block in work over the cached blocks before it. In its leftmost small block that has masks, every mask
whose token has a probability above the threshold is replaced by that token, and always the most probable one. When a
block is full, a pass writes it to the cache and yields the first token of the next block. The order of passes depends
on the text alone: a request for m tokens stops once the first m draft positions are filled, and a longer request goes
on from there. So the first tokens of a longer draft are those of the shorter one.

Sources: arXiv 2509.26328; HoangMaizzz/failfasttesting@7cc16bb, Fast_dLLM_v2_1.5B/modeling.py, `generate` (a copy of the
published file), and for drafts of a given length ruipeterpan/failfast@056dbd0, failfast.py, `get_next_n_tokens_dllm`.
Where it differs:

* Complete blocks of committed text that are not in the cache yet are read in the same pass as the block in work. There
  they cost a pass of their own, after which the numbers are the same. Only when the text ends exactly at the end of a
  block has its last output to be known first, which takes that pass here too.
* The mask, and ids the target does not have, are never proposed; probabilities are of what is left.
* Nothing ends at an end-of-text token: the decode loop cuts there.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch

from real.branches import greedy_choice
from real.cache import KVCache, forward
from real.compat import logits_width
from real.drafters.base import Drafter
from real.drafters.fastdllm_load import check_block_model, load_block_model
from real.drafters.options import fraction, whole
from real.draws import Draws
from real.models import Loaded
from real.verify import Draft, Processor
from specsim.errors import ConfigError
from specsim.passes import PassRecord

MASKED = -1  # in place of a token that is not fixed yet


class Fixed(NamedTuple):
    """A draft position: its token, and the drafter's probability and entropy (nats) in the pass that fixed it."""

    token: int = MASKED
    q: float = 0.0
    entropy: float = 0.0


class FastDLLMDrafter(Drafter):
    """Fills masks with a block-diffusion model.

    Every pass records the probability of the best token of each mask in the small block it works on, those beyond the
    draft asked for included, as FailFast's released rule reads them; a pass that writes a full block records none.

    Drafts are chosen, never drawn (`samples` is False), which is lossless at any temperature. Drawn ones could not be
    verified: tokens are fixed in an order that depends on their values, and one fixed early bears on those before it,
    so that the law of a token given the ones before it is not known.

    Args:
        model: causal language model on the target's device (`BlockModel.model`).
        name: for logs and tables.
        mask_id: id of the mask.
        bd_size: tokens of a block, as trained.
        small: tokens of a small block, a divisor of `bd_size`.
        threshold: probability above which a token is fixed at once (0.9 in Fast-dLLM's chat script, 0.05 in FailFast).
        block: tokens that a request is rounded up to, `block_len` for controllers (10 in LibraSpec and FailFast).
        dual: keep keys and values of the block in work, and run only the small block once its first token is fixed;
            faster, and not the same tokens.
        max_draft_len: most tokens proposed in a round.
        width: ids the target knows.
        merge_prompt: let the first draft pass take the prompt in, as `real.target.Target` can.

    Raises:
        ConfigError: a number out of range, or a small block that does not divide the block.
    """

    reports_passes = True

    def __init__(
        self,
        model: Any,
        *,
        name: str,
        mask_id: int,
        bd_size: int = 32,
        small: int = 8,
        threshold: float = 0.9,
        block: int = 10,
        dual: bool = False,
        max_draft_len: int = 60,
        width: int | None = None,
        merge_prompt: bool = False,
    ) -> None:
        if small < 1 or bd_size % small:
            raise ConfigError(f"small {small}: allowed: a divisor of the drafter's block of {bd_size} tokens")
        if not 0.0 <= threshold <= 1.0:
            raise ConfigError(f"threshold {threshold}: allowed: 0 to 1")
        for key, value in (("block", block), ("max_draft_len", max_draft_len)):
            if value < 1:
                raise ConfigError(f"{key} {value}: allowed: 1 or more")
        self.model, self.name, self.mask_id, self.bd_size, self.small = model, name, mask_id, bd_size, small
        self.threshold, self.block_len, self.dual, self.max_draft_len = threshold, block, dual, max_draft_len
        self.window: int | None = getattr(model.config, "max_position_embeddings", None)
        self.width, self._merge = width, merge_prompt
        self._known = int(model.get_input_embeddings().weight.shape[0])

    def start(self, prompt: torch.Tensor, capacity: int, draws: Draws, processors: Sequence[Processor]) -> None:
        # A draft may go on to the end of its last block; a small block's newest keys stand behind the block's.
        self._cache = KVCache(capacity + self.bd_size + self.small)
        self._device, self._text = prompt.device, prompt.tolist()
        self._held = 0  # tokens of complete blocks in the cache
        self._first: dict[int, Fixed] = {}  # what the block that ends here says of the next token
        self._line: list[Fixed] = []
        if self.room > 0 and not self._merge and len(prompt) >= self.bd_size:
            self._write(len(prompt) // self.bd_size * self.bd_size)
        self._begin_round()

    def propose(self, count: int, arm: int) -> Draft:
        count = min(count, self.room)
        while self.filled < count:
            self._one_pass()
        found = self._line[:count]
        return Draft(
            torch.tensor([fixed.token for fixed in found], dtype=torch.int64, device=self._device),
            torch.tensor([fixed.q for fixed in found], dtype=torch.float32, device=self._device),
            passes=len(self._made),
            record=self.record(),
        )

    def refine(self, count: int, arm: int) -> Draft:
        self._one_pass()
        return self.propose(count, arm)

    def entropies(self, count: int) -> list[float]:
        """Of the first `count` draft tokens, in nats, each in the pass that fixed it."""
        return [fixed.entropy for fixed in self._line[:count]]

    def rewind(self) -> None:
        """Take back the round's whole draft and what it wrote to the cache, as if its first token had been rejected."""
        self._held = min(self._held, len(self._text) // self.bd_size * self.bd_size)
        self._begin_round()

    def commit(self, tokens: Sequence[int]) -> None:
        before, drafted = len(self._text), [fixed.token for fixed in self._line]
        agree = 0
        while agree < min(len(tokens), len(drafted)) and tokens[agree] == drafted[agree]:
            agree += 1
        self._text += tokens
        # A block written with draft tokens stays as far as all of them became text.
        self._held = min(self._held, (before + agree) // self.bd_size * self.bd_size)
        self._begin_round()

    def _begin_round(self) -> None:
        self._cache.crop_to(self._held)
        self._first = {end: fixed for end, fixed in self._first.items() if end <= self._held}
        self._line, self._copied = [], False
        self._made: list[tuple[list[float], int]] = []  # confidences and filled positions of the round's passes
        if len(self._text) % self.bd_size or self._held == len(self._text):
            self._open()

    @property
    def room(self) -> int:
        """Draft tokens that fit the drafter's own context window after the text."""
        left = self.max_draft_len if self.window is None else self.window - len(self._text)
        return max(0, min(self.max_draft_len, left))

    @property
    def filled(self) -> int:
        """Leading draft positions that are fixed."""
        return next((place for place, fixed in enumerate(self._line) if fixed.token == MASKED), len(self._line))

    def _one_pass(self) -> None:
        confidences: list[float] = []
        if self.filled < len(self._line):
            confidences = self._denoise()
        else:
            self._write(len(self._text) + len(self._line))
            self._open()
        self._made.append((confidences, min(self.filled, self.room)))

    def record(self) -> PassRecord:
        """What the round's passes recorded."""
        return PassRecord(
            np.array([value for confidences, _ in self._made for value in confidences], np.float32),
            np.array([len(confidences) for confidences, _ in self._made], np.int16),
            np.array([filled for _, filled in self._made], np.int16),
        )

    def _open(self) -> None:
        """Add masks up to the end of the next position's block; a block's first token follows from the one before."""
        at = len(self._text) + len(self._line)
        if at % self.bd_size == 0:
            self._line.append(self._first[at])
            at += 1
        self._line += [Fixed()] * (-at % self.bd_size)

    def _write(self, end: int) -> None:
        """Read complete blocks up to `end` into the cache, and what their last output says of the next token."""
        self._cache.crop_to(self._held)
        logits = self._run(self._tokens(self._held, end), keep=1)
        self._held, self._copied = end, False
        self._first[end] = self._choices(logits)[0]

    def _denoise(self) -> list[float]:
        """One pass over the block in work: fix what is sure in its leftmost small block with masks.

        Returns:
            The probability of the best token of every mask there, before any was fixed.
        """
        length, filled = len(self._text), self.filled
        begin = (length + filled) // self.bd_size * self.bd_size
        low = (length + filled) // self.small * self.small
        masked = [p for p in range(length + filled, low + self.small) if self._line[p - length].token == MASKED]
        if self._copied and low < length + filled:
            before, logits = low, self._run_small(begin, low)
        else:
            # Position p is predicted by the output at p - 1. The first position of a block is never masked.
            before = masked[0] - 1
            self._cache.crop_to(self._held)
            logits = self._run(self._tokens(self._held, begin + self.bd_size), keep=begin + self.bd_size - before)
            self._held, self._copied = begin, self.dual
        found = self._choices(logits[[p - 1 - before for p in masked]])
        best = max(range(len(found)), key=lambda place: found[place].q)
        for place, (position, fixed) in enumerate(zip(masked, found, strict=True)):
            if place == best or fixed.q > self.threshold:
                self._line[position - length] = fixed
        return [fixed.q for fixed in found]

    def _run(self, tokens: torch.Tensor, keep: int) -> torch.Tensor:
        """Logits of the last `keep` of some tokens after the cached ones; each sees its own block and those before."""
        past = self._cache.length
        columns = torch.arange(past + len(tokens), device=self._device) // self.bd_size
        return forward(self.model, tokens, self._cache, visible=columns <= columns[past:, None], keep=keep)

    def _run_small(self, begin: int, low: int) -> torch.Tensor:
        """Logits of one small block, the rest of its block standing in the cache as it was when all of it was run."""
        after = begin + self.bd_size
        self._cache.crop_to(after)
        visible = torch.ones(self.small, after + self.small, dtype=torch.bool, device=self._device)
        visible[:, low : low + self.small] = False  # these are run anew and stand behind
        places = torch.arange(low, low + self.small, device=self._device)
        tokens = self._tokens(low, low + self.small)
        return forward(self.model, tokens, self._cache, position_ids=places, visible=visible)

    def _tokens(self, first: int, last: int) -> torch.Tensor:
        """int64[last - first] ids of text and draft, as the drafter can read them."""
        length = len(self._text)
        drafted = [fixed.token for fixed in self._line[max(0, first - length) : max(0, last - length)]]
        ids = [*self._text[first:last], *(self.mask_id if token == MASKED else token for token in drafted)]
        # An id only the target has is read as some other one: that costs acceptance, an unknown id the run.
        some = int(self.mask_id == 0)
        return torch.tensor([token if token < self._known else some for token in ids], device=self._device)

    def _choices(self, logits: torch.Tensor) -> list[Fixed]:
        """The most probable token after each row, the mask and ids unknown to the target left out."""
        scores = logits[:, : self.width].float()
        if self.mask_id < scores.shape[1]:
            scores = scores.index_fill(1, torch.tensor([self.mask_id], device=scores.device), -torch.inf)
        tokens, q, entropy = greedy_choice(scores)
        return [
            Fixed(int(token), q, entropy)
            for token, q, entropy in torch.stack([tokens.double(), q.double(), entropy.double()], dim=1).tolist()
        ]


def make_fastdllm(
    options: Mapping[str, str], loaded: Loaded, *, max_draft_len: int, sampling: str, merge_prompt: bool
) -> FastDLLMDrafter:
    """The drafter `fastdllm:path=P[,threshold=..][,block=..][,small=..][,dual=..]` of a target (`real.session.Maker`).

    Raises:
        ConfigError: an option that is not allowed, sampled drafts, or a checkpoint that is broken or of another target.
    """
    if sampling != "greedy":
        raise ConfigError(
            f"fastdllm: draft sampling {sampling!r}: allowed: 'greedy'. It fixes tokens in an order that depends on "
            "their values, and later ones before earlier ones, so that the law of a drawn token given those before it "
            "is not known and verification could not be exact. Greedy drafts are lossless at any temperature"
        )
    numbers: dict[str, Any] = {
        key: whole("fastdllm", key, options[key]) for key in ("block", "small") if key in options
    }
    if "threshold" in options:
        numbers["threshold"] = fraction("fastdllm", "threshold", options["threshold"])
    if options.get("dual", "0") not in ("0", "1"):
        raise ConfigError(f"fastdllm: dual is {options['dual']!r}; allowed: 0 or 1")
    found = load_block_model(options["path"], dtype=loaded.dtype, device=loaded.device)
    check_block_model(found, loaded)
    return FastDLLMDrafter(
        found.model,
        name=f"fastdllm:{','.join(f'{key}={value}' for key, value in options.items())}",
        mask_id=found.mask_id,
        bd_size=found.bd_size,
        dual=options.get("dual") == "1",
        max_draft_len=max_draft_len,
        width=logits_width(loaded.model),
        merge_prompt=merge_prompt,
        **numbers,
    )
