"""A drafter of random trees, for the tests of tree verification."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from real.drafters.base import Drafter
from real.draws import Draws
from real.verify import Draft, Processor


class RandomTrees(Drafter):
    """Grows a tree of random shape whose tokens are likely choices of a model, a node at a time.

    Args:
        model: causal language model, asked without any cache.
        max_draft_len: most nodes; one pass yields them all.
        seed: of the shapes.
        depth: of the deepest node.
        tap: as for any drafter.
    """

    name, branches = "random trees", True

    def __init__(self, model: Any, *, max_draft_len: int = 8, seed: int = 0, depth: int = 5, tap: Any = None) -> None:
        self.model, self.seed, self.depth, self.tap = model, seed, depth, tap
        self.block_len = self.max_draft_len = max_draft_len
        self.width = int(model.get_input_embeddings().weight.shape[0])

    def start(self, prompt: torch.Tensor, capacity: int, draws: Draws, processors: Sequence[Processor]) -> None:
        self._text = prompt.tolist()

    def propose(self, count: int, arm: int) -> Draft:
        rng = np.random.default_rng([self.seed, len(self._text)])
        tokens: list[int] = []
        parents: list[int] = []
        w: list[float] = []
        for _ in range(20 * count):
            if len(tokens) == count:
                break
            parent = int(rng.integers(-1, len(tokens)))
            above = self._path(tokens, parents, parent)
            taken = {token for token, other in zip(tokens, parents, strict=True) if other == parent}
            if len(above) == self.depth or len(taken) == self.width:
                continue
            logits = self.model(input_ids=torch.tensor([self._text + above]), use_cache=False).logits[0, -1]
            law = torch.softmax(logits, dim=-1)
            best = [token for token in law.argsort(descending=True).tolist() if token not in taken]
            tokens.append(best[0])
            parents.append(parent)
            w.append(float(law[best[0]]) * (w[parent] if parent >= 0 else 1.0))
        q = torch.tensor(w) / torch.tensor([1.0, *w[:-1]])
        return Draft(torch.tensor(tokens, dtype=torch.int64), q.clamp(max=1.0), parents=torch.tensor(parents).long())

    def _path(self, tokens: list[int], parents: list[int], node: int) -> list[int]:
        found: list[int] = []
        while node >= 0:
            found.insert(0, tokens[node])
            node = parents[node]
        return found

    def commit(self, tokens: Sequence[int]) -> None:
        self._text += tokens
