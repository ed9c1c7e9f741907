"""SP2ec's statements (arXiv 2610.18735), in our words, with verdicts. The checkers are in `checks_sp2ec`."""

from __future__ import annotations

from specsim.theory import checks_sp2ec as checks
from specsim.theory.record import FALSE, NOT_COVERED, REPAIRED, Statement

SOURCE = "SP2ec, arXiv 2610.18735 (read in summary), and its published code"

SP2EC = (
    Statement(
        id="SP 3.5",
        source=SOURCE,
        number="Lemma 3.5",
        title="throughput over ordered arms has strictly one peak",
        printed="If mean tokens mu grow by less and less from arm to arm and the cost is linear in what an arm keeps,"
        " then mu / c rises strictly and falls strictly.",
        assumptions="arms ordered by what they keep",
        verdict=REPAIRED,
        counterexample={"mu": [1, 2, 3], "cost": [1, 3, "7/2"]},
        shown="mu=(1,2,3), c=(1,3,7/2): 1, 2/3, 6/7; and even with equal spacing mu=(2,4,5), c=(1,2,3) has two best"
        " arms",
        repaired="R7: mu concave as a function of cost (equal spacing makes that the same); level at the top only.",
        proof="Shrinking differences say nothing about slopes when arms are unevenly spaced, as when the ten best "
        "of a search are sorted by budget. With slopes in cost the argument of R5 applies word for word.",
        checker=checks.check_lemma,
    ),
    Statement(
        id="SP premise",
        source=SOURCE,
        number="premise of Lemma 3.5",
        title="diminishing acceptance makes mu concave",
        printed="Acceptance rises with diminishing returns as an arm keeps more, hence so do mean tokens per round.",
        assumptions="mu = sum over j <= L of a^j, a the acceptance of one draft token",
        verdict=FALSE,
        counterexample={"acceptance": [0, "1/2", 1], "L": 2, "cost": [1, 2, 3]},
        shown="a=(0,1/2,1), L=2, c=(1,2,3): mu=(1,7/4,3), throughput 1, 7/8, 1: a valley",
        repaired="Measure mu and cost and test the slopes (R7); local search in a valley can stay on the wrong side "
        "for ever.",
        proof="mu is convex in a for L >= 2, and a convex function of a concave one can be either. Strict concavity"
        " of a does not help: a=(1/5,9/20,13/20), L=4, c=(2,3,4).",
        checker=checks.check_premise,
    ),
    Statement(
        id="SP regret",
        source=SOURCE,
        number="regret theorem",
        title="regret O(ln E[tau])",
        printed="Wall-time regret grows with the logarithm of the expected number of rounds, from the two neighbours "
        "of the best arm only.",
        assumptions="one peak; rewards in [1, L+1]; the radius as in the published code",
        verdict=NOT_COVERED,
        counterexample={"beta": "3/10", "exponent": "9/50"},
        shown="published radius factor beta = 0.3: a bound holds except with chance l^(-9/50); its sum is no logarithm",
        repaired="For one count n, beta^2 >= 1/2 is needed for exponent 1; for all counts at once beta^2 >= 3/5 "
        "suffices. No resets: with one every R rounds regret is at least linear in rounds / R.",
        proof="beta cr is about beta L sqrt(ln l / n); Hoeffding's inequality for range L gives l^(-2 beta^2). "
        "Uniformly in n <= l, the method of mixtures gives l^(-(5 beta^2 - 1)/2). Summed over l this is a "
        "logarithm only if the exponent is at least 1. Each reset pulls every arm once more, which costs sum "
        "c_k (1 - nu_k / nu*). E[ln tau] <= ln E[tau].",
        checker=checks.check_regret,
    ),
)
