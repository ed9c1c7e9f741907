"""Oracles, best static length, and expectation against brute force that knows nothing of their shortcuts."""

from __future__ import annotations

import copy
import dataclasses
import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from specsim.engine import replay
from specsim.errors import ConfigError
from specsim.jit import jit
from specsim.online import OnlineController
from tests.test_conformance import built, hints, passes_recorded
from tests.worlds import ALL, World, make_world, worlds

# Controllers whose expectation is defined and small: no state over requests, no draws, few states.
EXPECTABLE = [s for s in ALL if built(make_world(0), s).per_request and not s.startswith("lambda")]
SMALL = {"requests": 2, "positions": 7, "max_draft_len": 5}


def round_time(world: World, i: int, d: int, m: int, ctx: int) -> float:
    """Seconds of a round at row i that verifies d of m tokens, straight from the format's prose."""
    n, model = world.meta.block_len, world.latency
    drafted = min(math.ceil(d / n) * n, m)
    passes = passes_recorded(world, i, drafted) if d else 0
    draft_s = passes * model.draft_pass_s + drafted * model.draft_token_s
    return draft_s + float(model.verify_s(d + 1, ctx)) + model.overhead_s


def requests_of(world: World) -> list[range]:
    cuts = [0, *(np.flatnonzero(np.diff(world.chunk.request)) + 1).tolist(), world.chunk.rows]
    return [range(a, b) for a, b in itertools.pairwise(cuts)]


def shortest(world: World) -> float:
    """Dynamic programme over every length 0..m, also those beyond accept_len."""
    total = 0.0
    for rows in requests_of(world):
        to_go = {}
        for i in reversed(rows):
            m, a, ctx = int(world.chunk.lengths[i]), int(world.chunk.accept_len[i]), int(world.chunk.ctx_len[i])
            to_go[i] = min(round_time(world, i, d, m, ctx) + to_go.get(i + min(a, d) + 1, 0.0) for d in range(m + 1))
        total += to_go[rows[0]]
    return total


@given(world=worlds(coverage="every-position"))
def test_oracle_is_the_shortest_path_over_all_lengths(world: World) -> None:
    result = replay(world.meta, [world.chunk], world.latency, ["oracle"])
    assert result.oracle_s == pytest.approx(shortest(world), rel=1e-9)
    assert result.results[0]["time_s"] == pytest.approx(shortest(world), rel=1e-9)
    assert result.results[0]["regret_oracle_s"] == pytest.approx(0.0, abs=1e-9 * shortest(world))


@given(world=worlds())
def test_best_length_of_a_round_is_the_smallest_argmax_over_all_lengths(world: World) -> None:
    log = replay(world.meta, [world.chunk], world.latency, ["greedy-oracle"], keep_rounds=True).rounds[0]
    row = {(int(r), int(p)): i for i, (r, p) in enumerate(zip(world.chunk.request, world.chunk.pos, strict=True))}
    for request, pos, submitted in zip(log["request"], log["pos"], log["submitted_len"], strict=True):
        i = row[int(request), int(pos)]
        m, a, ctx = int(world.chunk.lengths[i]), int(world.chunk.accept_len[i]), int(world.chunk.ctx_len[i])
        rates = [(min(a, d) + 1) / round_time(world, i, d, m, ctx) for d in range(m + 1)]
        close = [d for d, rate in enumerate(rates) if rate >= max(rates) * (1 - 1e-12)]
        assert int(submitted) in close  # ties may be broken by rounding; the exact test below settles which one


@given(seed=st.integers(0, 2**32))
def test_ties_go_to_the_smallest_length(seed: int) -> None:
    world = make_world(seed, coverage="every-position", dyadic=True)
    log = replay(world.meta, [world.chunk], world.latency, ["greedy-oracle"], keep_rounds=True).rounds[0]
    row = {(int(r), int(p)): i for i, (r, p) in enumerate(zip(world.chunk.request, world.chunk.pos, strict=True))}
    from fractions import Fraction

    if world.latency.ctx_s:  # keep every sum exact
        return
    for request, pos, submitted in zip(log["request"], log["pos"], log["submitted_len"], strict=True):
        i = row[int(request), int(pos)]
        m, a, ctx = int(world.chunk.lengths[i]), int(world.chunk.accept_len[i]), int(world.chunk.ctx_len[i])
        times = [Fraction(round_time(world, i, d, m, ctx)) for d in range(m + 1)]
        if any(t.denominator > 1024 for t in times):  # interpolated tables leave the dyadic grid
            return
        rates = [(min(a, d) + 1) / t for d, t in enumerate(times)]
        assert int(submitted) == rates.index(max(rates))


@given(world=worlds(coverage="every-position"))
def test_best_static_time_is_the_best_of_all_static_replays(world: World) -> None:
    lengths = range(world.meta.max_draft_len + 1)
    result = replay(world.meta, [world.chunk], world.latency, [f"static:length={d}" for d in lengths])
    times = [row["time_s"] for row in result.results]
    np.testing.assert_allclose(result.static_s, times, rtol=1e-9)
    assert min(row["regret_best_fixed_s"] for row in result.results) == pytest.approx(0.0, abs=1e-9 * min(times))


