"""Pictures, video frames and questions: tensors, numbers of visual tokens, text around them, and files on disk."""

from __future__ import annotations

import functools
import json
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from tokenizers import Regex, Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Split
from transformers import PreTrainedTokenizerFast
from transformers.models.clip.image_processing_pil_clip import CLIPImageProcessorPil
from transformers.models.llava_next.image_processing_pil_llava_next import LlavaNextImageProcessorPil
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

from real.drafters.prompt_lookup import PromptLookupDrafter
from real.loop import Settings, decode
from real.target import Target
from real.vision.data import BENCHMARKS, Question, load_questions
from real.vision.encode import Encoder
from real.vision.load import library_processor, load_vision
from real.vision.model import VisionModel
from real.vision.pictures import Pictures, open_pictures
from specsim.errors import ConfigError
from specsim.online import OnlineController
from tests.real_lossless import random_lengths
from tests.real_tiny import STOP, prompt_ids, tiny_llama
from tests.real_vision import END, IMAGE, PATCH, PINPOINTS, SIDE, START, VIDEO, vision_model

CLASSES = ("qwen2_5_vl", "qwen3_vl", "llava_next", "llava_next_video", "llava")
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


def processor(name: str):
    if name.startswith("qwen"):
        size = {"shortest_edge": 8 * 8, "longest_edge": 24 * 32}
        return Qwen2VLImageProcessorPil(patch_size=PATCH, merge_size=2, temporal_patch_size=2, size=size)
    same = {"size": {"shortest_edge": SIDE}, "crop_size": {"height": SIDE, "width": SIDE}}
    if name == "llava":
        return CLIPImageProcessorPil(**same)
    return LlavaNextImageProcessorPil(**same, image_grid_pinpoints=PINPOINTS)


@functools.cache
def pictures(name: str, most: int | None = None) -> Pictures:
    return Pictures(vision_model(name).whole.config, processor(name), frame_size=FRAME_SIZE, most=most)


def picture(width: int, height: int, seed: int = 0) -> Image.Image:
    pixels = np.random.default_rng(seed).integers(0, 256, size=(height, width, 3), dtype=np.uint8)
    return Image.fromarray(pixels)


@torch.inference_mode()
def features(model: VisionModel, seen) -> int:
    """Visual tokens that the library's own model makes of the pictures."""
    body, inputs = model.whole.model, seen.inputs
    if "pixel_values_videos" in inputs:
        grid = {"video_grid_thw": inputs["video_grid_thw"]} if "video_grid_thw" in inputs else {}
        found = body.get_video_features(inputs["pixel_values_videos"], **grid, return_dict=True).pooler_output
    else:
        found = body.get_image_features(**inputs, return_dict=True).pooler_output
    return sum(part.reshape(-1, part.shape[-1]).shape[0] for part in found)


@pytest.mark.parametrize("name", CLASSES)
@pytest.mark.parametrize("size", [(20, 12), (12, 33), (16, 16), (7, 40)])
def test_counts_are_the_tokens_the_model_makes(name: str, size: tuple[int, int]) -> None:
    model = vision_model(name)
    seen = pictures(name).images([picture(*size), picture(13, 14, seed=1)])
    assert len(seen.counts) == 2
    assert sum(seen.counts) == features(model, seen)
    video = pictures(name).frames([picture(*size, seed=number) for number in range(3)], fps=2.0)
    assert sum(video.counts) == features(model, video)
    assert video.video == bool(model.kind.videos)


