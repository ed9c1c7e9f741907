"""`real.generate`, the drop-in for `model.generate` of transformers, and the same as its `custom_generate`.

Owns the two entries and what they return. The library prepares everything it always prepares (limits, processors,
stops); instead of its own loop it then calls `Speculative`, which decodes row by row with `real.loop`.
Semantics, limits and differences: docs/generate.md.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import torch
from transformers import GenerationConfig

from real.cache import check_model
from real.compat import check_models, logits_width
from real.drafters.base import Drafter
from real.drafters.choose import MODEL, parse_drafter
from real.drafters.model import DRAFT_SAMPLING, ModelDrafter
from real.generated import (
    SpeculativeOutput,
    joined,
    note_settings,
    output_of,
    pad_id,
    warn_of_equal_samples,
    warn_of_one_choice,
    warn_of_window,
)
from real.loop import MAX_SEED, check_pair, decode
from real.models import Loaded, load_target
from real.prepared import (
    cache_kind,
    check_call,
    described,
    library_call,
    rows_of,
    settings_of,
    stop_ids_of,
    with_stop_strings,
)
from real.session import MAKERS, build_for, make_drafter
from real.target import Target
from specsim.controllers import Controller, parse_spec
from specsim.errors import ConfigError
from specsim.latency import LatencyModel, load_latency
from specsim.online import OnlineController


@dataclass(frozen=True, kw_only=True)
class Speculative:
    """Speculative decoding as a `custom_generate` of transformers' `model.generate`.

    Args:
        drafter: spelling as for `real.drafters.choose.parse_drafter`, a causal language model (the assistant), or a
            drafter object.
        controller: spelling as for `python -m specsim.controllers`, a controller, or an `OnlineController`. The first
            two begin anew with every row; the last goes on where it is, across rows and calls, as far as its rule
            keeps anything between requests.
        latency: for a controller spelling that decides by costs: a latency model, its file, or `preset:NAME`.
        tokenizer: the target's; with `drafter_tokenizer`, the proof that two models of different (padded) vocabulary
            size speak the same language.
        drafter_tokenizer: the drafting model's.
        max_draft_len: most tokens drafted in a round; a drafter object has its own.
        draft_sampling: `greedy` or `sample`, for drafting models.
        seed: of sampling; default: drawn from torch's global generator, so that `torch.manual_seed` decides.

    Raises:
        ConfigError: an unknown controller or kind of drafter, or a value out of range.
    """

    drafter: Any
    controller: str | Controller | OnlineController
    latency: LatencyModel | str | Path | None = None
    tokenizer: Any = None
    drafter_tokenizer: Any = None
    max_draft_len: int = 24
    draft_sampling: str = "greedy"
    seed: int | None = None
    _loaded: dict[str, Loaded] = field(default_factory=dict, init=False, repr=False, compare=False)
    _made: dict[str, tuple[Any, Drafter]] = field(default_factory=dict, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if not isinstance(self.drafter, (str, torch.nn.Module)) and not hasattr(self.drafter, "propose"):
            raise ConfigError(
                f"drafter of type {type(self.drafter).__name__}: allowed: a spelling such as 'prompt-lookup', a causal "
                "language model, or a drafter object"
            )
        if isinstance(self.controller, str):
            parse_spec(self.controller)
        elif not isinstance(self.controller, (Controller, OnlineController)):
            raise ConfigError(
                f"controller of type {type(self.controller).__name__}: allowed: a spelling such as 'static:length=4', "
                "a Controller or an OnlineController"
            )
        if self.draft_sampling not in DRAFT_SAMPLING:
            raise ConfigError(f"draft_sampling {self.draft_sampling!r}: allowed: {', '.join(DRAFT_SAMPLING)}")
        if not isinstance(self.max_draft_len, int) or self.max_draft_len < 1:
            raise ConfigError(f"max_draft_len {self.max_draft_len!r}: allowed: a whole number, 1 or more")
        if self.seed is not None and not (isinstance(self.seed, int) and 0 <= self.seed <= MAX_SEED):
            raise ConfigError(f"seed {self.seed!r}: allowed: 0..2^63-1, or None for torch's global generator")
        if self.drafter_tokenizer is not None and self.tokenizer is None:
            raise ConfigError("drafter_tokenizer: pass the target's too, as tokenizer=, to compare it with")

    def __call__(
        self,
        model: Any,
        input_ids: torch.Tensor,
        logits_processor: Sequence[Any],
        stopping_criteria: Sequence[Any],
        generation_config: GenerationConfig,
        streamer: Any = None,
        **model_kwargs: Any,
    ) -> SpeculativeOutput | torch.Tensor:
        """Decode a batch; called by transformers' `generate` with what it prepared.

        Args:
            model: the target.
            input_ids: int64[B, L], padded on the left.
            logits_processor, stopping_criteria, generation_config: prepared by the library.
            streamer: gets the new tokens of each round.
            model_kwargs: `attention_mask` and what else the library would hand to the model.

        Returns:
            int64[B, L + longest output], padded on the right; or an output object for `return_dict_in_generate`.

        Raises:
            ConfigError: anything that cannot be done as asked, before the first token.
        """
        call = library_call(model)
        streamer = streamer if streamer is not None else call.get("streamer")
        target = Target(model, cache=cache_kind(generation_config.cache_implementation), merge_prompt=True)
        check_call(generation_config, logits_processor, model_kwargs, call)
        if input_ids.device.type != target.device.type:
            raise ConfigError(f"input_ids are on {input_ids.device}, the model on {target.device}; move them there")
        rows = rows_of(input_ids, model_kwargs, target.window)
        if streamer is not None and len(rows) > 1:
            raise ConfigError(f"streamer: one row at a time; this batch has {len(rows)}")
        seed = self._seed(bool(generation_config.do_sample))
        settings = [settings_of(row, generation_config, logits_processor, stopping_criteria, seed) for row in rows]
        pad = pad_id(generation_config, len(rows))
        drafter = self._drafter(target, stop_ids_of(stopping_criteria), generation_config)
        controller = self._controller(drafter)
        facts = {
            "do_sample": settings[0].sample,
            "seed": seed,
            "processors": [described(processor) for processor in logits_processor],
            "drafter": drafter.name,
            "draft_sampling": DRAFT_SAMPLING[drafter.samples],
            "controller": self._built(controller).name,
        }
        warn_of_one_choice(logits_processor, settings[0])
        results = []
        for row, asked in zip(rows, settings, strict=True):
            results.append(
                decode(
                    target,
                    drafter,
                    controller if isinstance(controller, OnlineController) else OnlineController(controller, seed=seed),
                    row.prompt.to(target.device),
                    asked,
                    request=row.number,
                    on_round=lambda _, tokens: streamer.put(torch.tensor(tokens)) if streamer is not None else None,
                )
            )
        if streamer is not None:
            streamer.end()
        warn_of_window(results, target)
        warn_of_equal_samples(rows, results, facts)
        sequences = joined(input_ids, results, pad)
        if not generation_config.return_dict_in_generate:
            return sequences
        return output_of(sequences, target, rows, results, settings, generation_config, facts)

    def _seed(self, sample: bool) -> int:
        if self.seed is not None:
            return self.seed
        # Greedy output has no luck in it; drawing one would disturb the caller's own.
        return int(torch.randint(MAX_SEED, ())) if sample else 0

    def _drafter(self, target: Target, stop_ids: tuple[int, ...], config: GenerationConfig) -> Drafter:
        model = target.model
        if isinstance(self.drafter, torch.nn.Module):
            return self._model_drafter(target, self.drafter, self.drafter_tokenizer, config)
        if not isinstance(self.drafter, str):
            return self.drafter
        name = Path(str(getattr(model.config, "_name_or_path", "")) or type(model).__name__).name
        n_layers = model.config.get_text_config().num_hidden_layers
        spec = parse_drafter(self.drafter, target=name, n_layers=n_layers)
        dtype = str(model.dtype).removeprefix("torch.")
        if spec.name == MODEL:
            path = spec.path or ""
            if path not in self._loaded:
                self._loaded[path] = load_target(path, dtype=dtype, device=target.device.type)
            other = self._loaded[path]
            return self._model_drafter(target, other.model.to(target.device), other.tokenizer, config)
        loaded = Loaded(
            model=model,
            tokenizer=self.tokenizer,
            name=name,
            stop_ids=stop_ids,
            device=str(target.device),
            dtype=dtype,
        )
        options = {"max_draft_len": self.max_draft_len, "draft_sampling": self.draft_sampling, "merge_prompt": True}
        if spec.name not in MAKERS:
            return make_drafter(spec, loaded, **options)
        # A network of its own is read once for each target, dtype and device, not at every call.
        key = f"{dtype} {target.device} {stop_ids}"
        if key not in self._made or self._made[key][0] is not model:
            self._made[key] = (model, make_drafter(spec, loaded, **options))
        return self._made[key][1]

    def _model_drafter(self, target: Target, other: Any, tokenizer: Any, config: GenerationConfig) -> ModelDrafter:
        check_model(other)
        both = (self.tokenizer, tokenizer) if self.tokenizer is not None and tokenizer is not None else None
        check_models(target.model, other, tokenizers=both)
        device = next(other.parameters()).device
        if device != target.device:
            raise ConfigError(f"the drafter is on {device}, the target on {target.device}; move the drafter there")
        drafter = ModelDrafter(
            other,
            name=f"{MODEL}:{Path(str(getattr(other.config, '_name_or_path', ''))).name or type(other).__name__}",
            max_draft_len=self.max_draft_len,
            sampling=self.draft_sampling,
            width=logits_width(target.model),
            merge_prompt=True,
        )
        note_settings(drafter.name, getattr(other, "generation_config", None), config)
        return drafter

    def _controller(self, drafter: Drafter) -> Controller | OnlineController:
        controller = self.controller
        if isinstance(controller, str):
            latency = self.latency
            if latency is None:
                latency = cast(LatencyModel, _Unmeasured(controller))
            elif not isinstance(latency, LatencyModel):
                latency = load_latency(latency)
            controller = build_for(controller, drafter, latency)
        check_pair(self._built(controller), drafter)
        return controller

    @staticmethod
    def _built(controller: Controller | OnlineController) -> Controller:
        return controller.controller if isinstance(controller, OnlineController) else controller


def generate(
    model: Any,
    inputs: Any = None,
    *,
    drafter: Any,
    controller: str | Controller | OnlineController,
    latency: LatencyModel | str | Path | None = None,
    tokenizer: Any = None,
    drafter_tokenizer: Any = None,
    max_draft_len: int = 24,
    draft_sampling: str = "greedy",
    seed: int | None = None,
    **generation_kwargs: Any,
) -> Any:
    """`model.generate(inputs, **generation_kwargs)`, decoded speculatively: the same output, or the same output law.

    Args:
        model: a causal language model of transformers, the target.
        inputs: int64[B, L], or what a tokenizer returns (`input_ids`, `attention_mask`).
        drafter, controller, latency, tokenizer, drafter_tokenizer, max_draft_len, draft_sampling, seed: see
            `Speculative`. `tokenizer` also serves `stop_strings`.
        generation_kwargs: of `model.generate`.

    Returns:
        What `model.generate` returns; a `SpeculativeOutput` for `return_dict_in_generate=True`.

    Raises:
        ConfigError: anything that cannot be done as asked, before the first token (docs/generate.md).
    """
    speculative = Speculative(
        drafter=drafter,
        controller=controller,
        latency=latency,
        tokenizer=tokenizer,
        drafter_tokenizer=drafter_tokenizer,
        max_draft_len=max_draft_len,
        draft_sampling=draft_sampling,
        seed=seed,
    )
    cache_kind(generation_kwargs.get("cache_implementation"))  # with some the library would not even get to Speculative
    arguments = with_stop_strings(model, tokenizer, generation_kwargs)
    arguments |= dict(inputs) if isinstance(inputs, Mapping) else {"inputs": inputs}
    return model.generate(custom_generate=speculative, **arguments)


class _Unmeasured:
    """Stands in for a latency model nobody gave; complains when a controller looks at it."""

    def __init__(self, spelling: str) -> None:
        self._spelling = spelling

    def __getattr__(self, name: str) -> Any:
        raise ConfigError(
            f"controller {self._spelling!r} decides by what rounds cost; pass latency=, a file from `python -m "
            "real.calibrate` or `python -m specsim.latency fit`, or a preset with your drafter's cost "
            "(docs/latency.md)"
        )
