"""SpecVLM's pruning: which visual tokens stay."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from real.builders import specvlm
from specsim.errors import ConfigError


@st.composite
def prunings(draw: st.DrawFn) -> tuple[np.ndarray, int, dict]:
    n = draw(st.integers(0, 60))
    rng = np.random.default_rng(draw(st.integers(0, 999)))
    scores = rng.dirichlet(np.full(n, draw(st.sampled_from([0.05, 1.0, 50.0])))) if n else np.zeros(0)
    if draw(st.booleans()):
        scores = scores.round(2)
    options: dict = {"lowest_first": draw(st.booleans())}
    options["share" if draw(st.booleans()) else "fraction"] = draw(st.sampled_from([0.0, 0.1, 0.4, 0.9, 1.0]))
    return scores.astype(np.float32), draw(st.integers(0, n)), options


def checked(kept: np.ndarray, keep: int, n: int) -> set[int]:
    """Exactly `keep` different ranks below n, ascending."""
    ranks = kept.tolist()
    assert len(ranks) == keep
    assert ranks == sorted(set(ranks))
    assert not ranks or (ranks[0] >= 0 and ranks[-1] < n)
    return set(ranks)


@given(prunings())
def test_exactly_as_many_tokens_stay_as_asked(case):
    scores, keep, options = case
    n = len(scores)
    kept = checked(specvlm.two_stage(scores, keep, **options), keep, n)
    if "share" in options and keep and not options["lowest_first"]:
        needed = min(specvlm.tokens_for_share(scores, options["share"]), keep)
        assert kept >= set(np.argsort(-scores, kind="stable")[:needed].tolist())
    checked(specvlm.uniform(n, keep), keep, n)
    checked(specvlm.attention_only(scores, keep), keep, n)
    checked(specvlm.at_random(np.random.default_rng(0).permutation(n).tolist(), keep), keep, n)
    for where in ("front", "middle", "back"):
        ranks = specvlm.window(n, keep, where)
        checked(ranks, keep, n)
        assert not keep or ranks[-1] - ranks[0] == keep - 1


@given(st.integers(0, 20_000), st.floats(0, 1))
def test_the_number_kept_is_at_most_the_share_asked_for(n, rate):
    keep = specvlm.kept_count(n, rate)
    assert 0 <= keep <= n
    assert abs(keep - n * (1 - rate)) < 1


def test_nothing_left_for_the_second_stage_is_no_error():
    """The reference fails here, for want of a token that is not needed."""
    scores = np.array([0.3, 0.2, 0.5], np.float32)
    assert specvlm.two_stage(scores, 3, share=1.0).tolist() == [0, 1, 2]
    assert specvlm.two_stage(np.zeros(0), 0).tolist() == []


@given(st.lists(st.floats(2**-10, 1, width=32), min_size=1, max_size=40), st.floats(0, 1))
def test_as_few_tokens_as_reach_the_share(scores, share):
    needed = specvlm.tokens_for_share(scores, share)
    ordered = sorted(scores, reverse=True)
    assert sum(ordered[:needed]) >= share * sum(ordered) * (1 - 1e-5)
    assert needed == 1 or sum(ordered[: needed - 1]) <= share * sum(ordered) * (1 + 1e-5)


@given(st.integers(1, 3000), st.data())
def test_an_even_spread_is_torch_s_integer_linspace(available, data):
    torch = pytest.importorskip("torch", reason="real/ needs the extra 'real'")
    count = data.draw(st.integers(0, available))
    ranks = specvlm.spread(available, count)
    assert ranks.tolist() == torch.linspace(0, available - 1, count, dtype=torch.int64).tolist()
    assert len(set(ranks.tolist())) == count
    if count > 1:
        assert (ranks[0], ranks[-1]) == (0, available - 1)


@given(
    prunings(),
    st.sets(st.sampled_from([0.0, 0.2, 0.5, 0.75, 0.9, 1.0]), min_size=1),
    st.sampled_from(specvlm.KINDS),
    st.booleans(),
)
def test_families_go_from_most_to_least_and_may_be_nested(case, rates, kind, nested):
    scores, choice = case[0], specvlm.Choice(kind=kind)
    sets = specvlm.family(scores, sorted(rates), choice, nested=nested, seed=[3, 5])
    sizes = [len(kept) for kept in sets]
    assert sizes == [specvlm.kept_count(len(scores), rate) for rate in sorted(rates)]
    for kept, size in zip(sets, sizes, strict=True):
        checked(kept, size, len(scores))
    if nested:
        assert sets[0].tolist() == choice.kept(scores, sizes[0], [3, 5]).tolist()
        assert all(set(later) <= set(earlier) for earlier, later in pairwise(sets))
    else:
        assert [s.tolist() for s in sets] == [choice.kept(scores, size, [3, 5]).tolist() for size in sizes]


@given(prunings(), st.booleans())
def test_choices_are_the_published_rules(case, lowest):
    scores, keep, options = case
    n, told = len(scores), {key: value for key, value in options.items() if key != "lowest_first"}

    def kept(kind, **more):
        return specvlm.Choice(kind=kind, **more).kept(scores, keep, [7]).tolist()

    want = specvlm.two_stage(scores, keep, lowest_first=lowest, **told).tolist()
    assert kept("two-stage", lowest_first=lowest, **told) == want
    assert (
        kept("attention", lowest_first=lowest) == specvlm.attention_only(-scores if lowest else scores, keep).tolist()
    )
    assert kept("uniform") == specvlm.uniform(n, keep).tolist()
    for where in ("front", "middle", "back"):
        assert kept(where) == specvlm.window(n, keep, where).tolist()
    order = np.random.default_rng([7]).permutation(n).tolist()
    assert kept("random") == sorted(order[:keep])


def test_independent_sets_need_not_be_nested():
    scores = np.full(21, 1 / 21, np.float32)
    more, fewer = (set(kept.tolist()) for kept in specvlm.family(scores, [0.5, 0.6], specvlm.Choice(share=0.0)))
    assert not fewer <= more


@given(st.lists(st.sampled_from([7, 7, 7, 1, 2]), max_size=30), st.data())
def test_text_always_stays(tokens, data):
    n = tokens.count(7)
    kept = np.array(sorted(data.draw(st.sets(st.integers(0, max(n - 1, 0)), max_size=n))) if n else [], np.int64)
    places = specvlm.sequence_positions(tokens, 7, kept).tolist()
    assert [tokens[p] for p in places if tokens[p] != 7] == [t for t in tokens if t != 7]
    assert sum(tokens[p] == 7 for p in places) == len(kept)
    assert places == sorted(set(places))


def test_scores_of_tensors_are_those_of_arrays():
    torch = pytest.importorskip("torch", reason="real/ needs the extra 'real'")
    layers = [torch.rand(2, 5, 9, generator=torch.Generator().manual_seed(k)) for k in range(3)]
    got = specvlm.attention_scores(layers, [2, 3, 6], [0, 4])
    want = specvlm.attention_scores([layer.numpy() for layer in layers], [2, 3, 6], [0, 4])
    assert got.numpy() == pytest.approx(want, abs=1e-6)
    with pytest.raises(ConfigError, match="no attention weights"):
        specvlm.attention_scores([], [1])


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: specvlm.kept_count(5, 1.1), "drop rate 1.1"),
        (lambda: specvlm.two_stage([1.0], 2), r"2 visual tokens to keep; allowed: 0\.\.1"),
        (lambda: specvlm.two_stage([1.0], 1, share=-0.1), "share -0.1"),
        (lambda: specvlm.two_stage([1.0], 1, fraction=2.0), "fraction 2"),
        (lambda: specvlm.uniform(2, 3), "allowed: 0..2"),
        (lambda: specvlm.family([1.0], [2.0], specvlm.Choice()), "drop rate 2"),
        (lambda: specvlm.Choice(kind="best"), "choice 'best'; allowed: two-stage, attention, uniform, front"),
    ],
)
def test_bad_settings_are_refused(call, message):
    with pytest.raises(ConfigError, match=message):
        call()
