"""Acceptance on a trace: survival and hazard by depth, and whether confidences mean what they say."""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from specsim.theory.check_data import DEPTH_BINS, DEPTH_STARTS, Q_BINS, Q_EDGES, Facts, static_lengths
from specsim.theory.check_noise import Band, Floats, Noise, band, ratio
from specsim.theory.check_record import HOLDS, UNDECIDED, VIOLATED, Verdict, numbers, too_few, too_noisy

RESOLUTION: Final = 0.2
"""The band, averaged over examined tokens, may be this wide, as a probability; beyond it the data are too few."""
MIN_EXAMINED: Final = 30
"""Draft tokens a number must rest on."""

_HAZARD = "acceptance of a draft token, given that all before it were accepted, is the same at every depth"
_CALIBRATED = "confidence q is the chance of acceptance, given that all before it were accepted (Assumption 3.7)"
_DECAY = "what q says of acceptance is as right at any depth (calibration does not decay)"


def survival(facts: Facts, noise: Noise) -> dict[str, Any]:
    """Share of drafts with more than i tokens accepted, i = 0.., with a simultaneous band.

    A product of acceptance rates over depth (Kaplan-Meier), so that rows with short drafts count as long as they last;
    it assumes that a draft ends for reasons that have nothing to do with acceptance.
    """
    risk, passed = noise.pooled(facts.risk), noise.pooled(facts.passed)
    kept = _examined(facts)
    deep = int(np.argmin(np.append(kept, False)))

    def curve(weights: Floats) -> Floats:
        return np.cumprod(ratio((weights @ passed)[:, :deep], (weights @ risk)[:, :deep]), axis=1, dtype=np.float64)

    found = band(curve, noise)
    shares = ratio(facts.passed.sum(axis=0), facts.held.sum(axis=0))
    return {
        "survival": numbers(found.estimate, 4),
        "survival_low": numbers(np.clip(found.low, 0, 1), 4),
        "survival_high": numbers(np.clip(found.high, 0, 1), 4),
        "share_of_rows_that_hold_it": numbers(shares[:deep], 4),
    }


def _examined(facts: Facts) -> Any:
    return facts.risk.sum(axis=0) >= MIN_EXAMINED


def hazard(facts: Facts, noise: Noise) -> Verdict:
    """Whether the acceptance rate depends on depth: all pairs of depths, in one band."""
    name = "hazard"
    few = too_few(name, _HAZARD, noise)
    kept = np.flatnonzero(_examined(facts))
    if few is not None:
        return few
    if len(kept) < 2:
        return Verdict(
            id=name,
            statement=_HAZARD,
            verdict=UNDECIDED,
            text=f"{len(kept)} depths have {MIN_EXAMINED} examined tokens; at least 2 are needed",
            details={"depths": len(kept)},
        )
    risk, passed = noise.pooled(facts.risk)[:, kept], noise.pooled(facts.passed)[:, kept]
    at_risk = risk.sum(axis=0)
    overall = passed.sum() / at_risk.sum()
    tested = static_lengths(len(kept) - 1)  # all of few depths, else thinned
    first, second = (tested[index] for index in np.triu_indices(len(tested), 1))

    def rates(weights: Floats) -> Floats:
        return ratio(weights @ passed, weights @ risk)

    def differences(weights: Floats) -> Floats:
        values = rates(weights)
        return values[:, first] - values[:, second]

    # Under the hypothesis the variance of a rate is known from the pooled one; a run of successes is no certainty.
    spread = overall * (1 - overall) / at_risk
    found = band(rates, noise, floor=np.sqrt(spread))
    pairs = band(differences, noise, floor=np.sqrt(spread[first] + spread[second]))
    slope = band(lambda w: _slope(w @ risk, w @ passed, kept.astype(np.float64)), noise)
    excess = np.abs(pairs.estimate) - pairs.half
    mean_half = _mean_half(found.half, at_risk)
    details = {
        "pooled": round(float(overall), 4),
        "depth": kept.tolist(),
        "examined": at_risk.astype(int).tolist(),
        "acceptance": numbers(found.estimate, 4),
        "half_width": numbers(np.minimum(found.half, 1.0), 4),
        "slope_per_depth": numbers([slope.estimate[0], slope.low[0], slope.high[0]]),
        **survival(facts, noise),
    }
    trend = f"slope {_signed(slope)} per depth"
    if (excess > 0).any():
        worst = int(np.argmax(excess))
        one, two = int(first[worst]), int(second[worst])
        text = (
            f"token {kept[one] + 1}: {found.estimate[one]:.3f}, token {kept[two] + 1}: {found.estimate[two]:.3f}, "
            f"band of the difference +-{pairs.half[worst]:.3f}; {int((excess > 0).sum())} of {len(excess)} pairs of "
            f"depths differ; {trend}"
        )
        return Verdict(id=name, statement=_HAZARD, verdict=VIOLATED, text=text, details=details)
    if mean_half > RESOLUTION:
        what = "acceptance, average over depths"
        return too_noisy(name, _HAZARD, noise, mean_half, RESOLUTION, what, **details)
    text = f"{overall:.3f} over all {len(kept)} depths with data, no two differ beyond noise; {trend}"
    return Verdict(id=name, statement=_HAZARD, verdict=HOLDS, text=text, details=details)


