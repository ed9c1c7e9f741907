"""Loading vision-language models by folder or hub id: `load_vision`, as `real.models.load_target` for text.

Owns which files of a folder say how pictures are prepared. Image processors are the library's PIL ones on every
machine, so that a result does not depend on whether torchvision is installed.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from real.data import Prompt, encode
from real.models import Loaded, resolve_place, source_of, stop_ids
from real.places import complaints
from real.vision.encode import Encoder
from real.vision.model import VisionModel
from real.vision.pictures import Pictures
from real.vision.prompt import VisionPrompt
from specsim.errors import ConfigError

# Of the library's video processors, where a checkpoint says nothing: Qwen2.5's per frame, Qwen3's per video.
FRAME_SIZES = {
    "qwen2_5_vl": {"shortest_edge": 128 * 28 * 28, "longest_edge": 28 * 28 * 768},
    "qwen3_vl": {"shortest_edge": 128 * 32 * 32, "longest_edge": 32 * 32 * 768},
}


@dataclass(frozen=True, kw_only=True)
class VisionLoaded(Loaded):
    """A vision-language model ready to run; `model` is its language model, which everything made for text takes.

    Args:
        vision: the whole.
        encode: makes its prompts of those of datasets.
    """

    vision: VisionModel
    encode: Encoder


def load_vision(
    name_or_path: str, *, dtype: str = "float32", device: str = "auto", visual_tokens: int | None = None
) -> VisionLoaded:
    """Load a vision-language model, its tokenizer and its image processor.

    Args:
        name_or_path: a local folder or a hub id, of one of `real.vision.model.KINDS`.
        dtype, device: as for `real.models.load_target`.
        visual_tokens: most that the pictures of a prompt may take together; see `real.vision.pictures.Pictures`.

    Raises:
        ConfigError: unknown dtype or device, a model that is missing, unreadable or of another class, or one without an
            image processor.
    """
    where = resolve_place(dtype, device)
    from transformers import AutoImageProcessor, AutoModelForImageTextToText, AutoTokenizer
    from transformers.utils import logging

    source = source_of(name_or_path)
    logging.disable_progress_bar()
    what, advice = f"vision-language target {name_or_path!r} cannot be loaded", "use a local folder or a hub id"
    with complaints(what, advice):
        whole: Any = AutoModelForImageTextToText.from_pretrained(source, dtype=getattr(torch, dtype))
        model = VisionModel(whole.to(where).eval().requires_grad_(False))
        tokenizer = AutoTokenizer.from_pretrained(source)
        tokenizer.chat_template = _template(source) or tokenizer.chat_template
        processor = AutoImageProcessor.from_pretrained(source, backend="pil")
        frame_size = _frame_size(source, str(whole.config.model_type))
    pictures = Pictures(whole.config, processor, frame_size=frame_size, most=visual_tokens)
    return VisionLoaded(
        model=model.text,
        tokenizer=tokenizer,
        name=name_or_path,
        stop_ids=stop_ids(whole, tokenizer),
        device=where,
        dtype=dtype,
        vision=model,
        encode=Encoder(model, tokenizer, pictures),
    )


def prompt_for(loaded: Loaded, prompt: Prompt) -> torch.Tensor | VisionPrompt:
    """A dataset's prompt as `real.loop.decode` takes it, on the target's device.

    Args:
        loaded: the target.
        prompt: of `real.data.load_prompts`.

    Raises:
        ConfigError: as from `real.data.encode` or `real.vision.encode.Encoder`.
    """
    if isinstance(loaded, VisionLoaded):
        return loaded.encode(prompt)
    return encode(loaded.tokenizer, prompt).to(loaded.device)


def within(loaded: Loaded, visual_tokens: int | None) -> Loaded:
    """The same target, with another bound on what the pictures of a prompt take together; None: as it is.

    Raises:
        ConfigError: it sees no pictures.
    """
    if visual_tokens is None:
        return loaded
    if not isinstance(loaded, VisionLoaded):
        raise ConfigError(
            f"visual_tokens {visual_tokens}: target {loaded.name!r} sees no pictures; leave it out, or use a "
            "vision-language target (docs/vision.md)"
        )
    pictures = loaded.encode.pictures.within(visual_tokens)
    return replace(loaded, encode=Encoder(loaded.vision, loaded.tokenizer, pictures))


def _json_of(name_or_path: str, file: str) -> dict[str, Any] | None:
    """A JSON file of a model, or None where it has none of that name."""
    from transformers.utils.hub import cached_file

    found = cached_file(name_or_path, file, _raise_exceptions_for_missing_entries=False)
    if found is None:
        return None
    read = json.loads(Path(found).read_text(encoding="utf-8"))
    if not isinstance(read, dict):
        raise ConfigError(f"{found}: a {type(read).__name__}; allowed: a JSON object")
    return read


def _template(name_or_path: str) -> str | None:
    """The chat template of old checkpoints, which keep it with the processor, where a tokenizer does not look."""
    read = _json_of(name_or_path, "chat_template.json")
    return None if read is None else read.get("chat_template")


def _frame_size(name_or_path: str, kind: str) -> dict[str, int]:
    """What a video's frames may have in pixels: the checkpoint's word, or the library's."""
    size = dict(FRAME_SIZES.get(kind, {}))
    if not size:
        return size
    read = _json_of(name_or_path, "video_preprocessor_config.json")
    read = read or _json_of(name_or_path, "preprocessor_config.json") or {}
    size.update({edge: value for edge, value in (read.get("size") or {}).items() if edge in size and value})
    for edge, old in (("shortest_edge", "min_pixels"), ("longest_edge", "max_pixels")):
        size[edge] = int(read.get(old) or size[edge])
    return size
