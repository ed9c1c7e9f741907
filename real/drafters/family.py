"""Which arms a self-speculating drafter has: known beforehand, or made while a prompt is decoded.

Owns the interface between the drafter and whatever makes its arms. Knows neither models nor controllers.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

import torch

from real.builders.arm import Arm
from real.cache import KVCache
from real.drafters.base import Built
from real.target import Tap


class Observation(NamedTuple):
    """A round as a family sees it.

    Args:
        arm: drafted with; -1: nothing was drafted.
        drafted: tokens of the draft, of a tree those of its spine.
        committed: what became output: accepted tokens, and the target's own one.
        states: float[passes, layers + 1, H]: what entered each decoder layer and what left the last one, in each draft
            pass; pass j read the j-th drafted token (0: the committed token before the draft). None: not asked for.
    """

    arm: int
    drafted: tuple[int, ...]
    committed: tuple[int, ...]
    states: torch.Tensor | None


class Family(Protocol):
    """The arms of a drafter.

    Attributes:
        size: number of arms, known beforehand; controllers number them 0..size - 1 by ascending amount left out.
        wants_states: whether `Observation.states` is to be filled; asked again in every round, after `arm`.
        tap: hidden states of the target that it reads; None: it reads none.
        lengths: most tokens that each arm drafts; empty: all as many as they are asked for.
        built: of the request under way, in families that make arms; its seconds are reported apart.
        names: spellings of the arms, all different, if what they leave out and cost is known before any prompt, and
            their drafts are equally long; else empty.
    """

    size: int
    wants_states: bool = False
    tap: Tap | None = None
    lengths: tuple[int, ...] = ()
    built: Built = Built()
    names: tuple[str, ...] = ()

    def costs(self, cost: Callable[[Arm], float]) -> tuple[float, ...]:
        """What `cost` gives for each arm, NaN where that is not known beforehand."""
        return (math.nan,) * self.size

    def budgets(self, costs: tuple[float, ...]) -> tuple[float, ...]:
        """What each arm keeps, for traces; `costs`: of the arms."""
        return costs

    def name(self, number: int) -> str:
        """Of an arm, for traces; empty: it leaves nothing out."""
        return str(self.arm(number))

    def start(self, prompt: torch.Tensor) -> None:
        """Begin a request (prompt int64[P])."""
        ...

    def look(self, prompt: torch.Tensor, cache: KVCache) -> None:
        """The target has taken in the prompt but its last token, into this cache; asked after `start`."""

    def view(self, number: int, cache: KVCache) -> KVCache:
        """What draft passes of an arm look back on in a round, and append to: the target's cache, if nothing else."""
        return cache

    def arm(self, number: int) -> Arm:
        """An arm; one made on the way can be asked for once the rounds before it were observed."""
        ...

    def observe(self, seen: Observation) -> None:
        """A round is over."""
        ...


class FixedArms(Family):
    """Arms that were known before.

    Args:
        arms: in the controllers' order.
    """

    def __init__(self, arms: Sequence[Arm]) -> None:
        self.arms, self.size = tuple(arms), len(arms)
        self.names = tuple(map(str, self.arms))

    def costs(self, cost: Callable[[Arm], float]) -> tuple[float, ...]:
        return tuple(map(cost, self.arms))

    def start(self, prompt: torch.Tensor) -> None:
        pass

    def arm(self, number: int) -> Arm:
        return self.arms[number]

    def observe(self, seen: Observation) -> None:
        pass


class LengthArms(FixedArms):
    """One draft configuration at several lengths, the longest first: dear before cheap, as everywhere.

    Args:
        arm: what is left out of every draft pass.
        lengths: most tokens drafted, in any order.
    """

    def __init__(self, arm: Arm, lengths: Sequence[int]) -> None:
        super().__init__([arm] * len(lengths))
        self.lengths = tuple(sorted(lengths, reverse=True))
        self.names = ()
