"""A bandit over draft lengths: the released code of BanditSpec."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from specsim.controllers.base import Controller, ControllerSpec, NoParams, Setting
from specsim.jit import jit

LENGTHS = 4  # arms are the lengths 1..4
FORCED = 7  # first rounds, which play 1 2 3 4 1 2 3
ROUNDS, MEANS, PULLS = 0, 1, 1 + LENGTHS
CHOSEN = 1 + 2 * LENGTHS  # scratch column: the arm of this round


@jit
def begin_released(params, state, lane, pos, ctx_len, u, hint):
    """Mean reward plus sqrt(6 ln t / ALL pulls): the bonus is the same for every arm, so after the forced rounds the
    best mean is played for ever (a defect of the released code, kept because it is what its numbers came from)."""
    number = int(state[lane, ROUNDS]) + 1
    arm = (number - 1) % LENGTHS
    if number > FORCED:
        bonus = math.sqrt(6.0 * math.log(number) / (number - 1))
        arm = 0
        for other in range(1, LENGTHS):
            if state[lane, MEANS + other] + bonus > state[lane, MEANS + arm] + bonus:
                arm = other
    state[lane, CHOSEN] = arm
    return -1, arm + 1


@jit
def revise_released(params, state, lane, q, drafted, more):
    want = int(state[lane, CHOSEN]) + 1
    return min(want, drafted), want


@jit
def update_released(params, state, lane, arm, drafted, submitted, accepted, round_s):
    """Running mean of tokens per second, kept in float32 as released."""
    chosen = int(state[lane, CHOSEN])
    state[lane, ROUNDS] += 1.0
    state[lane, PULLS + chosen] += 1.0
    mean = np.float32(state[lane, MEANS + chosen])
    step = np.float32((accepted + 1.0) / round_s - float(mean)) / np.float32(state[lane, PULLS + chosen])
    state[lane, MEANS + chosen] = np.float32(mean + step)


def _build(values: dict[str, Any], setting: Setting) -> Controller:
    return Controller(
        name="banditspec-ucb",
        config=values,
        params=NoParams(),
        begin=begin_released,
        revise=revise_released,
        update=update_released,
        initial=np.zeros(1 + 2 * LENGTHS),
        scratch=1,
    )


SPECS = (
    ControllerSpec(
        name="banditspec-ucb",
        params={},
        build=_build,
        doc="the length bandit of BanditSpec's released code, over lengths 1 to 4",
    ),
)
