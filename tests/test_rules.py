"""Controllers against independent readings of their rules: pseudo-code and tables of the published descriptions.

The references below are written from the prose with the whole row in hand, the way the papers state the rules; the
controllers see the row block by block.
"""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from specsim.controllers import REGISTRY, Setting
from specsim.errors import ConfigError
from specsim.latency import LatencyModel
from specsim.online import OnlineController
from tests.vectors import affine, controller, draft

PROBS = st.one_of(st.integers(0, 8).map(lambda k: k / 8), st.floats(0, 1, width=32))
ROWS = st.lists(PROBS, max_size=24).map(lambda q: np.array(q, np.float32))


def served(want: int, available: int, block_len: int) -> int:
    return min(math.ceil(want / block_len) * block_len, available)


def play(
    name: str,
    q: np.ndarray,
    *,
    block_len: int = 1,
    max_draft_len: int = 60,
    latency: LatencyModel | None = None,
    **params: Any,
) -> tuple[int, int]:
    """(submitted, drafted) of one round of a shipped controller on a row, drafting by whole passes."""
    setting = Setting(block_len=block_len, max_draft_len=max_draft_len, latency=latency or affine())
    online = OnlineController(REGISTRY[name].resolve(params, setting))
    _, want = online.begin(0, 0)
    drafted = submit = 0
    while want > drafted and drafted < len(q):
        drafted = served(want, len(q), block_len)
        submit, want = online.revise(q[:drafted], drafted < len(q))
    return submit, drafted


def best_ratio(q: np.ndarray, seconds: list[float]) -> int:
    """Smallest argmax of expected tokens over seconds, in exact rationals.

    Examples that float64 cannot decide are given up: near ties, and exact ties of numbers it cannot hold.
    """
    tokens, survival = [Fraction(1)], Fraction(1)
    for x in q:
        survival *= Fraction(float(x))
        tokens.append(tokens[-1] + survival)
    rates = [a / Fraction(b) for a, b in zip(tokens, seconds, strict=True)]
    top = max(rates)
    assume(not any(0 < top - rate < top * Fraction(1, 10**12) for rate in rates))
    assume(rates.count(top) == 1 or all(Fraction(float(a)) == a for a in tokens))
    return rates.index(top)


def reference_libraspec(
    q: np.ndarray, n: int, dmax: int, alpha: float, block_len: int, *, shrink_at_cap: bool
) -> tuple[int, int]:
    """Algorithm 1 in the reading fixed for this project, with the row's end as a smaller cap: (d, drafted)."""
    hi = min(dmax, len(q))
    if hi == 0:
        return 0, min(served(n, len(q), block_len), len(q)) if dmax > 0 else 0
    drafted = served(n, len(q), block_len)
    d = min(n, hi)

    def bound(d: int) -> int:
        best = 10**9
        for i in range(1, d + 1):
            total = 0.0
            for k in range(d, i - 1, -1):
                total = float(q[k - 1]) * (1.0 + total)
            best = min(best, math.floor(alpha * total) + i)
        return best

    stopped = False
    while d < hi:
        e = bound(d)
        if e <= d:
            d, stopped = e, True
            break
        e = min(e, hi)
        if e > drafted:
            drafted = served(drafted + math.ceil((e - drafted) / n) * n, len(q), block_len)
        d = e
    if shrink_at_cap and not stopped:
        d = min(d, bound(d))
    return d, drafted


@given(
    q=ROWS,
    n=st.integers(1, 12),
    dmax=st.integers(1, 24),
    alpha=st.sampled_from([0.5, 1.4, 2.0, 2.2, 3.0, 4.5]),
    block_len=st.integers(1, 5),
    cap=st.booleans(),
)
def test_libraspec_is_the_algorithm_read_with_the_whole_row_in_hand(
    q: np.ndarray, n: int, dmax: int, alpha: float, block_len: int, cap: bool
) -> None:
    got = play("libraspec", q, block_len=block_len, alpha=alpha, block=n, max=dmax, shrink_at_cap=cap)
    assert got == reference_libraspec(q, n, dmax, alpha, block_len, shrink_at_cap=cap)


