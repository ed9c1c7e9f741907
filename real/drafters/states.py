"""Arms found from the target's states at some tokens, while a prompt is decoded: KnapSpec's and CLaSp's.

Owns whose tokens those are and when arms are found. Which arms, is `real.drafters.knapspec`'s matter.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from real.builders.arm import Arm
from real.builders.knapspec import Schedule
from real.cache import KVCache
from real.drafters.base import Built
from real.drafters.family import Family, Observation
from real.drafters.opened import Opened
from real.drafters.spent import BOOKKEEPING, PASSES, SEARCH, Spent
from real.drafters.subblocks import SubBlocks

Find = Callable[[Opened, int], Sequence[Arm]]


class StateArms(Family):
    """Arms found again and again from the target's states.

    With a schedule as published: the tokens of some rounds, after which arms are found; until the first are, the whole
    target drafts, and a round for an arm other than that is preparatory. Without one: the last tokens of the prompt,
    before the first round, and of the text as it is then after every `rebuild` rounds.

    Args:
        blocks: the target in pieces.
        schedule: which rounds' tokens count and when arms are found; a round is a step, the prompt step 0. None: see
            above.
        find: (the target at those tokens, cached tokens before them) -> arms in the controllers' order; none: leave
            nothing out.
        size: how many arms there will be; where fewer were found the last one takes the place of the others.
        spent: what its seconds are counted in.
        most: look at no more than the last so many tokens; None: at all of the rounds'.
        rebuild: rounds from one finding to the next without a schedule; None: never within a prompt.
        zero_skip: whether arm 0 leaves nothing out.
        like: arms that leave out as much as those that will be found; empty: that is not known beforehand.
        text_from: place of the first token of a prompt (int64[P]) that can be run by itself, below P.
        timing_s: seconds of timing the target for it.

    Attributes:
        arms: found last for this prompt; None: none yet.
    """

    def __init__(
        self,
        blocks: SubBlocks,
        schedule: Schedule | None,
        find: Find,
        size: int,
        spent: Spent,
        *,
        most: int | None = None,
        rebuild: int | None = None,
        zero_skip: bool = False,
        like: Sequence[Arm] = (),
        text_from: Callable[[torch.Tensor], int] = lambda prompt: 0,
        timing_s: float = 0.0,
    ) -> None:
        self.size, self._most, self._rebuild = size, most, rebuild
        self._blocks, self._schedule, self._find, self._spent = blocks, schedule, find, spent
        self._zero, self._like, self._text_from, self._timing_s = zero_skip, tuple(like), text_from, timing_s
        self.arms: Sequence[Arm] | None = None

    def costs(self, cost: Callable[[Arm], float]) -> tuple[float, ...]:
        return tuple(map(cost, self._like)) or super().costs(cost)

    def start(self, prompt: torch.Tensor) -> None:
        self.arms, self._text, self._step, self._count = None, prompt.tolist(), 0, 0
        self._before = self._spent.construction_s
        self.built = Built(timing_s=self._timing_s)

    def look(self, prompt: torch.Tensor, cache: KVCache) -> None:
        self._cache = cache
        if self._schedule is None:
            with self._spent.on(BOOKKEEPING):
                self._from = self._text_from(prompt)
                self._found(len(self._text))
        self._report()

    def arm(self, number: int) -> Arm:
        if self.arms is None:
            early = not (self._zero and number == 0)
            self.built = self.built._replace(preparatory=self.built.preparatory + early)
            return Arm()
        return self.arms[min(number, len(self.arms) - 1)]

    def observe(self, seen: Observation) -> None:
        if self.arms is None:
            self._spent.round(len(seen.committed))
        with self._spent.on(BOOKKEEPING):
            self._text += seen.committed
            self._step += 1
            if self._schedule is None:
                if self._rebuild is not None and self._step % self._rebuild == 0:
                    self._found(len(self._text))
            else:
                if self._schedule.collects(self._step):
                    self._count += len(seen.committed)
                if self._schedule.builds(self._step):
                    # Those that the verifying passes read: each round's accepted tokens, and the one before them.
                    self._found(len(self._text) - 1)
        self._report()

    def _found(self, end: int) -> None:
        """Find arms from the last tokens before a place of the text."""
        if self._schedule is None:
            start = max(self._from, end - (self._most or end))
        else:
            start = end - (self._count if self._most is None else min(self._count, self._most))
            self._count = 0
        with self._spent.on(PASSES):
            tokens = torch.tensor(self._text[start:end], device=self._blocks.target.device)
            opened = Opened(self._blocks, tokens, self._cache, start)
        with self._spent.on(SEARCH):
            self.arms = self._find(opened, start) or [Arm()]
        built = self.built
        self.built = built._replace(arms=built.arms + len(self.arms), families=built.families + 1)

    def _report(self) -> None:
        self.built = self.built._replace(build_s=self._spent.construction_s - self._before)
