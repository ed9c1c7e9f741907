"""What the values in a drafter's config.json may be, key by key, whichever drafter it is of.

Owns kinds and ranges, and how the sizes of attention and rotary embedding have to fit each other. Which keys a drafter
knows, and what they mean, its loader decides. Upper bounds are far above any published model: they keep a mistyped
number from filling the memory before it can be compared with the weights.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from transformers.activations import ACT2FN

from real.cache import FULL, SLIDING
from specsim.errors import ConfigError
from specsim.schema import is_count, is_nonnegative

MOST_IDS, MOST_WIDE, MOST_HEADS, MOST_LAYERS, MOST_TOKENS = 2**24, 2**20, 2**14, 512, 2**31 - 1
MOST_BLOCK = 4096  # tokens denoised together; attention over a block takes the square of that
MOST_FACTOR, MOST_THETA = 1e6, 1e15
LEAST_CAP = 1e-6  # logits are divided by it
SIZES = (  # without which no model can be built
    "vocab_size",
    "hidden_size",
    "intermediate_size",
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
)
# Others depend on how long the text has become, which cached keys cannot follow.
ROPE_TYPES = ("default", "linear", "llama3", "yarn")


class Rule(NamedTuple):
    """Whether a value is sound, and in words which ones are."""

    sound: Callable[[Any], bool]
    allowed: str


def is_whole(value: object, low: int, high: int) -> bool:
    """Whether a JSON value is a whole number in a range, ends included."""
    return is_count(value) and low <= value <= high  # type: ignore[operator]


def _whole(high: int, low: int = 1) -> Rule:
    return Rule(lambda value: is_whole(value, low, high), f"a whole number, {low}..{high}")


def _positive(high: float) -> Rule:
    return Rule(lambda value: is_nonnegative(value) and 0 < value <= high, f"a number above 0, at most {high:g}")


def _one_of(names: Mapping[str, Any] | tuple[str, ...], allowed: str) -> Rule:
    return Rule(lambda value: isinstance(value, str) and value in names, allowed)


FLAG = Rule(lambda value: isinstance(value, bool), "true or false")
THETA = Rule(
    lambda value: is_nonnegative(value) and 1 < value <= MOST_THETA, f"a number above 1, at most {MOST_THETA:g}"
)
LAYERS = Rule(
    lambda value: isinstance(value, list) and 0 < len(value) <= MOST_LAYERS and all(is_count(one) for one in value),
    "a list of layers, counted from 0",
)
ROPE_KEYS = {
    "rope_type": _one_of(ROPE_TYPES, ", ".join(ROPE_TYPES)),
    "type": _one_of(ROPE_TYPES, ", ".join(ROPE_TYPES)),
    "rope_theta": THETA,
    "original_max_position_embeddings": _whole(MOST_TOKENS),
    "truncate": FLAG,
    **dict.fromkeys(("factor", "attention_factor", "low_freq_factor", "high_freq_factor"), _positive(MOST_FACTOR)),
    **dict.fromkeys(("beta_fast", "beta_slow", "mscale", "mscale_all_dim"), _positive(MOST_FACTOR)),
}
RULES = {
    "vocab_size": _whole(MOST_IDS),
    "draft_vocab_size": _whole(MOST_IDS),
    "kept_vocab": _whole(MOST_IDS),
    "mask_token_id": _whole(MOST_IDS - 1, 0),
    "hidden_size": _whole(MOST_WIDE),
    "target_hidden_size": _whole(MOST_WIDE),
    "intermediate_size": _whole(MOST_WIDE),
    "num_hidden_layers": _whole(MOST_LAYERS),
    "num_target_layers": _whole(MOST_LAYERS),
    "num_attention_heads": _whole(MOST_HEADS),
    "num_key_value_heads": _whole(MOST_HEADS),
    "head_dim": _whole(MOST_HEADS),
    "max_position_embeddings": _whole(MOST_TOKENS),
    "max_window_layers": _whole(MOST_TOKENS, 0),
    "sliding_window": _whole(MOST_TOKENS, 0),
    "block_size": _whole(MOST_BLOCK, 2),
    "bd_size": _whole(MOST_BLOCK, 2),
    "rms_norm_eps": _positive(1.0),
    "rope_theta": THETA,
    "input_embedding_scale": _positive(MOST_FACTOR),
    "output_multiplier": _positive(MOST_FACTOR),
    "final_logit_softcapping": Rule(
        lambda value: is_nonnegative(value) and (value == 0 or LEAST_CAP <= value <= MOST_FACTOR),
        f"0, or a number from {LEAST_CAP:g} to {MOST_FACTOR:g}",
    ),
    "hidden_act": _one_of(ACT2FN, "an activation of transformers"),
    "layer_types": Rule(
        lambda value: isinstance(value, list) and all(isinstance(one, str) and one in (FULL, SLIDING) for one in value),
        f"a list of {FULL}, {SLIDING}",
    ),
    "target_layer_ids": LAYERS,
    "eagle_aux_hidden_state_layer_ids": LAYERS,
    **dict.fromkeys(("attention_bias", "mlp_bias", "use_sliding_window", "tie_word_embeddings"), FLAG),
    **dict.fromkeys(("is_causal", "causal", "own_embedding", "own_head", "own_mask", "norm_before_residual"), FLAG),
}


def check_values(found: Mapping[str, Any], *, where: str) -> None:
    """Refuse values that no drafter can have, of the keys in `RULES`; null is an absent key, others are passed over.

    Args:
        found: an object of config.json.
        where: for messages.

    Raises:
        ConfigError: the first of them.
    """
    _check(found, RULES, where)
    for key in ("rope_parameters", "rope_scaling"):
        if found.get(key) is not None:
            _check_rope(found[key], f"{where}: {key}")
    kinds, layers = found.get("layer_types"), found.get("num_hidden_layers")
    if kinds is not None and layers is not None and len(kinds) != layers:
        raise ConfigError(f"{where}: layer_types has {len(kinds)} entries; allowed: one for each of {layers} layers")


def check_heads(*, hidden_size: int, heads: int, shared: int, head_dim: int | None, where: str) -> None:
    """Refuse sizes of attention that do not fit each other.

    Args:
        hidden_size: of the model.
        heads: attention heads.
        shared: key/value heads.
        head_dim: of each; None: what `hidden_size` leaves for it.
        where: for messages.

    Raises:
        ConfigError: with the first that does not fit.
    """
    if heads % shared:
        raise ConfigError(f"{where}: num_key_value_heads {shared}: allowed: a divisor of {heads} attention heads")
    if head_dim is None and hidden_size % heads:
        raise ConfigError(f"{where}: num_attention_heads {heads}: allowed: a divisor of hidden_size {hidden_size}")
    size = head_dim or hidden_size // heads
    if size % 2:
        raise ConfigError(f"{where}: head_dim {size}: allowed: an even number, as rotary embeddings turn pairs")


def _check(found: Mapping[str, Any], rules: Mapping[str, Rule], where: str) -> None:
    for key, value in found.items():
        rule = rules.get(key)
        if rule is not None and value is not None and not rule.sound(value):
            raise ConfigError(f"{where}: {key} {value!r}: allowed: {rule.allowed}")


def _check_rope(value: Any, where: str) -> None:
    if not isinstance(value, dict):
        raise ConfigError(f"{where} {value!r}: allowed: an object")
    for key, setting in value.items():
        if key not in ROPE_KEYS:
            raise ConfigError(f"{where}: {key!r} is not known here; allowed: {', '.join(ROPE_KEYS)}")
        if setting is None:
            raise ConfigError(f"{where}: {key} is null; leave it out or give it a value")
    _check(value, ROPE_KEYS, where)
    for low, high in (("low_freq_factor", "high_freq_factor"), ("beta_slow", "beta_fast")):
        defaults = {"beta_slow": 1.0, "beta_fast": 32.0}
        ends = [value.get(key, defaults.get(key, math.nan)) for key in (low, high)]
        if ends[0] >= ends[1]:
            raise ConfigError(f"{where}: {low} {ends[0]} and {high} {ends[1]}: allowed: the first below the second")
