"""What follows from the seconds: a controller to use, or none, with intervals that choosing has not flattered.

Speedups and gains are ratios of summed seconds; intervals come from a paired bootstrap over requests of the held-out
seconds (`specsim.metrics.bootstrap_ratios`, every number from the same resamples).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from analysis.recommend.crossfit import Dealt, Fitted, cross_fit, held_out
from specsim.metrics import bootstrap_ratios

Floats = NDArray[np.float64]
USE, LOSES, UNDECIDED = "use", "loses", "cannot be told yet"
SMALL = 0.005
"""Differences of speed below half a percent count as none."""


@dataclass(frozen=True, kw_only=True)
class Ratio:
    """A ratio of sums with its 95 % interval."""

    value: float
    low: float
    high: float

    @property
    def half_width(self) -> float:
        """Half the interval, relative to the value."""
        return (self.high - self.low) / 2 / self.value

    def to_json(self) -> dict[str, object]:
        """Value and interval."""
        return {"value": self.value, "ci95": [self.low, self.high]}


@dataclass(frozen=True, kw_only=True)
class Row:
    """A family, its parameters chosen on other requests than those it is judged by.

    Attributes:
        best: candidate it takes on all requests.
        speedup: over plain decoding.
        gain: speed over that of the best static setting, chosen in the same way.
        behind: its seconds over those of the choice among all families.
        same: speedup on the requests that its parameters were chosen by.
        share: how often it looked fastest.
    """

    family: int
    best: int
    speedup: Ratio
    gain: Ratio
    behind: Ratio
    same: float
    share: float


@dataclass(frozen=True, kw_only=True)
class Decision:
    """What to do, and what was compared.

    Attributes:
        verdict: USE, LOSES (no controller gains anything) or UNDECIDED.
        row: the family to use; of the other verdicts the one that came closest.
        rows: all families, simplest first; the first is the static one.
        winner: the family that looks fastest; it may be another than `row`, which is then simpler.
        speedup, gain: of the advice; where that is the winner (and not static) what picking the fastest of all without
            each request gave.
        chosen: speedup and gain of choosing the fastest of all families, whatever the advice is.
        same_speedup: of the advice (of the winner: of the fastest of all), judged by the requests that chose it;
            `same_gain`: likewise of the fastest of all over the best static one.
        fitted, dealt: how it came about.
        held_s: float64[n] seconds per request of the advice, held out; those of plain decoding where it is not to
            speculate.
    """

    verdict: str
    row: Row
    rows: tuple[Row, ...]
    winner: int
    speedup: Ratio
    gain: Ratio
    chosen: tuple[Ratio, Ratio]
    same_speedup: float
    same_gain: float
    fitted: Fitted
    dealt: Dealt
    held_s: Floats

    @property
    def choice(self) -> NDArray[np.int64]:
        """int64[repeats, folds]: the candidate the advice takes for each fold."""
        family = self.row.family
        return self.fitted.picked if family == self.winner and family else self.fitted.family_choice[family]


def ratios(numerator: Floats, denominators: Sequence[Floats], seed: int) -> list[Ratio]:
    """sum(numerator) / sum(denominator) with intervals, for each denominator."""
    intervals = bootstrap_ratios(numerator, list(denominators), seed)
    found = []
    for seconds, (low, high) in zip(denominators, intervals, strict=True):
        assert low is not None, "fewer requests than that are refused"
        assert high is not None, "fewer requests than that are refused"
        found.append(Ratio(value=float(numerator.sum() / seconds.sum()), low=low, high=high))
    return found


def decide(plain_s: Floats, time_s: Floats, families: Sequence[slice], dealt: Dealt, seed: int) -> Decision:
    """Compare the families and say which to use.

    Those whose interval of the speedup lies above 1 come into question. Of them the simplest is taken that is not
    certainly slower than the choice among all families, or slower by less than `SMALL`.

    Args:
        plain_s: float64[n] seconds of plain decoding.
        time_s: float64[C, n] seconds of the candidates.
        families: which candidates each family has, simplest first, the static one at the head.
        dealt: folds of the n requests.
        seed: of the resampling.
    """
    fitted = cross_fit(time_s, families, dealt)
    held = [held_out(time_s, choice, dealt) for choice in fitted.family_choice]
    picked_s = held_out(time_s, fitted.picked, dealt)
    speedups = ratios(plain_s, [*held, picked_s], seed)
    gains = ratios(held[0], [*held, picked_s], seed)
    # Times of the pick over those of a family: below 1 where the family is slower, so its inverse is what it is behind.
    behind = [_inverse(ratio) for ratio in ratios(picked_s, held, seed)]
    totals = time_s.sum(axis=1)
    plain, static = float(plain_s.sum()), float(totals[fitted.best[0]])
    rows = tuple(
        Row(
            family=f,
            best=int(fitted.best[f]),
            speedup=speedups[f],
            gain=gains[f],
            behind=behind[f],
            same=plain / float(totals[fitted.best[f]]),
            share=float(fitted.shares[f]),
        )
        for f in range(len(families))
    )
    winner = fitted.winner
    # The static family was not picked out of many, so its own numbers are fair; the winner's are those of picking.
    question = [row for row in rows if (speedups[-1] if row.family == winner > 0 else row.speedup).low > 1]
    tied = [row for row in question if row.family == winner or _as_fast(row.behind)]
    if tied:
        verdict, row = USE, tied[0]
    elif question:
        verdict, row = USE, max(question, key=lambda row: row.speedup.value)
    else:
        highest = max(ratio.high for ratio in speedups)
        verdict, row = (LOSES if highest < 1 + SMALL else UNDECIDED), rows[winner]
    is_winner = row.family == winner > 0
    best = float(totals.min()) if is_winner else float(totals[row.best])
    used_s = picked_s if is_winner else held[row.family]
    return Decision(
        verdict=verdict,
        row=row,
        rows=rows,
        winner=winner,
        speedup=speedups[-1] if is_winner else row.speedup,
        gain=gains[-1] if is_winner else row.gain,
        chosen=(speedups[-1], gains[-1]),
        same_speedup=plain / best,
        same_gain=static / float(totals.min()),
        fitted=fitted,
        dealt=dealt,
        held_s=used_s if verdict == USE else plain_s,
    )


def _as_fast(behind: Ratio) -> bool:
    return behind.low <= 1 or behind.value < 1 + SMALL


def _inverse(ratio: Ratio) -> Ratio:
    return Ratio(value=1 / ratio.value, low=1 / ratio.high, high=1 / ratio.low)
