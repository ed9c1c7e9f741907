"""Rounds of the decode loop at chosen lengths and contexts, for calibration.

Owns the way to make `real.loop` run them and the samples that come out. Static controllers of every length take turns,
one round each, in a new random order in every repeat and at several context lengths, so that all lengths share the
machine's drifts and no pass profits from caches that only a loop over itself would keep warm. Of a drafter of several
arms, a whole draft of each takes its turn among them. Fits nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from real.drafters.base import Drafter
from real.draws import Draws
from real.loop import Round, Settings, decode
from real.session import ANY_LATENCY
from real.target import Target
from real.verify import Draft, Processor, Proposal
from specsim.controllers import Setting, build
from specsim.errors import ConfigError
from specsim.kernel import passes_for
from specsim.online import OnlineController
from specsim.passes import PassRecord

LENGTHS = (1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 16, 20, 24, 32, 48, 64, 96, 128)
PLAIN_ROUNDS = 3
MOST_PASSES = 4
CONTEXT_STEP = 64


@dataclass(frozen=True, kw_only=True)
class Sample:
    """One measured round.

    Args:
        s: token positions, draft and the last committed token, as a controller counts them: what it asks a latency
            model about. The target scores as many, but for trees whose depth is chosen (`Round.scored_len`).
        ctx_len: tokens before the round.
        passes: drafter passes; of one that reports them, every pass of its network.
        blocks: whole blocks they filled, of such a drafter; 0 of others, whose pass is a block.
        reads: tokens the first of them had to read: 1, or more when the drafter was behind the text.
        own, accepted: tokens of the drafter's own in the draft, and how many of them were accepted.
        draft_s, verify_s, overhead_s: seconds; the last is what is neither drafting nor verifying.
        arm: the draft's, of a drafter of several; -1: none was chosen, which drafts with the first.
    """

    s: int
    ctx_len: int
    passes: int
    reads: int
    own: int
    accepted: int
    draft_s: float
    verify_s: float
    overhead_s: float
    blocks: int = 0
    arm: int = -1


def lengths_up_to(max_draft_len: int) -> list[int]:
    """Token positions to measure: a spread from 1 to `max_draft_len` + 1, both ends included."""
    longest = max_draft_len + 1
    return sorted({s for s in LENGTHS if s < longest} | {longest})


def most_new_tokens(max_draft_len: int, depth: int | None = None, arms: int = 0) -> int:
    """Tokens that one repeat may add to a context: its rounds' drafts accepted to their end, of trees to a depth.

    Args:
        max_draft_len: longest draft.
        depth: of trees.
        arms: how many arms are measured, if there are several (`arms_to_measure`).
    """
    longest = max_draft_len if depth is None else min(depth, max_draft_len)
    lengths = [*_lengths(max_draft_len), *[max_draft_len] * arms]
    return sum(min(length, longest) for length in lengths) + len(lengths) + longest + 1


def arms_to_measure(drafter: Drafter) -> int:
    """How many arms a drafter has of which each is measured: all where there are several, known beforehand."""
    return len(drafter.arm_names) if len(drafter.arm_names) > 1 else 0


def _lengths(max_draft_len: int) -> list[int]:
    """Draft lengths of one repeat; 0, plain decoding, several times: it is the numerator of every speedup."""
    return [s - 1 for s in lengths_up_to(max_draft_len)] + [0] * (PLAIN_ROUNDS - 1)


def samples_of(rounds: Sequence[Round], drafted: Sequence[int] | None = None, *, block_len: int = 1) -> list[Sample]:
    """Rounds of one decode as samples.

    Args:
        rounds: all of them, in order.
        drafted: tokens of each round that the drafter itself made; default: all.
        block_len: of the drafter; one that yields more than a token a pass (a look-up) is never behind the text, nor is
            one that reports its passes, all of which are counted.
    """
    found, reads = [], 1
    reports = any(row.record is not None for row in rounds)
    for row, own in zip(rounds, drafted or [row.drafted_len for row in rounds], strict=True):
        found.append(
            Sample(
                s=row.submitted_len + 1,
                ctx_len=row.ctx_len,
                # A look-up that finds nothing is no pass to the simulator.
                passes=own if block_len == 1 and not reports else row.draft_passes * (own > 0),
                blocks=passes_for(own, block_len) if reports else 0,
                reads=reads,
                own=own,
                accepted=min(own, row.accepted_len),
                draft_s=row.draft_s,
                verify_s=row.verify_s,
                overhead_s=row.overhead_s,
                arm=row.arm,
            )
        )
        # The last drafted token was not read yet; without a draft nothing was.
        if block_len == 1 and not reports:
            reads = max(1, row.emitted_len - own + 1) if own else reads + row.emitted_len
    return found


def similar_contexts(ctx_len: Sequence[int]) -> npt.NDArray[np.float64]:
    """Context lengths replaced by the mean of their group of similar ones, so that a group has a median."""
    lengths = np.array(ctx_len, np.float64)
    groups = np.round(lengths / CONTEXT_STEP)
    grouped = lengths.copy()
    for group in np.unique(groups):
        grouped[groups == group] = lengths[groups == group].mean()
    return grouped


class _Turns(OnlineController):
    """Static controllers, one round each.

    Args:
        lengths: of the drafts.
        block_len: of the drafter.

    Attributes:
        left: the length and arm of each round to come, the next one last.
    """

    def __init__(self, lengths: Collection[int], block_len: int) -> None:
        setting = Setting(block_len=block_len, max_draft_len=max(lengths), latency=ANY_LATENCY)
        self._statics = {
            length: OnlineController(build(f"static:length={length}", setting)) for length in {0, *lengths}
        }
        super().__init__(self._statics[0].controller)
        self.left: list[tuple[int, int]] = []
        self._now = self._statics[0]

    def over(self, text: list[int]) -> bool:
        """Whether the round under way is the last one; a stopping criterion of the decode."""
        return not self.left

    def begin(self, pos: int, ctx_len: int, hint: int = -1) -> tuple[int, int]:
        length, arm = self.left.pop()
        self._now = self._statics[length]
        return arm, self._now.begin(pos, ctx_len, hint)[1]

    def revise(self, q: Any, more: bool, passes: PassRecord | None = None) -> tuple[int, int]:
        return self._now.revise(q, more, passes)

    def update(self, accepted: int, round_s: float) -> None:
        self._now.update(accepted, round_s)


class _Filled(Drafter):
    """A drafter whose drafts have the length that was asked for: passes of its own first, then tokens of the prompt.

    Passes of a drafting model take as long as the target's, and a look-up may find nothing; what the target scores does
    not matter to its time. So a long pass of the target need not wait for a long draft. A draft of a chosen arm is all
    its own, since its seconds are wanted.

    Args:
        drafter: the one that is measured.
        max_draft_len: longest draft.
        rng: chooses how many passes of its own a draft gets.
    """

    def __init__(self, drafter: Drafter, max_draft_len: int, rng: np.random.Generator) -> None:
        self._drafter, self._rng = drafter, rng
        self.name, self.block_len, self.max_draft_len = drafter.name, drafter.block_len, max_draft_len
        self.branches, self.depth, self.tap = drafter.branches, drafter.depth, drafter.tap
        self.max_scored_len, self.loan = drafter.max_scored_len, drafter.loan
        self.own: list[int] = []

    def start(self, prompt: torch.Tensor, capacity: int, draws: Draws, processors: Sequence[Processor]) -> None:
        self._drafter.start(prompt, capacity, draws, processors)
        self._filler = prompt.repeat(-(-self.max_draft_len // len(prompt)))
        self.own, self._now = [], 0

    def propose(self, count: int, arm: int) -> Proposal:
        # What is verified as a tree without counting its nodes cannot be filled up.
        whole = self._drafter.block_len > 1 or self._drafter.depth is not None or arm >= 0
        most = count if whole else int(self._rng.integers(1, MOST_PASSES + 1))
        found = self._drafter.propose(min(count, most), arm)
        self._now, missing = len(found.q), count - len(found.q)
        if missing <= 0 or not isinstance(found, Draft):
            return found
        filler = found._replace(
            tokens=torch.cat([found.tokens, self._filler[:missing]]),
            q=torch.cat([found.q, torch.ones(missing, device=found.q.device)]),
            law=None,
        )
        if found.parents is None:
            return filler
        # Siblings differ in a tree: what is missing goes on from its last node.
        nodes = torch.arange(self._now - 1, count - 1)
        return filler._replace(parents=torch.cat([found.parents, nodes]))

    def commit(self, tokens: Sequence[int]) -> None:
        self._drafter.commit(tokens)
        self.own.append(self._now)
        self._now = 0


def measure(
    target: Target,
    drafter: Drafter,
    contexts: Sequence[torch.Tensor],
    *,
    max_draft_len: int,
    repeats: int,
    warmup: int = 1,
    seed: int = 0,
    sample: bool = False,
    tick: Callable[[], None] = lambda: None,
) -> list[Sample]:
    """Time rounds of every length, and a whole draft of every arm, at every context, interleaved.

    Args:
        target, drafter: as in a decode; a drafter that proposes nothing is measured as costing nothing.
        contexts: int64[ctx_len] prompts, on the target's device.
        max_draft_len: lengths go to `max_draft_len` + 1.
        repeats: measured repeats, after `warmup` dropped ones.
        seed: of the order.
        sample: verify by sampling at temperature 1, which costs more than the greedy way.
        tick: called after every repeat.

    Raises:
        ConfigError: the target's window is too short for a context and one repeat.
    """
    rng = np.random.default_rng(seed)
    arms = arms_to_measure(drafter)
    rounds = [(length, -1) for length in _lengths(max_draft_len)]
    rounds += [(drafter.arm_draft_len, arm) for arm in range(arms)]
    most_new = most_new_tokens(max_draft_len, drafter.depth, arms)
    for prompt in contexts:
        if target.window is not None and len(prompt) + most_new > target.window:
            raise ConfigError(
                f"a context of {len(prompt)} tokens and up to {most_new} more exceed the target's window of "
                f"{target.window}; choose a shorter context or a lower --max-draft-len"
            )
    turns, filled = _Turns({length for length, _ in rounds}, drafter.block_len), _Filled(drafter, max_draft_len, rng)
    settings = Settings(max_new_tokens=most_new, criteria=(turns.over,), sample=sample)
    samples: list[Sample] = []
    for repeat in range(warmup + repeats):
        for place in rng.permutation(len(contexts)).tolist():
            # Taken from the end. The criterion cuts the last round at its first token, so one more runs, not measured.
            turns.left = [(0, -1), *(rounds[number] for number in rng.permutation(len(rounds)))]
            done = decode(target, filled, turns, contexts[place], settings)
            if repeat >= warmup:
                samples += samples_of(done.rounds, filled.own, block_len=drafter.block_len)[:-1]
        tick()
    return samples
