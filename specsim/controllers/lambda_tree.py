"""The lambda rule on best-first trees: the number of nodes worth most, path probabilities corrected by regression.

The rule is that of chains (`lambda_rule`): n nodes are worth E[accepted] - lambda * seconds. Of a tree E[accepted] is
the sum of the path probabilities of its nodes, whatever depends on what. That a node was accepted is not among what a
controller is told, only how many were; so the factors that path probabilities must be multiplied with are estimated,
by size of the probability, by Bayesian linear regression of the accepted number on their sums; factors of neighbouring
sizes are alike beforehand.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from specsim.controllers.base import Controller, Setting
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
from specsim.jit import jit

SIZES = 12  # classes of path probabilities, each sqrt(1/2) of the one before; the last holds the rest
STEP = 0.5**0.5
FACTORS, SPREAD = SHARED, SHARED + SIZES  # mean and, row by row, covariance of the factors
COLUMNS = SPREAD + SIZES * SIZES
TRIAL, PLAIN_S = COLUMNS, COLUMNS + 1  # scratch columns: this round is a trial; what a plain round would cost here
SUMS = COLUMNS + 2  # work columns: summed path probabilities of what is submitted, by size

FACTOR_VARIANCE, FACTOR_REACH = 0.5, 6.0  # prior variance of factors around 1; classes over which they are alike
NOISE_VARIANCE = 4.0  # of the number accepted around its expectation


class TreeLambdaParams(NamedTuple):
    """`verify_s[n]` seconds to verify n nodes at zero context; `draft_s` seconds of drafting a tree.

    `ctx_s` seconds per token of context, `overhead_s` of a round.
    """

    max: int
    block_len: int
    verify_s: NDArray[np.float64]
    draft_s: float
    ctx_s: float
    overhead_s: float
    corrected: bool


@jit
def size_of(path, size):
    """Size class of a path probability, at least `size`: probabilities come in descending order."""
    while size < SIZES - 1 and path <= STEP ** (size + 1):
        size += 1
    return size


@jit
def begin_tree(params, state, lane, pos, ctx_len, u, hint):
    """Draft when drafting costs next to nothing, or when drafts have paid of late; else now and then."""
    state[lane, PLAIN_S] = params.verify_s[0] + params.ctx_s * ctx_len + params.overhead_s
    if params.max == 0:
        return -1, 0
    value = gain(state, lane)
    if rate(state, lane) * params.draft_s < CHEAP or value > 0.0:
        return -1, params.block_len
    if tries(state, lane, value):
        state[lane, TRIAL] = 1.0
        return -1, params.block_len
    return -1, 0


@jit
def revise_tree(params, state, lane, q, drafted, more):
    """argmax over n of the corrected path probabilities' sum - lambda * verify(n), smallest on ties."""
    last = min(drafted, params.max)
    speed = rate(state, lane)
    path, expected, size = 1.0, 0.0, 0
    best, value = 0, -speed * params.verify_s[0]
    for j in range(last):
        path *= float(q[j])
        size = size_of(path, size)
        expected += min(max(state[lane, FACTORS + size], 0.0) * path, 1.0)
        if expected - speed * params.verify_s[j + 1] > value:
            best, value = j + 1, expected - speed * params.verify_s[j + 1]
    trial = state[lane, TRIAL] == 1.0
    if best > 0 and not trial:
        state[lane, IDLE], state[lane, PATIENCE] = 0.0, FIRST_WAIT
    elif best == 0 and (trial or wait(state, lane)):
        best = min(last, TRIAL_LENGTH)
    for b in range(SIZES):
        state[lane, SUMS + b] = 0.0
    path, size = 1.0, 0
    for j in range(best):
        path *= float(q[j])
        size = size_of(path, size)
        state[lane, SUMS + size] += path
    return best, best


@jit
def update_tree(params, state, lane, arm, drafted, submitted, accepted, round_s):
    expected_s = state[lane, PLAIN_S] + params.verify_s[submitted] - params.verify_s[0]
    if drafted > 0:
        expected_s += params.draft_s
    account(state, lane, drafted, accepted + 1.0, round_s, expected_s, state[lane, PLAIN_S])
    if params.corrected and submitted > 0:
        learn(state, lane, accepted)


@jit
def learn(state, lane, accepted):
    """One step of the regression: accepted = factors . sums + noise."""
    error, noise = float(accepted), NOISE_VARIANCE
    for a in range(SIZES):
        error -= state[lane, FACTORS + a] * state[lane, SUMS + a]
        for b in range(SIZES):
            noise += state[lane, SUMS + a] * state[lane, SPREAD + a * SIZES + b] * state[lane, SUMS + b]
    gains = np.zeros(SIZES)
    for a in range(SIZES):
        for b in range(SIZES):
            gains[a] += state[lane, SPREAD + a * SIZES + b] * state[lane, SUMS + b]
    for a in range(SIZES):
        state[lane, FACTORS + a] += gains[a] * error / noise
        for b in range(SIZES):
            state[lane, SPREAD + a * SIZES + b] -= gains[a] * gains[b] / noise


def build_tree(values: dict[str, Any], setting: Setting) -> Controller:
    """The controller for a setting whose drafts are trees; `values` are the parameters of `lambda`."""
    model = setting.latency
    params = TreeLambdaParams(
        max=values["max"],
        block_len=setting.block_len,
        verify_s=model.verify_table(values["max"] + 1)[1:],
        draft_s=float(model.draft_pass_s + setting.block_len * model.draft_token_s),
        ctx_s=float(model.ctx_s),
        overhead_s=float(model.overhead_s),
        corrected=values["calibrate"] == "regression",
    )
    initial = np.zeros(COLUMNS)
    initial[:SHARED] = shared_columns(values, model, params.verify_s, np.full(values["max"] + 1, params.draft_s))
    initial[FACTORS : FACTORS + SIZES] = 1.0
    apart = np.abs(np.subtract.outer(np.arange(SIZES), np.arange(SIZES)))
    initial[SPREAD:COLUMNS] = (FACTOR_VARIANCE * np.exp(-apart / FACTOR_REACH)).ravel()
    return Controller(
        name="lambda",
        config=values,
        params=params,
        begin=begin_tree,
        revise=revise_tree,
        update=update_tree,
        initial=initial,
        scratch=2,
        work=SIZES,
        per_request=not values["carry"],
        needs_q=True,
    )
