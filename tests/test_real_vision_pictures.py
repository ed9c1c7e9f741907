"""Pictures, video frames and questions: tensors, numbers of visual tokens, text around them, and files on disk."""

from __future__ import annotations

import functools
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from real.data import Prompt, load_prompts
from real.drafters.prompt_lookup import PromptLookupDrafter
from real.loop import Settings, decode
from real.models import load_target
from real.target import Target
from real.vision.data import BENCHMARKS, PictureFiles
from real.vision.encode import Encoder
from real.vision.load import VisionLoaded
from real.vision.model import VisionModel
from real.vision.pictures import Pictures, open_pictures
from specsim.errors import ConfigError
from specsim.online import OnlineController
from tests.real_lossless import random_lengths
from tests.real_tiny import STOP, prompt_ids, tiny_llama
from tests.real_vision import IMAGE, PATCH, SIDE, vision_model
from tests.real_vision_files import FRAME_SIZE, picture, processor, save_questions, save_vision, token_of, tokenizer

CLASSES = ("qwen2_5_vl", "qwen3_vl", "llava_next", "llava_next_video", "llava")


@functools.cache
def pictures(name: str, most: int | None = None) -> Pictures:
    return Pictures(vision_model(name).whole.config, processor(name), frame_size=FRAME_SIZE, most=most)


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
    return save_questions(tmp_path_factory.mktemp("questions") / "set")


def test_questions_are_read_from_a_folder_and_from_a_file(files: Path) -> None:
    found = load_prompts(str(files))
    assert found == load_prompts(str(files / "questions.jsonl"))
    assert [question.id for question in found] == ["two", "line-3", "7", "line-7"]
    assert [prompt.text for prompt in found[1:3]] == ["what moves?"] * 2
    shown = [prompt.pictures for prompt in found]
    assert shown[0] == PictureFiles(images=(files / "0.png", files / "1.png"))
    frames = tuple(files / "frames" / f"{number:03}.png" for number in range(4))
    assert shown[1] == PictureFiles(frames=frames, fps=4.0)
    assert shown[2] == PictureFiles(frames=shown[0].images, fps=2.0)
    assert found[3] == Prompt("line-7", "one and one?")
    # What the files hold counts, and in which way they are shown; not what they are called.
    assert len({found.digest() for found in shown if found}) == 3
    assert PictureFiles(images=frames[:2]).digest() == shown[0].digest()


@pytest.mark.parametrize(
    ("line", "complaint"),
    [
        ("{", "line 2: not JSON"),
        ("[]", "line 2: no text in `prompt`"),
        ('{"question": " "}', "line 2: no text in `prompt`, `turns` or `question`"),
        ('{"question": "a", "frames": ["0.png"], "fps": 0}', "line 2: fps is 0; allowed: a number above 0"),
        ('{"question": "a", "frames": ["0.png"], "fps": true}', "line 2: fps is True"),
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
        load_prompts(str(path))
    assert complaint in str(error.value)
    assert str(path) in str(error.value)


def test_bad_names_and_pictures(files: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"did you mean 'video-mme'"):
        load_prompts("video-mne")
    with pytest.raises(ConfigError, match=r"video-mme:frames=FOLDER"):
        load_prompts("video-mme")
    with pytest.raises(ConfigError, match="text only"):
        load_prompts("aime25:frames=x")
    (tmp_path / "empty.jsonl").write_text("\n", encoding="utf-8")
    with pytest.raises(ConfigError, match=r"empty\.jsonl: no prompts"):
        load_prompts(str(tmp_path / "empty.jsonl"))
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
    found = load_prompts(f"video-mme:frames={files}")
    assert found[0].text == "q\nA. x\nB. y"
    assert found[0].pictures is not None
    assert len(found[0].pictures.frames) == 4
    assert len(load_prompts(f"arkitscenes:frames={files}")) == 1
    assert len(load_prompts(f"mmbench-video:frames={files}")) == 2
    assert [question.id for question in load_prompts("aime25")][::2] == ["AIME2025-I-0", "AIME2025-II-0"]
    assert asked[0] == ("lmms-lab/Video-MME", "videomme", "test")
    with pytest.raises(ConfigError, match=r"row 0: .*frames is no folder"):
        load_prompts(f"video-mme:frames={files / 'nowhere'}")
    row.pop("question")
    with pytest.raises(ConfigError, match=r"row 0: no column question"):
        load_prompts("aime25")


@functools.cache
def encoder(name: str) -> Encoder:
    return Encoder(vision_model(name), tokenizer(name), pictures(name))


@pytest.mark.parametrize("name", CLASSES)
def test_questions_become_prompts_that_the_model_takes(name: str, files: Path) -> None:
    for question in load_prompts(str(files)):
        prompt = encoder(name)(question)
        text = tokenizer(name).convert_ids_to_tokens(prompt.ids.tolist())
        assert "".join(text).startswith("u:")
        assert "".join(text).endswith(f"{question.text} a:")
        online = OnlineController(random_lengths(), seed=1)
        decode(
            Target(vision_model(name).text),
            PromptLookupDrafter(max_draft_len=3),
            online,
            prompt,
            Settings(max_new_tokens=3),
        )
        shown = question.pictures
        if shown is not None and shown.frames and name == "qwen3_vl":
            assert "<0.1 seconds>" in "".join(text) if shown.fps == 4 else "<0.2 seconds>" in "".join(text)


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
    question = load_prompts(str(files))[0]
    text = tokenizer(name).apply_chat_template(
        [{"role": "user", "content": [{"type": "image"}] * 2 + [{"type": "text", "text": question.text}]}],
        add_generation_prompt=True,
        tokenize=False,
    )
    want = made(images=open_pictures(question.pictures.images), text=text, return_tensors="pt")
    prompt = encoder(name)(question)
    assert prompt.ids.tolist() == want["input_ids"][0].tolist()
    for key, value in prompt.inputs.items():
        assert torch.equal(value, want[key]), key


def test_a_model_is_loaded_from_a_folder(files: Path, tmp_path: Path) -> None:
    model = vision_model("qwen2_5_vl")
    loaded = load_target(str(save_vision(tmp_path, "qwen2_5_vl")), device="cpu")
    assert isinstance(loaded, VisionLoaded)
    assert loaded.stop_ids == (STOP,)
    for question in load_prompts(str(files)):
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
    from transformers import (
        AutoProcessor,
        Qwen2_5_VLProcessor,
        Qwen2VLVideoProcessor,
        Qwen3VLProcessor,
        Qwen3VLVideoProcessor,
    )

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
    library = AutoProcessor.from_pretrained(tmp_path)
    for question in load_prompts(str(files))[:2]:
        kind = "video" if question.frames else "image"
        shown = open_pictures(question.frames or question.images)
        turns = [{"type": kind}] * (1 if question.frames else len(shown))
        text = tokenizer(name).apply_chat_template(
            [{"role": "user", "content": [*turns, {"type": "text", "text": question.text}]}],
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
