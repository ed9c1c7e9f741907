"""The second paper's quantitative claims (SP2ec, arXiv 2610.18735) and which results bear on them.

Owns the list. We have the paper in a summary only: claims are those of the summary, and places are its headings. How
they are judged is `analysis.arm_judges`.
"""

from __future__ import annotations

from analysis.arm_judges import (
    acceptance,
    accepts_more_and_is_slower,
    ahead,
    averages,
    beats_eagle,
    behind,
    by_length,
    highest,
    outside,
    overhead,
    regret,
    resets,
    single_peak,
)
from analysis.claim import Claim

MAIN = ("sp2ec-main",)
SP2EC_CLAIMS = (
    Claim("summary", "up to 1.62x, losslessly and without training", MAIN, highest),
    *(
        Claim("main table, averages (MAT / speedup, Qwen2.5-VL-7B)", f"{method}: {text}", MAIN, averages(method))
        for method, text in (
            ("cosSim", "UCBSpec 3.45 / 1.16x, SP2ec 3.37 / 1.26x"),
            ("SWIFT", "fixed 2.79 / 1.16x, UCBSpec 3.22 / 1.16x, SP2ec 3.00 / 1.22x"),
            ("KnapSpec", "fixed 4.12 / 1.29x, UCBSpec 4.38 / 1.24x, SP2ec 4.14 / 1.35x"),
            ("SpecVLM", "fixed 3.58 / 1.47x, UCBSpec 3.72 / 1.49x, SP2ec 3.88 / 1.56x"),
        )
    ),
    Claim(
        "main table",
        "SP2ec is faster than UCBSpec with every builder on every benchmark",
        MAIN,
        ahead("SP2ec", "UCBSpec"),
    ),
    Claim(
        "main table",
        "SP2ec is faster than a fixed configuration (theirs: the builder's; ours: the best of the family in hindsight)",
        MAIN,
        ahead("SP2ec", "static"),
    ),
    Claim(
        "findings",
        "adapting blindly costs: KnapSpec falls from 1.29x / 1.22x to 1.24x / 1.20x with UCBSpec",
        MAIN,
        behind("UCBSpec", "static", "KnapSpec"),
    ),
    Claim(
        "main table",
        "with cosSim, SWIFT and KnapSpec UCBSpec accepts more than SP2ec and is slower",
        MAIN,
        accepts_more_and_is_slower,
    ),
    Claim(
        "findings",
        "a high MAT (near 4.5) may be slower than a moderate one (3.6)",
        ("sp2ec-mat",),
        acceptance,
    ),
    Claim(
        "findings",
        "UCBSpec spends 49.1 to 53.1 % of its pulls outside the best three arms, SP2ec 6.1 to 16.1 %",
        ("sp2ec-pulls",),
        outside,
    ),
    Claim(
        "method, 2 and 3",
        "wall-time regret: only the best arm's neighbours cost, so less than with exploration of all arms",
        ("sp2ec-regret",),
        regret,
        number="none given",
    ),
    Claim(
        "method, 2 (Lemma 3.5)",
        "speed along the ordered arms has a single peak",
        MAIN,
        single_peak,
        number="a matter of proof under its assumptions: see [theory.md](theory.md)",
    ),
    Claim(
        "ablation",
        "a reset every 512 rounds against none: +0.00 to +0.04, never worse",
        ("sp2ec-reset",),
        resets,
    ),
    Claim(
        "method, 1",
        "constructing cosSim's arms takes 0.76 to 0.89 % of the time",
        ("sp2ec-build",),
        overhead("cosSim", 0.01),
    ),
    Claim(
        "EAGLE-3 (MVBench, Qwen3-VL-4B)",
        "EAGLE-3 1.9 / 1.20x; with SP2ec cosSim 4.5 / 1.31x, KnapSpec 4.6 / 1.27x",
        MAIN,
        beats_eagle,
    ),
    Claim(
        "findings",
        "pruning visual tokens gains with their number, and little below 8,000",
        ("sp2ec-context",),
        by_length("SpecVLM"),
    ),
    Claim(
        "findings",
        "skipping layers gains the same at every length of input",
        ("sp2ec-context",),
        by_length(None),
        number="none given",
    ),
    Claim(
        "method, 3",
        "regret grows with the logarithm of the number of rounds",
        number="a matter of proof: see [theory.md](theory.md) and [regret.md](regret.md)",
    ),
)
