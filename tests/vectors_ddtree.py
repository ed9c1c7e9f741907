"""Golden vectors of DDTree, answered by the drafter's trees, `real.target`, `real.tree` and the cache.

The reference numbers the root 0 and nodes from 1; here nodes count from 0 and the root is -1. torch is imported by the
handlers, so that all other vectors run without it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from tests.vectors_tools import Case, Checks

if TYPE_CHECKING:
    import torch


def parents_of(inputs: Case) -> list[int]:
    """Our parents from the reference's, whose first entry is the root's own."""
    return [parent - 1 for parent in inputs["parents"][1:]]


def draft_of(inputs: Case) -> tuple[torch.Tensor, torch.Tensor]:
    """(int64[1 + d] root and nodes, int64[d] parents)."""
    import torch

    return torch.tensor([inputs["root_token_id"], *inputs["node_token_ids"]]), torch.tensor(parents_of(inputs))


def far(got: Sequence[float], want: Sequence[float], tolerance: float) -> list[tuple[float, float]]:
    """Pairs that are further apart."""
    return [(a, b) for a, b in zip(got, want, strict=True) if abs(a - b) > tolerance]


def tree_construction(case: Case) -> Checks:
    """From logits to the draft that the decode loop is given."""
    import torch

    from real.drafters.ddtree import Likeliest, likeliest, tree_of
    from real.tree import depths, paths, visible

    budget, expected = case["parameters"]["node_budget"], case["expected"]
    q, ids = likeliest(torch.tensor(case["inputs"]["draft_logits"]), budget)
    draft = tree_of(Likeliest(q.numpy(), ids.numpy()), budget, "cpu")
    assert draft.parents is not None
    tokens, parents = draft.tokens.tolist(), draft.parents.tolist()
    yield "num_drafted_nodes", len(tokens), expected["num_drafted_nodes"]
    yield "node_token_ids", tokens, expected["node_token_ids"]
    yield "node_depths", depths(parents), expected["node_depths"]
    yield "parents", [-1, *(parent + 1 for parent in parents)], expected["parents"]
    before = paths(parents)
    yield (
        "path_tokens",
        [[tokens[i] for i in path] for path in before[1:]],
        expected["path_tokens_of_each_drafted_node"],
    )
    ancestors = [[0, *(i + 1 for i in path[:-1])] for path in before[1:]]
    yield "ancestors", [[], *ancestors], expected["ancestors_of_each_node"]
    logw = np.log(draft.q.double().numpy()).cumsum().tolist()
    tolerance = case["tolerance"]["log_path_probability"]
    yield "log_path_probability", far(logw, expected["log_path_probability"], tolerance), []
    if "visible_matrix" in expected:
        yield "visible_matrix", visible(parents, 0, "cpu").int().tolist(), expected["visible_matrix"]


def tree_attention(case: Case) -> Checks:
    """What the target's model is called with in two consecutive rounds."""
    import torch

    from real.target import Target
    from tests.real_law import Scripted

    passes: list[dict[str, Any]] = []

    class Watched(Scripted):
        def forward(self, *args: Any, **inputs: Any) -> Any:
            passes.append(inputs)
            return super().forward(*args, **inputs)

    target = Target(Watched(64, lambda context: [0.0] * 64))
    rounds = case["inputs"]["rounds"]
    target.start(torch.tensor([*range(rounds[0]["prefix_length"]), rounds[0]["root_token_id"]]), 64)
    # The path that leaves the second round its prefix: whichever, so long as it is that long.
    accepted = rounds[1]["prefix_length"] - rounds[0]["prefix_length"] - 1
    for row, path in zip(rounds, ([0, 1, 2][:accepted], []), strict=True):
        tokens, parents = draft_of(row)
        target.score(tokens, parents)
        target.commit(row["prefix_length"] + 1 + len(path), path)
    for number, (inputs, want) in enumerate(zip(passes[-2:], case["expected"]["rounds"], strict=True)):
        mask = inputs["attention_mask"][0, 0]
        yield f"round {number} input_ids", inputs["input_ids"][0].tolist(), want["verify_input_ids"]
        yield f"round {number} position_ids", inputs["position_ids"][0].tolist(), want["verify_position_ids"]
        yield f"round {number} mask_shape", list(mask.shape), want["mask_shape"]
        columns = [torch.nonzero(row == 0)[:, 0].tolist() for row in mask]
        yield f"round {number} columns visible", columns, want["columns_visible_in_each_row"]
        hidden = sorted(set(mask[mask != 0].tolist()))
        yield f"round {number} hidden", hidden, [float(torch.finfo(mask.dtype).min)]


def accepted_path(case: Case) -> Checks:
    """The target's greedy walk, from logits that choose the case's tokens."""
    import torch

    from real.tree import walk_greedy
    from real.verify import Draft

    inputs, expected = case["inputs"], case["expected"]
    tokens, parents = draft_of(inputs)
    choices = inputs["target_token_at_each_node"]
    scores = torch.zeros(len(choices), max(choices) + 1)
    scores[range(len(choices)), choices] = 1.0
    draft = Draft(tokens[1:], torch.ones(len(parents)), parents=parents)
    path, token, unsound = walk_greedy(draft, scores)
    yield "accepted_node_indices", [0, *(node + 1 for node in path)], expected["accepted_node_indices"]
    yield "accepted_drafted_tokens", tokens[1:][path].tolist(), expected["accepted_drafted_tokens"]
    yield "next_token", token, expected["next_token"]
    yield "acceptance length", len(path) + 1, expected["acceptance_length_as_recorded_by_reference"]
    yield "tokens known", len(path) + 1, expected["tokens_newly_known_this_round"]
    yield "unsound", unsound, False


def cache_compaction(case: Case) -> Checks:
    """Keys and values that hold their own position, before and after."""
    import torch

    from real.cache import KVCache

    inputs = case["inputs"]
    prefix, nodes = inputs["prefix_length"], inputs["tree_nodes_including_root"]
    states = torch.arange(prefix + nodes).float()[None, None, :, None]
    for static in (False, True):
        cache = KVCache(prefix + nodes, static=static)
        cache.update(states, -states, 0)
        cache.keep(prefix, inputs["accepted_node_indices"])
        length = cache.length
        yield "length", length, len(case["expected"]["cache_positions_kept_in_order"])
        keys, values = cache.update(states[:, :, :0], states[:, :, :0], 0)
        for what, kept in (("keys", keys), ("values", -values)):
            yield what, kept[0, 0, :length, 0].long().tolist(), case["expected"]["cache_positions_kept_in_order"]


HANDLERS: dict[tuple[str, str], Callable[[Case], Checks]] = {
    ("ddtree", "tree_construction"): tree_construction,
    ("ddtree", "tree_attention"): tree_attention,
    ("ddtree", "accepted_path"): accepted_path,
    ("ddtree", "cache_compaction"): cache_compaction,
}
