"""Two outputs that should be equal and are not: where they part, and whether the target could not tell.

In bfloat16 a pass over several tokens rounds otherwise than one over a single token, so that two nearly equal logits
may change places; what follows is then another text. Such a difference is no error of the decode loop, any other one
is. Owns the test that tells them apart. Knows nothing about drafting.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from real.cache import KVCache, forward
from real.vision.prompt import VisionPrompt, ids_of, seen_of


@dataclass(frozen=True, kw_only=True)
class Difference:
    """Where two outputs part, and the target's logits there, after the text they share.

    Args:
        place: index of the first output token that differs.
        expected, found: the tokens there; None where an output has ended.
        gap: logit of `expected` minus that of `found`, in the model's own precision; NaN when one has ended.
        exact_gap: the same in the wider precision.
        noise: how far the model's own precision puts any logit there from the wider one.
    """

    place: int
    expected: int | None
    found: int | None
    gap: float
    exact_gap: float
    noise: float

    @property
    def near_tie(self) -> bool:
        """Whether rounding explains it: two logits, each off by up to `noise`, can change places."""
        return abs(self.exact_gap) <= 2 * self.noise

    def __str__(self) -> str:
        kind = "near tie" if self.near_tie else "NOT a near tie"
        return (
            f"output token {self.place}: {self.expected} expected, {self.found} found; logit gap {self.gap:.4g}, "
            f"{self.exact_gap:.4g} in wider precision, rounding {self.noise:.2g}: {kind}"
        )


def first_difference(expected: Sequence[int], found: Sequence[int]) -> int | None:
    """Index of the first token that differs; the shorter length when one output begins with the other."""
    for place, (one, other) in enumerate(zip(expected, found, strict=False)):
        if one != other:
            return place
    return None if len(expected) == len(found) else min(len(expected), len(found))


def exact_twin(model: Any) -> Any:
    """A copy of a model in wider precision: float64 of float32, float32 of anything narrower."""
    wider = torch.float64 if next(model.parameters()).dtype == torch.float32 else torch.float32
    return copy.deepcopy(model).to(wider)


def explain(
    model: Any, exact: Any, prompt: torch.Tensor | VisionPrompt, expected: Sequence[int], found: Sequence[int]
) -> Difference | None:
    """The first difference of two greedy outputs of one target; None when they are equal.

    Args:
        model: the target.
        exact: the same weights in wider precision, see `exact_twin`.
        prompt: int64[P] that both outputs continue, or with pictures.
        expected: output of plain decoding.
        found: the other output.
    """
    place = first_difference(expected, found)
    if place is None:
        return None
    one, other = (output[place] if place < len(output) else None for output in (expected, found))
    own, wide = (_logits_after(which, prompt, expected[:place]) for which in (model, exact))
    gaps = [float("nan")] * 2 if one is None or other is None else [float(x[one] - x[other]) for x in (own, wide)]
    noise = float((own - wide).abs().max())
    return Difference(place=place, expected=one, found=other, gap=gaps[0], exact_gap=gaps[1], noise=noise)


@torch.inference_mode()
def _logits_after(model: Any, prompt: torch.Tensor | VisionPrompt, output: Sequence[int]) -> torch.Tensor:
    """float64[V] logits of what follows a prompt and an output, by one pass over both."""
    tokens, seen = torch.tensor(list(output), device=ids_of(prompt).device, dtype=torch.int64), seen_of(prompt)
    ids = torch.cat([ids_of(prompt), tokens])
    shown = None if seen is None else seen.followed_by(tokens)
    return forward(model, ids, KVCache(len(ids)), keep=1, prompt=shown)[-1].double()
