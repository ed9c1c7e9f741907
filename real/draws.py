"""Random numbers of a decode: every one keyed by what it decides, none drawn from a shared generator.

Owns the keys and the two ways a number is used: how many draft tokens are accepted in a row, and which token a
distribution yields. The same seed therefore gives the same output whatever else runs, in whatever order, and all
controllers meet the same luck at the same output position.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np
import torch

from specsim.rng import uniform_stream

# Streams 0 and 1 belong to the simulator: acceptance (specsim.acceptance) and controllers (specsim.kernel).
DRAFT_STREAM, ACCEPT_STREAM, TOKEN_STREAM = 2, 3, 4


class Draws(Protocol):
    """Where a decode takes its luck from. `pos` counts output tokens; positions on the device of what is asked."""

    def leading(self, probabilities: torch.Tensor, pos: int) -> torch.Tensor:
        """int64 scalar: leading successes of independent trials, float64[d] probabilities, at pos, pos + 1, ..."""
        ...

    def token(self, weights: torch.Tensor, pos: int, ahead: torch.Tensor, width: int) -> torch.Tensor:
        """int64 scalar: a token drawn from float[V] weights for position pos + ahead, 0 <= ahead < width."""
        ...

    def drafted(self, weights: torch.Tensor, pos: int) -> torch.Tensor:
        """int64[n]: draft tokens for the n positions from pos on, each drawn from its row of float[n, V] weights."""
        ...


class KeyedDraws:
    """Numbers that are pure functions of (seed, request, position, purpose).

    A number may serve twice: a draft token that was never verified, and the one drafted anew at the same position in a
    later round. The output's law does not change, because the first one was dropped by decisions that did not look at
    it (`real.loop` refuses controllers that do, when drafts are sampled).

    Args:
        seed: 0 .. 2^63 - 1.
        request: number of the request.
    """

    def __init__(self, seed: int, request: int) -> None:
        self.seed, self.request = seed, request

    def leading(self, probabilities: torch.Tensor, pos: int) -> torch.Tensor:
        uniforms = self._uniforms(ACCEPT_STREAM, pos, len(probabilities), probabilities.device)
        return (uniforms < probabilities).long().cumprod(dim=0).sum()

    def token(self, weights: torch.Tensor, pos: int, ahead: torch.Tensor, width: int) -> torch.Tensor:
        return pick(weights, self._uniforms(TOKEN_STREAM, pos, width, weights.device)[ahead])

    def drafted(self, weights: torch.Tensor, pos: int) -> torch.Tensor:
        return pick(weights, self._uniforms(DRAFT_STREAM, pos, len(weights), weights.device))

    def _uniforms(self, stream: int, pos: int, count: int, device: torch.device) -> torch.Tensor:
        numbers = [uniform_stream(self.seed, stream, self.request, pos + i, 0) for i in range(count)]
        return torch.from_numpy(np.array(numbers, dtype=np.float64)).to(device, non_blocking=True)


def pick(weights: torch.Tensor, uniform: torch.Tensor) -> torch.Tensor:
    """The token at quantile `uniform` (float64[...], in [0, 1)) of float[..., V] weights; never one of weight 0.

    Weights of NaN yield some token in 0..V-1, so that whoever looks at its probability sees the NaN.

    Sums in float64: in float32 the tail of a vocabulary of 150,000 tokens would be lost to rounding.

    Returns:
        int64[...]. On a CPU a row's token is the same alone and among others: sums run along each row, from the left.
    """
    cumulative = weights.double().cumsum(dim=-1)
    total = cumulative[..., -1:].contiguous()
    found = torch.searchsorted(cumulative, uniform[..., None] * total, right=True)
    # A product rounded up to the very end would point past the last token; the last one of positive weight is meant.
    last = torch.searchsorted(cumulative, total)
    return torch.minimum(found, last)[..., 0].clamp(max=weights.shape[-1] - 1)
