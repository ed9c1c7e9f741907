"""Prompts with pictures: chat template, placeholders repeated as often as the pictures have visual tokens, token ids.

Owns the text around pictures, as the library's processors write it: what `AutoProcessor` gives, without torchvision.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from PIL import Image

from real.data import Prompt, ids_tensor, prompt_format, thinking_switch
from real.vision.data import PictureFiles
from real.vision.model import VisionModel
from real.vision.pictures import Pictures, Seen, open_pictures
from real.vision.prompt import VisionPrompt
from specsim.errors import ConfigError


class Encoder:
    """Makes a model's prompts of those of datasets.

    Args:
        model: what they are for.
        tokenizer: its tokenizer, which knows its placeholders; without a chat template, placeholders are followed by
            the text.
        pictures: its pictures' way to pixels.
    """

    def __init__(self, model: VisionModel, tokenizer: Any, pictures: Pictures) -> None:
        self._model, self._tokenizer, self.pictures = model, tokenizer, pictures
        self._start, self._end = (
            tokenizer.convert_ids_to_tokens(getattr(model.whole.config, name, None) or 0)
            for name in ("vision_start_token_id", "vision_end_token_id")
        )

    def __call__(self, prompt: Prompt, images: Sequence[Image.Image] = ()) -> VisionPrompt:
        """The prompt for the decode loop, on the model's device; with or without pictures.

        Args:
            prompt: its text, and the files of its pictures.
            images: shown instead of files.

        Raises:
            ConfigError: no tokens, pictures that cannot be read or are too many, a template that leaves them out, or a
                thinking mode that it does not know.
        """
        files = prompt.pictures or PictureFiles()
        if prompt.pictures is None and not images:
            return self._model.prompt(self._ids(prompt, self._text(prompt, "", 0)))
        seen = self._seen(prompt, files, images)
        place = self._model.video_id if seen.video else self._model.image_id
        token = self._tokenizer.convert_ids_to_tokens(place)
        count = 1 if seen.video else len(seen.counts)
        text = self._text(prompt, token, count, video=seen.video)
        written = text.count(token)
        if written != count:
            raise ConfigError(
                f"prompt {prompt.id!r}: the chat template wrote {token} {written} times for {count} pictures; the "
                "text must not hold it, and the template has to know pictures of this kind"
            )
        runs = self._runs(seen, token, files)
        text = re.sub(re.escape(token), lambda match: next(runs), text)
        return self._model.prompt(self._ids(prompt, text), seen.inputs)

    def _seen(self, prompt: Prompt, files: PictureFiles, images: Sequence[Image.Image]) -> Seen:
        try:
            if images:
                return self.pictures.images(images)
            if files.frames:
                return self.pictures.frames(open_pictures(files.frames), files.fps)
            return self.pictures.images(open_pictures(files.images))
        except ConfigError as error:
            raise ConfigError(f"prompt {prompt.id!r}: {error}") from error

    def _runs(self, seen: Seen, token: str, files: PictureFiles) -> Iterator[str]:
        """What takes the place of each placeholder."""
        if not seen.video:
            yield from (token * count for count in seen.counts)
        elif self._model.kind.label == "Qwen3-VL":
            # Steps stand apart, each after its time: the mean of its first and last frame's.
            together = int(self._model.whole.config.vision_config.temporal_patch_size)
            latest = len(files.frames) - 1
            yield "".join(
                f"<{(first + min(first + together - 1, latest)) / 2 / files.fps:.1f} seconds>"
                f"{self._start}{token * count}{self._end}"
                for first, count in zip(range(0, latest + 1, together), seen.counts, strict=True)
            )
        else:
            yield token * sum(seen.counts)

    def _text(self, prompt: Prompt, token: str, count: int, *, video: bool = False) -> str:
        switch = thinking_switch(self._tokenizer, prompt)
        if prompt_format(self._tokenizer) == "plain":
            placeholder = f"{self._start}{token}{self._end}" if self._model.kind.rotary and token else token
            return "".join([*[f"{placeholder}\n"] * count, prompt.text])
        content: list[dict[str, str]] = [{"type": "video" if video else "image"}] * count
        turns = [{"role": "user", "content": [*content, {"type": "text", "text": prompt.text}]}]
        return self._tokenizer.apply_chat_template(turns, add_generation_prompt=True, tokenize=False, **switch)

    def _ids(self, prompt: Prompt, text: str) -> torch.Tensor:
        begin = getattr(self._tokenizer, "bos_token", None)
        # A template that writes the beginning itself must not get it twice.
        begun = bool(begin) and text.startswith(begin)
        return ids_tensor(self._tokenizer(text, add_special_tokens=not begun)["input_ids"], prompt)
