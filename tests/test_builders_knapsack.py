"""The knapsack search: what it finds, where that is the best there is and where not, and the choices made of it."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("torch", reason="real/ needs the extra 'real'")

import torch

from real.builders.arm import Arm
from real.builders.knapsack import clasp, search
from real.builders.knapspec import (
    Candidate,
    Latency,
    Schedule,
    Times,
    best_length,
    budget_of,
    candidates,
    choose,
    family,
    shortlist,
    tokens_per_time,
    weights_of,
)
from real.builders.similarity import mean_cosine
from specsim.errors import ConfigError
from tests.arm_masks import mask_of
from tests.real_law import one_thread  # noqa: F401 - a fixture

Net = tuple[Callable, list]


def network(matrices: Sequence[np.ndarray], states: np.ndarray) -> Net:
    """(a run of residual linear parts, the full model's states before them and after each)."""
    parts = [torch.tensor(m, dtype=torch.float32) for m in matrices]

    def run(part, x):
        return x + x @ parts[part].T

    teacher = [torch.tensor(states, dtype=torch.float32)]
    for part in range(len(parts)):
        teacher.append(run(part, teacher[-1]))
    return run, teacher


def end_of(net: Net, left_out: Collection[int]) -> list:
    """States of the network without some parts, as the search sees them."""
    run, teacher = net
    states = [teacher[0]]
    for part in range(len(teacher) - 1):
        states.append(states[-1] if part in left_out else run(part, states[-1]))
    return states


@st.composite
def nets(draw: st.DrawFn, parts: int = 5) -> Net:
    rng = np.random.default_rng(draw(st.integers(0, 9999)))
    count = draw(st.integers(2, parts))
    return network(rng.normal(0, 0.6, (count, 3, 3)), rng.normal(size=(draw(st.integers(1, 4)), 3)))


def subsets(parts: Collection[int]) -> list[tuple[int, ...]]:
    return [c for n in range(len(parts) + 1) for c in itertools.combinations(parts, n)]


@given(nets())
def test_without_competition_every_network_is_seen(net):
    """With powers of two as weights every set has a weight of its own, so the search is exhaustive."""
    count = len(net[1]) - 1
    found = search(net[1], net[0], [2**k for k in range(count)], 2**count)
    assert found.exact
    assert [p.weight for p in found.paths] == list(range(2**count))
    for path in found.paths:
        assert path.left_out == tuple(k for k in range(count) if path.weight >> k & 1)


@given(nets(), st.data())
def test_paths_are_what_they_say_and_never_better_than_the_best(net, data):
    count = len(net[1]) - 1
    weights = data.draw(st.lists(st.integers(1, 3), min_size=count, max_size=count))
    budget = data.draw(st.integers(0, sum(weights)))
    keep = data.draw(st.sets(st.integers(0, count - 1)))
    theta = data.draw(st.sampled_from([None, 0.0, 0.5, 0.9]))
    found = search(net[1], net[0], weights, budget, keep=keep, theta=theta)
    sets = subsets([k for k in range(count) if k not in keep])
    for path in found.paths:
        states = end_of(net, path.left_out)
        alike = [float(mean_cosine(s, t)) for s, t in zip(states, net[1], strict=True)]
        assert path.weight == sum(weights[k] for k in path.left_out) <= budget
        assert not keep & set(path.left_out)
        assert path.similarity == pytest.approx(alike[-1], abs=1e-5)
        torch.testing.assert_close(path.state, states[-1])
        assert theta is None or min(alike) >= theta - 1e-5
        rivals = [c for c in sets if sum(weights[k] for k in c) == path.weight]
        best = max(float(mean_cosine(end_of(net, c)[-1], net[1][-1])) for c in rivals)
        assert path.similarity <= best + 1e-5
        if found.exact and theta is None:
            assert path.similarity == pytest.approx(best, abs=1e-5)
    if theta is None and budget >= sum(weights):
        reachable = {sum(weights[k] for k in c) for c in sets}
        assert {p.weight for p in found.paths} == reachable


def test_the_search_can_miss_the_best_network():
    """Two parts of four out: the path kept ends pointing away from the full model, another one ends on it."""
    net = network(
        np.array([[[-1, 0], [1, 1]], [[0, -1], [-1, 0]], [[-1, 0], [1, -1]], [[1, -1], [0, -1]]]), np.array([[1, 0]])
    )
    found = search(net[1], net[0], [1] * 4, 3, keep=(3,))
    path = next(p for p in found.paths if p.weight == 2)
    assert path.left_out == (0, 1)
    assert path.similarity == pytest.approx(-1)
    assert float(mean_cosine(end_of(net, (0, 2))[-1], net[1][-1])) == pytest.approx(1)
    assert not found.exact


@pytest.mark.parametrize(("prefer", "want"), [(False, (0,)), (True, (2,))])
def test_ties_go_to_the_set_that_ran_or_to_the_one_that_left_out(prefer, want):
    """Three parts that change nothing, so any one of them may go."""
    net = network(np.zeros((3, 2, 2)), np.ones((2, 2)))
    found = search(net[1], net[0], [1] * 3, 1, prefer_left_out=prefer)
    assert next(p.left_out for p in found.paths if p.weight == 1) == want


def test_nothing_survives_a_limit_that_nothing_meets():
    net = network(np.array([np.eye(2), [[-3, 0], [0, -3]]]), np.array([[1.0, 0.0]]))
    turned = [*net[1][:1], *(-state for state in net[1][1:])]
    found = search(turned, net[0], [1, 1], 2, theta=0.5)
    assert found.paths == ()
    assert found.entering == (1, 0)


def test_a_state_at_the_limit_survives():
    net = network(np.zeros((2, 2, 2)), np.array([[1.0, 0.0]]))
    assert len(search(net[1], net[0], [1, 1], 2, theta=1.0).paths) == 3


@pytest.mark.parametrize(
    ("weights", "budget", "message"), [([0, 1], 1, "weights"), ([1, 1], -1, "budget"), ([1], 1, "3 states")]
)
def test_impossible_searches_are_refused(weights, budget, message):
    net = network(np.zeros((2, 2, 2)), np.ones((1, 2)))
    with pytest.raises(ConfigError, match=message):
        search(net[1], net[0], weights, budget)


@given(nets(), st.data())
def test_clasp_leaves_out_as_many_layers_as_asked(net, data):
    layers = len(net[1]) - 1
    skip = data.draw(st.integers(0, layers - 1))
    teacher = [state[-1:] for state in net[1]]
    gone = clasp(teacher, net[0], skip)
    assert len(gone) == skip
    assert set(gone) <= set(range(layers))
    with pytest.raises(ConfigError, match=f"{layers} layers to leave out"):
        clasp(teacher, net[0], layers)


# --- KnapSpec ---------------------------------------------------------------------------------------------------------

TIMES = st.builds(Times, st.floats(0.1, 10), st.floats(0.1, 10))


@given(st.integers(2, 4), st.integers(0, 99), TIMES)
def test_candidates_keep_the_ends_and_the_budget(layers, seed, times):
    rng = np.random.default_rng(seed)
    run, teacher = network(rng.normal(0, 0.3, (2 * layers, 4, 4)), rng.normal(size=(5, 4)))
    head = torch.tensor(rng.normal(size=(6, 4)), dtype=torch.float32)
    weights = weights_of(times)
    budget = budget_of(layers, weights)
    found, _ = candidates(
        teacher[1:], run, lambda x: (x @ head.T).argmax(-1), weights=weights, budget=budget, theta=-1.0
    )
    assert [c.weight for c in found] == sorted({c.weight for c in found})
    for c in found:
        assert c.weight == c.arm.skipped(*weights) <= budget
        assert not {0, layers - 1} & (c.arm.attention | c.arm.mlp)
        states = end_of((run, teacher), [k for k, out in enumerate(mask_of(c.arm, layers)) if out])
        same = (states[-1] @ head.T).argmax(-1) == (teacher[-1] @ head.T).argmax(-1)
        assert c.match == pytest.approx(float(same.double().mean()), abs=1e-9)
    assert found[0].arm == Arm()
    assert found[0].match == 1


@given(st.integers(1, 6), st.floats(0, 1), st.integers(0, 17), TIMES)
def test_the_estimate_is_expected_tokens_over_time(layers, match, length, times):
    arm = Arm(frozenset(range(layers // 2)), frozenset(range(layers - 1)))
    time = length * ((layers - len(arm.attention)) * times.attention + times.mlp) + layers * sum(times)
    want = sum(match**m for m in range(length + 1)) / time
    assert tokens_per_time(arm, match, length, n_layers=layers, times=times) == pytest.approx(want, rel=1e-6)


SCORED = st.lists(
    st.tuples(st.frozensets(st.integers(1, 4), max_size=3), st.sampled_from([0.0, 0.5, 0.9, 1.0])), max_size=6
)


@given(SCORED, TIMES)
def test_the_choice_is_the_best_draft_that_leaves_something_out(rows, times):
    found = [Candidate(k, Arm.blocks(out), match) for k, (out, match) in enumerate(rows)]
    choice = choose(found, n_layers=6, times=times)
    scores = {k: best_length(k, c, n_layers=6, times=times).score for k, c in enumerate(found) if c.arm != Arm()}
    if not scores:
        assert choice is None
    else:
        assert choice is not None
        assert choice.score == max(scores.values()) == scores[choice.place]
        assert all(score < choice.score for k, score in scores.items() if k < choice.place)


def test_the_published_choice_overlooks_a_first_candidate_that_leaves_something_out():
    """The reference passes over the smallest survivor, which need not be the full model."""
    found = [Candidate(2, Arm.blocks([1, 2]), 1.0), Candidate(3, Arm.blocks([1, 2, 3]), 0.2)]
    assert choose(found, n_layers=6, times=Times(1, 1), published=True)[0] == 1
    assert choose(found, n_layers=6, times=Times(1, 1))[0] == 0
    assert choose(found[:1], n_layers=6, times=Times(1, 1), published=True) is None


@given(SCORED, st.integers(1, 5), st.sampled_from([None, 0.3]))
def test_a_family_has_the_best_different_arms_in_order(rows, count, zero):
    scored = [(Candidate(k, Arm.blocks(out), 1.0), match) for k, (out, match) in enumerate(rows)]
    listed = shortlist(scored, count, zero=zero)
    arms = [entry.candidate.arm for entry in listed]
    assert len(set(arms)) == len(arms) <= count
    assert [entry.candidate.weight for entry in listed] == sorted(entry.candidate.weight for entry in listed)
    assert sorted(entry.rank for entry in listed) == list(range(1, len(listed) + 1))
    assert (Arm() in arms) >= (zero is not None)
    left = [score for c, score in scored if c.arm not in arms]
    others = [entry.score for entry in listed if zero is None or entry.candidate.arm != Arm()]
    assert not left or not others or max(left) <= min(others) or len(listed) < count


def test_a_family_keeps_the_zero_skip_arm_on_top_of_the_best():
    found = [Candidate(0, Arm(), 1.0), *(Candidate(k, Arm.blocks(range(1, 1 + k)), 1 - k / 20) for k in range(1, 13))]
    listed = family(found, n_layers=16, times=Times(1, 1))
    assert len(listed) == 10
    assert listed[0].candidate.arm == Arm()
    assert Arm() not in [e.candidate.arm for e in family(found, n_layers=16, times=Times(1, 1), zero_skip=False)]


def test_latency_is_fitted_as_a_mean_and_a_line():
    past = [1000, 2000, 3000]
    fitted = Latency.fit(past, [0.5 + 0.002 * n for n in past], [1.0, 1.1, 1.2])
    assert fitted.at(5000) == pytest.approx((10.5, 1.1))
    with pytest.raises(ConfigError, match="at least two lengths"):
        Latency.fit([5, 5], [1, 1], [1, 1])
    with pytest.raises(ConfigError, match="positive times"):
        Latency(1.0, 0.001, -2.0).at(100)


@pytest.mark.parametrize(
    "call",
    [
        lambda: budget_of(8, weights_of(Times(1, 1)), 1.5),
        lambda: weights_of(Times(0, 1)),
        lambda: shortlist([], 0),
        lambda: Schedule(6, 2, 6),
        lambda: candidates([torch.ones(1, 2)] * 3, None, None, weights=weights_of(Times(1, 1)), budget=1),
    ],
)
def test_bad_settings_are_refused(call):
    with pytest.raises(ConfigError):
        call()
