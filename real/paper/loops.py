"""Rounds counted without looping text (`real.loops`).

A round's seconds, and the round itself, are shared out equally over the tokens it emitted; a figure without loops sums
over the tokens that do not loop.
"""

from __future__ import annotations

from real.folder import Run
from real.loops import looping


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
