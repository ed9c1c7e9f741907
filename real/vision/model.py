"""One adapter for vision-language models: the language model by itself, and prompts with pictures for it.

Owns which classes are known, where their parts are, and which positions their visual tokens take. Merging of pictures
into embeddings, and the features that Qwen3-VL adds in its first layers, are left to the library's own forward pass
over the prompt; every later pass is one of the language model over token ids.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from transformers.modeling_outputs import CausalLMOutputWithPast

from real.cache import cache_argument
from real.places import reason_of
from real.vision.prompt import VisionPrompt
from specsim.errors import ConfigError

IMAGE_TYPE, VIDEO_TYPE = 1, 2  # how the library marks visual tokens where it works out their positions


@dataclass(frozen=True, kw_only=True)
class Kind:
    """What sets a class of models apart.

    Args:
        label: its usual name.
        images, videos: tensors of the model's inputs that go with images and with videos; the first is the pixels.
        positioning: those of them that decide positions. Empty: positions count tokens.
    """

    label: str
    images: tuple[str, ...]
    videos: tuple[str, ...] = ()
    positioning: tuple[str, ...] = ()

    @property
    def rotary(self) -> bool:
        """Whether visual tokens are at rotary positions of their own (M-RoPE)."""
        return bool(self.positioning)


_QWEN_IMAGES, _QWEN_VIDEOS = ("pixel_values", "image_grid_thw"), ("pixel_values_videos", "video_grid_thw")
KINDS: dict[str, Kind] = {
    "qwen2_5_vl": Kind(
        label="Qwen2.5-VL",
        images=_QWEN_IMAGES,
        videos=(*_QWEN_VIDEOS, "second_per_grid_ts"),
        positioning=("image_grid_thw", "video_grid_thw", "second_per_grid_ts"),
    ),
    "qwen3_vl": Kind(
        label="Qwen3-VL",
        images=_QWEN_IMAGES,
        videos=_QWEN_VIDEOS,
        positioning=("image_grid_thw", "video_grid_thw"),
    ),
    "llava_next": Kind(label="LLaVA-NeXT", images=("pixel_values", "image_sizes")),
    "llava_next_video": Kind(
        label="LLaVA-NeXT-Video", images=("pixel_values", "image_sizes"), videos=("pixel_values_videos",)
    ),
    "llava": Kind(label="LLaVA-1.5", images=("pixel_values",)),
}


class TextView(torch.nn.Module):
    """The language model inside a vision-language model, as a causal language model like Llama; shares every weight.

    Called with pictures (the inputs of `VisionPrompt`), it runs the whole model; without, the language model alone,
    which is the same for text: there is nothing to merge, and positions are always given.

    Args:
        whole: a vision-language model of one of `KINDS`.
    """

    def __init__(self, whole: Any) -> None:
        super().__init__()
        self.model, self.lm_head = whole.model.language_model, whole.get_output_embeddings()
        self.config = whole.config.get_text_config()
        self.generation_config = whole.generation_config
        self._whole = (whole,)  # in a tuple, so that the vision tower is no part of the language model

    def _apply(self, fn: Any, recurse: bool = True) -> TextView:
        # What moves or changes its precision takes the vision tower along.
        self._whole[0]._apply(fn, recurse)
        return self

    @property
    def device(self) -> torch.device:
        """Where the weights are, as transformers' models say it."""
        return self.lm_head.weight.device

    def get_input_embeddings(self) -> torch.nn.Module:
        """Of the language model; placeholders of visual tokens have rows too, which no prompt uses."""
        return self.model.get_input_embeddings()

    def get_output_embeddings(self) -> torch.nn.Module:
        """The head."""
        return self.lm_head

    def forward(
        self,
        input_ids: torch.Tensor | None = None,
        position_ids: torch.Tensor | None = None,
        attention_mask: Any = None,
        cache: Any = None,
        inputs_embeds: torch.Tensor | None = None,
        use_cache: bool = False,
        logits_to_keep: int = 0,
        **pictures: torch.Tensor,
    ) -> CausalLMOutputWithPast:
        """float[1, tokens, V] logits, as the library's causal language models give them.

        Raises:
            ConfigError: pictures that do not fit the prompt's visual tokens.
        """
        called: Any = self._whole[0] if pictures else self.model
        how: dict[str, Any] = {"position_ids": position_ids, "attention_mask": attention_mask, "use_cache": use_cache}
        if cache is not None:
            how[cache_argument(called)] = cache
        if not pictures:
            states = called(input_ids=input_ids, inputs_embeds=inputs_embeds, **how).last_hidden_state
            return CausalLMOutputWithPast(logits=self.lm_head(states[:, -logits_to_keep:]))
        try:
            return called(input_ids=input_ids, logits_to_keep=logits_to_keep, **how, **pictures)
        except ValueError as error:
            raise ConfigError(
                f"{type(called).__name__} cannot take these pictures in: {reason_of(error)}; make ids and pictures by "
                "one processor (`real.vision.encode`)"
            ) from error


