"""Measured against predicted: the numbers of a validation, from a run's rounds and from a replay.

    error = predicted speedup / measured speedup - 1

Owns this formula, the interval and the verdict; what was measured is by `real.results`. Knows nothing about models.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from real.arm_costs import run_costs
from real.calibrate import fit
from real.folder import Request, Run
from real.interleave import PLAIN
from real.measure import samples_of
from real.results import FIELDS, results_of, sums_of
from specsim.errors import ConfigError
from specsim.latency import LatencyModel
from specsim.metrics import bootstrap_ratios

BOUND = 0.05
MIN_SAMPLES = 3
FORMULA = (
    "speedup = seconds of plain decoding / seconds of the controller, summed over prompts, for the same number of "
    "output tokens; prompt passes and warm-up are not in it"
)


@dataclass(frozen=True, kw_only=True)
class Measured:
    """One controller in the run.

    Args:
        tokens, rounds: counts over all prompts.
        tau: tokens per round, the target's own token included.
        decode_s: seconds of all rounds.
        speedup, mean_of_ratios: as in `real.results`.
        ci95: 95 % interval of the speedup, paired bootstrap over prompts; None with one prompt.
    """

    tokens: int
    rounds: int
    tau: float
    decode_s: float
    speedup: float
    mean_of_ratios: float
    ci95: tuple[float, float] | None

    @property
    def half_interval(self) -> float:
        """Half the interval's width, relative to the speedup; 0 without one."""
        return 0.0 if self.ci95 is None else (self.ci95[1] - self.ci95[0]) / 2 / self.speedup


@dataclass(frozen=True, kw_only=True)
class Row:
    """One controller: what was measured and what was predicted.

    Args:
        controller: its spelling.
        measured: in the run.
        predicted: speedup by replay of the trace with the calibration (`real.foretold`); None without a trace.
        predicted_sd: its standard deviation between replays with other noise; 0: replayed once. None without a trace.
        in_sample: speedup by replay with costs fitted to the run's own rounds; None when they are too few.
        shadow: None when the replayed decisions are the run's, else the first difference.
    """

    controller: str
    measured: Measured
    predicted: float | None
    predicted_sd: float | None
    in_sample: float | None
    shadow: str | None

    @property
    def error(self) -> float | None:
        """Of the prediction."""
        return None if self.predicted is None else self.predicted / self.measured.speedup - 1.0

    @property
    def in_sample_error(self) -> float | None:
        """Of the costs fitted to the run itself: what a better calibration could not mend."""
        return None if self.in_sample is None else self.in_sample / self.measured.speedup - 1.0

    def to_json(self) -> dict[str, Any]:
        """JSON values."""
        return {**asdict(self), "error": self.error, "in_sample_error": self.in_sample_error}


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """Whether the prediction holds, over all controllers but plain decoding.

    Args:
        median_error: median of the absolute errors.
        bound: the larger of `BOUND` and the median of half the measured intervals.
        in_sample_error: median of the absolute in-sample errors, or None.
    """

    median_error: float
    bound: float
    in_sample_error: float | None

    @property
    def holds(self) -> bool:
        """Whether the median error is within the bound."""
        return self.median_error <= self.bound


def counted(request: Request, spelling: str) -> Run:
    """The run of a controller on one prompt, warm-up aside."""
    return next(run for run in request.runs if run.controller == spelling and not run.warmup)


def measured(requests: Sequence[Request], spellings: Sequence[str], *, seed: int) -> list[Measured]:
    """What the run says about every controller, in their order.

    Args:
        requests: every prompt, decoded by every controller and by plain decoding.
        spellings: the controllers.
        seed: of the bootstrap.
    """
    sums = np.array([sums_of(request, spellings) for request in requests])
    found = []
    for place, result in enumerate(results_of(sums.sum(axis=0), spellings)):
        plain_s, time_s = (sums[:, place, FIELDS.index(field)] for field in ("plain_s", "decode_s"))
        low, high = bootstrap_ratios(plain_s, [time_s], seed)[0]
        assert result.speedup is not None
        assert result.speedup_mean_of_ratios is not None
        found.append(
            Measured(
                tokens=result.tokens,
                rounds=result.rounds,
                tau=result.tau,
                decode_s=result.decode_s,
                speedup=result.speedup,
                mean_of_ratios=result.speedup_mean_of_ratios,
                ci95=None if low is None or high is None else (low, high),
            )
        )
    return found


def in_sample_model(
    requests: Sequence[Request], *, block_len: int, arms: Sequence[str] = (), draft_len: int = 0
) -> LatencyModel | None:
    """Costs fitted to the run's own rounds; None when it has too few lengths for a fit.

    Args:
        requests: of the run.
        block_len: of the drafter.
        arms: its arms in the controllers' order, if a trace of several was recorded.
        draft_len: tokens of a whole draft of an arm.
    """
    runs = [run for request in requests for run in request.runs if not run.warmup]
    samples = [one for run in runs for one in samples_of(run.decoded.rounds, block_len=block_len)]
    if len(arms) > 1:
        return run_costs(samples, arms, draft_len)
    # A length seen once or twice is an accident, and the fit would weigh it like the others.
    seen = Counter(sample.s for sample in samples)
    frequent = [sample for sample in samples if seen[sample.s] >= MIN_SAMPLES]
    try:
        return fit(frequent, {}).model if frequent else None
    except ConfigError:
        return None


def verdict(rows: Sequence[Row]) -> Verdict | None:
    """The verdict over all predicted controllers but plain decoding; None without any."""
    others = [row for row in rows if row.controller != PLAIN and row.predicted is not None]
    errors = [abs(row.error) for row in others if row.error is not None]
    if not errors:
        return None
    in_sample = [abs(row.in_sample_error) for row in others if row.in_sample_error is not None]
    return Verdict(
        median_error=float(np.median(errors)),
        bound=max(BOUND, float(np.median([row.measured.half_interval for row in others]))),
        in_sample_error=float(np.median(in_sample)) if in_sample else None,
    )
