"""Controllers that stop on the drafter's confidences: threshold, FailFast (idealised rule), SpecDec++."""

from __future__ import annotations

from typing import Any, NamedTuple

from specsim.controllers.base import Controller, ControllerSpec, Param, Setting, length_param, max_param
from specsim.controllers.schedules import no_update
from specsim.jit import jit

SCANNED = 0  # scratch column: draft positions already judged in this round


class ThresholdParams(NamedTuple):
    tau: float
    max: int


@jit
def begin_threshold(params, state, lane, pos, ctx_len, u, hint):
    return -1, min(1, params.max)


@jit
def revise_threshold(params, state, lane, q, drafted, more):
    """Keep the first token below tau, then stop; `float()` lifts the stored float32 to float64 before comparing."""
    last = min(drafted, params.max)
    for i in range(int(state[lane, SCANNED]), last):
        if float(q[i]) < params.tau:
            return i + 1, i + 1
    state[lane, SCANNED] = last
    return last, min(drafted + 1, params.max)


def _build_threshold(values: dict[str, Any], setting: Setting) -> Controller:
    return Controller(
        name="threshold",
        config=values,
        params=ThresholdParams(values["tau"], values["max"]),
        begin=begin_threshold,
        revise=revise_threshold,
        update=no_update,
        scratch=1,
        needs_q=True,
    )


class FailFastParams(NamedTuple):
    chunk: int
    tau: float
    max: int


@jit
def begin_failfast(params, state, lane, pos, ctx_len, u, hint):
    return -1, min(params.chunk, params.max)


@jit
def revise_failfast(params, state, lane, q, drafted, more):
    """Extend by a chunk while every confidence of the last chunk reaches tau; the last chunk is cut at max."""
    while True:
        start = int(state[lane, SCANNED])
        length = min(start + params.chunk, params.max)
        if drafted < length:
            return drafted, length
        for i in range(start, length):
            if float(q[i]) < params.tau:
                return length, length
        if length >= params.max:
            return length, length
        state[lane, SCANNED] = length


def _build_failfast(values: dict[str, Any], setting: Setting) -> Controller:
    return Controller(
        name="failfast",
        config=values,
        params=FailFastParams(values["chunk"], values["tau"], values["max"]),
        begin=begin_failfast,
        revise=revise_failfast,
        update=no_update,
        scratch=1,
        needs_q=True,
    )


class SpecDecPPParams(NamedTuple):
    h: float
    min: int
    max: int


SURVIVAL = 1  # scratch column: product of the confidences judged so far; meaningless while SCANNED is 0


@jit
def begin_specdecpp(params, state, lane, pos, ctx_len, u, hint):
    return -1, min(max(params.min, 1), params.max)


@jit
def revise_specdecpp(params, state, lane, q, drafted, more):
    """Stop at the first length >= min at which the chance that some token is rejected exceeds h."""
    last = min(drafted, params.max)
    first = int(state[lane, SCANNED])
    survival = state[lane, SURVIVAL] if first > 0 else 1.0
    for i in range(first, last):
        survival *= float(q[i])
        if i + 1 >= params.min and 1.0 - survival > params.h:
            return i + 1, i + 1
    state[lane, SCANNED] = last
    state[lane, SURVIVAL] = survival
    return last, min(max(drafted + 1, params.min), params.max)


def _build_specdecpp(values: dict[str, Any], setting: Setting) -> Controller:
    return Controller(
        name="specdecpp",
        config=values,
        params=SpecDecPPParams(values["h"], values["min"], values["max"]),
        begin=begin_specdecpp,
        revise=revise_specdecpp,
        update=no_update,
        scratch=2,
        needs_q=True,
    )


def _probability(default: float, doc: str) -> Param:
    return Param(kind=float, default=default, low=0.0, high=1.0, doc=doc)


SPECS = (
    ControllerSpec(
        name="threshold",
        params={"tau": _probability(0.4, "confidence below which drafting stops"), "max": max_param()},
        build=_build_threshold,
        doc="transformers' confidence stop: the token below tau is kept, then drafting stops",
    ),
    ControllerSpec(
        name="failfast",
        params={
            "chunk": length_param(10, low=1, doc="tokens added at a time"),
            "tau": _probability(0.45, "lowest confidence that lets the draft grow"),
            "max": max_param(60),
        },
        build=_build_failfast,
        doc="FailFast, idealised rule: grow by chunks while all confidences of the last chunk reach tau",
    ),
    ControllerSpec(
        name="specdecpp",
        params={
            "h": _probability(0.3, "tolerated probability that some drafted token is rejected"),
            "min": length_param(2, doc="smallest length"),
            "max": max_param(20),
        },
        build=_build_specdecpp,
        doc="SpecDec++ with confidences in place of its trained head: stop when 1 - prod q > h (arXiv 2405.19715)",
    ),
)
