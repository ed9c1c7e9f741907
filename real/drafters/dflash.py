"""Drafting with DFlash: a whole block per pass, from hidden states of the target's committed tokens.

A round's first pass denoises the block as trained, `block_len` tokens. For more, further passes rerun the network with
a longer masked block over the same context, since no hidden states exist for tokens that were not verified, so that a
second block cannot be chained to the first. Pass k has k * block_len masks, `max_draft_len` at most:

    keep-first    its first tokens are dropped: what was drafted before stays, the rest is appended
    per-length    it replaces the whole draft, so that passes before the last one asked for are left out

A pass is never shortened: what a slot holds depends on the length of its block, and so must not depend on how many
tokens are wanted, or a recording at every position could not predict a run. Tokens beyond those asked for are cut off.

Source: z-lab/dflash, dflash/model.py at commit 1012959 (round, rejection sampling); design/controllers.md 2.3 n, 9.5
(extension). Differs from it: the reference shortens the last block to what still fits, and starts from a token that the
prompt's pass yields, where here the first round drafts after the prompt's last token.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch

from real.cache import KVCache
from real.drafters.base import Drafter
from real.drafters.config_values import MOST_BLOCK
from real.drafters.dflash_load import load_dflash
from real.drafters.dflash_net import DFlashNetwork, embedding_of, head_of
from real.drafters.model import DRAFT_SAMPLING
from real.drafters.options import whole
from real.draws import Draws
from real.models import Loaded
from real.target import make_tap
from real.verify import Draft, Processor, process, rowwise, text_for
from specsim.errors import ConfigError
from specsim.kernel import passes_for
from specsim.schema import PASS_RULES

KEEP_FIRST = "keep-first"


class BlockDenoiser:
    """A DFlash network over the text of one request: keeps the context's keys and values, denoises blocks after it.

    Args:
        network: the drafter network, in eval mode, on the target's device.
        model: the target's model, whose hidden states, embedding and head it uses.
    """

    def __init__(self, network: DFlashNetwork, model: Any) -> None:
        self.network = network
        self.tap = make_tap(model, network.config.target_layer_ids)
        self.embedding, self._head = embedding_of(network, model), head_of(network, model)

    def start(self, capacity: int) -> None:
        """Begin a request of at most `capacity` tokens, blocks included, and take in what the tap holds of it."""
        self._cache = KVCache(capacity)
        self.network.absorb(self._context(), self._cache)

    def logits(self, anchor: int, masks: int, *, first: int = 0) -> torch.Tensor | None:
        """Denoise `masks` slots after the last committed token.

        Args:
            anchor: that token; the context is all before it.
            masks: masked slots.
            first: slots whose logits are not wanted, from the left.

        Returns:
            float[masks - first, R], of the R ids the network drafts (`tokens`); None while there is no context.
        """
        new, past = self._context(), self._cache.length
        here = past + new.shape[1]
        if not here:
            return None
        block = self.network.noise(torch.tensor([anchor], device=new.device), 1 + masks, self.embedding)
        places = torch.arange(past, here + 1 + masks, device=new.device)
        ends = here - past
        hidden = self.network(
            block, new, context_positions=places[:ends], block_positions=places[ends:], cache=self._cache
        )
        return self.network.logits(hidden[0, 1 + first :], *self._head)

    def _context(self) -> torch.Tensor:
        features = self.tap.take()
        return self.network.context(features[None].to(self.embedding.dtype))


class SlotPasses:
    """The passes of a round, and the draft positions ("slots") that each says something about.

    Args:
        denoiser: the network over the text.
        block_len: masks of the first pass, the block as trained.
        most: masks of the longest one.
        pass_rule: what further passes do, see the module's text.

    Attributes:
        text: committed tokens.
        passes: made in this round.
    """

    def __init__(self, denoiser: BlockDenoiser, *, block_len: int, most: int, pass_rule: str) -> None:
        self.denoiser, self.block_len, self.most, self.pass_rule = denoiser, block_len, most, pass_rule

    def start(self, prompt: torch.Tensor, capacity: int) -> None:
        """Begin a request (prompt int64[P]) of at most `capacity` tokens."""
        self.denoiser.start(capacity + 1 + max(self.block_len, self.most))
        self.text = prompt.tolist()
        self.commit(())

    def commit(self, tokens: Sequence[int]) -> None:
        """Begin a round; `tokens` belong to the text now."""
        self.text += tokens
        self.passes = self._filled = 0

    def possible(self, count: int) -> int:
        """Slots that can be had in this round when `count` are wanted: as far as the longest pass and the network's
        window go."""
        window = self.denoiser.network.config.max_position_embeddings
        return max(0, min(count, self.most, window - len(self.text)))

    def upto(self, count: int) -> Iterator[tuple[int, torch.Tensor]]:
        """Go on until this round's passes have filled `count` slots, all of them possible ones.

        Yields:
            For each new pass, how many slots stand from before, and float[n, R] logits of the n slots after them;
            nothing when there is nothing to draft from.
        """
        while self._filled < count:
            keep = self.pass_rule == KEEP_FIRST
            number = self.passes + 1 if keep else passes_for(count, self.block_len)
            masks, first = pass_len(number, self.block_len, self.most), self._filled if keep else 0
            logits = self.denoiser.logits(self.text[-1], masks, first=first)
            if logits is None:  # the target has not read the prompt yet
                return
            self.passes, self._filled = self.passes + 1, masks
            yield first, logits


class DFlashDrafter(Drafter):
    """Drafts blocks with a DFlash network.

    Args:
        network: of `real.drafters.dflash_load`, in eval mode, on the target's device and in its dtype.
        model: the target's model.
        name: for logs and tables.
        max_draft_len: most tokens proposed in a round.
        sampling: `greedy` or `sample`, as for `real.drafters.model`; sampled tokens are drawn slot by slot, each from
            its own logits under the request's processors. Confidences are the likeliest tokens' either way, so that
            every controller goes with both (`blind`).
        pass_rule: what passes for a longer draft do, see the module's text.
        block_size: slots of a block, the anchor included; default: as trained.

    Raises:
        ConfigError: an option that is not allowed, or layers the target does not have.
    """

    def __init__(
        self,
        network: DFlashNetwork,
        model: Any,
        *,
        name: str,
        max_draft_len: int = 24,
        sampling: str = "greedy",
        pass_rule: str = KEEP_FIRST,
        block_size: int | None = None,
    ) -> None:
        size = network.config.block_size if block_size is None else block_size
        for key, value, allowed in (("draft sampling", sampling, DRAFT_SAMPLING), ("pass_rule", pass_rule, PASS_RULES)):
            if value not in allowed:
                raise ConfigError(f"{key} {value!r}: allowed: {', '.join(allowed)}")
        for key, value, least in (("max_draft_len", max_draft_len, 1), ("block size", size, 2)):
            if value < least:
                raise ConfigError(f"{key} {value}: allowed: {least} or more")
        self.name, self.max_draft_len, self.samples = name, max_draft_len, sampling == "sample"
        self.blind = self.samples
        self.block_len, self.pass_rule = size - 1, pass_rule
        self.network, self.model, self.window = network, model, network.config.max_position_embeddings
        denoiser = BlockDenoiser(network, model)
        self._slots = SlotPasses(denoiser, block_len=self.block_len, most=max_draft_len, pass_rule=pass_rule)
        self.tap = denoiser.tap

    def start(self, prompt: torch.Tensor, capacity: int, draws: Draws, processors: Sequence[Processor]) -> None:
        self._slots.start(prompt, capacity)
        self._draws, self._processors = draws, processors
        self._prompt_len, self._device = len(prompt), prompt.device
        self._draft = Draft.nothing(self._device)

    def propose(self, count: int, arm: int) -> Draft:
        count = self._slots.possible(count)
        for first, logits in self._slots.upto(count):
            self._draft = self._extended(self._draft.first(first), logits)
        return self._draft.first(count)._replace(passes=self._slots.passes)

    def commit(self, tokens: Sequence[int]) -> None:
        self._slots.commit(tokens)
        self._draft = Draft.nothing(self._device)

    def _extended(self, draft: Draft, logits: torch.Tensor) -> Draft:
        """The draft and one token per row of float[new, R] logits after it."""
        if not self.samples:
            tokens, q = first_choice(self.network, logits)
            return draft.then(Draft(tokens, q))
        # The likeliest token's probability, whichever is drawn: rules that read q must not see luck (`blind`).
        q = first_choice(self.network, logits)[1]
        wide, text = full_width(self.network, logits), text_for(self._processors, self._slots.text, self._device)
        pos = len(self._slots.text) - self._prompt_len
        # Slots are independent of each other's tokens, unless a processor looks at the tokens before each.
        size = len(wide) if rowwise(self._processors) else 1
        for rows, part in zip(wide.split(size), q.split(size), strict=True):
            law = self._law(torch.cat([text, draft.tokens]), rows)
            draft = draft.then(Draft(self._draws.drafted(law, pos + len(draft.tokens)), part, law))
        return draft

    def _law(self, text: torch.Tensor, wide: torch.Tensor) -> torch.Tensor:
        """float32[n, V] what is drawn from, by float[n, V] logits after the text."""
        scores = process(self._processors, text, text[:0], wide)
        if self._processors and self.network.kept_ids is not None:
            # Where the processors forbid every id that is drafted, one is drawn all the same, to be rejected: a shorter
            # draft would tell of the tokens before.
            scores = torch.where(scores.amax(dim=-1, keepdim=True) == -torch.inf, wide, scores)
        return torch.softmax(scores.float(), dim=-1)


def make_dflash(
    options: Mapping[str, str], loaded: Loaded, *, max_draft_len: int, sampling: str, merge_prompt: bool
) -> DFlashDrafter:
    """The drafter `dflash:path=P[,pass_rule=..][,block=..]` of a loaded target (`real.session.Maker`).

    Raises:
        ConfigError: an option that is not allowed, or a checkpoint that is broken or of another target.
    """
    block = whole("dflash", "block", options["block"], low=2, high=MOST_BLOCK) if "block" in options else None
    network = load_dflash(options["path"], loaded.model, device=loaded.device, dtype=loaded.dtype)
    return DFlashDrafter(
        network,
        loaded.model,
        name=f"dflash:{','.join(f'{key}={value}' for key, value in options.items())}",
        max_draft_len=max_draft_len,
        sampling=sampling,
        pass_rule=options.get("pass_rule", KEEP_FIRST),
        block_size=block,
    )


def pass_len(number: int, block_len: int, max_draft_len: int) -> int:
    """Masks of a round's pass `number`, 1-based: the block as trained, then longer ones up to `max_draft_len`."""
    return block_len if number == 1 else min(number * block_len, max_draft_len)


def first_choice(network: DFlashNetwork, logits: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """(int64[n] the likeliest token of each slot, float32[n] its probability) of float[n, R] logits."""
    chosen = logits.argmax(dim=-1)
    scores = logits.float()
    q = (scores.gather(-1, chosen[..., None])[..., 0] - scores.logsumexp(dim=-1)).exp()
    return network.ids_of(chosen), q


def full_width(network: DFlashNetwork, logits: torch.Tensor) -> torch.Tensor:
    """float[n, V] logits of all of the target's ids, -inf for those the network does not draft."""
    if network.kept_ids is None:
        return logits
    wide = logits.new_full((*logits.shape[:-1], network.config.vocab_size), -torch.inf)
    return wide.scatter_(-1, network.kept_ids.expand_as(logits), logits)
