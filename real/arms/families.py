"""Builders of arms at work while a prompt is decoded: each as a family of a self-speculating drafter.

Owns when a builder looks at the text and what it is given; the rules are `real.builders`'. What they take is counted by
part (`real.arms.spent`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from real.arms.opened import Opened
from real.arms.spent import BOOKKEEPING, PASSES, SEARCH, Spent
from real.builders.arm import Arm
from real.builders.cossim import Boundary, Rows
from real.builders.knapspec import Schedule
from real.builders.swift import Swift, matchness
from real.cache import KVCache, forward
from real.drafters.cossim import ALWAYS, CossimArms
from real.drafters.family import Family, Observation
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


class SwiftArms(Family):
    """The arm that a search of SWIFT's has come to: one, which changes; a trial after every round while it searches.

    Args:
        blocks: the target in pieces.
        search: goes on from prompt to prompt.
        spent: what its seconds are counted in.
        first: judge trials on the first tokens of the output, as the released code does, and not on the last ones.
    """

    size = 1

    def __init__(self, blocks: SubBlocks, search: Swift, spent: Spent, *, first: bool = False) -> None:
        self.search, self._blocks, self._spent, self._first = search, blocks, spent, first

    def start(self, prompt: torch.Tensor) -> None:
        self.search.start_prompt()
        self._text, self._prompt_len, self._round = prompt.tolist(), len(prompt), 0

    def look(self, prompt: torch.Tensor, cache: KVCache) -> None:
        self._cache = cache

    def arm(self, number: int) -> Arm:
        return self.search.arm

    def observe(self, seen: Observation) -> None:
        if self.search.searching:
            self._spent.round(len(seen.committed))
        with self._spent.on(BOOKKEEPING):
            self._text += seen.committed
            number, self._round = self._round, self._round + 1
            if self.search.due(len(self._text) - self._prompt_len, number):
                with self._spent.on(SEARCH):
                    self.search.step(self._score)
                self._spent.trials += 1

    def _score(self, arm: Arm) -> float:
        """Share of the window's tokens that the arm predicts in one pass over the true text before each."""
        with self._spent.on(PASSES):
            window = self.search.settings.window
            start = self._prompt_len if self._first else len(self._text) - window - 1
            read = torch.tensor(self._text[start : start + window], device=self._blocks.target.device)
            with self._cache.aside(start):
                predicted = forward(self._blocks.model(arm), read, self._cache).argmax(dim=-1).tolist()
        return matchness(predicted, self._text[start + 1 : start + window + 1])


class StateArms(Family):
    """Arms found from the target's states at the tokens of some rounds: KnapSpec's and CLaSp's.

    Until the first are found the whole target drafts, and then the old ones until there are others.

    Args:
        blocks: the target in pieces.
        schedule: which rounds' tokens count and when arms are built; a round is a step, the prompt step 0.
        build: (the target at those tokens, cached tokens before them) -> arms in the controllers' order.
        size: how many arms there will be; where fewer were found the last one takes the place of the others.
        spent: what its seconds are counted in.
        most: look at no more than the last so many tokens; None: at all.

    Attributes:
        arms: found last for this prompt; None: none yet.
    """

    def __init__(
        self,
        blocks: SubBlocks,
        schedule: Schedule,
        build: Callable[[Opened, int], Sequence[Arm]],
        size: int,
        spent: Spent,
        *,
        most: int | None = None,
    ) -> None:
        self.size, self._most = size, most
        self._blocks, self._schedule, self._build, self._spent = blocks, schedule, build, spent
        self.arms: Sequence[Arm] | None = None

    def start(self, prompt: torch.Tensor) -> None:
        self.arms, self._text, self._step, self._count = None, prompt.tolist(), 0, 0

    def look(self, prompt: torch.Tensor, cache: KVCache) -> None:
        self._cache = cache

    def arm(self, number: int) -> Arm:
        return Arm() if self.arms is None else self.arms[min(number, len(self.arms) - 1)]

    def observe(self, seen: Observation) -> None:
        if self.arms is None:
            self._spent.round(len(seen.committed))
        with self._spent.on(BOOKKEEPING):
            self._text += seen.committed
            self._step += 1
            if self._schedule.collects(self._step):
                self._count += len(seen.committed)
            if self._schedule.builds(self._step):
                self._found()

    def _found(self) -> None:
        # Those that the verifying passes read: each round's accepted tokens, and the one before them.
        count, self._count = self._count if self._most is None else min(self._count, self._most), 0
        start = len(self._text) - count - 1
        with self._spent.on(PASSES):
            tokens = torch.tensor(self._text[start:-1], device=self._blocks.target.device)
            opened = Opened(self._blocks, tokens, self._cache, start)
        with self._spent.on(SEARCH):
            self.arms = self._build(opened, start)
