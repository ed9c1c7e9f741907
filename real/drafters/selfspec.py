"""Self-speculation: the target drafts by itself, with attentions and MLPs left out, on its own cache.

A draft pass runs what an arm leaves of the target's layers over one token. It looks back on the target's own keys and
values of all committed text, so there is no prompt to take in, nothing to catch up with, and arms can be changed from
round to round; the first pass reads the last committed token, as the target's verification will. What the passes write
is behind the committed text, in the layers whose attention they run, and is forgotten before verification.

Published self-speculation (SWIFT, KnapSpec, SP2ec's code) drafts this way. `layer-skip` is another drafter: it has keys
and values of its own, made by the shortened model, so its drafts differ.

Owns the draft passes, the confidence stop, and the small tree around a chain (`real.drafters.spine`). Which arm is the
controller's choice; which arms there are says a `real.drafters.family.Family`, which may make them while it decodes.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path

import torch

from real.branches import greedy_choice
from real.builders.arm import Arm, cost_order, read_arms
from real.cache import forward
from real.drafters.base import Built, Drafter
from real.drafters.building import built_arms, check_builder
from real.drafters.family import Family, FixedArms, LengthArms, Observation
from real.drafters.options import fraction, whole
from real.drafters.spine import MOST_CANDIDATES, Spine, likeliest
from real.drafters.subblocks import SubBlocks
from real.draws import Draws
from real.models import Loaded
from real.target import Loan
from real.verify import Draft, Processor, Proposal
from real.vision.load import VisionLoaded
from real.vision.pruning import KEYS as PRUNING_KEYS
from real.vision.pruning import pruned_arms
from specsim.errors import ConfigError

DRAFT_LEN = 4
PUBLISHED = "published"
SHORTENED = 256  # shortened targets kept at hand; each is a list of modules


class SelfDrafter(Drafter):
    """Drafts greedily with the target's own layers; lossless at any temperature and with every controller.

    Args:
        blocks: the target in pieces.
        family: its arms.
        name: for logs and tables.
        max_draft_len: most tokens proposed in a round.
        arm_draft_len: tokens a controller of arms asks for.
        stop: a token whose probability is below it is the draft's last, and so is one of `stop_ids`; None: drafts have
            the length that was asked for.
        stop_ids: end-of-text tokens.
        tree: verify a small tree around the draft, see `real.drafters.spine`; lengths count its levels.

    Raises:
        ConfigError: a number out of range.
    """

    block_len = 1

    def __init__(
        self,
        blocks: SubBlocks,
        family: Family,
        *,
        name: str,
        max_draft_len: int = 24,
        arm_draft_len: int = DRAFT_LEN,
        stop: float | None = None,
        stop_ids: Sequence[int] = (),
        tree: bool = False,
    ) -> None:
        if not 1 <= arm_draft_len <= max_draft_len:
            raise ConfigError(f"{name}: length is {arm_draft_len}; allowed: 1..{max_draft_len}, the longest draft")
        if stop is not None and not 0.0 <= stop <= 1.0:
            raise ConfigError(f"{name}: stop is {stop}; allowed: a probability, 0 to 1")
        if family.size < 1:
            raise ConfigError(f"{name}: there are no arms; allowed: at least one")
        self.blocks, self.family, self.name = blocks, family, name
        self.max_draft_len, self.arm_draft_len = max_draft_len, arm_draft_len
        self.stop, self._stop_ids, self._tree = stop, frozenset(stop_ids), tree
        self.loan = self._loan = Loan()
        if tree:
            self.depth, self.max_scored_len = max_draft_len, MOST_CANDIDATES * max_draft_len
        self.arm_costs, self.arm_names, self.tap = family.costs(blocks.cost), family.names, family.tap
        self._shortened = lru_cache(SHORTENED)(blocks.model)

    @property
    def built(self) -> Built:  # pyright: ignore[reportIncompatibleVariableOverride]
        return self.family.built

    def start(self, prompt: torch.Tensor, capacity: int, draws: Draws, processors: Sequence[Processor]) -> None:
        self._last = prompt[-1:]
        self.family.start(prompt)
        self.family.look(prompt, self._loan.cache)
        self._begin()

    def propose(self, count: int, arm: int) -> Proposal:
        if self._arm < 0:
            self._choose(max(arm, 0))
        while len(self._tokens) < min(count, self._longest) and not self._over:
            self._pass()
        spine = Draft(torch.cat(self._tokens), torch.cat(self._q))
        return Spine(spine, torch.stack(self._ids), torch.stack(self._tops)) if self._tree else spine

    def commit(self, tokens: Sequence[int]) -> None:
        drafted = torch.cat(self._tokens).tolist() if self._tokens else []
        states = torch.stack(self._states) if self._states else None
        self.family.observe(Observation(self._arm, tuple(drafted), tuple(tokens), states))
        self._last = torch.tensor(tokens[-1:], device=self._last.device)
        self._begin()

    def forget(self) -> list[torch.Tensor]:
        """Drop the round's draft as if none had been asked for, and give its tokens; the cache is left to its owner."""
        tokens = self._tokens
        self._begin()
        return tokens

    def _begin(self) -> None:
        self._arm, self._over = -1, False
        self._tokens: list[torch.Tensor] = []
        self._q: list[torch.Tensor] = []
        self._ids: list[torch.Tensor] = []
        self._tops: list[torch.Tensor] = []
        self._states: list[torch.Tensor] = []

    def _choose(self, arm: int) -> None:
        if arm >= self.family.size:
            raise ConfigError(
                f"drafter {self.name}: the controller chose arm {arm}; there are 0..{self.family.size - 1}"
            )
        self._arm, self._chosen = arm, self.family.arm(arm)
        self._longest = self.family.lengths[arm] if self.family.lengths else self.max_draft_len
        self._model, self._view = self._shortened(self._chosen), self.family.view(arm, self._loan.cache)

    def _pass(self) -> None:
        """One more token."""
        read = self._tokens[-1] if self._tokens else self._last
        if self.family.wants_states:
            logits, states = self.blocks.states(self._model, self._chosen, read, self._view)
            self._states.append(states)
        else:
            logits = forward(self._model, read, self._view, keep=1)
        if self._tree:
            q, ids = likeliest(logits[0])
            self._tops.append(q)
            self._ids.append(ids)
            token, q = ids[:1], q[:1]
        else:
            token, q, _ = greedy_choice(logits)
        self._tokens.append(token)
        self._q.append(q)
        if self.stop is not None:
            sure, last = torch.cat([q.double(), token.double()]).tolist()  # one wait for the device
            self._over = sure < self.stop or last in self._stop_ids


