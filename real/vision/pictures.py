"""Images and video frames as tensors of a model's inputs, by PIL image processors; no torchvision.

Owns the way from picture files to pixels, and how many visual tokens they take. Video frames go through the image
processor too: where a model has a format for videos (Qwen's pairs of frames, LLaVA-NeXT-Video's pooled frames), they
are put into it here; for other models they are images one after the other.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from PIL import Image

from real.places import reason_of
from specsim.errors import ConfigError


@dataclass(frozen=True, kw_only=True)
class Seen:
    """Pictures as a model takes them.

    Args:
        inputs: tensors of the model's inputs.
        counts: visual tokens of each image; of a video, of each step of time.
        video: whether they are one video in the model's own format for videos.
    """

    inputs: dict[str, torch.Tensor]
    counts: tuple[int, ...]
    video: bool = False


def open_pictures(paths: Sequence[Path]) -> list[Image.Image]:
    """Pictures in RGB.

    Raises:
        ConfigError: a file that is no picture, by name.
    """
    found = []
    for path in paths:
        try:
            with Image.open(path) as picture:
                found.append(picture.convert("RGB"))
        except (OSError, SyntaxError, ValueError, Image.DecompressionBombError) as error:
            raise ConfigError(f"{path}: cannot be read as a picture ({reason_of(error)}); PIL has to know it") from None
    return found


class Pictures:
    """Makes a model's inputs of pictures.

    Args:
        config: of the vision-language model.
        processor: its image processor, of the library's PIL backend.
        frame_size: of Qwen's models: pixels of a frame (2.5), or of a whole video (3), as the library's video
            processors have them: `shortest_edge`, `longest_edge`.
        most: visual tokens that the pictures of a prompt may take together; Qwen's are made smaller to fit, of others
            more are refused. None: as many as they have.
    """

    def __init__(self, config: Any, processor: Any, *, frame_size: dict[str, int], most: int | None = None) -> None:
        if most is not None and most < 1:
            raise ConfigError(f"visual tokens {most}: allowed: 1 or more")
        self._config, self._processor, self._most = config, processor, most
        self._frame_size, self._kind = frame_size, str(config.model_type)
        self._qwen = self._kind.startswith("qwen")

    def within(self, most: int) -> Pictures:
        """The same with another bound."""
        return Pictures(self._config, self._processor, frame_size=self._frame_size, most=most)

    def images(self, pictures: Sequence[Image.Image]) -> Seen:
        """Images of any sizes, at least one.

        Raises:
            ConfigError: more visual tokens than allowed, or pictures the processor refuses.
        """
        if self._qwen:
            out = self._qwen_patches(pictures, dict(self._processor.size), len(pictures))
            grids = out["image_grid_thw"]
            inputs = {"pixel_values": out["pixel_values"], "image_grid_thw": grids}
            return self._checked(Seen(inputs=inputs, counts=tuple((grids.prod(1) // self._merged).tolist())))
        out = self._processed(self._processor, pictures)
        pixels = out["pixel_values"]
        if self._kind == "llava":
            each = self._grid(pixels)[0] * self._grid(pixels)[1] + self._extra
            return self._checked(Seen(inputs={"pixel_values": pixels}, counts=(each,) * len(pictures)))
        inputs = {"pixel_values": pixels, "image_sizes": out["image_sizes"]}
        return self._checked(Seen(inputs=inputs, counts=tuple(map(self._tiled, inputs["image_sizes"].tolist()))))

    def frames(self, pictures: Sequence[Image.Image], fps: float) -> Seen:
        """Frames of one video, all of one size.

        Args:
            pictures: at least one.
            fps: frames per second of video.

        Raises:
            ConfigError: as for `images`, or frames of different sizes.
        """
        sizes = {picture.size for picture in pictures}
        if len(sizes) > 1:
            raise ConfigError(f"frames of sizes {', '.join(f'{w}x{h}' for w, h in sorted(sizes))}; allowed: one size")
        if self._qwen:
            return self._checked(self._qwen_video(pictures, fps))
        if self._kind == "llava_next_video":
            return self._checked(self._pooled_video(pictures))
        return self.images(pictures)

    @property
    def _merged(self) -> int:
        return int(self._config.vision_config.spatial_merge_size) ** 2

    @property
    def _extra(self) -> int:
        """The tower's class token, unless it is dropped."""
        return int(self._config.vision_feature_select_strategy == "full")

    def _grid(self, pixels: torch.Tensor) -> tuple[int, int]:
        patch = int(self._config.vision_config.patch_size)
        return pixels.shape[-2] // patch, pixels.shape[-1] // patch

    def _tiled(self, size: Sequence[int]) -> int:
        """Visual tokens of a LLaVA-NeXT image of (height, width): the whole in small, tiles without their padding, and
        a newline for each row of them."""
        from transformers.image_processing_utils import select_best_resolution

        height, width = size
        side = int(self._config.vision_config.image_size)
        base = side // int(self._config.vision_config.patch_size)
        tiles = select_best_resolution((height, width), self._config.image_grid_pinpoints)
        rows, columns = (base * (int(edge) // side) for edge in tiles)
        if width / height > columns / rows:
            rows -= 2 * ((rows - int(round(height * (columns / width), 7))) // 2)
        else:
            columns -= 2 * ((columns - int(round(width * (rows / height), 7))) // 2)
        return base * base + self._extra + rows * (columns + 1)

    def _qwen_patches(self, pictures: Sequence[Image.Image], size: Mapping[str, float], share: int) -> dict[str, Any]:
        """Patches of pictures, each of which may take 1 / share of all visual tokens."""
        # Whole numbers: pixels are compared with them, and are whole.
        low, high = math.ceil(size["shortest_edge"]), math.floor(size["longest_edge"])
        if self._most is not None:
            block = (int(self._processor.patch_size) ** 2) * self._merged
            high = min(high, max(self._most // share, 1) * block)
        return self._processed(self._processor, pictures, size={"shortest_edge": min(low, high), "longest_edge": high})

    def _qwen_video(self, pictures: Sequence[Image.Image], fps: float) -> Seen:
        """Steps of `temporal_patch_size` frames; the last frame fills up the last step."""
        together = int(self._config.vision_config.temporal_patch_size)
        filled = [*pictures, *[pictures[-1]] * (-len(pictures) % together)]
        steps = len(filled) // together
        size: dict[str, float] = dict(self._frame_size)
        if self._kind == "qwen3_vl":  # says how many pixels all frames may have
            size = {edge: pixels / len(filled) for edge, pixels in size.items()}
        out = self._qwen_patches(filled, size, steps)
        _, height, width = out["image_grid_thw"][0].tolist()
        # An image's patch is that of a video that stands still: of each frame one of the equal copies is taken.
        patches = out["pixel_values"].view(steps, together, height * width, 3, together, -1)
        moving = torch.stack([patches[:, frame, :, :, frame] for frame in range(together)], dim=3)
        inputs = {
            "pixel_values_videos": moving.reshape(steps * height * width, -1),
            "video_grid_thw": torch.tensor([[steps, height, width]]),
        }
        if self._kind == "qwen2_5_vl":
            inputs["second_per_grid_ts"] = torch.tensor([together / fps])
        return Seen(inputs=inputs, counts=(height * width // self._merged,) * steps, video=True)

    def _pooled_video(self, pictures: Sequence[Image.Image]) -> Seen:
        from transformers.models.clip.image_processing_pil_clip import CLIPImageProcessorPil

        like = self._processor
        same = ("size", "crop_size", "resample", "image_mean", "image_std", "rescale_factor", "do_center_crop")
        plain = CLIPImageProcessorPil(**{name: getattr(like, name) for name in same})
        pixels = self._processed(plain, pictures)["pixel_values"]
        height, width = (edge // int(self._config.spatial_pool_stride) for edge in self._grid(pixels))
        inputs = {"pixel_values_videos": pixels[None]}
        return Seen(inputs=inputs, counts=(height * width,) * len(pictures), video=True)

    def _processed(self, processor: Any, pictures: Sequence[Image.Image], **how: Any) -> dict[str, Any]:
        try:
            return dict(processor(images=list(pictures), return_tensors="pt", **how))
        except (TypeError, ValueError) as error:
            sizes = ", ".join(f"{picture.width}x{picture.height}" for picture in pictures[:4])
            raise ConfigError(
                f"the image processor refuses pictures of {sizes} pixels: {reason_of(error)}; give it other sizes"
            ) from error

    def _checked(self, seen: Seen) -> Seen:
        if self._most is not None and sum(seen.counts) > self._most:
            raise ConfigError(
                f"the pictures take {sum(seen.counts)} visual tokens, allowed are {self._most}; show fewer of them"
            )
        return seen
