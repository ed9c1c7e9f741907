"""Tree traces as the round loop reads them: every row's best-first tree, node by node in place of token by token.

A row holds the drafter's most probable tokens of each draft position and where the target's own token is among them.
Its tree (`specsim.tree`) is the draft: submitting n means the first n nodes. `q` of node k is w_k / w_{k-1}, the ratio
of path probabilities in that order (w_0 = 1), so that products of q are path probabilities as they are on a chain, and
rules that read them work on trees unchanged. Accepted are the nodes on the target's path.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from specsim.chunk import TraceChunk, offsets_of
from specsim.jit import jit
from specsim.latency import LatencyModel
from specsim.rows import Rows, make_rows
from specsim.schema import TraceMeta
from specsim.tree import empty_tree, grow, scratch_for

_PART_NODES = 1 << 22  # nodes held at once, about 40 MB
_ROUNDING = 1e-5  # of probabilities that sum to 1


class TreeRows(NamedTuple):
    """`rows` with nodes for draft tokens, and `exact` int32[R]: leading nodes that longer lists could not change."""

    rows: Rows
    exact: NDArray[np.int32]


def tree_passes(meta: TraceMeta) -> int:
    """Drafter passes that a tree of the trace's depth (`max_draft_len`) takes."""
    return max(1, math.ceil(meta.max_draft_len / meta.block_len))


def tree_latency(meta: TraceMeta, model: LatencyModel) -> LatencyModel:
    """The model with one draft pass that stands for a whole tree: its passes, and the tokens of its positions.

    The nodes are picked from what these passes give and cost no drafting of their own.
    """
    seconds = tree_passes(meta) * model.draft_pass_s + meta.max_draft_len * model.draft_token_s
    return replace(model, draft_pass_s=seconds, draft_token_s=0.0)


def tree_parts(chunk: TraceChunk, max_nodes: int) -> Iterator[TraceChunk]:
    """The chunk in parts of whole requests whose trees fit in memory together."""
    most = max(1, _PART_NODES // max_nodes)
    starts = [0, *(np.flatnonzero(np.diff(chunk.request)) + 1).tolist(), chunk.rows]
    first = 0
    for start, stop in pairwise(starts):
        if stop - first > most and start > first:
            yield chunk.slice(first, start)
            first = start
    yield chunk.slice(first, chunk.rows)


def tree_rows(chunk: TraceChunk, max_nodes: int) -> TreeRows:
    """Build the trees of a chunk of a tree trace.

    Args:
        chunk: whole requests, with `topk_q` and `target_rank`.
        max_nodes: nodes of the largest tree, >= 1; a row has fewer when its lists hold no more paths of a probability
            above 0.
    """
    assert chunk.topk_q is not None, "validated tree traces have it in every row"
    assert chunk.topk_offsets is not None, "a ragged array needs its offsets"
    assert chunk.target_rank is not None, "validated tree traces have it in every row"
    topk = chunk.topk_q.astype(np.float64)
    with np.errstate(divide="ignore"):
        logp = np.log(topk)
    listed, unlisted = _lists(chunk.topk_offsets, topk)
    offsets = offsets_of(_node_counts(chunk.offsets, listed, max_nodes))
    q, gained = np.empty(offsets[-1], np.float32), np.empty(offsets[-1], np.int16)
    free, exact = np.zeros(chunk.rows, np.int16), np.zeros(chunk.rows, np.int32)
    lists = (chunk.offsets, chunk.topk_offsets, logp, listed, unlisted, chunk.target_rank)
    _build(*lists, offsets, scratch_for(max_nodes), empty_tree(max_nodes), q, gained, free, exact)
    rows = make_rows(replace(chunk, accept_len=free))
    return TreeRows(rows._replace(offsets=offsets, q=q, gained=gained, passes=np.zeros(0, np.int16)), exact)


@jit
def _lists(starts, topk):
    """Of every draft position: tokens listed with a probability above 0, and the logarithm of the most that a token not
    listed can have, which is no more than the last one listed, nor than what is left of 1.

    Returns:
        (int64[N], float64[N]).
    """
    listed, unlisted = np.zeros(starts.size - 1, np.int64), np.zeros(starts.size - 1)
    for i in range(listed.size):
        left, last = 1.0, 1.0
        for entry in range(starts[i], starts[i + 1]):
            if topk[entry] <= 0.0:
                break
            last = topk[entry]
            left -= last
            listed[i] += 1
        unlisted[i] = -np.inf if left < _ROUNDING else math.log(min(left, last))
    return listed, unlisted


@jit
def _node_counts(offsets, listed, max_nodes):
    """int64[R]: paths of a probability above 0 in each row, at most max_nodes."""
    counts = np.zeros(offsets.size - 1, np.int64)
    for row in range(counts.size):
        total, paths = 0, 1
        for i in range(offsets[row], offsets[row + 1]):
            paths = min(paths * listed[i], max_nodes)
            total += paths
            if paths == 0 or total >= max_nodes:
                break
        counts[row] = min(total, max_nodes)
    return counts


@jit
def _build(offsets, starts, logp, listed, unlisted, target_rank, nodes, scratch, tree, q, gained, free, exact):
    """Grow the tree of every row and write its nodes: q, gained (see `Rows`), and per row free acceptance and `exact`.

    A node is certain while no path through an unlisted token could be more probable. Such a token matters once the last
    listed one of its position and parent is in the tree; before that it ranks behind it.
    """
    for row in range(free.size):
        first, base = offsets[row], nodes[row]
        depths = offsets[row + 1] - first
        count = grow(logp, starts, first, depths, scratch, tree)
        before, bound = 0.0, -np.inf
        on_path, reached = -1, 0
        certain = True
        for k in range(count):
            path, depth, rank, parent = tree.logw[k], tree.depth[k], tree.rank[k], tree.parent[k]
            q[base + k] = math.exp(path - before)
            before = path
            if depth == reached + 1 and parent == on_path and rank == target_rank[first + reached]:
                on_path, reached = k, depth
            gained[base + k] = reached
            certain = certain and path >= bound
            if certain:
                exact[row] = k + 1
            place = first + depth - 1
            if rank + 1 == listed[place]:
                bound = max(bound, unlisted[place] + (tree.logw[parent] if parent >= 0 else 0.0))
            if depth < depths and listed[place + 1] == 0:
                bound = max(bound, path)
        free[row] = reached
