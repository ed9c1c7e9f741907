"""SWIFT: which attention and MLP sub-layers to leave out, searched for while decoding.

Source: SWIFT (hemingkx/SWIFT at 88caed7, model/swift/utils.py 700-850, evaluation_llama/inference_swift.py). A trial
leaves out another set of as many sub-layers, drawn at random, or now and then suggested by an optimiser; its matchness
is how many of the last generated tokens it would have predicted. A trial that beats the best so far is adopted.

Owns the search. Knows no model and no decode loop: who decodes asks `due`, scores what `propose` gives, and hands the
score to `judge`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol

from real.builders.arm import Arm
from specsim.errors import ConfigError

BAYES_EVERY: Final = 25


class Draws(Protocol):
    """Source of random sets: a numpy Generator, or its older RandomState."""

    def choice(self, a: int, size: int, replace: bool) -> Any:
        """`size` different numbers below `a`."""
        ...


class Optimiser(Protocol):
    """Learns from scores at points of the unit cube and suggests the next point (`real.builders.gp.BoundSearch`)."""

    def register(self, point: Sequence[float], score: float) -> None:
        """Take note of a measurement."""
        ...

    def suggest(self) -> Iterable[float]:
        """The next point."""
        ...


@dataclass(frozen=True)
class SwiftSettings:
    """Settings, with the released command's defaults.

    Args:
        ratio: share of the sub-layers of all layers but the first and the last that a set leaves out.
        max_score: the search ends once a score above it is adopted (the released script: 0.93).
        tolerance: it ends once more trials than this in a row were no improvement.
        trials: it ends after more trials than this.
        bayes_every: every so many trials the set is the optimiser's; 0: never.
        window: tokens that matchness is measured on (the released script: 50).
        every: rounds from one trial to the next.
        per_prompt: forget everything at the start of a prompt. As released, sets and scores carry over, though a score
            belongs to the text it was measured on.

    Raises:
        ConfigError: a number out of range.
    """

    ratio: float = 0.45
    max_score: float = 0.95
    tolerance: int = 300
    trials: int = 1000
    bayes_every: int = BAYES_EVERY
    window: int = 32
    every: int = 1
    per_prompt: bool = False

    def __post_init__(self) -> None:
        if not 0 < self.ratio <= 1:
            raise ConfigError(f"SWIFT: ratio {self.ratio:g}; allowed: above 0, at most 1")
        if not math.isfinite(self.max_score):
            raise ConfigError(f"SWIFT: max_score {self.max_score:g}; allowed: a finite number; scores are 0..1")
        for name, least in (("tolerance", 0), ("trials", 0), ("bayes_every", 0), ("window", 1), ("every", 1)):
            if getattr(self, name) < least:
                raise ConfigError(f"SWIFT: {name} {getattr(self, name)}; allowed: at least {least}")


def sublayers_skipped(n_layers: int, ratio: float) -> int:
    """Sub-layers that a set leaves out, rounded down."""
    return int((n_layers - 2) * 2 * ratio)


def initial_arm(n_layers: int) -> Arm:
    """Every second layer, without the first and the last: what is left out before anything was measured."""
    return Arm.blocks(range(1, n_layers - 1, 2))


def arm_of(coordinates: Sequence[int], n_layers: int) -> Arm:
    """The arm without these sub-layers: coordinate i is the attention of layer i + 1, n - 2 + i that layer's MLP."""
    inner = n_layers - 2
    attention = frozenset(c + 1 for c in coordinates if c < inner)
    return Arm(attention, frozenset(c - inner + 1 for c in coordinates if c >= inner))


def largest(point: Sequence[float], count: int) -> list[int]:
    """Coordinates of the `count` largest numbers; among equals the first ones."""
    return sorted(range(len(point)), key=lambda i: -point[i])[:count]


def matchness(predicted: Sequence[int], generated: Sequence[int]) -> float:
    """Share of places at which the trial's most probable token is the generated one."""
    return sum(a == b for a, b in zip(predicted, generated, strict=True)) / len(generated)


class Swift:
    """One search.

    Args:
        n_layers: decoder layers of the target.
        settings: see there.
        rng: draws the random sets.
        optimiser: makes an optimiser of so many coordinates; None: every set is random.

    Attributes:
        arm: the one to draft with.
        best: its score; 0 before any was adopted.
        trials, misses: trials judged so far, and those in a row that were no improvement.
        searching: whether there is anything left to try.

    Raises:
        ConfigError: too few layers, or a ratio so small that nothing is left out.
    """

    def __init__(
        self,
        n_layers: int,
        settings: SwiftSettings,
        rng: Draws,
        *,
        optimiser: Callable[[int], Optimiser] | None = None,
    ) -> None:
        if n_layers < 3:
            raise ConfigError(f"SWIFT: the target has {n_layers} layers; allowed: at least 3")
        self.count = sublayers_skipped(n_layers, settings.ratio)
        if self.count < 1:
            raise ConfigError(f"SWIFT: ratio {settings.ratio:g} leaves nothing out of {n_layers} layers; take more")
        self.n_layers, self.settings = n_layers, settings
        self._rng, self._make = rng, optimiser
        self._reset()

    def _reset(self) -> None:
        self.arm, self.best = initial_arm(self.n_layers), 0.0
        self.trials = self.misses = 0
        self.searching = True
        self._optimiser = self._make(self.coordinates) if self._make else None
        self._trial: tuple[Arm, Sequence[float]] | None = None

    @property
    def coordinates(self) -> int:
        """Sub-layers that may be left out."""
        return 2 * (self.n_layers - 2)

    def start_prompt(self) -> None:
        """Another prompt begins: with `per_prompt`, so does the search."""
        if self.settings.per_prompt:
            self._reset()

    def due(self, output_len: int, round_number: int) -> bool:
        """Whether a trial is to be made after this round: there is enough text, and still something to find."""
        enough = output_len > self.settings.window + 1
        return self.searching and enough and round_number % self.settings.every == 0

    def propose(self) -> Arm:
        """The arm of the next trial."""
        every = self.settings.bayes_every
        if self._optimiser is not None and every and (self.trials + 1) % every == 0:
            point: Sequence[float] = [float(x) for x in self._optimiser.suggest()]
            chosen = largest(point, self.count)
        else:
            chosen = [int(c) for c in self._rng.choice(self.coordinates, self.count, replace=False)]
            point = [float(c in chosen) for c in range(self.coordinates)]
        self._trial = arm_of(chosen, self.n_layers), point
        return self._trial[0]

    def judge(self, score: float) -> bool:
        """Take the score of what `propose` gave; whether that is adopted.

        The optimiser learns the point itself: a suggestion as it was made, not the set that it became.
        """
        assert self._trial is not None, "propose comes first"
        arm, point = self._trial
        self._trial = None
        if self._optimiser is not None:
            self._optimiser.register(point, score)
        adopted = score > self.best
        if adopted:
            self.arm, self.best, self.misses = arm, score, 0
        else:
            self.misses += 1
        self.trials += 1
        settings = self.settings
        done = (adopted and score > settings.max_score) or self.misses > settings.tolerance
        self.searching = not (done or self.trials > settings.trials)
        return adopted

    def step(self, score: Callable[[Arm], float]) -> bool:
        """One trial, scored by `score`; whether it is adopted. A set proposed before and not judged yet comes first."""
        return self.judge(score(self._trial[0] if self._trial is not None else self.propose()))
