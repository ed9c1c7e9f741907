"""A chain with alternatives beside it: the small tree that self-speculation verifies by default in SP2ec's code.

Every token of the chain has its runners-up as siblings, more of them the less sure the drafter was of it; none of them
has children. If the target takes an alternative, the round ends with the token it adds after that, so a round yields at
most one token more than the chain is long, as without alternatives.

Source: hyuqi/sp2ec at 1cbdcb5e, the default verification tree (design/controllers.md 4.4).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch

from real.builders.spine import SP2EC, spine_tree
from real.tree import depths
from real.verify import Draft

MOST_CANDIDATES = SP2EC.most


def likeliest(logits: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """(float32[k] probabilities, int64[k] ids) of the most tokens a place can have, of float[V] logits, descending.

    The first is the argmax of the logits, also where rounding makes others as probable.
    """
    top = logits.float().topk(min(MOST_CANDIDATES, len(logits)))
    return (top.values - torch.logsumexp(logits.float(), dim=-1)).exp(), top.indices


class Spine(NamedTuple):
    """A draft that counts as its chain and is verified as a tree (`real.verify.Proposal`).

    Args:
        chain: the likeliest token of each place, which the controller sees.
        ids: int64[d, k] the likeliest tokens of each place, the chain's first.
        tops: float32[d, k] their probabilities.
    """

    chain: Draft
    ids: torch.Tensor
    tops: torch.Tensor

    @property
    def q(self) -> torch.Tensor:
        """float32[d]: of the chain."""
        return self.chain.q

    @property
    def passes(self) -> int | None:
        """One for each token."""
        return self.chain.passes

    @property
    def record(self) -> None:
        """What the passes recorded is not reported."""
        return None

    def first(self, count: int) -> Draft:
        """The first `count` levels."""
        device = self.chain.tokens.device
        if not count:
            return Draft.nothing(device)
        tops, ids = self.tops[:count].double().cpu().numpy(), self.ids[:count].cpu().numpy()
        ranks, parents = spine_tree([range(min(SP2EC.of(row[0]), len(row))) for row in tops])
        level = np.array(depths(parents)) - 1
        w = np.concatenate([[1.0], np.cumprod(tops[:, 0])])[level] * tops[level, ranks]
        # As other trees: in descending probability of the path, so parents before children.
        order = np.argsort(-w, kind="stable")
        place = np.empty(len(order) + 1, np.int64)
        place[order], place[-1] = np.arange(len(order)), -1
        above = np.concatenate([[1.0], w[order][:-1]])
        q = np.divide(w[order], above, out=np.zeros(len(order)), where=above > 0)
        return Draft(
            torch.from_numpy(ids[level, ranks][order]).to(device),
            torch.from_numpy(q.astype(np.float32)).to(device),
            parents=torch.from_numpy(place[np.array(parents)[order]]),
        )
