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

from real.verify import Draft

# (probability of the chain's token up to which, candidates in all at its place)
CANDIDATES = ((0.5, 5), (0.8, 3), (1.0, 2))
MOST_CANDIDATES = CANDIDATES[0][1]


def candidates(q: float) -> int:
    """Tokens verified at a place whose likeliest one has probability q, that one included."""
    return next((count for most, count in CANDIDATES if q <= most), CANDIDATES[-1][1])


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
        above = np.concatenate([[1.0], np.cumprod(tops[:, 0])])
        nodes: list[tuple[float, int, int]] = []  # path probability, level, rank
        for level, row in enumerate(tops):
            nodes += [(above[level] * row[rank], level, rank) for rank in range(min(candidates(row[0]), len(row)))]
        # As other trees: in descending probability of the path, so parents before children.
        nodes.sort(key=lambda node: (-node[0], node[1], node[2]))
        place = {level: number for number, (_, level, rank) in enumerate(nodes) if rank == 0} | {-1: -1}
        w = np.array([1.0, *(node[0] for node in nodes)])
        q = np.divide(w[1:], w[:-1], out=np.zeros(len(nodes)), where=w[:-1] > 0)
        return Draft(
            torch.from_numpy(ids[[level for _, level, _ in nodes], [rank for *_, rank in nodes]]).to(device),
            torch.from_numpy(q.astype(np.float32)).to(device),
            parents=torch.tensor([place[level - 1] for _, level, _ in nodes], dtype=torch.int64),
        )
