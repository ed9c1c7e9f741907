"""LibraSpec: the length by marginal gains (arXiv 2608.08721, Algorithm 1; our readings: docs/controllers.md)."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from specsim.controllers.base import LENGTH_HIGH, Controller, ControllerSpec, Param, Setting, max_param
from specsim.controllers.schedules import no_update
from specsim.jit import jit

LENGTH = 0  # scratch column: the decision d so far; 0 before the first block
WANTED = 1  # scratch column: the longest draft asked for so far
ABSORBED = 2  # scratch column: tokens whose confidences are in the sums below
SUMS = 3  # work columns from here: max suffix sums S_i over the absorbed tokens, then max products q_i..q_absorbed
FAR = 1.0e9  # a bound beyond any draft: alpha may be any finite number, an int64 may not


class LibraSpecParams(NamedTuple):
    """Parameters as the compiled rule reads them.

    `charged_alpha[d]` is the alpha that also pays for another draft block when d tokens are verified now
    (`charge_draft`); it is alpha itself when the draft cost is left out, as printed.
    """

    alpha: float
    block: int
    max: int
    fixpoint: bool
    shrink_at_cap: bool
    charge_draft: bool
    charged_alpha: NDArray[np.float64]


@jit
def absorb(q, first, length, sums, products):
    """Extend every suffix sum S_i from the first `first` to the first `length` tokens; S_i stands at sums[i - 1].

    The printed recursion S_i = q_i (1 + S_{i+1}) starts anew for each length and is one long dependency chain; adding
    the new products q_i..q_length to all sums is the same number, and these additions are independent of each other.
    """
    for t in range(first, length):
        confidence = float(q[t])
        products[t], sums[t] = 1.0, 0.0
        for i in range(t + 1):
            products[i] *= confidence
            sums[i] += products[i]


@jit
def smallest_bound(sums, length, alpha):
    """Algorithm 1's eps*: min over i <= length of floor(alpha * S_i) + i; `int` is the floor, as S_i >= 0."""
    bound = 1 << 30
    for i in range(length):
        bound = min(bound, int(min(alpha * sums[i], FAR)) + i + 1)
    return bound


@jit
def smallest_fixpoint(q, length, known, alpha):
    """min over i <= length of eps_i = max{d' <= known: d' < alpha R_i(d') + i}, Theorem 3.3 read as it stands.

    R_i(d') sums the products i..j for j up to the candidate d' itself. The set is an interval, so the
    scan stops at the first candidate that fails.
    """
    bound = known
    for i in range(1, length + 1):
        total, product, candidate = 0.0, 1.0, i - 1
        while candidate < known:
            product *= float(q[candidate])
            total += product
            if not candidate + 1 < alpha * total + i:
                break
            candidate += 1
        bound = min(bound, candidate)
    return bound


@jit
def judge(params, state, lane, q, sums, products, length, drafted, alpha):
    """(eps*, whether it says to go on) for the current length; sums and products are the lane's work columns."""
    if params.fixpoint:
        bound = smallest_fixpoint(q, length, drafted, alpha)
        # The fixed point cannot look past the drafted tokens: reaching their end means "draft on, then look again".
        return bound, bound > length or bound == length == drafted
    absorb(q, int(state[lane, ABSORBED]), length, sums, products)
    state[lane, ABSORBED] = length  # never less than before: a judgement that does not grow the length is the last
    bound = smallest_bound(sums, length, alpha)
    return bound, bound > length


@jit
def begin_libraspec(params, state, lane, pos, ctx_len, u, hint):
    return -1, params.block if params.max > 0 else 0


@jit
def revise_libraspec(params, state, lane, q, drafted, more):
    """The loop of Algorithm 1 from where the last block left it; at the cap there is no shrink test as printed."""
    cap = params.max if more else min(params.max, drafted)
    first = state[lane, LENGTH] == 0.0
    wanted = params.block if first else int(state[lane, WANTED])
    length = min(params.block if first else int(state[lane, LENGTH]), cap)
    sums = state[lane, SUMS : SUMS + params.max]
    products = state[lane, SUMS + params.max : SUMS + 2 * params.max]
    while length < cap:
        bound, grows = judge(params, state, lane, q, sums, products, length, drafted, params.alpha)
        if not grows:
            return bound, bound
        target = min(max(bound, length + 1), cap)
        if target > drafted:
            if params.charge_draft:
                _, pays = judge(params, state, lane, q, sums, products, length, drafted, params.charged_alpha[length])
                if not pays:
                    return length, length
            wanted = drafted + (target - drafted + params.block - 1) // params.block * params.block
            state[lane, LENGTH] = target
            state[lane, WANTED] = wanted
            return length, wanted
        length = target
    if params.shrink_at_cap:
        bound, _ = judge(params, state, lane, q, sums, products, length, drafted, params.alpha)
        if bound <= length:
            return bound, bound
    if cap < params.max:
        # Nothing more can be had. Whether the rule would have gone on decides no length, only the count of such rounds.
        _, goes_on = judge(params, state, lane, q, sums, products, length, drafted, params.alpha)
        return length, max(length + 1 if goes_on else length, min(wanted, params.max))
    return length, length


def charged_alphas(values: dict[str, Any], setting: Setting) -> NDArray[np.float64]:
    """float64[max + 1]: alpha times c / (c + g), c the marginal verification time and g a block's draft time per token.

    Our reading of "charge the draft" (the paper leaves draft time out of its objective): a further block adds g seconds
    to each of its tokens, so the rate at which a token must pay rises from c to c + g.
    """
    if not values["charge_draft"]:
        return np.zeros(1)
    table = setting.latency.verify_table(values["max"] + 2)
    marginal = np.diff(table[1:])
    passes = math.ceil(values["block"] / setting.block_len)
    draft_s = passes * setting.block_pass_s / values["block"] + setting.latency.draft_token_s
    rate = marginal + draft_s
    return values["alpha"] * np.divide(marginal, rate, out=np.ones_like(marginal), where=rate > 0)


def _build(values: dict[str, Any], setting: Setting) -> Controller:
    params = LibraSpecParams(**values, charged_alpha=charged_alphas(values, setting))
    return Controller(
        name="libraspec",
        config=values,
        params=params,
        begin=begin_libraspec,
        revise=revise_libraspec,
        update=no_update,
        scratch=SUMS,
        work=2 * values["max"],
        needs_q=True,
    )


def default_block(setting: Setting) -> int:
    """The drafter's own block, or the paper's 10 where drafting goes token by token and where the draft is a tree.

    A tree is drafted whole, and a block that is all of it would leave nothing to decide.
    """
    return setting.block_len if setting.block_len > 1 and not setting.tree else 10


SPECS = (
    ControllerSpec(
        name="libraspec",
        params={
            "alpha": Param(
                kind=float, default=2.0, low=0.0, open_low=True, doc="the constant T / (tau c) of Algorithm 1"
            ),
            "block": Param(
                kind=int,
                low=1,
                high=LENGTH_HIGH,
                from_setting=default_block,
                doc="block size n; default the trace's block_len, or 10 where that is 1 and on trees",
            ),
            "max": max_param(60),
            "fixpoint": Param(kind=bool, default=False, doc="sum to the candidate length, as Theorem 3.3 is written"),
            "shrink_at_cap": Param(kind=bool, default=False, doc="one rollback test at the cap too"),
            "charge_draft": Param(kind=bool, default=False, doc="a further block must pay its draft time"),
        },
        build=_build,
        kinds=("length", "tree"),
        doc="LibraSpec: verify as long as every suffix is expected to pay (Algorithm 1)",
    ),
)
