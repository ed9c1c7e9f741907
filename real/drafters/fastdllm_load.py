"""Checkpoints of the Fast-dLLM v2 kind: a causal language model fine-tuned to fill masks block by block.

Owns the way from a folder or hub id to a model of transformers, and the question whether it speaks the target's ids.
No code of a checkpoint is run: its network is Qwen2's (same parameter names), and attention by blocks is only a mask,
which `real.cache.forward` is given from outside. How masks are filled is `real.drafters.fastdllm`'s.

The convention, for published checkpoints and for those trained here:

* `config.json` is that of a transformers class (`MODEL_TYPES`) with two keys more: `bd_size`, the tokens of a block,
  and `mask_token_id`, the id of the mask, which has a row in the embedding. `LlamaConfig(..., bd_size=32,
  mask_token_id=V)` and `save_pretrained` write exactly that. Published ones have model type `Fast_dLLM_Qwen`, no
  `mask_token_id`, and the mask at `PUBLISHED_MASK`.
* A drafter trained here adds the mask after the target's ids: `vocab_size` = V + 1, `mask_token_id` = V, where V is the
  number of the target's ids.
* Blocks count from the first token of the text, prompt included: position p lies in block p // bd_size. A token sees
  all of its own block, on both sides, and all of the blocks before it (in training: those blocks clean, not masked).
* Logits are shifted by one, as in the causal model it comes from: position p is predicted by the output at p - 1. The
  first token of a block is predicted by the last output of the block before, when that block is complete and clean; it
  is therefore never masked when the rest of its block is filled.
* What drafting shows the network: the tokens known so far, then masks to the end of the block, and after each pass some
  of the leftmost `small` masks replaced. Masks that begin anywhere in a block and run to its end are thus the common
  case, scattered ones the rarer one.

Sources: config keys and values, HoangMaizzz/failfasttesting@7cc16bb, Fast_dLLM_v2_1.5B/config.json (a copy of
Efficient-Large-Model/Fast_dLLM_v2_1.5B); parameter names, mask and shift, modeling.py of the same checkpoint; arXiv
2509.26328.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from huggingface_hub.errors import StrictDataclassError

from real.cache import attention_windows, check_model
from real.compat import check_tokenizers, logits_width
from real.drafters.checkpoint import check_keys
from real.models import Loaded
from specsim.errors import ConfigError

PUBLISHED = "Fast_dLLM_Qwen"
PUBLISHED_MASK = 151665  # Fast-dLLM v2 has it as a default of its functions, not in its config
MODEL_TYPES = {PUBLISHED: "qwen2", "qwen2": "qwen2", "qwen3": "qwen3", "llama": "llama"}
# Keys of a config.json that say nothing about the network, or are spelled differently by the installed transformers.
HARMLESS = frozenset(
    {"auto_map", "torch_dtype", "rope_theta", "rope_scaling", "bd_size", "mask_token_id", "_commit_hash"}
)
# What transformers reports about weights that do not fit.
COMPLAINTS = {
    "missing_keys": "the weights lack",
    "unexpected_keys": "the weights hold, beyond what the network has,",
    "mismatched_keys": "the weights have another shape for",
}


@dataclass(frozen=True, kw_only=True)
class BlockModel:
    """A block-diffusion model ready to run.

    Args:
        model: transformers causal language model in eval mode, gradients off.
        name: where it came from.
        bd_size: tokens of a block.
        mask_id: id of the mask.
        tokenizer: its own, or None where the checkpoint has none.
    """

    model: Any
    name: str
    bd_size: int
    mask_id: int
    tokenizer: Any = None


def load_block_model(path: str, *, dtype: str = "float32", device: str = "cpu") -> BlockModel:
    """Load a block-diffusion checkpoint.

    Args:
        path: folder or hub id.
        dtype: float32, bfloat16 or float16.
        device: where it runs.

    Raises:
        ConfigError: nothing there, another kind of model, a config key that is not known, a weight that is missing,
            left over or of another shape, or attention that does not see the whole text.
    """
    from transformers import AutoModelForCausalLM, PreTrainedConfig
    from transformers.utils import logging

    logging.disable_progress_bar()
    try:
        written, _ = PreTrainedConfig.get_config_dict(path)
    except (OSError, ValueError) as error:
        raise _unreadable(path, error) from error
    config, bd_size, mask_id = read_config(path, written)
    try:
        loaded: Any = AutoModelForCausalLM.from_pretrained(
            path, config=config, dtype=getattr(torch, dtype), output_loading_info=True, ignore_mismatched_sizes=True
        )
    except (OSError, ValueError, RuntimeError) as error:
        raise _unreadable(path, error) from error
    model, info = loaded
    for keys, complaint in COMPLAINTS.items():
        found = sorted(str(key) for key in info[keys])
        if found:
            more = f" and {len(found) - 1} more" if len(found) > 1 else ""
            raise ConfigError(
                f"drafter {path!r}: {complaint} {found[0]}{more}; allowed: exactly the parameters of "
                f"{type(model).__name__} with this config.json. Get the checkpoint again"
            )
    model = model.to(device).eval().requires_grad_(False)
    check_attention(model, path)
    check_model(model)
    return BlockModel(model=model, name=path, bd_size=bd_size, mask_id=mask_id, tokenizer=_tokenizer(path))


def read_config(path: str, written: Mapping[str, Any]) -> tuple[Any, int, int]:
    """(transformers config, bd_size, mask id) of a `config.json`.

    Raises:
        ConfigError: another kind of model, a key that is not known, or sizes that are missing or out of range.
    """
    from transformers import AutoConfig

    kind = written.get("model_type")
    if kind not in MODEL_TYPES:
        raise ConfigError(
            f"drafter {path!r}: config.json has model_type {kind!r}; block-diffusion drafters are of type "
            f"{', '.join(MODEL_TYPES)}"
        )
    plain = AutoConfig.for_model(MODEL_TYPES[kind])
    # A variant that changes the network announces itself in its config, and would load without complaint.
    check_keys(written, {*plain.to_dict(), *HARMLESS}, where=path)
    sizes: dict[str, Any] = {"mask_token_id": PUBLISHED_MASK} if kind == PUBLISHED else {}
    sizes |= {key: written[key] for key in ("bd_size", "mask_token_id") if key in written}
    for key in ("bd_size", "mask_token_id"):
        if not isinstance(sizes.get(key), int):
            raise ConfigError(
                f"drafter {path!r}: config.json has no whole number {key!r}, so it is no block-diffusion model; a "
                "causal drafter is given as model:path=..."
            )
    bd_size, mask_id = sizes["bd_size"], sizes["mask_token_id"]
    left_out = {
        "model_type",
        "auto_map",
        "architectures",
        "torch_dtype",
        "dtype",
        "transformers_version",
        "_commit_hash",
    }
    values = {key: value for key, value in written.items() if key not in left_out}
    try:
        config: Any = AutoConfig.for_model(MODEL_TYPES[kind], **values)
    except (TypeError, ValueError, KeyError, StrictDataclassError) as error:
        reason = " ".join(str(error).split())
        raise ConfigError(f"drafter {path!r}: config.json cannot be used: {reason}") from error
    if bd_size < 2 or not 0 <= mask_id < config.vocab_size:
        raise ConfigError(
            f"drafter {path!r}: config.json has bd_size {bd_size} and mask id {mask_id}; allowed: a block of 2 tokens "
            f"or more, and an id below vocab_size {config.vocab_size}"
        )
    return config, bd_size, mask_id


def check_block_model(drafter: BlockModel, target: Loaded) -> None:
    """Refuse a drafter that does not speak the target's token ids; the mask is its own affair.

    Raises:
        ConfigError: other tokenizers; or, where one of them is not known, another number of ids.
    """
    if drafter.tokenizer is not None and target.tokenizer is not None:
        check_tokenizers(target.tokenizer, drafter.tokenizer, extra=(drafter.mask_id,))
        return
    ids, ours = int(drafter.model.config.vocab_size), logits_width(target.model)
    if ids - (drafter.mask_id == ids - 1) != ours and ids != ours:
        raise ConfigError(
            f"drafter {drafter.name!r} has {ids} ids, the mask among them, and the target {ours}; it was trained for "
            "another target, or its tokenizer is needed to tell padding from another vocabulary"
        )


def check_attention(model: Any, name: str) -> None:
    """Refuse layers that look back over a limited window: blocks are defined over the whole text.

    Raises:
        ConfigError: a model with such layers.
    """
    windows = [window for window in attention_windows(model).values() if window is not None]
    if windows:
        raise ConfigError(
            f"drafter {name!r}: layers look back {windows[0]} tokens only; a block-diffusion drafter has to see all of "
            "its block and of the blocks before"
        )


def _tokenizer(path: str) -> Any:
    """The checkpoint's tokenizer, or None where it has no `tokenizer.json`."""
    from transformers import PreTrainedTokenizerFast

    try:
        return PreTrainedTokenizerFast.from_pretrained(path)
    except (OSError, ValueError):
        return None


def _unreadable(path: str, error: Exception) -> ConfigError:
    reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
    return ConfigError(f"drafter {path!r} cannot be loaded: {reason}; give a folder or a hub id")
