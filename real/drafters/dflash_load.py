"""DFlash checkpoints: config.json to `DFlashConfig`, strict loading, and whether a drafter fits a target.

Read are the keys of the published checkpoints, from which Qwen3-4B-DFlash-b16's config.json has, besides what
transformers' Qwen3 has: `architectures: [DFlashDraftModel]`, `block_size`, `num_target_layers` and `dflash_config:
{mask_token_id, target_layer_ids}`; the newer code of z-lab/dflash (dflash/model.py at commit 1012959) also looks for
the first and the last two at either level, and for `is_causal`, `input_embedding_scale`, `output_multiplier` and
`final_logit_softcapping`. `causal` inside `dflash_config` is how exports to serving engines spell `is_causal`. Keys of
ours, in `dflash_config` and only where they are not the default: see `OURS`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from huggingface_hub.errors import StrictDataclassError
from transformers import PretrainedConfig, Qwen3Config

from real.cache import FULL, SLIDING
from real.compat import logits_width
from real.drafters.checkpoint import Checkpoint, build, check_keys, read_checkpoint, save_checkpoint
from real.drafters.config_values import SIZES, check_heads, check_values
from real.drafters.dflash_net import DFlashConfig, DFlashNetwork, default_target_layers
from real.target import decoder_layers
from specsim.errors import ConfigError

ARCHITECTURE = "DFlashDraftModel"
OF_QWEN3 = (
    *SIZES,
    "head_dim",
    "rms_norm_eps",
    "attention_bias",
    "hidden_act",
    "max_position_embeddings",
    "rope_theta",
    "rope_scaling",
    "rope_parameters",
    "layer_types",
    "sliding_window",
    "use_sliding_window",
    "max_window_layers",
)
OF_DFLASH = (
    "block_size",
    "mask_token_id",
    "target_layer_ids",
    "num_target_layers",
    "input_embedding_scale",
    "output_multiplier",
    "final_logit_softcapping",
)
OURS = ("target_hidden_size", "own_embedding", "own_head", "own_mask", "kept_vocab")
# Nothing here changes a pass in eval mode: the head is the target's whatever is tied, and no text is generated.
IGNORED = (
    *PretrainedConfig().to_dict(),
    "auto_map",
    "attention_dropout",
    "bos_token_id",
    "eos_token_id",
    "pad_token_id",
    "initializer_range",
    "tie_word_embeddings",
    "torch_dtype",
    "use_cache",
)


def load_dflash(path: str, model: Any, *, device: str, dtype: str) -> DFlashNetwork:
    """Load a DFlash drafter for a target.

    Args:
        path: folder or hub id.
        model: the target's model.
        device, dtype: where and in what the target runs.

    Returns:
        The network in eval mode, gradients off.

    Raises:
        ConfigError: no such checkpoint; an unknown key, or a value that is not supported; a tensor missing, too many or
            of another shape; or a drafter of another target.
    """
    checkpoint = read_checkpoint(path)
    config = read_config(checkpoint.config, where=path, num_target_layers=len(decoder_layers(model)))
    check_target(config, model, where=path)
    network = build(lambda: DFlashNetwork(config), checkpoint)
    _check_kept(network, checkpoint)
    return network.to(device=device, dtype=getattr(torch, dtype)).eval().requires_grad_(False)


def save_dflash(folder: Path, network: DFlashNetwork) -> None:
    """Write a checkpoint that `load_dflash` reads, in the published layout and the network's dtype."""
    weights = network.state_dict()
    dtype = str(network.fc.weight.dtype).removeprefix("torch.")
    save_checkpoint(folder, to_json(network.config) | {"dtype": dtype}, weights)


def read_config(document: dict[str, Any], *, where: str, num_target_layers: int | None = None) -> DFlashConfig:
    """The network's config of a checkpoint's config.json.

    Args:
        document: the JSON object.
        where: for messages.
        num_target_layers: of the target, for checkpoints that do not say.

    Raises:
        ConfigError: a key missing or unknown, or a value that is not supported.
    """
    inner = {} if document.get("dflash_config") is None else document["dflash_config"]
    if not isinstance(inner, dict):
        raise ConfigError(f"{where}: dflash_config is {inner!r}; allowed: an object")
    _check_kind(document, where)
    known = (*OF_QWEN3, *OF_DFLASH, *IGNORED, "dflash_config", "is_causal")
    check_keys(document, known, where=f"{where}: config.json")
    check_keys(inner, (*OF_DFLASH, *OURS, "is_causal", "causal"), where=f"{where}: dflash_config")
    check_values(document, where=f"{where}: config.json")
    check_values(inner, where=f"{where}: dflash_config")
    missing = [key for key in SIZES if document.get(key) is None]
    if missing:
        raise ConfigError(f"{where}: config.json lacks {missing[0]!r}")
    values = {key: document.get(key) if inner.get(key) is None else inner[key] for key in OF_DFLASH}
    if inner.get("own_mask"):
        values["mask_token_id"] = None
    elif values["mask_token_id"] is None:
        raise ConfigError(f"{where}: config.json lacks 'mask_token_id' (in dflash_config)")
    layers = values.pop("num_target_layers") or num_target_layers
    if layers is None:
        raise ConfigError(f"{where}: config.json lacks 'num_target_layers'")
    ids = values.pop("target_layer_ids") or default_target_layers(layers, document["num_hidden_layers"])
    causal = (inner.get("is_causal"), inner.get("causal"), document.get("is_causal"))
    config = DFlashConfig(
        **_of_qwen3(document, where),
        **{key: value for key, value in values.items() if value is not None},
        **{key: inner[key] for key in OURS if inner.get(key) is not None},
        num_target_layers=layers,
        target_layer_ids=tuple(ids),
        is_causal=next((found for found in causal if found is not None), None),
    )
    _check_together(config, where)
    return config


