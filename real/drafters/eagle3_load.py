"""Reading and writing EAGLE-3 heads: published checkpoints by folder or hub id, and those trained here.

Owns the files: `config.json` beside `model.safetensors` (or more of them) or `pytorch_model.bin`. What it computes, the
network says.

Two spellings of the same head are published. The reference's (SafeAILab/EAGLE eagle/model/cnets.py @148042c, read by
eagle/model/ea_model.py @47de7b0; e.g. yuhuili/EAGLE3-LLaMA3.1-Instruct-8B; SpecForge trains it, see
specforge/modeling/draft/llama3_eagle.py @01dd714): sizes at the top level, keys `midlayer.*`, `fc.weight`,
`norm.weight`, `lm_head.weight`, `d2t`, `t2d`. And speculators' (vllm-project/speculators
src/speculators/models/eagle3/config.py @11ecdd3 and core.py @033c87f): sizes in `transformer_layer_config`, keys
`layers.0.*` instead of `midlayer.*`. Either may bring `embed_tokens.weight`. A head whose draft vocabulary is the whole
one may leave `d2t` and `t2d` out, as the reference does.
"""

from __future__ import annotations

import json
import pickle
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from transformers import LlamaConfig

from real.compat import logits_width
from real.drafters.eagle3_net import Eagle3Config, Eagle3Net, default_layers
from specsim.errors import ConfigError

CONFIG, SAFETENSORS, PICKLED = "config.json", "model.safetensors", "pytorch_model.bin"
EMBEDDING, VOCABULARY = "embed_tokens.weight", ("d2t", "t2d")
LAYER_IDS = "eagle_aux_hidden_state_layer_ids"
# What newer heads switch on and this network does not have: speculators' norm before fc, SpecForge's EAGLE 3.1.
FOREIGN = ("norm_before_fc", "fc_norm", "norm_output")
SIZES = ("hidden_size", "intermediate_size", "num_attention_heads", "vocab_size")


def load_eagle3(path: str, target: Any, *, dtype: torch.dtype | None = None) -> Eagle3Net:
    """A head ready to draft for a target, on its device.

    Args:
        path: a folder or a Hugging Face hub id.
        target: the causal language model it was trained for.
        dtype: of the weights; default: the target's.

    Raises:
        ConfigError: no such checkpoint, a file that cannot be read, a configuration this network does not have, a
            missing or an extra key, a wrong shape, a vocabulary mapping that contradicts itself, or another target.
    """
    folder = _folder(path)
    weights = _renamed(_weights(folder))
    config = read_config(folder / CONFIG, target.config.num_hidden_layers, own_embedding=EMBEDDING in weights)
    _check_target(config, target, path)
    net = Eagle3Net(config)
    _check_keys(net, weights, path)
    if VOCABULARY[0] not in weights:
        net.set_vocabulary(torch.arange(config.draft_vocab_size))
    net.load_state_dict(weights, strict=False)  # what may be missing was checked
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
    folder.mkdir(parents=True, exist_ok=True)
    state = {
        key: (value.to(dtype) if value.is_floating_point() else value).detach().cpu().contiguous()
        for key, value in net.state_dict().items()
    }
    save_file(state, folder / SAFETENSORS, metadata={"format": "pt"})
    config, layer = net.config, net.config.layer
    described = {
        "architectures": ["LlamaForCausalLMEagle3"],
        **{key: value for key, value in layer.to_dict().items() if key not in ("architectures", "dtype")},
        "draft_vocab_size": config.draft_vocab_size,
        "target_hidden_size": config.target_hidden_size,
        "norm_before_residual": config.norm_before_residual,
        "eagle_config": {LAYER_IDS: list(config.target_layers), "use_aux_hidden_state": True},
    }
    (folder / CONFIG).write_text(json.dumps(described, indent=2, sort_keys=True) + "\n")