def _mean_half(half: Floats, weight: Floats) -> float:
    """Half widths averaged over tokens; a probability is never further off than 1."""
    return float((np.minimum(half, 1.0) * weight).sum() / weight.sum())


def _slope(n: Floats, y: Floats, depth: Floats) -> Floats:
    """float64[rows, 1]: weighted least-squares slope over depth of the rates y / n."""
    centre = (n @ depth) / n.sum(axis=1)
    away = depth - centre[:, None]
    return ratio((y * away).sum(axis=1), (n * away**2).sum(axis=1))[:, None]


def _signed(found: Band) -> str:
    return f"{found.estimate[0]:+z.4f} [{found.low[0]:+z.4f}, {found.high[0]:+z.4f}]"


def calibration(facts: Facts, noise: Noise) -> list[Verdict]:
    """Reliability by confidence and by depth in one band, expected calibration error, and its course over depth."""
    names = (("calibration", _CALIBRATED), ("calibration-decay", _DECAY))
    cells = noise.pooled(facts.cells)
    seen = cells[..., 0].sum()
    if seen == 0:
        text = "the trace holds no confidences (q)"
        return [Verdict(id=name, statement=what, verdict=UNDECIDED, text=text) for name, what in names]
    few = [too_few(name, what, noise) for name, what in names]
    if few[0] is not None and few[1] is not None:
        return [few[0], few[1]]
    by_q = cells.sum(axis=2)  # [G, Q_BINS, 3]
    by_depth = cells.sum(axis=1)  # [G, DEPTH_BINS, 3]
    table = np.concatenate([by_q, by_depth], axis=1)
    return [_calibration(table, noise), _decay(facts, noise)]


def _calibration(table: Floats, noise: Noise) -> Verdict:
    """`table` [G, Q_BINS + DEPTH_BINS, 3]: number, accepted, sum of q of every confidence bin and every depth bin."""
    n, y, q = (table[..., k] for k in range(3))
    total, accepted, said = n.sum(axis=0), y.sum(axis=0), q.sum(axis=0)

    def gaps(weights: Floats) -> Floats:
        return ratio(weights @ y - weights @ q, weights @ n)

    mean = np.clip(ratio(said, total), 0, 1)
    floor = np.where(total >= MIN_EXAMINED, np.sqrt(mean * (1 - mean) / np.maximum(total, 1)), np.inf)
    found = band(gaps, noise, floor=floor)
    excess = np.abs(found.estimate) - found.half
    excess = np.where(np.isfinite(excess), excess, -np.inf)
    bins = slice(0, Q_BINS)
    share = total[bins] / total[bins].sum()
    known = np.isfinite(found.half[bins])
    size, half = np.abs(np.nan_to_num(found.estimate[bins])), np.where(known, found.half[bins], 1.0)
    error = [
        float((share * size).sum()),
        float((share * np.maximum(size - half, 0)).sum()),
        float(min(1.0, (share * np.minimum(size + half, 1.0)).sum())),
    ]
    details = {
        "expected_calibration_error": numbers(error, 4),
        "reliability": [
            _line(_q_range(k), k, found, total, accepted, said) for k in range(Q_BINS) if total[k] >= MIN_EXAMINED
        ],
        "by_depth": [
            _line(_depth_range(k - Q_BINS), k, found, total, accepted, said)
            for k in range(Q_BINS, Q_BINS + DEPTH_BINS)
            if total[k] >= MIN_EXAMINED
        ],
    }
    ece = f"expected calibration error {error[0]:.3f} [{error[1]:.3f}, {error[2]:.3f}]"
    if (excess > 0).any():
        worst = int(np.argmax(excess))
        where = f"q {_q_range(worst)}" if worst < Q_BINS else f"draft token {_depth_range(worst - Q_BINS)}"
        text = (
            f"{where}: accepted {accepted[worst] / total[worst]:.3f}, q says {said[worst] / total[worst]:.3f}, "
            f"band +-{min(found.half[worst], 1.0):.3f}; {ece}"
        )
        if np.count_nonzero(total[bins]) == 1 and said[bins].max() in (0.0, total[bins].max()):
            text += "; q is the same number in all rows and tells drafts apart in no way"
        return Verdict(id="calibration", statement=_CALIBRATED, verdict=VIOLATED, text=text, details=details)
    mean_half = _mean_half(found.half[bins], total[bins])
    if mean_half > RESOLUTION:
        what = "accepted share, average over bins of q"
        return too_noisy("calibration", _CALIBRATED, noise, mean_half, RESOLUTION, what, **details)
    text = f"no bin of q or depth is off beyond noise; {ece}"
    return Verdict(id="calibration", statement=_CALIBRATED, verdict=HOLDS, text=text, details=details)


