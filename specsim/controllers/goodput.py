"""Goodput: the length with the most expected tokens per second, from confidences and the latency model."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from specsim.controllers.base import Controller, ControllerSpec, Setting, max_param
from specsim.controllers.schedules import no_update
from specsim.jit import jit

CTX = 0  # scratch column: context length of the round
SCANNED = 1  # scratch column: best length so far, the end of what was drafted
TOKENS = 2  # scratch column: expected tokens at that length
SURVIVAL = 3  # scratch column: product of the confidences up to it


class CostParams(NamedTuple):
    """Costs in seconds; `verify_s[d]` is the time to verify d draft tokens, or nodes of a tree, at zero context."""

    max: int
    block_len: int
    verify_s: NDArray[np.float64]
    ctx_s: float
    pass_s: float
    token_s: float
    overhead_s: float


@jit
def begin_goodput(params, state, lane, pos, ctx_len, u, hint):
    state[lane, CTX] = ctx_len
    return -1, params.block_len if params.max > 0 else 0


@jit
def revise_goodput(params, state, lane, q, drafted, more):
    """argmax over d of (1 + sum_{j<=d} prod_{k<=j} q_k) / round time, smallest on ties.

    What is drafted is paid for whatever d is verified. All lengths are looked at, since a measured latency table need
    not give a single peak (a stair can hide a second one). More is drafted only when the end was strictly best; it then
    still beats every shorter length, because the new drafting time is added to all and the end has the most tokens. So
    each scan starts from the previous end. Ratios are compared cross-multiplied.
    """
    passes = (drafted + params.block_len - 1) // params.block_len
    sunk = passes * params.pass_s + drafted * params.token_s + params.overhead_s + params.ctx_s * state[lane, CTX]
    last = min(drafted, params.max)
    best = int(state[lane, SCANNED])
    tokens = state[lane, TOKENS] if best > 0 else 1.0
    survival = state[lane, SURVIVAL] if best > 0 else 1.0
    best_tokens, best_time = tokens, sunk + params.verify_s[best]
    for d in range(best + 1, last + 1):
        survival *= float(q[d - 1])
        tokens += survival
        time = sunk + params.verify_s[d]
        if tokens * best_time > best_tokens * time:
            best, best_tokens, best_time = d, tokens, time
    if best == last and last < params.max:
        state[lane, SCANNED] = last
        state[lane, TOKENS] = tokens
        state[lane, SURVIVAL] = survival
        return best, drafted + params.block_len
    return best, best


def cost_params(values: dict[str, Any], setting: Setting) -> CostParams:
    """The costs of a setting, for lengths or nodes up to `values["max"]`."""
    model = setting.latency
    return CostParams(
        max=values["max"],
        block_len=setting.block_len,
        verify_s=model.verify_table(values["max"] + 1)[1:],
        ctx_s=float(model.ctx_s),
        pass_s=setting.block_pass_s,
        token_s=float(model.draft_token_s),
        overhead_s=float(model.overhead_s),
    )


def _build(values: dict[str, Any], setting: Setting) -> Controller:
    return Controller(
        name="goodput",
        config=values,
        params=cost_params(values, setting),
        begin=begin_goodput,
        revise=revise_goodput,
        update=no_update,
        scratch=4,
        needs_q=True,
    )


SPECS = (
    ControllerSpec(
        name="goodput",
        params={"max": max_param()},
        build=_build,
        kinds=("length", "tree"),
        doc="expected tokens over round time, from confidences and the latency model; drafts on while the end is best",
    ),
)
