"""What transformers' `generate` has prepared, in the terms of the decode loop.

Owns the translation of generation config, logits processors and stopping criteria, row by row of a batch, and the
refusal of what the loop does not do. Knows nothing about drafters or controllers.
"""

from __future__ import annotations

import copy
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from transformers import GenerationConfig
from transformers.generation.configuration_utils import GenerationMode
from transformers.generation.logits_process import (
    PrefixConstrainedLogitsProcessor,
    SynthIDTextWatermarkLogitsProcessor,
    UnbatchedClassifierFreeGuidanceLogitsProcessor,
)
from transformers.generation.stopping_criteria import (
    EosTokenCriteria,
    MaxLengthCriteria,
    StoppingCriteriaList,
    StopStringCriteria,
)

from real.loop import Criterion, Settings
from real.verify import _ROWWISE, Processor
from specsim.errors import ConfigError

# Arguments of `generate` that never reach the callable it was given (transformers 5.17 to 5.24).
_NOT_HANDED_ON = ("streamer", "assistant_model", "kwargs")
_CACHES = {None: "dynamic", "dynamic": "dynamic", "static": "static"}
_CACHE_ARGUMENTS = ("cache", "past_key_values", "cache_params")
_SERVED = {"attention_mask", "position_ids", "logits_to_keep", "use_cache", "cache_position", *_CACHE_ARGUMENTS}
# These keep a state from call to call, which rejected draft tokens would spoil.
_STATEFUL = (UnbatchedClassifierFreeGuidanceLogitsProcessor, SynthIDTextWatermarkLogitsProcessor)


@dataclass(frozen=True, kw_only=True)
class Row:
    """One sequence of a batch.

    Args:
        number: of the row, 0-based.
        batch: rows in all.
        pads: int64[n], the padding left of its prompt.
        prompt: int64[P], P >= 1, without padding.
    """

    number: int
    batch: int
    pads: torch.Tensor
    prompt: torch.Tensor


def library_call(model: Any) -> dict[str, Any]:
    """What the running `model.generate` was given and does not hand on; empty outside of such a call.

    The library reads `streamer` and `assistant_model` and then calls its callable without them: tokens would never
    reach the streamer. They stand in its frame.
    """
    frame = sys._getframe(1)
    while frame is not None:
        if frame.f_code.co_name == "generate" and frame.f_locals.get("self") is model:
            return {name: frame.f_locals.get(name) for name in _NOT_HANDED_ON}
        frame = frame.f_back
    return {}


def with_stop_strings(model: Any, tokenizer: Any, arguments: dict[str, Any]) -> dict[str, Any]:
    """Arguments of `generate` with `stop_strings` made a criterion: with a callable, the library loses the tokenizer.

    Args:
        model: the target.
        tokenizer: its tokenizer, or None.
        arguments: keyword arguments of `generate`.

    Raises:
        ConfigError: stop strings without a tokenizer, or kept in the model's own generation config, which cannot be
            overridden.
    """
    config: GenerationConfig | None = arguments.get("generation_config")
    strings = arguments.get("stop_strings") or getattr(config, "stop_strings", None)
    if getattr(model.generation_config, "stop_strings", None) is not None:
        raise ConfigError(
            "model.generation_config.stop_strings: set it to None, and pass stop_strings= and tokenizer= instead"
        )
    if strings is None:
        return dict(arguments)
    if tokenizer is None:
        raise ConfigError("stop_strings: pass the model's tokenizer, tokenizer=")
    criteria = StoppingCriteriaList(arguments.get("stopping_criteria") or ())
    criteria.append(StopStringCriteria(tokenizer, strings))
    changed = {**arguments, "stopping_criteria": criteria}
    changed.pop("stop_strings", None)
    if config is not None:
        changed["generation_config"] = config = copy.deepcopy(config)
        config.stop_strings = None
    return changed


def cache_kind(implementation: str | None) -> str:
    """The target's cache that a `cache_implementation` means.

    Raises:
        ConfigError: one that would change the numbers or has no counterpart here.
    """
    if implementation not in _CACHES:
        raise ConfigError(
            f"cache_implementation {implementation!r}: allowed: dynamic, static; tokens have to be taken back from "
            "the cache exactly"
        )
    return _CACHES[implementation]


