"""Looping text against slow and obvious definitions."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from real.loops import WINDOW, looping, repeated


def test_tokens_loop_when_their_run_was_there_before() -> None:
    assert not looping(list(range(40))).any()
    cycle = [1, 2, 3] * 6
    # The first run that was there before starts at 3, so all but the first three tokens repeat.
    assert looping(cycle).tolist() == [False] * 3 + [True] * 15
    assert not looping([7] * (WINDOW)).any()
    assert looping([7] * (WINDOW + 1)).tolist() == [False] + [True] * WINDOW
    back = [*range(WINDOW), 99, 98, *range(WINDOW), 50]
    assert looping(back).tolist() == [False] * (WINDOW + 2) + [True] * WINDOW + [False]


def test_a_run_repeats_at_its_last_token() -> None:
    assert not repeated(np.arange(30)).any()
    assert np.flatnonzero(repeated(np.tile(np.arange(10), 3))).tolist() == list(range(17, 30))


@given(tokens=st.lists(st.integers(0, 2), max_size=40), window=st.integers(1, 9))
def test_both_as_they_are_defined(tokens: list[int], window: int) -> None:
    starts = range(len(tokens) - window + 1)
    runs = [tokens[start : start + window] for start in starts]
    again = [start for start in starts if runs[start] in runs[:start]]
    ends, inside = np.zeros(len(tokens), bool), np.zeros(len(tokens), bool)
    for start in again:
        ends[start + window - 1] = True
        inside[start : start + window] = True
    assert repeated(tokens, window).tolist() == repeated(np.array(tokens, int), window).tolist() == ends.tolist()
    assert looping(tokens, window).tolist() == inside.tolist()
