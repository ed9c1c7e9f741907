"""Controllers that fix the length before drafting: plain, static, G4-style and the Hugging Face heuristic."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from specsim.controllers.base import Controller, ControllerSpec, NoParams, Setting, length_param, max_param
from specsim.errors import ConfigError
from specsim.jit import jit

LENGTH = 0  # state column: length of the next round


@jit
def no_update(params, state, lane, arm, drafted, submitted, accepted, round_s):
    """Feedback of a controller that learns nothing."""


@jit
def begin_nothing(params, state, lane, pos, ctx_len, u, hint):
    return -1, 0


@jit
def revise_nothing(params, state, lane, q, drafted, more):
    return 0, 0


def _build_plain(values: dict[str, Any], setting: Setting) -> Controller:
    return Controller(
        name="plain",
        config=values,
        params=NoParams(),
        begin=begin_nothing,
        revise=revise_nothing,
        update=no_update,
        pays_overhead=False,
    )


class StaticParams(NamedTuple):
    length: int


@jit
def begin_static(params, state, lane, pos, ctx_len, u, hint):
    return -1, params.length


@jit
def revise_static(params, state, lane, q, drafted, more):
    return min(params.length, drafted), params.length


def _build_static(values: dict[str, Any], setting: Setting) -> Controller:
    return Controller(
        name="static",
        config=values,
        params=StaticParams(values["length"]),
        begin=begin_static,
        revise=revise_static,
        update=no_update,
    )


class ScheduleParams(NamedTuple):
    """Additive increase, additive decrease of the length.

    `cap_state` tells whether the length itself stops at `max` (G4-style) or only what is asked of the drafter does
    (transformers keeps counting and clips the request).
    """

    start: int
    up: int
    down: int
    min: int
    max: int
    cap_state: bool


@jit
def begin_schedule(params, state, lane, pos, ctx_len, u, hint):
    return -1, min(int(state[lane, LENGTH]), params.max)


@jit
def revise_schedule(params, state, lane, q, drafted, more):
    want = min(int(state[lane, LENGTH]), params.max)
    return min(want, drafted), want


@jit
def update_schedule(params, state, lane, arm, drafted, submitted, accepted, round_s):
    # A round that submitted nothing says nothing about the drafter (transformers would count 0 == 0 as a success).
    if submitted > 0:
        if accepted == submitted:
            length = state[lane, LENGTH] + params.up
            state[lane, LENGTH] = min(length, params.max) if params.cap_state else length
        else:
            state[lane, LENGTH] = max(state[lane, LENGTH] - params.down, params.min)


def _build_schedule(name: str, config: dict[str, Any], params: ScheduleParams) -> Controller:
    return Controller(
        name=name,
        config=config,
        params=params,
        begin=begin_schedule,
        revise=revise_schedule,
        update=update_schedule,
        initial=np.array([float(params.start)]),
    )


def _build_g4(values: dict[str, Any], setting: Setting) -> Controller:
    # A trace that holds less than the default minimum lowers it; given by hand the two must fit (`_check_g4`).
    values = {**values, "min": min(values["min"], values["max"])}
    start = min(max(values["start"], values["min"]), values["max"])
    return _build_schedule(
        "g4", values, ScheduleParams(start, values["up"], values["down"], values["min"], values["max"], True)
    )


def _check_g4(given: dict[str, Any]) -> None:
    if "min" in given and "max" in given and given["min"] > given["max"]:
        raise ConfigError(f"controller 'g4': min={given['min']} is above max={given['max']}; give min <= max")


def _build_hf(values: dict[str, Any], setting: Setting) -> Controller:
    return _build_schedule("hf-heuristic", values, ScheduleParams(values["start"], 2, 1, 1, values["max"], False))


SPECS = (
    ControllerSpec(
        name="plain",
        params={},
        build=_build_plain,
        kinds=("length", "arm", "tree"),
        doc="plain autoregressive decoding: the baseline of every speedup",
    ),
    ControllerSpec(
        name="static",
        params={"length": length_param(doc="tokens submitted each round")},
        build=_build_static,
        kinds=("length", "tree"),
        doc="the same length every round; on trees DDTree with that budget of nodes",
    ),
    ControllerSpec(
        name="g4",
        params={
            "start": length_param(10, doc="length of the first round"),
            "up": length_param(2, doc="added after a fully accepted round"),
            "down": length_param(1, doc="taken off after any other round"),
            "min": length_param(1, doc="smallest length"),
            "max": max_param(60),
        },
        build=_build_g4,
        check=_check_g4,
        doc="G4-style schedule: +up when everything submitted was accepted, else -down (LibraSpec's baseline)",
    ),
    ControllerSpec(
        name="hf-heuristic",
        params={"start": length_param(20, low=1, doc="num_assistant_tokens at the start"), "max": max_param()},
        build=_build_hf,
        doc="transformers' heuristic schedule: +2 / -1, floor 1, no cap on the count, requests cut at max",
    ),
)