def _line(what: str, k: int, found: Band, total: Floats, accepted: Floats, said: Floats) -> dict[str, Any]:
    half = float(found.half[k])
    return {
        "range": what,
        "examined": int(total[k]),
        "accepted": round(float(accepted[k] / total[k]), 4),
        "q": round(float(said[k] / total[k]), 4),
        "half_width": round(min(half, 1.0), 4),
    }


def _q_range(k: int) -> str:
    low = 0.0 if k == 0 else Q_EDGES[k - 1]
    return f"in [{low:g}, {Q_EDGES[k]:g})" if k < len(Q_EDGES) else f"in [{low:g}, 1]"


def _depth_range(k: int) -> str:
    first = int(DEPTH_STARTS[k]) + 1
    if k + 1 == DEPTH_BINS:
        return f"{first} and deeper"
    last = int(DEPTH_STARTS[k + 1])
    return f"{first}" if first == last else f"{first}-{last}"


def _decay(facts: Facts, noise: Noise) -> Verdict:
    """Slope over depth of q - acceptance. The error itself would not do: where tokens are few it only looks large."""
    name = "calibration-decay"
    seen = noise.pooled(facts.q_seen)
    depth = np.arange(seen.shape[1], dtype=np.float64)
    reached = int(np.count_nonzero(seen[..., 0].sum(axis=0) >= MIN_EXAMINED))
    if reached < 2:
        text = f"{reached} depths have {MIN_EXAMINED} examined tokens with a confidence; at least 2 are needed"
        return Verdict(id=name, statement=_DECAY, verdict=UNDECIDED, text=text)

    def slopes(weights: Floats) -> Floats:
        n, y, q = (weights @ seen[..., k] for k in range(3))
        return np.concatenate([_slope(n, q - y, depth), _slope(n, y, depth), _slope(n, q, depth)], axis=1)

    found = band(slopes, noise)
    words = [_signed(found.part(slice(k, k + 1))) for k in range(3)]
    details = {
        key: numbers([found.estimate[k], found.low[k], found.high[k]])
        for k, key in enumerate(("gap_slope_per_depth", "acceptance_slope_per_depth", "q_slope_per_depth"))
    }
    text = f"q - acceptance changes by {words[0]} per draft token (acceptance {words[1]}, q {words[2]})"
    span = float(found.half[0]) * reached
    if not abs(found.estimate[0]) > found.half[0] + 1e-9 and span > 2 * RESOLUTION:
        what = f"change of q - acceptance over {reached} depths"
        return too_noisy(name, _DECAY, noise, span, 2 * RESOLUTION, what, **details)
    verdict = VIOLATED if abs(found.estimate[0]) > found.half[0] + 1e-9 else HOLDS
    return Verdict(id=name, statement=_DECAY, verdict=verdict, text=text, details=details)
