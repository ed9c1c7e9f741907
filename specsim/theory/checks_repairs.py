"""Checkers of our own repaired statements R1 to R6, R8 and R9 (R7 is with SP2ec's)."""

from __future__ import annotations

from fractions import Fraction
from itertools import pairwise, product

from specsim.theory.adjust import corrected_bounds, iterate, printed_bound, repaired_step, suffix_gain
from specsim.theory.exact import Affine, expected_tokens, is_single_peaked, optimal_lengths, survival, times
from specsim.theory.grids import F, context_pairs, instances, tables, vectors
from specsim.theory.optimum import (
    attainment,
    best_fixed,
    dinkelbach,
    outcomes,
    priced_lengths,
    quota_times,
    ratio_lengths,
    surplus,
    throughput,
)
from specsim.theory.record import Data, Finding, Tally, pairs


def check_r1(counterexample: Data | None) -> Finding:
    """Cross-multiplied comparison on every table, and the mediant form wherever times differ in the right order."""
    del counterexample
    tally = Tally()
    for table in tables(3, (F(0), F(1), F(-1, 2))):
        for p in vectors(3, (F(1), F(1, 2), F(0))):
            if len(p) != 3 or min(table) <= 0:
                continue
            tokens = expected_tokens(p, 1)
            for d, e in pairs(0, 3):
                tally.instances += 1
                better = tokens[e] / table[e] > tokens[d] / table[d]
                tally.printed(
                    better == (tokens[e] * table[d] > tokens[d] * table[e]),
                    {"p": p, "T": table, "d": d, "to": e},
                )
                gain, time = tokens[e] - tokens[d], table[e] - table[d]
                if time > 0:
                    tally.repaired(better == (gain / time > tokens[d] / table[d]))
                elif time < 0:
                    tally.repaired(better == (gain / time < tokens[d] / table[d]))
    return tally.finding()


def check_r2(counterexample: Data | None) -> Finding:
    """The feasible set of a printed bound has no gap and ends at eps_i; eps_i >= i - 1, and >= i iff p_i > 0."""
    del counterexample
    tally = Tally()
    for p in vectors(3):
        for i, alpha in product(range(1, len(p) + 1), (F(1, 2), F(1), F(3, 2), F(4))):
            tally.instances += 1
            inside = [d for d in range(-2, len(p) + 1) if d < alpha * suffix_gain(p, i, d) + i]
            bound = printed_bound(p, i, alpha)
            ok = inside == list(range(-2, bound + 1)) and bound >= i - 1 and (bound >= i) == (p[i - 1] > 0)
            tally.printed(ok, {"p": p, "i": i, "alpha": alpha})
    return tally.finding()


def check_r3(counterexample: Data | None) -> Finding:
    """Lemma P: printed bounds are never below the corrected ones nor below the longest best length."""
    del counterexample
    tally = Tally()
    for case in instances():
        if case.p[0] == 0:
            continue
        tally.instances += 1
        corrected = case.corrected[1 - case.low :]  # from m = 1
        above = all(e >= x for e, x, y in zip(case.printed, corrected, case.p, strict=True) if y > 0)
        tally.printed(above and min(case.printed) >= case.best[-1], case.data())
    return tally.finding()


def check_r4(counterexample: Data | None) -> Finding:
    """All four parts of R4, on affine and on convex tables."""
    del counterexample
    tally, worst = Tally(), 0
    convex = [t for t in tables(3, (F(1), F(2), F(4))) if t[1] - t[0] <= t[2] - t[1] <= t[3] - t[2]]
    extra = [(p, t, sigma) for t in convex for p in vectors(3) if len(p) == 3 for sigma in (0, 1) if sigma or p[0]]
    for p, cost, sigma in (*((c.p, c.cost, c.sigma) for c in instances()), *extra):
        tally.instances += 1
        ok, steps = _r4_holds(p, cost, sigma)
        worst = max(worst, steps)
        tally.printed(ok, {"p": p, "cost": list(cost), "sigma": sigma})
    return tally.finding(most_steps=worst)


def _r4_holds(p: tuple[Fraction, ...], cost: Affine | tuple[Fraction, ...], sigma: int) -> tuple[bool, int]:
    low, last = 1 - sigma, len(p)
    tokens, table = expected_tokens(p, sigma), times(cost, last)
    bounds, best = corrected_bounds(p, cost, sigma), optimal_lengths(p, cost, sigma)
    ok = all(
        [d for d in range(m + 1, last + 1) if tokens[d] * table[m] > tokens[m] * table[d]]
        == list(range(m + 1, bounds[m - low] + 1))
        for m in range(low, last + 1)
    )
    ok &= all((d <= min(bounds[: d - low], default=d)) == (d <= best[0]) for d in range(low, last + 1))
    orbits = [iterate(repaired_step(p, cost, sigma), d) for d in range(low, last + 1)]
    ok &= all(orbit.cycle == (best[0],) for orbit in orbits)
    steps = max(len(orbit.lengths) - 1 for orbit in orbits)
    return ok and steps <= 2, steps


def check_r5(counterexample: Data | None) -> Finding:
    """P_d / t_d not growing implies one peak, flat only on top, for every increasing table."""
    del counterexample
    tally = Tally()
    for table, p in product(tables(3, (F(1, 2), F(1), F(2))), vectors(3)):
        alive = survival(p)
        rates = [alive[d] / (table[d] - table[d - 1]) for d in range(1, len(p) + 1)]
        if any(b > a for a, b in pairwise(rates)):
            continue
        for sigma in (0, 1):
            tally.instances += 1
            tokens = expected_tokens(p, sigma)
            speed = [tokens[d] / table[d] for d in range(1 - sigma, len(p) + 1)]
            tally.printed(is_single_peaked(speed), {"p": p, "T": table, "sigma": sigma})
    return tally.finding()


