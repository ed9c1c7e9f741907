"""Controllers that know the outcome: bounds on what any controller could reach, not policies to deploy."""

from __future__ import annotations

from typing import Any

from specsim.controllers.base import Controller, ControllerSpec, NoParams, Setting
from specsim.controllers.schedules import no_update
from specsim.jit import jit

PLAN = 0  # scratch column: the length the hint asked for


@jit
def begin_hint(params, state, lane, pos, ctx_len, u, hint):
    state[lane, PLAN] = hint
    return -1, hint


@jit
def revise_hint(params, state, lane, q, drafted, more):
    plan = int(state[lane, PLAN])
    return min(plan, drafted), plan


def _build(name: str, privilege: str) -> Controller:
    return Controller(
        name=name, config={}, params=NoParams(), begin=begin_hint, revise=revise_hint, update=no_update, scratch=1,
        privilege=privilege,
    )  # fmt: skip


def _build_greedy(values: dict[str, Any], setting: Setting) -> Controller:
    return _build("greedy-oracle", "round")


def _build_oracle(values: dict[str, Any], setting: Setting) -> Controller:
    return _build("oracle", "path")


SPECS = (
    ControllerSpec(
        name="greedy-oracle", params={}, build=_build_greedy,
        doc="per round, knows what would be accepted: most tokens per second of that round",
    ),
    ControllerSpec(
        name="oracle", params={}, build=_build_oracle,
        doc="clairvoyant shortest path over the whole request (dynamic programme)",
    ),
)  # fmt: skip
