"""Online calibration: from a drafter's confidence and the draft position to a probability of acceptance.

Observations are the submitted positions up to and including the first rejection; given that everything before was
accepted they are unbiased (a token behind a rejection is never observed). Four forms: none, beta (counts by confidence
bucket and position), platt (logistic in logit and position), isotonic (pooled adjacent violators over the buckets).

One block of columns of a state row holds everything; `base` is its first column.
"""

from __future__ import annotations

import math

from specsim.jit import jit

NONE, BETA, PLATT, ISOTONIC = 0, 1, 2, 3
FORMS = {"none": NONE, "beta": BETA, "platt": PLATT, "isotonic": ISOTONIC}

BUCKETS = 24  # of the logit of the confidence, from -5 to 7
SPOTS = 8  # buckets of the draft position: 1, 2, 3-4, 5-8, 9-16, 17-32, 33-64, more
CELLS = BUCKETS * SPOTS
# Sums over observations: how many, how many accepted, summed confidence; by bucket, then by (bucket, spot).
SEEN_B, ACCEPTED_B, CONFIDENCE_B = 0, BUCKETS, 2 * BUCKETS
SEEN, ACCEPTED, CONFIDENCE = 3 * BUCKETS, 3 * BUCKETS + CELLS, 3 * BUCKETS + 2 * CELLS
WEIGHTS = 3 * BUCKETS + 3 * CELLS  # platt: intercept, logit, log position, and the sums of squared gradients
# What the token after one of bucket b did, for looking past what is drafted.
NEXT_SEEN, NEXT_ACCEPTED = WEIGHTS + 6, WEIGHTS + 6 + BUCKETS
COLUMNS = NEXT_ACCEPTED + BUCKETS

BUCKET_PRIOR, CELL_PRIOR, NEXT_PRIOR = 8.0, 24.0, 4.0  # observations' worth of trust in the coarser estimate
_LOW, _HIGH = -5.0, 7.0


@jit
def logit(q):
    clipped = min(max(q, 1e-6), 1.0 - 1e-6)
    return math.log(clipped / (1.0 - clipped))


@jit
def bucket_of(q):
    """Bucket 0..BUCKETS-1 of a confidence."""
    place = (logit(q) - _LOW) / (_HIGH - _LOW) * BUCKETS
    return min(max(int(place), 0), BUCKETS - 1)


@jit
def spot_of(position):
    """Bucket 0..SPOTS-1 of a draft position counted from 0."""
    spot = 0
    last = 0
    while position > last and spot < SPOTS - 1:
        spot += 1
        last = 2 * last + 1 if last > 0 else 1
    return spot


@jit
def beta_probability(state, lane, base, q, position):
    """The confidence plus its mean error in the bucket, plus what is left of it at this position; both shrunk to 0.

    Correcting the error rather than replacing q keeps differences inside a bucket, and without observations q stands.
    """
    b = bucket_of(q)
    seen = state[lane, base + SEEN_B + b]
    error = (state[lane, base + ACCEPTED_B + b] - state[lane, base + CONFIDENCE_B + b]) / (seen + BUCKET_PRIOR)
    cell = b * SPOTS + spot_of(position)
    seen_here = state[lane, base + SEEN + cell]
    here = state[lane, base + ACCEPTED + cell] - state[lane, base + CONFIDENCE + cell] - seen_here * error
    return q + error + here / (seen_here + CELL_PRIOR)


@jit
def platt_probability(state, lane, base, q, position):
    """Logistic regression on (1, logit q, log2 position), started at the identity."""
    score = state[lane, base + WEIGHTS] + (1.0 + state[lane, base + WEIGHTS + 1]) * logit(q)
    score += state[lane, base + WEIGHTS + 2] * math.log2(position + 1.0)
    return 1.0 / (1.0 + math.exp(-score))


@jit
def isotonic_probability(state, lane, base, q):
    """Acceptance by bucket made non-decreasing: the min-max form of pooled adjacent violators, each bucket weighted by
    its observations and held up by `BUCKET_PRIOR` observations at its own q."""
    b = bucket_of(q)
    best = 0.0
    for first in range(b + 1):
        # max over first of min over last of the pooled mean of buckets first..last
        total, weight, least = 0.0, 0.0, 2.0
        for last in range(first, BUCKETS):
            seen = state[lane, base + SEEN_B + last]
            total += state[lane, base + ACCEPTED_B + last]
            weight += seen
            if last == b:
                total += BUCKET_PRIOR * q
                weight += BUCKET_PRIOR
            if last >= b and weight > 0.0:
                least = min(least, total / weight)
        best = max(best, least)
    return best


@jit
def calibrated(form, state, lane, base, q, position):
    """Probability that the token at `position` (from 0) with confidence q is accepted, all before it being so."""
    value = q
    if form == BETA:
        value = beta_probability(state, lane, base, q, position)
    elif form == PLATT:
        value = platt_probability(state, lane, base, q, position)
    elif form == ISOTONIC:
        value = isotonic_probability(state, lane, base, q)
    return min(max(value, 0.0), 1.0)


@jit
def next_probability(state, lane, base, q):
    """Acceptance of the token that follows one of confidence q, before it is drafted; shrunk to q itself."""
    b = bucket_of(q)
    seen = state[lane, base + NEXT_SEEN + b]
    return (state[lane, base + NEXT_ACCEPTED + b] + NEXT_PRIOR * q) / (seen + NEXT_PRIOR)


@jit
def later_probability(state, lane, base):
    """Acceptance of a token whose predecessor was accepted, whatever its confidence; 3/4 without observations."""
    seen, accepted = 2.0 * NEXT_PRIOR, 1.5 * NEXT_PRIOR
    for b in range(BUCKETS):
        seen += state[lane, base + NEXT_SEEN + b]
        accepted += state[lane, base + NEXT_ACCEPTED + b]
    return accepted / seen


@jit
def observe(form, state, lane, base, q, position, accepted, before):
    """Add one observed position; `before` is the confidence of the token in front of it, negative at position 0."""
    b = bucket_of(q)
    cell = b * SPOTS + spot_of(position)
    outcome = 1.0 if accepted else 0.0
    state[lane, base + SEEN_B + b] += 1.0
    state[lane, base + ACCEPTED_B + b] += outcome
    state[lane, base + CONFIDENCE_B + b] += q
    state[lane, base + SEEN + cell] += 1.0
    state[lane, base + ACCEPTED + cell] += outcome
    state[lane, base + CONFIDENCE + cell] += q
    if before >= 0.0:
        previous = bucket_of(before)
        state[lane, base + NEXT_SEEN + previous] += 1.0
        state[lane, base + NEXT_ACCEPTED + previous] += outcome
    if form == PLATT:
        residual = outcome - platt_probability(state, lane, base, q, position)
        for k in range(3):
            feature = 1.0
            if k == 1:
                feature = logit(q)
            elif k == 2:
                feature = math.log2(position + 1.0)
            gradient = residual * feature
            state[lane, base + WEIGHTS + 3 + k] += gradient * gradient
            state[lane, base + WEIGHTS + k] += 0.5 * gradient / (1.0 + math.sqrt(state[lane, base + WEIGHTS + 3 + k]))
