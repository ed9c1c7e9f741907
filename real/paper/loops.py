"""Looping text: which tokens of an output repeat what it said before, and rounds counted without them.

Small models fall into loops, which any drafter copies well; figures are therefore given without looping text too.
A token loops when it lies in a run of `WINDOW` tokens that the same output contained earlier, as a whole, at another
place; what was said the first time does not loop. A round's seconds, and the round itself, are shared out equally over
the tokens it emitted; a figure without loops sums over the tokens that do not loop.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from real.folder import Run

WINDOW = 8


def looping(tokens: Sequence[int], window: int = WINDOW) -> npt.NDArray[np.bool_]:
    """bool[N]: tokens inside a repeated run of `window` tokens.

    Args:
        tokens: N token ids of one output.
        window: length of a run.
    """
    mask, seen = np.zeros(len(tokens), np.bool_), set()
    for start in range(len(tokens) - window + 1):
        run = tuple(tokens[start : start + window])
        if run in seen:
            mask[start : start + window] = True
        seen.add(run)
    return mask


def fresh_sums(run: Run) -> tuple[float, float, float]:
    """(tokens, rounds, seconds) of one decode without its looping tokens; rounds are shared out like seconds."""
    fresh = ~looping(run.decoded.output)
    tokens = rounds = seconds = 0.0
    for row in run.decoded.rounds:
        share = float(fresh[row.pos : row.pos + row.emitted_len].sum()) / row.emitted_len
        tokens += share * row.emitted_len
        rounds += share
        seconds += share * row.round_s
    return tokens, rounds, seconds
