"""cosSim's construction: what is removed when, what counts as measured, and what the family looks like."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("torch", reason="real/ needs the extra 'real'")

import torch

from real.builders.arm import Arm, cost_order, nested
from real.builders.cossim import (
    Construction,
    boundary,
    max_removed,
    mean_importance,
    removable,
    usable_rows,
    warmup_importance,
)
from real.builders.similarity import importance_rows
from specsim.errors import ConfigError


@st.composite
def constructions(draw: st.DrawFn) -> tuple[int, dict, np.random.Generator]:
    layers = draw(st.integers(6, 20))
    if draw(st.booleans()):
        options: dict = {"fraction": draw(st.sampled_from([None, 0.0, 0.3, 0.6, 1.0]))}
    else:
        fewest = draw(st.integers(1, layers - 4))
        options = {"span": (fewest, draw(st.integers(fewest, layers - 4)))}
    options["zero_skip"] = draw(st.booleans())
    return layers, options, np.random.default_rng(draw(st.integers(0, 999)))


def rows_of(rng: np.random.Generator, layers: int, count: int = 3) -> np.ndarray:
    return rng.integers(0, 4, (count, layers)).astype(np.float32) / 4  # with many ties


@given(constructions())
def test_arms_are_nested_greedy_and_leave_the_ends_alone(case):
    layers, options, rng = case
    made = Construction(layers, **options)
    current = rows_of(rng, layers, 1)[0]
    arm, played, before = made.begin(current), [], set()
    while arm is not None:
        played.append(arm)
        if arm.attention:
            (gone,) = arm.attention - before
            left = [b for b in removable(layers) if b not in before]
            assert gone == min(left, key=lambda b: (current[b], b))
            before = set(arm.attention)
        rows = rows_of(rng, layers)
        if made.collects(len(played) - 1):
            current = rows.mean(axis=0, dtype=np.float32)
        arm = made.observe(rows)
    assert made.complete
    assert len(played) == made.rounds
    assert nested(played)
    assert cost_order(played) == played
    assert all(a.attention == a.mlp and a.attention <= set(range(2, layers - 2)) for a in played)
    fewest, most = options.get("span", (1, max_removed(layers, options.get("fraction"))))
    wanted = [0] * options["zero_skip"] + list(range(fewest, most + 1))
    assert [len(a.attention) for a in made.family] == wanted


@given(constructions(), st.integers(0, 5))
def test_a_round_without_importances_ends_the_construction_but_keeps_its_arm(case, stop):
    layers, options, rng = case
    made = Construction(layers, **options)
    arm, number = made.begin(rows_of(rng, layers, 1)[0]), 0
    while arm is not None:
        empty = number == stop and made.collects(number)
        arm = made.observe(rows_of(rng, layers, 0 if empty else 2))
        number += 1
        if empty:
            assert arm is None
            assert made.complete == (number == made.rounds)


def test_the_zero_skip_round_measures_nothing():
    """The first removal goes by the importances of the warm-up, whatever the round's rows say."""
    made = Construction(8, zero_skip=True)
    warm = np.array([0, 0, 0.4, 0.1, 0.3, 0.2, 0, 0], np.float32)
    assert made.begin(warm) == Arm()
    assert made.observe(np.zeros((0, 8), np.float32)) == Arm.blocks([3])


def test_without_warm_up_there_are_no_arms():
    made = Construction(8)
    assert warmup_importance([None, np.zeros(8, np.float32), np.zeros(8, np.float32)]) is None
    assert made.begin(None) is None
    assert made.family == ()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"n_layers": 5}, "has 5 layers"),
        ({"n_layers": 8, "fraction": 1.5}, "fraction 1.5"),
        ({"n_layers": 8, "span": (0, 2)}, r"span 0\.\.2"),
        ({"n_layers": 8, "span": (1, 5)}, r"span 1\.\.5"),
        ({"n_layers": 8, "span": (1, 2), "fraction": 0.5}, "not both"),
    ],
)
def test_impossible_constructions_are_refused(options, message):
    with pytest.raises(ConfigError, match=message):
        Construction(**options)


def test_usable_rows_are_those_of_accepted_tokens_and_the_probe():
    passes, probe = np.arange(12, dtype=np.float32).reshape(4, 3), np.full(3, 9, np.float32)
    assert usable_rows(passes, 2, probe)[:, 0].tolist() == [3, 6, 9]
    assert usable_rows(passes, 4, probe)[:, 0].tolist() == [3, 6, 9, 9]  # the fourth token was never read
    assert usable_rows(passes, 0, None).shape == (0, 3)
    assert mean_importance(usable_rows(passes, 0, None)) is None


def test_the_probe_reads_the_boundary():
    assert boundary([5, 6, 7], 1) == (6, 1)
    assert boundary([5, 6, 7], 3) == (7, 2)
    assert boundary([5, 6, 7], 1, side=9) == (9, 1)
    assert boundary([], 0) is None


def importance(before, after):
    """Of one block, over all tokens."""
    return importance_rows(torch.stack([before, after], dim=1)).mean()


@given(st.integers(0, 99), st.floats(0.01, 100))
def test_importance_is_a_distance_of_directions(seed, scale):
    x = torch.randn(4, 6, generator=torch.Generator().manual_seed(seed))
    y = torch.randn(4, 6, generator=torch.Generator().manual_seed(seed + 1))
    assert float(importance(x, x * scale)) == pytest.approx(0, abs=1e-6)
    assert float(importance(x, -x)) == pytest.approx(2, abs=1e-6)
    assert float(importance(x, y)) == pytest.approx(float(importance(x * scale, y)), abs=1e-5)
    assert float(importance(torch.zeros(2, 3), x[:2, :3])) == 1


def test_importance_is_float32_whatever_the_model_computes_in():
    x = torch.randn(3, 8, generator=torch.Generator().manual_seed(0)).bfloat16()
    assert importance(x, x + x).dtype == torch.float32


def test_rows_of_passes_are_importances_of_their_blocks():
    states = torch.randn(3, 5, 8, generator=torch.Generator().manual_seed(1))
    states[1, 3] = states[1, 2]  # a block left out
    rows = importance_rows(states)
    assert rows.shape == (3, 4)
    assert float(rows[1, 2]) == pytest.approx(0, abs=1e-6)
    for number, one in enumerate(states):
        for block in range(4):
            read, wrote = one[block], one[block + 1]
            want = 1 - float(read @ wrote / (read.norm() * wrote.norm()))
            assert float(rows[number, block]) == pytest.approx(want, abs=1e-6)
