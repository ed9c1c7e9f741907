"""Drafts that branch: masks, walks, compaction of the cache, and the law of the output."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

torch = pytest.importorskip("torch", reason="real/ needs the extra 'real'")

from real.cache import KVCache, forward  # noqa: E402
from real.drafters.base import NoDrafter  # noqa: E402
from real.loop import Decoded, Settings, decode  # noqa: E402
from real.target import Target, hidden_states  # noqa: E402
from real.tree import depths, paths, visible, walk, walk_greedy, within  # noqa: E402
from real.verify import Draft, sampling_processors, verify_greedy  # noqa: E402
from specsim.online import OnlineController  # noqa: E402
from tests.real_law import (  # noqa: E402
    EXACT,
    FixedClock,
    Sampling,
    controller_of,
    decode_branches,
    gap,
    law_of,
    one_thread,  # noqa: F401 - a fixture
    plain_law,
    random_model,
)
from tests.real_lossless import CLASSES, Checked, plain_greedy, random_lengths, subject  # noqa: E402
from tests.real_trees import RandomTrees  # noqa: E402

PARENTS = (-1, 0, -1, 0, 1, 2)


def tree(tokens: list[int], parents: list[int] | tuple[int, ...]) -> Draft:
    return Draft(torch.tensor(tokens).long(), torch.full((len(tokens),), 0.5), parents=torch.tensor(parents).long())


def run(target: Target, drafter: Any, spelling: str, prompt: torch.Tensor, limits: Settings, **options: Any) -> Decoded:
    online = OnlineController(controller_of(spelling, drafter), compiled=False)
    return decode(target, drafter, online, prompt, limits, clock=FixedClock(), **options)


@st.composite
def some_parents(draw: st.DrawFn, most: int = 9) -> list[int]:
    return [draw(st.integers(-1, node - 1)) for node in range(draw(st.integers(0, most)))]


# --- pure functions ---------------------------------------------------------------------------------------------------


def test_a_tree_by_hand() -> None:
    assert depths(PARENTS) == [1, 2, 1, 2, 3, 2]
    assert paths(PARENTS) == [[], [0], [0, 1], [2], [0, 3], [0, 1, 4], [2, 5]]
    seen = visible(PARENTS, 2, "cpu").int().tolist()
    assert seen[0] == [1, 1, 1, 0, 0, 0, 0, 0, 0]
    assert seen[5] == [1, 1, 1, 1, 1, 0, 0, 1, 0]
    assert walk([4, 5, 6, 7, 8, 9], PARENTS, [4, 5, 9, 9, 9, 3, 9].__getitem__) == ([0, 1], 9)
    assert walk([4, 5, 6, 7, 8, 9], PARENTS, [4, 5, 8, 9, 9, 3, 9].__getitem__) == ([0, 1, 4], 3)
    assert walk([4, 5, 6, 7, 8, 9], PARENTS, ([1] * 7).__getitem__) == ([], 1)


@given(some_parents())
def test_a_node_sees_the_text_its_ancestors_and_itself(parents: list[int]) -> None:
    seen, past = visible(parents, 3, "cpu"), 3
    for row in range(1 + len(parents)):
        ancestors, node = {-1}, row - 1
        while node >= 0:
            ancestors.add(node)
            node = parents[node]
        assert {column - past - 1 for column in seen[row].nonzero()[:, 0].tolist() if column >= past} == ancestors
        assert seen[row, :past].all()


@given(some_parents(), st.integers(0, 4))
def test_within_drops_what_is_deeper_and_nothing_else(parents: list[int], depth: int) -> None:
    tokens = list(range(len(parents)))
    left = within(tree(tokens, parents), depth)
    assert left.parents is not None
    kept = [node for node in tokens if depths(parents)[node] <= depth]
    assert left.tokens.tolist() == kept
    back = {-1: -1} | dict(enumerate(kept))
    assert [back[parent] for parent in left.parents.tolist()] == [parents[node] for node in kept]


def test_a_chain_is_cut_to_the_room_too() -> None:
    assert within(Draft(torch.tensor([1, 2, 3]), torch.ones(3)), 2).tokens.tolist() == [1, 2]


@given(st.lists(st.integers(0, 3), max_size=6), st.integers(0, 10**6))
def test_a_chain_walks_as_it_is_matched(tokens: list[int], seed: int) -> None:
    scores = torch.randn(len(tokens) + 1, 4, generator=torch.Generator().manual_seed(seed))
    path, token, unsound = walk_greedy(tree(tokens, list(range(-1, len(tokens) - 1))), scores)
    chain = Draft(torch.tensor(tokens).long(), torch.ones(len(tokens)))
    assert [len(path), token, unsound] == verify_greedy(chain, scores).tolist()
    assert path == list(range(len(path)))


# --- the cache --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("static", [False, True])
@pytest.mark.parametrize("places", [[], [0], [0, 1], [1], [0, 2, 5], [3, 4], [2, 5]])
def test_kept_places_move_together(places: list[int], static: bool) -> None:
    """Logits after the cache was compacted are those of the text it then holds."""
    model = random_model(7, 3, spread=0.5)
    text, nodes = torch.tensor([1, 2, 3, 4]), torch.tensor([5, 6, 1, 2, 3, 4])
    # Each node sees the text and the kept ones before it, at the places they will have.
    order = {place: number for number, place in enumerate(places)}
    position_ids = torch.tensor([4 + order.get(place, 0) for place in range(6)])
    seen = torch.zeros(6, 10, dtype=torch.bool)
    seen[:, :4] = True
    for place in range(6):
        seen[place, [4 + place, *(4 + other for other in places if other < place)]] = True
    cache = KVCache(32, static=static)
    with torch.inference_mode():
        forward(model, text, cache)
        forward(model, nodes, cache, position_ids=position_ids, visible=seen)
        cache.keep(4, places)
        assert cache.length == 4 + len(places)
        after = forward(model, torch.tensor([6, 0]), cache)
        whole = torch.cat([text, nodes[places], torch.tensor([6, 0])])
        fresh = model(input_ids=whole[None], use_cache=False).logits[0, -2:]
    torch.testing.assert_close(after, fresh, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("merge", [False, True])
@pytest.mark.parametrize("cache", ["dynamic", "static"])
@pytest.mark.parametrize("name", CLASSES)
def test_every_node_is_scored_as_by_a_fresh_pass_over_its_path(name: str, cache: str, merge: bool) -> None:
    """`Checked` compares every row; sliding windows and learned positions are among the classes."""
    tried = subject(name)
    target = Checked(tried.model, cache=cache, merge_prompt=merge)
    drafter = RandomTrees(tried.model, max_draft_len=7, seed=2)
    online = OnlineController(random_lengths(7), seed=3)
    found = decode(target, drafter, online, tried.prompt, Settings(max_new_tokens=len(tried.plain)), clock=FixedClock())
    assert found.output == tried.plain
    assert target.rejections
    assert any(row.accepted_len for row in found.rounds)


# --- losslessness -----------------------------------------------------------------------------------------------------


@given(st.integers(0, 10**6), st.integers(1, 12), st.integers(1, 12), st.sampled_from(["static:length=9", "lambda"]))
@settings(max_examples=25)
def test_greedy_output_is_plain_decodings_to_every_limit(seed: int, limit: int, nodes: int, spelling: str) -> None:
    model = random_model(5, seed % 7, spread=0.7)
    prompt = torch.tensor([1, 2])
    found = run(
        Target(model),
        RandomTrees(model, max_draft_len=nodes, seed=seed),
        spelling,
        prompt,
        Settings(max_new_tokens=limit),
    )
    assert found.output == plain_greedy(model, prompt, limit)
    for row in found.rounds:
        assert row.scored_len <= row.submitted_len <= nodes
        assert row.accepted_len <= row.scored_len
        assert row.emitted_len == row.accepted_len + 1


@pytest.mark.parametrize("limit", [1, 2, 3])
def test_no_node_is_scored_that_is_too_deep_to_become_output(limit: int) -> None:
    model, seen = random_model(5, 1, spread=0.7), []

    class Watching(Target):
        def score(self, tokens: torch.Tensor, parents: torch.Tensor | None = None) -> torch.Tensor:
            seen.append(max(depths(parents.tolist()), default=0) if parents is not None else 0)
            return super().score(tokens, parents)

    found = run(
        Watching(model), RandomTrees(model), "static:length=8", torch.tensor([1]), Settings(max_new_tokens=limit)
    )
    assert len(found.output) == limit
    assert seen[0] == min(limit - 1, 5)


@pytest.mark.parametrize("stop", range(5))
def test_a_stop_inside_a_path_ends_the_output_there(stop: int) -> None:
    model, prompt = random_model(5, 1, spread=0.7), torch.tensor([1, 2])
    limits = Settings(max_new_tokens=20, stop_ids=(stop,))
    plain = run(Target(model), NoDrafter(), "plain", prompt, limits)
    found = run(Target(model), RandomTrees(model), "static:length=8", prompt, limits)
    assert (found.output, found.reason) == (plain.output, plain.reason)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("top_k", [0, 3])
def test_sampled_output_is_plain_decodings_token_for_token(seed: int, top_k: int) -> None:
    """Every node's token is drawn with the number plain decoding uses at its position."""
    model, prompt = random_model(6, seed, spread=0.8), torch.tensor([1, 2])
    limits = Settings(
        max_new_tokens=16, sample=True, seed=seed, processors=sampling_processors(temperature=0.8, top_k=top_k)
    )
    plain = run(Target(model), NoDrafter(), "plain", prompt, limits, request=3)
    found = run(Target(model), RandomTrees(model, seed=seed), "static:length=8", prompt, limits, request=3)
    assert found.output == plain.output
    assert any(row.accepted_len for row in found.rounds)