class VisionModel:
    """A vision-language model whose language model decodes.

    Args:
        whole: a transformers model of one of `KINDS`.

    Attributes:
        kind: its class.
        text: what the decode loop, drafters and builders take for the target.
        image_id, video_id: placeholders in token ids; video_id is None where a class has none.

    Raises:
        ConfigError: another class.
    """

    def __init__(self, whole: Any) -> None:
        found = str(getattr(whole.config, "model_type", None))
        if found not in KINDS:
            raise ConfigError(
                f"{type(whole).__name__} (model_type {found!r}) is no vision-language model known here; allowed: "
                f"{', '.join(KINDS)}"
            )
        self.whole, self.kind, self.text = whole, KINDS[found], TextView(whole).eval()
        self.image_id: int = whole.config.image_token_id
        self.video_id: int | None = whole.config.video_token_id if self.kind.videos else None
        self._device = next(whole.parameters()).device

    def visual(self, ids: torch.Tensor) -> torch.Tensor:
        """bool[P], True at visual tokens of int64[P] ids."""
        return self._marks(ids) > 0

    def _marks(self, ids: torch.Tensor) -> torch.Tensor:
        marks = (ids == self.image_id).long() * IMAGE_TYPE
        return marks if self.video_id is None else marks + (ids == self.video_id).long() * VIDEO_TYPE

    def prompt(self, ids: torch.Tensor, inputs: Mapping[str, torch.Tensor] | None = None) -> VisionPrompt:
        """A prompt for `real.loop.decode`, on the model's device.

        Args:
            ids: int64[P] with as many placeholders as the pictures have tokens.
            inputs: tensors of the pictures, see `KINDS`; what the model does not take is refused.

        Raises:
            ConfigError: inputs of another class, placeholders without pictures or the other way round, or counts that
                differ.
        """
        given = {name: torch.as_tensor(value).to(self._device) for name, value in (inputs or {}).items()}
        allowed = (*self.kind.images, *self.kind.videos)
        strange = sorted(set(given) - set(allowed))
        if strange:
            raise ConfigError(f"{self.kind.label} takes no {', '.join(strange)}; allowed: {', '.join(allowed)}")
        ids = ids.to(self._device)
        marks = self._marks(ids)
        for what, mark, names in (("image", IMAGE_TYPE, self.kind.images), ("video", VIDEO_TYPE, self.kind.videos)):
            count, there = int((marks == mark).sum()), names[:1] and names[0] in given
            if bool(count) != bool(there):
                raise ConfigError(
                    f"the prompt has {count} visual tokens of kind {what} and {names[0] if there else 'no pixels'}; "
                    "make both by one processor (`real.vision.encode`)"
                )
        return VisionPrompt(ids=ids, inputs=given, visual=marks > 0, positions=self._positions(ids, marks, given))

    def _positions(self, ids: torch.Tensor, marks: torch.Tensor, given: dict[str, torch.Tensor]) -> torch.Tensor | None:
        """int64[3, P] rotary positions, or None where they count tokens."""
        if not self.kind.rotary or not given:
            return None
        grids = {name: given[name] for name in self.kind.positioning if name in given}
        try:
            found, _ = self.whole.model.get_rope_index(ids[None], mm_token_type_ids=marks[None], **grids)
        except (RuntimeError, StopIteration, ValueError) as error:
            raise ConfigError(
                f"{self.kind.label}: the grids of the pictures ("
                f"{', '.join(f'{name} {value.tolist()}' for name, value in grids.items())}) do not fit the prompt's "
                f"{int((marks > 0).sum())} visual tokens; make both by one processor (`real.vision.encode`)"
            ) from error
        return found[:, 0]
