"""What `real.generate` gives back, and what it says about it.

Owns the output of a batch (sequences, scores) and the warnings about settings that were in force but perhaps not
meant. Knows nothing about how the tokens came about.
"""

from __future__ import annotations

import logging
import warnings
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, cast

import torch
from transformers import GenerationConfig
from transformers.generation.logits_process import TopKLogitsWarper
from transformers.generation.utils import GenerateDecoderOnlyOutput

from real.cache import KVCache, forward
from real.loop import Decoded, Settings
from real.prepared import Row
from real.target import Target
from real.verify import process
from specsim.errors import ConfigError

LOG = logging.getLogger("specsim.real")
# What a drafting model's own generation config may say, and nobody asks it about.
_DRAFTER_SETTINGS = ("temperature", "top_k", "top_p", "min_p", "repetition_penalty", "no_repeat_ngram_size")


@dataclass
class SpeculativeOutput(GenerateDecoderOnlyOutput):
    """The library's output of `return_dict_in_generate`, and what happened.

    Args:
        decoded: per row, its output, rounds and why it ended.
        settings: what was in force: do_sample, seed, processors with their parameters, drafter, controller.
        times: sums over the rows, `prefill_s`, `decode_s`, `controller_s`, `build_s`, and the last two as shares of
            `decode_s`; as in `real.results`.
    """

    decoded: tuple[Decoded, ...] | None = None
    settings: dict[str, Any] | None = None
    times: dict[str, float] | None = None


def pad_id(config: GenerationConfig, rows: int) -> int:
    """The id that fills rows which end early: the library's choice.

    Raises:
        ConfigError: several rows and no such id.
    """
    if config.pad_token_id is not None:
        return int(config.pad_token_id)
    ends = config.eos_token_id if config.eos_token_id is not None else []
    found = [ends] if isinstance(ends, int) else list(ends)
    if not found and rows > 1:
        raise ConfigError(f"pad_token_id: needed for a batch of {rows} rows, which may end at different lengths")
    return int(found[0]) if found else 0


def joined(input_ids: torch.Tensor, results: Sequence[Decoded], pad: int) -> torch.Tensor:
    """[B, L + longest output]: prompts as they came, outputs, padding on the right."""
    length = input_ids.shape[1]
    longest = max(len(result.output) for result in results)
    sequences = input_ids.new_full((len(results), length + longest), pad)
    sequences[:, :length] = input_ids
    for number, result in enumerate(results):
        sequences[number, length : length + len(result.output)] = torch.tensor(result.output)
    return sequences


def output_of(
    sequences: torch.Tensor,
    target: Target,
    rows: Sequence[Row],
    results: Sequence[Decoded],
    settings: Sequence[Settings],
    config: GenerationConfig,
    facts: dict[str, Any],
) -> SpeculativeOutput:
    """The output object. Scores cost one more pass over each finished text: rounds do not keep them.

    Args:
        sequences: as from `joined`.
        target: the model.
        rows, results, settings: of the batch, in order.
        config: tells whether `output_scores` and `output_logits` are wanted.
        facts: the settings in force.
    """
    scores = logits = None
    if config.output_scores or config.output_logits:
        pairs = [_row_scores(target, *row) for row in zip(rows, results, settings, strict=True)]
        scores, logits = (_steps(kind) for kind in zip(*pairs, strict=True))
    return SpeculativeOutput(
        sequences=cast(Any, sequences),
        scores=cast(Any, scores if config.output_scores else None),
        logits=cast(Any, logits if config.output_logits else None),
        decoded=tuple(results),
        settings=facts,
        times=_times(results),
    )


def _times(results: Sequence[Decoded]) -> dict[str, float]:
    """`SpeculativeOutput.times`."""
    names = ("prefill_s", "decode_s", "controller_s", "build_s")
    sums = {name: float(sum(getattr(result, name) for result in results)) for name in names}
    return sums | {f"{name}_share": sums[f"{name}_s"] / sums["decode_s"] for name in ("controller", "build")}


def _row_scores(target: Target, row: Row, result: Decoded, settings: Settings) -> tuple[torch.Tensor, torch.Tensor]:
    """float32[n, V] processed scores and raw logits of the n output tokens of a row."""
    prompt, output = row.prompt.to(target.device), torch.tensor(result.output, device=target.device)
    text = torch.cat([prompt, output[:-1]])
    logits = forward(target.model, text, KVCache(len(text)), keep=len(output)).float()
    return process(settings.processors, prompt, output[:-1], logits), logits


def _steps(rows: Sequence[torch.Tensor]) -> tuple[torch.Tensor, ...]:
    """float[n, V] per row -> float[B, V] per step; zeros where a row had ended."""
    return torch.nn.utils.rnn.pad_sequence(list(rows)).unbind()


def warn_of_window(results: Sequence[Decoded], target: Target) -> None:
    """Say that the context window ended an output, where the library would have gone on."""
    ended = sum(result.reason == "context" for result in results)
    if ended:
        warnings.warn(
            f"{ended} of {len(results)} outputs end at the model's context window of {target.window} tokens",
            stacklevel=3,
        )


def warn_of_one_choice(processors: Sequence[Any], settings: Settings) -> None:
    """Say that sampling was asked for and top_k leaves one token, as the defaults of some servers do."""
    if settings.sample and any(isinstance(one, TopKLogitsWarper) and one.top_k == 1 for one in processors):
        warnings.warn("do_sample=True with top_k=1 leaves one token to choose from: the output is greedy", stacklevel=3)


def warn_of_equal_samples(rows: Sequence[Row], results: Sequence[Decoded], facts: Mapping[str, Any]) -> None:
    """Say that several samples of one prompt are all the same, with the settings in force."""
    if not facts["do_sample"]:
        return
    outputs = defaultdict(list)
    for row, result in zip(rows, results, strict=True):
        outputs[tuple(row.prompt.tolist())].append(result.output)
    for samples in outputs.values():
        if len(samples) > 1 and all(sample == samples[0] for sample in samples):
            warnings.warn(
                f"{len(samples)} samples of one prompt are all the same; in force: {', '.join(facts['processors'])}",
                stacklevel=3,
            )


def note_settings(drafter: str, own: GenerationConfig | None, config: GenerationConfig) -> None:
    """Log, once, generation settings of a drafting model's own that are not used.

    Args:
        drafter: name of the drafter.
        own: the drafting model's generation config.
        config: of this call.
    """
    unused = [
        f"{name} {getattr(own, name)} (here {getattr(config, name)})"
        for name in _DRAFTER_SETTINGS
        if getattr(own, name, None) not in (None, getattr(config, name))
    ]
    if unused:
        _log_once(
            f"{drafter}: its own generation settings are not used: {', '.join(unused)}. Drafts are greedy, or sampled "
            "with the target's settings; the output does not depend on them"
        )


@cache
def _log_once(message: str) -> None:
    LOG.warning(message)
