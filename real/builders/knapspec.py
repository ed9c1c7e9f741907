"""KnapSpec: attention and MLP sub-blocks to leave out, by a knapsack over latency and hidden-state similarity.

Source: KnapSpec (kaist-flexml-lab/knapspec at 8eef1a2, knapspec.py 49-70 and 154-305), and the family of arms that
SP2ec makes of it (hyuqi/sp2ec at 1cbdcb5, knapspec.py). Sub-block 2i is the attention of layer i, 2i + 1 its MLP.

Owns the latency model, the integer weights and the budget, the estimated tokens per unit of time, and the choice of one
draft or of a family. The search itself is `real.builders.knapsack`. Knows no model: callers run sub-blocks and predict.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np
import torch

from real.builders.arm import Arm
from real.builders.knapsack import Found, Run, search
from specsim.errors import ConfigError

MAX_WEIGHT: Final = 5
THETA: Final = 0.5
"""Least mean cosine with the full model, as released."""
DRAFT_LENS: Final = range(18)
"""Draft lengths over which an estimate is maximised."""
ARMS: Final = 10
"""Size of SP2ec's family, the zero-skip arm included."""

Predict = Callable[[torch.Tensor], torch.Tensor]
"""float[B, T, H] last states -> int64[B, T] most probable next tokens (final norm and output head)."""


class Times(NamedTuple):
    """Seconds (or any one unit) of one attention and of one MLP."""

    attention: float
    mlp: float


class Weights(NamedTuple):
    """Whole-number costs of one attention and of one MLP."""

    attention: int
    mlp: int


@dataclass(frozen=True)
class Latency:
    """Time of a sub-block: an MLP takes `mlp`, an attention `slope * past + attention` over `past` cached tokens.

    The released names are c1, c2 and c3.
    """

    mlp: float
    slope: float
    attention: float

    def at(self, past: int) -> Times:
        """Times over `past` cached tokens.

        Raises:
            ConfigError: they come out as not positive.
        """
        return _positive(Times(self.slope * past + self.attention, self.mlp))

    @classmethod
    def fit(cls, past: Sequence[int], attention: Sequence[float], mlp: Sequence[float]) -> Latency:
        """The mean MLP time and the least-squares line through the attention times.

        Args:
            past: cached tokens of each measurement, at least two different numbers.
            attention: measured time of one attention at each.
            mlp: measured time of one MLP at each.

        Raises:
            ConfigError: lists of different length, or too few lengths.
        """
        if not len(past) == len(attention) == len(mlp) or len(set(past)) < 2:
            raise ConfigError("latency of sub-blocks: measure attention and MLP at each of at least two lengths")
        slope, constant = np.polyfit(np.asarray(past, np.float64), np.asarray(attention, np.float64), 1)
        return cls(float(np.mean(mlp)), float(slope), float(constant))


def _positive(times: Times) -> Times:
    if not all(np.isfinite(time) and time > 0 for time in times):
        raise ConfigError(
            f"latency of sub-blocks: attention {times.attention:g}, MLP {times.mlp:g}; allowed: positive times. "
            "Measure again, over more lengths"
        )
    return times


def weights_of(times: Times) -> Weights:
    """The cheaper kind weighs 1, the other the ratio of the times, rounded half to even, `MAX_WEIGHT` at most."""
    _positive(times)
    if times.attention > times.mlp:
        return Weights(round(min(times.attention / times.mlp, MAX_WEIGHT)), 1)
    return Weights(1, round(min(times.mlp / times.attention, MAX_WEIGHT)))


def budget_of(n_layers: int, weights: Weights, fraction: float | None = None) -> int:
    """Most weight left out: half of all, rounded down (KnapSpec), or the integer part of a fraction (SP2ec: 0.6).

    Raises:
        ConfigError: a fraction outside 0..1.
    """
    total = sum(weights) * n_layers
    if fraction is None:
        return total // 2
    if not 0 <= fraction <= 1:
        raise ConfigError(f"KnapSpec: fraction {fraction:g}; allowed: 0..1")
    return int(total * fraction)


@dataclass(frozen=True)
class Candidate:
    """A draft network the search kept.

    Args:
        weight: what it leaves out, in weights.
        arm: its missing sub-blocks.
        match: share of the tokens at which its most probable next token is the full model's.
        similarity: mean cosine of its last state with the full model's.
    """

    weight: int
    arm: Arm
    match: float
    similarity: float = 1.0


def candidates(
    teacher: Sequence[torch.Tensor],
    run: Run,
    predict: Predict,
    *,
    weights: Weights,
    budget: int,
    theta: float = THETA,
) -> tuple[list[Candidate], Found]:
    """(candidates by ascending weight left out, what the search saw). None survives: leave nothing out.

    The first and the last layer are always run.

    Args:
        teacher: float[T, H] of the full model after each of the 2n sub-blocks, at the T tokens the search looks at.
        run: runs one sub-block on a batch of branches; branches do not see one another, each sees the cache as it was
            before those T tokens.
        predict: most probable next tokens.
        weights: cost of the two kinds.
        budget: most weight left out.
        theta: least mean cosine, at every sub-block.

    Raises:
        ConfigError: fewer than 2 layers, or an odd number of states.
    """
    blocks = len(teacher)
    if blocks < 4 or blocks % 2:
        raise ConfigError(f"KnapSpec: states after {blocks} sub-blocks; allowed: two for each of at least 2 layers")
    costs = [weights[block % 2] for block in range(blocks)]
    last = (blocks - 2, blocks - 1)
    found = search(teacher[1:], run, costs, budget, start=2, keep=last, theta=theta)
    if not found.paths:
        return [], found
    tokens = predict(torch.stack([*(path.state for path in found.paths), teacher[-1]]))
    match = (tokens[:-1] == tokens[-1]).double().mean(dim=-1).tolist()
    kept = []
    for path, share in zip(found.paths, match, strict=True):
        mask = [int(block in path.left_out) for block in range(blocks)]
        kept.append(Candidate(path.weight, Arm.from_mask(mask), share, path.similarity))
    return kept, found