@pytest.mark.parametrize("name", ["qwen2_5_vl", "qwen3_vl"])
def test_qwens_video_patches_are_pairs_of_frames(name: str) -> None:
    """Against loops over steps, blocks and patches of frames that another processor call has resized."""
    frames = [picture(12, 20, seed=number) for number in range(3)]
    found = pictures(name).frames(frames, fps=4.0).inputs
    steps, height, width = found["video_grid_thw"][0].tolist()
    assert steps == 2
    plain = processor(name)
    mean, spread = (np.array(values)[:, None, None] for values in (plain.image_mean, plain.image_std))
    resized = [
        np.asarray(frame.resize((width * PATCH, height * PATCH), Image.Resampling.BICUBIC)).transpose(2, 0, 1)
        for frame in [*frames, frames[-1]]
    ]
    pixels = [(frame / 255 - mean) / spread for frame in resized]
    rows = []
    for step in range(steps):
        for top in range(0, height, 2):
            for left in range(0, width, 2):
                for row in (top, top + 1):
                    for column in (left, left + 1):
                        down, right = slice(row * PATCH, (row + 1) * PATCH), slice(column * PATCH, (column + 1) * PATCH)
                        pair = [pixels[2 * step + number][:, down, right] for number in (0, 1)]
                        rows.append(np.stack(pair, axis=1).reshape(-1))
    assert np.allclose(found["pixel_values_videos"].numpy(), np.stack(rows), atol=1e-5)
    assert ("second_per_grid_ts" in found) == (name == "qwen2_5_vl")
    if name == "qwen2_5_vl":
        assert found["second_per_grid_ts"].tolist() == [0.5]


