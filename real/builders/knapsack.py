"""Which parts of a network to leave out: a search over (part, amount left out) that follows the full model's states.

Source: KnapSpec (kaist-flexml-lab/knapspec at 8eef1a2, knapspec.py) and CLaSp, which the same repository has as well.
For every amount left out (a sum of integer weights) the search keeps one draft network: of all that reach this part
with this amount, the one whose hidden states are most like the full model's there. That is a greedy choice among
states, not a proof: a network dropped early may have come closer in the end (docs/builders.md).

Owns the search. Knows no model: who calls it runs a part on a batch of states.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch

from real.builders.similarity import mean_cosine
from specsim.errors import ConfigError

Run = Callable[[int, torch.Tensor], torch.Tensor]
"""(part, float[B, T, H] states) -> float[B, T, H]: each of B branches goes through that part, apart from the others."""


@dataclass(frozen=True)
class Path:
    """A draft network that the search kept to the end.

    Args:
        weight: how much it leaves out, in weights.
        left_out: its missing parts, ascending.
        similarity: mean cosine of its last state with the full model's.
        state: float[T, H], that state.
    """

    weight: int
    left_out: tuple[int, ...]
    similarity: float
    state: torch.Tensor


@dataclass(frozen=True)
class Found:
    """Result of a search.

    Args:
        paths: one for each amount that survived, ascending.
        entering: states that entered each searched part.
        collisions: how often two networks competed for a place.
    """

    paths: tuple[Path, ...]
    entering: tuple[int, ...]
    collisions: int

    @property
    def exact(self) -> bool:
        """Whether nothing had to be dropped for another network, so that every network above `theta` was seen."""
        return self.collisions == 0


class _Entry(NamedTuple):
    state: torch.Tensor
    similarity: float
    left_out: tuple[int, ...]


def search(
    teacher: Sequence[torch.Tensor],
    run: Run,
    weights: Sequence[int],
    budget: int,
    *,
    start: int = 0,
    keep: Collection[int] = (),
    theta: float | None = None,
    prefer_left_out: bool = False,
) -> Found:
    """The most similar draft network for every amount left out.

    Args:
        teacher: float[T, H] states of the full model: before part `start`, then after each part from there on; n -
            start + 1 of them.
        run: runs one part on a batch of states.
        weights: of each of the n parts, >= 1.
        budget: largest sum of weights left out.
        start: first part searched; those before it are always run (and not here).
        keep: further parts that are always run.
        theta: a network is dropped where its mean cosine with the full model falls below; None: never.
        prefer_left_out: who wins a tie. KnapSpec: the network that ran the part. CLaSp: the one that left it out.

    Raises:
        ConfigError: weights below 1, a negative budget, or another number of states than parts.
    """
    _check(teacher, weights, budget, start)
    rows: dict[int, _Entry] = {0: _Entry(teacher[0], 1.0, ())}
    entering, collisions = [], 0
    for part in range(start, len(weights)):
        entering.append(len(rows))
        if not rows:
            continue
        target, amounts = teacher[part - start + 1], list(rows)
        states = torch.stack([rows[amount].state for amount in amounts])
        ran = run(part, states)
        alike = mean_cosine(torch.stack([ran, states]), target).tolist()
        gone = [rows[amount].left_out for amount in amounts]
        offers = [(a, _Entry(ran[k], alike[0][k], gone[k])) for k, a in enumerate(amounts)]
        if part not in keep:
            more = weights[part]
            offers += [(a + more, _Entry(states[k], alike[1][k], (*gone[k], part))) for k, a in enumerate(amounts)]
        rows, clashes = _best(offers, budget, theta, prefer_left_out)
        collisions += clashes
    paths = tuple(Path(amount, entry.left_out, entry.similarity, entry.state) for amount, entry in rows.items())
    return Found(paths, tuple(entering), collisions)


def _check(teacher: Sequence[torch.Tensor], weights: Sequence[int], budget: int, start: int) -> None:
    if any(weight < 1 for weight in weights):
        raise ConfigError(f"knapsack: weights {list(weights)}; allowed: whole numbers of at least 1")
    if budget < 0:
        raise ConfigError(f"knapsack: budget {budget}; allowed: at least 0")
    if len(teacher) != len(weights) - start + 1:
        raise ConfigError(
            f"knapsack: {len(teacher)} states; allowed: {len(weights) - start + 1}, one before and one after"
        )


def _best(
    offers: Sequence[tuple[int, _Entry]], budget: int, theta: float | None, prefer_left_out: bool
) -> tuple[dict[int, _Entry], int]:
    """One entry per amount, ascending, and how many offers met another."""
    found: dict[int, _Entry] = {}
    clashes = 0
    for amount, offer in offers:
        if amount > budget or (theta is not None and not offer.similarity >= theta):
            continue
        clashes += amount in found
        held = found.get(amount)
        wins = held is None or offer.similarity > held.similarity
        if wins or (prefer_left_out and held is not None and offer.similarity == held.similarity):
            found[amount] = offer
    return {amount: found[amount] for amount in sorted(found)}, clashes


def clasp(teacher: Sequence[torch.Tensor], run: Run, skip: int) -> tuple[int, ...]:
    """CLaSp: the `skip` whole layers to leave out, judged on the last accepted token (clasp.py of the same repository).

    Any layer may go, the first and the last too; the released runner leaves out 8 and searches again every 64 rounds.

    Args:
        teacher: float[1, H] states of the full model at that token: before the first layer, then after each.
        run: runs one layer on a batch of states.
        skip: layers to leave out.

    Raises:
        ConfigError: not fewer than there are layers.
    """
    layers = len(teacher) - 1
    if not 0 <= skip < layers:
        raise ConfigError(f"clasp: {skip} layers to leave out; allowed: 0..{layers - 1}")
    found = search(teacher, run, [1] * layers, skip, prefer_left_out=True)
    return next(path.left_out for path in found.paths if path.weight == skip)
