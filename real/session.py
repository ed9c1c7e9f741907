"""A target and a drafter ready to decode, made from their names.

Owns the way from command-line spellings to objects that `real.loop` takes. Knows nothing about prompts or files.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Protocol

from real.compat import check_models, logits_width
from real.drafters.base import Drafter, NoDrafter
from real.drafters.choose import (
    DDTREE,
    DFLASH,
    EAGLE3,
    FASTDLLM,
    MODEL,
    NONE,
    PROMPT_LOOKUP,
    SELF,
    DrafterSpec,
    parse_drafter,
)
from real.drafters.ddtree import make_ddtree
from real.drafters.dflash import make_dflash
from real.drafters.eagle3 import make_eagle3
from real.drafters.fastdllm import make_fastdllm
from real.drafters.layer_skip import skip_layers
from real.drafters.model import ModelDrafter
from real.drafters.prompt_lookup import PromptLookupDrafter
from real.drafters.selfspec import make_selfspec
from real.loop import check_pair
from real.models import Loaded, load_target
from real.target import Target
from specsim.controllers import REGISTRY, Controller, Setting, build, parse_spec
from specsim.errors import ConfigError
from specsim.latency import LatencyModel
from specsim.schema import MAX_DRAFT_LEN


class Maker(Protocol):
    """Makes a drafter of its options (`real.drafters.choose.KEYS`) for a loaded target.

    Raises ConfigError for options it cannot read, and for a checkpoint that is broken or does not fit the target.
    """

    def __call__(
        self, options: Mapping[str, str], loaded: Loaded, *, max_draft_len: int, sampling: str, merge_prompt: bool
    ) -> Drafter: ...


# Drafters that read their options themselves: one line each, and one in `real.drafters.choose.KEYS`.
MAKERS: dict[str, Maker] = {
    DFLASH: make_dflash,
    DDTREE: make_ddtree,
    FASTDLLM: make_fastdllm,
    EAGLE3: make_eagle3,
    SELF: make_selfspec,
}

# For controllers that look at no cost, or whose spelling is only being checked: building one takes a latency model.
ANY_LATENCY = LatencyModel.affine(c_s=0.001, b_s=0.05)


@dataclass(frozen=True, kw_only=True)
class Session:
    """What decodes: a loaded target and a drafter.

    Args:
        loaded: the target's model and tokenizer.
        target: the target under decoding.
        drafter: proposes.
        plain: the drafter of plain decoding.
    """

    loaded: Loaded
    target: Target
    drafter: Drafter
    plain: Drafter

    def controllers(self, spellings: list[str] | tuple[str, ...], latency: LatencyModel) -> list[Controller]:
        """Controllers from their command-line spellings, in order.

        Raises:
            ConfigError: one that cannot be built, cannot run live, or would not be lossless with this drafter.
        """
        built = [build_for(spelling, self.drafter, latency) for spelling in spellings]
        for controller in built:
            check_pair(controller, self.drafter)
        return built


def build_for(spelling: str, drafter: Drafter, latency: LatencyModel) -> Controller:
    """The controller that a spelling means for a drafter.

    Of a drafter with a single arm, controllers of arms choose that one and controllers of lengths how much it drafts.

    Raises:
        ConfigError: an unknown controller, parameters out of range, or one that chooses what this drafter does not
            offer.
    """
    kinds = REGISTRY[parse_spec(spelling)[0]].kinds
    if len(drafter.arm_costs) > 1 and "arm" not in kinds:
        raise ConfigError(
            f"controller {spelling!r} chooses a length, but drafter {drafter.name!r} has {len(drafter.arm_costs)} arms "
            "to choose from; choose a controller of arms, such as sp2ec or arm:index=0, or draft with one arm "
            "(self:skip=9-14)"
        )
    return build(spelling, setting_of(drafter, latency, arms=len(drafter.arm_costs) > 1 or "length" not in kinds))


def setting_of(drafter: Drafter, latency: LatencyModel, *, arms: bool = False) -> Setting:
    """What a drafter's controllers are built from; those of arms, if it has any, or of lengths."""
    setting = Setting(
        block_len=drafter.block_len,
        max_draft_len=max(1, drafter.max_draft_len),
        latency=latency,
        tree=drafter.branches,
    )
    if not arms or not drafter.arm_costs:
        return setting
    # By what they read, for rules that compare drafts of different lengths; rounds are measured as they come.
    pass_s = float(latency.verify_table(1)[1]) if isinstance(latency, LatencyModel) else math.nan
    return replace(
        setting, arm_draft_s=tuple(cost * pass_s for cost in drafter.arm_costs), draft_len=drafter.arm_draft_len
    )


def open_session(
    target: str,
    drafter: str,
    *,
    dtype: str = "float32",
    device: str = "auto",
    max_draft_len: int = 24,
    draft_sampling: str = "greedy",
    cache: str = "dynamic",
    visual_tokens: int | None = None,
) -> Session:
    """Load a target and its drafter.

    Args:
        target: as for `real.models.load_target`.
        drafter: as for `real.drafters.choose.parse_drafter`.
        dtype, device: of both.
        max_draft_len: most tokens proposed in a round.
        draft_sampling: `greedy` or `sample`, for drafters that are models.
        cache: `dynamic` or `static`.
        visual_tokens: as for `real.models.load_target`.

    Raises:
        ConfigError: anything unknown, missing or incompatible.
    """
    loaded = load_target(target, dtype=dtype, device=device, visual_tokens=visual_tokens)
    spec = parse_drafter(drafter, target=target, n_layers=loaded.model.config.num_hidden_layers)
    made = make_drafter(spec, loaded, max_draft_len=max_draft_len, draft_sampling=draft_sampling)
    return Session(loaded=loaded, target=Target(loaded.model, cache=cache), drafter=made, plain=NoDrafter())


def make_drafter(
    spec: DrafterSpec, loaded: Loaded, *, max_draft_len: int, draft_sampling: str = "greedy", merge_prompt: bool = False
) -> Drafter:
    """The drafter of a specification for a loaded target; `merge_prompt` as in `real.drafters.model`.

    Raises:
        ConfigError: a drafting model that cannot be loaded or does not fit the target.
    """
    if not 1 <= max_draft_len <= MAX_DRAFT_LEN:
        raise ConfigError(f"max_draft_len {max_draft_len}: allowed: 1..{MAX_DRAFT_LEN}")
    if spec.name == NONE:
        return NoDrafter()
    if spec.name == PROMPT_LOOKUP:
        return PromptLookupDrafter(
            max_draft_len=max_draft_len, max_ngram_len=spec.max_ngram_len or 1, stop_ids=loaded.stop_ids
        )
    if spec.name in MAKERS:
        return MAKERS[spec.name](
            spec.options, loaded, max_draft_len=max_draft_len, sampling=draft_sampling, merge_prompt=merge_prompt
        )
    if spec.name == MODEL:
        other = load_target(spec.path or "", dtype=loaded.dtype, device=loaded.device)
        check_models(loaded.model, other.model, tokenizers=(loaded.tokenizer, other.tokenizer))
        model, name = other.model, f"{MODEL}:{other.name}"
    else:
        left_out = spec.skip_layers or ()
        # The layers belong to the name: costs and acceptance of another set are another drafter's.
        model, name = skip_layers(loaded.model, left_out), f"{spec.name}:skip={','.join(map(str, left_out))}"
    return ModelDrafter(
        model,
        name=name,
        max_draft_len=max_draft_len,
        sampling=draft_sampling,
        width=logits_width(loaded.model),
        merge_prompt=merge_prompt,
    )
