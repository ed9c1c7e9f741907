"""LibraSpec's statements (arXiv 2608.08721), in our words, with verdicts. The checkers are in `checks_libraspec`."""

from __future__ import annotations

from specsim.theory import checks_libraspec as checks
from specsim.theory.record import ASSUMPTION, FALSE, HOLDS, REPAIRED, Statement

SOURCE = "LibraSpec, arXiv 2608.08721"

LIBRASPEC = (
    Statement(
        id="LS 3.2",
        source=SOURCE,
        number="Theorem 3.2, equations 4 and 9 to 15",
        title="marginal against average",
        printed="Moving from d to d' raises expected tokens per time exactly if the gain per time of the added "
        "segment is above the present average (or that of the removed one below it); the gain is equation "
        "14's sum of products from the segment's first token on.",
        assumptions="T known and strictly increasing",
        verdict=REPAIRED,
        counterexample={"p": ["1/4", "1/4"], "b": 1, "sigma": 0, "d": 1, "to": 2},
        shown="p=(1/4,1/4), c=b=1, 1->2: the added token has 1/4 per time given the first, above 1/8, yet eta falls"
        " 1/8 -> 5/48",
        repaired="Take the gain without condition, M_d' - M_d; or cross-multiply (R1), which needs nothing of T.",
        proof="Equation 14 is the gain given that all earlier tokens were accepted. The proof of equation 10 adds "
        "it to E[tau_d], which only the unconditional gain allows: it is P_d times smaller. With that, both "
        "sides are a mediant inequality. With flat T the ratio is undefined, with falling T it turns round; "
        "M_d' T_d > M_d T_d' covers both.",
        checker=checks.check_32,
    ),
    Statement(
        id="LS 3.3",
        source=SOURCE,
        number="Theorem 3.3, equations 5 and 16 to 18",
        title="bounds every beneficial move obeys",
        printed="A beneficial move from d ends at d' <= eps_i for every i <= d, eps_i being the largest d' below (T_i"
        " / (tau_i c)) R_i(d') + i.",
        assumptions="T affine; tau_i read as its expectation",
        verdict=REPAIRED,
        counterexample={"p": [1, 0, 0], "b": 1, "sigma": 0, "d": 3, "to": 2},
        shown="p=(1,0,0), c=b=1, 3->2: eta rises 1/4 -> 1/3, but eps_2 = 1",
        repaired="It holds for extensions, d' > d (R3).",
        proof="For i < d' the criterion is the paper's own definition; for i >= d' it would divide by a cost <= 0 "
        "and says nothing about truncations. If d' > d is better than d, then d is below the peak, so eta_i "
        "<= eta_d for i <= d and d' also beats i; the corrected bound of i then allows d', and the printed "
        "one is never below it (R3).",
        checker=checks.check_33,
    ),
    Statement(
        id="LS 3.4",
        source=SOURCE,
        number="Theorem 3.4, equations 6 and 19 to 23",
        title="d' = min eps_i is beneficial",
        printed="Moving from d to the smallest of eps_1..eps_d raises expected tokens per time.",
        assumptions="T affine; d' different from d and finite",
        verdict=FALSE,
        counterexample={"p": [1, 0], "b": 1, "sigma": 0, "d": 1, "to": 2},
        shown="p=(1,0), c=b=1: eps_1 = 2 sends 1->2, a token that is never accepted; eta falls 1/2 -> 1/3",
        repaired="Rollbacks are beneficial; extensions need the corrected bounds: R4.",
        proof="Rollback: min eps_i < d and every eps_i is at least the longest best length (R3), so the move ends "
        "between the peak and d. Extension: the sum counts token i, which tau_i holds already, against a cost"
        " of d' - i tokens, and lacks the factor P_i for reaching the segment. Up to the shortest best "
        "length (b > 0) the printed rule asks for more whenever another position follows.",
        checker=checks.check_34,
    ),
    Statement(
        id="LS 3.5",
        source=SOURCE,
        number="Theorem 3.5, equation 7",
        title="one peak in the length",
        printed="Expected tokens per time are unimodal in d; one more token pays exactly if P_{d+1} > c M_d / T_d.",
        assumptions="T affine (constant cost per token)",
        verdict=HOLDS,
        counterexample={"p": ["1/2", "1/2"], "T": [1, 2, 2], "sigma": 1},
        shown="only without affine T: stairs T=(1,2,2), p=(1/2,1/2), emitted tokens: eta = 1, 3/4, 7/8",
        repaired="R5: also for convex T; level at the top only, so the best length need not be unique.",
        proof="The printed proof shows when one step pays and stops. Missing: eta_{d+1} is the mediant of eta_d and"
        " P_{d+1}/c; once that rate is not above eta_d, the next is no larger and not above eta_{d+1} either.",
        checker=checks.check_35,
    ),
    Statement(
        id="LS 3.6",
        source=SOURCE,
        number="Theorem 3.6, equation 8",
        title="repeated moves end at a best length",
        printed="Repeating beneficial moves ends after finitely many at a length that is best among all d >= 1.",
        assumptions="drafts without end; T affine",
        verdict=REPAIRED,
        counterexample={"tail": 1, "c": 1, "b": 1, "sigma": 0},
        shown="p=1 for ever, c=b=1: eta = d/(d+1) has no best length; and Theorem 3.4's moves cycle on p=(1,0,0): "
        "1,2,1,2,..",
        repaired="With a largest length, or where R6 finds the supremum attained, any strictly improving moves that "
        "stop only at a length nothing improves on; R4's rule needs two.",
        proof="Strictly improving moves never repeat a length, so with finitely many lengths they stop, and they "
        "stop at a best one if and only if they stop nowhere else. Without a cap see R6.",
        checker=checks.check_36,
    ),
    Statement(
        id="LS Alg 1",
        source=SOURCE,
        number="Algorithm 1",
        title="the algorithm finds the best length",
        printed="With exact probabilities and exact alpha_i = T_i / (tau_i c) the refinement ends at a best length.",
        assumptions="q = p; T affine; dmax beyond the best length; n < dmax",
        verdict=FALSE,
        counterexample={"p": ["1/2", 0, 0, 0, 0], "c": 1, "b": 1, "sigma": 0, "n": 1, "got": 2, "best": [1]},
        shown="p=(1/2,0,0,0,0), c=b=1, n=1: it submits 2, best is 1",
        repaired="It always submits more than the longest best length (dmax permitting), whatever the block. Take the "
        "argmax.",
        proof="For i <= d <= z, z the longest best length, P_i >= c eta_i, hence alpha_i R_i(d) >= d - i + 1 and no"
        " bound is below d + 1: it never stops there. From d > z a rollback cannot reach z: for i <= z the "
        "same line at z gives bounds >= z + 1, and for i > z a bound is at least i.",
        checker=checks.check_algorithm1,
    ),
    Statement(
        id="LS toward",
        source=SOURCE,
        number="text after Theorem 3.5; abstract",
        title="every beneficial move goes towards the unique optimum",
        printed="One peak implies that each beneficial move brings the length closer to the one best length.",
        assumptions="T affine",
        verdict=FALSE,
        counterexample={"p": ["1/2", "3/4", "1/2", "1/2"], "b": 2, "sigma": 0, "d": 1, "to": 4},
        shown="p=(1/2,3/4,1/2,1/2), c=1, b=2: 1->4 raises eta 1/6 -> 37/192, the best length is 2",
        repaired="eta rises, the distance need not shrink: a move may jump across the peak. Moves by one token do "
        "approach, in exactly as many steps as the nearest best length is away.",
        proof="One peak orders eta on either side of it, not across. One token at a time stays on its side (R5). "
        "Two neighbouring lengths can both be best, so 'the' optimum is not unique.",
        checker=checks.check_toward,
    ),
    Statement(
        id="LS A3.7",
        source=SOURCE,
        number="Assumption 3.7",
        title="confidences are calibrated",
        printed="Confidences q_i agree on average with acceptance probabilities p_i, so they can stand in for them.",
        assumptions="a length chosen by q is then as good as one chosen by p",
        verdict=ASSUMPTION,
        counterexample={"rounds": [[1, 1], [0, 0]], "q": ["1/2", "1/2"], "c": "2/5", "b": 1},
        shown="half of the rounds (1,1), half (0,0), q=(1/2,1/2) in all: right at each position, yet both pass with"
        " 1/2, not 1/4",
        repaired="Needed: q_i is the chance of acceptance given the confidences and that 1..i-1 were accepted. Whether"
        " it holds is a matter of data: `check` tests it on traces.",
        proof="Then products of q are the survival probabilities of rounds that look alike, by the chain rule, and "
        "every rule that uses only q sees the true means. Acceptance at i is observed only after i-1 "
        "acceptances, so this is also the form that can be fitted.",
        checker=checks.check_calibration,
    ),
)
