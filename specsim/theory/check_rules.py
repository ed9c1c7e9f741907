"""Following the adjustments of Theorem 3.4, Algorithm 1 and the repaired rule on the rows of a trace."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from numpy.typing import NDArray
from scipy.stats import t

from specsim.chunk import offsets_of
from specsim.oracle import NO_PASSES, round_cost
from specsim.theory.check_data import DEPTH_BINS, Q_BINS, Facts, Sample
from specsim.theory.check_kernels import COUNTS, RULES, sample_counts
from specsim.theory.check_noise import Floats, Noise, band, ratio
from specsim.theory.check_record import HOLDS, UNDECIDED, VIOLATED, Verdict, numbers, too_few

ALPHA: Final = 2.0
"""LibraSpec's published constant."""
FOLDS: Final = 5
PRIOR: Final = 2.0
"""Tokens by which a rate by confidence and depth is drawn to that of its depth."""
RESOLUTION: Final = 0.1
"""Shares known worse than this are not decided when noise explains them."""
REPLICATES: Final = 30
REPLICATE_ROWS: Final = 600
"""Rows followed again in every replicate where p itself is estimated."""

_STATEMENTS: Final = {
    "theorem-3.4": "every adjustment of Theorem 3.4 (d <- min eps_i) raises expected throughput, and they converge",
    "algorithm-1": f"every adjustment of Algorithm 1 (alpha {ALPHA:g}) raises expected throughput",
    "algorithm-1-exact-alpha": "every adjustment of Algorithm 1 with exact alpha_i raises expected throughput",
    "repaired-R4": "every adjustment of R4, told a straight line, raises expected throughput, and they converge",
    "repaired-R4-table": "every adjustment of R4, told the true times, raises expected throughput, and they converge",
}


def straight_line(facts: Facts) -> tuple[float, float, float]:
    """(c, b, largest relative error) of the least-squares line through the round times of lengths 0..max_draft_len."""
    longest = facts.meta.max_draft_len
    ctx = float(facts.sample.ctx_len.mean()) if facts.sample.rows else 0.0
    d = np.arange(longest + 1, dtype=np.float64)
    block_len = facts.meta.block_len
    times = np.array([round_cost(k, longest, ctx, NO_PASSES, 0, block_len, facts.costs) for k in range(longest + 1)])
    if longest == 0:
        return 0.0, float(times[0]), 0.0
    c = float(((d - d.mean()) * (times - times.mean())).sum() / ((d - d.mean()) ** 2).sum())
    b = max(float(times.mean() - c * d.mean()), 1e-9 * float(times[0]))
    return c, b, float(np.abs((b + c * d) / times - 1).max())


def estimated_p(cells: Floats, sample: Sample, weights: Floats) -> Floats:
    """float64[N]: acceptance rate of every sampled token's confidence and depth, from the other folds of requests.

    Args:
        cells: float64[U, Q_BINS, DEPTH_BINS, 3], examined tokens: number, accepted, any.
        sample: rows.
        weights: float64[U], how often each unit counts.
    """
    fold_of = np.arange(len(cells)) % min(FOLDS, len(cells))
    table = np.empty((fold_of.max() + 1, Q_BINS * DEPTH_BINS))
    for fold in range(len(table)):
        n, y = np.einsum("u,uqdk->kqd", weights * (fold_of != fold), cells)[:2]
        overall = y.sum() / n.sum() if n.sum() > 0 else 0.5
        by_depth = (y.sum(axis=0) + PRIOR * overall) / (n.sum(axis=0) + PRIOR)
        table[fold] = ((y + PRIOR * by_depth) / (n + PRIOR)).ravel()
    row = np.repeat(np.arange(sample.rows), np.diff(sample.offsets))
    return table[fold_of[sample.unit[row]], sample.cell]


def convergence(facts: Facts, noise: Noise) -> list[Verdict]:
    """One verdict per rule, and their numbers side by side."""
    names = [(f"convergence:{rule}", _STATEMENTS[rule]) for rule in RULES]
    c, b, misfit = straight_line(facts)
    if facts.sample.rows == 0 or c <= 0:
        text = "no row has a draft" if facts.sample.rows == 0 else "a longer draft costs nothing: the longest is best"
        return [Verdict(id=name, statement=what, verdict=UNDECIDED, text=text) for name, what in names]
    few = [too_few(name, what, noise) for name, what in names]
    if few[0] is not None:
        return [verdict for verdict in few if verdict is not None]
    sample, units = facts.sample, facts.units
    p = sample.p if sample.p is not None else estimated_p(facts.any_cells, sample, np.ones(units))
    counts = followed(facts, sample, p, c, b)
    sums = np.zeros((units, *counts.shape[1:]))
    np.add.at(sums, sample.unit, counts)
    half = _halves_known(sums, noise) if sample.p is not None else _halves_estimated(facts, noise, c, b)
    shared = {
        "p": "accept_prob" if sample.p is not None else "estimated out of fold by q and depth",
        "rows": sample.rows,
        "line_c_s": c,
        "line_b_s": b,
        "line_largest_error": round(misfit, 4),
    }
    total = sums.sum(axis=0)
    return [_verdict(k, total[k], half[k], shared) for k in range(len(RULES))]


