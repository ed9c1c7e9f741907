"""Reading drafter checkpoints: config.json and weights of a folder or of the Hugging Face hub, strictly.

Weights are safetensors, or the `pytorch_model.bin` of older checkpoints, of which nothing but tensors is read.

Owns files and the comparison of names and shapes. What a config means, each drafter's loader decides.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import torch
from safetensors.torch import load_file, save_file

from real.places import complaints, local_folder, reason_of
from specsim.errors import ConfigError
from specsim.paths import replace_file

CONFIG, WEIGHTS, INDEX = "config.json", "model.safetensors", "model.safetensors.index.json"
PICKLED = "pytorch_model.bin"
NAMED_AT_MOST = 5
FLOATS = (torch.float64, torch.float32, torch.float16, torch.bfloat16)
WHOLES = (torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)
Network = TypeVar("Network", bound=torch.nn.Module)


@dataclass(frozen=True, kw_only=True)
class Checkpoint:
    """A checkpoint as it lies on disk.

    Args:
        where: what the user named, for messages.
        folder: its files lie there; None: nowhere.
        config: the object in config.json.
        weights: tensors by name, on the CPU, in the dtype they are stored in.
    """

    where: str
    folder: Path | None = None
    config: dict[str, Any]
    weights: dict[str, torch.Tensor]


def read_checkpoint(path: str) -> Checkpoint:
    """Read a checkpoint.

    Args:
        path: a folder, or a hub id (which needs the network or the hub's cache).

    Raises:
        ConfigError: no such folder or repository, no config.json or weights in it, or unreadable ones.
    """
    folder = local_folder(path, "drafter") or _download(path)
    config = _read_object(folder / CONFIG, path)
    weights: dict[str, torch.Tensor] = {}
    for file in _weight_files(folder, path):
        with complaints(f"{path}: {file.name} cannot be read", "get the checkpoint again"):
            found = torch.load(file, map_location="cpu", weights_only=True) if file.name == PICKLED else load_file(file)
        if not isinstance(found, dict) or not all(
            isinstance(name, str) and isinstance(value, torch.Tensor) for name, value in found.items()
        ):
            raise ConfigError(f"{path}: {file.name} holds a {type(found).__name__}, not tensors by name")
        weights |= found
    return Checkpoint(where=path, folder=folder, config=config, weights=weights)


def build(make: Callable[[], Network], checkpoint: Checkpoint) -> Network:
    """A network with a checkpoint's weights, which are compared before it takes any memory.

    Args:
        make: builds it with any weights; called twice.
        checkpoint: whose tensors have its names and shapes.

    Raises:
        ConfigError: as from `check_fit`.
    """
    with torch.device("meta"):
        check_fit(make(), checkpoint)
    network = make()
    load_weights(network, checkpoint)
    return network


def load_weights(module: torch.nn.Module, checkpoint: Checkpoint) -> None:
    """Copy a checkpoint's tensors into a module of the same names and shapes, cast to the module's dtype.

    Raises:
        ConfigError: as from `check_fit`.
    """
    check_fit(module, checkpoint)
    module.load_state_dict(checkpoint.weights)


def check_fit(module: torch.nn.Module, checkpoint: Checkpoint) -> None:
    """Refuse a checkpoint that does not hold a module's tensors; of tied ones, one is enough.

    Raises:
        ConfigError: tensors that are missing, too many, of another shape or kind, or with values that are not finite.
    """
    wanted = module.state_dict(keep_vars=True)  # the tensors themselves: tied ones are the same object
    held = {id(tensor) for name, tensor in wanted.items() if name in checkpoint.weights}
    missing = [name for name, tensor in wanted.items() if id(tensor) not in held]
    extra = [name for name in checkpoint.weights if name not in wanted]
    for names, fault in ((missing, "lacks"), (extra, "has besides what its config.json says")):
        if names:
            raise ConfigError(
                f"{checkpoint.where}: {fault} {_listed(names)}; a checkpoint must hold exactly the tensors of its kind"
            )
    for name, found in checkpoint.weights.items():
        tensor = wanted[name]
        if found.shape != tensor.shape:
            raise ConfigError(
                f"{checkpoint.where}: {name} has shape {list(found.shape)}, its config.json makes it "
                f"{list(tensor.shape)}"
            )
        if found.dtype not in (FLOATS if tensor.is_floating_point() else WHOLES):
            raise ConfigError(f"{checkpoint.where}: {name} is of type {found.dtype}; allowed: such as {tensor.dtype}")
        if found.layout != torch.strided or found.device.type != "cpu":
            raise ConfigError(f"{checkpoint.where}: {name} is stored without its values; get the checkpoint again")
        if not bool(torch.isfinite(found).all()):
            raise ConfigError(f"{checkpoint.where}: {name} holds values that are not finite; get the checkpoint again")


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
    names = _read_object(folder / INDEX, path).get("weight_map")
    if not isinstance(names, dict) or not names:
        raise ConfigError(f"{path}: its {INDEX} has no weight_map; allowed: an object, the file of every tensor")
    for name in names.values():
        if not isinstance(name, str) or Path(name).name != name or not name.endswith(".safetensors"):
            raise ConfigError(
                f"{path}: its {INDEX} names the file {name!r}; allowed: safetensors files of the same folder"
            )
        if not (folder / name).is_file():
            raise ConfigError(f"{path}: its {INDEX} names {name!r}, which is not there; get the checkpoint again")
    return [folder / name for name in sorted(set(names.values()))]


def _read_object(file: Path, path: str) -> dict[str, Any]:
    try:
        found = json.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ConfigError(f"{path}: has no {file.name}; name the folder or hub id of a drafter checkpoint") from None
    except (OSError, ValueError, RecursionError) as error:
        raise ConfigError(f"{path}: its {file.name} cannot be read ({reason_of(error)})") from error
    if not isinstance(found, dict):
        raise ConfigError(f"{path}: its {file.name} holds a {type(found).__name__}; allowed: an object")
    return found


def _download(path: str) -> Path:
    # Imported here: a folder must not need the hub's client, which reads the environment when it is imported.
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HFValidationError

    try:
        return Path(snapshot_download(path, allow_patterns=["*.json", "*.safetensors", PICKLED]))
    except (OSError, ValueError, HFValidationError) as error:
        raise ConfigError(
            f"{path}: no such folder, and the hub has or gives no such repository ({reason_of(error)}); name a folder "
            f"with {CONFIG} and {WEIGHTS}, or a hub id"
        ) from error


def _listed(names: list[str]) -> str:
    more = len(names) - NAMED_AT_MOST
    return ", ".join(names[:NAMED_AT_MOST]) + (f" and {more} more" if more > 0 else "")
