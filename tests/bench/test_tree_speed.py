"""Speed of building trees, as a ratio to Python's heap (which is C, its entries are not) timed in the same process.

`.venv/bin/python -m pytest -m bench tests/bench/test_tree_speed.py -s` prints the figures.
"""

from __future__ import annotations

import heapq
import itertools

import numpy as np
import pytest

from specsim.chunk import TraceChunk, offsets_of
from specsim.tree import best_first
from specsim.tree_rows import tree_rows
from tests.bench.test_speed import fastest

ROWS, DEPTH, WIDTH = 2_000, 15, 32

pytestmark = pytest.mark.bench


def plain_tree(logp: list[list[float]], budget: int) -> list[tuple[int, ...]]:
    """Rank tuples in order, by the textbook heap."""
    heap = [(-logp[0][0], (0,))]
    nodes = []
    while heap and len(nodes) < budget:
        cost, ranks = heapq.heappop(heap)
        nodes.append(ranks)
        here, last = logp[len(ranks) - 1], ranks[-1]
        if last + 1 < len(here):
            heapq.heappush(heap, (cost + here[last] - here[last + 1], (*ranks[:-1], last + 1)))
        if len(ranks) < len(logp):
            heapq.heappush(heap, (cost - logp[len(ranks)][0], (*ranks, 0)))
    return nodes


@pytest.mark.parametrize("budget", [64, 512])
def test_rows_of_trees_are_built_three_times_faster_than_with_heapq(budget: int) -> None:
    rng = np.random.default_rng(0)
    lists = -np.sort(-rng.dirichlet(np.full(WIDTH, 0.2), ROWS * DEPTH), axis=1)
    chunk = TraceChunk(
        request=np.zeros(ROWS, np.int32),
        pos=np.arange(ROWS, dtype=np.int32),
        offsets=np.arange(ROWS + 1, dtype=np.int64) * DEPTH,
        accept_len=np.zeros(ROWS, np.int16),
        topk_offsets=offsets_of(np.full(ROWS * DEPTH, WIDTH)),
        topk_q=lists.astype(np.float32).ravel(),
        target_rank=np.zeros(ROWS * DEPTH, np.int16),
    )
    few = 200
    logs = np.log(lists.reshape(ROWS, DEPTH, WIDTH)[:few]).tolist()

    def compiled() -> int:
        return tree_rows(chunk, budget).rows.q.size

    def plain() -> int:
        return sum(len(plain_tree(row, budget)) for row in logs)

    assert compiled() == ROWS * budget  # compile
    compiled_s, plain_s = fastest(compiled, plain)
    ratio = plain_s / few / (compiled_s / ROWS)
    print(f"\n{budget} nodes: {1e6 * compiled_s / ROWS:.0f} us a row, {ratio:.1f} times faster than with heapq")
    assert ratio >= 3


def test_plain_tree_is_the_same_tree() -> None:
    rng = np.random.default_rng(1)
    logp = np.log(-np.sort(-rng.dirichlet(np.full(6, 0.5), 4), axis=1))
    tree = best_first(logp, 40)
    paths: list[tuple[int, ...]] = []
    for parent, rank in zip(tree.parent, tree.rank, strict=True):
        paths.append((*(paths[parent] if parent >= 0 else ()), int(rank)))
    assert plain_tree(logp.tolist(), 40) == paths
    assert list(itertools.accumulate(tree.logw, min)) == tree.logw.tolist()
