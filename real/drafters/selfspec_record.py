"""What every arm of a self-speculating drafter would draft at every position of a response, and in how many seconds.

Owns the walk along the response, and the order of arms in traces. The drafter is the live one, on a cache that holds
what the target's would: all committed tokens but the last. Between two drafts stands the target's pass over the draft
before, as in a decode. A loop over drafts alone would find its weights in the machine's caches and look too fast.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from real.cache import KVCache, forward
from real.clock import DRAFT, Clock, clock_for
from real.drafters.family import FixedArms
from real.drafters.selfspec import SelfDrafter
from real.draws import KeyedDraws
from real.target import hidden_states
from real.vision.prompt import VisionPrompt, seen_of
from real.vision.pruning import PrunedFamily
from specsim.errors import ConfigError


@dataclass(frozen=True, kw_only=True)
class ArmDrafts:
    """Drafts of K arms of L tokens each at n positions, arms in the order of traces.

    Args:
        tokens: int64[n, K, L] on the target's device.
        draft_s: float64[n, K] seconds of each whole draft.
    """

    tokens: torch.Tensor
    draft_s: np.ndarray


class ArmsRecorder:
    """Drafts with every arm everywhere.

    Args:
        drafter: a chain drafter of several arms that were known before, whose drafts have one length.

    Raises:
        ConfigError: another one, of which no arm trace can be.
    """

    def __init__(self, drafter: SelfDrafter) -> None:
        advice = "compare controllers live (real.run)"
        if not isinstance(drafter.family, FixedArms | PrunedFamily):
            raise ConfigError(f"drafter {drafter.name!r}: arms made while decoding are in no trace; {advice}")
        if drafter.family.size < 2:
            raise ConfigError(
                f"drafter {drafter.name!r}: a trace of arms is for choosing among several; record a file of arms "
                f"(self:arms=FILE), or layer-skip, whose own cache makes it draft other tokens, or {advice}"
            )
        if drafter.family.lengths:
            raise ConfigError(
                f"drafter {drafter.name!r}: in a trace of arms every arm drafts the same number of tokens, these draft "
                f"different ones; {advice}"
            )
        if drafter.stop is not None:
            raise ConfigError(
                f"drafter {drafter.name!r}: in a trace of arms every arm drafts and is charged for the same number of "
                f"tokens, with stop their number varies; record it without stop, or {advice}"
            )
        if drafter.depth is not None:
            raise ConfigError(
                f"drafter {drafter.name!r}: a trace of arms holds chains, and the seconds of verifying chains; record "
                f"it without tree, or {advice}"
            )
        self.drafter, self.arms = drafter, drafter.family.size
        self._warm = False

    def walk(self, prompt: torch.Tensor | VisionPrompt, text: torch.Tensor) -> ArmDrafts:
        """Drafts after every token of a response, each as long as live ones far from any limit.

        Args:
            prompt: of P tokens, at least 1.
            text: int64[P + n] prompt and response.
        """
        drafter, length, prompt_len = self.drafter, self.drafter.arm_draft_len, len(prompt)
        model, n, seen = drafter.blocks.target, len(text) - prompt_len, seen_of(prompt)
        cache = KVCache(len(text) + length + 1)
        cache.shift = 0 if seen is None else seen.shift
        if drafter.tap is not None:
            drafter.tap.clear()
        if prompt_len > 1:
            with hidden_states(model, () if drafter.tap is None else drafter.tap.layers) as found:
                forward(model, text[: prompt_len - 1], cache, keep=1, prompt=seen)
            if drafter.tap is not None:
                drafter.tap.add(torch.cat([found[layer][0] for layer in drafter.tap.layers], dim=-1))
        assert drafter.loan is not None
        drafter.loan.cache = cache
        drafter.start(text[:prompt_len], cache.capacity, KeyedDraws(0, 0), ())
        clock = clock_for(text.device)
        clock.start()
        tokens = text.new_zeros(n, self.arms, length)
        draft_s = np.zeros((n, self.arms))
        words = text.tolist()
        for pos in range(n):
            last = text[prompt_len + pos - 1 : prompt_len + pos]
            turns = [(pos + place) % self.arms for place in range(self.arms)]
            # The first drafts of a process also pay for what is made once.
            for arm in turns if self._warm else [*turns, *turns]:
                tokens[pos, arm], draft_s[pos, arm] = self._try(arm, last, cache, clock)
            self._warm = True
            forward(model, last, cache, keep=1)
            drafter.commit(words[prompt_len + pos : prompt_len + pos + 1])
        return ArmDrafts(tokens=tokens.flip(1), draft_s=draft_s[:, ::-1])

    def _try(self, arm: int, last: torch.Tensor, cache: KVCache, clock: Clock) -> tuple[torch.Tensor, float]:
        """A whole draft of an arm and its seconds, then the target's pass over it; the cache is left as it was."""
        held = cache.length
        clock.enter()
        draft = self.drafter.propose(self.drafter.arm_draft_len, arm)
        draft.q.float().cpu()  # a controller looks at them
        clock.leave(DRAFT)
        tokens = torch.cat(self.drafter.forget())
        cache.crop_to(held)
        forward(self.drafter.blocks.target, torch.cat([last, tokens]), cache)
        cache.crop_to(held)
        return tokens, clock.read()[0]


def names_of(drafter: SelfDrafter) -> tuple[str, ...]:
    """Names of a drafter's arms in the order of traces, by ascending kept compute: the controllers', reversed.

    The whole target's is empty, but among arms of pruned visual tokens.
    """
    return tuple(drafter.family.name(number) for number in reversed(range(drafter.family.size)))


def arms_of(drafter: SelfDrafter, draft_s: np.ndarray) -> tuple[dict[str, Any], ...]:
    """`arms` of a trace's metadata.

    Args:
        drafter: that was recorded.
        draft_s: float[n, K] seconds of whole drafts, in the order of traces; their medians are told, per token.
    """
    seconds = np.median(draft_s.astype(np.float64), axis=0) / drafter.arm_draft_len
    budgets = drafter.family.budgets(drafter.arm_costs)
    return tuple(
        {"name": name, "budget": kept, "draft_s": float(one)}
        for name, kept, one in zip(names_of(drafter), reversed(budgets), seconds, strict=True)
    )
