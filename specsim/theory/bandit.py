"""Which arms a shipped bandit controller pulls on scripted rewards and costs (`eval` requests of kind "bandit").

The rules live in `specsim.controllers`; this file only scripts the surroundings. float64, as the controllers are.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np

from specsim.controllers import REGISTRY, Controller, Setting
from specsim.controllers.base import suggest
from specsim.errors import ConfigError
from specsim.latency import LatencyModel
from specsim.online import OnlineController

Reward: TypeAlias = float | Sequence[float]
DRAFT_LEN = 4  # L where a request does not say, as published
MAX_DRAFT_LEN = 32_766
_OTHER = ("arm", "sp2ec-2d")  # no bandit; and one that also chooses a length, on which scripted rewards do not depend


def reward_at(reward: Reward, pull: int) -> float:
    """What an arm pays at its own pull number (from 0): a number always, a list in turn, over and over."""
    return float(reward[pull % len(reward)]) if isinstance(reward, Sequence) else float(reward)


def policies() -> list[str]:
    """Names of the registered controllers that choose among arms by what they have seen, not by hindsight."""
    setting = _setting(2, DRAFT_LEN)
    free = [name for name, spec in REGISTRY.items() if spec.kinds == ("arm",) and name not in _OTHER]
    return [name for name in free if REGISTRY[name].resolve({}, setting).privilege == "none"]


def _setting(arms: int, draft_len: int) -> Setting:
    model = LatencyModel.affine(c_s=0.0, b_s=1.0)
    return Setting(
        block_len=1, max_draft_len=draft_len, latency=model, arm_draft_s=(1.0,) * arms, draft_len=draft_len
    )  # fmt: skip


def bandit_controller(policy: str, params: Mapping[str, Any], arms: int) -> Controller:
    """The controller of a request: `params` as on the command line, and `L`, the draft length.

    For `ucbspec`, L is also the width in its radius (`scale`) unless that is given. Statistics are never reset unless
    `reset` is given: a request asks for the rule itself.

    Raises:
        ConfigError: no such policy, one that knows more than a bandit may, or a parameter it does not have.
    """
    if policy not in policies():
        known = ", ".join(policies())
        raise ConfigError(f"key 'policy': {policy!r}{suggest(policy, dict.fromkeys(policies()))}; allowed: {known}")
    given = dict(params)
    draft_len = given.pop("L", DRAFT_LEN)
    if not isinstance(draft_len, int) or isinstance(draft_len, bool) or not 1 <= draft_len <= MAX_DRAFT_LEN:
        raise ConfigError(f"key 'params': L {draft_len!r}; allowed: an integer in [1, {MAX_DRAFT_LEN}]")
    if policy == "ucbspec" and "L" in params:
        given.setdefault("scale", draft_len)
    if "reset" in REGISTRY[policy].params and given.get("track") != "ewma":
        given.setdefault("reset", 0)
    try:
        return REGISTRY[policy].resolve(given, _setting(arms, draft_len))
    except ConfigError as error:
        text = str(error)
        allowed = ", ".join(("L", *REGISTRY[policy].params))
        raise ConfigError(f"key 'params': {text}" + ("" if "allowed" in text else f"; allowed: {allowed}")) from None


def bandit_arms(
    policy: str, params: Mapping[str, Any], rewards: Sequence[Reward], costs: Sequence[float], rounds: int
) -> list[int]:
    """The first `rounds` arms that `policy` pulls; random policies use seed 0 and the round's number.

    Args:
        policy: name of a registered controller, see `policies`.
        params: its parameters, see `bandit_controller`.
        rewards: per arm, tokens of a round, or a list of them read by the arm's pull number modulo its length.
        costs: per arm, the time of a round.
        rounds: how many.

    Raises:
        ConfigError: as of `bandit_controller`.
    """
    controller = bandit_controller(policy, params, len(costs))
    online, pulls, arms = OnlineController(controller), [0] * len(costs), []
    draft_len = controller.params.draft_len
    draft = np.zeros(draft_len, np.float32)
    for number in range(rounds):
        arm, _ = online.begin(number, number)
        online.revise(draft, False)
        # Controllers are told accepted draft tokens; the reward counts the target's own token too.
        if controller.full_information:
            paid = [reward_at(reward, number) - 1.0 for reward in rewards]
            online.update_all(paid, costs, draft_len)  # pyright: ignore[reportArgumentType]
        else:
            online.feed(arm, reward_at(rewards[arm], pulls[arm]) - 1.0, costs[arm], draft_len)
        pulls[arm] += 1
        arms.append(arm)
    return arms