@given(world=worlds(coverage="every-position"), acceptance=st.sampled_from(["logged", "sampled", "expected"]))
def test_nothing_beats_the_oracle_but_plain(world: World, acceptance: str) -> None:
    # banditspec-ucb remembers means, so on worlds of this size its states do not merge and the walk gives up.
    spellings = [s for s in EXPECTABLE if "bandit" not in s] if acceptance == "expected" else ALL
    result = replay(world.meta, [world.chunk], world.latency, spellings, acceptance=acceptance)
    for row in result.results:
        if row["controller"] != "plain":
            assert row["time_s"] >= result.oracle_s * (1 - 1e-9), row["controller"]
    assert result.static_s.min() >= result.oracle_s * (1 - 1e-9)


@given(world=worlds(coverage="every-round"))
def test_a_log_of_rounds_is_consumed_row_by_row(world: World) -> None:
    result = replay(world.meta, [world.chunk], world.latency, ALL, keep_rounds=True)
    for row, log in zip(result.results, result.rounds, strict=True):
        assert row["rounds"] == world.chunk.rows
        assert row["tokens"] == int(log["emitted_len"].sum()) == row["accepted"] + row["rounds"]
        assert row["regret_oracle_s"] is row["regret_best_fixed_s"] is None
        assert row["coverage"] == "every-round"
        emitted, ctx = log["emitted_len"], world.chunk.ctx_len
        plain = sum(
            float(world.latency.verify_s(1, int(c) + j))
            for e, c in zip(emitted, ctx, strict=True)
            for j in range(int(e))
        )
        assert row["plain_time_s"] == pytest.approx(plain, rel=1e-9)


def test_plain_pays_no_overhead_and_static_zero_does() -> None:
    world = make_world(3, coverage="every-position")
    plain, zero = replay(world.meta, [world.chunk], world.latency, ["plain", "static:length=0"]).results
    assert plain["speedup"] == 1.0
    assert zero["time_s"] == pytest.approx(plain["time_s"] + world.chunk.rows * world.latency.overhead_s, rel=1e-12)


def test_asking_for_more_than_was_logged_is_counted() -> None:
    world = make_world(5, coverage="every-round")
    m = world.chunk.lengths
    row = replay(world.meta, [world.chunk], world.latency, ["static:length=8"]).results[0]
    assert row["clamped_rounds"] == int((m < 8).sum())
    positions = make_world(6, coverage="every-position")
    assert (
        replay(positions.meta, [positions.chunk], positions.latency, ["static:length=12"]).results[0]["clamped_rounds"]
        == 0
    )
    beyond = replay(positions.meta, [positions.chunk], positions.latency, ["static:length=13"], keep_rounds=True)
    starts = beyond.rounds[0]["pos"]
    full = {int(p) for p, length in zip(positions.chunk.pos, positions.chunk.lengths, strict=True) if length == 12}
    assert (beyond.results[0]["clamped_rounds"] > 0) == any(int(p) in full for p in starts)


def expectation(world: World, spelling: str) -> dict[str, float]:
    """Every outcome tree of every request, walked with the live controller: time, rounds and accepted tokens."""
    controller = built(world, spelling)
    sums = {"time_s": 0.0, "rounds": 0.0, "accepted": 0.0, "submitted": 0.0}
    chunk, every_round = world.chunk, world.meta.coverage == "every-round"
    known = hints(world, controller)
    waits = np.zeros(chunk.rows) if controller.plan is None else controller.plan(chunk).waits

    def walk(i: int, end: int, online: OnlineController, weight: float) -> None:
        if i >= end or weight == 0.0:
            return
        q = chunk.q[chunk.offsets[i] : chunk.offsets[i + 1]]
        p = chunk.accept_prob[chunk.offsets[i] : chunk.offsets[i + 1]].astype(float)
        ctx, n = int(chunk.ctx_len[i]), world.meta.block_len
        _, want = online.begin(int(chunk.pos[i]), ctx, int(known[i]))
        drafted = submit = 0
        while want > drafted and drafted < len(q):
            drafted = min(math.ceil(want / n) * n, len(q))
            submit, want = online.revise(q[:drafted], drafted < len(q))
        model = world.latency
        made = passes_recorded(world, i, drafted) if drafted else 0
        seconds = (
            (max(made, int(waits[i])) if drafted else 0) * model.draft_pass_s
            + drafted * model.draft_token_s
            + float(model.verify_s(submit + 1, ctx))
        )
        seconds += 0.0 if spelling == "plain" else model.overhead_s
        sums["time_s"] += weight * seconds
        sums["rounds"] += weight
        sums["submitted"] += weight * submit
        for a in range(submit + 1):
            share = weight * float(np.prod(p[:a])) * (1.0 if a == submit else 1 - p[a])
            sums["accepted"] += share * a
            twin = copy.deepcopy(online)
            twin.update(a, seconds)
            walk(i + (1 if every_round else a + 1), end, twin, share)

    for number, rows in enumerate(requests_of(world)):
        online = OnlineController(controller)
        online.start_request(number)
        walk(rows.start, rows.stop, online, 1.0)
    return sums


