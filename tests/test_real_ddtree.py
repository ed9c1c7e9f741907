"""DDTree: trees against enumeration of all paths, both readings of a length, and drafts against DFlash's own."""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

torch = pytest.importorskip("torch", reason="real/ needs the extra 'real'")

from real.drafters import ddtree  # noqa: E402
from real.drafters.choose import parse_drafter  # noqa: E402
from real.drafters.ddtree import DepthTrees, Growing, Likeliest, NodeTrees, likeliest, make_ddtree, tree_of  # noqa: E402
from real.drafters.dflash import DFlashDrafter  # noqa: E402
from real.draws import KeyedDraws  # noqa: E402
from real.loop import Decoded, Settings, decode  # noqa: E402
from real.target import Target  # noqa: E402
from real.tree import depths, paths, walk_greedy  # noqa: E402
from real.verify import Draft, verify_greedy  # noqa: E402
from specsim.errors import ConfigError  # noqa: E402
from specsim.online import OnlineController  # noqa: E402
from tests.dflash_tiny import tiny_dflash  # noqa: E402
from tests.real_law import FixedClock, controller_of, one_thread  # noqa: E402, F401 - one is a fixture
from tests.real_tiny import prompt_ids, tiny_llama, tiny_loaded  # noqa: E402

VALUES = st.sampled_from([-2.0, -1.0, 0.0, 0.5, 1.0, 3.0])  # few, so that ties are common


@st.composite
def logit_rows(draw: st.DrawFn) -> torch.Tensor:
    """float32[depth, V] logits, often with ties, sometimes certain of a token."""
    depth, vocabulary = draw(st.integers(0, 3)), draw(st.integers(1, 4))
    entry = draw(st.sampled_from([VALUES, st.floats(-5, 5, width=32), st.sampled_from([0.0, 500.0])]))
    rows = draw(st.lists(st.lists(entry, min_size=vocabulary, max_size=vocabulary), min_size=depth, max_size=depth))
    return torch.tensor(rows).reshape(depth, vocabulary)


def on_host(logits: torch.Tensor, width: int) -> Likeliest:
    q, ids = likeliest(logits, width)
    return Likeliest(q.numpy(), ids.numpy())


def most_probable(logits: torch.Tensor, budget: int, depth: int) -> list[tuple[int, ...]]:
    """The most probable token paths of at most `depth` tokens, found by listing all of them."""
    with np.errstate(divide="ignore"):
        logp = np.log(torch.softmax(logits, dim=-1).double().numpy())
    # The rank of a token among those of its position; of equally probable ones the smaller id comes first.
    rank = np.argsort(np.argsort(-logp, axis=1, kind="stable"), axis=1)
    found = []
    for length in range(1, min(depth, len(logits)) + 1):
        for path in itertools.product(range(logits.shape[1]), repeat=length):
            total = 0.0
            for place, token in enumerate(path):
                total += float(logp[place, token])
            if total > -math.inf:
                found.append((-total, tuple(int(rank[place, token]) for place, token in enumerate(path)), path))
    return [path for _, _, path in sorted(found)[:budget]]


def token_paths(draft: Draft) -> list[tuple[int, ...]]:
    assert draft.parents is not None
    tokens = draft.tokens.tolist()
    return [tuple(tokens[node] for node in path) for path in paths(draft.parents.tolist())[1:]]


# --- trees ------------------------------------------------------------------------------------------------------------


@given(logit_rows(), st.integers(0, 20))
def test_the_tree_holds_the_most_probable_paths(logits: torch.Tensor, budget: int) -> None:
    wanted, law = most_probable(logits, budget, len(logits)), torch.softmax(logits, dim=-1).double()

    def w(found: list[tuple[int, ...]]) -> list[float]:
        return [math.prod(float(law[place, token]) for place, token in enumerate(path)) for path in found]

    draft = tree_of(on_host(logits, max(budget, 4)), budget, "cpu")
    assert token_paths(draft) == wanted
    assert draft.parents is not None
    assert all(parent < node for node, parent in enumerate(draft.parents.tolist()))
    np.testing.assert_allclose(draft.q.double().cumprod(0), w(wanted), rtol=1e-5)
    assert draft.law is None
    # As many tokens per position as nodes lose nothing; of tokens that tie for the last rank it may be another one.
    narrow = token_paths(tree_of(on_host(logits, budget), budget, "cpu"))
    assert len(set(narrow)) == len(narrow)
    np.testing.assert_allclose(w(narrow), w(wanted), rtol=1e-12)