def read_config(path: Path, n_layers: int, *, own_embedding: bool) -> Eagle3Config:
    """The sizes of a published head.

    Layer numbers mean two things. In `eagle_config` they are layers whose output is read, counted from 0 (SGLang adds 1
    to get the layer that this output enters). At the top level, where speculators and vLLM look, they are the layers
    entered. Without either: `default_layers`.

    Args:
        path: its config.json.
        n_layers: decoder layers of the target.
        own_embedding: whether the weights bring embeddings.

    Raises:
        ConfigError: not JSON, a size missing, or a head this network is not.
    """
    try:
        found: Any = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path}: cannot be read ({error}); an EAGLE-3 head needs its {CONFIG}") from error
    found = found if isinstance(found, dict) else {}
    sizes = {**found.get("transformer_layer_config", found)}
    absent = [key for key in SIZES if key not in sizes] + ["draft_vocab_size"] * ("draft_vocab_size" not in found)
    if absent:
        raise ConfigError(f"{path}: no {', '.join(absent)}; this is not the configuration of an EAGLE-3 head")
    if sizes.get("model_type", "llama") != "llama":
        raise ConfigError(f"{path}: model_type {sizes['model_type']!r}: allowed: llama")
    foreign = [key for key in FOREIGN if found.get(key)]
    if foreign:
        raise ConfigError(f"{path}: {', '.join(foreign)} switched on; heads with it compute something else")
    sizes.setdefault("num_hidden_layers", 1)
    return Eagle3Config(
        layer=LlamaConfig(**{key: value for key, value in sizes.items() if key != "model_type"}),
        draft_vocab_size=found["draft_vocab_size"],
        target_hidden_size=found.get("target_hidden_size") or sizes["hidden_size"],
        target_layers=_layers(found, path, n_layers),
        norm_before_residual=bool(found.get("norm_before_residual", False)),
        own_embedding=own_embedding,
    )


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


def _folder(path: str) -> Path:
    if Path(path).is_dir():
        return Path(path)
    from huggingface_hub import snapshot_download

    try:
        return Path(snapshot_download(path, allow_patterns=[CONFIG, "*.safetensors", PICKLED]))
    except (OSError, ValueError) as error:  # not found, no network, not a hub id
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise ConfigError(
            f"eagle3:path={path}: no such folder, and the hub does not give it ({reason}); use a folder with "
            f"{CONFIG} and {SAFETENSORS}, or a hub id such as yuhuili/EAGLE3-LLaMA3.1-Instruct-8B"
        ) from error


def _weights(folder: Path) -> dict[str, torch.Tensor]:
    files = sorted(folder.glob("*.safetensors"))
    try:
        if files:
            return {key: value for file in files for key, value in load_file(file).items()}
        if not (folder / PICKLED).is_file():
            raise ConfigError(f"{folder}: no {SAFETENSORS} and no {PICKLED}")
        found = torch.load(folder / PICKLED, map_location="cpu", weights_only=True)
    except (OSError, EOFError, RuntimeError, SafetensorError, pickle.UnpicklingError) as error:
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise ConfigError(f"{folder}: the weights cannot be read ({reason}); get the checkpoint again") from error
    if not isinstance(found, dict) or not all(isinstance(value, torch.Tensor) for value in found.values()):
        raise ConfigError(f"{folder / PICKLED}: holds a {type(found).__name__}, not tensors by name")
    return found


def _renamed(weights: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """The reference's names for the speculators' ones."""
    old = "layers.0."
    return {f"midlayer.{key.removeprefix(old)}" if key.startswith(old) else key: v for key, v in weights.items()}


def _layers(found: dict[str, Any], path: Path, n_layers: int) -> tuple[int, ...]:
    """0-based layers whose outputs are read."""
    own, entered = (found.get("eagle_config") or {}).get(LAYER_IDS), found.get(LAYER_IDS)
    if own is None and entered is None:
        return default_layers(n_layers)
    named, shift = (entered, 1) if own is None else (own, 0)
    layers = tuple(int(layer) - shift for layer in named or ())
    if not layers or min(layers) < 0 or max(layers) >= n_layers:
        raise ConfigError(
            f"{path}: {LAYER_IDS} {named} name the outputs of layers {list(layers)}; the target has layers "
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


def _check_keys(net: Eagle3Net, weights: Mapping[str, torch.Tensor], path: str) -> None:
    wanted = {key: tuple(value.shape) for key, value in net.state_dict().items()}
    whole = net.config.draft_vocab_size == net.config.layer.vocab_size and not set(VOCABULARY) & set(weights)
    missing = sorted(set(wanted) - set(weights) - set(VOCABULARY if whole else ()))
    extra = sorted(set(weights) - set(wanted))
    if missing or extra:
        raise ConfigError(
            f"{path}: not an EAGLE-3 head: missing keys: {', '.join(missing) or 'none'}; unknown keys: "
            f"{', '.join(extra) or 'none'}"
        )
    wrong = [f"{key} {tuple(v.shape)}, expected {wanted[key]}" for key, v in weights.items() if v.shape != wanted[key]]
    if wrong:
        raise ConfigError(f"{path}: wrong shapes for its {CONFIG}: {'; '.join(sorted(wrong))}")