def test_budgets_of_visual_tokens() -> None:
    roomy = {"shortest_edge": 8 * 8, "longest_edge": 4 * 24 * 32}
    for name in ("qwen2_5_vl", "qwen3_vl"):
        large = [picture(64, 48, seed=number) for number in range(4)]
        free, bound = (
            Pictures(vision_model(name).whole.config, processor(name), frame_size=roomy, most=most)
            for most in (None, 6)
        )
        assert sum(bound.frames(large, 1.0).counts) <= 6 < sum(free.frames(large, 1.0).counts)
        assert sum(pictures(name, 8).images(large[:2]).counts) <= 8
    with pytest.raises(ConfigError, match=r"32 visual tokens, allowed are 20; show fewer"):
        pictures("llava", 20).images([picture(16, 16)] * 2)
    with pytest.raises(ConfigError, match=r"frames of sizes 8x9, 9x9"):
        pictures("llava").frames([picture(8, 9), picture(9, 9)], 1.0)


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with pictures, frames and questions."""
    folder = tmp_path_factory.mktemp("questions")
    (folder / "frames").mkdir()
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


def test_questions_are_read_from_a_folder_and_from_a_file(files: Path) -> None:
    found = load_questions(str(files))
    assert found == load_questions(str(files / "questions.jsonl"))
    assert [question.id for question in found] == ["two", "line-3", "7", "line-7"]
    assert found[0].images == (files / "0.png", files / "1.png")
    assert found[1].frames == tuple(files / "frames" / f"{number:03}.png" for number in range(4))
    assert (found[1].fps, found[2].fps) == (4.0, 2.0)
    assert found[3] == Question(id="line-7", question="one and one?")


@pytest.mark.parametrize(
    ("line", "complaint"),
    [
        ("{", "line 2: not JSON"),
        ("[]", "line 2: a list; allowed: a JSON object"),
        ('{"question": " "}', "line 2: question is ' '; allowed: a text"),
        ('{"question": "a", "fps": 0}', "line 2: fps is 0; allowed: a number above 0"),
        ('{"question": "a", "fps": true}', "line 2: fps is True"),
        ('{"question": "a", "images": ["0.png"], "frames": ["0.png"]}', "line 2: images and frames; allowed: one"),
        ('{"question": "a", "images": []}', "line 2: images is []; allowed: a list of file names"),
        ('{"question": "a", "images": "0.png"}', "line 2: images is '0.png'"),
        ('{"question": "a", "images": ["9.png"]}', "9.png is not there"),
        ('{"question": "a", "frames": "9"}', "line 2: frames: "),
        ('{"question": "a", "frames": [3]}', "line 2: frames is [3]"),
    ],
)
def test_bad_lines_are_named(files: Path, tmp_path: Path, line: str, complaint: str) -> None:
    path = files / "bad.jsonl"
    path.write_text('{"question": "a"}\n' + line, encoding="utf-8")
    with pytest.raises(ConfigError) as error:
        load_questions(str(path))
    assert complaint in str(error.value)
    assert str(path) in str(error.value)


def test_bad_names_and_pictures(files: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"did you mean 'video-mme'"):
        load_questions("video-mne")
    with pytest.raises(ConfigError, match=r"video-mme:frames=FOLDER"):
        load_questions("video-mme")
    with pytest.raises(ConfigError, match="text only"):
        load_questions("aime25:frames=x")
    (tmp_path / "empty.jsonl").write_text("\n", encoding="utf-8")
    with pytest.raises(ConfigError, match=r"empty\.jsonl: no questions"):
        load_questions(str(tmp_path / "empty.jsonl"))
    with pytest.raises(ConfigError, match=r"questions\.jsonl: cannot be read as a picture"):
        open_pictures([files / "questions.jsonl"])


def test_benchmarks_are_read_from_the_hub(files: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    row = {"question": "q", "options": ["A. x", "B. y"], "dataset": "arkitscenes"}
    row |= {source.video: "frames" for source in BENCHMARKS.values() if source.video}
    asked = []

    def rows(part):
        asked.append((part.name, part.config, part.split))
        return iter([row, {**row, "dataset": "scannet"}])

    monkeypatch.setattr("real.vision.data.hub_rows", rows)
    found = load_questions(f"video-mme:frames={files}")
    assert found[0].question == "q\nA. x\nB. y"
    assert len(found[0].frames) == 4
    assert len(load_questions(f"arkitscenes:frames={files}")) == 1
    assert len(load_questions(f"mmbench-video:frames={files}")) == 2
    assert [question.id for question in load_questions("aime25")][::2] == ["AIME2025-I-0", "AIME2025-II-0"]
    assert asked[0] == ("lmms-lab/Video-MME", "videomme", "test")
    with pytest.raises(ConfigError, match=r"row 0: .*frames is no folder"):
        load_questions(f"video-mme:frames={files / 'nowhere'}")
    row.pop("question")
    with pytest.raises(ConfigError, match=r"row 0: no column question"):
        load_questions("aime25")


@functools.cache
def encoder(name: str) -> Encoder:
    return Encoder(vision_model(name), tokenizer(name), pictures(name))


@pytest.mark.parametrize("name", CLASSES)
def test_questions_become_prompts_that_the_model_takes(name: str, files: Path) -> None:
    for question in load_questions(str(files)):
        prompt = encoder(name)(question)
        text = tokenizer(name).convert_ids_to_tokens(prompt.ids.tolist())
        assert "".join(text).startswith("u:")
        assert "".join(text).endswith(f"{question.question} a:")
        online = OnlineController(random_lengths(), seed=1)
        decode(
            Target(vision_model(name).text),
            PromptLookupDrafter(max_draft_len=3),
            online,
            prompt,
            Settings(max_new_tokens=3),
        )
        if question.frames and name == "qwen3_vl":
            assert "<0.1 seconds>" in "".join(text) if question.fps == 4 else "<0.2 seconds>" in "".join(text)


@pytest.mark.parametrize("name", ["llava_next", "llava"])
def test_prompts_are_those_of_the_librarys_processor(name: str, files: Path) -> None:
    """Of the classes whose processors need no torchvision."""
    from transformers import LlavaNextProcessor, LlavaProcessor

    kind = LlavaNextProcessor if name == "llava_next" else LlavaProcessor
    made = kind(
        processor(name),
        tokenizer(name),
        patch_size=PATCH,
        vision_feature_select_strategy="default",
        num_additional_image_tokens=1,
        image_token=token_of(name, IMAGE),
    )
    question = load_questions(str(files))[0]
    text = tokenizer(name).apply_chat_template(
        [{"role": "user", "content": [{"type": "image"}] * 2 + [{"type": "text", "text": question.question}]}],
        add_generation_prompt=True,
        tokenize=False,
    )
    want = made(images=open_pictures(question.images), text=text, return_tensors="pt")
    prompt = encoder(name)(question)
    assert prompt.ids.tolist() == want["input_ids"][0].tolist()
    for key, value in prompt.inputs.items():
        assert torch.equal(value, want[key]), key


def test_a_model_is_loaded_from_a_folder(files: Path, tmp_path: Path) -> None:
    model = vision_model("qwen2_5_vl")
    model.whole.save_pretrained(tmp_path)
    tokenizer("qwen2_5_vl").save_pretrained(tmp_path)
    processor("qwen2_5_vl").save_pretrained(tmp_path)
    (tmp_path / "video_preprocessor_config.json").write_text(json.dumps({"size": FRAME_SIZE}), encoding="utf-8")
    loaded = load_vision(str(tmp_path), device="cpu")
    assert loaded.stop_ids == (STOP,)
    for question in load_questions(str(files)):
        ours, theirs = loaded.encode(question), encoder("qwen2_5_vl")(question)
        assert ours.ids.tolist() == theirs.ids.tolist()
        assert all(torch.equal(ours.inputs[key], value) for key, value in theirs.inputs.items())
    assert torch.equal(loaded.model.lm_head.weight, model.text.lm_head.weight)
    with pytest.raises(ConfigError, match="is no vision-language model known here"):
        VisionModel(tiny_llama())


def test_prompts_that_do_not_fit_are_refused() -> None:
    model, text = vision_model("qwen2_5_vl"), prompt_ids(1) % 50 + 3
    image = torch.tensor([IMAGE])
    seen = pictures("qwen2_5_vl").images([picture(8, 8)])
    with pytest.raises(ConfigError, match="1 visual tokens of kind image and no pixels"):
        model.prompt(torch.cat([image, text]))
    with pytest.raises(ConfigError, match="0 visual tokens of kind image and pixel_values"):
        model.prompt(text, seen.inputs)
    with pytest.raises(ConfigError, match="takes no image_sizes"):
        model.prompt(text, {"image_sizes": torch.ones(1)})
    with pytest.raises(ConfigError, match="ends with a visual token"):
        vision_model("llava").prompt(torch.cat([text, image]), {"pixel_values": torch.zeros(1, 3, SIDE, SIDE)})
    wrong = vision_model("llava").prompt(torch.cat([image, text]), {"pixel_values": torch.zeros(1, 3, SIDE, SIDE)})
    with pytest.raises(ConfigError, match="cannot take these pictures in"):
        Target(vision_model("llava").text).start(wrong, 64)


@pytest.mark.parametrize("name", ["qwen2_5_vl", "qwen3_vl"])
def test_tensors_are_those_of_the_librarys_processor(name: str, files: Path, tmp_path: Path) -> None:
    """Where torchvision imports beside this torch, which it does not with PyPI's for the CPU build."""
    pytest.importorskip("torchvision", exc_type=ImportError)
    from transformers import Qwen2_5_VLProcessor, Qwen2VLVideoProcessor, Qwen3VLProcessor, Qwen3VLVideoProcessor

    kinds = (
        (Qwen2_5_VLProcessor, Qwen2VLVideoProcessor)
        if name == "qwen2_5_vl"
        else (Qwen3VLProcessor, Qwen3VLVideoProcessor)
    )
    like = processor(name)
    same = {"patch_size": PATCH, "merge_size": 2, "size": FRAME_SIZE, "do_sample_frames": False}
    norm = {"image_mean": like.image_mean, "image_std": like.image_std}
    made = kinds[0](like, tokenizer(name), kinds[1](**same, **norm, cap_pixels_per_frame=False))
    vision_model(name).whole.save_pretrained(tmp_path)
    made.save_pretrained(tmp_path)
    library = library_processor(str(tmp_path))
    for question in load_questions(str(files))[:2]:
        kind = "video" if question.frames else "image"
        shown = open_pictures(question.frames or question.images)
        turns = [{"type": kind}] * (1 if question.frames else len(shown))
        text = tokenizer(name).apply_chat_template(
            [{"role": "user", "content": [*turns, {"type": "text", "text": question.question}]}],
            add_generation_prompt=True,
            tokenize=False,
        )
        frames = np.stack([np.asarray(frame).transpose(2, 0, 1) for frame in shown])
        about = {"fps": question.fps, "total_num_frames": len(shown), "frames_indices": list(range(len(shown)))}
        given = {"videos": [frames], "video_metadata": [about]} if question.frames else {"images": shown}
        want = library(text=[text], return_tensors="pt", **given)
        prompt = encoder(name)(question)
        assert prompt.ids.tolist() == want["input_ids"][0].tolist()
        for key, value in prompt.inputs.items():
            # Bicubic resizing of tensors and of PIL images round differently: a level or two of 255.
            assert torch.allclose(value.float(), torch.as_tensor(want[key]).float(), atol=0.05), key
