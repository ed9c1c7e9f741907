"""KnapSpec's and CLaSp's arms of a target that has been looked into at some tokens.

Owns what the searches of `real.builders` are run on (sub-blocks of a loaded target), the seconds that this takes, and
the family that comes of it; for the command that writes families (`real.arms`) as for the drafter that makes them on
the way (`self:build=knapspec`, `self:build=clasp`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

import torch

from real.builders.arm import Arm, cost_order
from real.builders.knapsack import Found, Run, clasp
from real.builders.knapspec import (
    Candidate,
    Latency,
    Schedule,
    Times,
    Weights,
    budget_of,
    candidates,
    family,
    weights_of,
)
from real.drafters.opened import Opened
from real.drafters.spent import PASSES, Spent
from real.drafters.subblocks import SubBlocks
from specsim.errors import ConfigError

CLASP: Final = "CLaSp"
CLASP_STEPS: Final = Schedule(interval=64, first=1, last=1)
CLASP_TOKENS: Final = 1  # the last one verified


class KnapSpecSettings(NamedTuple):
    """What KnapSpec is told.

    Args:
        arms: how many, the zero-skip arm included.
        fraction: of all weight that may be left out; None: half.
        published: as for `real.builders.knapspec.choose`.
        latency: of the target's sub-blocks.
        least: cached tokens below which the latency is not asked; it is taken at so many.
    """

    arms: int
    fraction: float | None
    published: bool
    latency: Latency
    least: int = 0


class Networks(NamedTuple):
    """What KnapSpec found at some tokens.

    Args:
        arms: SP2ec's family, in the controllers' order; none but the zero-skip arm where nothing stays like the target.
        scores: estimated tokens per second of each.
        found: the networks that survived.
        seen: what the search saw.
        times, weights: of the two kinds of sub-blocks at that context.
    """

    arms: list[Arm]
    scores: dict[Arm, float]
    found: list[Candidate]
    seen: Found
    times: Times
    weights: Weights


def knapspec_networks(
    opened: Opened, past: int, settings: KnapSpecSettings, spent: Spent, *, zero_skip: bool
) -> Networks:
    """KnapSpec's networks by some tokens of a text, and SP2ec's family of them.

    Args:
        opened: the target at those tokens.
        past: cached tokens before them.
        settings: see there.
        spent: its passes are counted in.
        zero_skip: whether one arm leaves nothing out.

    Raises:
        ConfigError: times that are not positive.
    """
    blocks = opened.blocks
    times = settings.latency.at(max(past, settings.least))
    weights = weights_of(times)
    found, seen = candidates(
        opened.states[1:],
        timed(spent, opened.run),
        blocks.predict,
        weights=weights,
        budget=budget_of(blocks.n_layers, weights, settings.fraction),
    )
    listed = family(
        found,
        count=settings.arms,
        zero_skip=zero_skip,
        n_layers=blocks.n_layers,
        times=times,
        published=settings.published,
    )
    scores = {entry.candidate.arm: entry.score for entry in listed}
    return Networks(ordered(blocks, list(scores), zero_skip=zero_skip), scores, found, seen, times, weights)


def clasp_arms(opened: Opened, counts: Sequence[int], spent: Spent, *, zero_skip: bool) -> list[Arm]:
    """CLaSp's networks without so many whole layers, by some tokens of a text, in the controllers' order.

    Args:
        opened: the target at those tokens.
        counts: layers left out, of each arm.
        spent: its passes are counted in.
        zero_skip: whether there is an arm besides that leaves nothing out.
    """
    run = timed(spent, opened.run_layer)
    found = [Arm.blocks(clasp(opened.states[::2], run, count)) for count in counts]
    return ordered(opened.blocks, found, zero_skip=zero_skip)


def clasp_counts(n_layers: int, ratios: Sequence[float]) -> list[int]:
    """Layers left out for shares of all, each rounded down.

    Raises:
        ConfigError: a ratio that leaves out nothing or everything, or two that leave out as much.
    """
    counts = [int(n_layers * ratio) for ratio in ratios]
    for ratio, count in zip(ratios, counts, strict=True):
        if not 1 <= count < n_layers:
            raise ConfigError(
                f"{CLASP}: ratio {ratio:g} leaves out {count} of {n_layers} layers; allowed: 1..{n_layers - 1}"
            )
    check_counts(CLASP, ratios, counts)
    return counts


def check_counts(name: str, ratios: Sequence[float], counts: Sequence[int]) -> None:
    """Refuse ratios of a builder of which two leave out as much.

    Raises:
        ConfigError: they do, or there is none.
    """
    if not counts or len(set(counts)) < len(counts):
        raise ConfigError(
            f"{name}: ratios {', '.join(f'{ratio:g}' for ratio in ratios)} leave out {', '.join(map(str, counts))}; "
            "choose such that each leaves out another number"
        )


def ordered(blocks: SubBlocks, arms: Sequence[Arm], *, zero_skip: bool) -> list[Arm]:
    """In the controllers' order, the zero-skip arm first where it is wanted."""
    wanted = [Arm()] if zero_skip and Arm() not in arms else []
    return cost_order([*wanted, *arms], attention=blocks.attention, mlp=blocks.mlp)


def timed(spent: Spent, run: Run) -> Run:
    """The same, its seconds counted as passes and not as search."""

    def counted(part: int, states: torch.Tensor) -> torch.Tensor:
        with spent.on(PASSES):
            return run(part, states)

    return counted
