"""Where accepted lengths come from: the log, or draws from `accept_prob` shared by all controllers."""

from __future__ import annotations

import numpy as np

from specsim.jit import jit
from specsim.rng import uniform


@jit
def draw_accept_lens(seed, request, pos, offsets, accept_prob):
    """int16[R]: leading draft tokens accepted when token i of a row passes iff its uniform lies below accept_prob.

    Seed in 0 .. 2^63-1, offsets int64[R + 1], accept_prob float32[N]. The uniform is keyed by (seed, request,
    pos, i), so every controller meets the same luck at the same place.
    """
    lengths = np.zeros(pos.size, np.int16)
    for row in range(pos.size):
        first = offsets[row]
        count = 0
        while count < offsets[row + 1] - first:
            if not uniform(seed, request[row], pos[row], count) < float(accept_prob[first + count]):
                break
            count += 1
        lengths[row] = count
    return lengths