def check_call(
    config: GenerationConfig, processors: Sequence[Any], model_kwargs: Mapping[str, Any], call: Mapping[str, Any]
) -> None:
    """Refuse what would be ignored or would not give what `generate` gives.

    Args:
        config: prepared by the library.
        processors: prepared by the library.
        model_kwargs: what the library would hand to the model.
        call: as from `library_call`.

    Raises:
        ConfigError: a mode other than greedy search and sampling, a cache or embeddings of the caller's, outputs the
            loop does not keep, processors with a state of their own, arguments for the model.
    """
    if call.get("assistant_model") is not None:
        raise ConfigError("assistant_model: pass that model as drafter=")
    mode = config.get_generation_mode()
    if mode not in (GenerationMode.GREEDY_SEARCH, GenerationMode.SAMPLE):
        raise ConfigError(
            f"generation mode {mode.value}: allowed: greedy search and sampling; leave out num_beams, penalty_alpha, "
            "dola_layers, constraints and the library's own prompt_lookup_num_tokens or assistant settings"
        )
    for name in ("output_attentions", "output_hidden_states"):
        if getattr(config, name):
            raise ConfigError(f"{name}: a pass scores a whole draft, so there is nothing per token to return; leave it")
    given = call.get("kwargs") or {}
    if any(given.get(name) is not None for name in _CACHE_ARGUMENTS):
        raise ConfigError(
            "past_key_values: the loop keeps its own cache, which tokens can be taken back from; pass the whole text "
            "as input_ids instead"
        )
    for processor in processors:
        if isinstance(processor, _STATEFUL):
            raise ConfigError(
                f"{type(processor).__name__} keeps a state from token to token, which rejected draft tokens would "
                "spoil; leave out guidance_scale or watermarking_config"
            )
    foreign = sorted(key for key, value in model_kwargs.items() if value is not None and key not in _SERVED)
    if foreign:
        raise ConfigError(f"{', '.join(foreign)}: would not reach the model; only input_ids and attention_mask do")


def rows_of(input_ids: torch.Tensor, model_kwargs: Mapping[str, Any], window: int | None) -> list[Row]:
    """The rows of a batch without their padding.

    Args:
        input_ids: int64[B, L].
        model_kwargs: holds `attention_mask` [B, L] (None: nothing is padding) and perhaps `position_ids` [B, L].
        window: tokens the target can see in all.

    Raises:
        ConfigError: padding that is not on the left, an empty row, positions of the caller's own, or a prompt that
            leaves no room in the window.
    """
    batch, length = input_ids.shape
    if not batch or not length:
        raise ConfigError(f"input_ids of shape {(batch, length)}: allowed: at least one prompt of at least one token")
    mask = model_kwargs.get("attention_mask")
    mask = torch.ones_like(input_ids) if mask is None else mask.to(input_ids.device)
    if mask.shape != input_ids.shape:
        raise ConfigError(f"attention_mask of shape {tuple(mask.shape)}: allowed: {tuple(input_ids.shape)}")
    pads = (mask == 0).sum(dim=1)
    slots = torch.arange(length, device=input_ids.device)
    if not ((slots >= pads[:, None]) == (mask != 0)).all() or (pads == length).any():
        raise ConfigError(
            "attention_mask: zeros are allowed on the left only, and not all over a row (padding_side='left'). Where "
            "the mask was made by the library from a padding id inside the prompt, pass attention_mask= yourself"
        )
    positions = model_kwargs.get("position_ids")
    if positions is not None:
        expected = (slots - pads[:, None]).clamp(min=0)
        # The library's own filling of padded places differs between versions; nothing looks at it.
        if positions.shape != expected.shape or ((positions != expected) & (mask != 0)).any():
            raise ConfigError("position_ids: allowed: those the library makes itself, 0, 1, 2, ...; leave them out")
    longest = length - int(pads.min())
    if window is not None and longest >= window:
        raise ConfigError(
            f"a prompt has {longest} tokens, the target's context window is {window}; shorten it so that at least one "
            "new token fits"
        )
    return [
        Row(number=number, batch=batch, pads=input_ids[number, :left], prompt=input_ids[number, left:])
        for number, left in enumerate(pads.tolist())
    ]


