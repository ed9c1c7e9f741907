"""Costs of arms in a prediction: the live view of a trace by hand, and what a calibration and a run tell of them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

torch = pytest.importorskip("torch", reason="real/ needs the extra 'real'")

from real.arm_costs import ArmSeconds, arm_seconds, check_arms, fit_arms, live_view, reversed_arms, run_costs  # noqa: E402
from real.measure import PLAIN_ROUNDS, Sample, measure, most_new_tokens  # noqa: E402
from real.target import Target  # noqa: E402
from specsim.chunk import TraceChunk  # noqa: E402
from specsim.engine import replay  # noqa: E402
from specsim.errors import ConfigError  # noqa: E402
from specsim.latency import LatencyModel, Table  # noqa: E402
from specsim.trace import TraceMeta  # noqa: E402
from tests.real_selfspec import ARMS, blocks_of, self_drafter  # noqa: E402
from tests.real_tiny import prompt_ids  # noqa: E402
from tests.test_real_validate_arms import COSTS, LENGTH  # noqa: E402

# --- the view, by hand -----------------------------------------------------------------------------------------------


def hand_trace(**more: Any) -> tuple[TraceMeta, TraceChunk]:
    """Two arms of two tokens over five positions: `dear` is accepted whole, `cheap` never; recorded as 9 s and 8 s."""
    accepted = np.array([[0, 2], [0, 2], [0, 2], [0, 1], [0, 0]], np.int16)
    arms = ({"name": "cheap", "budget": 1, "draft_s": 4.0}, {"name": "dear", "budget": 2, "draft_s": 4.5})
    chunk = TraceChunk(
        request=np.zeros(5, np.int32),
        pos=np.arange(5, dtype=np.int32),
        ctx_len=np.arange(10, 15, dtype=np.int32),
        offsets=np.arange(6, dtype=np.int64) * 2,
        accept_len=accepted.max(axis=1),
        arm_accept_len=accepted,
        arm_draft_s=np.tile(np.array([8.0, 9.0], np.float32), (5, 1)),
    )
    return TraceMeta(kind="arm", max_draft_len=2, draft_len=2, arms=arms, **more), chunk


def played(meta: TraceMeta, chunk: TraceChunk, latency: LatencyModel, spelling: str) -> list[float]:
    """Seconds of every round."""
    meta, chunk = live_view(meta, chunk, latency)
    [log] = replay(meta, [chunk], latency, [spelling], keep_rounds=True, compiled=False).rounds
    return log["round_s"].tolist()


def test_rounds_cost_the_calibrations_seconds_and_no_more_than_fits_is_drafted() -> None:
    """verify(s) = 10 + s; the dear arm takes 0.5 s a token and 1/16 s per token of context, so a draft at 10: 2.25 s.

    Five tokens at most: it drafts 2 at place 0 (13 + 2.25 s), emits three, and has room for one at place 3 (12 s and
    half of 2.625 s). The cheap arm emits one token a round and drafts 2, 2, 2, 1 and none.
    """
    entries = [{"name": "dear", "draft_s": 0.5, "ctx_s": 0.0625}, {"name": "cheap", "draft_s": 0.25, "ctx_s": 0.0}]
    known = LatencyModel(verify=Table(s=(1.0, 2.0), times_s=(11.0, 12.0)), provenance={"arms": entries})
    meta, chunk = hand_trace(extra={"max_new_tokens": 5})
    assert played(meta, chunk, known, "arm:index=0") == [15.25, 13.3125]
    assert played(meta, chunk, known, "arm:index=1") == [13.5, 13.5, 13.5, 12.25, 11.0]
    # Nothing is known of the cheap arm: the recorded 8 s stand. And without a limit drafts are whole.
    other = replace(known, provenance={"arms": entries[:1]})
    assert played(meta, chunk, other, "arm:index=1") == [21.0, 21.0, 21.0, 16.0, 11.0]
    assert played(*hand_trace(), known, "arm:index=0") == [15.25, 13 + 2.625]
    # A text that ended before the limit was not cut for it.
    assert played(*hand_trace(extra={"max_new_tokens": 9}), known, "arm:index=0") == [15.25, 13 + 2.625]


def test_the_best_arm_and_the_oracles_are_charged_for_cut_drafts_too() -> None:
    meta, chunk = live_view(*hand_trace(extra={"max_new_tokens": 5}), COSTS)
    rules = ["arm:index=0", "arm:index=1", "best-arm", "oracle"]
    found = replay(meta, [chunk], COSTS, rules, compiled=False)
    times = [row["time_s"] for row in found.results]
    assert found.static_s is not None
    assert found.static_s.tolist() == pytest.approx(times[:2])
    assert times[2] == min(times[:2])
    assert times[3] == found.oracle_s <= times[2]


@given(st.integers(1, 6), st.integers(1, 5), st.integers(0, 2**32 - 1))
def test_turning_the_arms_round_twice_changes_nothing(arms: int, rows: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    accepted, seconds = rng.integers(0, 3, (rows, arms)).astype(np.int16), rng.random((rows, arms)).astype(np.float32)
    chunk = TraceChunk(
        request=np.zeros(rows, np.int32),
        pos=np.arange(rows, dtype=np.int32),
        offsets=np.arange(rows + 1, dtype=np.int64) * 2,
        accept_len=accepted.max(axis=1),
        arm_accept_len=accepted,
        arm_draft_s=seconds,
    )
    told: Any = tuple({"name": f"a{k}", "budget": k, "draft_s": 1.0} for k in range(arms))
    meta = TraceMeta(kind="arm", max_draft_len=2, draft_len=2, arms=told)
    turned, view = reversed_arms(meta, chunk)
    assert turned.arms is not None
    assert view.arm_accept_len is not None
    assert view.arm_draft_s is not None
    for place, arm in enumerate(turned.arms):
        assert view.arm_accept_len[:, place].tolist() == accepted[:, arm["budget"]].tolist()
        assert view.arm_draft_s[:, place].tolist() == seconds[:, arm["budget"]].tolist()
    again, back = reversed_arms(turned, view)
    assert again == meta
    np.testing.assert_array_equal(back.arm_accept_len, accepted)
    np.testing.assert_array_equal(back.arm_draft_s, seconds)


def test_other_traces_are_left_alone() -> None:
    meta = TraceMeta(block_len=1, max_draft_len=2)
    _, chunk = hand_trace()
    assert live_view(meta, chunk, COSTS) == (meta, chunk)


# --- the calibration -------------------------------------------------------------------------------------------------


def test_every_arm_drafts_whole_in_every_repeat_among_the_lengths() -> None:
    drafter = self_drafter(blocks_of("llama"), max_draft_len=LENGTH, arm_draft_len=LENGTH)
    contexts = [prompt_ids(1, 12), prompt_ids(2, 40)]
    found = measure(Target(blocks_of("llama").target), drafter, contexts, max_draft_len=LENGTH, repeats=3, warmup=0)
    for arm in range(len(ARMS)):
        mine = [one for one in found if one.arm == arm]
        assert len(mine) == 3 * len(contexts)
        assert {(one.s, one.own, one.passes) for one in mine} == {(LENGTH + 1, LENGTH, LENGTH)}
        assert all(one.draft_s > 0 for one in mine)
    assert len(found) == 3 * len(contexts) * (LENGTH + PLAIN_ROUNDS + len(ARMS))
    order = [one.arm for one in found]
    assert order != sorted(order)
    # The whole target is accepted to its end, so that room for it is needed.
    assert most_new_tokens(LENGTH, None, len(ARMS)) == most_new_tokens(LENGTH) + len(ARMS) * (LENGTH + 1)


def drafted(arm: int, ctx_len: int, seconds: float, *, own: int = LENGTH) -> Sample:
    return Sample(
        s=own + 1,
        ctx_len=ctx_len,
        passes=own,
        reads=1,
        own=own,
        accepted=0,
        draft_s=seconds,
        verify_s=0.5 + 0.25 * own + ctx_len / 1024,
        overhead_s=0.125,
        arm=arm,
    )


def test_seconds_of_arms_are_medians_per_token_with_their_context() -> None:
    samples = [
        drafted(arm, ctx_len, LENGTH * (0.5 + arm + arm * ctx_len / 256) * noise)
        for arm in range(2)
        for ctx_len in (64, 256, 512)
        for noise in (0.75, 1.0, 1.0, 1.0, 9.0)
    ]
    samples += [drafted(0, 64, 99.0, own=1)] * 20  # cut short by an end
    known = [(one["name"], one["draft_s"], one["ctx_s"]) for one in fit_arms(samples, ("a", "b", "c"), LENGTH)]
    assert known == [("a", 0.5, 0.0), ("b", pytest.approx(1.5), pytest.approx(1 / 256))]  # nothing of c
    # A draft that is faster in longer contexts is noise.
    falling = [drafted(0, ctx_len, LENGTH * (2.0 - ctx_len / 1024)) for ctx_len in (64, 256, 512)]
    assert fit_arms(falling, ("a",), LENGTH) == [{"name": "a", "draft_s": 1.75, "ctx_s": 0.0}]


def test_costs_of_a_run_are_a_table_of_what_it_verified() -> None:
    samples = [drafted(0, ctx_len, 1.5) for ctx_len in (64, 256, 512)]
    assert run_costs(samples, ("a", "b"), LENGTH) is None
    plain = [
        replace(one, s=1, own=0, passes=0, draft_s=0.0, verify_s=0.5 + one.ctx_len / 1024, arm=-1) for one in samples
    ]
    model = run_costs([*samples, *plain], ("a", "b"), LENGTH)
    assert model is not None
    assert [float(model.verify_s(s, 128)) for s in (1, LENGTH + 1)] == pytest.approx([0.625, 1.375])
    assert (model.ctx_s, model.overhead_s) == (pytest.approx(1 / 1024), 0.125)
    assert arm_seconds(model, where="it") == {"a": ArmSeconds(0.5, 0.0)}


@pytest.mark.parametrize(
    ("entries", "message"),
    [
        ([], "says nothing of the seconds of arm ''"),
        ([{"name": "", "draft_s": 1.0, "ctx_s": 0.0}], "says nothing of the seconds of arm 'm1'"),
        ([{"name": "", "draft_s": -1.0, "ctx_s": 0.0}], "allowed: a name, and draft_s and ctx_s in seconds"),
        ([{"name": "", "draft_s": float("nan"), "ctx_s": 0.0}], "allowed: a name"),
        ([{"name": ""}], "allowed: a name"),
        (7, "has the entry 7"),
    ],
)
def test_a_calibration_that_does_not_know_the_arms_is_refused(entries: Any, message: str) -> None:
    model = replace(COSTS, provenance={"arms": entries})
    with pytest.raises(ConfigError, match=message):
        check_arms(model, self_drafter(blocks_of("llama")), where="c.json")
