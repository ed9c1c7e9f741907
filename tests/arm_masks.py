"""Arms as the golden vectors write them: masks over sub-blocks, the other way of `Arm.from_mask`."""

from __future__ import annotations

from real.builders.arm import Arm


def mask_of(arm: Arm, n_layers: int) -> tuple[int, ...]:
    """1 for each sub-block left out, in the order they run: entry 2i attention, 2i+1 MLP of layer i."""
    return tuple(int(n // 2 in (arm.mlp if n % 2 else arm.attention)) for n in range(2 * n_layers))
