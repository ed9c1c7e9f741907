"""Drafts that branch: who sees whom, and which path the target takes. Nodes are numbered as in `Draft`, the last
committed token, their root, being -1.

A tree is verified in one pass: a node sees the committed text and its ancestors (SpecInfer, arXiv 2305.09781, section
4.2), at the position its depth gives it. Then the target walks: it chooses a token after the root, greedily or by one
draw; if that token is a child, it chooses again there, else the token is the round's last. Every token of the output is
thus the target's own choice given what stands before it, so its law is the target's whatever the tree (DDTree,
liranringel/ddtree at c96427a, ddtree.py 212-224).
"""

from __future__ import annotations

from collections.abc import Sequence

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
    seen = torch.zeros(1 + len(parents), past + 1 + len(parents), dtype=torch.bool)
    seen[:, : past + 1] = True
    for row, path in enumerate(paths(parents)):
        seen[row, [past + 1 + node for node in path]] = True
    return seen.to(device, non_blocking=True)


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


def walk(tokens: Sequence[int], parents: Sequence[int], choices: Sequence[int]) -> tuple[list[int], int]:
    """(nodes accepted, from the top; the token that follows them).

    Args:
        tokens, parents: the tree's d nodes.
        choices: the target's token after the root and after every node, d + 1; looked at along the path only.
    """
    children = {(parent, token): node for node, (token, parent) in enumerate(zip(tokens, parents, strict=True))}
    path, here = [], -1
    while (node := children.get((here, choices[here + 1]))) is not None:
        path.append(node)
        here = node
    return path, choices[here + 1]


def walk_greedy(draft: Draft, scores: torch.Tensor) -> tuple[list[int], int, bool]:
    """(path, token, whether a number was not finite) when the target takes its most likely token everywhere.

    Args:
        draft: a tree of d nodes.
        scores: float[d + 1, V] processed logits of the target after the root and after every node.
    """
    assert draft.parents is not None
    top, best = scores.max(dim=-1)
    unsound, *both = torch.cat([(~torch.isfinite(top).all())[None].long(), best, draft.tokens]).tolist()
    return *walk(both[len(best) :], draft.parents.tolist(), both[: len(best)]), bool(unsound)


def walk_sampling(draft: Draft, scores: torch.Tensor, draws: Draws, pos: int) -> tuple[list[int], int, bool]:
    """(path, token, whether a number was not finite) when the target draws its token everywhere.

    The numbers are those plain decoding would use at the same positions, so that its output is found again.

    Args:
        draft: a tree of d nodes.
        scores: float[d + 1, V] processed logits of the target after the root and after every node (-inf: never).
        draws: randomness.
        pos: output position of the root's children.
    """
    assert draft.parents is not None
    parents, p = draft.parents.tolist(), torch.softmax(scores.float(), dim=-1)
    unsound = not bool(torch.isfinite(p).all())
    choices = draws.tokens(p, pos, [0, *depths(parents)])
    return *walk(draft.tokens.tolist(), parents, choices), unsound