LIBRASPEC_TABLE = [
    ([0.9] * 60, 2.0, 10, 60, 14, 2, 20),
    ([0.95] * 60, 2.0, 10, 60, 30, 3, 30),
    ([0.8] * 60, 2.0, 10, 60, 8, 1, 10),
    ([0.5] * 60, 2.0, 10, 60, 2, 1, 10),
    ([0.4] * 60, 2.0, 10, 60, 2, 1, 10),
    ([1.0] * 60, 2.0, 10, 60, 60, 6, 60),
    ([0.97] * 64, 2.0, 16, 60, 51, 4, 64),
    ([0.99] * 60, 2.2, 15, 24, 24, 2, 30),
    ([0.99] * 60, 2.2, 16, 24, 24, 2, 32),
    ([0.9] * 60, 2.2, 16, 24, 17, 2, 32),
    ([0.99, 0.98, 0.97, 0.2, *[0.9] * 56], 2.0, 10, 60, 6, 1, 10),
    ([0.99, 0.98, 0.97, 0.3, *[0.9] * 56], 2.0, 10, 60, 7, 1, 10),
    ([0.05, *[0.9] * 59], 2.0, 10, 60, 1, 1, 10),
    ([*[0.95] * 9, 0.3, *[0.9] * 50], 2.0, 10, 60, 10, 1, 10),
    ([*[0.99] * 13, 0.3, *[0.9] * 46], 2.0, 10, 60, 14, 2, 20),
    ([0.9, 0.8, 0.7, 0.6, 0.5, 0.4, 0.3, 0.2, 0.15, 0.1], 2.0, 10, 60, 5, 1, 10),
]


@pytest.mark.parametrize(("q", "alpha", "n", "dmax", "d", "blocks", "drafted"), LIBRASPEC_TABLE)
def test_libraspec_published_table(
    q: list[float], alpha: float, n: int, dmax: int, d: int, blocks: int, drafted: int
) -> None:
    row = np.array(q + [0.5] * (64 - len(q)))  # a row that ended with the list would be a smaller cap
    got = play("libraspec", row, block_len=n, alpha=alpha, block=n, max=dmax)
    assert got == (d, drafted)
    assert math.ceil(drafted / n) == blocks


@given(q=ROWS, n=st.integers(1, 8), alpha=st.sampled_from([1.4, 2.0, 3.3]), dmax=st.integers(1, 24))
def test_libraspec_fixpoint_variant_is_theorem_3_3_taken_literally(
    q: np.ndarray, n: int, alpha: float, dmax: int
) -> None:
    """Reference: eps_i by scanning every candidate, iterated until it says stop; extension one block at a time."""
    hi = min(dmax, len(q))
    drafted = served(n, len(q), 1)
    d = min(n, hi)

    def gain(i: int, last: int) -> float:
        total, product = 0.0, 1.0
        for k in range(i, last + 1):
            product *= float(q[k - 1])
            total += product
        return total

    while d < hi:
        eps = []
        for i in range(1, d + 1):
            feasible = [
                c for c in range(i - 1, drafted + 1) if all(x < alpha * gain(i, x) + i for x in range(i, c + 1))
            ]
            eps.append(max(feasible))
        e = min(eps)
        if e < d or (e == d and d < drafted):
            d = e
            break
        e = min(max(e, d + 1), hi)
        if e > drafted:
            drafted = served(drafted + math.ceil((e - drafted) / n) * n, len(q), 1)
        d = e
    assert play("libraspec", q, alpha=alpha, block=n, max=dmax, fixpoint=1) == (d, drafted)


def test_charging_the_draft_never_drafts_more_and_stops_free_extensions() -> None:
    costly = LatencyModel.from_dict(
        {
            "schema": "specsim.latency/1",
            "verify": {"form": "affine", "c_s": 0.001, "b_s": 0.05},
            "draft": {"pass_s": 0.02},
        },
        where="x",
    )
    q = np.full(60, 0.9)
    assert play("libraspec", q, block=10, block_len=10, latency=costly) == (14, 20)
    assert play("libraspec", q, block=10, block_len=10, latency=costly, charge_draft=1) == (10, 10)
    assert play("libraspec", q, block=10, block_len=10, latency=affine(c_s=0.001), charge_draft=1) == (14, 20)


