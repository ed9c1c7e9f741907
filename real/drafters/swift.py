"""SWIFT while a prompt is decoded: the arms that its searches have come to, and a trial after every round.

A trial is one pass of a set of sub-blocks over text that is already there, beside decoding; rounds are the controller's
and draft with the arms as they are. Owns when a trial is made and on which tokens it is judged, for one search that
goes on from prompt to prompt (`real.arms`) as for several that begin with every prompt (`self:build=swift`). What is
tried is `real.builders.swift`'s matter.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

import numpy as np
import torch

from real.builders.arm import Arm, cost_order
from real.builders.gp import BoundSearch
from real.builders.swift import Swift, SwiftSettings, matchness
from real.cache import KVCache, forward
from real.drafters.base import Built
from real.drafters.family import Family, Observation
from real.drafters.spent import BOOKKEEPING, PASSES, SEARCH, Spent
from real.drafters.subblocks import SubBlocks

FIRST, LAST = "first", "last"
JUDGED: Final = (FIRST, LAST)


def swift_search(n_layers: int, settings: SwiftSettings, seed: Sequence[int]) -> Swift:
    """A search whose random sets, and those of its optimiser, are drawn by a seed.

    Raises:
        ConfigError: as from `Swift`.
    """
    guided = settings.bayes_every > 0
    return Swift(
        n_layers,
        settings,
        np.random.default_rng(seed),
        optimiser=(lambda dim: BoundSearch(dim, np.random.default_rng(seed))) if guided else None,
    )


class SwiftArms(Family):
    """One arm for each of some searches, as good as what it has found; a trial after every round while one searches.

    The search with the fewest trials makes the next one. Before a search has adopted anything, its arm is the set of
    its first trial, which has the right size; one search alone begins with every second layer, as released.

    Args:
        blocks: the target in pieces.
        searches: gives those of a prompt, or of a rebuilding; with different numbers of sub-blocks left out.
        spent: what their seconds are counted in.
        first: judge trials on the first tokens of the output, as the released code does, and not on the last ones.
        zero_skip: whether there is an arm besides that leaves nothing out.
        rebuild: rounds after which the searches begin anew; None: never within a prompt.

    Attributes:
        arms: those of now, by ascending amount left out.
    """

    def __init__(
        self,
        blocks: SubBlocks,
        searches: Callable[[], Sequence[Swift]],
        spent: Spent,
        *,
        first: bool = False,
        zero_skip: bool = False,
        rebuild: int | None = None,
    ) -> None:
        self._blocks, self._make, self._spent, self._first = blocks, searches, spent, first
        self._zero, self._rebuild = zero_skip, rebuild
        self._searches = searches()
        self.size = len(self._searches) + zero_skip

    def costs(self, cost: Callable[[Arm], float]) -> tuple[float, ...]:
        # Means over the draws: as many attentions as MLPs.
        halves = [(search.count // 2, search.count - search.count // 2) for search in self._searches]
        arms = [Arm(frozenset(range(attention)), frozenset(range(mlp))) for attention, mlp in halves]
        return (*[1.0] * self._zero, *map(cost, arms))

    def start(self, prompt: torch.Tensor) -> None:
        self._text, self._prompt_len, self._round = prompt.tolist(), len(prompt), 0
        self._before, self._trials = self._spent.construction_s, self._spent.trials
        self.built = Built()
        with self._spent.on(BOOKKEEPING):
            self._begin()
        self._report()

    def _begin(self) -> None:
        self._searches = self._make()
        for search in self._searches:
            search.start_prompt()
        with self._spent.on(SEARCH):
            alone = len(self._searches) == 1
            self._sets = [search.arm if alone else search.propose() for search in self._searches]
        self._order()
        built = self.built
        self.built = built._replace(arms=built.arms + self.size, families=built.families + 1)

    def look(self, prompt: torch.Tensor, cache: KVCache) -> None:
        self._cache = cache

    def arm(self, number: int) -> Arm:
        return self.arms[number]

    def observe(self, seen: Observation) -> None:
        if any(search.searching for search in self._searches):
            self._spent.round(len(seen.committed))
        with self._spent.on(BOOKKEEPING):
            self._text += seen.committed
            number, self._round = self._round, self._round + 1
            if self._round == self._rebuild:
                self._round = 0
                self._begin()
            else:
                self._try(number)
        self._report()

    def _try(self, number: int) -> None:
        place = min(range(len(self._searches)), key=self._turn)
        search = self._searches[place]
        if not search.due(len(self._text) - self._prompt_len, number):
            return
        with self._spent.on(SEARCH):
            adopted = search.step(self._score)
        self._spent.trials += 1
        if adopted and search.arm != self._sets[place]:
            self._sets[place] = search.arm
            self._order()
            self.built = self.built._replace(arms=self.built.arms + 1)

    def _turn(self, place: int) -> tuple[bool, int]:
        search = self._searches[place]
        return not search.searching, search.trials

    def _order(self) -> None:
        arms = [*[Arm()] * self._zero, *self._sets]
        self.arms = cost_order(arms, attention=self._blocks.attention, mlp=self._blocks.mlp)

    def _report(self) -> None:
        seconds = self._spent.construction_s - self._before
        self.built = self.built._replace(build_s=seconds, trials=self._spent.trials - self._trials)

    def _score(self, arm: Arm) -> float:
        """Share of the window's tokens that the arm predicts in one pass over the true text before each."""
        with self._spent.on(PASSES):
            window = self._searches[0].settings.window
            start = self._prompt_len if self._first else len(self._text) - window - 1
            read = torch.tensor(self._text[start : start + window], device=self._blocks.target.device)
            with self._cache.aside(start):
                predicted = forward(self._blocks.model(arm), read, self._cache).argmax(dim=-1).tolist()
        return matchness(predicted, self._text[start + 1 : start + window + 1])