def tokens_per_time(arm: Arm, match: float, draft_len: int, *, n_layers: int, times: Times) -> float:
    """Estimated tokens of a round per unit of time: (1 + a + ... + a^d) / time of d drafts and one full pass.

    Args:
        arm: what the draft leaves out.
        match: chance a that a drafted token is accepted, given those before it.
        draft_len: d.
        n_layers: layers of the target.
        times: of the sub-blocks.
    """
    # In closed form, as released: ties between lengths then fall as they do there.
    tokens = draft_len + 1 if match == 1 else (match ** (draft_len + 1) - 1) / (match - 1)
    kept = Times(n_layers - len(arm.attention), n_layers - len(arm.mlp))
    passes = (time * (n * draft_len + n_layers) for time, n in zip(times, kept, strict=True))
    return tokens / sum(passes)


class Choice(NamedTuple):
    """A candidate's place in the list, the draft length at which its estimate is largest, and that estimate."""

    place: int
    draft_len: int
    score: float


def best_length(place: int, candidate: Candidate, *, n_layers: int, times: Times) -> Choice:
    """The draft length in `DRAFT_LENS` with the largest estimate, the shortest among equals."""
    scores = [tokens_per_time(candidate.arm, candidate.match, d, n_layers=n_layers, times=times) for d in DRAFT_LENS]
    length = max(DRAFT_LENS, key=scores.__getitem__)
    return Choice(place, length, scores[length])


def choose(found: Sequence[Candidate], *, n_layers: int, times: Times, published: bool = False) -> Choice | None:
    """The candidate with the largest estimate, the first among equals; None: there is none to choose from.

    Leaving nothing out is never chosen. The released code means the same, but passes over the first candidate of the
    list whatever it is; `published` does that too.
    """
    choices = (best_length(k, c, n_layers=n_layers, times=times) for k, c in _drafts(found, published))
    return max(choices, key=lambda choice: choice.score, default=None)


def _drafts(found: Sequence[Candidate], published: bool) -> list[tuple[int, Candidate]]:
    return [(k, c) for k, c in enumerate(found) if (k > 0 if published else c.arm != Arm())]


class Listed(NamedTuple):
    """A member of SP2ec's family: its candidate, its estimate and the place this has among them (from 1)."""

    candidate: Candidate
    score: float
    rank: int


def shortlist(
    scored: Sequence[tuple[Candidate, float]], count: int = ARMS, *, zero: float | None = None
) -> list[Listed]:
    """SP2ec's family: the candidates with the largest estimates, by ascending weight left out.

    Args:
        scored: candidates with their estimates. Of those with the same arm only the best is kept; among equals the
            first.
        count: how many arms.
        zero: estimate of leaving nothing out, which then takes one of the places; None: no such arm.

    Raises:
        ConfigError: fewer than one place.
    """
    if count < 1:
        raise ConfigError(f"KnapSpec: {count} arms; allowed: at least 1")
    best: dict[Arm, tuple[Candidate, float]] = {}
    for candidate, score in sorted(scored, key=lambda pair: -pair[1]):
        best.setdefault(candidate.arm, (candidate, score))
    if zero is not None:
        best.pop(Arm(), None)
    taken = list(best.values())[: count - (zero is not None)]
    if zero is not None:
        taken.append((Candidate(0, Arm(), 1.0), zero))
    ranked = sorted(taken, key=lambda pair: -pair[1])
    listed = [Listed(candidate, score, rank) for rank, (candidate, score) in enumerate(ranked, 1)]
    return sorted(listed, key=lambda entry: entry.candidate.weight)


def family(
    found: Sequence[Candidate],
    *,
    n_layers: int,
    times: Times,
    count: int = ARMS,
    zero_skip: bool = True,
    published: bool = False,
) -> list[Listed]:
    """SP2ec's arms from the candidates of a search.

    Args:
        found: the candidates.
        n_layers: layers of the target.
        times: of the sub-blocks.
        count: how many arms.
        zero_skip: whether one of them leaves nothing out; drafts of it are taken to be accepted always.
        published: pass over the first candidate whatever it is, as in `choose`.
    """
    scored = [(c, best_length(k, c, n_layers=n_layers, times=times).score) for k, c in _drafts(found, published)]
    zero = best_length(0, Candidate(0, Arm(), 1.0), n_layers=n_layers, times=times).score if zero_skip else None
    return shortlist(scored, count, zero=zero)


@dataclass(frozen=True)
class Schedule:
    """When states are collected and the arms built anew, in steps; step 0 is the pass over the prompt.

    Args:
        interval: steps from one building to the next: 64 (KnapSpec's runner) or 512 (SP2ec's).
        first: first step of an interval whose states count.
        last: last of them; the arms are built after it. Until then the old ones serve, and the full model before the
            first.

    Raises:
        ConfigError: steps that do not fit into the interval.
    """

    interval: int = 512
    first: int = 2
    last: int = 6

    def __post_init__(self) -> None:
        if not 0 < self.first <= self.last < self.interval:
            raise ConfigError(
                f"schedule: steps {self.first}..{self.last} of {self.interval}; allowed: 0 < first <= last < interval"
            )

    def collects(self, step: int) -> bool:
        """Whether the states of this step count."""
        return self.first <= step % self.interval <= self.last

    def builds(self, step: int) -> bool:
        """Whether the arms are built after this step."""
        return step % self.interval == self.last