@given(q=ROWS, tau=st.sampled_from([0.0, 0.25, 0.4, 0.5, 1.0]), cap=st.integers(0, 24), block_len=st.integers(1, 4))
def test_threshold_keeps_the_first_low_token(q: np.ndarray, tau: float, cap: int, block_len: int) -> None:
    hi = min(cap, len(q))
    low = [i for i in range(hi) if float(q[i]) < tau]
    length = low[0] + 1 if low else hi
    assert play("threshold", q, tau=tau, max=cap, block_len=block_len) == (length, served(length, len(q), block_len))


@given(
    q=ROWS,
    tau=st.sampled_from([0.25, 0.45, 0.5]),
    cap=st.integers(0, 24),
    chunk=st.integers(1, 7),
    block_len=st.integers(1, 4),
)
def test_failfast_grows_by_confident_chunks(q: np.ndarray, tau: float, cap: int, chunk: int, block_len: int) -> None:
    length = min(chunk, cap)
    while length < min(cap, len(q)) and (q[:length].astype(float) >= tau).all():
        length = min(length + chunk, cap)
    expected = min(length, len(q))
    assert play("failfast", q, tau=tau, max=cap, chunk=chunk, block_len=block_len) == (
        expected,
        served(length, len(q), block_len),
    )


@given(q=ROWS, h=st.sampled_from([0.0, 0.3, 0.6, 1.0]), low=st.integers(0, 6), cap=st.integers(0, 24))
def test_specdecpp_stops_when_some_rejection_is_likely(q: np.ndarray, h: float, low: int, cap: int) -> None:
    hi = min(cap, len(q))
    loss = 1 - np.cumprod(q.astype(np.float64))
    stops = [k for k in range(max(low, 1), hi + 1) if loss[k - 1] > h]
    submit, _ = play("specdecpp", q, h=h, min=low, max=cap)
    assert submit == (stops[0] if stops else hi)


@given(
    q=ROWS,
    cap=st.integers(0, 24),
    block_len=st.integers(1, 4),
    c=st.sampled_from([0.0, 0.125, 0.5]),
    token=st.sampled_from([0.0, 0.25]),
)
def test_goodput_is_an_argmax_that_drafts_on_while_the_end_is_best(
    q: np.ndarray, cap: int, block_len: int, c: float, token: float
) -> None:
    model = LatencyModel.from_dict(
        {
            "schema": "specsim.latency/1",
            "verify": {"form": "affine", "c_s": c, "b_s": 1.0},
            "draft": {"pass_s": 0.125, "token_s": token},
            "overhead_s": 0.25,
        },
        where="x",
    )
    if cap == 0 or len(q) == 0:
        return
    drafted = 0
    while True:
        drafted = served(drafted + block_len, len(q), block_len)
        last = min(drafted, cap)
        sunk = math.ceil(drafted / block_len) * 0.125 + drafted * token + 0.25
        best = best_ratio(q[:last], [sunk + float(model.verify_s(d + 1)) for d in range(last + 1)])
        if not (best == last and last < cap and drafted < len(q)):
            break
    assert play("goodput", q, max=cap, block_len=block_len, latency=model) == (best, drafted)


def test_hf_heuristic_published_sequence() -> None:
    online = OnlineController(controller("hf-heuristic", max_draft_len=1000, start=20))
    lengths = []
    for pos, outcome in enumerate(["all", 3, 0, 5, "all", "all", 1]):
        submit, _ = draft(online, np.ones(1000), pos)
        online.update(submit if outcome == "all" else int(outcome), 1.0)
        lengths.append(online.begin(pos + 1, 0)[1])
    assert lengths == [22, 21, 20, 19, 21, 23, 22]


def test_schedules_ignore_rounds_that_submitted_nothing() -> None:
    for name in ("g4", "hf-heuristic"):
        online = OnlineController(controller(name, max_draft_len=60, start=5))
        draft(online, np.ones(0))
        online.update(0, 1.0)
        assert online.begin(1, 1)[1] == 5