def make_selfspec(
    options: Mapping[str, str], loaded: Loaded, *, max_draft_len: int, sampling: str, merge_prompt: bool
) -> SelfDrafter:
    """The drafter `self:skip=9-14`, `self:arms=FILE`, `self:build=cossim` or `self:prune=0,0.5,0.9` of a target.

    Args:
        options: `skip`: one arm (`real.builders.arm`), with `lengths` one for each length of its drafts; `arms`: a file
            of several; `build`: makes them for every prompt (`real.drafters.building` has its options, of which `arms`
            is a number); `prune`: one for each share of visual tokens left out (`real.vision.pruning` has its options),
            with or without `skip`; `length`: tokens that an arm drafts, and the longest draft where there are several;
            `stop`, `tree`: as for `SelfDrafter`.
        loaded: the target.
        max_draft_len: most tokens proposed in a round.
        sampling: has to be `greedy`.

    Raises:
        ConfigError: an option that is not allowed, arms of another target, or a target of other layers than Llama's.
    """
    if sampling != "greedy":
        raise ConfigError(f"self: draft sampling {sampling!r}; allowed: greedy, which is lossless at any temperature")
    _check_ways(options)
    if options.get("tree", PUBLISHED) != PUBLISHED:
        raise ConfigError(f"self: tree is {options['tree']!r}; allowed: {PUBLISHED}")
    blocks = SubBlocks(loaded.model)
    family, named = _family(options, blocks, loaded)
    if "lengths" in options:
        family = _of_lengths(options, family, max_draft_len)
    longest = max(family.lengths, default=min(DRAFT_LEN, max_draft_len))
    length = whole("self", "length", options.get("length", str(longest)), high=max_draft_len)
    return SelfDrafter(
        blocks,
        family,
        name=f"self:{','.join(f'{key}={value}' for key, value in {**options, **named}.items())}",
        max_draft_len=max_draft_len if family.size == 1 and "length" not in options else length,
        arm_draft_len=length,
        stop=fraction("self", "stop", options["stop"]) if "stop" in options else None,
        stop_ids=loaded.stop_ids,
        tree="tree" in options,
    )


