"""Controllers that know the outcome: bounds on what any controller could reach, not policies to deploy."""

from __future__ import annotations

from typing import Any, NamedTuple

from specsim.controllers.base import Controller, ControllerSpec, Setting
from specsim.controllers.schedules import no_update
from specsim.jit import jit

PLAN = 0  # scratch column: the length asked for


class HintParams(NamedTuple):
    """`draft_len` is 0 where the hint is a length, else what the hinted arm drafts."""

    draft_len: int


@jit
def begin_hint(params, state, lane, pos, ctx_len, u, hint):
    if params.draft_len > 0:
        state[lane, PLAN] = params.draft_len
        return hint, params.draft_len
    state[lane, PLAN] = hint
    return -1, hint


@jit
def revise_hint(params, state, lane, q, drafted, more):
    plan = int(state[lane, PLAN])
    return min(plan, drafted), plan


def _build(name: str, privilege: str, setting: Setting) -> Controller:
    return Controller(
        name=name,
        config={},
        params=HintParams(setting.draft_len),
        begin=begin_hint,
        revise=revise_hint,
        update=no_update,
        scratch=1,
        privilege=privilege,
    )


def _build_greedy(values: dict[str, Any], setting: Setting) -> Controller:
    return _build("greedy-oracle", "round", setting)


def _build_oracle(values: dict[str, Any], setting: Setting) -> Controller:
    return _build("oracle", "path", setting)


ALL = ("length", "arm", "tree")
SPECS = (
    ControllerSpec(
        name="greedy-oracle",
        params={},
        build=_build_greedy,
        kinds=ALL,
        doc="per round, knows what would be accepted: most tokens per second of that round",
    ),
    ControllerSpec(
        name="oracle",
        params={},
        build=_build_oracle,
        kinds=ALL,
        doc="clairvoyant shortest path over the whole request (dynamic programme)",
    ),
)
