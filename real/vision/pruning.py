"""SpecVLM live: draft passes of the target that see only some of the visual tokens.

Which ones, `real.builders.specvlm` says, from the target's attention to them. The target sees all. An arm is a share of
visual tokens left out; its draft passes run the whole target, or what one set of sub-blocks leaves of it, over a cache
of their own: copies of the target's keys and values of the tokens kept, to which the text is added as it is committed.
Copies cost memory once per arm and prompt; a mask would cost none, but a masked pass reads all keys all the same.

The published code prefills a draft model with the shorter prompt, so that tokens kept move together and have seen only
each other. Here they are the target's own: each has seen all visual tokens before it and keeps its rotary position.

Owns the scores' pass over the prompt's last text, the copies, and the options on the command line.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch

from real.builders.arm import Arm
from real.builders.specvlm import (
    ATTENTION,
    SHARE,
    TWO_STAGE,
    Choice,
    Ranks,
    attention_scores,
    family,
    last_visual,
    sequence_positions,
    similar_text,
)
from real.cache import KVCache, forward
from real.clock import Stopwatch
from real.drafters.base import Built
from real.drafters.family import Family, Observation
from real.drafters.options import fraction, switch
from real.target import EMBEDDINGS, decoder_layers, make_tap
from real.vision.model import VisionModel
from specsim.errors import ConfigError

LOOKING = ("share", "attended", "lowest", "queries")  # options of choices that look at the target's attention
KEYS = ("prune", "choice", "nested", *LOOKING)
ALL, SIMILAR = "all", "similar"


@contextmanager
def _attention_to(model: Any, visual: Sequence[int], queries: Sequence[int] | None) -> Iterator[list[torch.Tensor]]:
    """While it is open, a pass computes eagerly and leaves float32[n] attention to visual tokens, of each layer."""
    found: list[torch.Tensor] = []
    attentions: list[Any] = [layer.self_attn for layer in decoder_layers(model)]
    configs = {id(attention.config): attention.config for attention in attentions}.values()
    before = [config._attn_implementation for config in configs]

    def hook(module: torch.nn.Module, inputs: Any, output: Any) -> None:
        if output[1] is None:
            raise ConfigError(f"{type(module).__name__} gives no attention weights; SpecVLM needs them")
        found.append(attention_scores([output[1][0].float()], visual, queries))

    handles = [attention.register_forward_hook(hook) for attention in attentions]
    try:
        for config in configs:
            config._attn_implementation = "eager"
        yield found
    finally:
        for config, implementation in zip(configs, before, strict=True):
            config._attn_implementation = implementation
        for handle in handles:
            handle.remove()


@torch.inference_mode()
def visual_attention(
    model: Any, ids: torch.Tensor, visual: Sequence[int], cache: KVCache, queries: Sequence[int] | None = None
) -> np.ndarray:
    """float32[n]: the target's attention to each visual token, from the text behind the last one (SpecVLM's queries).

    One pass over that text with eager attention, on copies of what the cache holds before it: the target's own keys and
    values stay as they are.

    Args:
        model: the language model (`VisionModel.text`).
        ids: int64[P], the prompt.
        visual: places of visual tokens, ascending, at least one.
        cache: holds at least the prompt but its last token.
        queries: which tokens of that text look, counted from its first; None: all.

    Raises:
        ConfigError: layers that give no attention weights.
    """
    after = visual[-1] + 1
    scratch = KVCache(len(ids))
    scratch.shift = cache.shift
    scratch.append_rows(cache, torch.arange(after, device=ids.device))
    with _attention_to(model, visual, queries) as scores:
        forward(model, ids[after:], scratch, keep=1)
    return torch.stack(scores).mean(0).cpu().numpy()


class _View:
    """A cache of some of a prompt's tokens and of all text behind it.

    Args:
        cache: the target's, holding the prompt but its last token.
        prompt: tokens of it.
        rows: int64[kept] places of those kept.
    """

    def __init__(self, cache: KVCache, prompt: int, rows: torch.Tensor) -> None:
        self._left_out, self._known, self._device = prompt - len(rows), len(rows), rows.device
        self._cache = KVCache(cache.capacity)
        self._cache.shift = cache.shift + self._left_out  # later tokens are at the target's rotary positions
        self._cache.append_rows(cache, rows)

    def behind(self, cache: KVCache) -> KVCache:
        """The cache, with the text that was committed since, and without what drafts have left in it."""
        self._cache.crop_to(self._known)
        self._cache.append_rows(cache, torch.arange(self._known + self._left_out, cache.length, device=self._device))
        self._known = self._cache.length
        return self._cache


class PrunedFamily(Family):
    """Arms that leave out shares of the visual tokens, for a self-speculating drafter of a vision-language target.

    Args:
        model: the target.
        drop_rates: share of visual tokens left out by each arm, ascending; 0 sees everything.
        choice: the rule that chooses.
        nested: as in `real.builders.specvlm.family`.
        similar: let only that half of the text look at the pictures which is most like them (`similar_text`).
        arm: sub-blocks that all of them leave out besides.

    Attributes:
        built: of the last prompt; its seconds are those of scores, choices and copies.
        kept: int64 ranks of the visual tokens that each arm keeps of the last prompt.

    Raises:
        ConfigError: no rate, rates out of range or not ascending.
    """

    def __init__(
        self,
        model: VisionModel,
        drop_rates: Sequence[float],
        choice: Choice = Choice(),  # noqa: B008 - frozen
        *,
        nested: bool = False,
        similar: bool = False,
        arm: Arm | None = None,
    ) -> None:
        rates = tuple(drop_rates)
        if not rates or list(rates) != sorted(set(rates)) or min(rates) < 0 or max(rates) > 1:
            raise ConfigError(f"SpecVLM: drop rates {list(rates)}; allowed: ascending, each 0..1, at least one")
        self._model, self.rates, self.size = model, rates, len(rates)
        self._choice, self._nested, self._arm = choice, nested, arm or Arm()
        self._watch = Stopwatch(next(model.text.parameters()).device)
        self.tap = make_tap(model.text, [EMBEDDINGS]) if similar else None
        if self.tap is not None:
            self.tap.prompt_only = True
        self.kept: tuple[Ranks, ...] = ()

    def costs(self, cost: Callable[[Arm], float]) -> tuple[float, ...]:
        # All read the same weights; how many keys they read besides, the prompt decides.
        return (cost(self._arm),) * self.size

    def budgets(self, costs: tuple[float, ...]) -> tuple[float, ...]:
        return tuple(1 - rate for rate in self.rates)

    def name(self, number: int) -> str:
        pruned = f"prune={self.rates[number]:g}"
        return f"{pruned}+skip={self._arm}" if self._arm.skipped() else pruned

    def start(self, prompt: torch.Tensor) -> None:
        self._views: dict[int, _View] = {}
        self.built = Built()

    def look(self, prompt: torch.Tensor, cache: KVCache) -> None:
        with self._watch:
            self._marks, self._device = self._model.visual(prompt).cpu().numpy().astype(np.int64), prompt.device
            scores = self._scores(prompt, np.flatnonzero(self._marks), cache)
            seed = prompt.tolist()  # a prompt's own, so that a recording draws what a run does
            self.kept = tuple(family(scores, self.rates, self._choice, nested=self._nested, seed=seed))
        self.built = Built(build_s=self._watch.read(), arms=self.size, families=1)

    def _scores(self, prompt: torch.Tensor, places: np.ndarray, cache: KVCache) -> np.ndarray:
        """float32[n]; zeros where nothing looks at them."""
        after = last_visual(self._marks.tolist(), 1) + 1
        seen = None if self.tap is None else self.tap.take()
        if not after or not self._choice.looks:
            return np.zeros(len(places), np.float32)
        queries = None
        if seen is not None and len(prompt) - after > 1:
            text = self._model.text.get_input_embeddings()(prompt[after:])
            visual, behind = (rows.float().cpu().numpy() for rows in (seen[torch.from_numpy(places)], text))
            queries = similar_text(visual, behind).tolist()
        return visual_attention(self._model.text, prompt, places.tolist(), cache, queries)

    def view(self, number: int, cache: KVCache) -> KVCache:
        if len(self.kept[number]) == int(self._marks.sum()):
            return cache
        view = self._views.get(number)
        if view is None:
            with self._watch:
                rows = torch.from_numpy(sequence_positions(self._marks[:-1].tolist(), 1, self.kept[number]))
                view = self._views[number] = _View(cache, len(self._marks) - 1, rows.to(self._device))
            self.built = self.built._replace(build_s=self.built.build_s + self._watch.read())
        return view.behind(cache)

    def arm(self, number: int) -> Arm:
        return self._arm

    def observe(self, seen: Observation) -> None:
        pass


def pruned_arms(options: Mapping[str, str], vision: VisionModel, arm: Arm | None) -> PrunedFamily:
    """The family of `self:prune=0,0.5,0.9[,choice=two-stage][,share=0.4 or attended=0.1][,lowest=1][,nested=1]
    [,queries=similar]`.

    Args:
        options: as spelled; those of other drafters are not looked at.
        vision: the target.
        arm: sub-blocks that all arms leave out besides.

    Raises:
        ConfigError: an option that is not allowed, or one that the choice makes no use of.
    """
    kind = options.get("choice", TWO_STAGE)
    uses = {TWO_STAGE: LOOKING, ATTENTION: ("lowest", "queries")}.get(kind, ())
    unused = next((key for key in LOOKING if key in options and key not in uses), None)
    rates = [fraction("self", "prune", text) for text in options["prune"].split(",")]
    choice = Choice(
        kind=kind,
        share=fraction("self", "share", options["share"]) if "share" in options else SHARE,
        fraction=fraction("self", "attended", options["attended"]) if "attended" in options else None,
        lowest_first=switch("self", "lowest", options.get("lowest", "0")),
    )
    if unused is not None:
        raise ConfigError(f"self: {unused} has no say in choice={kind}; leave it out")
    if "share" in options and "attended" in options:
        raise ConfigError("self: share and attended both say how many tokens are taken by attention; give one of them")
    if options.get("queries", ALL) not in (ALL, SIMILAR):
        raise ConfigError(f"self: queries is {options['queries']!r}; allowed: {ALL}, {SIMILAR}")
    return PrunedFamily(
        vision,
        rates,
        choice,
        nested=switch("self", "nested", options.get("nested", "0")),
        similar=options.get("queries") == SIMILAR,
        arm=arm,
    )