def check_r6(counterexample: Data | None) -> Finding:
    """Attained iff the marginal is not positive for ever, against the first 40 marginals; and a limit of exactly 0."""
    del counterexample
    tally = Tally()
    for prefix, tail, b, sigma in product(
        ((), *vectors(2, (F(1), F(1, 2), F(0)))), (F(0), F(1, 2), F(1)), (F(1), F(3, 2), F(4)), (0, 1)
    ):
        tally.instances += 1
        p = [*prefix, *[tail] * 40]
        tokens, alive = expected_tokens(p, sigma), survival(p)
        rises = [(b + d) * alive[d + 1] - tokens[d] for d in range(1 - sigma, len(p))]
        result = attainment(prefix, tail, Affine(F(1), b), sigma)
        ok = result.attained == (not all(x > 0 for x in rises)) and rises == sorted(rises, reverse=True)
        tally.printed(ok, {"prefix": prefix, "tail": tail, "b": b, "sigma": sigma})
    # P_j = 1/2 + 2^-(j+1) never becomes constant and has delta = 0 at b = 2, sigma = 1/2 + 1/2: still not attained.
    alive = [F(1), *(F(1, 2) + F(1, 2 ** (j + 1)) for j in range(1, 41))]
    tokens = [sum(alive[1 : d + 1], F(0)) for d in range(41)]
    tally.repaired(all((1 + d) * alive[d + 1] - tokens[d] > 0 for d in range(1, 40)))
    return tally.finding()


def check_r8(counterexample: Data | None) -> Finding:
    """lambda* is the best throughput of all policies, zero of a falling F, a threshold; and what a quota takes."""
    del counterexample
    tally = Tally()
    for index, (contexts, cost) in enumerate(context_pairs()):
        tally.instances += 1
        depth = len(contexts[0][1])
        found = dinkelbach(contexts, cost)
        brute = max(throughput(contexts, cost, d) for d in product(range(depth + 1), repeat=len(contexts)))
        known = [sum(x > found.lam * Fraction(cost.c) for x in survival(p)[1:]) for _, p in contexts]
        ok = found.lam == brute and surplus(contexts, cost, found.lam) == 0 and found.d == known
        ok &= found.iterates == sorted(found.iterates)
        ok &= best_fixed(contexts, cost)[1] <= found.lam <= dinkelbach(outcomes(contexts), cost).lam
        if index % 6 == 0:
            quota = 5
            least, ours = quota_times(contexts, cost, quota)
            ok &= quota / found.lam <= least <= ours <= (quota + depth) / found.lam
        tally.printed(ok, {"contexts": contexts, "c": cost.c, "b": cost.b})
    return tally.finding()


def check_r9(counterexample: Data | None) -> Finding:
    """Per-round ratios: too short in easy rounds, too long in hard ones; how much that can cost."""
    tally, below_fixed = Tally(), 0
    for contexts, cost in context_pairs():
        tally.instances += 1
        found, ratio = dinkelbach(contexts, cost), ratio_lengths(contexts, cost)
        ok = True
        for (w, p), d, r in zip(contexts, found.d, ratio, strict=True):
            own = dinkelbach([(w, p)], cost)
            ok &= own.lam == max(m / (1 + Fraction(cost.c) * k) for k, m in enumerate(expected_tokens(p, 1)))
            ok &= priced_lengths([(w, p)], cost, own.lam) == [r]
            ok &= r <= d if own.lam >= found.lam else r >= d
        gained = throughput(contexts, cost, ratio)
        below_fixed += gained < best_fixed(contexts, cost)[1]
        tally.printed(ok and gained <= found.lam, {"contexts": contexts, "c": cost.c})
    assert counterexample
    contexts, cost = counterexample["contexts"], Affine(counterexample["c"], counterexample["b"])
    gained = throughput(contexts, cost, ratio_lengths(contexts, cost))
    losses = {
        f"m={m}": float(1 - _tail_family(m, extra))
        for m, extra in ((10**3, 2 * 10**4), (10**5, 10**7), (10**7, 10**10))
    }
    confirmed = gained < best_fixed(contexts, cost)[1] and 0.995 < losses["m=10000000"] < 1
    return tally.finding(confirmed=confirmed, below_best_fixed=below_fixed, relative_loss_of_ratio_rule=losses)


def _tail_family(m: int, extra: int) -> Fraction:
    """Throughput of the ratio rule over lambda* at c = 1/m, b = 1, in closed form.

    A share 1/m of rounds has m sure tokens, one of 49/100, then `extra` sure ones; nothing is accepted in the others,
    where both rules verify nothing.
    """
    w, c, chance = F(1, m), F(1, m), F(49, 100)

    def speed(d: int, tokens: Fraction) -> Fraction:
        return (w * tokens + (1 - w)) / (w * (1 + c * d) + (1 - w))

    short, long = F(m + 1), F(m + 1) + chance * (extra + 1)
    assert short / 2 > long / (1 + c * (m + 1 + extra))  # so the ratio rule stops at m
    return speed(m, short) / speed(m + 1 + extra, long)