def settings_of(
    row: Row, config: GenerationConfig, processors: Sequence[Any], criteria: Sequence[Any], seed: int
) -> Settings:
    """What the library prepared, for one row.

    Processors and criteria see what they would see in the library's own loop, padding included.

    Args:
        row: the row.
        config, processors, criteria: prepared by the library for the batch.
        seed: of the decode.
    """
    held = len(row.pads) + len(row.prompt)
    ends = [criterion.max_length for criterion in criteria if type(criterion) is MaxLengthCriteria]
    others = [criterion for criterion in criteria if type(criterion) not in (MaxLengthCriteria, EosTokenCriteria)]
    return Settings(
        max_new_tokens=max(1, min(ends, default=config.max_length) - held),
        stop_ids=stop_ids_of(criteria),
        sample=bool(config.do_sample),
        processors=[_for_row(processor, row) for processor in processors],
        criteria=[_criterion(criterion, row) for criterion in others],
        seed=seed,
    )


def stop_ids_of(criteria: Sequence[Any]) -> tuple[int, ...]:
    """End-of-text ids the library's criteria look for, ascending."""
    found = (criterion.eos_token_id for criterion in criteria if type(criterion) is EosTokenCriteria)
    return tuple(sorted({int(token) for tokens in found for token in tokens.flatten().tolist()}))


def described(processor: Any) -> str:
    """A processor with its plain parameters: `TopKLogitsWarper(top_k=50)`."""
    plain = (
        f"{key}={value}"
        for key, value in getattr(processor, "__dict__", {}).items()
        if not key.startswith("_") and isinstance(value, (int, float, str))
    )
    return f"{type(processor).__name__}({', '.join(plain)})"


def _criterion(criterion: Any, row: Row) -> Criterion:
    pads, device = row.pads.tolist(), row.prompt.device

    def ended(text: list[int]) -> bool:
        verdict = criterion(torch.tensor([pads + text], device=device), None)
        return bool(torch.as_tensor(verdict).any())

    return ended


def _for_row(processor: Any, row: Row) -> Processor:
    if isinstance(processor, _ROWWISE):
        return processor
    if isinstance(processor, PrefixConstrainedLogitsProcessor):
        # How many rows of a batch share a number there is the library's decision, which differs between versions.
        constraint = _Constraint(processor._prefix_allowed_tokens_fn, row.number // processor._num_beams)
        processor = PrefixConstrainedLogitsProcessor(constraint, 1)
        return _in_batch(processor, row.pads, 1) if len(row.pads) else processor
    if row.batch == 1 and not len(row.pads):
        return processor
    # Some processors hold one value per row; a batch made of this row alone serves those and all others.
    return _in_batch(processor, row.pads, row.batch, row.number)


def _in_batch(processor: Any, pads: torch.Tensor, batch: int, number: int = 0) -> Processor:
    def processed(ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        padded = torch.cat([pads.to(ids.device)[None].expand(len(ids), -1), ids], dim=1)
        return processor(padded.repeat(batch, 1), scores.repeat(batch, 1))[number : number + 1]

    return processed


class _Constraint:
    """`prefix_allowed_tokens_fn` of one row, not asked about drafts that have broken its rule.

    Those are rejected whatever follows, and the function may never have been meant for such a text. Calls come in
    runs of growing length, one more token each time; a run begins at or below where the last one ended, or one beyond
    it when all of a draft was accepted, which is no break.

    Args:
        function: the caller's.
        batch_id: the row of the caller's batch.
    """

    def __init__(self, function: Callable[[int, torch.Tensor], list[int]], batch_id: int) -> None:
        self._function, self._batch_id = function, batch_id
        self._length, self._broken = sys.maxsize, False
        self._allowed: list[int] = []

    def __call__(self, _: int, text: torch.Tensor) -> list[int]:
        if len(text) <= self._length:
            self._broken = False
        elif int(text[-1]) not in self._allowed:
            self._broken = True
        self._length = len(text)
        if not self._broken:
            self._allowed = list(self._function(self._batch_id, text))
        return self._allowed