def followed(facts: Facts, sample: Sample, p: Floats, c: float, b: float) -> Floats:
    """float64[rows, rules, counts] of the rows of a sample."""
    counts = np.zeros((sample.rows, len(RULES), len(COUNTS)))
    values = np.ascontiguousarray(p, np.float64)
    sample_counts(values, sample.offsets, sample.ctx_len, facts.meta.block_len, facts.costs, c, b, ALPHA, counts)
    return counts


def _shares(sums: Floats) -> Floats:
    """Lowering share of the moves, cycles per start: [..., rules, 2]."""
    moves = ratio(sums[..., 2], np.maximum(sums[..., 1], 1))
    return np.stack([moves, ratio(sums[..., 5], sums[..., 0])], axis=-1)


def _halves_known(sums: Floats, noise: Noise) -> Floats:
    pooled = noise.pooled(sums)
    flat = pooled.reshape(len(pooled), -1)

    def statistic(weights: Floats) -> Floats:
        drawn = (weights @ flat).reshape(len(weights), *pooled.shape[1:])
        return _shares(drawn).reshape(len(weights), -1)

    return band(statistic, noise).half.reshape(len(RULES), 2)


def _halves_estimated(facts: Facts, noise: Noise, c: float, b: float) -> Floats:
    """The rates are estimated anew from every resample, on fewer rows."""
    sample = _thinned(facts.sample, REPLICATE_ROWS)
    rng = np.random.default_rng([noise.seed, 7])
    units = facts.units
    found = np.empty((REPLICATES, len(RULES), 2))
    for k in range(REPLICATES):
        weights = rng.multinomial(units, np.full(units, 1 / units)).astype(np.float64)
        counts = followed(facts, sample, estimated_p(facts.any_cells, sample, weights), c, b)
        found[k] = _shares((weights[sample.unit, None, None] * counts).sum(axis=0))
    spread = found.std(axis=0, ddof=1) * np.sqrt(units / max(units - 1, 1))
    return spread * float(t.isf((1 - noise.level) / 2, min(units, REPLICATES) - 1))


def _thinned(sample: Sample, rows: int) -> Sample:
    if sample.rows <= rows:
        return sample
    kept = np.linspace(0, sample.rows - 1, rows).astype(np.int64)
    m = np.diff(sample.offsets)[kept]
    tokens = _tokens_of(sample.offsets, kept)
    p = None if sample.p is None else sample.p[tokens]
    return Sample(
        unit=sample.unit[kept], offsets=offsets_of(m), ctx_len=sample.ctx_len[kept], p=p, cell=sample.cell[tokens]
    )


def _tokens_of(offsets: NDArray[np.int64], rows: NDArray[np.int64]) -> NDArray[np.int64]:
    return np.concatenate([np.arange(int(offsets[row]), int(offsets[row + 1])) for row in rows])


def _verdict(k: int, total: Floats, half: Floats, shared: dict[str, Any]) -> Verdict:
    rule = RULES[k]
    count = dict(zip(COUNTS, total.tolist(), strict=True))
    starts, moves = max(count["starts"], 1.0), count["moves"]
    lowering, cycling = _shares(total)
    # A rare event that no replicate happens to hold has no spread there; up to 3 in n are compatible with none.
    half = np.maximum(half, 3.0 / np.array([max(moves, 1.0), starts]))
    details = {
        "starts": int(count["starts"]),
        "moves": int(moves),
        "lowering_share": numbers([lowering])[0],
        "lowering_share_half_width": numbers([half[0]])[0],
        "lowering_share_by_the_line": numbers([count["lowering_line"] / max(moves, 1.0)])[0],
        "cycle_share": numbers([cycling])[0],
        "back_and_forth_share": numbers([count["back_and_forth"] / starts])[0],
        "mean_steps": numbers([count["steps"] / starts])[0],
        "mean_distance": numbers([count["distance"] / starts])[0],
        "mean_distance_by_the_line": numbers([count["distance_line"] / starts])[0],
        "mean_loss": numbers([count["loss"] / starts])[0],
        **shared,
    }
    faults = []
    if lowering > half[0]:
        faults.append(f"{100 * lowering:.1f} % of {int(moves)} adjustments lower it (band +-{100 * half[0]:.1f})")
    if cycling > half[1]:
        faults.append(f"{100 * cycling:.1f} % of the sequences cycle")
    rest = (
        f"{details['mean_steps']:.2f} steps, ends {details['mean_distance']:.2f} from the best lengths, "
        f"{100 * details['mean_loss']:.1f} % lost"
    )
    verdict = VIOLATED
    if not faults:
        within = f"{100 * lowering:.2f} % of {int(moves)} adjustments lower it, within noise (+-{100 * half[0]:.1f})"
        faults = ["no adjustment lowers it" if lowering == 0 else within]
        verdict = UNDECIDED if lowering > 0 and half[0] > RESOLUTION else HOLDS
    text = f"{', '.join(faults)}; {rest}"
    return Verdict(id=f"convergence:{rule}", statement=_STATEMENTS[rule], verdict=verdict, text=text, details=details)
