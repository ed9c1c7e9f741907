"""What the decode loop asks of a drafter.

A drafter keeps whatever it needs of the committed text, proposes tokens on request, and is told what was committed. It
knows nothing about controllers, verification or time, and contains no decode loop.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

import torch

from real.draws import Draws
from real.target import Loan, Tap
from real.verify import Draft, Processor, Proposal


class Built(NamedTuple):
    """What a drafter has made of draft configurations for the request under way.

    Args:
        build_s: seconds spent on it so far, those before the first round included.
        arms: configurations made.
        families: how often it began from nothing; 0: its configurations were there before.
        preparatory: rounds in which the controller asked for one not made yet, and another was played.
        trials: configurations tried beside decoding.
        timing_s: seconds of timing the target's parts, once for a session and before its first request; in no other
            number.
    """

    build_s: float = 0.0
    arms: int = 0
    families: int = 0
    preparatory: int = 0
    trials: int = 0
    timing_s: float = 0.0


class Drafter(Protocol):
    """One drafter; may be used for one request after another, never for two at a time.

    Attributes:
        name: for logs and tables.
        block_len: tokens one pass yields; the loop asks for whole passes.
        max_draft_len: most tokens it proposes in a round; 0: none at all.
        samples: whether tokens are drawn at random, so that `Draft.law` is set.
        blind: whether confidences and lengths of sampled drafts do not depend on the tokens drawn, only on what those
            were drawn from. Then every rule may read them (`real.loop`).
        pass_rule: what further passes of a round do to what was drafted before, as in a trace's metadata: `keep-first`
            append to it, `per-length` replace it.
        branches: whether what it counts are nodes of a tree, of which more may be submitted than tokens are left.
        depth: tokens of the longest path of its trees; None: a draft is a chain.
        max_scored_len: most draft tokens the target is given in a round, where that can be more than `max_draft_len`:
            of a tree of which the controller chooses the depth, its nodes.
        tap: hidden states of the target that it reads; the loop has them filled. None: it reads none.
        reports_passes: whether its drafts carry a record of their passes (`Draft.record`).
        loan: the target's cache, of which it makes use; the loop has it lent. None: it does not.
        arm_costs: its draft configurations, in the order in which controllers number them: what a pass of each costs
            for every second of the target's own over one token, NaN where that is not known. Empty: nothing to choose.
        arm_names: their spellings, all different, where all draft as many tokens and cost the same on any prompt; else
            empty.
        arm_draft_len: tokens a controller that chooses among them asks of any.
        built: what was made of them for this request; the loop reads it after `start` and after every `commit`.
    """

    name: str
    block_len: int
    max_draft_len: int
    samples: bool = False
    blind: bool = False
    pass_rule: str = "keep-first"
    branches: bool = False
    depth: int | None = None
    max_scored_len: int = 0
    tap: Tap | None = None
    reports_passes: bool = False
    loan: Loan | None = None
    arm_costs: tuple[float, ...] = ()
    arm_names: tuple[str, ...] = ()
    arm_draft_len: int = 0
    built: Built = Built()

    def start(self, prompt: torch.Tensor, capacity: int, draws: Draws, processors: Sequence[Processor]) -> None:
        """Begin a request.

        Args:
            prompt: int64[P], P >= 1, on the target's device.
            capacity: tokens that prompt, output and a draft can reach together.
            draws: randomness of the request.
            processors: logits processors of the request, for drafters that sample.
        """
        ...

    def propose(self, count: int, arm: int) -> Proposal:
        """Go on with this round's draft until it has `count` tokens, and give all of it; fewer when it cannot.

        Args:
            count: tokens wanted in this round in all, at most `max_draft_len`.
            arm: draft configuration the controller chose; -1 when there is none to choose.
        """
        ...

    def refine(self, count: int, arm: int) -> Proposal:
        """Like `propose`, after one network pass more; only drafters that report their passes are asked."""
        return self.propose(count, arm)

    def commit(self, tokens: Sequence[int]) -> None:
        """The round is over: `tokens` (accepted draft tokens and the target's own) now belong to the text."""
        ...


class NoDrafter(Drafter):
    """Plain decoding: proposes nothing."""

    name, block_len, max_draft_len = "none", 1, 0

    def start(self, prompt: torch.Tensor, capacity: int, draws: Draws, processors: Sequence[Processor]) -> None:
        self._device = prompt.device

    def propose(self, count: int, arm: int) -> Draft:
        return Draft.nothing(self._device)

    def commit(self, tokens: Sequence[int]) -> None:
        pass