@given(logit_rows(), st.integers(1, 20), st.integers(0, 3))
def test_a_tree_limited_in_depth_holds_the_most_probable_paths_that_short(
    logits: torch.Tensor, budget: int, depth: int
) -> None:
    depth = min(depth, len(logits))
    proposal = Growing(on_host(logits, max(budget, 4)), budget, torch.device("cpu"), 1)
    assert proposal.q.tolist() == torch.softmax(logits, dim=-1).amax(dim=-1).tolist()
    draft = proposal.first(depth)
    if depth:
        assert token_paths(draft) == most_probable(logits, budget, depth)
    else:
        assert not len(draft.tokens)


@given(logit_rows(), st.integers(1, 6))
def test_the_likeliest_tokens(logits: torch.Tensor, width: int) -> None:
    q, places = likeliest(logits, width)
    law = torch.softmax(logits, dim=-1).numpy()
    order = np.argsort(-law, axis=1, kind="stable")[:, :width]
    np.testing.assert_array_equal(q, np.take_along_axis(law, order, axis=1))
    np.testing.assert_array_equal(q, np.take_along_axis(law, places.numpy(), axis=1))
    for row, chosen in enumerate(places.tolist()):
        assert len(set(chosen)) == len(chosen)
        # Which of several that tie for the last rank is taken does not matter.
        sure = [rank for rank in range(len(chosen)) if law[row, chosen[rank]] > law[row, chosen[-1]]]
        assert [chosen[rank] for rank in sure] == order[row, sure].tolist()


@given(logit_rows(), st.lists(st.integers(0, 3), min_size=4, max_size=4), st.integers(1, 9))
def test_one_token_per_position_is_the_chain(logits: torch.Tensor, choices: list[int], budget: int) -> None:
    """A tree of width 1 is the chain of likeliest tokens, and is verified like it."""
    top = on_host(logits, 1)
    draft = tree_of(top, budget, "cpu")
    chain = Draft(torch.from_numpy(top.ids[:budget, 0]), torch.from_numpy(top.q[:budget, 0]))
    assert draft.tokens.tolist() == chain.tokens.tolist()
    np.testing.assert_allclose(draft.q, chain.q, rtol=1e-6)
    assert draft.parents is not None
    assert draft.parents.tolist() == list(range(-1, len(chain.tokens) - 1))
    scores = torch.nn.functional.one_hot(torch.tensor(choices[: len(chain.tokens) + 1]), 4).float()
    path, token, unsound = walk_greedy(draft, scores)
    assert [len(path), token, unsound] == verify_greedy(chain, scores).tolist()


# --- against DFlash ---------------------------------------------------------------------------------------------------


def proposed(drafter: Any, model: Any, prompt: torch.Tensor, counts: list[int]) -> list[Any]:
    """What a drafter proposes for `counts` tokens, one after the other in one round, right after a prompt."""
    target = Target(model)
    with torch.inference_mode():
        target.start(prompt, 256, drafter.tap)
        drafter.start(prompt, 256, KeyedDraws(0, 0), ())
        return [drafter.propose(count, -1) for count in counts]


@pytest.mark.parametrize("kept", [None, 20])
def test_the_main_chain_is_dflashs_draft_and_so_are_its_further_passes(kept: int | None) -> None:
    model, prompt = tiny_llama(seed=3), prompt_ids(5)
    network = tiny_dflash(model, kept_vocab=kept)
    deep = DepthTrees(network, model, name="d", budget=9, depth=8)
    plain = DFlashDrafter(network, model, name="p", max_draft_len=8)
    assert (deep.block_len, deep.max_draft_len) == (plain.block_len, plain.max_draft_len) == (3, 8)
    for ours, theirs in zip(
        proposed(deep, model, prompt, [2, 3, 6, 8]), proposed(plain, model, prompt, [2, 3, 6, 8]), strict=True
    ):
        torch.testing.assert_close(ours.q, theirs.q)
        assert ours.passes == theirs.passes
        draft = ours.first(len(ours.q))
        chain = next(path for path in paths(draft.parents.tolist()) if len(path) == max(depths(draft.parents.tolist())))
        assert draft.tokens[chain].tolist() == theirs.tokens[: len(chain)].tolist()
    both = proposed(NodeTrees(network, model, name="n", budget=9), model, prompt, [9, 9])
    assert both[0] is both[1]
    assert both[0].passes == 1
    assert max(depths(both[0].parents.tolist())) <= 3


def run(drafter: Any, model: Any, spelling: str, limit: int = 24) -> Decoded:
    online = OnlineController(controller_of(spelling, drafter), compiled=False)
    asked = Settings(max_new_tokens=limit)
    return decode(Target(model), drafter, online, prompt_ids(5), asked, clock=FixedClock())


