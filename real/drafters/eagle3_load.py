"""EAGLE-3 checkpoints: config.json to `Eagle3Config`, strict loading, the vocabulary's mapping, and writing them.

Two spellings of the same head are published. The reference's (SafeAILab/EAGLE eagle/model/cnets.py @148042c, read by
eagle/model/ea_model.py @47de7b0, sizes as in eagle/traineagle3/config.json @9666a81; e.g.
yuhuili/EAGLE3-LLaMA3.1-Instruct-8B; SpecForge trains it, see specforge/modeling/draft/llama3_eagle.py @01dd714 and
configs/qwen3-235B-A22B-eagle3.json @9511277): sizes at the top level, tensors `midlayer.*`, `fc.weight`, `norm.weight`,
`lm_head.weight`, `d2t`, `t2d`. And speculators' (vllm-project/speculators src/speculators/models/eagle3/config.py
@11ecdd3 and core.py @033c87f): sizes in `transformer_layer_config`, tensors `layers.0.*` instead of `midlayer.*`.
Either may bring `embed_tokens.weight`. A head whose draft vocabulary is the whole one may leave `d2t` and `t2d` out,
as the reference does.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from huggingface_hub.errors import StrictDataclassError
from transformers import LlamaConfig, PretrainedConfig

from real.compat import logits_width
from real.drafters.checkpoint import build, check_keys, read_checkpoint, save_checkpoint
from real.drafters.config_values import check_values
from real.drafters.eagle3_net import Eagle3Config, Eagle3Net, default_layers
from specsim.errors import ConfigError

EMBEDDING, VOCABULARY = "embed_tokens.weight", ("d2t", "t2d")
LAYER_IDS = "eagle_aux_hidden_state_layer_ids"
SIZES = ("hidden_size", "intermediate_size", "num_attention_heads", "vocab_size")
OF_LLAMA = (
    *SIZES,
    "num_key_value_heads",
    "num_hidden_layers",
    "head_dim",
    "hidden_act",
    "rms_norm_eps",
    "attention_bias",
    "mlp_bias",
    "max_position_embeddings",
    "rope_theta",
    "rope_scaling",
    "rope_parameters",
)
OF_HEAD = ("draft_vocab_size", "target_hidden_size", "norm_before_residual", LAYER_IDS)
# Parts that some heads have and this network has not, or the other way round: the one value that fits. norm_before_fc:
# speculators; fc_norm, norm_output: SpecForge's EAGLE 3.1; the last three: NVIDIA's Model-Optimizer.
FIXED = {
    "norm_before_fc": False,
    "fc_norm": False,
    "norm_output": False,
    "use_sliding_window": False,
    "use_aux_hidden_state": True,
    "use_input_layernorm_in_first_layer": True,
    "use_last_layernorm": True,
    "use_mtp_layernorm": False,
}
# Nothing here changes what the head computes.
IGNORED = (
    *PretrainedConfig().to_dict(),
    "attention_dropout",
    "auto_map",
    "bos_token_id",
    "eos_token_id",
    "pad_token_id",
    "initializer_range",
    "max_window_layers",
    "pretraining_tp",
    "sliding_window",
    "tie_word_embeddings",
    "torch_dtype",
    "use_cache",
    "embed_requires_grad",
    "enable_sp_ulysses",
    "speculators_config",
    "speculators_model_type",
    "speculators_version",
)


def load_eagle3(path: str, target: Any, *, dtype: torch.dtype | None = None) -> Eagle3Net:
    """A head ready to draft for a target, on its device, in eval mode and without gradients.

    Args:
        path: a folder or a Hugging Face hub id.
        target: the causal language model it was trained for.
        dtype: of the weights; default: the target's.

    Raises:
        ConfigError: no such checkpoint, a file that cannot be read, a configuration this network does not have, a
            missing or an extra key, a wrong shape, a vocabulary mapping that contradicts itself, or another target.
    """
    found = read_checkpoint(path)
    weights = _renamed(found.weights)
    n_layers = target.config.num_hidden_layers
    config = read_config(found.config, where=path, n_layers=n_layers, own_embedding=EMBEDDING in weights)
    _check_target(config, target, path)
    size = config.draft_vocab_size
    if size == config.layer.vocab_size and not set(VOCABULARY) & set(weights):
        weights |= {"d2t": torch.zeros(size, dtype=torch.int64), "t2d": torch.ones(size, dtype=torch.bool)}
    net = build(lambda: Eagle3Net(config), replace(found, weights=weights))
    check_vocabulary(net, path)
    example = next(target.parameters())
    return net.to(device=example.device, dtype=dtype or example.dtype).eval().requires_grad_(False)


def save_eagle3(net: Eagle3Net, folder: Path, *, dtype: torch.dtype = torch.bfloat16) -> None:
    """Write a head with the reference's key names; `load_eagle3` and other EAGLE-3 loaders read it.

    Args:
        net: the head.
        folder: made if it is not there.
        dtype: of the weights in the file.
    """
    state = {key: value.to(dtype) if value.is_floating_point() else value for key, value in net.state_dict().items()}
    save_checkpoint(folder, to_json(net.config), state)


def to_json(config: Eagle3Config) -> dict[str, Any]:
    """The object in config.json; `read_config` reads it back."""
    layer = config.layer.to_dict()
    return {
        "architectures": ["LlamaForCausalLMEagle3"],
        "model_type": "llama",
        **{key: layer[key] for key in OF_LLAMA if key in layer},
        "draft_vocab_size": config.draft_vocab_size,
        "target_hidden_size": config.target_hidden_size,
        "norm_before_residual": config.norm_before_residual,
        "eagle_config": {LAYER_IDS: list(config.target_layers), "use_aux_hidden_state": True},
    }


def read_config(found: dict[str, Any], *, where: str, n_layers: int, own_embedding: bool) -> Eagle3Config:
    """The sizes of a published head.

    Layer numbers mean two things. In `eagle_config` they are layers whose output is read, counted from 0 (SGLang adds 1
    to get the layer that this output enters). At the top level, where speculators and vLLM look, they are the layers
    entered. Without either: `default_layers`.

    Args:
        found: the object in its config.json.
        where: for messages.
        n_layers: decoder layers of the target.
        own_embedding: whether the weights bring embeddings.

    Raises:
        ConfigError: a key unknown, a size missing or of another type, or a head this network is not.
    """
    inner = {} if found.get("eagle_config") is None else found["eagle_config"]
    sizes = found if found.get("transformer_layer_config") is None else found["transformer_layer_config"]
    for key, part in (("eagle_config", inner), ("transformer_layer_config", sizes)):
        if not isinstance(part, dict):
            raise ConfigError(f"{where}: {key} is {part!r}; allowed: an object")
    known = (*OF_LLAMA, *OF_HEAD, *FIXED, *IGNORED, "model_type")
    check_keys(found, (*known, "eagle_config", "transformer_layer_config"), where=f"{where}: config.json")
    check_keys(sizes, (*known, "eagle_config"), where=f"{where}: transformer_layer_config")
    check_keys(inner, (LAYER_IDS, *FIXED), where=f"{where}: eagle_config")
    for part, place in ((found, "config.json"), (sizes, "transformer_layer_config"), (inner, "eagle_config")):
        check_values(part, where=f"{where}: {place}")
    absent = [key for key in SIZES if sizes.get(key) is None] + [
        key for key in ("draft_vocab_size",) if found.get(key) is None
    ]
    if absent:
        raise ConfigError(f"{where}: config.json lacks {', '.join(absent)}")
    if sizes.get("model_type", "llama") != "llama":
        raise ConfigError(f"{where}: model_type {sizes['model_type']!r}: allowed: llama, the shape of the layer")
    for key, only in FIXED.items():
        value = next((part[key] for part in (inner, found, sizes) if part.get(key) is not None), only)
        if value != only:
            raise ConfigError(f"{where}: {key} {value!r}: allowed: {only!r}; such a head computes something else")
    given = {"num_hidden_layers": 1, **{key: sizes[key] for key in OF_LLAMA if sizes.get(key) is not None}}
    try:
        layer = LlamaConfig(**given)
    except (TypeError, ValueError, KeyError, StrictDataclassError) as error:
        reason = " ".join(str(error).split())
        raise ConfigError(f"{where}: config.json cannot be read as a Llama config ({reason})") from error
    layers = _layers(inner.get(LAYER_IDS), found.get(LAYER_IDS), where, n_layers)
    try:
        return Eagle3Config(
            layer=layer,
            draft_vocab_size=found["draft_vocab_size"],
            target_hidden_size=found.get("target_hidden_size") or sizes["hidden_size"],
            target_layers=layers,
            norm_before_residual=bool(found.get("norm_before_residual")),
            own_embedding=own_embedding,
        )
    except ConfigError as error:
        raise ConfigError(f"{where}: {error}") from error


def check_vocabulary(net: Eagle3Net, where: str) -> None:
    """Refuse a mapping in which two draft ids mean one token, or one means none, or `t2d` says otherwise.

    Raises:
        ConfigError: with the first contradiction.
    """
    ids, size = net.target_ids, len(net.t2d)
    outside = torch.nonzero((ids < 0) | (ids >= size))[:, 0]
    if len(outside):
        first = int(outside[0])
        raise ConfigError(
            f"{where}: d2t sends draft id {first} to {int(ids[first])}; allowed: 0..{size - 1} (an entry is the "
            "target's id minus the draft id)"
        )
    if len(ids.unique()) != len(ids):
        raise ConfigError(
            f"{where}: d2t sends {len(ids)} draft ids to {len(ids.unique())} tokens; each needs one of its own (an "
            "entry is the target's id minus the draft id)"
        )
    if not torch.equal(torch.nonzero(net.t2d)[:, 0], ids.sort().values):
        raise ConfigError(f"{where}: t2d does not mark the tokens that d2t names; the file is damaged or mixed up")


def _renamed(weights: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """The reference's names for the speculators' ones."""
    old = "layers.0."
    return {f"midlayer.{key.removeprefix(old)}" if key.startswith(old) else key: v for key, v in weights.items()}


def _layers(read: Any, entered: Any, where: str, n_layers: int) -> tuple[int, ...]:
    """0-based layers whose outputs are read."""
    if read is None and entered is None:
        return default_layers(n_layers)
    named, shift = (entered, 1) if read is None else (read, 0)
    layers = tuple(layer - shift for layer in named)
    if min(layers) < 0 or max(layers) >= n_layers:
        raise ConfigError(
            f"{where}: {LAYER_IDS} {named} name the outputs of layers {list(layers)}; the target has layers "
            f"0..{n_layers - 1}"
        )
    return layers


def _check_target(config: Eagle3Config, target: Any, path: str) -> None:
    for what, ours, theirs in (
        ("vocab_size", config.layer.vocab_size, logits_width(target)),
        ("hidden size of the target", config.target_hidden_size, target.config.hidden_size),
    ):
        if ours != theirs:
            raise ConfigError(
                f"{path}: made for a target with {what} {ours}, this one has {theirs}; use the head of this target"
            )
