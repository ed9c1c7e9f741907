"""Checkers of LibraSpec's statements: each searches the grids, and recomputes the counterexample it is handed."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from itertools import pairwise, product

from specsim.theory.adjust import exact_alpha, iterate, printed_step, repaired_step, suffix_gain
from specsim.theory.algorithm1 import algorithm1
from specsim.theory.exact import (
    Affine,
    argmax_set,
    eta,
    expected_tokens,
    frac,
    hill_climb,
    is_single_peaked,
    optimal_lengths,
    survival,
    times,
)
from specsim.theory.grids import F, Instance, instances, make_instance, peaked_instances, tables, vectors
from specsim.theory.optimum import attainment
from specsim.theory.record import Data, Finding, Tally, pairs


def instance_of(data: Data) -> Instance:
    """The instance a recorded counterexample names (c = 1)."""
    return make_instance([frac(x) for x in data["p"]], frac(data["b"]), data["sigma"])


def _distance(d: int, best: Sequence[int]) -> int:
    return min(abs(d - x) for x in best)


def _conditional_says(case: Instance, d: int, e: int) -> bool:
    """Theorem 3.2 with equation 14: the segment's gain given that everything before it was accepted."""
    short, long = min(d, e), max(d, e)
    ratio = suffix_gain(case.p, short + 1, long) / (case.table[long] - case.table[short])
    average = case.tokens[d] / case.table[d]
    return ratio > average if e > d else ratio < average


def _unconditional_says(case: Instance, d: int, e: int) -> bool:
    ratio = (case.tokens[e] - case.tokens[d]) / (case.table[e] - case.table[d])
    average = case.tokens[d] / case.table[d]
    return ratio > average if e > d else ratio < average


def check_32(counterexample: Data | None) -> Finding:
    """Marginal against average, conditional (printed) and not (repaired); and tables that are flat or fall."""
    tally = Tally()
    for case in instances():
        for d, e in pairs(case.low, len(case.p)):
            tally.instances += 1
            better = case.speed[e] > case.speed[d]
            tally.printed(_conditional_says(case, d, e) == better, case.data(d=d, to=e))
            tally.repaired(_unconditional_says(case, d, e) == better)
    assert counterexample
    case, d, e = instance_of(counterexample), counterexample["d"], counterexample["to"]
    confirmed = _conditional_says(case, d, e) and case.speed[e] < case.speed[d]
    half, one = F(1, 2), F(1)
    flat = half + half * half > half  # M_2 T_1 > M_1 T_2 at p = (1/2, 1/2), T = (1, 2, 2): nothing to divide by
    falling = one * 4 > one * 2  # the same at p = (1, 0), T = (1, 4, 2), where the gain per time is 0
    return tally.finding(
        confirmed=confirmed,
        flat_table_has_no_ratio=flat,
        falling_table_turns_it_round=falling,
    )


def check_33(counterexample: Data | None) -> Finding:
    """Every beneficial d -> d' has d' <= eps_i for all i <= d: of truncations (fails) and of extensions (holds)."""
    tally, extensions = Tally(), 0
    for case in instances():
        for d, e in pairs(max(case.low, 1), len(case.p)):
            if case.speed[e] <= case.speed[d]:
                continue
            tally.instances += 1
            inside = e <= min(case.printed[:d])
            tally.printed(inside, case.data(d=d, to=e, eps=case.printed[:d]))
            if e > d:
                extensions += 1
                tally.repaired(inside)
    assert counterexample
    case, d, e = instance_of(counterexample), counterexample["d"], counterexample["to"]
    confirmed = case.speed[e] > case.speed[d] and e > min(case.printed[:d])
    return tally.finding(confirmed=confirmed, beneficial_extensions=extensions)


