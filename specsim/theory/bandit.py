"""Which arms a shipped bandit controller pulls on scripted rewards and costs (`eval` requests of kind "bandit").

The rules live in `specsim.controllers`; this file only dispatches to them and scripts the surroundings.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

from specsim.controllers import REGISTRY
from specsim.controllers.base import suggest
from specsim.errors import ConfigError

Reward: TypeAlias = float | Sequence[float]


def reward_at(reward: Reward, pull: int) -> float:
    """What an arm pays at its own pull number (from 0): a number always, a list in turn, over and over."""
    return float(reward[pull % len(reward)]) if isinstance(reward, Sequence) else float(reward)


def bandit_arms(
    policy: str, params: Mapping[str, Any], rewards: Sequence[Reward], costs: Sequence[float], rounds: int
) -> list[int]:
    """The first `rounds` arms that `policy` pulls, in float64.

    Args:
        policy: name of a registered controller that chooses arms.
        params: its parameters.
        rewards: per arm, tokens of a round, or a list of them read by the arm's pull number modulo its length.
        costs: per arm, the time of a round.
        rounds: how many.

    Raises:
        ConfigError: no such policy, or one that does not choose arms.
    """
    if policy not in REGISTRY:
        known = ", ".join(REGISTRY)
        raise ConfigError(f"policy: unknown {policy!r}{suggest(policy, REGISTRY)}; allowed: a bandit of {known}")
    raise ConfigError(f"policy: {policy!r} does not choose among arms here; allowed: a controller of arm traces")
