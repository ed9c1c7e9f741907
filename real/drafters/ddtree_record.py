"""What DDTree's trees are grown from at every position of a response (`real.record`).

Unlike a chain's, rows are not cut at the end of the text: a tree is not cut there either when it is grown, so that a
replay sees the very confidences a live rule sees. What lies beyond the end is never accepted.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from real.branches import Drafts
from real.drafters.ddtree import NodeTrees, likeliest
from real.drafters.dflash_everywhere import TextBlocks, fill


@dataclass(frozen=True, kw_only=True)
class TreeDrafts(Drafts):
    """Main chains, and the likeliest tokens of their positions; k is the trees' budget or the number of ids.

    Args:
        top_q: float32[B, K, k] probabilities, descending.
        top_ids: int64[B, K, k].
    """

    top_q: torch.Tensor
    top_ids: torch.Tensor


class TreeProposer:
    """The main chain of a drafter's tree at every position, and what the rest of the tree is grown from.

    Args:
        drafter: a drafter of trees.
    """

    def __init__(self, drafter: NodeTrees) -> None:
        self.drafter = drafter

    def propose(self, text: torch.Tensor, prompt_len: int, lens: torch.Tensor) -> TreeDrafts:
        """As `real.record.Proposer`; `lens` may reach beyond the text."""
        drafter, network = self.drafter, self.drafter.network
        starts = prompt_len + torch.arange(len(lens), device=lens.device)
        room = (drafter.window - starts).clamp(min=0)
        # After a single token there is no context yet, and a drafter proposes nothing.
        chains = Drafts.empty(torch.where(starts > 1, torch.minimum(lens.clamp(max=drafter.depth), room), 0))
        depth = chains.tokens.shape[1]
        shape = (len(lens), depth, min(drafter.budget, network.config.kept_vocab or network.config.vocab_size))
        top_q, top_ids = chains.q.new_zeros(shape), chains.tokens.new_full(shape, -1)
        rows = torch.nonzero(chains.lens > 0)[:, 0]
        for group, logits in TextBlocks(network, drafter.model, text).logits(starts[rows], drafter.slots.block_len):
            fill(chains, rows[group], 0, logits, network)
            q, places = likeliest(logits[:, :depth], drafter.budget)
            ids = network.ids_of(places)
            top_q[rows[group]], top_ids[rows[group]] = q, ids
        return TreeDrafts(**vars(chains), top_q=top_q, top_ids=top_ids)


def target_ranks(drafts: TreeDrafts, text: torch.Tensor, starts: torch.Tensor) -> torch.Tensor:
    """int64[B, K]: rank of the text's own token among the likeliest of its position; -1 where it is not one of them, or
    where a drafted token could not become output before the text's last one.

    Args:
        drafts: of B rows.
        text: int64[L].
        starts: int64[B] tokens of the text before each draft.
    """
    places = starts[:, None] + torch.arange(drafts.tokens.shape[1], device=starts.device)
    own = text[places.clamp(max=len(text) - 1)]
    found = drafts.top_ids == own[..., None]
    inside = (places < len(text) - 1) & found.any(dim=-1)
    return torch.where(inside, found.int().argmax(dim=-1), -1)
