"""Looping text: which tokens of a text repeat what it said before.

Small models fall into loops, which any drafter copies well and quickly learns; figures are therefore given without
looping text too, and training begins fewer drafts there. What is said the first time does not loop.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

WINDOW = 8
Tokens = Sequence[int] | npt.NDArray[np.int64]


def repeated(tokens: Tokens, window: int = WINDOW) -> npt.NDArray[np.bool_]:
    """bool[N]: whether the `window` tokens that end at each place stood in the text earlier, as a whole.

    Known of a token as soon as it is there; the beginning of a loop is told by `looping` alone.

    Args:
        tokens: N token ids of one text.
        window: length of a run.
    """
    ids, seen = np.asarray(tokens).tolist(), set()
    marks = np.zeros(len(ids), np.bool_)
    for end in range(window, len(ids) + 1):
        run = tuple(ids[end - window : end])
        marks[end - 1] = run in seen
        seen.add(run)
    return marks


def looping(tokens: Tokens, window: int = WINDOW) -> npt.NDArray[np.bool_]:
    """bool[N]: tokens inside a run of `window` tokens that stood in the text earlier; arguments as in `repeated`."""
    mask = np.zeros(len(tokens), np.bool_)
    for end in np.flatnonzero(repeated(tokens, window)).tolist():
        mask[end - window + 1 : end + 1] = True
    return mask
