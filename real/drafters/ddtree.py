"""Drafting trees with DFlash (DDTree): the most probable paths through the distributions of one block.

A DFlash pass gives one distribution per draft position. A path takes one token at each of the first positions and is as
probable as the product of theirs; the tree holds the most probable paths, best first, whatever their length
(`specsim.tree`). Two readings of what a controller chooses:

    nodes    how many nodes are verified, of `budget` at most, all of which one pass yields. Every rule that reads
             confidences works on them, since products of q are path probabilities (CaDDTree is one of them)
    depth    how deep the tree may be, its nodes being `budget` whatever the depth: the rule sees the main chain, the
             likeliest token of each position, as if it were the draft (LibraSpec on DDTree). Beyond the block as
             trained further passes are made, as by `real.drafters.dflash`

Trees are chosen, never drawn, so output is lossless at any temperature and with every rule.

Source: DDTree (liranringel/ddtree, ddtree.py at c96427a: trees from float32 log-probabilities at temperature 1, ties to
the smaller tuple of ranks); depth limit: design/controllers.md 2.3 q, 10.3. Differs from it: a tree with less than
`budget` paths of a probability above 0 in float32 is smaller.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from real.drafters.base import Drafter
from real.drafters.dflash import KEEP_FIRST, BlockDenoiser, SlotPasses
from real.drafters.dflash_load import load_dflash
from real.drafters.dflash_net import DFlashNetwork
from real.drafters.options import whole
from real.draws import Draws
from real.models import Loaded
from real.verify import Draft, Processor, Proposal
from specsim.errors import ConfigError
from specsim.schema import MAX_DRAFT_LEN
from specsim.tree import best_first

NODES, DEPTH = "nodes", "depth"
LIMITS = (NODES, DEPTH)
BUDGET = 64


class Likeliest(NamedTuple):
    """The likeliest tokens of each draft position, on the host.

    Args:
        q: float32[depth, k] their probabilities, descending.
        ids: int64[depth, k] their ids.
    """

    q: npt.NDArray[np.float32]
    ids: npt.NDArray[np.int64]

    def first(self, depth: int) -> Likeliest:
        """The first positions."""
        return Likeliest(self.q[:depth], self.ids[:depth])

    def then(self, more: Likeliest) -> Likeliest:
        """These positions and others after them."""
        return Likeliest(np.concatenate([self.q, more.q]), np.concatenate([self.ids, more.ids]))


def likeliest(logits: torch.Tensor, width: int) -> tuple[torch.Tensor, torch.Tensor]:
    """(float32[..., k] probabilities at temperature 1, int64[..., k] places) of the k = min(width, R) largest of
    float[..., R] logits, descending; of equal ones the first place is the first. Which of several equal ones at
    the cut are among the k is left to torch."""
    top = torch.softmax(logits.float(), dim=-1).topk(min(width, logits.shape[-1]), sorted=False)
    places, order = top.indices.sort(dim=-1)
    q, order = top.values.gather(-1, order).sort(dim=-1, descending=True, stable=True)
    return q, places.gather(-1, order)


def tree_of(top: Likeliest, budget: int, device: torch.device | str) -> Draft:
    """The best-first tree.

    Args:
        top: of each position it may reach, `min(budget, vocabulary)` tokens to lose nothing.
        budget: nodes; fewer only when there are no more paths.
        device: of the draft.
    """
    with np.errstate(divide="ignore"):
        tree = best_first(np.log(top.q.astype(np.float64)), budget)
    tokens = top.ids[tree.depth - 1, tree.rank]
    return Draft(
        torch.from_numpy(tokens).to(device),
        torch.from_numpy(tree.q.astype(np.float32)).to(device),
        parents=torch.from_numpy(tree.parent.astype(np.int64)),
    )


class _Trees(Drafter):
    """What both readings share: a network's passes, and the likeliest tokens of their slots.

    Args:
        network: of `real.drafters.dflash_load`, in eval mode, on the target's device and in its dtype.
        model: the target's model.
        name: for logs and tables.
        budget: most nodes of a tree.
        depth: of the deepest node.

    Raises:
        ConfigError: a number out of range.
    """

    def __init__(self, network: DFlashNetwork, model: Any, *, name: str, budget: int, depth: int) -> None:
        for key, value, most in (("budget", budget, MAX_DRAFT_LEN), ("max_draft_len", depth, MAX_DRAFT_LEN)):
            if not 1 <= value <= most:
                raise ConfigError(f"{name}: {key} is {value}; allowed: 1..{most}")
        self.name, self.budget, self.depth = name, budget, depth
        self.network, self.model, self.window = network, model, network.config.max_position_embeddings
        self.slots = SlotPasses(
            BlockDenoiser(network, model), block_len=network.config.block_size - 1, most=depth, pass_rule=KEEP_FIRST
        )
        self.tap = self.slots.denoiser.tap

    def start(self, prompt: torch.Tensor, capacity: int, draws: Draws, processors: Sequence[Processor]) -> None:
        self.slots.start(prompt, capacity)
        self._device = prompt.device
        self._begin()

    def commit(self, tokens: Sequence[int]) -> None:
        self.slots.commit(tokens)
        self._begin()

    def _begin(self) -> None:
        self._top: Likeliest | None = None

    def _filled(self, depth: int) -> Likeliest | None:
        """The likeliest tokens of the first `depth` positions, or of those that can be had; None: none can."""
        depth = self.slots.possible(depth)
        for first, logits in self.slots.upto(depth):
            q, places = likeliest(logits, self.budget)
            new = Likeliest(q.cpu().numpy(), self.network.ids_of(places).cpu().numpy())
            self._top = new if self._top is None else self._top.first(first).then(new)
        return None if self._top is None else self._top.first(depth)


class NodeTrees(_Trees):
    """A tree of `budget` nodes a round, the first of which are verified; arguments as for both readings.

    The tree is no deeper than one block as trained.
    """

    branches = True

    def __init__(
        self, network: DFlashNetwork, model: Any, *, name: str, budget: int = BUDGET, depth: int | None = None
    ) -> None:
        slots = network.config.block_size - 1
        super().__init__(network, model, name=name, budget=budget, depth=slots if depth is None else min(depth, slots))
        self.block_len = self.max_draft_len = budget

    def propose(self, count: int, arm: int) -> Draft:
        if self._draft is None:
            top = self._filled(self.slots.most)
            tree = Draft.nothing(self._device) if top is None else tree_of(top, self.budget, self._device)
            self._draft = tree._replace(passes=self.slots.passes)
        return self._draft

    def _begin(self) -> None:
        super()._begin()
        self._draft: Draft | None = None


class DepthTrees(_Trees):
    """Trees of `budget` nodes, as deep as the controller says, at most `depth`; arguments as for both readings."""

    def __init__(self, network: DFlashNetwork, model: Any, *, name: str, budget: int = BUDGET, depth: int = 24) -> None:
        super().__init__(network, model, name=name, budget=budget, depth=depth)
        self.block_len, self.max_draft_len, self.max_scored_len = network.config.block_size - 1, depth, budget

    def propose(self, count: int, arm: int) -> Proposal:
        top = self._filled(count)
        if top is None:
            return Draft.nothing(self._device)._replace(passes=self.slots.passes)
        return Growing(top, self.budget, self._device, self.slots.passes)


class Growing(NamedTuple):
    """A draft whose tree is built once its depth is chosen (`real.verify.Proposal`).

    Args:
        top: of the positions drafted so far.
        budget: nodes of the tree.
        device: of the draft.
        passes: made for it.
    """

    top: Likeliest
    budget: int
    device: torch.device
    passes: int | None

    @property
    def q(self) -> torch.Tensor:
        """float32[m]: probability of the likeliest token of each position."""
        return torch.from_numpy(self.top.q[:, 0])

    @property
    def record(self) -> None:
        """What the passes recorded is not reported."""
        return None

    def first(self, count: int) -> Draft:
        """The tree of the first `count` positions."""
        if not count:
            return Draft.nothing(self.device)
        return tree_of(self.top.first(count), self.budget, self.device)._replace(passes=self.passes)


def make_ddtree(
    options: Mapping[str, str], loaded: Loaded, *, max_draft_len: int, sampling: str, merge_prompt: bool
) -> NodeTrees | DepthTrees:
    """The drafter `ddtree:path=P[,budget=64][,limit=nodes|depth]` of a loaded target (`real.session.Maker`).

    Args:
        options: `path`: folder or hub id of a DFlash drafter; `budget`: nodes; `limit`: what a controller chooses.
        loaded: the target.
        max_draft_len: of the longest path.
        sampling: has to be `greedy`.

    Raises:
        ConfigError: an option that is not allowed, or a checkpoint that is broken or of another target.
    """
    if sampling != "greedy":
        raise ConfigError(
            f"ddtree: draft sampling {sampling!r}; allowed: greedy. The nodes of a tree are chosen, which is lossless "
            "at any temperature"
        )
    budget, limit = whole("ddtree", "budget", options.get("budget", str(BUDGET))), options.get("limit", NODES)
    if limit not in LIMITS:
        raise ConfigError(f"ddtree: limit is {limit!r}; allowed: {', '.join(LIMITS)}")
    network = load_dflash(options["path"], loaded.model, device=loaded.device, dtype=loaded.dtype)
    kind = NodeTrees if limit == NODES else DepthTrees
    name = f"ddtree:{','.join(f'{key}={value}' for key, value in options.items())}"
    return kind(network, loaded.model, name=name, budget=budget, depth=max_draft_len)
