"""What bandits over draft configurations share: one row of state, its update, and how a rule becomes a controller.

Every arm drafts `draft_len` tokens. Reward is accepted + 1 tokens, cost the round's seconds. Rules differ in `begin`;
initial pulls and ties go by the order of the arms in the file (ascending budget).
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from specsim.controllers.base import Controller, Param, Setting
from specsim.errors import ConfigError
from specsim.jit import jit

# Blocks of the state row, each of K columns, and one scalar after them.
PULLS, REWARDS, COSTS, LEADS, RATES, BLOCKS = 0, 1, 2, 3, 4, 5
FORGOTTEN = 1e-3  # pulls' worth of faded observations below which an arm counts as never pulled


class BanditParams(NamedTuple):
    """What the rules read; each uses its part.

    `scale` multiplies the width of the reward range in a radius, `delta` is a confidence, `reset` counts rounds (0
    never), `keep` is what remains of old observations after a round (1: everything).
    """

    arms: int
    draft_len: int
    beta: float
    scale: float
    delta: float
    reset: int
    keep: float


@jit
def at(params, block, arm):
    """Column of an arm's entry in a block of the state row."""
    return block * params.arms + arm


@jit
def rounds_since_reset(params, state, lane):
    return int(state[lane, BLOCKS * params.arms])


@jit
def unpulled(params, state, lane):
    """First arm without a pull, -1 when all have one."""
    for arm in range(params.arms):
        if state[lane, at(params, PULLS, arm)] == 0.0:
            return arm
    return -1


@jit
def tokens_per_second(params, state, lane, arm):
    """Pooled: sum of rewards over sum of costs."""
    return state[lane, at(params, REWARDS, arm)] / state[lane, at(params, COSTS, arm)]


@jit
def leading_arm(params, state, lane):
    """Arm with the most tokens per second, the first on ties."""
    best = 0
    for arm in range(1, params.arms):
        if tokens_per_second(params, state, lane, arm) > tokens_per_second(params, state, lane, best):
            best = arm
    return best


@jit
def spread_radius(pulls, inside):
    """sqrt((1 + n) / n^2 * (1 + 2 ln(inside * sqrt(1 + n)))): both papers' self-normalised radius, per unit width."""
    return math.sqrt((1.0 + pulls) / pulls**2 * (1.0 + 2.0 * math.log(inside * math.sqrt(1.0 + pulls))))


@jit
def horizon(params, count):
    """Rounds a logarithm may count: with fading observations no more than the memory holds."""
    return count if params.keep == 1.0 else min(count, 1.0 / (1.0 - params.keep))


@jit
def count_lead(params, state, lane, leader):
    state[lane, at(params, LEADS, leader)] += 1.0
    return state[lane, at(params, LEADS, leader)]


@jit
def update_arm(params, state, lane, arm, drafted, submitted, accepted, round_s):
    """Fade old observations, add the new one, and clear everything when the reset interval is over."""
    columns = params.arms
    if params.keep < 1.0:
        for k in range(columns):
            faded = state[lane, at(params, PULLS, k)] * params.keep
            # An arm that is all but forgotten is pulled anew; its ratios would soon be 0 over 0.
            keep = params.keep if faded >= FORGOTTEN else 0.0
            for block in (PULLS, REWARDS, COSTS, RATES):
                state[lane, at(params, block, k)] *= keep
    state[lane, at(params, PULLS, arm)] += 1.0
    state[lane, at(params, REWARDS, arm)] += accepted + 1.0
    state[lane, at(params, COSTS, arm)] += round_s
    state[lane, at(params, RATES, arm)] += (accepted + 1.0) / round_s
    state[lane, BLOCKS * columns] += 1.0
    if params.reset > 0 and rounds_since_reset(params, state, lane) >= params.reset:
        for k in range(BLOCKS * columns + 1):
            state[lane, k] = 0.0


@jit
def revise_arm(params, state, lane, q, drafted, more):
    """An arm always submits its whole draft."""
    return drafted, params.draft_len


def bandit(
    name: str, begin: Any, setting: Setting, config: dict[str, Any], *, update: Any = update_arm, **kwargs: Any
) -> Controller:
    """A controller over the arms of `setting`; `config` also fills the fields of `BanditParams` it names.

    With track=ewma the reset is off and `keep` follows from the half-life; elsewhere the half-life says nothing and is
    left out of the config, which can be typed back as it stands. So is a `carry` of 0, which most bandits do not have.
    """
    fields = {"beta": 0.0, "scale": 0.0, "delta": 1.0, "reset": 0, "keep": 1.0}
    if config.get("track") == "ewma":
        fields["keep"] = 0.5 ** (1.0 / config["halflife"])
        config = {key: value for key, value in config.items() if key != "reset"}
    else:
        config = {key: value for key, value in config.items() if key != "halflife"}
    if not config.get("carry"):
        config = {key: value for key, value in config.items() if key != "carry"}
    params = BanditParams(
        arms=len(setting.arm_draft_s),
        draft_len=setting.draft_len,
        **{k: type(v)(config.get(k, v)) for k, v in fields.items()},
    )
    return Controller(
        name=name,
        config=config,
        params=params,
        begin=begin,
        revise=revise_arm,
        update=update,
        initial=np.zeros(BLOCKS * params.arms + 1),
        per_request="carry" not in config,
        **kwargs,
    )


def one_of_reset_and_track(given: dict[str, Any]) -> None:
    """Refuse a reset interval together with fading."""
    if given.get("track") == "ewma" and "reset" in given:
        raise ConfigError("track=ewma replaces the reset; give reset or track=ewma, not both")


def simple(name: str, begin: Any, **kwargs: Any) -> Any:
    return lambda values, setting: bandit(name, begin, setting, values, **kwargs)


BETA = Param(kind=float, default=0.3, low=0.0, doc="multiplier of the confidence radius (the paper prints 1)")
DELTA = Param(kind=float, default=0.1, low=0.0, high=1.0, open_low=True, doc="confidence")
TRACKING = {
    "reset": Param(
        kind=int, default=512, low=0, high=10**9, doc="rounds after which all statistics are cleared, 0 never"
    ),
    "track": Param(
        kind=str, default="none", choices=("none", "ewma"), doc="let old observations fade instead of a reset"
    ),
    "halflife": Param(
        kind=float, default=256.0, low=1.0, doc="rounds in which an observation loses half its weight (track=ewma)"
    ),
    "carry": Param(
        kind=bool, default=False, doc="1: what was observed goes on from request to request, in file order; 0: cleared"
    ),
}
RESET = Param(kind=int, default=0, low=0, high=10**9, doc="rounds after which all statistics are cleared, 0 never")
