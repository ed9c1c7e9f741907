"""SpecVLM: which visual tokens a draft pass sees, by the target's attention to them and an even spread over the rest.

Source: SpecVLM (zju-jiyicheng/SpecVLM at 4fcd84e, utils/utils.py 260-400, inference.py). Visual tokens are counted by
themselves, 0..n-1, in their order in the prompt; text tokens always stay. Chosen once for a prompt; the target sees
everything.

Owns the scores, the choice of tokens and families of such choices. Knows no model and needs no torch.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, Final, Literal, cast, get_args

import numpy as np
from numpy.typing import ArrayLike, NDArray

from specsim.errors import ConfigError

SHARE: Final = 0.4
"""Share of all attention that the first stage keeps, as released."""
Ranks = NDArray[np.int64]
"""Ranks among the visual tokens, ascending."""


def kept_count(n: int, drop_rate: float) -> int:
    """Visual tokens kept of n: the integer part of n (1 - drop_rate) in float64, so 9 of 100 at 0.9.

    Raises:
        ConfigError: a rate outside 0..1.
    """
    if not 0 <= drop_rate <= 1:
        raise ConfigError(f"SpecVLM: drop rate {drop_rate:g}; allowed: 0..1")
    return int(n * (1 - drop_rate))


def last_visual(tokens: Sequence[int], visual: int) -> int:
    """Place of the last visual token, -1 when there is none; the text behind it makes the queries of the scores."""
    return max((place for place, token in enumerate(tokens) if token == visual), default=-1)


def attention_scores(layers: Iterable[Any], visual: Sequence[int], queries: Sequence[int] | None = None) -> Any:
    """float32[n]: attention each visual token receives, averaged over heads, then queries, then layers.

    Not normalised over the visual tokens: what goes to text tokens is lost. Works on arrays and on tensors alike, one
    layer at a time.

    Args:
        layers: float32[heads, Q, K] attention weights of each layer, rows for the text behind the last visual token.
        visual: places of the visual tokens among the K keys.
        queries: rows to use; None: all.
    """
    total, count = None, 0
    for layer in layers:
        rows = layer if queries is None else layer[:, list(queries)]
        part = rows.mean(0).mean(0)[list(visual)]
        total, count = part if total is None else total + part, count + 1
    if total is None:
        raise ConfigError("SpecVLM: no attention weights; load the target with attn_implementation='eager'")
    return total / count


def similar_text(visual: NDArray[np.floating], text: NDArray[np.floating]) -> Ranks:
    """Text rows that are used as queries instead of all: the half (rounded down) most like the visual tokens.

    Args:
        visual: float[n, H] embeddings.
        text: float[m, H] embeddings.

    Returns:
        The m // 2 rows with the largest mean dot product, ascending.
    """
    alike = (text @ visual.T).mean(axis=1)
    return np.sort(_descending(alike)[: len(text) // 2])


def _descending(scores: NDArray[np.floating]) -> Ranks:
    """Ranks by descending score, earlier tokens first among equals."""
    return np.argsort(-scores, kind="stable")


def tokens_for_share(scores: ArrayLike, share: float) -> int:
    """Fewest best tokens whose running sum (float32) reaches `share` of the total; all, if rounding keeps it short."""
    ordered = np.sort(np.asarray(scores, np.float32))[::-1]
    reached = np.cumsum(ordered, dtype=np.float32) >= np.float32(share) * ordered.sum(dtype=np.float32)
    return int(np.argmax(reached)) + 1 if reached.any() else len(ordered)


def share_of_top(scores: ArrayLike, fraction: float) -> float:
    """Share of the total held by the best `fraction` of the tokens: its integer part, but at least one."""
    ordered = np.sort(np.asarray(scores, np.float32))[::-1]
    best = ordered[: max(int(len(ordered) * fraction), 1)]
    return float(best.sum(dtype=np.float32) / ordered.sum(dtype=np.float32))


def spread(available: int, count: int) -> Ranks:
    """`count` evenly spaced ranks among `available`, the first and the last included; one alone is the first.

    As torch's integer linspace on machines that fuse multiplication and addition: steps in float64 from either end to
    the middle, cut to whole numbers.
    """
    if count < 2:
        return np.zeros(count, np.int64)
    last, step, half = available - 1, (available - 1) / (count - 1), count // 2
    up = [int(step * k) for k in range(half)]
    # Rounded once, after the exact difference: that is what fusing means.
    down = [int(float(last - Fraction(step) * (count - 1 - k))) for k in range(half, count)]
    return np.array(up + down, np.int64)


def two_stage(
    scores: ArrayLike,
    keep: int,
    *,
    share: float = SHARE,
    fraction: float | None = None,
    lowest_first: bool = False,
) -> Ranks:
    """The tokens kept: first those that draw most attention, then an even spread over the others.

    Args:
        scores: float32[n].
        keep: how many, 0..n.
        share: the first stage takes the best tokens that together hold this share of all attention, `keep` at most.
        fraction: in place of `share`: it takes this fraction of all n (or all `keep`, when that is less).
        lowest_first: take the least attended ones instead (a control); as many, still counted on the best.

    Returns:
        Exactly `keep` different ranks, ascending. The released code fails when nothing is left for the second stage
        and nothing needs to be.

    Raises:
        ConfigError: more tokens wanted than there are, or a share or fraction outside 0..1.
    """
    values = np.asarray(scores, np.float32)
    n = len(values)
    _check_keep(keep, n)
    for name, value in (("share", share), ("fraction", fraction)):
        if value is not None and not 0 <= value <= 1:
            raise ConfigError(f"SpecVLM: {name} {value:g}; allowed: 0..1")
    if fraction is None:
        first = min(tokens_for_share(values, share), keep) if n else 0
    else:
        first = min(int(n * fraction), keep)
    attended = _descending(-values if lowest_first else values)[:first]
    others = np.setdiff1d(np.arange(n), attended)
    return np.sort(np.concatenate([attended, others[spread(len(others), keep - first)]]))


def _check_keep(keep: int, n: int) -> None:
    if not 0 <= keep <= n:
        raise ConfigError(f"SpecVLM: {keep} visual tokens to keep; allowed: 0..{n}")


Window = Literal["front", "middle", "back"]


def window(n: int, keep: int, where: Window) -> Ranks:
    """`keep` neighbours at one place: the first, the middle (start rounded down) or the last ones."""
    _check_keep(keep, n)
    start = {"front": 0, "middle": (n - keep) // 2, "back": n - keep}[where]
    return np.arange(start, start + keep)


def uniform(n: int, keep: int) -> Ranks:
    """An even spread over all."""
    _check_keep(keep, n)
    return spread(n, keep)


def attention_only(scores: ArrayLike, keep: int) -> Ranks:
    """The tokens that draw most attention."""
    values = np.asarray(scores, np.float32)
    _check_keep(keep, len(values))
    return np.sort(_descending(values)[:keep])


def at_random(order: Sequence[int], keep: int) -> Ranks:
    """The first `keep` of a random order of all tokens, which the caller draws."""
    _check_keep(keep, len(order))
    return np.sort(np.asarray(order[:keep], np.int64))


def sequence_positions(tokens: Sequence[int], visual: int, kept: Ranks) -> Ranks:
    """Places of the prompt that the draft pass sees: all text, and the visual tokens kept.

    Args:
        tokens: ids of the prompt.
        visual: the id that stands for a visual token.
        kept: ranks among the visual tokens.
    """
    ids = np.asarray(tokens)
    places = np.flatnonzero(ids == visual)
    return np.sort(np.concatenate([np.flatnonzero(ids != visual), places[kept]]))


TWO_STAGE, ATTENTION, UNIFORM, RANDOM = "two-stage", "attention", "uniform", "random"
KINDS: Final = (TWO_STAGE, ATTENTION, UNIFORM, *get_args(Window), RANDOM)


@dataclass(frozen=True, kw_only=True)
class Choice:
    """Which of the published rules chooses, and its settings.

    Args:
        kind: one of `KINDS`: `two_stage`, `attention_only`, `uniform`, a `window`, or `at_random`.
        share, fraction, lowest_first: of `two_stage`; `lowest_first` of `attention_only` too.

    Raises:
        ConfigError: another kind.
    """

    kind: str = TWO_STAGE
    share: float = SHARE
    fraction: float | None = None
    lowest_first: bool = False

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise ConfigError(f"SpecVLM: choice {self.kind!r}; allowed: {', '.join(KINDS)}")

    @property
    def looks(self) -> bool:
        """Whether scores decide."""
        return self.kind in (TWO_STAGE, ATTENTION)

    def kept(self, scores: NDArray[np.floating], keep: int, seed: Sequence[int] = ()) -> Ranks:
        """The ranks kept of the tokens that these scores belong to, ascending.

        Args:
            scores: float32[n]; rules that do not look use their number alone.
            keep: how many, 0..n.
            seed: of random choices.
        """
        n = len(scores)
        if self.kind == TWO_STAGE:
            settings: dict[str, Any] = {"fraction": self.fraction, "lowest_first": self.lowest_first}
            return two_stage(scores, keep, share=self.share, **settings)
        if self.kind == ATTENTION:
            return attention_only(-scores if self.lowest_first else scores, keep)
        if self.kind == RANDOM:
            return at_random(np.random.default_rng(list(seed)).permutation(n).tolist(), keep)
        return uniform(n, keep) if self.kind == UNIFORM else window(n, keep, cast(Window, self.kind))


def family(
    scores: ArrayLike,
    drop_rates: Sequence[float],
    choice: Choice,
    *,
    nested: bool = False,
    seed: Sequence[int] = (),
) -> list[Ranks]:
    """One choice for each drop rate: the arms of SP2ec, from the draft that sees most to the one that sees least.

    Args:
        scores: float32[n].
        drop_rates: ascending.
        choice: the rule.
        nested: whether each choice is made among the tokens of the one before it, by the same rule; else each is made
            among all tokens, and the spread of one need not lie in that of the other.
        seed: as for `Choice.kept`.

    Raises:
        ConfigError: a rate outside 0..1.
    """
    values = np.asarray(scores, np.float32)
    chosen: list[Ranks] = []
    pool = np.arange(len(values))
    for rate in drop_rates:
        chosen.append(pool[choice.kept(values[pool], kept_count(len(values), rate), seed)])
        if nested:
            pool = chosen[-1]
    return chosen
