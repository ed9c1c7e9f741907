"""cosSim live: a self-speculating drafter whose arms are made in the first rounds of every prompt.

Importances before anything is left out come from the whole target, beside decoding: from passes over tokens that it
would decode next (`tokens`, which SP2ec's code commits as it goes), or from its pass over the prompt (`prompt`, which
costs no pass). Then every round with the newest arm gives the importances that decide the next one.

Owns when a round is a construction round, the warm-up, the probe, and the seconds that all of it takes. Which layer
goes next is `real.builders.cossim`'s matter, which rounds are played the controller's.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

import numpy as np
import torch

from real.builders.arm import Arm
from real.builders.cossim import (
    WARMUP_PASSES,
    Boundary,
    Construction,
    Rows,
    boundary,
    layers_removed,
    mean_importance,
    removable,
    usable_rows,
)
from real.builders.cossim import warmup_importance as mean_of_warmup
from real.builders.similarity import importance_rows
from real.cache import KVCache
from real.clock import Stopwatch
from real.drafters.base import Built
from real.drafters.family import Family, Observation
from real.drafters.options import MOST_COUNT, fraction, whole
from real.drafters.subblocks import SubBlocks
from real.target import Tap, make_tap
from specsim.errors import ConfigError

NAME: Final = "cossim"
TOKENS, PROMPT = "tokens", "prompt"
WARMUPS: Final = (PROMPT, TOKENS)
NEVER, ALWAYS, NEEDED = "0", "1", "needed"
PROBES: Final = (NEVER, ALWAYS, NEEDED)
KEYS: Final = ("arms", "fraction", "zero", "warmup", "probe", "rebuild")


class CossimArms(Family):
    """Nested arms of whole layers, made anew for every prompt.

    Arm k is played first in the k-th construction round, so that controllers which begin with 0, 1, 2, ... pull every
    arm once by constructing it. While an arm that is asked for does not exist yet, the newest one is played in its
    place, as a preparatory round. A construction round without importances ends the construction, as published.

    Args:
        blocks: the target in pieces.
        arms: how many, the zero-skip arm included; None: as many as `share` allows.
        share: most layers left out, as a fraction of all; None: half of those that may be.
        zero_skip: whether arm 0 leaves nothing out.
        warmup: `prompt` or `tokens`; a prompt of one token has no pass to look at and is warmed up by tokens.
        probe: when to make a pass on the token at the boundary after a construction round: `1` always, `0` never,
            `needed` where the round has no row otherwise. If a draft pass has read that token, its row is taken; it
            looked back on keys and values of the draft's, as all rows but the probe's do.
        rebuild: rounds after which arms are made anew, from the text as it is then; None: never within a prompt.

    Attributes:
        arms: those made for this prompt, or since the last rebuilding, ascending by what they leave out.
        building: whether there are arms to come.

    Raises:
        ConfigError: too few layers, or arms that cannot be made of them.
    """

    def __init__(
        self,
        blocks: SubBlocks,
        *,
        arms: int | None = None,
        share: float | None = None,
        zero_skip: bool = False,
        warmup: str = PROMPT,
        probe: str = NEEDED,
        rebuild: int | None = None,
    ) -> None:
        removed = layers_removed(blocks.n_layers, arms=arms, fraction=share, zero_skip=zero_skip)
        if warmup not in WARMUPS:
            raise ConfigError(f"self: warmup is {warmup!r}; allowed: {', '.join(WARMUPS)}")
        if probe not in PROBES:
            raise ConfigError(f"self: probe is {probe!r}; allowed: {', '.join(PROBES)}")
        self.size = removed + zero_skip
        if rebuild is not None and rebuild <= self.size:
            raise ConfigError(
                f"self: rebuild after {rebuild} rounds; allowed: more than the {self.size} in which the arms are made"
            )
        self._blocks, self._removed, self._zero = blocks, removed, zero_skip
        self._probe, self._rebuild = probe, rebuild
        self._watch = Stopwatch(blocks.target.device)
        # Of the layers that may go: what enters the first of them, and what leaves each.
        edges = range(removable(blocks.n_layers)[0] - 1, removable(blocks.n_layers)[-1] + 1)
        self.tap: Tap | None = make_tap(blocks.target, edges) if warmup == PROMPT else None
        if self.tap is not None:
            self.tap.prompt_only = True

    def costs(self, cost: Callable[[Arm], float]) -> tuple[float, ...]:
        # Every layer is as large as another, so any of as many will do.
        first, counts = removable(self._blocks.n_layers)[0], range(1 - self._zero, self._removed + 1)
        return tuple(cost(Arm.blocks(range(first, first + count))) for count in counts)

    def start(self, prompt: torch.Tensor) -> None:
        self.built = Built()

    def look(self, prompt: torch.Tensor, cache: KVCache) -> None:
        self._cache = cache
        with self._watch:
            importance = None if self.tap is None else self._of_prompt(self.tap)
            if importance is None:
                importance = self._of_tokens(prompt[-1:])
            self._begin(importance)
        self._report()

    def _begin(self, importance: Rows | None) -> None:
        """The first of new arms."""
        self._construction = Construction(self._blocks.n_layers, span=(1, self._removed), zero_skip=self._zero)
        self.arms: list[Arm] = []
        self._played, self._rounds, self.wants_states = -1, 0, False
        self._before = self.built.arms
        self._take(self._construction.begin(importance))
        if not self.arms:  # nothing to go by: too little room for the warm-up, or numbers that are not finite
            self.arms = [Arm()]
        self.built = self.built._replace(families=self.built.families + 1)

    def arm(self, number: int) -> Arm:
        newest = len(self.arms) - 1
        self._played = min(number, newest)
        self.built = self.built._replace(preparatory=self.built.preparatory + (number > newest))
        self.wants_states = self.building and self._played == newest and self._construction.collects(newest)
        return self.arms[self._played]

    def observe(self, seen: Observation) -> None:
        self._rounds += 1
        due = self._rounds == self._rebuild
        if not due and (seen.arm < 0 or self._played != len(self.arms) - 1 or not self.building):
            return
        with self._watch:
            if due:
                last = torch.tensor(seen.committed[-1:], device=self._blocks.target.device)
                self._begin(self._of_tokens(last))
            else:
                rows = self._usable(seen)
                self._take(self._construction.observe(rows[np.isfinite(rows).all(axis=1)]))
                self.wants_states = False
        self._report()

    def _usable(self, seen: Observation) -> Rows:
        """float32[R, L] of a construction round."""
        if seen.states is None:
            return np.zeros((0, self._blocks.n_layers), np.float32)
        passes, accepted = _rows(seen.states), seen.committed[:-1]
        kept = next((k for k, (a, b) in enumerate(zip(seen.drafted, accepted, strict=False)) if a != b), None)
        kept = min(len(seen.drafted), len(accepted)) if kept is None else kept
        side = accepted[kept] if kept < len(accepted) else None
        place = None if self._probe == NEVER else boundary(seen.drafted, kept, side)
        if place is None:
            return usable_rows(passes, kept, None)
        if self._probe == ALWAYS:
            return usable_rows(passes, kept, self._probed(seen, place))
        if side is None and place.before + 1 < len(passes):
            return usable_rows(passes, kept, passes[place.before + 1])
        rows = usable_rows(passes, kept, None)
        return rows if len(rows) else usable_rows(passes, kept, self._probed(seen, place))

    def _report(self) -> None:
        """What was made, and the seconds since the last report."""
        before = self.built
        made = self._before + len(self.arms)
        self.built = before._replace(build_s=before.build_s + self._watch.read(), arms=made)

    def _take(self, arm: Arm | None) -> None:
        if arm is not None:
            self.arms.append(arm)
        self.building = arm is not None and not self._construction.complete

    def _probed(self, seen: Observation, place: Boundary) -> Rows:
        """float32[L] of the arm's pass on the token at the boundary; the cache is as it was afterwards."""
        arm = self.arms[self._played]
        token = torch.tensor([place.token], device=self._blocks.target.device)
        with self._cache.aside(self._cache.length - (len(seen.committed) - 1 - place.before)):
            _, states = self._blocks.states(self._blocks.model(arm), arm, token, self._cache)
        return _rows(states[None])[0]

    def _of_prompt(self, tap: Tap) -> Rows | None:
        """float32[L] of the target's pass over all of the prompt but its last token; 0 for layers that stay."""
        features = tap.take()
        if not len(features):
            return None
        states = features.unflatten(1, (len(tap.layers), -1))
        found = np.zeros(self._blocks.n_layers, np.float32)
        found[list(tap.layers[1:])] = mean_importance(_rows(states))
        return found if np.isfinite(found).all() else None

    def _of_tokens(self, last: torch.Tensor) -> Rows | None:
        """float32[L] of passes over the tokens that the target would decode next, which are forgotten again."""
        passes, token = [], last
        room = self._cache.capacity - self._cache.length
        with self._cache.aside(self._cache.length):
            for _ in range(min(WARMUP_PASSES, room)):
                logits, states = self._blocks.states(self._blocks.target, Arm(), token, self._cache)
                passes.append(_rows(states[None])[0])
                token = logits[-1:].argmax(dim=-1)
        sound = all(np.isfinite(row).all() for row in passes)
        return mean_of_warmup(passes) if sound else None


def _rows(states: torch.Tensor) -> Rows:
    """float32[passes, layers] on the host of float[passes, layers + 1, H]."""
    return importance_rows(states).cpu().numpy()


def cossim_arms(options: Mapping[str, str], blocks: SubBlocks) -> CossimArms:
    """The family of `self:build=cossim[,arms=K or fraction=0.6][,zero=1][,warmup=prompt|tokens]
    [,probe=needed|1|0][,rebuild=512]`.

    Raises:
        ConfigError: an option that is not allowed.
    """
    zero = options.get("zero", "0")
    if zero not in ("0", "1"):
        raise ConfigError(f"self: zero is {zero!r}; allowed: 0 or 1")
    return CossimArms(
        blocks,
        arms=whole("self", "arms", options["arms"], high=blocks.n_layers + 1) if "arms" in options else None,
        share=fraction("self", "fraction", options["fraction"]) if "fraction" in options else None,
        zero_skip=zero == "1",
        warmup=options.get("warmup", PROMPT),
        probe=options.get("probe", NEEDED),
        rebuild=whole("self", "rebuild", options["rebuild"], high=MOST_COUNT) if "rebuild" in options else None,
    )
