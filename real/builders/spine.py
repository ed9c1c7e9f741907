"""Small trees around a chain: at each depth the drafter's next-best tokens hang beside its most probable one.

The tree of self-speculation in SP2ec's released code and in SWIFT's (hemingkx/SWIFT at 88caed7, model/swift/utils.py):
one spine of most probable tokens, and leaves beside it, the more the less sure the drafter was there. How a tree is
verified is `real.tree`'s matter. Needs no torch.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple


class Widths(NamedTuple):
    """Candidates of a depth, the most probable one included.

    Args:
        steps: (limit, candidates), limits descending: the first limit that the probability is above decides.
        unsure: candidates when it is above none.
    """

    steps: tuple[tuple[float, int], ...]
    unsure: int

    def of(self, top1: float) -> int:
        """For the probability of the most probable token."""
        return next((count for limit, count in self.steps if top1 > limit), self.unsure)

    @property
    def most(self) -> int:
        """The largest number of candidates."""
        return max(self.unsure, *(count for _, count in self.steps))


SP2EC: Final = Widths(((0.8, 2), (0.5, 3)), 5)


def spine_tree(ranked: Sequence[Sequence[int]]) -> tuple[list[int], list[int]]:
    """(tokens, parents) of the tree, numbered depth by depth as `real.verify.Draft` wants it (-1 is the root).

    Args:
        ranked: candidates of each depth, the most probable first: that one is on the spine.
    """
    tokens: list[int] = []
    parents: list[int] = []
    spine = -1
    for candidates in ranked:
        above, spine = spine, len(tokens)
        tokens += candidates
        parents += [above] * len(candidates)
    return tokens, parents
