"""Drafts begun at many places of texts: what the target would have answered, how slots weigh, what would be accepted.

Shared by all drafters. An anchor i is a text's last committed token, slot k = 1, 2, ... the k-th token after it. The
label of a slot is the target's own choice after the tokens before it; it is a greedy continuation of the anchor only as
long as the text itself went on with the target's choices, so in sampled texts slots after the first departure do not
count.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from real.loops import repeated
from real.training.target_states import Known


@dataclass(frozen=True)
class Slots:
    """Slots of anchors.

    Args:
        anchors: int64[B, A] places in the texts.
        labels: int64[B, A, S] the target's tokens.
        valid: bool[B, A, S] whether a slot counts.
        places: int64[B, A, S] places whose output of the target the labels are, clamped into the text.
    """

    anchors: torch.Tensor
    labels: torch.Tensor
    valid: torch.Tensor
    places: torch.Tensor


def slots_at(known: Known, anchors: torch.Tensor, count: int) -> Slots:
    """The `count` slots after each of int64[B, A] anchors."""
    places = anchors[:, :, None] + torch.arange(count, device=anchors.device)  # slot k is answered at anchor + k - 1
    inside = places < known.lengths[:, None, None]
    clamped = places.clamp(max=known.ids.shape[1] - 1)
    rows = torch.arange(len(anchors), device=anchors.device)[:, None, None]
    followed = known.agreed()[rows, clamped]
    followed[:, :, 0] = True  # the anchor is given, whoever chose it
    valid = inside & followed.cumprod(dim=-1).bool()
    return Slots(anchors, known.greedy[rows, clamped], valid, clamped)


def draw_anchors(known: Known, count: int, rng: np.random.Generator, loops: float = 1.0) -> torch.Tensor:
    """Places to begin drafts at, from the end of each beginning to the last but one token.

    Args:
        known: the texts.
        count: places in a text; some may be the same.
        rng: draws them.
        loops: chance of a place whose next token is in a loop (`repeated`), relative to others. A greedy text of a
            small model soon goes round in circles, which are quickly learned.

    Returns:
        int64[B, count], ascending in each text.
    """
    rows = []
    for ids, length, prompt_len in zip(known.ids, known.lengths.tolist(), known.prompt_lens.tolist(), strict=True):
        low, high = max(1, prompt_len - 1), length - 1
        chances = np.ones(max(1, high - low))
        if loops != 1.0:
            chances[repeated(ids[:length].tolist())[low + 1 : high + 1]] = loops
        sums = np.cumsum(chances)
        places = np.searchsorted(sums, rng.random(count) * sums[-1], side="right").clip(max=len(chances) - 1)
        rows.append(low + np.sort(places))
    return torch.from_numpy(np.stack(rows)).to(known.ids.device)


def path_weights(right: torch.Tensor, valid: torch.Tensor, lam: float) -> torch.Tensor:
    """float[..., S] weight of each slot for the expected accepted length.

    w_k = sum over j >= k of prod over s <= j of ((1 - lam) q_s + lam): a slot matters by what is reached through it.
    Source: vllm-project/speculators @c05b95b (path-aware weights, lam 0.5).

    Args:
        right: float[..., S], the drafter's probability of each label, without gradient.
        valid: bool[..., S]; what does not count weighs nothing, and nothing is reached beyond it.
        lam: in [0, 1]; 1: as many as are left.
    """
    reached = ((1 - lam) * right + lam).cumprod(dim=-1) * valid
    return reached.flip(-1).cumsum(dim=-1).flip(-1) * valid


def decayed_weights(valid: torch.Tensor, gamma: float) -> torch.Tensor:
    """float[..., S]: exp(-(k - 1) / gamma) where slots count."""
    return torch.exp(-torch.arange(valid.shape[-1], device=valid.device) / gamma) * valid


def accepted(chosen: torch.Tensor, slots: Slots) -> torch.Tensor:
    """int64[B, A]: how many of int64[B, A, S] drafted tokens a greedy target accepts."""
    return ((chosen == slots.labels) & slots.valid).cumprod(dim=-1).sum(dim=-1)


def walk(lengths: np.ndarray, prompt_len: int, total: int) -> list[tuple[int, int]]:
    """The rounds of a greedy decode of a greedy text, from what is accepted at every place.

    Args:
        lengths: int64[T], accepted tokens of a draft begun at each place.
        prompt_len: tokens of the beginning.
        total: tokens of the text.

    Returns:
        (anchor, tokens emitted) of each round.
    """
    rounds, at = [], prompt_len - 1
    while at < total - 1:
        emitted = min(int(lengths[at]) + 1, total - 1 - at)
        rounds.append((at, emitted))
        at += emitted
    return rounds