def check_34(counterexample: Data | None) -> Finding:
    """d -> min eps_i is beneficial: printed, and with the corrected bounds of R4; counts by direction."""
    tally = Tally()
    counts: dict[str, int] = dict.fromkeys(
        ("extensions", "bad_extensions", "rollbacks", "bad_rollbacks", "fixed", "fixed_not_best"), 0
    )
    for case in instances():
        repaired = repaired_step(case.p, case.cost, case.sigma)
        for d in range(max(case.low, 1), len(case.p) + 1):
            tally.instances += 1
            e = min(case.printed[:d])
            if e == d:
                counts["fixed"] += 1
                counts["fixed_not_best"] += d not in case.best
            elif e >= case.low:
                good = case.speed[e] > case.speed[d]
                kind = "extensions" if e > d else "rollbacks"
                counts[kind] += 1
                counts[f"bad_{kind}"] += not good
                tally.printed(good, case.data(d=d, to=e))
            orbit = iterate(repaired, d)
            moves = zip(orbit.lengths, orbit.lengths[1:], strict=False)
            rises = all(case.speed[y] > case.speed[x] or x in case.best for x, y in moves)
            tally.repaired(rises and orbit.cycle == (case.best[0],) and len(orbit.lengths) <= 3)
    assert counterexample
    case, d, e = instance_of(counterexample), counterexample["d"], counterexample["to"]
    confirmed = min(case.printed[:d]) == e and case.speed[e] < case.speed[d]
    return tally.finding(confirmed=confirmed and counts["bad_rollbacks"] == 0, **counts)


def check_35(counterexample: Data | None) -> Finding:
    """One peak with affine T; equation 7; and how often stairs and concave tables have a second one."""
    tally, plateaus = Tally(), 0
    for case in instances():
        tally.instances += 1
        speed, last = case.speed[case.low :], len(case.p)
        steps = all(
            (case.speed[d + 1] > case.speed[d]) == (case.alive[d + 1] > case.tokens[d] / case.table[d])
            for d in range(case.low, last)
        )
        tally.printed(is_single_peaked(speed) and steps, case.data())
        plateaus += len(case.best) > 1
    stairs = [(p, t) for t in tables(3, (F(0), F(1))) for p in vectors(3, (F(1), F(1, 2))) if len(p) == 3]
    two = sum(not is_single_peaked([m / x for m, x in zip(expected_tokens(p, 1), t, strict=True)]) for p, t in stairs)
    assert counterexample
    speed = eta(counterexample["p"], counterexample["T"], counterexample["sigma"])
    seen = [x for x in speed if x is not None]
    return tally.finding(
        confirmed=not is_single_peaked(seen) and two > 0,
        with_plateau=plateaus,
        stairs=len(stairs),
        stairs_with_two_peaks=two,
    )


def check_36(counterexample: Data | None) -> Finding:
    """A best length exists on unbounded drafts; repaired: with a cap, or when R6 says so, improving moves end there."""
    tally = Tally()
    grid = [(p, tail) for p in ((), *vectors(2, (F(1), F(1, 2)))) for tail in (F(0), F(1, 2), F(1))]
    for (prefix, tail), b, sigma in product(grid, (F(1), F(3)), (0, 1)):
        tally.instances += 1
        cost = Affine(F(1), b)
        result = attainment(prefix, tail, cost, sigma)
        tally.printed(result.attained, {"prefix": list(prefix), "tail": tail, "b": b, "sigma": sigma})
        long = [*prefix, *[tail] * 12]
        speed = [x for x in eta(long, cost, sigma) if x is not None]
        if result.attained:
            tally.repaired(max(speed) == result.supremum and argmax_set(speed)[0] + 1 - sigma == result.first)
        else:
            tally.repaired(all(x < y < result.supremum for x, y in pairwise(speed)))
    assert counterexample
    cost = Affine(counterexample["c"], counterexample["b"])
    endless = not attainment([], counterexample["tail"], cost, counterexample["sigma"]).attained
    cycle = iterate(printed_step([1, 0, 0], Affine(1, 1), 0), 1).cycle
    return tally.finding(confirmed=endless and len(cycle) == 2, cycle_of_printed_adjustments=list(cycle))