def to_json(config: DFlashConfig) -> dict[str, Any]:
    """The object in config.json; `read_config` reads it back."""
    plain = DFlashConfig.__dataclass_fields__
    inner: dict[str, Any] = {"target_layer_ids": list(config.target_layer_ids)}
    if config.mask_token_id is not None:
        inner["mask_token_id"] = config.mask_token_id
    for key in (*OURS, "input_embedding_scale", "output_multiplier", "final_logit_softcapping"):
        if getattr(config, key) != plain[key].default:
            inner[key] = getattr(config, key)
    types = config.layer_types or (FULL,) * config.num_hidden_layers
    document = {key: getattr(config, key) for key in (*SIZES, "head_dim", "rms_norm_eps", "attention_bias")}
    document |= {key: getattr(config, key) for key in ("hidden_act", "max_position_embeddings", "rope_parameters")}
    document |= {"layer_types": list(types), "sliding_window": config.sliding_window}
    document["use_sliding_window"] = config.sliding_window is not None
    document |= {"block_size": config.block_size, "num_target_layers": config.num_target_layers}
    if config.is_causal is not None:
        document["is_causal"] = config.is_causal
    return {"architectures": [ARCHITECTURE], "model_type": "qwen3", "dflash_config": inner, **document}


def check_target(config: DFlashConfig, model: Any, *, where: str) -> None:
    """Refuse a drafter that was made for another target.

    Raises:
        ConfigError: another number of layers or ids, another width of hidden states, or a mask token without embedding.
    """
    embedding = model.get_input_embeddings().weight
    hidden = config.target_hidden_size or config.hidden_size
    shared = not (config.own_embedding and config.own_head)
    compared = {
        "layers": (config.num_target_layers, len(decoder_layers(model))),
        "token ids": (config.vocab_size, logits_width(model)),
        "numbers per hidden state": (hidden, embedding.shape[1]),
        "numbers per embedding": (config.hidden_size if shared else embedding.shape[1], embedding.shape[1]),
    }
    for what, (wanted, found) in compared.items():
        if wanted != found:
            raise ConfigError(f"{where}: was made for a target with {wanted} {what}; this one has {found}")
    rows = config.vocab_size if config.own_embedding else embedding.shape[0]
    if config.mask_token_id is not None and not 0 <= config.mask_token_id < rows:
        raise ConfigError(f"{where}: mask_token_id {config.mask_token_id}: the target has embeddings of 0..{rows - 1}")


def _check_kind(document: dict[str, Any], where: str) -> None:
    found = document.get("architectures") or [ARCHITECTURE]
    if found != [ARCHITECTURE]:
        raise ConfigError(
            f"{where}: architectures {found}: allowed: [{ARCHITECTURE}]; later variants have other parts "
            "(convolutions, a candidate selector), which are not built here"
        )
    if document.get("model_type", "qwen3") != "qwen3":
        raise ConfigError(f"{where}: model_type {document['model_type']!r}: allowed: qwen3, the shape of the layers")


def _of_qwen3(document: dict[str, Any], where: str) -> dict[str, Any]:
    """Fields that transformers' Qwen3 config has, with its defaults and its reading of older spellings."""
    given = {key: document[key] for key in OF_QWEN3 if document.get(key) is not None}
    try:
        config = Qwen3Config(**given)
    except (TypeError, ValueError, KeyError, StrictDataclassError) as error:
        reason = " ".join(str(error).split())
        raise ConfigError(f"{where}: config.json cannot be read as a Qwen3 config ({reason})") from error
    fields: dict[str, Any] = {key: getattr(config, key) for key in (*SIZES, "rms_norm_eps", "attention_bias")}
    fields |= {key: getattr(config, key) for key in ("hidden_act", "max_position_embeddings", "sliding_window")}
    fields["head_dim"] = document.get("head_dim") or config.hidden_size // config.num_attention_heads
    fields["rope_parameters"] = dict(config.rope_parameters or {})
    fields["layer_types"] = tuple(config.layer_types or ())
    return fields


def _check_together(config: DFlashConfig, where: str) -> None:
    """What one value says about another; each by itself is checked already."""
    check_heads(
        hidden_size=config.hidden_size,
        heads=config.num_attention_heads,
        shared=config.num_key_value_heads,
        head_dim=config.head_dim,
        where=where,
    )
    layers, kept = config.num_target_layers, config.kept_vocab
    beyond = [layer for layer in config.target_layer_ids if not 0 <= layer < layers]
    windows = bool(config.sliding_window) or SLIDING not in config.layer_types
    faults = {
        "sliding_window": (windows, config.sliding_window, "a number of tokens, since there are sliding layers"),
        "target_layer_ids": (not beyond, beyond, f"0..{layers - 1}"),
        "kept_vocab": (kept is None or kept <= config.vocab_size, kept, f"1..{config.vocab_size}"),
    }
    for key, (sound, found, allowed) in faults.items():
        if not sound:
            raise ConfigError(f"{where}: {key} {found!r}: allowed: {allowed}")


def _check_kept(network: DFlashNetwork, checkpoint: Checkpoint) -> None:
    kept = checkpoint.weights.get("kept_ids")
    if kept is None:
        return
    ids = kept.tolist()
    if len(set(ids)) < len(ids) or not all(0 <= one < network.config.vocab_size for one in ids):
        raise ConfigError(f"{checkpoint.where}: kept_ids: allowed: different ids of the target, 0..vocab_size - 1")