@pytest.mark.parametrize("spelling", [s for s in EXPECTABLE if "oracle" not in s])
@pytest.mark.parametrize("seed", range(4))
def test_expected_acceptance_is_the_average_over_all_outcomes(spelling: str, seed: int) -> None:
    world = make_world(seed, **SMALL)
    row = replay(world.meta, [world.chunk], world.latency, [spelling], acceptance="expected").results[0]
    want = expectation(world, spelling)
    for key, value in want.items():
        assert row[key] == pytest.approx(value, rel=1e-9), key
    if world.meta.coverage == "every-position":
        assert row["tokens"] == pytest.approx(world.chunk.rows, rel=1e-9)


@pytest.mark.parametrize("spelling", ["greedy-oracle", "oracle", "libraspec", "g4"])
def test_sampled_acceptance_averages_to_the_expectation(spelling: str) -> None:
    world = make_world(11, coverage="every-position", requests=3, positions=12)
    want = replay(world.meta, [world.chunk], world.latency, [spelling], acceptance="expected").results[0]["time_s"]
    draws = [
        replay(world.meta, [world.chunk], world.latency, [spelling], acceptance="sampled", seed=s).results[0]["time_s"]
        for s in range(400)
    ]
    if spelling == "oracle":  # sampled, the path is chosen with the whole future known; in expectation it is not
        assert np.mean(draws) <= want * (1 + 1e-9)
    else:
        assert abs(np.mean(draws) - want) <= 4.5 * np.std(draws) / math.sqrt(len(draws)) + 1e-9


def test_sampled_acceptance_uses_common_random_numbers() -> None:
    world = make_world(12, coverage="every-position")
    a, b = (
        replay(
            world.meta,
            [world.chunk],
            world.latency,
            ["static:length=3", "plain"],
            acceptance="sampled",
            seed=1,
            keep_rounds=True,
        )
        for _ in range(2)
    )
    assert a.results == b.results
    alone = replay(world.meta, [world.chunk], world.latency, ["static:length=3"], acceptance="sampled", seed=1)
    assert alone.results[0] == a.results[0]
    other = [
        replay(world.meta, [world.chunk], world.latency, ["static:length=3"], acceptance="sampled", seed=s).results[0][
            "time_s"
        ]
        for s in range(8)
    ]
    assert len(set(other)) > 1


def test_learners_have_no_expectation() -> None:
    world = make_world(12, coverage="every-position")
    learners = [s for s in ALL if not built(world, s).per_request]
    assert learners
    for spelling in learners:
        with pytest.raises(ConfigError, match="use --acceptance sampled"):
            replay(world.meta, [world.chunk], world.latency, [spelling], acceptance="expected")


@jit
def impossible(params, state, lane, q, drafted, more):
    return -1, drafted


@pytest.mark.parametrize("acceptance", ["logged", "sampled", "expected"])
@pytest.mark.parametrize("revise", [impossible, impossible.py_func])
def test_impossible_lengths_are_refused(acceptance: str, revise) -> None:
    world = make_world(12, coverage="every-position")
    broken = dataclasses.replace(built(world, "static:length=3"), revise=revise)
    with pytest.raises(ConfigError, match="out of range"):
        replay(world.meta, [world.chunk], world.latency, [broken], acceptance=acceptance)


@pytest.mark.parametrize("spelling", EXPECTABLE)
def test_expectation_is_the_same_interpreted(spelling: str) -> None:
    world = make_world(3, **SMALL)
    fast, slow = (
        replay(world.meta, [world.chunk], world.latency, [spelling], acceptance="expected", compiled=c)
        for c in (None, False)
    )
    assert fast.results == slow.results


@given(world=worlds(coverage="every-round"))
def test_expectation_of_a_certain_log_is_the_log(world: World) -> None:
    """Where every outcome is sure, logged, sampled and expected acceptance are the same replay, plain time included."""
    m = np.diff(world.chunk.offsets)
    sure = np.concatenate([np.arange(n) < a for n, a in zip(m, world.chunk.accept_len, strict=True)]).astype(np.float32)
    chunk = dataclasses.replace(world.chunk, accept_prob=sure)
    spellings = [s for s in EXPECTABLE if "bandit" not in s]
    logged, expected = (
        replay(world.meta, [chunk], world.latency, spellings, acceptance=how).results for how in ("logged", "expected")
    )
    for a, b in zip(logged, expected, strict=True):
        for key in (
            "tokens",
            "rounds",
            "submitted",
            "accepted",
            "time_s",
            "plain_time_s",
            "speedup",
            "clamped_rounds",
            "oracle_mad",
        ):
            assert a[key] == pytest.approx(b[key], rel=1e-9), (a["controller"], key)
