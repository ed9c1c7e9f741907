"""Tiny random vision-language models of every class, prompts with pictures for them, and slow, obvious references."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any

import torch
from transformers import (
    AutoModelForImageTextToText,
    CLIPVisionConfig,
    LlamaConfig,
    LlavaConfig,
    LlavaNextConfig,
    LlavaNextVideoConfig,
    MistralConfig,
    Qwen2_5_VLConfig,
    Qwen3VLConfig,
)

from real.vision.model import VisionModel
from real.vision.prompt import VisionPrompt
from tests.real_tiny import STOP, VOCABULARY, prompt_ids

IMAGE, VIDEO, START, END = 60, 61, 62, 63
MERGE, PATCH, SIDE = 2, 4, 16  # of the vision towers: merged patches a side, pixels of a patch, pixels of CLIP's image
TOKENS = 16
TEXT = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "initializer_range": 0.25,
    "bos_token_id": 1,
    "eos_token_id": STOP,
    "pad_token_id": 0,
    "tie_word_embeddings": False,
}
QWEN_TEXT = {**TEXT, "rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [2, 1, 1]}}
QWEN_VISION = {
    "depth": 3,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_heads": 4,
    "patch_size": PATCH,
    "spatial_merge_size": MERGE,
    "temporal_patch_size": 2,
    "out_hidden_size": 32,
    "initializer_range": 0.25,
}
QWEN_IDS = {
    "image_token_id": IMAGE,
    "video_token_id": VIDEO,
    "vision_start_token_id": START,
    "vision_end_token_id": END,
}
PINPOINTS = [[SIDE, 2 * SIDE], [2 * SIDE, SIDE], [2 * SIDE, 2 * SIDE]]


def clip() -> CLIPVisionConfig:
    return CLIPVisionConfig(
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        image_size=SIDE,
        patch_size=PATCH,
        initializer_range=0.25,
    )


def config_of(name: str) -> Any:
    if name == "qwen2_5_vl":
        vision = {**QWEN_VISION, "window_size": 16, "fullatt_block_indexes": [1], "tokens_per_second": 4}
        return Qwen2_5_VLConfig(text_config=QWEN_TEXT, vision_config=vision, **QWEN_IDS)
    if name == "qwen2_5_vl-sliding":  # a window that the pictures alone fill
        more = {"use_sliding_window": True, "sliding_window": 8, "max_window_layers": 1}
        return Qwen2_5_VLConfig(
            text_config={**QWEN_TEXT, **more},
            vision_config={**QWEN_VISION, "window_size": 16, "fullatt_block_indexes": [1]},
            **QWEN_IDS,
        )
    if name == "qwen3_vl":
        vision = {**QWEN_VISION, "num_position_embeddings": 16, "deepstack_visual_indexes": [0, 1]}
        return Qwen3VLConfig(text_config={**QWEN_TEXT, "head_dim": 8}, vision_config=vision, **QWEN_IDS)
    if name == "llava":
        return LlavaConfig(vision_config=clip(), text_config=LlamaConfig(**TEXT), image_token_index=IMAGE)
    parts = {"vision_config": clip(), "text_config": MistralConfig(**TEXT, sliding_window=None)}
    ids = {"image_token_index": IMAGE, "image_grid_pinpoints": PINPOINTS}
    if name == "llava_next":
        return LlavaNextConfig(**parts, **ids)
    return LlavaNextVideoConfig(**parts, **ids, video_token_index=VIDEO)


# Case: (class, number of images, sizes of videos in frames). A picture of 12 x 20 pixels is neither square nor a tile.
CASES = {
    "qwen2_5_vl": ("qwen2_5_vl", 2, ()),
    "qwen2_5_vl-sliding": ("qwen2_5_vl-sliding", 2, ()),
    "qwen2_5_vl-video": ("qwen2_5_vl", 0, (12,)),
    "qwen2_5_vl-both": ("qwen2_5_vl", 1, (4, 6)),
    "qwen3_vl": ("qwen3_vl", 2, ()),
    "qwen3_vl-video": ("qwen3_vl", 0, (6,)),
    "qwen3_vl-both": ("qwen3_vl", 1, (4,)),
    "llava_next": ("llava_next", 2, ()),
    "llava_next_video": ("llava_next_video", 1, (3,)),
    "llava": ("llava", 2, ()),
}


@functools.cache
def vision_model(name: str) -> VisionModel:
    """Random float32 weights; special tokens are never the most likely ones, so that plain text comes out."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        whole = AutoModelForImageTextToText.from_config(config_of(name)).eval()
        with torch.no_grad():
            whole.lm_head.weight[[0, STOP, IMAGE, VIDEO, START, END]] = 0
            if hasattr(whole.model, "image_newline"):
                whole.model.image_newline.normal_()
    return VisionModel(whole)