def test_a_certain_drafter_decodes_like_dflash() -> None:
    """With one token of probability 1 at every position the tree is the chain: the same rounds, token for token."""
    model = tiny_llama(seed=3)
    network = tiny_dflash(model, output_multiplier=1e6)
    tree = NodeTrees(network, model, name="tree", budget=3)
    chain = DFlashDrafter(network, model, name="chain", max_draft_len=3)
    ours, theirs = run(tree, model, "static:length=3"), run(chain, model, "static:length=3")
    assert ours.output == theirs.output
    assert [row.accepted_len for row in ours.rounds] == [row.accepted_len for row in theirs.rounds]
    assert [row.scored_len for row in ours.rounds] == [row.submitted_len for row in theirs.rounds]
    assert [row.forward_passes for row in ours.rounds] == [row.forward_passes for row in theirs.rounds]


def test_the_depth_is_what_the_rule_says_and_the_nodes_are_the_budget() -> None:
    model, seen = tiny_llama(seed=3), []

    class Watching(Target):
        def score(self, tokens: torch.Tensor, parents: torch.Tensor | None = None) -> torch.Tensor:
            seen.append((len(tokens) - 1, max(depths(parents.tolist())) if parents is not None else 0))
            return super().score(tokens, parents)

    network = tiny_dflash(model)
    drafter = DepthTrees(network, model, name="d", budget=70, depth=8)
    for depth in (0, 1, 2, 5, 8):
        seen.clear()
        online = OnlineController(controller_of(f"static:length={depth}", drafter), compiled=False)
        decode(Watching(model), drafter, online, prompt_ids(5), Settings(max_new_tokens=12), clock=FixedClock())
        # Of 64 ids, 70 nodes are 64 of depth 1 and, where that is allowed, others.
        assert seen[0][0] == {0: 0, 1: 64}.get(depth, 70)
        assert seen[0][1] <= depth
        assert bool(seen[0][1]) == bool(depth)


def test_nothing_is_drafted_without_context_or_beyond_the_networks_window() -> None:
    model = tiny_llama(seed=3)
    network = tiny_dflash(model, max_position_embeddings=16)
    for drafter in (NodeTrees(network, model, name="n", budget=6), DepthTrees(network, model, name="d", depth=6)):
        (alone,) = proposed(drafter, model, torch.tensor([5]), [drafter.max_draft_len])
        assert (len(alone.q), alone.passes) == (0, 0)
        for left in range(4):
            (near,) = proposed(drafter, model, prompt_ids(5, n=16 - left), [drafter.max_draft_len])
            draft = near.first(len(near.q))
            assert max(depths(draft.parents.tolist()) if draft.parents is not None else [0], default=0) <= left
            assert bool(len(draft.tokens)) == bool(left)


# --- names ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "sampling", "message"),
    [
        ({"budget": "x"}, "greedy", "budget is 'x'"),
        ({"budget": "0"}, "greedy", r"budget is '0'; allowed: a whole number, 1\.\.32766"),
        ({"budget": "40000"}, "greedy", "budget is '40000'"),
        ({"limit": "width"}, "greedy", "allowed: nodes, depth"),
        ({}, "sample", "allowed: greedy"),
    ],
)
def test_refusals(options: dict[str, str], sampling: str, message: str, monkeypatch: pytest.MonkeyPatch) -> None:
    loaded = tiny_loaded()
    monkeypatch.setattr(ddtree, "load_dflash", lambda *_, **__: tiny_dflash(loaded.model))
    with pytest.raises(ConfigError, match=message):
        make_ddtree({"path": "p", **options}, loaded, max_draft_len=8, sampling=sampling, merge_prompt=False)


def test_names(monkeypatch: pytest.MonkeyPatch) -> None:
    loaded = tiny_loaded()
    monkeypatch.setattr(ddtree, "load_dflash", lambda *_, **__: tiny_dflash(loaded.model))
    made = {}
    for text in ("ddtree:path=p", "ddtree:path=p,budget=8,limit=depth"):
        spec = parse_drafter(text, target="t", n_layers=3)
        made[text] = make_ddtree(spec.options, loaded, max_draft_len=2, sampling="greedy", merge_prompt=False)
        assert made[text].name == text
    nodes, deep = made.values()
    assert isinstance(nodes, NodeTrees)
    assert isinstance(deep, DepthTrees)
    assert (nodes.branches, nodes.block_len, nodes.max_draft_len, nodes.depth) == (True, 64, 64, 2)
    assert (deep.branches, deep.block_len, deep.max_draft_len, deep.budget) == (False, 3, 2, 8)
    with pytest.raises(ConfigError, match="name its path"):
        parse_drafter("ddtree", target="t", n_layers=3)
