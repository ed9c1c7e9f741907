"""What builders of arms are given, the decode they work in, and the record of what they took.

Owns which families are played on which prompts, and the cost of construction. `real.loop` decodes; the rules of the
builders are in `real.builders`, their places in a decode in `real.drafters`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from real.builders.arm import Arm
from real.drafters.base import Drafter, NoDrafter
from real.drafters.family import Family
from real.drafters.selfspec import SelfDrafter
from real.drafters.spent import Spent
from real.drafters.subblocks import SubBlocks
from real.interleave import PLAIN, WARMUP_TOKENS
from real.loop import Settings, decode
from real.session import ANY_LATENCY, build_for
from real.target import Target
from specsim.online import OnlineController


@dataclass(frozen=True, kw_only=True)
class Job:
    """What all builders are given.

    Args:
        blocks: the target in pieces.
        prompts: int64[P] each, on its device.
        asked: of every decode.
        draft_len: tokens that an arm drafts.
        zero_skip: whether the family has an arm that leaves nothing out.
        step: told after every prompt how it went.
    """

    blocks: SubBlocks
    prompts: Sequence[torch.Tensor]
    asked: Settings
    draft_len: int
    zero_skip: bool
    step: Callable[[str], None] = lambda note: None


@dataclass(kw_only=True)
class Built:
    """A family.

    Args:
        arms: by ascending amount left out.
        spent: on building it.
        scores: what the builder thinks of each arm, in its own unit; empty: nothing.
        details: what else it has to tell, as JSON values.
    """

    arms: list[Arm]
    spent: Spent
    scores: dict[Arm, float] = field(default_factory=dict)
    details: dict[str, Any] = field(default_factory=dict)


class Generation:
    """Decodes the prompts with families that are being built."""

    def __init__(self, job: Job) -> None:
        self.job, self.target = job, Target(job.blocks.target)
        self.spent = Spent(self.target.device)
        # The first passes of a process also pay for what is made once.
        plain, short = NoDrafter(), Settings(max_new_tokens=WARMUP_TOKENS, stop_ids=job.asked.stop_ids)
        decode(self.target, plain, self._controller(PLAIN, plain), job.prompts[0], short)

    def play(self, made: Family, after: Callable[[], str]) -> None:
        """Decode every prompt; `after` is asked after each for a note on it."""
        drafter = SelfDrafter(
            self.job.blocks,
            made,
            name="self",
            max_draft_len=self.job.draft_len,
            arm_draft_len=self.job.draft_len,
            stop_ids=self.job.asked.stop_ids,
        )
        for number, prompt in enumerate(self.job.prompts):
            # An arm that changes has nothing to choose from; several are pulled in turn first, which makes cosSim's.
            lane = self._controller("sp2ec" if made.size > 1 else "arm:index=0", drafter)
            found = decode(self.target, drafter, lane, prompt, self.job.asked, request=number)
            self.spent.generated += len(found.output)
            self.spent.generation_s += found.prefill_s + found.decode_s
            self.job.step(after())

    def _controller(self, spelling: str, drafter: Drafter) -> OnlineController:
        return OnlineController(build_for(spelling, drafter, ANY_LATENCY), seed=self.job.asked.seed)