@pytest.mark.parametrize("spelling", ["static:length=4", "lambda", "libraspec:alpha=1,block=2"])
@pytest.mark.parametrize("sampling", [Sampling(), Sampling(0.7, top_k=2)])
def test_the_law_of_sampled_output_is_the_targets(spelling: str, sampling: Sampling) -> None:
    """Exactly, by every course of events; rules that look at q are allowed, since trees carry no luck."""
    model = random_model(3, 4, spread=1.0)
    target, drafter = Target(model), RandomTrees(model, max_draft_len=5, depth=2)
    pairs = decode_branches(target, drafter, controller_of(spelling, drafter), [0, 1], sampling.settings(3))
    assert gap(law_of(pairs), plain_law(model, [0, 1], 3, sampling)) < EXACT


def test_penalties_see_the_path_to_each_node() -> None:
    """A processor that looks at the text forbids what is on the path, not what is beside it."""

    def no_repeats(ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        return scores.scatter(1, ids[:, -4:], -torch.inf)

    model, prompt = random_model(8, 2, spread=0.3), torch.tensor([1, 2])
    limits = Settings(max_new_tokens=16, processors=(no_repeats,))
    plain = run(Target(model), NoDrafter(), "plain", prompt, limits)
    found = run(Target(model), RandomTrees(model, max_draft_len=12), "static:length=12", prompt, limits)
    assert found.output == plain.output
    assert any(row.accepted_len for row in found.rounds)


# --- features for drafters --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("merge", [False, True])
@pytest.mark.parametrize("name", ["llama", "gpt2", "gemma3"])
def test_a_tap_holds_the_hidden_states_of_the_committed_text(name: str, merge: bool) -> None:
    tried, layers, taken = subject(name), (2, 0), []

    class Reading(RandomTrees):
        def propose(self, count: int, arm: int) -> Draft:
            taken.append(self.tap.take())
            assert sum(len(rows) for rows in taken) in (0, len(self._text) - 1)
            return super().propose(count, arm)

    target = Target(tried.model, merge_prompt=merge)
    drafter = Reading(tried.model, max_draft_len=6, tap=target.tap(layers))
    found = run(target, drafter, "static:length=6", tried.prompt, Settings(max_new_tokens=len(tried.plain)))
    text = torch.tensor(tried.prompt.tolist() + found.output)
    rows = torch.cat(taken)
    with torch.inference_mode(), hidden_states(tried.model, layers) as states:
        tried.model(input_ids=text[None, : len(rows)], use_cache=False)
    want = torch.cat([states[layer][0] for layer in layers], dim=-1)
    torch.testing.assert_close(rows, want, atol=1e-4, rtol=1e-3)
    first = found.rounds[0]
    assert len(taken[1]) == first.emitted_len + (first.ctx_len - 1 if merge else 0)
