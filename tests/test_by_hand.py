"""Small cases worked out by hand, and brute force that shares no code with what it checks.

Unless a test says otherwise drafting is free and verification of s positions takes 9 + s seconds: 10, 11, 12, ... Rows
are written as the tokens they hold (m), how many of those are accepted (A), and the probabilities of acceptance (p).
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from specsim import expected, metrics
from specsim.chunk import TraceChunk, offsets_of
from specsim.controllers import Setting
from specsim.controllers.libraspec import charged_alphas
from specsim.engine import replay
from specsim.errors import ConfigError
from specsim.latency import LatencyModel
from specsim.metrics import bootstrap_ratios
from specsim.oracle import shortest_paths
from specsim.rows import make_costs, make_rows
from specsim.schema import TraceMeta
from tests.test_rules import play
from tests.worlds import make_world

STEEP = LatencyModel.affine(c_s=1.0, b_s=9.0)


def table(*times_s: float, pass_s: float = 0.0, overhead_s: float = 0.0) -> LatencyModel:
    """verify(1), verify(2), ... as listed."""
    document = {
        "schema": "specsim.latency/1",
        "verify": {"form": "table", "s": list(range(1, len(times_s) + 1)), "times_s": list(times_s)},
        "draft": {"pass_s": pass_s},
        "overhead_s": overhead_s,
    }
    return LatencyModel.from_dict(document, where="by hand")


def rows_of(
    accepted: Sequence[int], *, m: Sequence[int], p: Sequence[float] = (), requests: Sequence[int] = ()
) -> TraceChunk:
    """Rows with m tokens of which A are accepted; `p` is flat over all rows, `requests` counts the rows of each."""
    counts = requests or [len(m)]
    probabilities = np.array(p, np.float32)
    return TraceChunk(
        request=np.repeat(np.arange(len(counts)), counts).astype(np.int32),
        pos=np.concatenate([np.arange(n) for n in counts]).astype(np.int32),
        offsets=offsets_of(np.array(m)),
        accept_len=np.array(accepted, np.int16),
        accept_prob=probabilities if p else None,
        q=probabilities if p else None,
    )


def result_of(
    chunk: TraceChunk, spelling: str, latency: LatencyModel = STEEP, *, acceptance: str = "logged", **meta: Any
) -> dict[str, Any]:
    return replay(
        TraceMeta(**{"max_draft_len": 4} | meta), [chunk], latency, [spelling], acceptance=acceptance
    ).results[0]


# --- deviation from the best length ----------------------------------------------------------------------------------


def test_oracle_mad_of_logged_rounds() -> None:
    """Tokens per second: 1/10, 2/11, 3/12 rise, so the best length of a row is its A: 1, 1, 0."""
    chunk = rows_of([1, 1, 0], m=[2, 1, 0])
    # static 2 submits 2 at row 0 (one too many), accepts 1, and ends with row 2, which holds nothing: (1 + 0) / 2.
    assert result_of(chunk, "static:length=2")["oracle_mad"] == 0.5
    # plain submits nothing at rows 0, 1, 2: (1 + 1 + 0) / 3.
    assert result_of(chunk, "plain")["oracle_mad"] == pytest.approx(2 / 3, rel=1e-15)
    assert result_of(chunk, "greedy-oracle")["oracle_mad"] == 0.0


@pytest.mark.parametrize(
    ("spelling", "mad"),
    [
        # The best length is A again, and A is 0, 1, 2 with probability 1/2, 1/4, 1/4.
        ("plain", 0.25 * 1 + 0.25 * 2),
        ("static:length=1", 0.5 * 1 + 0.25 * 1),
        ("static:length=2", 0.5 * 2 + 0.25 * 1),
        ("greedy-oracle", 0.0),
        # The path knows that the text ends here, so that submitting nothing is quickest.
        ("oracle", 0.25 * 1 + 0.25 * 2),
    ],
)
def test_oracle_mad_in_expectation(spelling: str, mad: float) -> None:
    chunk = rows_of([0], m=[2], p=[0.5, 0.5])
    assert result_of(chunk, spelling, acceptance="expected")["oracle_mad"] == mad


# --- counts ----------------------------------------------------------------------------------------------------------


def test_drafts_short_of_the_recorded_pass_are_counted() -> None:
    chunk = rows_of([0, 1, 0], m=[2, 2, 1])
    # static 1 drafts 1 of 2 at row 0 (A = 0), 1 of 2 at row 1 (A = 1), and is through.
    for spelling, count in (("static:length=1", 2), ("static:length=2", 0), ("plain", 0)):
        row = result_of(chunk, spelling, pass_rule="per-length")
        assert row["inexact_rounds"] == count, spelling
        assert result_of(chunk, spelling, pass_rule="keep-first")["inexact_rounds"] == 0
    # A pass of 2 yields the whole row even when 1 is asked for.
    assert result_of(chunk, "static:length=1", pass_rule="per-length", block_len=2)["inexact_rounds"] == 0


def test_drafts_short_of_the_recorded_pass_in_expectation() -> None:
    chunk = rows_of([0, 0, 0], m=[2, 2, 1], p=[0.5] * 5)
    # static 1: row 0 surely, row 1 after a failure (1/2); row 2 holds 1 token, which is drafted whole.
    row = result_of(chunk, "static:length=1", acceptance="expected", pass_rule="per-length")
    assert row["inexact_rounds"] == 1.5
    assert result_of(chunk, "static:length=1", acceptance="expected")["inexact_rounds"] == 0
    assert result_of(chunk, "plain", acceptance="expected", pass_rule="per-length")["inexact_rounds"] == 0


def test_passes_and_tokens_in_expectation() -> None:
    """Row 1 is reached when row 0 accepts nothing (1/2); row 2 when row 0 accepts 1 (1/4) or row 1 nothing (1/4)."""
    chunk = rows_of([0, 0, 0], m=[3, 3, 3], p=[0.5] * 9)
    latency = dataclasses.replace(STEEP, draft_pass_s=2.0)
    row = result_of(chunk, "static:length=3", latency, acceptance="expected", block_len=2)
    assert row["rounds"] == 1 + 0.5 + 0.5
    assert row["drafted"] == row["submitted"] == 2 * 3
    assert row["draft_passes"] == 2 * 2  # 3 tokens are two passes of 2
    assert row["tokens"] == 3
    assert row["time_s"] == 2 * (2 * 2.0 + 13.0)


COMPARED = (
    *("rounds", "tokens", "drafted", "submitted", "accepted", "draft_passes", "clamped_rounds", "inexact_rounds"),
    *("tau", "acceptance_rate", "mean_submitted", "time_s", "plain_time_s", "speedup", "throughput", "oracle_mad"),
    *("speedup_ci95", "regret_best_fixed_s", "regret_oracle_s"),
)


@pytest.mark.parametrize("coverage", ["every-position", "every-round"])
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(
    "spelling",
    ["plain", "static:length=3", "g4:start=3,max=7", "hf-heuristic", "threshold", "libraspec:block=3", "greedy-oracle"],
)
def test_expectation_over_certain_outcomes_is_the_log(spelling: str, seed: int, coverage: str) -> None:
    """Probabilities of 0 and 1 that say what the log says: the numbers of the result must be the same.

    Uncompiled, which saves compiling seven loops; the other tests of this file run compiled.
    """
    world = make_world(seed + 40, coverage=coverage)
    place = np.arange(world.chunk.offsets[-1]) - np.repeat(world.chunk.offsets[:-1], world.chunk.lengths)
    certain = (place < np.repeat(world.chunk.accept_len, world.chunk.lengths)).astype(np.float32)
    chunk = dataclasses.replace(world.chunk, accept_prob=certain)
    meta = dataclasses.replace(world.meta, pass_rule="per-length")
    logged, expectation = (
        replay(meta, [chunk], world.latency, [spelling], acceptance=acceptance, compiled=False)
        for acceptance in ("logged", "expected")
    )
    for key in COMPARED:
        got, want = expectation.results[0][key], logged.results[0][key]
        assert got == want or got == pytest.approx(want, rel=1e-12), key
    if coverage == "every-position":
        np.testing.assert_allclose(expectation.static_s, logged.static_s, rtol=1e-12)


def test_plain_time_of_a_log_of_rounds_in_expectation() -> None:
    """Two rounds, A = 1 and 0 for certain: 2 + 1 tokens, which plain decoding takes 30 s for, and static 1 22 s."""
    chunk = rows_of([1, 0], m=[1, 1], p=[1.0, 0.0])
    for acceptance in ("logged", "expected"):
        row = result_of(chunk, "static:length=1", acceptance=acceptance, coverage="every-round")
        assert (row["tokens"], row["time_s"]) == (3, 22.0)
        assert (row["plain_time_s"], row["speedup"]) == (30.0, 30 / 22), acceptance


@pytest.mark.parametrize("spelling", ["hf-heuristic:start=2", "g4:start=2"])
def test_too_many_states_at_a_position_are_refused(spelling: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """From length 2, every outcome possible: row 0 leads to length 1 at rows 1 and 2 and to length 4 at row 3.

    Row 1 (length 1) leads to length 1 at row 2, known already, and to length 3 at row 3: the second state there. Row 2
    (length 1) leads to length 1 at row 3: the third.
    """
    chunk = rows_of([0] * 4, m=[4] * 4, p=[0.5] * 16)
    free = result_of(chunk, spelling, acceptance="expected")
    for capacity, pos in ((1, 1), (2, 2)):
        monkeypatch.setattr(expected, "CAPACITY", capacity)
        with pytest.raises(ConfigError) as caught:
            result_of(chunk, spelling, acceptance="expected")
        assert f"more than {capacity} states at request 0, position {pos};" in str(caught.value)
        assert "use --acceptance sampled" in str(caught.value)
        assert spelling.partition(":")[0] in str(caught.value)
    monkeypatch.setattr(expected, "CAPACITY", 3)
    assert result_of(chunk, spelling, acceptance="expected") == free


# --- ties of lengths -------------------------------------------------------------------------------------------------


def test_ties_of_the_path_and_of_the_round_take_the_smallest_length() -> None:
    """verify(s) = 10 s: a token costs 10 s however it is obtained, so every length up to A ties everywhere."""
    flat = table(10, 20, 30, 40)
    chunk = rows_of([2, 1, 0], m=[2, 2, 2], p=[1.0, 1.0, 1.0, 0.5, 0.5, 0.0])
    meta = TraceMeta(max_draft_len=2)
    seconds, plan = shortest_paths(make_rows(chunk), make_costs(flat, 2), 1)
    assert (seconds.tolist(), plan.tolist()) == ([30.0], [0, 0, 0])
    for spelling, acceptance in itertools.product(["oracle", "greedy-oracle"], ["logged", "expected"]):
        row = replay(meta, [chunk], flat, [spelling], acceptance=acceptance).results[0]
        assert (row["submitted"], row["rounds"], row["time_s"]) == (0, 3, 30.0), (spelling, acceptance)
    # One second less for two positions: row 1 should take its token, row 0 still ties.
    cheaper = table(10, 19, 30, 40)
    seconds, plan = shortest_paths(make_rows(chunk), make_costs(cheaper, 2), 1)
    # Row 1: 19 with one token against 10 + 10. Row 0: 10 + 19, 19 + 10 and 30 tie at 29, 29, 30: the smaller length.
    assert (seconds.tolist(), plan.tolist()) == ([29.0], [0, 1, 0])


# --- LibraSpec's variants --------------------------------------------------------------------------------------------


def test_charged_alpha_by_hand() -> None:
    """Marginal verification c = 1, 2, 3, 4; a block of 10 is two passes of 5: g = 2 * 5 s / 10 tokens = 1."""
    latency = table(10, 11, 13, 16, 20, pass_s=5.0)
    values = {"alpha": 2.0, "block": 10, "max": 3, "charge_draft": True}
    setting = Setting(block_len=5, max_draft_len=60, latency=latency)
    # alpha c / (c + g) = 2 * 1/2, 2 * 2/3, 2 * 3/4, 2 * 4/5
    np.testing.assert_allclose(charged_alphas(values, setting), [1.0, 4 / 3, 1.5, 1.6], rtol=1e-15)
    # Eleven tokens need a third pass: g = 15/11.
    want = [2 * c / (c + 15 / 11) for c in (1, 2, 3, 4)]
    np.testing.assert_allclose(charged_alphas(values | {"block": 11}, setting), want, rtol=1e-15)


def test_a_further_block_is_charged_at_the_length_verified_now() -> None:
    """q = 0.75, blocks of one token, g = 1: at length 1, alpha q = 1.5 says go on; the block pays iff alpha' q >= 1."""
    # c = 1 for the first drafted token, 3 for the second: alpha' = 1, then 1.5. At length 1: 1.5 * 0.75 = 1.125, pays.
    rising = table(10, 11, 14, 18, pass_s=1.0)
    assert play("libraspec", np.full(8, 0.75), latency=rising, block=1, max=2, charge_draft=1) == (2, 2)
    # c = 3, then 1: alpha' = 1.5, then 1. At length 1: 1 * 0.75 does not pay.
    falling = table(10, 13, 14, 15, pass_s=1.0)
    assert play("libraspec", np.full(8, 0.75), latency=falling, block=1, max=2, charge_draft=1) == (1, 1)