def check_algorithm1(counterexample: Data | None) -> Finding:
    """With q = p and exact alpha_i the result is best; what is true instead: it is longer than every best length."""
    tally, at_cap = Tally(), 0
    for case in instances(2):
        q = (*case.p, F(0), F(0), F(0))
        alpha = exact_alpha(q, case.cost, case.sigma)
        for n in range(1, len(case.p) + 2):
            tally.instances += 1
            d = algorithm1(q, [a for a in alpha if a is not None], n, len(q)).d
            tally.printed(d in case.best, case.data(q=list(q), n=n, dmax=len(q), got=d, best=case.best))
            tally.repaired(d > case.best[-1])
            at_cap += d == len(q)
    assert counterexample
    q, cost, sigma = counterexample["p"], Affine(counterexample["c"], counterexample["b"]), counterexample["sigma"]
    alpha = [a for a in exact_alpha(q, cost, sigma) if a is not None]
    d = algorithm1(q, alpha, counterexample["n"], len(q)).d
    confirmed = d == counterexample["got"] and optimal_lengths(q, cost, sigma) == counterexample["best"]
    return tally.finding(confirmed=confirmed and d > counterexample["best"][-1] and d < len(q), ended_at_dmax=at_cap)


def check_toward(counterexample: Data | None) -> Finding:
    """Beneficial moves never increase the distance to the best lengths; repaired: moves by one token do not."""
    tally = Tally()
    for case in (*instances(), *peaked_instances()):
        for d, e in pairs(case.low, len(case.p)):
            if case.speed[e] > case.speed[d]:
                tally.instances += 1
                near = _distance(e, case.best) <= _distance(d, case.best)
                tally.printed(near, case.data(d=d, to=e, best=case.best))
    for case in instances(2):
        for d in range(case.low, len(case.p) + 1):
            path = hill_climb(case.p, case.cost, case.sigma, d)
            tally.repaired(len(path) - 1 == _distance(d, case.best))
    assert counterexample
    case, d, e = instance_of(counterexample), counterexample["d"], counterexample["to"]
    confirmed = case.speed[e] > case.speed[d] and _distance(e, case.best) > _distance(d, case.best)
    return tally.finding(confirmed=confirmed)


def mixture_survival(contexts: Sequence[tuple[Fraction, Sequence[Fraction]]]) -> list[Fraction]:
    """P_0..P_D averaged over rounds that look alike."""
    rows = [survival(p) for _, p in contexts]
    return [sum((w * row[j] for (w, _), row in zip(contexts, rows, strict=True)), F(0)) for j in range(len(rows[0]))]


def _lost(contexts: Sequence[tuple[Fraction, Sequence[Fraction]]], q: Sequence[Fraction], cost: Affine) -> bool:
    """Whether the length that is best for q is not best for the rounds that show q."""
    alive, table = mixture_survival(contexts), times(cost, len(q))
    speed = [sum(alive[: d + 1], F(0)) / t for d, t in enumerate(table)]
    return speed[optimal_lengths(q, cost, 1)[0]] < max(speed)


def check_calibration(counterexample: Data | None) -> Finding:
    """Two kinds of rounds show the same q. Calibrated position by position; given what was accepted."""
    tally, half = Tally(), F(1, 2)
    kinds = list(product((F(0), half, F(1)), repeat=2))
    for x, y in product(kinds, repeat=2):
        contexts = [(half, x), (half, y)]
        q = [(a + b) / 2 for a, b in zip(x, y, strict=True)]
        alive = mixture_survival(contexts)
        given = [b / a if a else F(0) for a, b in pairwise(alive)]
        for c in (F(2, 5), F(1, 4)):
            tally.instances += 1
            cost = Affine(c, F(1))
            tally.printed(not _lost(contexts, q, cost), {"rounds": [x, y], "q": q, "c": c, "b": 1, "sigma": 1})
            tally.repaired(survival(given) == alive and not _lost(contexts, given, cost))
    assert counterexample
    x, y = ([frac(v) for v in row] for row in counterexample["rounds"])
    q = [frac(v) for v in counterexample["q"]]
    even = all((a + b) / 2 == v for a, b, v in zip(x, y, q, strict=True))
    cost = Affine(counterexample["c"], counterexample["b"])
    return tally.finding(confirmed=even and _lost([(half, x), (half, y)], q, cost))
