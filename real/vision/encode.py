"""Questions as prompts: chat template, placeholders repeated as often as the pictures have visual tokens, token ids.

Owns the text around pictures, as the library's processors write it: what `AutoProcessor` gives, without torchvision.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import torch

from real.vision.data import Question
from real.vision.model import VisionModel
from real.vision.pictures import Pictures, Seen, open_pictures
from real.vision.prompt import VisionPrompt
from specsim.errors import ConfigError


class Encoder:
    """Makes prompts of questions for one model.

    Args:
        model: what they are for.
        tokenizer: its tokenizer, which knows its placeholders.
        pictures: its pictures' way to pixels.
        template: chat template; None: the tokenizer's own, or, where that has none, placeholders and then the question.
    """

    def __init__(self, model: VisionModel, tokenizer: Any, pictures: Pictures, template: str | None = None) -> None:
        self._model, self._tokenizer, self._pictures = model, tokenizer, pictures
        self._template = template or getattr(tokenizer, "chat_template", None)
        self._start, self._end = (
            tokenizer.convert_ids_to_tokens(getattr(model.whole.config, name, None) or 0)
            for name in ("vision_start_token_id", "vision_end_token_id")
        )

    def __call__(self, question: Question) -> VisionPrompt:
        """The prompt of a question, on the model's device.

        Raises:
            ConfigError: pictures that cannot be read or are too many, or a template that leaves them out.
        """
        seen = self._seen(question)
        if seen is None:
            return self._model.prompt(self._ids(self._text(question, "", 0)))
        place = self._model.video_id if seen.video else self._model.image_id
        token = self._tokenizer.convert_ids_to_tokens(place)
        count = 1 if seen.video else len(seen.counts)
        text = self._text(question, token, count, video=seen.video)
        written = text.count(token)
        if written != count:
            raise ConfigError(
                f"question {question.id!r}: the chat template wrote {token} {written} times for {count} pictures; the "
                "question must not hold it, and the template has to know pictures of this kind"
            )
        runs = self._runs(seen, token, question)
        return self._model.prompt(self._ids(re.sub(re.escape(token), lambda match: next(runs), text)), seen.inputs)

    def _seen(self, question: Question) -> Seen | None:
        try:
            if question.frames:
                return self._pictures.frames(open_pictures(question.frames), question.fps)
            return self._pictures.images(open_pictures(question.images)) if question.images else None
        except ConfigError as error:
            raise ConfigError(f"question {question.id!r}: {error}") from error

    def _runs(self, seen: Seen, token: str, question: Question) -> Iterator[str]:
        """What takes the place of each placeholder."""
        if not seen.video:
            yield from (token * count for count in seen.counts)
        elif self._model.kind.label == "Qwen3-VL":
            # Steps stand apart, each after its time: the mean of its first and last frame's.
            together = int(self._model.whole.config.vision_config.temporal_patch_size)
            latest = len(question.frames) - 1
            yield "".join(
                f"<{(first + min(first + together - 1, latest)) / 2 / question.fps:.1f} seconds>"
                f"{self._start}{token * count}{self._end}"
                for first, count in zip(range(0, latest + 1, together), seen.counts, strict=True)
            )
        else:
            yield token * sum(seen.counts)

    def _text(self, question: Question, token: str, count: int, *, video: bool = False) -> str:
        if self._template is None:
            placeholder = f"{self._start}{token}{self._end}" if self._model.kind.rotary and token else token
            return "".join([*[f"{placeholder}\n"] * count, question.question])
        content: list[dict[str, str]] = [{"type": "video" if video else "image"}] * count
        turns = [{"role": "user", "content": [*content, {"type": "text", "text": question.question}]}]
        return self._tokenizer.apply_chat_template(
            turns, chat_template=self._template, add_generation_prompt=True, tokenize=False
        )

    def _ids(self, text: str) -> torch.Tensor:
        begin = getattr(self._tokenizer, "bos_token", None)
        # A template that writes the beginning itself must not get it twice.
        begun = bool(begin) and text.startswith(begin)
        ids = self._tokenizer(text, add_special_tokens=not begun)["input_ids"]
        if not ids:
            raise ConfigError("the prompt has no tokens; give it a text")
        return torch.tensor(ids, dtype=torch.int64)