def test_a_further_block_is_charged_all_its_passes() -> None:
    """q = 0.9 over a block of 10: bound > 10 needs floor(alpha' S_1) + 1 > 10, S_1 = 9 (1 - 0.9^10) = 5.862.

    So alpha' >= 10 / 5.862 = 1.706 (the other suffixes ask for less). c = 1; two passes of 1 s are g = 0.2 and alpha' =
    2 / 1.2 = 1.667, too little; one pass of 10 tokens is g = 0.1 and alpha' = 1.818, enough.
    """
    latency = dataclasses.replace(STEEP, draft_pass_s=1.0)
    q = np.full(60, 0.9)
    assert play("libraspec", q, latency=latency, block_len=5, block=10, charge_draft=1) == (10, 10)
    assert play("libraspec", q, latency=latency, block_len=10, block=10, charge_draft=1)[1] == 20


@pytest.mark.parametrize(
    ("q", "block", "cap", "fixpoint", "printed"),
    [
        # i = 1: d' < 2 R_1(d') + 1 with R_1 = 0.9, 0.99, 0.999: 1 < 2.8, 2 < 2.98, 3 = no. The least of all: 2.
        ([0.9, 0.1, 0.1], 3, 3, 2, 2),
        # i = 1: R_1 = 0.5: 1 < 2, 2 < 2 fails: 1. As printed: floor(2 * 0.5) + 1 = 2.
        ([0.5, 0.0, 0.0], 3, 3, 1, 2),
        # Nothing fails among the drafted three, so the cap of 2 stands.
        ([1.0, 1.0, 1.0], 3, 2, 2, 2),
        # i = 1: 1 < 1 fails at once: nothing is worth verifying. As printed floor(0) + 1 = 1.
        ([0.0, 1.0, 1.0], 3, 3, 0, 1),
    ],
)
def test_shrinking_at_the_cap(q: list[float], block: int, cap: int, fixpoint: int, printed: int) -> None:
    row = np.array(q)
    for variant, submit in (({"fixpoint": 1}, fixpoint), ({}, printed)):
        assert play("libraspec", row, block=block, max=cap, shrink_at_cap=1, **variant) == (submit, 3)
        assert play("libraspec", row, block=block, max=cap, **variant) == (cap, 3)  # no test at the cap as printed


