"""What an EAGLE-3 chain would draft at every position of a response, many positions at a time (`real.record`).

One pass of the target gives the features of the whole text, one of the head its entries. Then the drafts of many
positions grow together, a token a pass; a mask keeps each to the text before it and to itself. Unlike those of a
language model, two drafts that begin alike are not the same further on: one stands on the target's features where the
other stands on the head's own states. So every position is run.
"""

from __future__ import annotations

from typing import Any

import torch

from real.branches import SLOT_LIMIT, Drafts, greedy_choice
from real.cache import KVCache, causal_mask, forward
from real.drafters.eagle3 import embedding_of
from real.drafters.eagle3_net import Eagle3Net
from real.target import hidden_states


class Eagle3Proposer:
    """Drafts greedily with a head; q and entropy are those of its law over the reduced vocabulary.

    Args:
        net: the head.
        model: the target, causal language model.
    """

    def __init__(self, net: Eagle3Net, model: Any) -> None:
        self.net, self.model = net, model
        self._embed, self._ids = embedding_of(net, model), net.target_ids

    def propose(self, text: torch.Tensor, prompt_len: int, lens: torch.Tensor) -> Drafts:
        """As `real.record.Proposer`. Nothing after a text of one token, of which there are no features."""
        starts = prompt_len + torch.arange(len(lens), device=text.device)
        drafts = Drafts.empty(torch.where(starts > 1, lens, 0))
        rows = torch.nonzero(drafts.lens > 0)[:, 0]
        if not len(rows):
            return drafts
        keys = KVCache(len(text) - 1 + SLOT_LIMIT)
        hidden = self._over_text(text, keys)
        for group in rows.split(max(1, SLOT_LIMIT // int(drafts.lens.max()))):
            keys.crop_to(len(text) - 1)
            self._draft(hidden, starts[group], group, drafts, keys)
        return drafts

    def _over_text(self, text: torch.Tensor, keys: KVCache) -> torch.Tensor:
        """float[L - 1, H] outputs of the entries of L tokens; row i predicts what follows i + 2 tokens."""
        layers = self.net.config.target_layers
        with hidden_states(self.model, layers) as found:
            forward(self.model, text[:-1], KVCache(len(text)), keep=1)
        features = torch.cat([found[layer][0] for layer in layers], dim=-1)
        places = torch.arange(len(features), device=text.device)
        visible = causal_mask(len(features), 0, text.device)
        return self.net(self.net.fuse(features)[None], self._embed(text[1:])[None], places, keys, visible)[0]

    def _draft(
        self, hidden: torch.Tensor, starts: torch.Tensor, rows: torch.Tensor, drafts: Drafts, keys: KVCache
    ) -> None:
        """Drafts of some rows, which begin after `starts` tokens."""
        held, hidden = keys.length, hidden[starts - 2]
        before = torch.arange(held, device=starts.device)[None, :] < (starts - 1)[:, None]
        alive, owner = torch.arange(len(rows), device=starts.device), starts[:0]
        for step in range(int(drafts.lens[rows].max())):
            chosen, q, entropy = greedy_choice(self.net.logits(hidden))
            at = rows[alive]
            drafts.tokens[at, step], drafts.q[at, step], drafts.entropy[at, step] = self._ids[chosen], q, entropy
            longer = drafts.lens[at] > step + 1
            alive, hidden = alive[longer], hidden[longer]
            if not len(alive):
                return
            owner = torch.cat([owner, alive])
            visible = torch.cat([before[alive], owner[None, :] == alive[:, None]], dim=1)
            fed = self._embed(drafts.tokens[rows[alive], step])
            hidden = self._step(hidden, fed, starts[alive] - 1 + step, keys, visible)

    def _step(
        self, hidden: torch.Tensor, fed: torch.Tensor, places: torch.Tensor, keys: KVCache, visible: torch.Tensor
    ) -> torch.Tensor:
        return self.net(hidden[None], fed[None], places, keys, visible)[0]
