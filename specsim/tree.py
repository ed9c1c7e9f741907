"""Best-first trees of drafts (DDTree): the most probable paths through the drafter's per-position distributions.

Source: DDTree (liranringel/ddtree, ddtree.py at c96427a). One pass of a block drafter gives one distribution per draft
position; a path takes one token at each of the first positions and is as probable as the product of its tokens. The
tree of `budget` nodes holds the `budget` most probable paths, which always include every prefix of their own.

Knows arrays only: the simulator replays traces with it, the decode loop may build its drafts with it.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from specsim.jit import jit


class Tree(NamedTuple):
    """Nodes in the order in which best-first search takes them; n of them, the root (last committed token) not counted.

    Attributes:
        depth: int32[n], 1 for children of the root.
        rank: int32[n], rank of the node's token at its position, 0 the most probable.
        parent: int32[n], number of the parent among the nodes, always smaller than the node's own; -1 is the root.
        logw: float64[n], natural logarithm of the path's probability, never rising.
    """

    depth: NDArray[np.int32]
    rank: NDArray[np.int32]
    parent: NDArray[np.int32]
    logw: NDArray[np.float64]

    @property
    def q(self) -> NDArray[np.float64]:
        """float64[n], w_k / w_{k-1} of the path probabilities w (w_0 = 1): their running product is w again."""
        return np.exp(np.diff(self.logw, prepend=0.0))


def best_first(logp: NDArray[np.floating], budget: int) -> Tree:
    """The `budget` most probable paths, ties to the lexicographically smaller tuple of ranks.

    Args:
        logp: [depth, k], log-probabilities of the k most probable tokens of each draft position, descending; -inf where
            a position has fewer. Probabilities 0 (-inf) make no node. `min(budget, vocabulary)` tokens per position
            lose nothing.
        budget: nodes at most, >= 0; fewer only when there are no more paths.

    Returns:
        Arrays that nothing else holds.
    """
    depths, width = logp.shape
    starts = np.arange(depths + 1, dtype=np.int64) * width
    out = empty_tree(budget)
    count = grow(np.ascontiguousarray(logp, np.float64).reshape(-1), starts, 0, depths, scratch_for(budget), out)
    columns: list[Any] = [column[:count].copy() for column in out]
    return Tree(*columns)


def empty_tree(budget: int) -> Tree:
    """Uninitialised room for `budget` nodes."""
    columns: list[Any] = [*(np.empty(budget, np.int32) for _ in range(3)), np.empty(budget)]
    return Tree(*columns)


class Scratch(NamedTuple):
    """Room for the search: the heap; of every candidate its node number, parent candidate, depth, rank and log w."""

    heap: NDArray[np.int32]
    node: NDArray[np.int32]
    parent: NDArray[np.int32]
    depth: NDArray[np.int32]
    rank: NDArray[np.int32]
    logw: NDArray[np.float64]


def scratch_for(budget: int) -> Scratch:
    """Scratch for trees of at most `budget` nodes: each node brings two candidates at most, and one starts."""
    room = 2 * budget + 1
    columns: list[Any] = [*(np.empty(room, np.int32) for _ in range(5)), np.empty(room)]
    return Scratch(*columns)


@jit
def precedes(s, a, b):
    """Whether candidate a is taken before b: more probable, or equal and its tuple of ranks comes first.

    No candidate is an ancestor of another (its ancestors are nodes), so two tuples differ in a position both have.
    """
    if s.logw[a] != s.logw[b]:
        return s.logw[a] > s.logw[b]
    while s.depth[a] > s.depth[b]:
        a = s.parent[a]
    while s.depth[b] > s.depth[a]:
        b = s.parent[b]
    while s.parent[a] != s.parent[b]:
        a, b = s.parent[a], s.parent[b]
    return s.rank[a] < s.rank[b]


@jit
def sink(s, size, candidate):
    """Put a candidate in place of the top of a heap of `size`."""
    hole = 0
    while True:
        child = 2 * hole + 1
        if child >= size:
            break
        if child + 1 < size and precedes(s, s.heap[child + 1], s.heap[child]):
            child += 1
        if precedes(s, candidate, s.heap[child]):
            break
        s.heap[hole] = s.heap[child]
        hole = child
    s.heap[hole] = candidate


@jit
def rise(s, size, candidate):
    """Add a candidate to a heap of `size`."""
    hole = size
    while hole > 0:
        above = (hole - 1) // 2
        if not precedes(s, candidate, s.heap[above]):
            break
        s.heap[hole] = s.heap[above]
        hole = above
    s.heap[hole] = candidate


@jit
def grow(logp, starts, first, depths, s, out):
    """Fill `out` (`Tree`) with one tree; returns the number of nodes.

    Args:
        logp: float64, descending log-probabilities of each position, one after the other; never above 0.
        starts: int64, those of position i (from 0) are logp[starts[first + i] : starts[first + i + 1]].
        first: number in `starts` of the tree's first position.
        depths: positions of the tree.
        s: `Scratch` for out's length.
        out: `Tree` whose length is the budget.
    """
    budget = out.logw.size
    size, made, count = 0, 0, 0
    if depths > 0 and starts[first + 1] > starts[first] and logp[starts[first]] > -np.inf and budget > 0:
        s.parent[0], s.depth[0], s.rank[0], s.logw[0] = -1, 1, 0, logp[starts[first]]
        s.heap[0] = 0
        size, made = 1, 1
    while size > 0 and count < budget:
        top = s.heap[0]
        depth, rank, up = s.depth[top], s.rank[top], s.parent[top]
        s.node[top] = count
        out.depth[count], out.rank[count], out.logw[count] = depth, rank, s.logw[top]
        out.parent[count] = s.node[up] if up >= 0 else -1
        count += 1
        entry = starts[first + depth - 1] + rank
        if entry + 1 < starts[first + depth] and logp[entry + 1] > -np.inf:
            # From the parent's sum, not by subtraction: a path has one value, however it was reached.
            s.parent[made], s.depth[made], s.rank[made] = up, depth, rank + 1
            s.logw[made] = logp[entry + 1] + (s.logw[up] if up >= 0 else 0.0)
            sink(s, size, made)
            made += 1
        else:
            size -= 1
            if size > 0:
                sink(s, size, s.heap[size])
        if depth < depths:
            below = starts[first + depth]
            if below < starts[first + depth + 1] and logp[below] > -np.inf:
                s.parent[made], s.depth[made], s.rank[made] = top, depth + 1, 0
                s.logw[made] = s.logw[top] + logp[below]
                rise(s, size, made)
                size += 1
                made += 1
    return count
