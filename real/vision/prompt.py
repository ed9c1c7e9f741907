"""A prompt with pictures as the decode loop takes it.

Owns what a target needs to know of such a prompt besides its token ids. Knows no model and no file.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import torch

from specsim.errors import ConfigError


@dataclass(frozen=True, kw_only=True)
class VisionPrompt:
    """Token ids, pictures, and where rotary positions of the text go on after the pictures.

    Rotary positions of visual tokens count time, rows and columns of the pictures (M-RoPE), so that a picture of n
    tokens takes fewer than n positions; text behind it counts on from there. Token i of the text, for i >= P - 1, is at
    position i + shift on all three axes, whoever reads it: target, draft pass or node of a tree (at its depth).

    Args:
        ids: int64[P], placeholders of visual tokens included; the last one is text, since the decode loop reads it by
            its id alone.
        inputs: what the model takes besides, such as `pixel_values` and `image_grid_thw`; empty: a text prompt.
        visual: bool[P], True at visual tokens.
        positions: int64[3, P] rotary positions (time, row, column); None: 0, 1, 2, ..., as other models count.

    Raises:
        ConfigError: shapes that do not belong together, or a prompt that ends with a visual token.
    """

    ids: torch.Tensor
    inputs: Mapping[str, torch.Tensor] = field(default_factory=dict)
    visual: torch.Tensor
    positions: torch.Tensor | None = None

    def __post_init__(self) -> None:
        if self.ids.ndim != 1 or self.visual.shape != self.ids.shape:
            raise ConfigError(
                f"prompt of shape {tuple(self.ids.shape)} with visual tokens marked in shape "
                f"{tuple(self.visual.shape)}: allowed: int64[P] and bool[P]"
            )
        if self.positions is not None and self.positions.shape != (3, len(self.ids)):
            raise ConfigError(
                f"rotary positions of shape {tuple(self.positions.shape)} for {len(self.ids)} tokens: allowed: "
                f"int64[3, {len(self.ids)}]"
            )
        if len(self.ids) and bool(self.visual[-1]):
            raise ConfigError("the prompt ends with a visual token; allowed: text at its end, such as a question")

    def __len__(self) -> int:
        return len(self.ids)

    def followed_by(self, ids: torch.Tensor) -> VisionPrompt:
        """The prompt with text (int64[n]) behind it, at the positions where decoding it would put it."""
        positions = self.positions
        if positions is not None:
            after = positions[:, -1:] + 1 + torch.arange(len(ids), device=ids.device)
            positions = torch.cat([positions, after], dim=1)
        visual = torch.cat([self.visual, self.visual.new_zeros(len(ids))])
        return replace(self, ids=torch.cat([self.ids, ids]), visual=visual, positions=positions)

    @property
    def shift(self) -> int:
        """Rotary position of the last token, and of every later one, less its place in the text."""
        return 0 if self.positions is None else int(self.positions[0, -1]) + 1 - len(self.ids)


def seen_of(prompt: torch.Tensor | VisionPrompt) -> VisionPrompt | None:
    """The prompt, where it is one of `real.vision`; None for token ids alone."""
    return prompt if isinstance(prompt, VisionPrompt) else None


def ids_of(prompt: torch.Tensor | VisionPrompt) -> torch.Tensor:
    """int64[P] token ids of a prompt of either kind."""
    return prompt.ids if isinstance(prompt, VisionPrompt) else prompt
