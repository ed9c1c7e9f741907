"""Synthetic families of arms: how many tokens a round of each arm yields, and what it costs.

An arm that keeps a fraction f of the model's compute drafts `draft_len` tokens, each f of a target step long, and one
verification takes a step: c = 1 + draft_len * f, in units of `unit_s` seconds. A draft token is accepted with the arm's
probability as long as all before it were (truncated geometric). Throughput mu / c is given and the acceptance solved
for, so that gaps between neighbours are what the family's name says. Acceptance is rational: laws add up to 1 exactly.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from specsim import theory
from specsim.controllers import Setting
from specsim.errors import ConfigError
from specsim.latency import LatencyModel

STEP = 0.05  # gaps are stated per this much compute: neighbours of 14 arms over 0.1..0.75 lie so far apart
TOP = 1.35  # tokens per target step of the best arm
PEAK = 0.3  # compute of the best arm
# family: relative throughput lost one STEP below the peak, one above it, and the power at which that grows with
# distance. sharp: the three best arms stand out; flat: the only one here whose tokens are concave in cost (R7).
# drift and cliff: the best arm moves between a quarter and three quarters of the range, and with it the whole profile;
# drift can be climbed from anywhere, in cliff far arms are worthless and what is near the old peak gives no direction.
PEAKS = {
    "sharp": (0.02, 0.05, 3.0),
    "flat": (0.007, 0.012, 2.0),
    "steep": (0.05, 0.10, 2.0),
    "drift": (0.01, 0.01, 2.0),
    "cliff": (0.02, 0.05, 3.0),
}
MOVING = ("drift", "cliff")
VALLEY = (0.85, 0.64, 0.51, 0.43, 0.36, 1.12, 1.09)  # tokens per target step; five arms accept nothing
FAMILIES = (*PEAKS, "valley", "short")


@dataclass(frozen=True, kw_only=True)
class ArmFamily:
    """Arms of one synthetic world, in file order.

    Attributes:
        name: of the family.
        draft_len: tokens every arm drafts.
        unit_s: seconds of one target step.
        compute: f of each arm.
        acceptance: per phase, the acceptance probability of each arm.
        phase_len: rounds of a phase before the next one, and after the last the first; 0 when there is only one.
    """

    name: str
    draft_len: int
    unit_s: float
    compute: tuple[Fraction, ...]
    acceptance: tuple[tuple[Fraction, ...], ...]
    phase_len: int = 0

    @property
    def arms(self) -> int:
        return len(self.compute)

    @property
    def survive(self) -> NDArray[np.float64]:
        """float64[phases, K, draft_len]: probability that at least j + 1 draft tokens are accepted."""
        powers = np.arange(1, self.draft_len + 1)
        return np.array(self.acceptance, np.float64)[:, :, None] ** powers

    @property
    def draft_s(self) -> NDArray[np.float64]:
        """float64[K]: seconds of each arm's whole draft."""
        return np.array([float(f * self.draft_len) * self.unit_s for f in self.compute])

    @property
    def steps(self) -> list[Fraction]:
        """Cost of a round of each arm in target steps, exact."""
        return [1 + self.draft_len * f for f in self.compute]

    def laws(self) -> list[list[Fraction]]:
        """Pr(N = 1), ..., Pr(N = draft_len + 1) of each arm, of the first phase."""
        n = self.draft_len
        return [[*(a**j * (1 - a) for j in range(n)), a**n] for a in self.acceptance[0]]

    def setting(self) -> Setting:
        """What controllers are built for."""
        return Setting(
            block_len=1,
            max_draft_len=self.draft_len,
            latency=LatencyModel.affine(c_s=0.0, b_s=self.unit_s),
            arm_draft_s=tuple(float(f) * self.unit_s for f in self.compute),
            draft_len=self.draft_len,
        )

    def to_dict(self) -> dict[str, object]:
        """JSON values."""
        return {
            "family": self.name,
            "arms": self.arms,
            "draft_len": self.draft_len,
            "unit_s": self.unit_s,
            "compute": [float(f) for f in self.compute],
            "acceptance": [[float(a) for a in phase] for phase in self.acceptance],
            "phase_len": self.phase_len,
        }


def acceptance_for(tokens: float, draft_len: int) -> Fraction:
    """The acceptance probability that yields so many tokens a round on average, to six decimals, by bisection."""
    low, high = 0.0, 1.0
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if sum(middle**j for j in range(draft_len + 1)) < tokens else (low, middle)
    return Fraction(round(high * 10**6), 10**6)


