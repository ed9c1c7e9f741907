"""Drafts that branch: who sees whom, and which path the target takes. Nodes are numbered as in `Draft`, the last
committed token, their root, being -1.

A tree is verified in one pass: a node sees the committed text and its ancestors (SpecInfer, arXiv 2305.09781, section
4.2), at the position its depth gives it. Then the target walks: it chooses a token after the root, greedily or by one
draw; if that token is a child, it chooses again there, else the token is the round's last. Every token of the output is
thus the target's own choice given what stands before it, so its law is the target's whatever the tree (DDTree,
liranringel/ddtree at c96427a, ddtree.py 212-224).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch

from real.draws import Draws
from real.verify import Draft


def depths(parents: Sequence[int]) -> list[int]:
    """Depth of every node; children of the root have depth 1."""
    found: list[int] = []
    for parent in parents:
        found.append(1 if parent < 0 else found[parent] + 1)
    return found


def paths(parents: Sequence[int]) -> list[list[int]]:
    """For the root and then every node: the nodes from a child of the root down to it."""
    found: list[list[int]] = [[]]
    for node, parent in enumerate(parents):
        found.append([*found[parent + 1], node])
    return found


def visible(parents: Sequence[int], past: int, device: torch.device | str) -> torch.Tensor:
    """bool[1 + d, past + 1 + d]: the root and the nodes see the `past` tokens before the root, the root, their
    ancestors and themselves."""
    seen = np.zeros((1 + len(parents), past + 1 + len(parents)), np.bool_)
    seen[:, : past + 1] = True
    nodes = seen[:, past + 1 :]
    for node, parent in enumerate(parents):
        nodes[node + 1] = nodes[parent + 1]
        nodes[node + 1, node] = True
    return torch.from_numpy(seen).to(device, non_blocking=True)


def within(draft: Draft, depth: int) -> Draft:
    """The nodes of a draft that are at most so deep."""
    if draft.parents is None:
        return draft.first(depth)
    parents = draft.parents.tolist()
    kept = [node for node, deep in enumerate(depths(parents)) if deep <= depth]
    if len(kept) == len(parents):
        return draft
    place = {-1: -1} | {node: number for number, node in enumerate(kept)}
    index = torch.tensor(kept, dtype=torch.int64, device=draft.tokens.device)
    return draft._replace(
        tokens=draft.tokens[index],
        q=draft.q[index],
        parents=torch.tensor([place[parents[node]] for node in kept], dtype=torch.int64),
    )


def walk(tokens: Sequence[int], parents: Sequence[int], choose: Callable[[int], int]) -> tuple[list[int], int]:
    """(nodes accepted, from the top; the token that follows them).

    Args:
        tokens, parents: the tree's d nodes.
        choose: the target's token after the root (row 0) or after node k (row k + 1); asked along the path only.
    """
    children = {(parent, token): node for node, (token, parent) in enumerate(zip(tokens, parents, strict=True))}
    path, token = [], choose(0)
    while (node := children.get((path[-1] if path else -1, token))) is not None:
        path.append(node)
        token = choose(node + 1)
    return path, token


def walk_greedy(draft: Draft, scores: torch.Tensor) -> tuple[list[int], int, bool]:
    """(path, token, whether a number was not finite) when the target takes its most likely token everywhere.

    Args:
        draft: a tree of d nodes.
        scores: float[d + 1, V] processed logits of the target after the root and after every node.
    """
    assert draft.parents is not None
    top, best = scores.max(dim=-1)
    unsound, *both = torch.cat([(~torch.isfinite(top).all())[None].long(), best, draft.tokens]).tolist()
    choices, tokens = both[: len(best)], both[len(best) :]
    return *walk(tokens, draft.parents.tolist(), choices.__getitem__), bool(unsound)


def walk_sampling(draft: Draft, scores: torch.Tensor, draws: Draws, pos: int) -> tuple[list[int], int, bool]:
    """(path, token, whether a number was not finite) when the target draws its token everywhere.

    The numbers are those plain decoding would use at the same positions, so that its output is found again. Only along
    the path is anything drawn: each draw goes through a whole vocabulary.

    Args:
        draft: a tree of d nodes.
        scores: float[d + 1, V] processed logits of the target after the root and after every node (-inf: never).
        draws: randomness.
        pos: output position of the root's children.
    """
    assert draft.parents is not None
    parents, here = draft.parents.tolist(), torch.zeros((), dtype=torch.int64, device=scores.device)
    ahead = [0, *depths(parents)]

    def choose(row: int) -> int:
        return int(draws.token(torch.softmax(scores[row].float(), dim=-1), pos + ahead[row], here, 1))

    # As in a softmax: one NaN or infinity, or a row of -inf, spoils its row.
    unsound = not bool(torch.isfinite(scores.amax(dim=-1)).all())
    return *walk(draft.tokens.tolist(), parents, choose), unsound
