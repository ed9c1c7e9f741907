"""THE decode loop: one request, any drafter, any controller, the output of plain decoding.

    arm, want = controller.begin(pos, ctx_len)          # how many tokens to draft
    draft     = drafter.propose(...)                    # in whole passes; controller.revise after each
    scores    = target.score(last, draft.first(submit)) # submit = 0 is plain decoding
    verdict   = verify(draft, scores)                   # accepted tokens, and one of the target's own
    commit, stop checks, controller.update, sink.append

Everything that differs between methods is behind `propose`, `score`, the verdict and `commit`; no name of a method
appears here. A draft is a chain, or a tree whose nodes the controller counts as it counts a chain's tokens. Plain
decoding is the drafter that proposes nothing, and is timed by the same lines.

Sampled drafts and controllers. A controller that looks at the probabilities of drafted tokens and then submits only
some of them selects by value: tokens it likes are verified, tokens it does not are drawn from the target instead. The
output's law is then no longer the target's (tests/test_real_law.py shows by how much). Tokens chosen by a fixed rule
carry no luck, so greedy drafts go with every controller at any temperature; sampled drafts go with controllers that do
not read q. The other combination is refused, unless the drafter is `blind`: its confidences tell what tokens were drawn
from, not which ones came out, as a block drafter can, whose distributions do not depend on each other's tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from time import perf_counter

import numpy as np
import numpy.typing as npt
import torch

from real.clock import DRAFT, VERIFY, Clock, clock_for
from real.decisions import Decisions
from real.drafters.base import Built, Drafter
from real.draws import Draws, KeyedDraws
from real.reference import ASSISTED, LIVE, Reference
from real.target import Target
from real.tree import paths, walk_greedy, walk_sampling, within
from real.verify import Draft, Processor, Proposal, process, text_for, verify_greedy, verify_sampling
from real.vision.prompt import VisionPrompt, ids_of
from specsim.controllers import Controller
from specsim.errors import ConfigError, SpecsimError
from specsim.kernel import passes_for, served
from specsim.online import OnlineController
from specsim.passes import PassRecord

MAX_SEED = 2**63 - 1
Criterion = Callable[[list[int]], bool]


class NotFiniteError(SpecsimError):
    """The target or the drafter returned NaN or infinity; nothing of that round was accepted."""


@dataclass(frozen=True, kw_only=True)
class Settings:
    """What is asked of a decode, whoever drafts and decides.

    Args:
        max_new_tokens: longest output, never exceeded.
        stop_ids: end-of-text tokens; the first one ends the output and belongs to it.
        sample: draw tokens from the target's distribution instead of taking its first choice.
        processors: logits processors (transformers), applied to every row with the tokens before it.
        criteria: each asked with prompt + output after every committed token; True ends the output there.
        seed: of all randomness of the decode.
    """

    max_new_tokens: int
    stop_ids: tuple[int, ...] = ()
    sample: bool = False
    processors: Sequence[Processor] = ()
    criteria: Sequence[Criterion] = ()
    seed: int = 0

    def __post_init__(self) -> None:
        if self.max_new_tokens < 1:
            raise ConfigError(f"max_new_tokens {self.max_new_tokens}: allowed: 1 or more")
        if not 0 <= self.seed <= MAX_SEED:
            raise ConfigError(f"seed {self.seed}: allowed: 0..2^63-1")


@dataclass(slots=True, kw_only=True)
class Round:
    """One executed round, the columns of a round log (docs/formats.md) and what a shadow replay needs besides.

    Args:
        pos, ctx_len: output tokens, and all tokens, before the round.
        arm, drafted_len, submitted_len, draft_passes: as in the round log.
        accepted_len: draft tokens that became output before the round's last token; a draft token that ended the
            output counts as that last token, so emitted_len = accepted_len + 1 always.
        available_len: tokens the drafter could have offered, as far as it was asked.
        scored_len: draft tokens in the target's pass; another number than submitted_len where the controller counts
            something else, such as the depth of a tree.
        forward_passes: passes the drafter's network made; draft_passes counts whole blocks, as the simulator does, but
            for drafters that report their passes, of which it counts every one.
        record: what those passes recorded, where the drafter reports it.
        q: float32[drafted_len] confidences the controller saw.
        draft_s, verify_s, round_s: seconds; the rest of round_s is the loop's own work, and the two that follow.
        controller_s: in the controller's functions; a controller is told of a round in the next one.
        build_s: in making draft configurations (`Drafter.built`).
    """

    arm: int
    drafted_len: int
    submitted_len: int
    draft_passes: int
    available_len: int
    q: npt.NDArray[np.float32]
    scored_len: int = 0
    forward_passes: int = 0
    record: PassRecord | None = None
    round: int = 0
    pos: int = 0
    ctx_len: int = 0
    accepted_len: int = 0
    emitted_len: int = 0
    draft_s: float = 0.0
    verify_s: float = 0.0
    round_s: float = 0.0
    controller_s: float = 0.0
    build_s: float = 0.0

    @property
    def overhead_s(self) -> float:
        """Seconds neither drafting nor verifying."""
        return max(0.0, self.round_s - self.draft_s - self.verify_s)

    @property
    def cost_s(self) -> float:
        """Seconds the controller is told: what the round costs when nothing has to be built."""
        return self.round_s - self.build_s


@dataclass(kw_only=True)
class Decoded:
    """The output of one request.

    Args:
        prompt_len: tokens of the prompt.
        output: token ids, the end-of-text token included when it was produced.
        reason: why it ended: `stop` (end-of-text), `length`, `context` (the target's window is full) or `criterion`.
        rounds: what happened.
        prefill_s: seconds for the prompt, target and drafter.
        built: what the drafter made of draft configurations.
        early_build_s: its seconds before the first round, no part of prefill_s.
        mismatches: where a reference decided (`real.reference`), output tokens in whose place the target would have
            chosen another; None: the target decided.
    """

    prompt_len: int
    output: list[int] = field(default_factory=list)
    reason: str = ""
    rounds: list[Round] = field(default_factory=list)
    prefill_s: float = 0.0
    built: Built = field(default_factory=Built)
    early_build_s: float = 0.0
    mismatches: int | None = None

    @property
    def verification(self) -> str:
        """`live` or `reference-assisted`."""
        return LIVE if self.mismatches is None else ASSISTED

    @property
    def decode_s(self) -> float:
        """Seconds of all rounds, and of what was built before the first."""
        return self.early_build_s + sum(r.round_s for r in self.rounds)

    @property
    def controller_s(self) -> float:
        """Of these seconds, those in the controller's functions."""
        return sum(r.controller_s for r in self.rounds)

    @property
    def build_s(self) -> float:
        """Of these seconds, those in making draft configurations."""
        return self.built.build_s


def check_pair(controller: Controller, drafter: Drafter) -> None:
    """Refuse a controller that cannot run live, or not losslessly with this drafter.

    Raises:
        ConfigError: a controller that needs to know the future, or one that would drop sampled tokens by their
            probability (see the module's text).
    """
    if controller.privilege != "none":
        raise ConfigError(
            f"controller {controller.name!r} is told what will be accepted; it exists in replay only "
            "(python -m specsim.replay)"
        )
    if controller.full_information:
        raise ConfigError(
            f"controller {controller.name!r} is told what every arm would have given; it exists in replay "
            "only (python -m specsim.replay)"
        )
    if controller.plan is not None and (controller.judge is None or not drafter.reports_passes):
        raise ConfigError(
            f"controller {controller.name!r} decides on the confidences of all drafter passes, which {drafter.name} "
            "does not report; diffusion drafters that fill masks do, such as fastdllm"
        )
    if drafter.samples and controller.needs_q and not drafter.blind:
        raise ConfigError(
            f"controller {controller.name!r} drops drafted tokens by their probability; with sampled drafts that "
            "changes the output's distribution. Draft greedily (draft sampling 'greedy'), which is lossless at any "
            "temperature, or choose a controller that does not read q, such as static"
        )


@torch.inference_mode()
def decode(
    target: Target,
    drafter: Drafter,
    controller: OnlineController,
    prompt: torch.Tensor | VisionPrompt,
    settings: Settings,
    *,
    request: int = 0,
    clock: Clock | None = None,
    draws: Draws | None = None,
    reference: Reference | None = None,
    on_round: Callable[[Round, list[int]], None] = lambda row, tokens: None,
) -> Decoded:
    """Decode one request.

    Args:
        target, drafter: may hold an earlier request; both begin anew.
        controller: its `start_request` is called, so that state lasts as long as its rule says.
        prompt: int64[P], P >= 1, on the target's device; or with pictures, see `real.vision`.
        settings: limits, stops, sampling.
        request: number of the request; with the seed, the key of its randomness.
        clock: default: the one for the target's device.
        draws: default: keyed by seed and request.
        reference: of this prompt; decides in place of the target, see `real.reference`. Greedy decoding only.
        on_round: called after every round with it and the tokens it emitted, before the controller is told.

    Raises:
        ConfigError: an empty prompt, one that does not fit the target's window, a pair `check_pair` refuses, or a
            reference for sampling, or one that is too short.
        NotFiniteError: logits of NaN or infinity.
    """
    check_pair(controller.controller, drafter)
    if reference is not None and settings.sample:
        raise ConfigError("a reference text decides in greedy decoding only: sampled, there is no one text to expect")
    ids = ids_of(prompt)
    _check_prompt(ids, target)
    clock = clock or clock_for(target.device)
    draws = draws or KeyedDraws(settings.seed, request)
    text, result = ids.tolist(), Decoded(prompt_len=len(ids))
    longest = max(drafter.max_draft_len, drafter.max_scored_len)
    capacity = len(ids) + settings.max_new_tokens + longest + 1
    if target.window is not None:
        capacity = min(capacity, target.window + longest + 1)
    started = perf_counter()
    target.start(prompt, capacity, drafter.tap, drafter.loan)
    drafter.start(ids, capacity, draws, settings.processors)
    controller.start_request(request)
    clock.start()
    result.early_build_s = drafter.built.build_s
    result.prefill_s = perf_counter() - started - result.early_build_s
    decisions = Decisions(controller)
    room = _room(text, result.output, settings, target)
    while not result.reason:
        pos, built_s = len(result.output), drafter.built.build_s
        arm, want = decisions.begin(pos, len(text))
        draft, row = _draft(drafter, decisions, arm, want, room, pos, clock, ids.device)
        clock.enter()
        # A tree may be deeper than what can still become output.
        scored = within(draft.first(row.submitted_len), room)
        row.scored_len = len(scored.tokens)
        last = torch.tensor(text[-1:], device=ids.device)
        logits = target.score(torch.cat([last, scored.tokens]), scored.parents)
        new, path = _verify(scored, logits, text, settings, draws, pos, reference)
        clock.leave(VERIFY)
        row.round, row.pos, row.ctx_len = len(result.rounds), pos, len(text)
        result.reason = _commit(new, text, settings)
        result.output += new
        target.commit(len(text) - 1, None if path is None else path[: len(new) - 1])
        drafter.commit(new)
        room = _room(text, result.output, settings, target)
        if not result.reason and room < 0:
            result.reason = "length" if len(result.output) == settings.max_new_tokens else "context"
        row.accepted_len, row.emitted_len = len(new) - 1, len(new)
        row.draft_s, row.verify_s, row.round_s = clock.read()
        row.controller_s, row.build_s = decisions.watch.read(), drafter.built.build_s - built_s
        result.rounds.append(row)
        on_round(row, new)
        decisions.update(row.accepted_len, row.cost_s)
    result.built = drafter.built
    result.mismatches = None if reference is None else reference.mismatches
    return result


def _draft(
    drafter: Drafter,
    controller: Decisions,
    arm: int,
    want: int,
    room: int,
    pos: int,
    clock: Clock,
    device: torch.device,
) -> tuple[Proposal, Round]:
    """Let the drafter draft until the controller wants no more; the draft and the row, decisions filled in."""
    draft: Proposal = Draft.nothing(device)
    available = drafter.max_draft_len if drafter.branches and room > 0 else min(room, drafter.max_draft_len)
    q = np.zeros(0, np.float32)
    submit = passes = 0
    while (want > len(q) or controller.undecided) and len(q) < available:
        count, before = served(max(want, len(q)), available, drafter.block_len), len(q)
        clock.enter()
        # A rule that judges passes may wait for one more although it has the tokens it wants so far.
        draft = drafter.propose(count, arm) if want > len(q) else drafter.refine(count, arm)
        q = draft.q.float().cpu().numpy()
        clock.leave(DRAFT)
        sound = np.isfinite(q)
        if not sound.all():  # before a rule computes with it
            raise NotFiniteError(
                f"output position {pos + int(sound.argmin())}: drafter {drafter.name} reports a probability "
                "that is not finite (NaN or infinity). Check its weights, or load it in float32"
            )
        # A first search that found nothing was a pass all the same; a drafter at the end of its window made none.
        passes += max(passes_for(len(q) - before, drafter.block_len), int(not before))
        if len(q) < count:
            available = len(q)
        if len(q):
            submit, want = controller.revise(q, len(q) < available, draft.record)
    made = passes if draft.passes is None else draft.passes
    # Where traces hold every pass of the network, a replay charges every pass.
    charged = passes if draft.record is None else made
    row = Round(arm=arm, drafted_len=len(q), submitted_len=submit, draft_passes=charged, available_len=available, q=q)
    row.forward_passes, row.record = made, draft.record
    return draft, row


def _verify(
    draft: Draft,
    logits: torch.Tensor,
    text: list[int],
    settings: Settings,
    draws: Draws,
    pos: int,
    reference: Reference | None,
) -> tuple[list[int], list[int] | None]:
    """Tokens the round yields, accepted draft tokens and one of the target's own; and the path of a tree's nodes."""
    scores = logits
    if settings.processors:
        before = None if draft.parents is None else paths(draft.parents.tolist())
        text_ids = text_for(settings.processors, text, logits.device)
        scores = process(settings.processors, text_ids, draft.tokens, logits, paths=before)
    path = None
    if reference is not None:
        new, path, unsound = reference.verdict(draft, scores, pos)
    elif draft.parents is None:
        verdict = verify_sampling(draft, scores, draws, pos) if settings.sample else verify_greedy(draft, scores)
        # The round's one synchronisation but for the confidences of each draft pass.
        accepted, token, unsound, *tokens = torch.cat([verdict, draft.tokens]).tolist()
        new = [*tokens[:accepted], token]
    else:
        walked = walk_sampling(draft, scores, draws, pos) if settings.sample else walk_greedy(draft, scores)
        path, token, unsound = walked
        new = [*draft.tokens[path].tolist(), token]
    if unsound:
        raise NotFiniteError(
            f"output position {pos}: the target's or the drafter's numbers are not finite (NaN or infinity); nothing "
            "of this round was accepted. Check the weights, or load the models in float32"
        )
    return new, path


def _commit(new: list[int], text: list[int], settings: Settings) -> str:
    """Append a round's tokens to the text up to the first that ends it; cuts `new` there and says why, or ""."""
    for number, token in enumerate(new):
        text.append(token)
        stopped = token in settings.stop_ids
        if stopped or any(criterion(text) for criterion in settings.criteria):
            del new[number + 1 :]
            return "stop" if stopped else "criterion"
    return ""


def _room(text: list[int], output: list[int], settings: Settings, target: Target) -> int:
    """Draft tokens that could become output before the one the target adds; -1 when there is no room for that one."""
    left = settings.max_new_tokens - len(output)
    return (left if target.window is None else min(left, target.window - len(text))) - 1


def _check_prompt(prompt: torch.Tensor, target: Target) -> None:
    if prompt.ndim != 1 or not len(prompt):
        raise ConfigError(f"prompt of shape {tuple(prompt.shape)}: allowed: int64[P] with at least one token")
    if target.window is not None and len(prompt) >= target.window:
        raise ConfigError(
            f"the prompt has {len(prompt)} tokens, the target's context window is {target.window}; shorten it so that "
            "at least one new token fits"
        )
