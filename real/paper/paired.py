"""Two methods compared on the same prompts: the ratio of their speedups, with a paired bootstrap interval.

Owns the rule "at least as fast within the interval": the interval's upper end reaches 1. The resampling over prompts is
`analysis.paired`'s.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from analysis.paired import interval_of

Float64Array = npt.NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class Times:
    """One method on B prompts.

    Args:
        plain_s: float64[B] seconds of plain decoding for as many tokens as the method emitted.
        time_s: float64[B] the method's seconds.
    """

    plain_s: Float64Array
    time_s: Float64Array

    @property
    def speedup(self) -> float:
        """Ratio of sums."""
        return float(self.plain_s.sum() / self.time_s.sum())


@dataclass(frozen=True, kw_only=True)
class Ratio:
    """Speedup of one method over that of another.

    Args:
        ratio: above 1: the first is faster.
        ci95: its interval; None with one prompt.
    """

    ratio: float
    ci95: tuple[float, float] | None

    @property
    def at_least_as_fast(self) -> bool:
        """Whether the first is not slower within the interval; without one, at all."""
        return (self.ratio if self.ci95 is None else self.ci95[1]) >= 1.0

    def to_json(self) -> dict[str, Any]:
        """JSON values."""
        return {"ratio": self.ratio, "ci95": self.ci95, "at_least_as_fast": self.at_least_as_fast}


def compare(one: Times, other: Times, *, seed: int) -> Ratio:
    """The ratio of two methods' speedups over the same prompts, in the same order.

    Args:
        one, other: the methods.
        seed: of the resampling.
    """
    sums = [np.stack([times.plain_s, times.time_s], axis=1) for times in (one, other)]
    return Ratio(ratio=one.speedup / other.speedup, ci95=interval_of(*sums, seed=seed))
