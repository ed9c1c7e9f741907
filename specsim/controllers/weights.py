"""Bandits that draw arms by exponential weights: EXP3Spec and Hedge."""

from __future__ import annotations

import math

from specsim.controllers.bandit_core import (
    BLOCKS,
    LEADS,
    RATES,
    RESET,
    at,
    rounds_since_reset,
    simple,
    update_arm,
)
from specsim.controllers.base import ControllerSpec
from specsim.jit import jit


@jit
def weight_of(params, state, lane, block, arm, rate):
    """exp(-rate * loss) of an arm, relative to the least loss of all."""
    least = state[lane, at(params, block, 0)]
    for other in range(1, params.arms):
        least = min(least, state[lane, at(params, block, other)])
    return math.exp(-rate * (state[lane, at(params, block, arm)] - least))


@jit
def arm_probability(params, state, lane, block, arm, rate):
    """Probability of an arm under exponential weights of the losses in `block`."""
    total = 0.0
    for other in range(params.arms):
        total += weight_of(params, state, lane, block, other, rate)
    return weight_of(params, state, lane, block, arm, rate) / total


@jit
def draw_arm(params, state, lane, block, rate, u):
    """The arm at which the cumulative probability passes u, and its probability."""
    reached = 0.0
    chance = 0.0
    for arm in range(params.arms):
        chance = arm_probability(params, state, lane, block, arm, rate)
        reached += chance
        if u < reached:
            return arm, chance
    return params.arms - 1, chance


@jit
def exp3_rate(params, state, lane):
    """eta_t = sqrt(ln K / (t K)), t the number of this round from 1 (BanditSpec, EXP3Spec)."""
    t = rounds_since_reset(params, state, lane) + 1
    return math.sqrt(math.log(params.arms) / (t * params.arms))


@jit
def begin_exp3(params, state, lane, pos, ctx_len, u, hint):
    arm, _ = draw_arm(params, state, lane, LEADS, exp3_rate(params, state, lane), u)
    return arm, params.draft_len


@jit
def update_exp3(params, state, lane, arm, drafted, submitted, accepted, round_s):
    """Z = (L + 1 - Y) / (L p) for the arm played; p is worked out again from the state `begin` drew with."""
    chance = arm_probability(params, state, lane, LEADS, arm, exp3_rate(params, state, lane))
    state[lane, at(params, LEADS, arm)] += (params.draft_len - accepted) / (params.draft_len * chance)
    update_arm(params, state, lane, arm, drafted, submitted, accepted, round_s)


@jit
def begin_hedge(params, state, lane, pos, ctx_len, u, hint):
    """Exponential weights with full information; eta_t = sqrt(8 ln K / t)."""
    t = rounds_since_reset(params, state, lane) + 1
    arm, _ = draw_arm(params, state, lane, LEADS, math.sqrt(8.0 * math.log(params.arms) / t), u)
    return arm, params.draft_len


@jit
def update_hedge(params, state, lane, arm, drafted, submitted, accepted, round_s):
    """Called for every arm of the round: loss = seconds per token over the largest seen so far, in [0, 1].

    HedgeSpec's premise is that each drafter can be scored on the text that was verified; the replay knows all arms.
    """
    per_token = round_s / (accepted + 1.0)
    state[lane, at(params, RATES, 0)] = max(state[lane, at(params, RATES, 0)], per_token)
    state[lane, at(params, LEADS, arm)] += per_token / state[lane, at(params, RATES, 0)]
    if arm == params.arms - 1:
        state[lane, BLOCKS * params.arms] += 1.0


SPECS = (
    ControllerSpec(
        name="exp3spec",
        params={"reset": RESET},
        build=simple("exp3spec", begin_exp3, update=update_exp3, random=True),
        kinds=("arm",),
        doc="EXP3Spec (BanditSpec, ICML 2025): exponential weights of importance-weighted losses",
    ),
    ControllerSpec(
        name="hedge",
        params={},
        build=simple("hedge", begin_hedge, update=update_hedge, full_information=True, random=True),
        kinds=("arm",),
        doc="Hedge with full information: every arm is scored each round (HedgeSpec's premise)",
    ),
)
