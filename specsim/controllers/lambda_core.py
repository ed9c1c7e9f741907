"""What the lambda rules of chains and of trees share: the speed so far, and patience while nothing is submitted."""

from __future__ import annotations

from specsim.jit import jit

TOKENS, SECONDS, IDLE, PATIENCE = 0, 1, 2, 3  # state columns
CHEAP = 0.02  # tokens that could be decoded while a block is drafted, below which the question is not asked
FIRST_WAIT, LONGEST_WAIT = 8.0, 256.0  # rounds without speculation before a trial
TRIAL_LENGTH = 4  # tokens a trial submits


@jit
def rate(state, lane):
    """lambda: tokens per second so far, the prior included."""
    return state[lane, TOKENS] / state[lane, SECONDS]


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
