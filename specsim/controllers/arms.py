"""Arm controllers besides the bandits: a fixed arm, the best one in hindsight, and SP2ec in two dimensions."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from specsim.controllers.bandit_core import BETA, RESET, revise_arm, spread_radius
from specsim.controllers.base import Controller, ControllerSpec, Param, Setting
from specsim.controllers.schedules import no_update
from specsim.errors import ConfigError
from specsim.jit import jit


class FixedParams(NamedTuple):
    """`arm` -1 takes the arm from the hint."""

    arm: int
    draft_len: int


@jit
def begin_fixed(params, state, lane, pos, ctx_len, u, hint):
    return params.arm if params.arm >= 0 else hint, params.draft_len


def _fixed(name: str, config: dict[str, Any], arm: int, setting: Setting, privilege: str) -> Controller:
    return Controller(
        name=name,
        config=config,
        params=FixedParams(arm, setting.draft_len),
        begin=begin_fixed,
        revise=revise_arm,
        update=no_update,
        privilege=privilege,
    )


def _build_arm(values: dict[str, Any], setting: Setting) -> Controller:
    if values["index"] >= len(setting.arm_draft_s):
        raise ConfigError(
            f"controller 'arm': index={values['index']}: this trace has arms 0..{len(setting.arm_draft_s) - 1}"
        )
    return _fixed("arm", values, values["index"], setting, "none")


def _build_best(values: dict[str, Any], setting: Setting) -> Controller:
    return _fixed("best-arm", values, -1, setting, "file")


class GridParams(NamedTuple):
    """Cells (arm, length 1..draft_len), numbered arm * draft_len + length - 1.

    `seconds[cell]` is what a round of that cell costs by the latency model; only differences between lengths of one arm
    are taken from it.
    """

    arms: int
    draft_len: int
    beta: float
    reset: int
    seconds: NDArray[np.float64]


# Blocks of the state row, each of K * L columns; one scalar (rounds since the reset) follows them.
PULLS, REWARDS, COSTS, LEADS, BLOCKS = 0, 1, 2, 3, 4


@jit
def grid_at(params, block, cell):
    return block * params.arms * params.draft_len + cell


@jit
def grid_rate(params, state, lane, cell):
    return state[lane, grid_at(params, REWARDS, cell)] / state[lane, grid_at(params, COSTS, cell)]


@jit
def grid_bound(params, state, lane, cell, leads):
    """SP2ec's bound with the cell's own length as the width of the reward."""
    pulls = state[lane, grid_at(params, PULLS, cell)]
    length = cell % params.draft_len + 1
    radius = length / 2.0 * spread_radius(pulls, 3.0 * leads**2)
    return (state[lane, grid_at(params, REWARDS, cell)] / pulls + params.beta * radius) / (
        state[lane, grid_at(params, COSTS, cell)] / pulls
    )


@jit
def begin_grid(params, state, lane, pos, ctx_len, u, hint):
    """Each arm once at full length; then the leading cell on every fifth lead, else the best bound around it."""
    length = params.draft_len
    for arm in range(params.arms):
        if state[lane, grid_at(params, PULLS, arm * length + length - 1)] == 0.0:
            return arm, length
    leader = 0
    for cell in range(1, params.arms * length):
        if grid_rate(params, state, lane, cell) > grid_rate(params, state, lane, leader):
            leader = cell
    state[lane, grid_at(params, LEADS, leader)] += 1.0
    leads = state[lane, grid_at(params, LEADS, leader)]
    best = leader
    if leads % 5 != 1:
        for step in (-length, -1, 1, length):
            cell = leader + step
            inside = 0 <= cell < params.arms * length
            same_arm = inside and cell // length == leader // length
            if not inside or not (same_arm or abs(step) == length):
                continue
            if grid_bound(params, state, lane, cell, leads) > grid_bound(params, state, lane, best, leads):
                best = cell
    return best // length, best % length + 1


@jit
def update_grid(params, state, lane, arm, drafted, submitted, accepted, round_s):
    """A draft of d tokens also tells what its first d' would have given: min(accepted, d') tokens, for less time."""
    length = params.draft_len
    played = arm * length + submitted - 1
    for shorter in range(1, submitted + 1):
        cell = arm * length + shorter - 1
        state[lane, grid_at(params, PULLS, cell)] += 1.0
        state[lane, grid_at(params, REWARDS, cell)] += min(accepted, shorter) + 1.0
        saved = params.seconds[played] - params.seconds[cell]
        state[lane, grid_at(params, COSTS, cell)] += max(round_s - saved, params.seconds[cell] * 0.01)
    since = grid_at(params, BLOCKS, 0)
    state[lane, since] += 1.0
    if params.reset > 0 and state[lane, since] >= params.reset:
        for k in range(since + 1):
            state[lane, k] = 0.0


@jit
def revise_grid(params, state, lane, q, drafted, more):
    return drafted, drafted


def _build_grid(values: dict[str, Any], setting: Setting) -> Controller:
    arms, length = len(setting.arm_draft_s), setting.draft_len
    verify_s = setting.latency.verify_table(length + 1)
    seconds = np.array(
        [
            d * per_token + verify_s[d + 1] + setting.latency.overhead_s
            for per_token in setting.arm_draft_s
            for d in range(1, length + 1)
        ]
    )
    if not math.isfinite(seconds.sum()):
        raise ConfigError("controller 'sp2ec-2d' needs arms with a known draft_s")
    params = GridParams(arms=arms, draft_len=length, beta=values["beta"], reset=values["reset"], seconds=seconds)
    return Controller(
        name="sp2ec-2d",
        config=values,
        params=params,
        begin=begin_grid,
        revise=revise_grid,
        update=update_grid,
        initial=np.zeros(BLOCKS * arms * length + 1),
    )


SPECS = (
    ControllerSpec(
        name="arm",
        params={"index": Param(kind=int, low=0, high=32_767, doc="number of the arm in the file")},
        build=_build_arm,
        kinds=("arm",),
        doc="the same arm every round",
    ),
    ControllerSpec(
        name="best-arm",
        params={},
        build=_build_best,
        kinds=("arm",),
        doc="the best single arm over the whole trace, in hindsight",
    ),
    ControllerSpec(
        name="sp2ec-2d",
        params={"beta": BETA, "reset": RESET},
        build=_build_grid,
        kinds=("arm",),
        doc="single-peak bandit over (arm, draft length): SP2ec with a second axis",
    ),
)
