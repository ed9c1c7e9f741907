"""LibraSpec's rule as its theorems would need it: unconditional gains, exact costs, two steps (docs/theory.md, R4)."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from specsim.controllers.base import Controller, ControllerSpec, Setting, max_param
from specsim.controllers.schedules import no_update
from specsim.jit import jit

LENGTH = 0  # scratch column: the length reached so far
CTX = 1  # scratch column: context length of the round
TOKENS = 2  # first work column: expected tokens M_0..M_max


class CorrectedParams(NamedTuple):
    """`round_s[d]`: seconds of a round that verifies d tokens at zero context, drafting left out as in the paper."""

    max: int
    block_len: int
    round_s: NDArray[np.float64]
    ctx_s: float


@jit
def begin_corrected(params, state, lane, pos, ctx_len, u, hint):
    state[lane, CTX] = ctx_len
    return -1, params.block_len if params.max > 0 else 0


@jit
def reach(tokens, seconds, extra_s, start, known):
    """eps^c_m: how far from m = `start` every longer known draft has the better ratio (cross-multiplied)."""
    d = start
    while d < known and tokens[d + 1] * (seconds[start] + extra_s) > tokens[start] * (seconds[d + 1] + extra_s):
        d += 1
    return d


@jit
def revise_corrected(params, state, lane, q, drafted, more):
    """d <- min over m <= d of eps^c_m until it stays: the argmax after two steps when costs are affine or convex."""
    known = min(drafted, params.max)
    tokens = state[lane, TOKENS : TOKENS + params.max + 1]
    survival = 1.0
    tokens[0] = 1.0
    for j in range(known):
        survival *= float(q[j])
        tokens[j + 1] = tokens[j] + survival
    extra_s = params.ctx_s * state[lane, CTX]
    length = min(max(int(state[lane, LENGTH]), params.block_len), known)
    for _ in range(known + 2):
        bound = known
        for m in range(length + 1):
            bound = min(bound, reach(tokens, params.round_s, extra_s, m, known))
        if bound == length:
            break
        length = bound
    state[lane, LENGTH] = length
    if length == known and length < params.max:
        return length, drafted + params.block_len
    return length, length


def _build(values: dict[str, Any], setting: Setting) -> Controller:
    model = setting.latency
    params = CorrectedParams(
        max=values["max"],
        block_len=setting.block_len,
        round_s=model.verify_table(values["max"] + 1)[1:] + model.overhead_s,
        ctx_s=float(model.ctx_s),
    )
    return Controller(
        name="corrected",
        config=values,
        params=params,
        begin=begin_corrected,
        revise=revise_corrected,
        update=no_update,
        scratch=2,
        work=values["max"] + 1,
        needs_q=True,
    )


SPECS = (
    ControllerSpec(
        name="corrected",
        params={"max": max_param(60)},
        build=_build,
        kinds=("length", "tree"),
        doc="LibraSpec repaired: unconditional gains and exact costs reach the best ratio in two adjustments (R4)",
    ),
)