def _noise(*shape: int, seed: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


@dataclass(frozen=True, kw_only=True)
class Case:
    model: VisionModel
    prompt: VisionPrompt
    given: dict[str, torch.Tensor]  # what the library takes, with batch dimension


@functools.cache
def case(name: str) -> Case:
    """Text, a picture, text, a picture, ..., text that repeats itself, so that looking it up finds something."""
    kind, images, videos = CASES[name]
    model = vision_model(kind)
    inputs, runs = (_qwen if kind.startswith("qwen") else _llava)(model, images, videos)
    text = prompt_ids(3, 12) % 50 + 3
    ids = [text[:3]]
    for run in runs:
        ids += [torch.tensor(run), text[3:5]]
    ids = torch.cat([*ids, text, text[:6]])
    marks = (ids == IMAGE).long() + 2 * (ids == VIDEO).long()
    given = {"input_ids": ids[None], "attention_mask": torch.ones_like(ids)[None], **inputs}
    if kind.startswith("qwen"):
        given["mm_token_type_ids"] = marks[None]
    return Case(model=model, prompt=model.prompt(ids, inputs), given=given)


def _qwen(model: VisionModel, images: int, videos: tuple[int, ...]) -> tuple[dict[str, Any], list[list[int]]]:
    size = 3 * 2 * PATCH**2
    grids = [[1, 4, 6], [1, 2, 4]][:images], [[frames // 2, 4, 2] for frames in videos]
    inputs: dict[str, Any] = {}
    for names, found, seed in zip((model.kind.images, model.kind.videos), grids, (1, 2), strict=True):
        if found:
            grid = torch.tensor(found)
            inputs[names[0]], inputs[names[1]] = _noise(int(grid.prod(1).sum()), size, seed=seed), grid
    if videos and "second_per_grid_ts" in model.kind.videos:
        inputs["second_per_grid_ts"] = torch.tensor([1.5, 1.0][: len(videos)])
    runs = []
    for token, found in zip((IMAGE, VIDEO), grids, strict=True):
        for frames, height, width in found:
            tokens = [token] * (height * width // MERGE**2)
            if token == VIDEO and model.kind.label == "Qwen3-VL":
                # The steps of a video stand apart in the text, each after its time.
                runs.append([7, START, *tokens, END] * frames)
            else:
                runs.append([START, *tokens * frames, END])
    return inputs, runs


@torch.inference_mode()
def _llava(model: VisionModel, images: int, videos: tuple[int, ...]) -> tuple[dict[str, Any], list[list[int]]]:
    inputs, runs = {}, []
    body = model.whole.model
    if model.kind.label == "LLaVA-1.5":
        inputs["pixel_values"] = _noise(images, 3, SIDE, SIDE, seed=1)
        return inputs, [[IMAGE] * (SIDE // PATCH) ** 2] * images
    if images:
        inputs["pixel_values"] = _noise(images, 3, 3, SIDE, SIDE, seed=1)
        inputs["image_sizes"] = torch.tensor([[12, 20], [20, 12]][:images])
        found = body.get_image_features(**inputs, return_dict=True).pooler_output
        runs += [[IMAGE] * len(features) for features in found]
    for frames in videos:
        inputs["pixel_values_videos"] = _noise(1, frames, 3, SIDE, SIDE, seed=2)
        runs.append([VIDEO] * (frames * (SIDE // PATCH // 2) ** 2))
    return inputs, runs


@torch.inference_mode()
def library_generate(name: str, tokens: int = TOKENS) -> list[int]:
    """Greedy output of the library's own generate."""
    tried = case(name)
    out = tried.model.whole.generate(**tried.given, max_new_tokens=tokens, min_new_tokens=tokens, do_sample=False)
    return out[0, tried.given["input_ids"].shape[1] :].tolist()


@torch.inference_mode()
def library_plain(name: str, tokens: int = TOKENS) -> list[int]:
    """The most likely token again and again, each by the library's pass over pictures and all of the text."""
    tried = case(name)
    given, prompt = dict(tried.given), tried.given["input_ids"].shape[1]
    for _ in range(tokens):
        tried.model.whole.model.rope_deltas = None
        logits = tried.model.whole(**given, use_cache=False).logits[0, -1]
        for key, more in (("input_ids", int(logits.argmax())), ("attention_mask", 1), ("mm_token_type_ids", 0)):
            if key in given:
                given[key] = torch.cat([given[key], torch.tensor([[more]])], dim=1)
    return given["input_ids"][0, prompt:].tolist()
