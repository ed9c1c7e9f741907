"""What the lambda rules of chains and of trees share: the speed so far, whether drafting pays, and when to try again.

Whether it pays is judged by what came of it: tokens and seconds of all rounds that drafted, dropped drafts included,
beside those of plain rounds. Expectations can mislead for ever, as what a draft that is not submitted would have
brought is never seen, and what drafting costs may not be what the latency model says.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from specsim.jit import jit
from specsim.latency import LatencyModel

TOKENS, SECONDS, IDLE, PATIENCE = 0, 1, 2, 3  # state columns
# Of rounds that drafted: how many, their tokens, and their seconds in units of a plain round by the latency model; mean
# seconds of plain rounds in that unit; and by how much the drafts since the last plain round are ahead of plain ones.
DRAFTS, DRAFT_TOKENS, DRAFT_TIME, PLAIN_TIME, AHEAD = 4, 5, 6, 7, 8
SHARED = 9  # columns used here

CHEAP = 0.02  # tokens that could be decoded while a block is drafted, below which the question is not asked
FIRST_WAIT, LONGEST_WAIT = 8.0, 256.0  # rounds without speculation before a trial
TRIAL_LENGTH = 4  # tokens a trial submits
MEMORY = 64.0  # rounds remembered, of those that drafted and of plain ones
DRAFTS_PRIOR, LATER_PRIOR = 8.0, 0.75  # rounds' worth of trust in the prior; in it the first token is sure, others less
TRIAL_SHARE = 0.005  # of the time that trials may lose in the long run
LEAD = 8.0  # tokens; being further ahead of plain rounds than that does not count
OUTLIER = 4.0  # times what the latency model says, above which a round's seconds are not believed


def shared_columns(
    values: dict[str, float], model: LatencyModel, verify_s: NDArray[np.float64], draft_s: NDArray[np.float64]
) -> NDArray[np.float64]:
    """The initial state of the shared columns: float64[SHARED].

    Args:
        values: parameters of `lambda`.
        model: what rounds cost.
        verify_s: float64[max + 1], seconds to verify d tokens at zero context.
        draft_s: float64[max + 1], seconds to draft d tokens.
    """
    columns, overhead_s = np.zeros(SHARED), float(model.overhead_s)
    # The prior of lambda: `prior` tokens at `speed` times plain decoding, so that it scales with the hardware.
    columns[TOKENS] = values["prior"]
    columns[SECONDS] = values["prior"] * float(model.verify_s(1)) / values["speed"]
    columns[PATIENCE] = FIRST_WAIT
    # The prior of drafting: the length with the most tokens per second.
    tokens = 1.0 + (1.0 - LATER_PRIOR ** np.arange(len(verify_s))) / (1.0 - LATER_PRIOR)
    time = (draft_s + verify_s + overhead_s) / (verify_s[0] + overhead_s)
    best = int(np.argmax(tokens / time))
    columns[DRAFTS], columns[PLAIN_TIME] = DRAFTS_PRIOR, 1.0
    columns[DRAFT_TOKENS], columns[DRAFT_TIME] = DRAFTS_PRIOR * tokens[best], DRAFTS_PRIOR * time[best]
    return columns


@jit
def rate(state, lane):
    """lambda: tokens per second so far, the prior included."""
    return state[lane, TOKENS] / state[lane, SECONDS]


@jit
def gain(state, lane):
    """What a round that drafts gained of late over plain rounds in the same time: tokens, the prior included."""
    return (state[lane, DRAFT_TOKENS] * state[lane, PLAIN_TIME] - state[lane, DRAFT_TIME]) / state[lane, DRAFTS]


@jit
def wait(state, lane):
    """Count a round without speculation; True when it is time for a trial, after 8 such rounds, then 16, up to 256.

    Without trials a rule that once stopped would never learn that the text became easier.
    """
    state[lane, IDLE] += 1.0
    if state[lane, IDLE] < state[lane, PATIENCE]:
        return False
    state[lane, IDLE], state[lane, PATIENCE] = 0.0, min(2.0 * state[lane, PATIENCE], LONGEST_WAIT)
    return True


@jit
def tries(state, lane, value):
    """Whether to draft as a trial, although a draft is worth `value` <= 0 tokens.

    A trial goes on as long as it is ahead of plain rounds. The wait for one is no longer than `TRIAL_SHARE` asks for:
    what hardly loses is tried often, so that a stop by bad luck is found out.
    """
    if state[lane, AHEAD] > 0.0:
        return True
    state[lane, PATIENCE] = min(state[lane, PATIENCE], max(-value / TRIAL_SHARE, 1.0))
    return wait(state, lane)


@jit
def account(state, lane, drafted, tokens, round_s, expected_s, plain_s):
    """Learn from a round.

    Args:
        tokens: it yielded, the target's own included.
        round_s: seconds it took.
        expected_s, plain_s: seconds by the latency model, of this round and of a plain one in its place.
    """
    state[lane, TOKENS] += tokens
    state[lane, SECONDS] += round_s
    # A single stall must not end drafting.
    time = min(round_s, OUTLIER * expected_s) / plain_s
    if drafted == 0:
        state[lane, AHEAD] = 0.0
        state[lane, PLAIN_TIME] += (time - state[lane, PLAIN_TIME]) / MEMORY
        return
    ahead = state[lane, AHEAD] + tokens * state[lane, PLAIN_TIME] - time
    state[lane, AHEAD] = min(max(ahead, 0.0), LEAD)
    # How plain rounds differ from the model is forgotten while there are none: a machine may have become faster since.
    # Where that makes drafts look too slow, plain rounds follow and tell.
    state[lane, PLAIN_TIME] += (1.0 - state[lane, PLAIN_TIME]) / MEMORY
    kept = 1.0 - 1.0 / MEMORY
    state[lane, DRAFTS] = kept * state[lane, DRAFTS] + 1.0
    state[lane, DRAFT_TOKENS] = kept * state[lane, DRAFT_TOKENS] + tokens
    state[lane, DRAFT_TIME] = kept * state[lane, DRAFT_TIME] + time
