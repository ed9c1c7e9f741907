"""Shapes on a trace: concavity of tokens in the length, one peak of throughput, and the same for arms."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np

from specsim.theory.check_data import Facts
from specsim.theory.check_noise import Concavity, Floats, Noise, Peak, concavity, peak, ratio
from specsim.theory.check_record import HOLDS, UNDECIDED, VIOLATED, Verdict, numbers, too_few, too_noisy

RESOLUTION: Final = 0.25
"""Relative differences of this size must be visible between typical lengths, or the data are too few."""

_TOKENS = "expected tokens of a round are concave in the submitted length (drafts fixed)"
_TAU = "tokens per round of static replays are concave in the length"
_PEAK = "throughput over the static length has one peak (Theorem 3.5)"
_MU = "tokens per round of the arms are concave in their cost (Lemma 3.5, R7)"
_NU = "throughput over the arms, in file order, has one peak"


def tokens_concave(facts: Facts) -> Verdict:
    """Exact: with the rows fixed, the gain of token d is the share of rows that accept d, which cannot grow.

    Rows with fewer than d tokens submit what they have. Dividing by the rows that hold token d instead compares
    different sets of rows; how often that share rises is counted, and is no violation.
    """
    longer = facts.passed.sum(axis=0).astype(np.int64)  # rows with accept_len > j
    gains_fall = bool((np.diff(longer) <= 0).all())
    shares = ratio(facts.passed.sum(axis=0), facts.held.sum(axis=0))
    rises = int((np.diff(shares[np.isfinite(shares)]) > 1e-12).sum())
    text = f"exact: {int(facts.rows.sum())} rows, gains {'never grow' if gains_fall else 'grow'} with the length"
    if rises:
        text += f"; shares of only the rows that are long enough rise at {rises} lengths, because those are other rows"
    return Verdict(
        id="tokens-concave",
        statement=_TOKENS,
        verdict=HOLDS if gains_fall else VIOLATED,
        text=text,
        details={"rows_accepting_more_than": longer.tolist(), "rises_among_rows_that_hold_the_token": rises},
    )


def tau_concave(facts: Facts, noise: Noise) -> Verdict:
    """Each length is replayed and visits its own rows, so this is an observation and may fail."""
    name = "tau-concave"
    if facts.meta.coverage != "every-position":
        return _needs_positions(name, _TAU)
    few = too_few(name, _TAU, noise)
    if few is not None:
        return few
    if len(facts.lengths) < 3:
        text = f"{len(facts.lengths)} lengths; every curve through fewer than 3 has the shape"
        return Verdict(id=name, statement=_TAU, verdict=HOLDS, text=text)
    rounds, tokens, x = noise.pooled(facts.rounds), noise.pooled(facts.tokens), facts.lengths.astype(np.float64)

    def curve(weights: Floats) -> tuple[Floats, Floats]:
        tau = (weights @ tokens)[:, None] / (weights @ rounds)
        return np.broadcast_to(x, tau.shape), tau

    found = concavity(curve, noise, floor=1 / facts.tokens.sum())
    tau = facts.tokens.sum() / facts.rounds.sum(axis=0)
    details = {"length": facts.lengths.tolist(), "tau": numbers(tau, 4), "half_width": numbers([found.half])[0]}
    return _concave_verdict(name, _TAU, noise, found, [str(d) for d in facts.lengths], float(tau.max()) - 1, details)


def _concave_verdict(
    name: str, what: str, noise: Noise, found: Concavity, labels: Sequence[str], size: float, details: dict
) -> Verdict:
    """`size` is how much the curve rises at all, the yardstick of what would be a visible sag."""
    if found.sag is not None:
        s = found.sag
        text = (
            f"at {labels[s.middle]} it lies {s.amount:.3g} below the chord from {labels[s.left]} to {labels[s.right]}, "
            f"{s.sure:.2g} of that beyond noise"
        )
        return Verdict(id=name, statement=what, verdict=VIOLATED, text=text, details=details)
    wanted = max(RESOLUTION * size, 1e-9)
    if found.half > wanted:
        return too_noisy(name, what, noise, found.half, float(f"{wanted:.2g}"), "typical chord", **details)
    seen = (
        "no sag at all" if found.seen is None else f"largest sag {found.seen.amount:.2g} at {labels[found.seen.middle]}"
    )
    text = f"{seen}, none beyond noise (typical band +-{found.half:.2g})"
    return Verdict(id=name, statement=what, verdict=HOLDS, text=text, details=details)


def throughput_peak(facts: Facts, noise: Noise) -> Verdict:
    """Whether replayed throughput has a valley between two lengths that noise does not explain."""
    name = "throughput-peak"
    if facts.meta.coverage != "every-position":
        return _needs_positions(name, _PEAK)
    few = too_few(name, _PEAK, noise)
    if few is not None:
        return few
    times, tokens = noise.pooled(facts.times), noise.pooled(facts.tokens)

    def log_values(weights: Floats) -> Floats:
        return np.log((weights @ tokens)[:, None] / (weights @ times))

    found = peak(log_values, noise, floor=1 / facts.tokens.sum())
    speed = facts.tokens.sum() / facts.times.sum(axis=0)
    labels = [str(d) for d in facts.lengths]
    details = {"length": facts.lengths.tolist(), "throughput": numbers(speed)}
    return _peak_verdict(name, _PEAK, noise, found, labels, "length", details)


def _peak_verdict(
    name: str, what: str, noise: Noise, found: Peak, labels: Sequence[str], unit: str, details: dict
) -> Verdict:
    off = found.half[np.triu_indices(len(found.half), 1)]
    half = float(np.median(off)) if off.size else 0.0
    best, others = [labels[k] for k in found.top], [labels[k] for k in found.candidates]
    details = details | {"argmax": best, "argmax_not_excluded": others, "half_width": numbers([half])[0]}
    top = f"best {unit} {', '.join(best)}; not excluded: {', '.join(others)}"
    if found.valley is not None:
        v = found.valley
        details["valley"] = {"low": labels[v.low], "between": [labels[v.left], labels[v.right]]}
        details["valley"] |= {"depth": 1 - np.exp(-v.depth), "beyond_noise": 1 - np.exp(-v.sure)}
        text = (
            f"valley at {unit} {labels[v.low]}, {100 * (1 - np.exp(-v.depth)):.1f} % below the lower of "
            f"{labels[v.left]} and {labels[v.right]} ({100 * (1 - np.exp(-v.sure)):.1f} % beyond noise); {top}"
        )
        return Verdict(id=name, statement=what, verdict=VIOLATED, text=text, details=details)
    if half > RESOLUTION:
        return too_noisy(name, what, noise, half, RESOLUTION, f"relative, typical pair of {unit}s", **details)
    seen = "no valley" if found.seen is None else f"deepest valley {100 * found.seen.depth:.2g} %, within noise"
    return Verdict(id=name, statement=what, verdict=HOLDS, text=f"{seen}; {top}", details=details)


def arm_shapes(facts: Facts, noise: Noise) -> list[Verdict]:
    """Both statements about arms: every arm started at every position, mean tokens mu and mean seconds c."""
    few = [too_few("mu-concave", _MU, noise), too_few("nu-peak", _NU, noise)]
    if few[0] is not None and few[1] is not None:
        return [few[0], few[1]]
    sums = noise.pooled(facts.arms)
    arms = facts.arms.sum(axis=0)
    mu, cost = arms[:, 1] / arms[:, 0], arms[:, 2] / arms[:, 0]
    names = [str(arm.get("name", k)) for k, arm in enumerate(facts.meta.arms or ())]
    order = np.argsort(cost, kind="stable")
    details = {"arm": names, "mu": numbers(mu, 4), "cost_s": numbers(cost), "nu": numbers(mu / cost, 4)}

    def curve(weights: Floats) -> tuple[Floats, Floats]:
        n = weights @ sums[..., 0]
        return ((weights @ sums[..., 2]) / n)[:, order], ((weights @ sums[..., 1]) / n)[:, order]

    def log_values(weights: Floats) -> Floats:
        return np.log((weights @ sums[..., 1]) / (weights @ sums[..., 2]))

    floor = 1 / facts.rows.sum()
    if len(names) < 3:
        text = f"{len(names)} arms; every curve through fewer than 3 has the shape"
        found = [Verdict(id="mu-concave", statement=_MU, verdict=HOLDS, text=text, details=details)]
    else:
        sag = concavity(curve, noise, floor=floor)
        size = float(mu.max() - mu.min()) or 1.0
        found = [_concave_verdict("mu-concave", _MU, noise, sag, [names[k] for k in order], size, details)]
    if not (np.diff(cost) > 0).all():
        found[0].details["note"] = "mean costs do not ascend in file order; concavity is tested in the order of cost"
    found.append(_peak_verdict("nu-peak", _NU, noise, peak(log_values, noise, floor=floor), names, "arm", details))
    return found


def _needs_positions(name: str, what: str) -> Verdict:
    text = "a log of rounds has no rows where other lengths would have started; record with coverage every-position"
    return Verdict(id=name, statement=what, verdict=UNDECIDED, text=text)
