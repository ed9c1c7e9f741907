"""cosSim: nested block-skip arms, built by removing again and again the block that changes the hidden state least.

Source: SP2ec (arXiv 2610.18735), as released (hyuqi/sp2ec at 1cbdcb5, sp2ec_basic.py and sp2ec_basic_generator.py).
A block's importance is 1 - cos(its input, its output). Some passes of the full model give the first importances; then
every construction round removes one block more, drafts with what is left, and measures anew. Those rounds are ordinary
rounds of decoding and count as the arms' first pulls.

Owns which block goes next, which rows of a round count, and the family of arms. Knows no model and no decode loop: who
decodes plays `Construction.begin`'s arm, hands the importances of the round to `observe`, and plays what that returns.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from real.builders.arm import Arm
from specsim.errors import ConfigError

PROTECTED: Final = 2
"""Blocks at either end that are never removed."""
WARMUP_PASSES: Final = 4
"""Of the full model, before anything is removed: the first is never used, the three after it are averaged. The
released code makes five, the paper says four."""

Rows = NDArray[np.float32]


def removable(n_layers: int) -> range:
    """Blocks that may be removed.

    Raises:
        ConfigError: none would be.
    """
    if n_layers <= 2 * PROTECTED + 1:
        raise ConfigError(f"nested arms: the target has {n_layers} layers; allowed: at least {2 * PROTECTED + 2}")
    return range(PROTECTED, n_layers - PROTECTED)


def max_removed(n_layers: int, fraction: float | None = None) -> int:
    """Most blocks an arm removes: half of those that may be (rounded down), or a fraction of all blocks.

    Args:
        n_layers: blocks of the target.
        fraction: of all blocks, rounded down and limited to those that may be removed.

    Raises:
        ConfigError: too few blocks, or a fraction outside 0..1.
    """
    blocks = len(removable(n_layers))
    if fraction is None:
        return blocks // 2
    if not 0 <= fraction <= 1:
        raise ConfigError(f"nested arms: fraction {fraction:g}; allowed: 0..1")
    return min(int(fraction * n_layers), blocks)


def layers_removed(n_layers: int, *, arms: int | None, fraction: float | None, zero_skip: bool) -> int:
    """Most blocks an arm removes, for as many arms as are wanted or at most a fraction of the blocks.

    Args:
        n_layers: blocks of the target.
        arms: how many, the zero-skip arm included; None: by `fraction`.
        fraction: as for `max_removed`.
        zero_skip: whether one of the arms leaves nothing out.

    Raises:
        ConfigError: too few blocks, more arms than there can be or none, or both given.
    """
    most = len(removable(n_layers)) + zero_skip
    if arms is not None and fraction is not None:
        raise ConfigError("nested arms: arms and fraction both say how many arms there are; give one of them")
    if arms is not None and not 1 + zero_skip <= arms <= most:
        raise ConfigError(
            f"nested arms: {arms} arms; allowed: {1 + zero_skip}..{most}, of {n_layers} layers the two at either end "
            "stay"
        )
    removed = max_removed(n_layers, fraction) if arms is None else arms - zero_skip
    if removed < 1:
        raise ConfigError(f"nested arms: fraction {fraction:g} leaves out none of {n_layers} layers; take more")
    return removed


def mean_importance(rows: Rows) -> Rows | None:
    """float32[L] mean of float32[R, L] rows, in float32; None when there is no row."""
    return rows.mean(axis=0, dtype=np.float32) if len(rows) else None


def warmup_importance(passes: Sequence[Rows | None]) -> Rows | None:
    """float32[L] importances before anything is removed.

    Args:
        passes: float32[L] of each full-model pass in order, the prompt's first (never used, so None will do).

    Returns:
        The mean of passes 1, 2 and 3; None when there are fewer: then no arms can be built.
    """
    used = [row for row in passes[1:WARMUP_PASSES] if row is not None]
    return mean_importance(np.stack(used)) if len(used) == WARMUP_PASSES - 1 else None


def usable_rows(passes: Rows, kept: int, probe: Rows | None) -> Rows:
    """float32[R, L]: the rows of a round that tell about text the target agrees with.

    The first pass reads the last committed token and pass j >= 1 the j-th drafted one, so passes 1..kept read accepted
    tokens. The probe reads the token at the boundary (`boundary`).

    Args:
        passes: float32[n, L], importances of each draft pass.
        kept: drafted tokens accepted along the chain of most probable tokens (on a tree: before it left that chain).
        probe: float32[L] of the pass on the boundary token; None when it was not made.
    """
    rows = passes[1 : 1 + kept]
    return rows if probe is None else np.concatenate([rows, probe[None]])


class Boundary(NamedTuple):
    """The token the probe pass reads, and how many drafted tokens stand before it."""

    token: int
    before: int


def boundary(chain: Sequence[int], kept: int, side: int | None = None) -> Boundary | None:
    """What the probe reads after a round; None when nothing was drafted.

    Args:
        chain: the drafted chain of most probable tokens.
        kept: how many of them were accepted.
        side: the accepted token of a tree that is not on the chain.

    Returns:
        That accepted token; else the first rejected one; when all were accepted, the last.
    """
    if not chain:
        return None
    if side is not None:
        return Boundary(side, kept)
    place = min(kept, len(chain) - 1)
    return Boundary(chain[place], place)


class Construction:
    """One family of arms in the making.

    `begin`, and then `observe` after every round, give the arm to play next until they give None: the family is
    complete, or (`complete` false) a round gave no importances and what there is must do.

    Args:
        n_layers: blocks of the target.
        fraction: most blocks removed, as a fraction of all; None: half of those that may be.
        span: (fewest, most) blocks removed by the arms offered, in place of `fraction`. Smaller arms are played on the
            way, but not offered.
        zero_skip: whether the first arm leaves nothing out. Its round is played without measuring importances.

    Attributes:
        rounds: construction rounds of a complete family.
        removed: blocks in the order of removal so far.
        importances: float, what each of them had when it was removed.

    Raises:
        ConfigError: too few blocks, a fraction or span out of range, or both.
    """

    def __init__(
        self,
        n_layers: int,
        *,
        fraction: float | None = None,
        span: tuple[int, int] | None = None,
        zero_skip: bool = False,
    ) -> None:
        self._blocks = removable(n_layers)
        self.n_layers, self.zero_skip = n_layers, zero_skip
        if span is None:
            self._fewest, self._most = 1, max_removed(n_layers, fraction)
        else:
            if fraction is not None:
                raise ConfigError("cosSim: give fraction or span, not both")
            self._fewest, self._most = span
            if not 1 <= self._fewest <= self._most <= len(self._blocks):
                raise ConfigError(
                    f"cosSim: span {span[0]}..{span[1]}; allowed: 1 <= fewest <= most <= {len(self._blocks)}, the "
                    "blocks that may be removed"
                )
        self.rounds = self._most + zero_skip
        self.removed: list[int] = []
        self.importances: list[float] = []
        self._arms: list[Arm] = []
        self._importance: Rows | None = None

    def begin(self, importance: Rows | None) -> Arm | None:
        """The first arm, from the full model's importances (`warmup_importance`)."""
        assert not self._arms, "begin is called once"
        self._importance = importance
        if importance is None:
            return None
        return self._play(Arm()) if self.zero_skip else self._remove()

    def observe(self, rows: Rows) -> Arm | None:
        """The next arm, after a round with the last one.

        Args:
            rows: float32[R, L], `usable_rows` of that round. Not read after the zero-skip arm.
        """
        assert self._arms, "begin comes first"
        if self.collects(len(self._arms) - 1):
            self._importance = mean_importance(rows)
        if self.complete or self._importance is None:
            return None
        return self._remove()

    def arm(self, k: int) -> Arm:
        """The arm of construction round k, from 0."""
        return self._arms[k]

    def collects(self, k: int) -> bool:
        """Whether importances are measured in construction round k (the released code does so in the last too)."""
        return k > 0 or not self.zero_skip

    def offered(self, k: int) -> bool:
        """Whether the arm of construction round k is one of the family; its round is then its first pull."""
        gone = k + 1 - self.zero_skip
        return gone == 0 or gone >= self._fewest

    @property
    def complete(self) -> bool:
        """Whether every arm has been given out."""
        return len(self._arms) == self.rounds

    @property
    def family(self) -> tuple[Arm, ...]:
        """The arms offered so far, by ascending amount left out, as the released code numbers them.

        The paper numbers them by ascending compute, the other way round; they are built in the same order.
        """
        return tuple(arm for k, arm in enumerate(self._arms) if self.offered(k))

    def _remove(self) -> Arm | None:
        if self.complete:
            return None
        importance = self._importance
        assert importance is not None
        assert importance.shape == (self.n_layers,)
        eligible = [block for block in self._blocks if block not in self.removed]
        assert np.isfinite(importance[eligible]).all(), "an importance is not finite"
        block = min(eligible, key=lambda b: importance[b])  # the lowest number among equals
        self.removed.append(block)
        self.importances.append(float(importance[block]))
        return self._play(Arm.blocks(self.removed))

    def _play(self, arm: Arm) -> Arm:
        self._arms.append(arm)
        return arm
