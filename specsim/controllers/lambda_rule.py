"""The lambda rule: most tokens per second in the long run (renewal theory; docs/theory.md, R8).

With lambda the tokens per second reached so far, verifying d tokens is worth E[tokens] - lambda * seconds; the best d
of each round maximises that, and the policy is optimal for the long-run ratio. Confidences are calibrated online.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from specsim.controllers.base import Controller, ControllerSpec, Param, Setting, max_param
from specsim.controllers.calibration import COLUMNS, FORMS, calibrated, later_probability, next_probability, observe
from specsim.controllers.lambda_core import (
    CHEAP,
    FIRST_WAIT,
    IDLE,
    PATIENCE,
    SHARED,
    TRIAL_LENGTH,
    account,
    gain,
    rate,
    shared_columns,
    tries,
    wait,
)
from specsim.controllers.lambda_tree import build_tree
from specsim.errors import ConfigError
from specsim.jit import jit, uncompiled

FIRST_SEEN, FIRST_ACCEPTED, TABLES = SHARED, SHARED + 1, SHARED + 2  # state columns after those of `lambda_core`
# Scratch columns, after the tables: what is known of the drafted tokens, and what a plain round would cost here.
ABSORBED, SURVIVAL, EXPECTED, BEST, BEST_VALUE, TRIAL, PLAIN_S = range(7)
CONFIDENCES = 7  # work columns from here
FIRST_PRIOR = 4.0  # observations' worth of optimism about the first token
LOOKAHEAD = 16  # tokens looked past what is drafted, at least one block
REGRESSION = "regression"  # of trees (`lambda_tree`), whose accepted nodes are not the leading ones


class LambdaParams(NamedTuple):
    """`verify_s[d]` seconds to verify d tokens at zero context; `pass_s`, `token_s` seconds of drafting.

    `ctx_s` seconds per token of context, `overhead_s` of a round. `form` is the calibrator's number, `scratch` the
    first scratch column.
    """

    form: int
    max: int
    block_len: int
    verify_s: NDArray[np.float64]
    pass_s: float
    token_s: float
    ctx_s: float
    overhead_s: float
    scratch: int


@jit
def block_seconds(params, tokens):
    """Seconds of drafting `tokens` more, in whole passes."""
    passes = (tokens + params.block_len - 1) // params.block_len
    return passes * params.pass_s + passes * params.block_len * params.token_s


@jit
def worth_of_drafting(params, state, lane, length, survival, expected, first, later, value):
    """Largest gain over `value` from drafting on: the next token passes with chance `first`, those after it `later`."""
    speed = rate(state, lane)
    best = -1.0e300
    horizon = min(params.max, length + max(LOOKAHEAD, params.block_len))
    for d in range(length + 1, horizon + 1):
        survival *= first if d == length + 1 else later
        expected += survival
        gain = expected - speed * (params.verify_s[d] + block_seconds(params, d - length)) - value
        best = max(best, gain)
    return best


@jit
def begin_lambda(params, state, lane, pos, ctx_len, u, hint):
    """Draft when drafting costs next to nothing, or when some draft is expected to pay and drafts have paid of late."""
    state[lane, params.scratch + PLAIN_S] = params.verify_s[0] + params.ctx_s * ctx_len + params.overhead_s
    if params.max == 0:
        return -1, 0
    first = (state[lane, FIRST_ACCEPTED] + FIRST_PRIOR) / (state[lane, FIRST_SEEN] + FIRST_PRIOR)
    later = later_probability(state, lane, TABLES)
    plain = -rate(state, lane) * params.verify_s[0]
    cheap = rate(state, lane) * block_seconds(params, params.block_len) < CHEAP
    value = min(gain(state, lane), worth_of_drafting(params, state, lane, 0, 1.0, 0.0, first, later, plain))
    if cheap or value > 0.0:
        return -1, params.block_len
    if tries(state, lane, value):
        state[lane, params.scratch + TRIAL] = 1.0
        return -1, params.block_len
    return -1, 0


@jit
def revise_lambda(params, state, lane, q, drafted, more):
    """argmax over d of S_d - lambda * verify(d); another block when looking ahead says that it pays its drafting."""
    s = params.scratch
    last = min(drafted, params.max)
    speed = rate(state, lane)
    start = int(state[lane, s + ABSORBED])
    if start == 0:
        state[lane, s + SURVIVAL], state[lane, s + BEST_VALUE] = 1.0, -speed * params.verify_s[0]
    survival, expected, best = state[lane, s + SURVIVAL], state[lane, s + EXPECTED], int(state[lane, s + BEST])
    value = state[lane, s + BEST_VALUE]
    for j in range(start, last):
        confidence = float(q[j])
        state[lane, s + CONFIDENCES + j] = confidence
        survival *= calibrated(params.form, state, lane, TABLES, confidence, j)
        expected += survival
        if expected - speed * params.verify_s[j + 1] > value:
            best, value = j + 1, expected - speed * params.verify_s[j + 1]
    state[lane, s + ABSORBED], state[lane, s + SURVIVAL], state[lane, s + EXPECTED] = last, survival, expected
    state[lane, s + BEST], state[lane, s + BEST_VALUE] = best, value
    wants_more = False
    if last < params.max:
        first = next_probability(state, lane, TABLES, float(q[last - 1]))
        wants_more = worth_of_drafting(params, state, lane, last, survival, expected, first, first, value) > 0.0
    if wants_more and more:
        return best, drafted + params.block_len
    trial = state[lane, s + TRIAL] == 1.0
    if best > 0 and not trial:
        state[lane, IDLE], state[lane, PATIENCE] = 0.0, FIRST_WAIT
    elif best == 0 and (trial or wait(state, lane)):
        best = min(last, TRIAL_LENGTH)
    return best, drafted + 1 if wants_more else best


@jit
def update_lambda(params, state, lane, arm, drafted, submitted, accepted, round_s):
    plain_s = state[lane, params.scratch + PLAIN_S]
    expected_s = plain_s + params.verify_s[submitted] - params.verify_s[0] + block_seconds(params, drafted)
    account(state, lane, drafted, accepted + 1.0, round_s, expected_s, plain_s)
    confidences = params.scratch + CONFIDENCES
    before = -1.0
    for j in range(min(accepted + 1, submitted)):
        confidence = state[lane, confidences + j]
        observe(params.form, state, lane, TABLES, confidence, j, j < accepted, before)
        before = confidence
    if submitted > 0:
        state[lane, FIRST_SEEN] += 1.0
        state[lane, FIRST_ACCEPTED] += 1.0 if accepted > 0 else 0.0


def _build(values: dict[str, Any], setting: Setting) -> Controller:
    form = values["calibrate"]
    if form not in (REGRESSION, "none") if setting.tree else form == REGRESSION:
        draft, allowed = ("tree", f"{REGRESSION} or none") if setting.tree else ("chain", " or ".join(FORMS))
        raise ConfigError(f"controller 'lambda': calibrate={form}: allowed where the draft is a {draft}: {allowed}")
    return build_tree(values, setting) if setting.tree else _build_chain(values, setting)


def _build_chain(values: dict[str, Any], setting: Setting) -> Controller:
    model, scratch = setting.latency, TABLES + COLUMNS
    params = LambdaParams(
        form=FORMS[values["calibrate"]],
        max=values["max"],
        block_len=setting.block_len,
        verify_s=model.verify_table(values["max"] + 1)[1:],
        pass_s=setting.block_pass_s,
        token_s=float(model.draft_token_s),
        ctx_s=float(model.ctx_s),
        overhead_s=float(model.overhead_s),
        scratch=scratch,
    )
    initial = np.zeros(scratch)
    seconds = uncompiled(block_seconds)  # compiling it for these few calls would take longer
    draft_s = np.array([seconds(params, d) for d in range(values["max"] + 1)])
    initial[:SHARED] = shared_columns(values, model, params.verify_s, draft_s)
    return Controller(
        name="lambda",
        config=values,
        params=params,
        begin=begin_lambda,
        revise=revise_lambda,
        update=update_lambda,
        initial=initial,
        scratch=CONFIDENCES,
        work=values["max"],
        per_request=not values["carry"],
        needs_q=True,
    )


SPECS = (
    ControllerSpec(
        name="lambda",
        params={
            "calibrate": Param(
                kind=str,
                choices=(*FORMS, REGRESSION),
                from_setting=lambda s: REGRESSION if s.tree else "beta",
                doc=f"how confidences become probabilities; default beta, on trees {REGRESSION}",
            ),
            "carry": Param(kind=bool, default=True, doc="keep what was learnt from one request to the next"),
            "prior": Param(
                kind=float, default=30.0, low=0.0, open_low=True, doc="tokens the prior of lambda counts for"
            ),
            "speed": Param(
                kind=float, default=2.0, low=0.0, open_low=True, doc="the prior's speed, in units of 1 / verify(1)"
            ),
            "max": max_param(),
        },
        build=_build,
        kinds=("length", "tree"),
        per_request=False,
        doc="lambda rule: most tokens per second in the long run, with online calibration (docs/theory.md, R8)",
    ),
)
