"""Numbers of one controller on one trace, as the replay result promises them. Pooled ratios only: sums over sums."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from specsim.expected import EXPECTED_NAMES
from specsim.kernel import ChunkRun
from specsim.rows import SUM_NAMES

RESAMPLES = 1000
_BLOCK = 2_000_000  # request draws held at once


@dataclass(kw_only=True)
class Totals:
    """Sums over the rounds of one controller, and per-request times for the bootstrap.

    Counts are whole numbers except under `expected` acceptance, where they are expectations.
    """

    rounds: float = 0
    tokens: float = 0
    drafted: float = 0
    submitted: float = 0
    accepted: float = 0
    draft_passes: float = 0
    clamped: float = 0
    deviation: float = 0
    part_drafts: float = 0
    arm_pulls: NDArray[np.int64] = field(default_factory=lambda: np.zeros(1, np.int64))
    time_s: list[NDArray[np.float64]] = field(default_factory=list)
    plain_s: list[NDArray[np.float64]] = field(default_factory=list)

    def add_run(self, run: ChunkRun, plain_s: NDArray[np.float64], arms: int) -> None:
        """Add a chunk; `plain_s` float64[B] are seconds of plain decoding per request, `arms` is K or 0."""
        if arms:
            played = run.rounds.arm[run.rounds.submitted_len > 0]
            self.arm_pulls = self.arm_pulls + np.bincount(played, minlength=arms)
        self.rounds += run.rounds.row.size
        for name, value in zip(SUM_NAMES, run.sums.tolist(), strict=True):
            setattr(self, name, getattr(self, name) + value)
        self.time_s.append(run.time_s)
        self.plain_s.append(plain_s)

    def add_expected(
        self, sums: NDArray[np.float64], time_s: NDArray[np.float64], plain_s: NDArray[np.float64]
    ) -> None:
        """Add expectations of a chunk; `sums` as `specsim.expected.expect_chunk` returns them."""
        for name, value in zip(EXPECTED_NAMES, sums.tolist(), strict=True):
            setattr(self, name, getattr(self, name) + value)
        self.time_s.append(time_s)
        self.plain_s.append(plain_s)

    def summary(self, interval: list[Any], best_fixed_s: float | None, oracle_s: float | None) -> dict[str, Any]:
        """The numeric keys of one replay result; undefined ratios are None.

        Args:
            interval: [low, high] of the speedup.
            best_fixed_s: seconds of the best static length, None where regret is undefined.
            oracle_s: seconds of the clairvoyant path, None where regret is undefined.
        """
        time_s = math.fsum(np.concatenate(self.time_s))
        plain_s = math.fsum(np.concatenate(self.plain_s))
        return {
            "rounds": self.rounds,
            "tokens": self.tokens,
            "drafted": self.drafted,
            "submitted": self.submitted,
            "accepted": self.accepted,
            "draft_passes": self.draft_passes,
            "clamped_rounds": self.clamped,
            "tau": (self.accepted + self.rounds) / self.rounds,
            "acceptance_rate": self.accepted / self.submitted if self.submitted else None,
            "mean_submitted": self.submitted / self.rounds,
            "time_s": time_s,
            "plain_time_s": plain_s,
            "speedup": _finite(plain_s / time_s),
            "speedup_ci95": interval,
            "throughput": _finite(self.tokens / time_s),
            "oracle_mad": self.deviation / self.rounds,
            "regret_best_fixed_s": None if best_fixed_s is None else time_s - best_fixed_s,
            "regret_oracle_s": None if oracle_s is None else _regret(time_s, oracle_s),
        }


def _finite(value: float) -> float | None:
    """A ratio of times too small to divide is undefined, not infinite."""
    return value if math.isfinite(value) else None


def _regret(time_s: float, best_s: float) -> float:
    """time - best, with a rounding error of the oracle's own sum counted as none."""
    regret = time_s - best_s
    return 0.0 if abs(regret) <= 1e-12 * best_s else regret


def bootstrap_ratios(
    numerator: NDArray[np.float64], denominators: list[NDArray[np.float64]], seed: int
) -> list[list[float] | list[None]]:
    """95 % percentile intervals of sum(numerator) / sum(denominator) over resampled requests.

    Every denominator sees the same resamples (`resampled_sums`), so controllers are compared on common draws.

    Args:
        numerator: float64[B] per-request sums.
        denominators: one float64[B] per controller.
        seed: of the resampling.

    Returns:
        One [low, high] per denominator; [None, None] with fewer than two requests.
    """
    if numerator.size < 2:
        return [[None, None] for _ in denominators]
    sums = resampled_sums(np.stack([numerator, *denominators], axis=1), seed)
    ratios = sums[:, :1] / sums[:, 1:]
    low, high = np.percentile(ratios, [2.5, 97.5], axis=0)
    return [[float(a), float(b)] for a, b in zip(low, high, strict=True)]


def resampled_sums(columns: NDArray[np.float64], seed: int) -> NDArray[np.float64]:
    """Sums over requests drawn with replacement, as many as there are: float64[resamples, C].

    Equal numbers of requests and equal seeds give equal draws.

    Args:
        columns: float64[B, C] per-request sums, B >= 1.
        seed: of the resampling.
    """
    requests = len(columns)
    rng = np.random.default_rng(seed)
    sums = np.empty((resamples_for(requests), columns.shape[1]))
    step = max(1, _BLOCK // requests)
    for start in range(0, len(sums), step):
        rows = min(step, len(sums) - start)
        draws = rng.integers(0, requests, size=(rows, requests), dtype=np.int64)
        draws += np.arange(rows)[:, None] * requests
        weights = np.bincount(draws.ravel(), minlength=rows * requests).reshape(rows, requests)
        sums[start : start + rows] = weights.astype(np.float64) @ columns
    return sums


def resamples_for(requests: int) -> int:
    """Resamples that so many requests are drawn for: 1000, fewer above 20,000 requests, at least 100."""
    return min(RESAMPLES, max(100, 20_000_000 // requests))
