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

from real.cache import attention_windows, check_model
from real.compat import check_tokenizers, logits_width
from real.drafters.checkpoint import Checkpoint, check_fit, check_keys, read_checkpoint
from real.drafters.config_values import SIZES, check_heads, check_values
from real.models import Loaded
from real.places import complaints
from specsim.errors import ConfigError

PUBLISHED = "Fast_dLLM_Qwen"
PUBLISHED_MASK = 151665  # Fast-dLLM v2 has it as a default of its functions, not in its config
MODEL_TYPES = {PUBLISHED: "qwen2", "qwen2": "qwen2", "qwen3": "qwen3", "llama": "llama"}
OF_NETWORK = (
    *SIZES,
    "head_dim",
    "hidden_act",
    "rms_norm_eps",
    "attention_bias",
    "mlp_bias",
    "max_position_embeddings",
    "rope_theta",
    "rope_scaling",
    "rope_parameters",
    "layer_types",
    "sliding_window",
    "use_sliding_window",
    "max_window_layers",
    "tie_word_embeddings",
)
OURS = ("bd_size", "mask_token_id")
# Known besides those of the transformers class, all of which but `OF_NETWORK` say nothing of a pass in eval mode.
HARMLESS = ("auto_map", "torch_dtype")
TOKENIZER = "tokenizer.json"


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
    from transformers import AutoModelForCausalLM
    from transformers.utils import logging

    logging.disable_progress_bar()
    checkpoint = read_checkpoint(path)
    config, bd_size, mask_id = read_config(path, checkpoint.config)
    with complaints(f"drafter {path!r} cannot be loaded", "get the checkpoint again"):
        with torch.device("meta"):  # compared before it takes any memory
            outline: Any = AutoModelForCausalLM.from_config(config)
        check_fit(outline, checkpoint)
        model = type(outline).from_pretrained(
            None, config=config, state_dict=checkpoint.weights, dtype=getattr(torch, dtype)
        )
    model = model.to(device).eval().requires_grad_(False)
    check_attention(model, path)
    check_model(model)
    return BlockModel(model=model, name=path, bd_size=bd_size, mask_id=mask_id, tokenizer=_tokenizer(checkpoint))


def read_config(path: str, written: Mapping[str, Any]) -> tuple[Any, int, int]:
    """(transformers config, bd_size, mask id) of a `config.json`.

    Raises:
        ConfigError: another kind of model, a key that is not known, or sizes that are missing or out of range.
    """
    from transformers import AutoConfig

    kind, where = written.get("model_type"), f"{path}: config.json"
    if not isinstance(kind, str) or kind not in MODEL_TYPES:
        raise ConfigError(
            f"{where}: model_type {kind!r}: allowed: {', '.join(MODEL_TYPES)}, the types of block-diffusion drafters"
        )
    plain = AutoConfig.for_model(MODEL_TYPES[kind])
    # A variant that changes the network announces itself in its config, and would load without complaint.
    check_keys(written, {*plain.to_dict(), *OF_NETWORK, *OURS, *HARMLESS}, where=where)
    check_values(written, where=where)
    given: dict[str, Any] = {"mask_token_id": PUBLISHED_MASK} if kind == PUBLISHED else {}
    given |= {key: value for key, value in written.items() if value is not None}
    for key in OURS:
        if key not in given:
            raise ConfigError(
                f"{where}: lacks {key!r}, so it is no block-diffusion model; a causal drafter is given as "
                "model:path=..."
            )
    for key in SIZES:
        if key not in given:
            raise ConfigError(f"{where}: lacks {key!r}")
    with complaints(f"{where} cannot be read as a {MODEL_TYPES[kind]} config", "get the checkpoint again"):
        config: Any = AutoConfig.for_model(
            MODEL_TYPES[kind], **{key: value for key, value in given.items() if key in OF_NETWORK}
        )
    check_heads(
        hidden_size=config.hidden_size,
        heads=config.num_attention_heads,
        shared=config.num_key_value_heads,
        head_dim=getattr(config, "head_dim", None),
        where=where,
    )
    if given["mask_token_id"] >= config.vocab_size:
        raise ConfigError(
            f"{where}: mask_token_id {given['mask_token_id']}: allowed: an id below vocab_size {config.vocab_size}"
        )
    return config, given["bd_size"], given["mask_token_id"]


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


def _tokenizer(checkpoint: Checkpoint) -> Any:
    """The checkpoint's tokenizer, or None where it has no `tokenizer.json`."""
    from transformers import PreTrainedTokenizerFast

    if checkpoint.folder is None or not (checkpoint.folder / TOKENIZER).exists():
        return None
    with complaints(f"{checkpoint.where}: {TOKENIZER} cannot be read", "get it again, or leave it out"):
        return PreTrainedTokenizerFast.from_pretrained(str(checkpoint.folder))
