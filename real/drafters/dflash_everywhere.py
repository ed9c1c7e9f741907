"""DFlash at every position of a text: the blocks that leave it at many places, a few hundred rows per pass.

Owns the shared context (one target pass gives all hidden states, one set of keys and values serves every block, a mask
hides from each what was not committed yet) and the proposals a recorder asks for. Which passes a draft takes, and what
each adds to it, is `real.drafters.dflash`'s rule.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from real.branches import Drafts
from real.cache import KVCache, forward
from real.drafters.dflash import KEEP_FIRST, DFlashDrafter, first_choice, pass_len
from real.drafters.dflash_net import DFlashNetwork, embedding_of, head_of
from real.target import hidden_states
from specsim.schema import MAX_DRAFT_LEN

# Block slots per pass. Each sees the text and the block's own slots; the mask is [slots, text + slots].
ROW_LIMIT = 256


class TextBlocks:
    """A DFlash network whose context is a whole text.

    Args:
        network: the drafter network.
        model: the target's model.
        text: int64[L] token ids on its device.
    """

    def __init__(self, network: DFlashNetwork, model: Any, text: torch.Tensor) -> None:
        self.network, self.text = network, text
        self._embedding, self._head = embedding_of(network, model), head_of(network, model)
        layers = network.config.target_layer_ids
        with hidden_states(model, layers) as found:
            forward(model, text, KVCache(len(text)), keep=1)
        features = torch.cat([found[layer] for layer in layers], dim=-1).to(self._embedding.dtype)
        self._cache = KVCache(len(text) + max(ROW_LIMIT, 1 + MAX_DRAFT_LEN))
        self.network.absorb(self.network.context(features), self._cache)

    def logits(
        self, starts: torch.Tensor, masks: int, *, first: int = 0
    ) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        """Denoise a block at each of some places.

        Args:
            starts: int64[B] committed tokens before each block's first draft token, 2 or more.
            masks: masked slots of every block.
            first: slots whose logits are not wanted, from the left.

        Yields:
            int64[b] indices into `starts`, and float[b, masks - first, R] logits of their slots.
        """
        size, device = 1 + masks, starts.device
        none = self.network.fc.weight.new_zeros(1, 0, self.network.config.hidden_size)
        for rows in torch.arange(len(starts), device=device).split(max(1, ROW_LIMIT // size)):
            anchors = starts[rows] - 1
            own = torch.arange(len(rows), device=device).repeat_interleave(size)
            before = torch.arange(len(self.text), device=device)[None, :] < anchors[own][:, None]
            hidden = self.network(
                self.network.noise(self.text[anchors], size, self._embedding).flatten(0, 1)[None],
                none,
                context_positions=starts[:0],
                block_positions=(anchors[:, None] + torch.arange(size, device=device)).flatten(),
                visible=torch.cat([before, own[:, None] == own[None, :]], dim=1),
                cache=self._cache,
            )
            slots = hidden[0].unflatten(0, (-1, size))[:, 1 + first :]
            yield rows, self.network.logits(slots, *self._head)


class DFlashProposer:
    """What a DFlash drafter would propose at every position (`real.record.Proposer`).

    Args:
        drafter: a greedy one.
    """

    def __init__(self, drafter: DFlashDrafter) -> None:
        self._drafter = drafter

    def propose(self, text: torch.Tensor, prompt_len: int, lens: torch.Tensor) -> Drafts:
        block_len, longest = self._drafter.block_len, self._drafter.max_draft_len
        starts = prompt_len + torch.arange(len(lens), device=lens.device)
        # After a single token there is no context yet, and a drafter proposes nothing.
        lens = torch.where(starts > 1, lens.clamp(max=longest), 0)
        drafts, last = Drafts.empty(lens), -(-lens // block_len)
        blocks = TextBlocks(self._drafter.network, self._drafter.model, text)
        for number in range(1, int(last.max()) + 1 if len(lens) else 1):
            keep = self._drafter.pass_rule == KEEP_FIRST
            rows = torch.nonzero(last >= number if keep else last == number)[:, 0]
            first = pass_len(number - 1, block_len, longest) if keep and number > 1 else 0
            for group, logits in blocks.logits(starts[rows], pass_len(number, block_len, longest), first=first):
                fill(drafts, rows[group], first, logits, self._drafter.network)
        return drafts


def fill(drafts: Drafts, rows: torch.Tensor, first: int, logits: torch.Tensor, network: DFlashNetwork) -> None:
    """Write the slots of float[b, slots, R] logits into the drafts from token `first` on, as far as each row goes."""
    width = min(drafts.tokens.shape[1] - first, logits.shape[1])
    tokens, q = first_choice(network, logits[:, :width])
    entropy = torch.special.entr(torch.softmax(logits[:, :width].float(), dim=-1)).sum(dim=-1)
    places = first + torch.arange(width, device=rows.device)
    row, slot = torch.nonzero(places[None, :] < drafts.lens[rows][:, None], as_tuple=True)
    for values, found in ((drafts.tokens, tokens), (drafts.q, q), (drafts.entropy, entropy)):
        values[rows[row], places[slot]] = found[row, slot]