def test_shrinking_at_the_cap_with_fixpoint_on_all_rows_of_a_grid() -> None:
    """Theorem 3.3 literally: eps_i is the last d' with x < alpha R_i(x) + i for all x = i..d'; the least one wins."""
    for q in itertools.product([0.0, 0.25, 0.5, 0.75, 1.0], repeat=3):
        for cap in (1, 2, 3):
            eps = []
            for i in range(1, cap + 1):
                gain = {x: sum(float(np.prod(q[i - 1 : k])) for k in range(i, x + 1)) for x in range(i, 4)}
                within = itertools.takewhile(lambda x, i=i, gain=gain: x < 2.0 * gain[x] + i, range(i, 4))
                eps.append(max(within, default=i - 1))
            got = play("libraspec", np.array(q), alpha=2.0, block=3, max=cap, fixpoint=1, shrink_at_cap=1)
            assert got == (min(cap, *eps), 3), (q, cap)


# --- bootstrap -------------------------------------------------------------------------------------------------------


def direct_bootstrap(plain: np.ndarray, time: np.ndarray, seed: int, resamples: int) -> list[float]:
    """Resample requests one time after the other; the 2.5 % and 97.5 % points between the sorted ratios."""
    rng = np.random.default_rng(seed)
    ratios = []
    for _ in range(resamples):
        drawn = rng.integers(0, len(plain), size=len(plain), dtype=np.int64)
        ratios.append(plain[drawn].sum() / time[drawn].sum())
    ratios.sort()
    points = []
    for share in (0.025, 0.975):
        place = share * (resamples - 1)
        below = int(place)
        points.append(ratios[below] + (place - below) * (ratios[below + 1] - ratios[below]))
    return points