@pytest.mark.parametrize(
    ("name", "params", "words"),
    [
        ("static", {}, "needs length"),
        ("static", {"length": -1}, "[0, 32766]"),
        ("static", {"length": "2.5"}, "integer"),
        ("static", {"lenght": 3}, "did you mean 'length'"),
        ("libraspec", {"alpha": 0}, "> 0"),
        ("libraspec", {"alpha": "nan"}, "finite"),
        ("libraspec", {"alpha": "\N{FULLWIDTH DIGIT ONE}"}, "allowed is a finite number"),
        ("static", {"length": "\N{FULLWIDTH DIGIT ONE}"}, "allowed is an integer"),
        ("static", {"length": "\N{ARABIC-INDIC DIGIT THREE}"}, "allowed is an integer"),
        ("static", {"length": "\N{SUPERSCRIPT TWO}"}, "allowed is an integer"),
        ("static", {"length": "1_0"}, "allowed is an integer"),
        ("libraspec", {"alpha": "inf"}, "finite"),
        ("libraspec", {"block": 0}, "[1"),
        ("libraspec", {"fixpoint": 2}, "0 or 1"),
        ("threshold", {"tau": 1.5}, "[0, 1]"),
        ("threshold", {"tau": -0.1}, "[0, 1]"),
        ("failfast", {"tau": "x"}, "[0, 1]"),
        ("specdecpp", {"h": 1.01}, "[0, 1]"),
        ("g4", {"min": 9, "max": 3}, "min <= max"),
        ("hf-heuristic", {"start": 0}, "[1"),
        ("goodput", {"max": -2}, "[0"),
    ],
)
def test_parameters_are_checked(name: str, params: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError) as error:
        controller(name, max_draft_len=20, **params)
    assert words in str(error.value)
    assert name in str(error.value)


@pytest.mark.parametrize(
    ("name", "trace_max", "want"),
    [
        ("libraspec", 24, 24),
        ("libraspec", 96, 60),
        ("threshold", 96, 96),
        ("specdecpp", 96, 20),
        ("g4", 8, 8),
        ("hf-heuristic", 7, 7),
    ],
)
def test_max_defaults_to_what_the_trace_holds(name: str, trace_max: int, want: int) -> None:
    assert controller(name, max_draft_len=trace_max).config["max"] == want


def test_libraspec_block_defaults_to_the_drafters() -> None:
    assert controller("libraspec", max_draft_len=24, block_len=15).config["block"] == 15
    assert controller("libraspec", max_draft_len=24, block_len=1).config["block"] == 10


@given(q=ROWS, c=st.sampled_from([0.0, 0.125, 0.5]), cap=st.integers(1, 24))
def test_corrected_reaches_the_smallest_best_ratio_on_affine_costs(q: np.ndarray, c: float, cap: int) -> None:
    """R4: two adjustments lead to the smallest argmax of expected tokens over round time."""
    model = LatencyModel.affine(c_s=c, b_s=1.0 - c, overhead_s=0.25)
    last = min(len(q), cap)
    if last == 0:
        return
    best = best_ratio(q[:last], [0.25 + float(model.verify_s(d + 1)) for d in range(last + 1)])
    assert play("corrected", q, max=cap, block_len=24, latency=model)[0] == best


def test_libraspec_says_when_it_would_have_gone_on() -> None:
    """A log cut at 5 or 10 tokens hides a longer draft; what it would have asked for is counted, the length stays."""
    for held in (5, 10, 12):
        online = OnlineController(controller("libraspec", max_draft_len=24, block=5))
        _, want = online.begin(0, 0)
        q = np.full(held, 0.99)
        drafted = submit = 0
        while want > drafted and drafted < held:
            drafted = served(want, held, 5)
            submit, want = online.revise(q[:drafted], drafted < held)
        assert (submit, want > held) == (held, True)
    assert play("libraspec", np.full(24, 0.99), max_draft_len=24, block=5, alpha=1e300)[0] == 24


def test_a_short_trace_lowers_the_default_minimum_of_g4() -> None:
    assert controller("g4", max_draft_len=0).config["min"] == 0
    with pytest.raises(ConfigError, match="min <= max"):
        controller("g4", max_draft_len=9, min=5, max=3)
