"""Reading drafter checkpoints: config.json and weights of a folder or of the Hugging Face hub, strictly.

Weights are safetensors, or the `pytorch_model.bin` of older checkpoints, of which nothing but tensors is read.

Owns files and the comparison of names and shapes. What a config means, each drafter's loader decides.
"""

from __future__ import annotations

import json
import pickle
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from specsim.errors import ConfigError
from specsim.paths import replace_file

CONFIG, WEIGHTS, INDEX = "config.json", "model.safetensors", "model.safetensors.index.json"
PICKLED = "pytorch_model.bin"
NAMED_AT_MOST = 5


@dataclass(frozen=True, kw_only=True)
class Checkpoint:
    """A checkpoint as it lies on disk.

    Args:
        where: what the user named, for messages.
        config: the object in config.json.
        weights: tensors by name, on the CPU, in the dtype they are stored in.
    """

    where: str
    config: dict[str, Any]
    weights: dict[str, torch.Tensor]


def read_checkpoint(path: str) -> Checkpoint:
    """Read a checkpoint.

    Args:
        path: a folder, or a hub id (which needs the network or the hub's cache).

    Raises:
        ConfigError: no such folder or repository, no config.json or weights in it, or unreadable ones.
    """
    folder = Path(path) if Path(path).is_dir() else _download(path)
    try:
        config = json.loads((folder / CONFIG).read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ConfigError(f"{path}: has no {CONFIG}; name the folder or hub id of a drafter checkpoint") from None
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path}: its {CONFIG} cannot be read ({error})") from error
    if not isinstance(config, dict):
        raise ConfigError(f"{path}: its {CONFIG} holds no object")
    weights: dict[str, torch.Tensor] = {}
    for file in _weight_files(folder, path):
        try:
            found = torch.load(file, map_location="cpu", weights_only=True) if file.name == PICKLED else load_file(file)
        except (OSError, EOFError, RuntimeError, SafetensorError, pickle.UnpicklingError) as error:
            reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
            raise ConfigError(f"{path}: {file.name} cannot be read ({reason}); get the checkpoint again") from error
        if not isinstance(found, dict) or not all(isinstance(value, torch.Tensor) for value in found.values()):
            raise ConfigError(f"{path}: {file.name} holds a {type(found).__name__}, not tensors by name")
        weights |= found
    return Checkpoint(where=path, config=config, weights=weights)


def load_weights(module: torch.nn.Module, checkpoint: Checkpoint) -> None:
    """Copy a checkpoint's tensors into a module of the same names and shapes, cast to the module's dtype.

    Raises:
        ConfigError: tensors that are missing, too many, or of another shape.
    """
    wanted = module.state_dict()
    missing = [name for name in wanted if name not in checkpoint.weights]
    extra = [name for name in checkpoint.weights if name not in wanted]
    for names, fault in ((missing, "lacks"), (extra, "has besides what its config.json says")):
        if names:
            raise ConfigError(
                f"{checkpoint.where}: {fault} {_listed(names)}; a checkpoint must hold exactly the tensors of its kind"
            )
    for name, tensor in wanted.items():
        found = checkpoint.weights[name]
        if found.shape != tensor.shape:
            raise ConfigError(
                f"{checkpoint.where}: {name} has shape {list(found.shape)}, its config.json makes it "
                f"{list(tensor.shape)}"
            )
    module.load_state_dict(checkpoint.weights)


def check_keys(found: Iterable[str], known: Iterable[str], *, where: str) -> None:
    """Refuse keys of a config that are not known here, since they may change what the network computes.

    Raises:
        ConfigError: the first of them.
    """
    known = set(known)
    for key in found:
        if key not in known:
            raise ConfigError(
                f"{where}: {key!r} is not known here and may change what the drafter computes; allowed: "
                f"{', '.join(sorted(known))}"
            )


def save_checkpoint(folder: Path, config: Mapping[str, Any], weights: Mapping[str, torch.Tensor]) -> None:
    """Write config.json and model.safetensors, each in one step; `read_checkpoint` reads them back.

    Args:
        folder: made when it is not there.
        config: a JSON object.
        weights: tensors by name, stored in their dtype.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with replace_file(folder / WEIGHTS) as temporary:
        tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in weights.items()}
        save_file(tensors, temporary, metadata={"format": "pt"})
    with replace_file(folder / CONFIG) as temporary:
        temporary.write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")


def _weight_files(folder: Path, path: str) -> list[Path]:
    if (folder / WEIGHTS).is_file():
        return [folder / WEIGHTS]
    if not (folder / INDEX).is_file():
        if (folder / PICKLED).is_file():
            return [folder / PICKLED]
        raise ConfigError(f"{path}: has neither {WEIGHTS} nor {INDEX} nor {PICKLED}; other formats are not read")
    try:
        names = json.loads((folder / INDEX).read_text(encoding="utf-8"))["weight_map"].values()
    except (OSError, ValueError, KeyError, AttributeError) as error:
        raise ConfigError(f"{path}: its {INDEX} cannot be read ({error})") from error
    return [folder / name for name in sorted(set(names))]


def _download(path: str) -> Path:
    # Imported here: a folder must not need the hub's client, which reads the environment when it is imported.
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HFValidationError

    try:
        return Path(snapshot_download(path, allow_patterns=["*.json", "*.safetensors", PICKLED]))
    except (OSError, ValueError, HFValidationError) as error:
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise ConfigError(
            f"{path}: no such folder, and the hub has or gives no such repository ({reason}); name a folder with "
            f"{CONFIG} and {WEIGHTS}, or a hub id"
        ) from error


def _listed(names: list[str]) -> str:
    more = len(names) - NAMED_AT_MOST
    return ", ".join(names[:NAMED_AT_MOST]) + (f" and {more} more" if more > 0 else "")
