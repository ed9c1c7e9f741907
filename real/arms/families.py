"""cosSim at work while a prompt is decoded, as published, its seconds counted by part.

The other builders' families are the drafters' own: `real.drafters.swift`, `real.drafters.states`.
"""

from __future__ import annotations

import torch

from real.builders.cossim import Boundary, Rows
from real.cache import KVCache
from real.drafters.cossim import ALWAYS, CossimArms
from real.drafters.family import Observation
from real.drafters.spent import BOOKKEEPING, PASSES, Spent
from real.drafters.subblocks import SubBlocks


class TimedCossim(CossimArms):
    """cosSim's family with a probe in every round, as published; its passes are counted apart from importances and
    decisions. Arguments as there.

    Args:
        spent: what is counted in.
    """

    def __init__(
        self, blocks: SubBlocks, spent: Spent, *, arms: int | None, share: float | None, zero_skip: bool, warmup: str
    ) -> None:
        super().__init__(blocks, arms=arms, share=share, zero_skip=zero_skip, warmup=warmup, probe=ALWAYS)
        self._spent = spent

    def look(self, prompt: torch.Tensor, cache: KVCache) -> None:
        with self._spent.on(BOOKKEEPING):
            super().look(prompt, cache)

    def observe(self, seen: Observation) -> None:
        if self.building:
            self._spent.round(len(seen.committed))
        with self._spent.on(BOOKKEEPING):
            super().observe(seen)

    def _probed(self, seen: Observation, place: Boundary) -> Rows:
        with self._spent.on(PASSES):
            return super()._probed(seen, place)

    def _of_tokens(self, last: torch.Tensor) -> Rows | None:
        with self._spent.on(PASSES):
            return super()._of_tokens(last)