def make_family(
    name: str,
    *,
    arms: int | None = None,
    draft_len: int | None = None,
    unit_s: float = 0.05,
    cheapest: float = 0.1,
    dearest: float = 0.75,
    peak: float | None = None,
    gap_below: float | None = None,
    gap_above: float | None = None,
    phase_len: int = 1000,
) -> ArmFamily:
    """A family by name; gaps do not apply to valley and short, the peak only to sharp, flat and steep.

    Args:
        name: one of `FAMILIES`.
        arms: how many; default 14 (7 for valley, whose arms are given).
        draft_len: tokens drafted; default 4 (8 for short).
        unit_s: seconds of a target step.
        cheapest, dearest: compute of the first and the last arm.
        peak: compute of the best arm, moved to the nearest arm.
        gap_below, gap_above: relative throughput lost per 0.05 of compute on either side of the peak.
        phase_len: drift and cliff: rounds before the best arm moves.

    Raises:
        ConfigError: a number out of range.
    """
    numbers = {"unit-s": unit_s, "cheapest": cheapest, "dearest": dearest, "peak": peak, "gap-below": gap_below}
    for what, value in (numbers | {"gap-above": gap_above}).items():
        if value is not None and not (math.isfinite(value) and value > 0):
            raise ConfigError(f"--{what} {value}: allowed is a finite number > 0")
    if name == "valley":
        if arms not in (None, len(VALLEY)) or draft_len not in (None, 4):
            raise ConfigError(f"family valley has {len(VALLEY)} given arms of 4 draft tokens; leave both out")
        return _valley(unit_s)
    count, length = arms or 14, draft_len or (8 if name == "short" else 4)
    if count < 2 or not 0 < cheapest < dearest:
        raise ConfigError(f"family {name}: allowed are at least 2 arms and 0 < cheapest < dearest")
    compute = [
        Fraction(round((cheapest + (dearest - cheapest) * k / (count - 1)) * 10**6), 10**6) for k in range(count)
    ]
    if name == "short":
        rows = [[Fraction(round((0.30 + 0.55 * (float(f) / 0.75) ** 0.5) * 10**6), 10**6) for f in compute]]
        if max(rows[0]) >= 1:
            raise ConfigError(f"family short: compute above {dearest} would be accepted always; allowed: at most 1.2")
    else:
        below, above, power = PEAKS[name]
        below = below if gap_below is None else gap_below
        above = above if gap_above is None else gap_above
        span = dearest - cheapest
        peaks = [cheapest + span / 4, cheapest + 3 * span / 4] if name in MOVING else [PEAK if peak is None else peak]
        rows = [_peaked(compute, length, p, (below, above), power) for p in peaks]
    return ArmFamily(
        name=name,
        draft_len=length,
        unit_s=unit_s,
        compute=tuple(compute),
        acceptance=tuple(tuple(row) for row in rows),
        phase_len=phase_len if len(rows) > 1 else 0,
    )


def _peaked(
    compute: list[Fraction], draft_len: int, peak: float, gaps: tuple[float, float], power: float
) -> list[Fraction]:
    values = [float(f) for f in compute]
    top = min(values, key=lambda f: abs(f - peak))
    best = min(TOP, 0.95 * (draft_len + 1) / (1 + draft_len * top))
    # A round yields one token at least, so that below the peak throughput cannot fall to nothing: it levels off above
    # what the cheapest arm has anyway, and keeps a single peak.
    least = min(1.02 / (best * (1 + draft_len * values[0])), 0.95)
    rows = []
    for f in values:
        floor = least if f < top else 0.0
        loss = gaps[f > top] * (abs(f - top) / STEP) ** power
        share = floor + (1 - floor) * math.exp(-loss / (1 - floor))
        tokens = min(max(best * share * (1 + draft_len * f), 1.0), draft_len + 1 - 0.02)
        rows.append(acceptance_for(tokens, draft_len))
    return rows


def _valley(unit_s: float) -> ArmFamily:
    cheap = [Fraction(round((1 / nu - 1) / 4 * 10**6), 10**6) for nu in VALLEY[:5]]  # one token a round: nu = 1 / c
    compute = [*cheap, Fraction(55, 100), Fraction(65, 100)]
    good = [acceptance_for(nu * float(1 + 4 * f), 4) for nu, f in zip(VALLEY[5:], compute[5:], strict=True)]
    row = (*(Fraction(0) for _ in cheap), *good)
    return ArmFamily(name="valley", draft_len=4, unit_s=unit_s, compute=tuple(compute), acceptance=(row,))


def bound_slope(family: ArmFamily) -> float | None:
    """Seconds of regret per unit of ln n that unimodal structure imposes; None with phases or without a single best."""
    if family.phase_len:
        return None
    try:
        return theory.lower_bound(family.laws(), family.steps) * family.unit_s
    except (ConfigError, ZeroDivisionError):
        return None


def telling_apart(family: ArmFamily) -> float | None:
    """Rounds per unit of ln n that the neighbours of the best arm must get (sum of 1 / KL_inf); None as above."""
    if family.phase_len:
        return None
    mu = theory.tokens_of(family.acceptance[0], family.draft_len)
    nu = theory.throughputs(mu, family.steps)
    best = theory.argmax_set(nu)
    if len(best) != 1:
        return None
    near = [k for k in (best[0] - 1, best[0] + 1) if 0 <= k < family.arms]
    laws = family.laws()
    return sum(1 / theory.kl_inf(laws[k], nu[best[0]] * family.steps[k]) for k in near)
