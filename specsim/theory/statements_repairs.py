"""What is true instead: R1 to R9, with proof sketches. R2 is the interval lemma and R3 Lemma P of the design notes."""

from __future__ import annotations

from specsim.theory import checks_repairs as checks
from specsim.theory.checks_sp2ec import check_r7
from specsim.theory.record import HOLDS, Statement

SOURCE = "this project"

REPAIRS = (
    Statement(
        id="R1",
        source=SOURCE,
        number="for LS 3.2",
        title="comparing two lengths",
        printed="eta_d' > eta_d exactly if M_d' T_d > M_d T_d'.",
        assumptions="T_d, T_d' > 0; nothing else of T",
        verdict=HOLDS,
        counterexample=None,
        shown="",
        repaired="For T_d' > T_d it reads (M_d' - M_d) / (T_d' - T_d) > M_d / T_d; for T_d' < T_d with <.",
        proof="Multiply by T_d T_d' > 0; subtract M_d T_d on both sides.",
        checker=checks.check_r1,
    ),
    Statement(
        id="R2",
        source=SOURCE,
        number="for LS 3.3",
        title="the set behind a printed bound has no gap",
        printed="{d': d' < alpha R_i(d') + i} is everything up to eps_i; eps_i >= i - 1, and >= i exactly if p_i > 0.",
        assumptions="alpha > 0; eps_i may be infinite",
        verdict=HOLDS,
        counterexample=None,
        shown="",
        repaired="",
        proof="alpha R_i(d') + i - d' is i - d' > 0 below i - 1, is 1 at i - 1, and from there its increments alpha"
        " p_i..p_{d'+1} - 1 do not grow: a concave function that starts positive is positive on an interval.",
        checker=checks.check_r2,
    ),
    Statement(
        id="R3",
        source=SOURCE,
        number="for LS 3.3 and 3.4",
        title="printed bounds are upper bounds",
        printed="eps_i >= eps^c_i where p_i > 0, and eps_i >= the longest best length z, for every i.",
        assumptions="T affine, p_1 > 0",
        verdict=HOLDS,
        counterexample=None,
        shown="",
        repaired="",
        proof="R_i(d') = p_i (1 + R_{i+1}(d')) > P_i R_{i+1}(d'), so what the corrected bound allows the printed "
        "one does. For i <= z, eta_z >= eta_i gives S_z - S_i >= c eta_i (z - i), and R_i(z) >= P_i + S_z - "
        "S_i because P_{i-1} <= 1; times alpha_i = 1 / (c eta_i) that exceeds z - i. For i > z, eps_i >= i - "
        "1 >= z.",
        checker=checks.check_r3,
    ),
    Statement(
        id="R4",
        source=SOURCE,
        number="for LS 3.4 and 3.6",
        title="two adjustments suffice",
        printed="d <- min over m <= d of eps^c_m reaches the shortest best length in at most two steps from anywhere,"
        " and that is its only fixed point; d' <= eps^c_m for all m < d' exactly if d' is at most the "
        "shortest best length.",
        assumptions="T affine or convex and increasing; m from the lowest length: 0 with emitted tokens, else 1",
        verdict=HOLDS,
        counterexample=None,
        shown="",
        repaired="",
        proof="By R5 the lengths better than m are m+1..eps^c_m, and none for m at or beyond the shortest best "
        "length a. For d >= a the bound of a is a and all others are larger. For d < a the smallest bound is "
        "that of d itself, it is at least the longest best length, and the next step is the case before.",
        checker=checks.check_r4,
    ),
    Statement(
        id="R5",
        source=SOURCE,
        number="for LS 3.5",
        title="one peak",
        printed="If P_d / t_d does not grow, t_d = T_d - T_{d-1} > 0, then eta goes strictly up, is level at most at "
        "the top, and goes strictly down.",
        assumptions="affine and convex T qualify, since P never grows",
        verdict=HOLDS,
        counterexample=None,
        shown="",
        repaired="",
        proof="eta_{d+1} is the mediant of eta_d and e_{d+1} = P_{d+1} / t_{d+1}. If e_{d+1} <= eta_d then e_{d+2} "
        "<= e_{d+1} <= eta_{d+1} <= eta_d, strictly if the first inequality is strict.",
        checker=checks.check_r5,
    ),
    Statement(
        id="R6",
        source=SOURCE,
        number="for LS 3.6",
        title="when a best length exists",
        printed="A best finite length exists exactly if the marginal is not positive for ever. With delta = b P_inf -"
        " c (sigma + sum (P_j - P_inf)): delta > 0 no, delta < 0 yes, delta = 0 exactly if P becomes "
        "constant.",
        assumptions="T affine, drafts without end",
        verdict=HOLDS,
        counterexample=None,
        shown="",
        repaired="",
        proof="The marginal b P_{d+1} - c (sigma + sum_{j<=d} (P_j - P_{d+1})) falls to delta, and reaches it only "
        "where P stays constant.",
        checker=checks.check_r6,
    ),
    Statement(
        id="R7",
        source=SOURCE,
        number="for SP 3.5",
        title="one peak over arms",
        printed="If slopes of mu in cost do not grow, mu / c goes strictly up, is level at most at the top, and goes "
        "strictly down; the best arm is unique exactly if no slope equals the throughput before it; strictly "
        "falling slopes allow two best arms at most; leaving arms out changes none of this.",
        assumptions="costs positive and strictly ascending",
        verdict=HOLDS,
        counterexample=None,
        shown="",
        repaired="",
        proof="R5 with slopes in place of P_d / t_d. Level neighbours mean slope = throughput; two such in a row "
        "are equal slopes. Slopes over chosen arms are averages of neighbouring slopes, so they do not grow "
        "either.",
        checker=check_r7,
    ),
    Statement(
        id="R8",
        source=SOURCE,
        number="objective",
        title="the long run",
        printed="The best tokens per time of all policies is the zero lambda* of F(x) = E max_d (M_d - x T_d), "
        "reached by that argmax at lambda*: with affine T, verify token j exactly if P_j > lambda* c. A quota"
        " of N tokens takes at least N / lambda* and, with that rule, at most (N + D) / lambda*.",
        assumptions="kinds of rounds drawn independently of past decisions; 0 < T bounded",
        verdict=HOLDS,
        counterexample=None,
        shown="",
        repaired="",
        proof="The mean of N - lambda* T given the past is at most F(lambda*) = 0, so sums of it are a "
        "supermartingale with bounded steps: the strong law gives the first part, stopping at the quota the "
        "second, where a round overshoots by D at most. M_d - x T_d has non-increasing steps P_j - x c.",
        checker=checks.check_r8,
    ),
    Statement(
        id="R9",
        source=SOURCE,
        number="objective",
        title="a round's own ratio is not the goal",
        printed="argmax M_d / T_d of a round is the rule of R8 at the round's own best ratio: too short where that "
        "exceeds lambda*, too long where it is below. It is best when all rounds are alike; otherwise it can "
        "lose to a fixed length, and the relative loss can approach 1.",
        assumptions="as R8",
        verdict=HOLDS,
        counterexample={"contexts": [["1/2", [1, "1/3", "3/4"]], ["1/2", ["1/4", 1, "2/3"]]], "c": "1/5", "b": 1},
        shown="(1,1/3,3/4) and (1/4,1,2/3) half each, c=1/5, b=1: 35/26, below 115/84 of the fixed length 2",
        repaired="",
        proof="max_d (M_d - x T_d) is 0 at x = max M_d / T_d, at the same d; the argmax falls as x grows. Loss: a "
        "share 1/m of rounds with m sure tokens, one of 49/100 and K sure ones, nothing accepted in the "
        "others, c = 1/m: the ratio rule stops at m; as K/m grows with K/m^2 -> 0 its share of lambda* tends "
        "to 0.",
        checker=checks.check_r9,
    ),
)
