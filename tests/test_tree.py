"""Best-first trees against enumeration of all paths, and the reference's published cases."""

from __future__ import annotations

import itertools
import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from specsim.tree import Tree, best_first

VECTORS = Path(__file__).parents[2] / "shared" / "vectors" / "ddtree.json"


def rank_tuples(tree: Tree) -> list[tuple[int, ...]]:
    """Ranks along the path of each node."""
    paths: list[tuple[int, ...]] = []
    for parent, rank in zip(tree.parent, tree.rank, strict=True):
        paths.append((*(paths[parent] if parent >= 0 else ()), int(rank)))
    return paths


def enumerated(logp: np.ndarray, budget: int) -> list[tuple[int, ...]]:
    """The same tree by listing every path, summing from the root as the search does, and sorting."""
    depths, width = logp.shape
    paths = []
    for length in range(1, depths + 1):
        for ranks in itertools.product(range(width), repeat=length):
            total = 0.0
            for i, rank in enumerate(ranks):
                total = total + logp[i, rank] if i else logp[i, rank]
            if total > -np.inf:
                paths.append((-total, ranks))
    return [ranks for _, ranks in sorted(paths)[:budget]]


@st.composite
def log_tables(draw: st.DrawFn) -> np.ndarray:
    """[depth, k] descending, often with ties (dyadic probabilities), certainties and absent tokens."""
    depths, width = draw(st.integers(0, 4)), draw(st.integers(1, 4))
    grid = st.sampled_from([0.0, 0.125, 0.25, 0.5, 1.0])
    entry = draw(st.sampled_from([grid, st.floats(0, 1)]))
    table = [sorted(draw(st.lists(entry, min_size=width, max_size=width)), reverse=True) for _ in range(depths)]
    with np.errstate(divide="ignore"):
        return np.log2(np.array(table).reshape(depths, width))  # of dyadic numbers: whole, so that ties are exact


@given(logp=log_tables(), budget=st.integers(0, 40))
def test_the_tree_is_the_most_probable_paths_in_order(logp: np.ndarray, budget: int) -> None:
    tree = best_first(logp, budget)
    paths = rank_tuples(tree)
    assert paths == enumerated(logp, budget)
    assert tree.depth.tolist() == [len(path) for path in paths]
    assert (np.diff(tree.logw) <= 0).all()
    assert all(parent < number for number, parent in enumerate(tree.parent))  # ancestor closed
    np.testing.assert_allclose(np.cumprod(tree.q), np.exp(tree.logw), rtol=1e-9)


@given(logp=log_tables(), budget=st.integers(0, 40), less=st.integers(0, 40))
def test_a_smaller_budget_is_the_beginning_of_a_larger_one(logp: np.ndarray, budget: int, less: int) -> None:
    whole, part = best_first(logp, budget), best_first(logp, min(less, budget))
    for a, b in zip(whole, part, strict=True):
        assert np.array_equal(a[: len(b)], b)


def test_one_token_per_position_is_a_chain() -> None:
    tree = best_first(np.log([[0.5], [0.9], [0.1]]), 9)
    assert (tree.depth.tolist(), tree.parent.tolist(), tree.rank.tolist()) == ([1, 2, 3], [-1, 0, 1], [0, 0, 0])
    np.testing.assert_allclose(tree.q, [0.5, 0.9, 0.1])


@pytest.mark.skipif(not VECTORS.exists(), reason="the golden vectors are not on this machine")
def test_published_trees() -> None:
    cases = [c for c in json.loads(VECTORS.read_text())["cases"] if c["component"] == "tree_construction"]
    assert len(cases) == 10
    for case in cases:
        logits, expected = np.array(case["inputs"]["draft_logits"], np.float64), case["expected"]
        logp = logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))
        order = np.argsort(-logp, axis=1, kind="stable")
        tree = best_first(np.take_along_axis(logp, order, axis=1), case["parameters"]["node_budget"])
        tokens = [int(order[depth - 1, rank]) for depth, rank in zip(tree.depth, tree.rank, strict=True)]
        assert tokens == expected["node_token_ids"], case["case_id"]
        assert tree.depth.tolist() == expected["node_depths"]
        assert [-1, *(tree.parent + 1).tolist()] == expected["parents"]  # there the root is node 0
        np.testing.assert_allclose(tree.logw, expected["log_path_probability"], atol=2e-5)
