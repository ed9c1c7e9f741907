"""CaDDTree's stopping rule: nodes of the best-first tree, best first, as long as each makes the round faster per token.

Source: CaDDTree (repository at 227dbcf, the loop over popped nodes); our formulation of it over confidences, so that it
serves chains as well.
"""

from __future__ import annotations

from typing import Any

from specsim.controllers.base import Controller, ControllerSpec, Setting, max_param
from specsim.controllers.goodput import cost_params
from specsim.controllers.schedules import no_update
from specsim.jit import jit

CTX = 0  # scratch column: context length of the round
TAKEN = 1  # scratch column: nodes taken so far, the end of what was drafted
GAIN = 2  # scratch column: their summed path probabilities
PATH = 3  # scratch column: path probability of the last of them
WRITTEN_CAP = 1024  # the released code's largest tree


@jit
def begin_caddtree(params, state, lane, pos, ctx_len, u, hint):
    state[lane, CTX] = ctx_len
    return -1, params.block_len if params.max > 0 else 0


@jit
def stopping_size(params, q, first, known, gain, path, drafting_s):
    """Nodes first..known - 1 of a draft are looked at, after `first` nodes with summed path probability `gain`.

    Returns:
        (nodes taken, their summed path probability, path probability of the last): as many as raise
        (1 + gain) / (drafting_s + verify_s[nodes]), the first that does not ending it. Ratios are compared
        cross-multiplied.
    """
    taken = first
    seconds = drafting_s + params.verify_s[taken]
    for k in range(first, known):
        next_path = path * float(q[k])
        next_seconds = drafting_s + params.verify_s[k + 1]
        if (1.0 + gain + next_path) * seconds <= (1.0 + gain) * next_seconds:
            break
        taken, gain, path, seconds = k + 1, gain + next_path, next_path, next_seconds
    return taken, gain, path


@jit
def revise_caddtree(params, state, lane, q, drafted, more):
    """Take nodes until one does not pay; when all that were drafted do, draft another pass and go on.

    Going on from the end is starting anew with the larger draft time: a node that paid pays all the more when there is
    more to spread over the tokens.
    """
    passes = (drafted + params.block_len - 1) // params.block_len
    drafting_s = passes * params.pass_s + drafted * params.token_s + params.overhead_s + params.ctx_s * state[lane, CTX]
    first = int(state[lane, TAKEN])
    path = state[lane, PATH] if first > 0 else 1.0
    known = min(drafted, params.max)
    taken, gain, path = stopping_size(params, q, first, known, state[lane, GAIN], path, drafting_s)
    if taken == known and known < params.max:
        state[lane, TAKEN], state[lane, GAIN], state[lane, PATH] = taken, gain, path
        return taken, drafted + params.block_len
    return taken, taken


def _build(values: dict[str, Any], setting: Setting) -> Controller:
    return Controller(
        name="caddtree",
        config=values,
        params=cost_params(values, setting),
        begin=begin_caddtree,
        revise=revise_caddtree,
        update=no_update,
        scratch=4,
        needs_q=True,
    )


SPECS = (
    ControllerSpec(
        name="caddtree",
        params={"max": max_param(WRITTEN_CAP)},
        build=_build,
        kinds=("length", "tree"),
        doc="CaDDTree: nodes, or tokens of a chain, until one no longer raises expected tokens per second",
    ),
)