def _check_ways(options: Mapping[str, str]) -> None:
    """Refuse options that do not say which arms there are in one way."""
    check_builder(options)
    pruning = sorted(set(options) & set(PRUNING_KEYS) - {"prune"})
    if "prune" not in options and pruning:
        raise ConfigError(f"self: {pruning[0]} belongs to prune=...; name that too, or leave it out")
    ways = ("skip" in options or "prune" in options) + ("arms" in options or "build" in options)
    if ways != 1:
        raise ConfigError(
            "self: name its arms in one way: skip=9-14 (one arm), arms=FILE (an arms.json), build=cossim (made for "
            "every prompt; also swift, knapspec, clasp), or prune=0,0.5,0.9 (visual tokens left out, also with skip)"
        )


def _of_lengths(options: Mapping[str, str], family: Family, max_draft_len: int) -> LengthArms:
    """The one arm of a family at every length that is named."""
    if "skip" not in options or "prune" in options:
        raise ConfigError("self: lengths belongs to skip=..., a single arm; name that, or give all arms one length")
    if "length" in options:
        raise ConfigError("self: length and lengths both say how long drafts are; give one of them")
    lengths = [whole("self", "lengths", part, high=max_draft_len) for part in options["lengths"].split(",")]
    if len(set(lengths)) < max(2, len(lengths)):
        raise ConfigError(f"self: lengths is {options['lengths']!r}; allowed: at least two, each once")
    return LengthArms(family.arm(0), lengths)


def _family(options: Mapping[str, str], blocks: SubBlocks, loaded: Loaded) -> tuple[Family, dict[str, str]]:
    """(arms in the controllers' order; what names them, since costs and acceptance of other arms are another's)."""
    if "build" in options:
        return built_arms(options, blocks, lambda prompt: _text_from(loaded, prompt)), {}
    arm = Arm.parse(options["skip"], blocks.n_layers) if "skip" in options else None
    named = {} if arm is None else {"skip": str(arm)}
    if "prune" in options:
        if not isinstance(loaded, VisionLoaded):
            raise ConfigError(
                f"self: prune leaves out visual tokens, which target {loaded.name!r} does not have; use a "
                "vision-language target (docs/vision.md), or leave out layers (skip=9-14)"
            )
        return pruned_arms(options, loaded.vision, arm), named
    if arm is not None:
        return FixedArms([arm]), named
    file = read_arms(options["arms"])
    if file.n_layers != blocks.n_layers:
        raise ConfigError(
            f"{options['arms']}: arms of a target of {file.n_layers} decoder layers ({file.target}); this one has "
            f"{blocks.n_layers}"
        )
    arms = cost_order(file.arms, attention=blocks.attention, mlp=blocks.mlp)
    digest = hashlib.sha256(" ".join(map(str, arms)).encode()).hexdigest()[:8]
    return FixedArms(arms), {"arms": f"{Path(options['arms']).name}#{digest}"}


def _text_from(loaded: Loaded, prompt: torch.Tensor) -> int:
    """Place of the first token behind all visual ones, whose embeddings are no token's."""
    if not isinstance(loaded, VisionLoaded):
        return 0
    places = loaded.vision.visual(prompt).nonzero()
    return int(places[-1]) + 1 if len(places) else 0
