"""How alike hidden states are: the measure of cosSim, KnapSpec and CLaSp, in float32 whatever the model computes in."""

from __future__ import annotations

from typing import Final

import torch
from torch.nn.functional import cosine_similarity

EPS: Final = 1e-8
"""Smallest product of norms that is divided by, as released."""


def mean_cosine(states: torch.Tensor, others: torch.Tensor) -> torch.Tensor:
    """float32[...]: cosines over the last axis, averaged over the one before it.

    Args:
        states: float[..., T, H].
        others: float[..., T, H], or what broadcasts to it.
    """
    return cosine_similarity(states.float(), others.float(), dim=-1, eps=EPS).mean(dim=-1)


def importance_rows(states: torch.Tensor) -> torch.Tensor:
    """float32[passes, L] importances of every block in passes over one token each: 1 - the cosine between what it read
    and what it wrote (SP2ec's r_b, turned round).

    Args:
        states: float[passes, L + 1, H], what entered each of the L blocks and what left the last one.
    """
    inputs, outputs = states[:, :-1].float(), states[:, 1:].float()
    return 1 - cosine_similarity(inputs, outputs, dim=-1, eps=EPS)
