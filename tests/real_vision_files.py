"""Vision-language checkpoints and questions in folders, as a user has them: tokenizers, image processors, pictures."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image
from tokenizers import Regex, Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Split
from transformers import PreTrainedTokenizerFast
from transformers.models.clip.image_processing_pil_clip import CLIPImageProcessorPil
from transformers.models.llava_next.image_processing_pil_llava_next import LlavaNextImageProcessorPil
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

from tests.real_vision import END, IMAGE, PATCH, PINPOINTS, SIDE, START, VIDEO, vision_model

FRAME_SIZE = {"shortest_edge": 8 * 8, "longest_edge": 16 * 24}
TEMPLATE = (
    "{% for m in messages %}u:{% for c in m['content'] %}{% if c['type'] == 'text' %}{{ c['text'] }}"
    "{% elif c['type'] == 'image' %}IMAGE{% else %}VIDEO{% endif %}{% endfor %} {% endfor %}a:"
)


def token_of(name: str, place: int) -> str:
    qwen = {IMAGE: "<|image_pad|>", VIDEO: "<|video_pad|>", START: "<|vision_start|>", END: "<|vision_end|>"}
    return qwen[place] if name.startswith("qwen") else {**qwen, IMAGE: "<image>", VIDEO: "<video>"}[place]


def tokenizer(name: str) -> PreTrainedTokenizerFast:
    letters = "abcdefghijklmnopqrstuvwxyz0123456789 .,:;!?()+-*_\n<>"
    words = {token: number for number, token in enumerate(["<pad>", "<s>", "</s>", *letters])}
    special = {token_of(name, place): place for place in (IMAGE, VIDEO, START, END)}
    made = Tokenizer(WordLevel({**words, **special}, unk_token="<pad>"))
    made.pre_tokenizer = Split(Regex(r"[\s\S]"), "isolated")
    extra = {"extra_special_tokens": {"image_token": token_of(name, IMAGE)}}
    fast = PreTrainedTokenizerFast(
        tokenizer_object=made, bos_token="<s>", eos_token="</s>", pad_token="<pad>", unk_token="<pad>", **extra
    )
    fast.add_tokens(list(special), special_tokens=True)
    wrapped = [
        f"{token_of(name, START)}{token}{token_of(name, END)}" if name.startswith("qwen") else token
        for token in (token_of(name, IMAGE), token_of(name, VIDEO))
    ]
    fast.chat_template = TEMPLATE.replace("IMAGE", wrapped[0]).replace("VIDEO", wrapped[1])
    return fast


def processor(name: str) -> Any:
    if name.startswith("qwen"):
        size = {"shortest_edge": 8 * 8, "longest_edge": 24 * 32}
        return Qwen2VLImageProcessorPil(patch_size=PATCH, merge_size=2, temporal_patch_size=2, size=size)
    same = {"size": {"shortest_edge": SIDE}, "crop_size": {"height": SIDE, "width": SIDE}}
    if name == "llava":
        return CLIPImageProcessorPil(**same)
    return LlavaNextImageProcessorPil(**same, image_grid_pinpoints=PINPOINTS)


def picture(width: int, height: int, seed: int = 0) -> Image.Image:
    pixels = np.random.default_rng(seed).integers(0, 256, size=(height, width, 3), dtype=np.uint8)
    return Image.fromarray(pixels)


def save_vision(folder: Path, name: str) -> Path:
    """A folder that `load_target` loads: a tiny random model of a class of `tests.real_vision`."""
    vision_model(name).whole.save_pretrained(folder)
    tokenizer(name).save_pretrained(folder)
    processor(name).save_pretrained(folder)
    (folder / "video_preprocessor_config.json").write_text(json.dumps({"size": FRAME_SIZE}), encoding="utf-8")
    return folder


def save_questions(folder: Path) -> Path:
    """A folder with pictures, frames and questions about them, one of which shows nothing."""
    (folder / "frames").mkdir(parents=True)
    for number in range(4):
        picture(20, 12, seed=number).save(folder / f"{number}.png")
        picture(20, 12, seed=number).save(folder / "frames" / f"{number:03}.png")
    lines = [
        {"id": "two", "question": "what is here? what is here", "images": ["0.png", "1.png"]},
        {"question": "what moves?", "frames": "frames", "fps": 4, "answer": "unused"},
        {"id": 7, "question": "what moves?", "frames": ["0.png", "1.png"]},
        {"question": "one and one?"},
    ]
    (folder / "questions.jsonl").write_text("\n\n".join(map(json.dumps, lines)), encoding="utf-8")
    return folder
