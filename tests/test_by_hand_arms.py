"""Oracles of arms, worked out by hand and against every sequence of arms, in code of its own.

Verification of s positions takes 9 + s seconds: 10, 11, 12, ...
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from specsim.chunk import TraceChunk
from specsim.engine import TraceResult, replay
from specsim.latency import LatencyModel
from specsim.oracle import best_arms, fixed_arm_totals
from specsim.rows import make_costs, make_rows
from specsim.schema import TraceMeta
from tests.test_conformance import arm_seconds
from tests.worlds import World, make_arm_world

STEEP = LatencyModel.affine(c_s=1.0, b_s=9.0)


def arm_trace(
    accept: list[list[int]], draft_s: Sequence[float], *, draft_len: int = 4, coverage: str = "every-position"
) -> World:
    """One request of an arm trace; `draft_s` are seconds of a whole draft. verify(draft_len + 1) = 10 + draft_len."""
    count = len(accept)
    meta = TraceMeta(
        kind="arm",
        coverage=coverage,
        max_draft_len=draft_len,
        draft_len=draft_len,
        arms=tuple({"name": f"a{k}", "budget": k, "draft_s": s / draft_len} for k, s in enumerate(draft_s)),
    )
    chunk = TraceChunk(
        request=np.zeros(count, np.int32),
        pos=np.arange(count, dtype=np.int32),
        offsets=np.arange(count + 1, dtype=np.int64) * draft_len,
        accept_len=np.array(accept, np.int16).max(axis=1),
        ctx_len=np.arange(count, dtype=np.int32) + 5,
        arm_accept_len=np.array(accept, np.int16),
    )
    return World(meta=meta, chunk=chunk, latency=STEEP)


def played(world: World, spelling: str) -> list[int]:
    return replay(world.meta, [world.chunk], world.latency, [spelling], keep_rounds=True).rounds[0]["arm"].tolist()


def arm_rows(world: World) -> Any:
    count = range(world.chunk.rows)
    return make_rows(
        world.chunk, arm_draft_s=np.array([[arm_seconds(world, i, k) for k in range(world.meta.n_arms)] for i in count])
    )


def test_ties_of_arms_take_the_first() -> None:
    # Rounds of 14 + 2 = 16, 16 and 14 + 18 = 32 s emit 1, 1 and 2 tokens: all 1/16 token per second. At row 2 arms 1
    # and 2 tie at 2/16 and 4/32, above arm 0.
    world = arm_trace([[0, 0, 1], [0, 0, 1], [0, 1, 3]], [2.0, 2.0, 18.0], coverage="every-round")
    assert best_arms(arm_rows(world), make_costs(STEEP, 4), 4).tolist() == [0, 0, 1]
    assert played(world, "greedy-oracle") == played(world, "oracle") == [0, 0, 1]
    # Totals: 3 tokens in 48 s, 4 in 48 s, 8 in 96 s: arms 1 and 2 tie.
    assert fixed_arm_totals(arm_rows(world), make_costs(STEEP, 4), 4, True).tolist() == [[3, 48], [4, 48], [8, 96]]
    assert played(world, "best-arm") == [1, 1, 1]


def test_the_last_round_of_a_fixed_arm_is_cut_at_the_end_of_the_text() -> None:
    """Arm 0 emits 2 of 3 tokens, then 1 of the 2 it could: 3 tokens in 2 rounds of 16 s. Arm 1: all in one of 30 s.

    Uncut, arm 0 would look like 4 tokens in 32 s, more per second than 3 in 30 s.
    """
    world = arm_trace([[1, 2], [1, 2], [1, 2]], [2.0, 16.0])
    assert fixed_arm_totals(arm_rows(world), make_costs(STEEP, 4), 4, False).tolist() == [[3, 32], [3, 30]]
    assert played(world, "best-arm") == [1]
    # In a log of rounds every row is a round and nothing is cut: 6 tokens in 48 s beat 9 in 90 s.
    log = dataclasses.replace(world, meta=dataclasses.replace(world.meta, coverage="every-round"))
    assert fixed_arm_totals(arm_rows(log), make_costs(STEEP, 4), 4, True).tolist() == [[6, 48], [9, 90]]
    assert played(log, "best-arm") == [0, 0, 0]


def arm_round_s(world: World, row: int, arm: int) -> float:
    model = world.latency
    verify_s = float(model.verify_s(world.meta.draft_len + 1, int(world.chunk.ctx_len[row])))
    return arm_seconds(world, row, arm) + verify_s + model.overhead_s


def all_paths(world: World, row: int, end: int) -> list[float]:
    """Seconds of every sequence of arms from a row to the end of its request."""
    if row >= end:
        return [0.0]
    return [
        arm_round_s(world, row, arm) + rest
        for arm in range(world.meta.n_arms)
        for rest in all_paths(world, row + int(world.chunk.arm_accept_len[row, arm]) + 1, end)
    ]


def spans(world: World) -> list[tuple[int, int]]:
    cuts = [0, *(np.flatnonzero(np.diff(world.chunk.request)) + 1).tolist(), world.chunk.rows]
    return list(itertools.pairwise(cuts))


def fixed_arm(world: World, arm: int) -> tuple[int, float]:
    """(tokens, seconds) of one arm throughout."""
    tokens, seconds = 0, 0.0
    for row, end in spans(world):
        while row < end:
            step = int(world.chunk.arm_accept_len[row, arm]) + 1
            seconds += arm_round_s(world, row, arm)
            if world.meta.coverage == "every-round":
                tokens, row = tokens + step, row + 1
            else:
                tokens, row = tokens + min(step, end - row), row + step
    return tokens, seconds


@pytest.mark.parametrize("coverage", ["every-position", "every-round"])
@pytest.mark.parametrize("seed", range(12))
def test_arm_oracles_against_all_sequences_of_arms(seed: int, coverage: str) -> None:
    world = make_arm_world(seed, coverage=coverage, requests=2, positions=5, arms=2 + seed % 3)
    # Overhead comparable to the rest, so that leaving it out changes which arm is best.
    world = dataclasses.replace(world, latency=dataclasses.replace(world.latency, overhead_s=2.5))
    arms = range(world.meta.n_arms)
    spellings = [*(f"arm:index={k}" for k in arms), "greedy-oracle", "oracle", "best-arm", "ucb1"]
    result: TraceResult = replay(world.meta, [world.chunk], world.latency, spellings, keep_rounds=True)
    by_name = dict(zip(spellings, zip(result.results, result.rounds, strict=True), strict=True))

    def rate(row: int, arm: int) -> float:
        return (int(world.chunk.arm_accept_len[row, arm]) + 1) / arm_round_s(world, row, arm)

    row_at = {(int(r), int(p)): i for i, (r, p) in enumerate(zip(world.chunk.request, world.chunk.pos, strict=True))}
    greedy = ["greedy-oracle"] if coverage == "every-position" else ["greedy-oracle", "oracle"]
    for spelling in greedy:
        log = by_name[spelling][1]
        for request, pos, arm in zip(log["request"].tolist(), log["pos"].tolist(), log["arm"].tolist(), strict=True):
            i = row_at[request, pos]
            assert rate(i, arm) >= max(rate(i, k) for k in arms) * (1 - 1e-12)

    totals = [fixed_arm(world, k) for k in arms]
    (chosen,) = set(by_name["best-arm"][1]["arm"].tolist())
    rates = [tokens / seconds for tokens, seconds in totals]
    assert rates[chosen] >= max(rates) * (1 - 1e-12)
    for k in arms:
        row = by_name[f"arm:index={k}"][0]
        assert (row["tokens"], row["time_s"]) == (totals[k][0], pytest.approx(totals[k][1], rel=1e-12))
    if coverage == "every-round":
        assert all(row["regret_best_fixed_s"] is row["regret_oracle_s"] is None for row, _ in by_name.values())
        return
    best = sum(min(all_paths(world, row, end)) for row, end in spans(world))
    assert result.oracle_s == pytest.approx(best, rel=1e-12)
    assert by_name["oracle"][0]["time_s"] == pytest.approx(best, rel=1e-12)
    np.testing.assert_allclose(result.static_s, [seconds for _, seconds in totals], rtol=1e-12)
    for row, _ in by_name.values():
        regret = row["time_s"] - min(seconds for _, seconds in totals)
        assert row["regret_best_fixed_s"] == pytest.approx(regret, rel=1e-9, abs=1e-9)
        assert row["regret_oracle_s"] == pytest.approx(row["time_s"] - best, rel=1e-9, abs=1e-9)


def test_what_was_observed_may_go_on_to_the_next_request() -> None:
    """Nothing is ever accepted and arm 1 is the cheapest: each request pulls all first, or only the first one."""
    world = arm_trace([[0, 0, 0]] * 6, [6.0, 2.0, 18.0])
    two = np.repeat(np.arange(2, dtype=np.int32), 3)
    chunk = dataclasses.replace(world.chunk, request=two, pos=np.tile(np.arange(3, dtype=np.int32), 2))
    world = dataclasses.replace(world, chunk=chunk)
    assert played(world, "sp2ec:beta=0") == played(world, "sp2ec:beta=0,carry=0") == [0, 1, 2, 0, 1, 2]
    assert played(world, "sp2ec:beta=0,carry=1") == [0, 1, 2, 1, 1, 1]
    assert played(world, "sp2ec:beta=0,reset=4,carry=1") == [0, 1, 2, 1, 0, 1]
    assert played(world, "sp2ec:beta=0,track=ewma,carry=1") == [0, 1, 2, 1, 1, 1]
    assert replay(world.meta, [world.chunk], world.latency, ["sp2ec"]).results[0]["params"] == {
        "beta": 0.3,
        "reset": 512,
        "track": "none",
    }
