"""Muon for matrices and AdamW for everything else, as one optimizer, and the learning rate of a step.

Muon (Jordan et al. 2024, https://kellerjordan.github.io/posts/muon/) replaces a matrix's averaged gradient by the
nearest orthogonal matrix, found with five Newton-Schulz steps. torch.optim.Muon (torch 2.13) does the same matrix by
matrix; here all matrices of one shape are taken together, which a small deep model on a CPU needs, and both parts are
one optimizer, since Lightning counts every optimizer's step as a training step.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import torch

COEFFICIENTS = (3.4445, -4.7750, 2.0315)
STEPS = 5


def orthogonalize(matrices: torch.Tensor) -> torch.Tensor:
    """The [B, R, C] matrices with their singular values moved near 1, in bfloat16."""
    a, b, c = COEFFICIENTS
    x = matrices.bfloat16()
    tall = x.shape[1] > x.shape[2]
    if tall:
        x = x.mT
    x = x / (x.norm(dim=(1, 2), keepdim=True) + 1e-7)
    for _ in range(STEPS):
        gram = x @ x.mT
        x = a * x + (b * gram + c * gram @ gram) @ x
    return x.mT if tall else x


class MuonAdamW(torch.optim.Optimizer):
    """Two kinds of parameter groups: `kind` is muon (matrices only) or adamw.

    Args:
        groups: with params, kind and lr; a group may set weight_decay (0 by default).
        momentum: of Muon, in Nesterov's form.
        betas: of AdamW.
    """

    def __init__(
        self, groups: Iterable[dict[str, Any]], *, momentum: float = 0.95, betas: tuple[float, float] = (0.9, 0.95)
    ) -> None:
        kept = [group for group in groups if group["params"]]
        super().__init__(kept, {"weight_decay": 0.0, "momentum": momentum, "betas": betas})

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        """One update of every parameter that has a gradient."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            if group["weight_decay"]:
                for parameter in group["params"]:
                    parameter.mul_(1 - group["lr"] * group["weight_decay"])
            (self._muon if group["kind"] == "muon" else self._adamw)(group)
        return loss

    def _muon(self, group: dict[str, Any]) -> None:
        shapes: dict[torch.Size, list[torch.Tensor]] = {}
        for parameter in group["params"]:
            if parameter.grad is not None:
                shapes.setdefault(parameter.shape, []).append(parameter)
        for (rows, columns), parameters in shapes.items():
            updates = []
            for parameter in parameters:
                state = self.state[parameter]
                if not state:
                    state["average"] = torch.zeros_like(parameter)
                average = state["average"].lerp_(parameter.grad, 1 - group["momentum"])  # pyright: ignore
                updates.append(parameter.grad.lerp(average, group["momentum"]))  # pyright: ignore
            lr = group["lr"] * math.sqrt(max(1.0, rows / columns))
            for parameter, update in zip(parameters, orthogonalize(torch.stack(updates)), strict=True):
                parameter.add_(update, alpha=-lr)

    def _adamw(self, group: dict[str, Any]) -> None:
        first, second = group["betas"]
        for parameter in group["params"]:
            if parameter.grad is None:
                continue
            state = self.state[parameter]
            if not state:
                state["step"] = torch.zeros((), dtype=torch.float64)
                state["mean"], state["square"] = torch.zeros_like(parameter), torch.zeros_like(parameter)
            state["step"] += 1
            mean = state["mean"].lerp_(parameter.grad, 1 - first)
            square = state["square"].lerp_(parameter.grad.square(), 1 - second)
            count = float(state["step"])
            scale = (square / (1 - second**count)).sqrt_().add_(1e-8)
            parameter.addcdiv_(mean, scale, value=-group["lr"] / (1 - first**count))


def rate(step: int, *, warmup: int, total: int) -> float:
    """Share of the full learning rate in a step (from 0): a linear rise, then half a cosine down to 0."""
    if step < warmup:
        return (step + 1) / warmup
    return 0.5 * (1 + math.cos(math.pi * (step - warmup) / max(1, total - warmup)))