def request_times(requests: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(99)
    return rng.random(requests) + 1.0, rng.random(requests) + 0.25


@pytest.mark.parametrize(
    ("requests", "resamples"),
    [(2, 1000), (37, 1000), (5000, 1000), (20_000, 1000), (40_000, 500), (300_000, 100)],
)
def test_bootstrap_is_the_direct_loop(requests: int, resamples: int) -> None:
    """1000 resamples; above 20,000 requests 20 million draws in all, at least 100 resamples."""
    plain, time = request_times(requests)
    ((low, high),) = bootstrap_ratios(plain, [time], seed=5)
    assert [low, high] == pytest.approx(direct_bootstrap(plain, time, 5, resamples), rel=1e-12)


def test_bootstrap_depends_on_seed_and_number_of_resamples(monkeypatch: pytest.MonkeyPatch) -> None:
    plain, time = request_times(37)
    base = bootstrap_ratios(plain, [time], seed=5)
    assert base == bootstrap_ratios(plain, [time], seed=5)
    assert base != bootstrap_ratios(plain, [time], seed=6)
    assert metrics.RESAMPLES == 1000
    monkeypatch.setattr(metrics, "RESAMPLES", 999)
    assert base != bootstrap_ratios(plain, [time], seed=5)


def test_bootstrap_draws_are_shared_by_all_controllers(monkeypatch: pytest.MonkeyPatch) -> None:
    plain, time = request_times(50)
    first, half, same = bootstrap_ratios(plain, [time, 2 * time, time], seed=3)
    assert first == same
    assert half == [first[0] / 2, first[1] / 2]
    monkeypatch.setattr(metrics, "_BLOCK", 120)  # two resamples held at a time
    in_parts = bootstrap_ratios(plain, [time, 2 * time, time], seed=3)
    np.testing.assert_allclose(in_parts, [first, half, same], rtol=1e-12)


def test_bootstrap_of_less_than_two_requests_is_undefined() -> None:
    assert bootstrap_ratios(np.array([1.0]), [np.array([2.0])] * 2, seed=0) == [[None, None]] * 2
    row = result_of(rows_of([1, 0], m=[1, 0]), "static:length=1")
    assert row["speedup_ci95"] == [None, None]
    assert row["speedup"] == 20 / 11  # both tokens in one round of two positions


def test_interval_of_a_replay_resamples_its_requests() -> None:
    """Requests of 3, 2 and 1 tokens. Plain: 30, 20, 10 s.

    static 1 takes 11 + 10 (A = 1, then the last row, empty), 11 + 10 (A = 0) and 10.
    """
    chunk = rows_of([1, 0, 0, 0, 0, 0], m=[1, 1, 0, 1, 0, 0], requests=[3, 2, 1])
    result = replay(TraceMeta(max_draft_len=1), [chunk], STEEP, ["plain", "static:length=1"], seed=7)
    plain, time = np.array([30.0, 20.0, 10.0]), np.array([21.0, 21.0, 10.0])
    assert result.results[0]["speedup_ci95"] == [1.0, 1.0]
    assert result.results[1]["speedup"] == 60 / 52
    assert result.results[1]["speedup_ci95"] == pytest.approx(direct_bootstrap(plain, time, 7, 1000), rel=1e-12)
    # As a log of rounds the same rows are 6 rounds: plain takes 10 s per emitted token, 2 + 1 + 1, 1 + 1, 1 of them.
    log = TraceMeta(max_draft_len=1, coverage="every-round")
    row = replay(log, [chunk], STEEP, ["static:length=1"], seed=7).results[0]
    plain, time = np.array([40.0, 20.0, 10.0]), np.array([11.0 + 11 + 10, 11.0 + 10, 10.0])
    assert row["speedup_ci95"] == pytest.approx(direct_bootstrap(plain, time, 7, 1000), rel=1e-12)
