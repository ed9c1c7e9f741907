"""What follows from the seconds: a controller to use, or none, with intervals that choosing has not flattered.

Speedups and gains are ratios of summed held-out seconds; intervals come from a paired bootstrap over requests that
chooses anew in every resample (`analysis.recommend.crossfit`), every number from the same resamples.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from analysis.recommend.crossfit import Chosen, Dealt, choose, first_least, held_out, paid, sums_of

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
        families, dealt: how it came about.
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
    families: tuple[slice, ...]
    dealt: Dealt
    held_s: Floats

    def choice(self, chosen: Chosen) -> NDArray[np.int64]:
        """int64[S, K]: the candidate that the way to the advice takes for each fold."""
        family = self.row.family
        return chosen.picked if family == self.winner and family else chosen.by_family[family]


def ratio(value: float, resampled: Floats) -> Ratio:
    """A ratio with the 95 % interval of its resamples, moved to lie around it.

    Resamples of a choice are better than the choice itself, as what leads by luck here leads in all of them; they are
    used for the width alone.
    """
    logs = np.log(resampled)
    low, high = np.percentile(logs - logs.mean(), [2.5, 97.5])
    return Ratio(value=value, low=value * float(np.exp(min(low, 0.0))), high=value * float(np.exp(max(high, 0.0))))


class Totals(NamedTuple):
    """Summed seconds of plain decoding, of each family, and of picking the fastest; float64[S], [F, S], [S]."""

    plain: Floats
    held: Floats
    picked: Floats


def totals_of(plain_s: Floats, time_s: Floats, families: Sequence[slice], design: Floats) -> tuple[Totals, Chosen]:
    """Choose and pay, in every repeat or resample of `design` float64[n, S, K]."""
    sums = sums_of(time_s, design)
    chosen = choose(sums, families)
    held = np.array([paid(sums, choice) for choice in chosen.by_family])
    return Totals(plain_s @ design.sum(axis=2), held, paid(sums, chosen.picked)), chosen


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
    once, chosen = totals_of(plain_s, time_s, families, dealt.repeated())
    parts = [totals_of(plain_s, time_s, families, design)[0] for design in dealt.resampled(seed)]
    drawn = Totals(*(np.concatenate(part, axis=-1) for part in zip(*parts, strict=True)))

    def compared(top: Callable[[Totals], Floats], bottom: Callable[[Totals], Floats]) -> Ratio:
        return ratio(float(top(once).mean() / bottom(once).mean()), top(drawn) / bottom(drawn))

    totals = time_s.sum(axis=1)
    plain, best = float(plain_s.sum()), [members.start + int(first_least(totals[members])) for members in families]
    rows = tuple(
        Row(
            family=f,
            best=best[f],
            speedup=compared(lambda t: t.plain, lambda t, f=f: t.held[f]),
            gain=compared(lambda t: t.held[0], lambda t, f=f: t.held[f]),
            behind=compared(lambda t, f=f: t.held[f], lambda t: t.picked),
            same=plain / float(totals[best[f]]),
            share=float((chosen.fastest == f).mean()),
        )
        for f in range(len(families))
    )
    picked = compared(lambda t: t.plain, lambda t: t.picked), compared(lambda t: t.held[0], lambda t: t.picked)
    winner = int(first_least(once.held.sum(axis=1)))
    # The static family was not picked out of many, so its own numbers are fair; the winner's are those of picking.
    question = [row for row in rows if (picked[0] if row.family == winner > 0 else row.speedup).low > 1]
    tied = [row for row in question if row.family == winner or _as_fast(row.behind)]
    if question:
        verdict, row = USE, tied[0] if tied else max(question, key=lambda row: row.speedup.value)
    else:
        highest = max(r.high for r in (picked[0], *(row.speedup for row in rows)))
        verdict, row = (LOSES if highest < 1 + SMALL else UNDECIDED), rows[winner]
    is_pick = row.family == winner > 0
    used = chosen.picked if is_pick else chosen.by_family[row.family]
    return Decision(
        verdict=verdict,
        row=row,
        rows=rows,
        winner=winner,
        speedup=picked[0] if is_pick else row.speedup,
        gain=picked[1] if is_pick else row.gain,
        chosen=picked,
        same_speedup=plain / float(totals.min()) if is_pick else row.same,
        same_gain=float(totals[best[0]] / totals.min()),
        families=tuple(families),
        dealt=dealt,
        held_s=held_out(time_s, used, dealt) if verdict == USE else plain_s,
    )


def elsewhere(decision: Decision, time_s: Floats, plain_s: Floats, other_s: Floats, seed: int) -> tuple[Ratio, Ratio]:
    """The advice where rounds cost something else: chosen by the old seconds, paid by the new ones.

    Args:
        decision: made by `time_s`.
        time_s: float64[C, n], the seconds chosen by.
        plain_s, other_s: float64[n], float64[C, n]: the seconds paid.
        seed: of the resampling.

    Returns:
        Its speedup there, and its seconds over those of picking the fastest there.
    """

    def all_of(design: Floats) -> Floats:
        there, _ = totals_of(plain_s, other_s, decision.families, design)
        choice = decision.choice(choose(sums_of(time_s, design), decision.families))
        return np.array([there.plain, paid(sums_of(other_s, design), choice), there.picked])

    plain, own, picked = all_of(decision.dealt.repeated()).mean(axis=1).tolist()
    drawn = np.concatenate([all_of(design) for design in decision.dealt.resampled(seed)], axis=1)
    return ratio(plain / own, drawn[0] / drawn[1]), ratio(own / picked, drawn[1] / drawn[2])


def _as_fast(behind: Ratio) -> bool:
    return behind.low <= 1 or behind.value < 1 + SMALL
