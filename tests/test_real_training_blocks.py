"""Slots of drafts, their weights, and the decode that is followed when checking, against slow and obvious versions."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

torch = pytest.importorskip("torch", reason="real/ needs the extra 'real'")

from real.training.blocks import (  # noqa: E402
    accepted,
    decayed_weights,
    draw_anchors,
    path_weights,
    slots_at,
    walk,
)
from real.training.target_states import Known  # noqa: E402


def known_of(texts: list[list[int]], choices: list[list[int]], prompt_lens: list[int]) -> Known:
    """Texts of any length with the target's choice after each of their tokens."""
    pad = max(len(text) for text in texts)
    rows = [torch.tensor([row + [0] * (pad - len(row)) for row in part]) for part in (texts, choices)]
    nothing = torch.zeros(len(texts), pad, 0, dtype=torch.bfloat16)
    return Known(
        ids=rows[0],
        lengths=torch.tensor([len(text) for text in texts]),
        prompt_lens=torch.tensor(prompt_lens),
        greedy=rows[1],
        features=nothing,
        last=nothing,
    )


TEXTS = st.integers(2, 12).flatmap(
    lambda size: st.tuples(*(st.lists(st.integers(0, 2), min_size=size, max_size=size) for _ in range(2)))
)


@given(st.lists(TEXTS, min_size=1, max_size=3), st.integers(1, 4))
def test_a_slot_counts_while_the_text_is_the_targets_own(pairs: list[tuple[list[int], list[int]]], count: int) -> None:
    texts, choices = [list(pair[0]) for pair in pairs], [list(pair[1]) for pair in pairs]
    known = known_of(texts, choices, [1] * len(texts))
    every = torch.arange(known.ids.shape[1]).expand(len(texts), -1)
    slots = slots_at(known, every, count)
    for row, (text, choice) in enumerate(zip(texts, choices, strict=True)):
        for anchor in range(known.ids.shape[1]):
            for slot in range(count):
                place = anchor + slot  # the output that answers slot + 1
                own = all(text[at] == choice[at - 1] for at in range(anchor + 1, min(place + 1, len(text))))
                assert bool(slots.valid[row, anchor, slot]) == (place < len(text) and own)
                if slots.valid[row, anchor, slot]:
                    assert slots.labels[row, anchor, slot] == choice[place]


@given(st.integers(0, 3), st.integers(1, 6))
def test_anchors_are_places_a_decode_can_begin_at(seed: int, count: int) -> None:
    known = known_of([[1] * 9, [1] * 4, [1] * 3], [[1] * 9, [1] * 4, [1] * 3], [3, 3, 1])
    anchors = draw_anchors(known, count, np.random.default_rng(seed))
    assert anchors.shape == (3, count)
    for row, (low, high) in enumerate([(2, 7), (2, 2), (1, 1)]):
        assert low <= anchors[row].min() <= anchors[row].max() <= high


def test_anchors_in_loops_are_rarer() -> None:
    text = [*range(40), *range(40)]  # loops from place 47 on
    known = known_of([text], [text], [1])
    places = draw_anchors(known, 4000, np.random.default_rng(0), loops=0.25)[0]
    looping = int((places + 1 >= 47).sum())
    assert looping / (4000 - looping) == pytest.approx(0.25 * 33 / 45, rel=0.15)
    assert not (draw_anchors(known, 4000, np.random.default_rng(0), loops=0.0)[0] + 1 >= 47).any()


@given(st.lists(st.tuples(st.floats(0, 1), st.booleans()), min_size=1, max_size=6), st.floats(0, 1))
def test_path_weights_are_the_formula(slots: list[tuple[float, bool]], lam: float) -> None:
    right = torch.tensor([share for share, _ in slots], dtype=torch.float64)
    valid = torch.tensor([good for _, good in slots]).cumprod(dim=0).bool()  # as slots_at makes them
    reached = [float(np.prod([(1 - lam) * float(q) + lam for q in right[: j + 1]])) for j in range(len(slots))]
    expected = [
        sum(reached[j] for j in range(k, len(slots)) if valid[j]) if valid[k] else 0.0 for k in range(len(slots))
    ]
    torch.testing.assert_close(path_weights(right, valid, lam), torch.tensor(expected, dtype=torch.float64))


def test_decayed_weights() -> None:
    found = decayed_weights(torch.tensor([True, True, False]), 4.0)
    torch.testing.assert_close(found, torch.tensor([1.0, float(np.exp(-0.25)), 0.0]))


@given(st.lists(st.integers(0, 3), min_size=3, max_size=20), st.integers(1, 3))
def test_the_walk_emits_every_token_once(lengths: list[int], prompt_len: int) -> None:
    total = len(lengths)
    if prompt_len >= total:
        return
    rounds = walk(np.array(lengths), prompt_len, total)
    assert rounds[0][0] == prompt_len - 1
    assert sum(emitted for _, emitted in rounds) == total - prompt_len
    for (anchor, emitted), (following, _) in itertools.pairwise(rounds):
        assert following == anchor + emitted
        assert emitted == lengths[anchor] + 1


def test_what_is_accepted_ends_at_the_first_departure() -> None:
    known = known_of([[5, 1, 2, 3, 4]], [[1, 2, 3, 4, 0]], [1])
    slots = slots_at(known, torch.tensor([[0, 2, 4]]), 3)
    chosen = torch.tensor([[[1, 9, 3], [3, 4, 0], [0, 7, 7]]])
    assert accepted(chosen, slots).tolist() == [[1, 3, 1]]
