"""Logs of rounds: the naive replay is biased, the stratified estimate is not by much, and other lengths are flagged."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from specsim.chunk import TraceChunk
from specsim.engine import replay
from specsim.latency import LatencyModel
from specsim.rows import Rows, make_costs, make_rows
from specsim.schema import TraceMeta
from specsim.synth import synthesize
from specsim.trace import read_trace, write_trace
from specsim.validity import (
    OffPolicy,
    off_policy,
    off_policy_note,
    rounds_to_trace,
    stratified,
    stratified_sums,
)
from specsim.validity_table import LATENCY, errors, regimes
from tests.worlds import World, worlds

STATIC = ("static:length=2", "static:length=4", "static:length=8", "static:length=16", "static:length=32")


@cache
def persistent(stay: float) -> tuple[TraceMeta, TraceChunk]:
    return regimes(stay, requests=64)


@cache
def table(stay: float, logged_with: int, segment: int = 5) -> dict[str, tuple[float, float]]:
    return errors(*persistent(stay), logged_with, STATIC, segment=segment)


def rounds_of(meta: TraceMeta, chunk: TraceChunk, controller: str, latency: LatencyModel = LATENCY):
    return replay(meta, [chunk], latency, [controller], keep_rounds=True).rounds[0]


@pytest.mark.parametrize("logged_with", [4, 16, 60])
@pytest.mark.parametrize("stay", [0.95, 0.99])
def test_stratified_estimate_is_near_the_truth_where_the_naive_one_is_not(stay: float, logged_with: int) -> None:
    found = table(stay, logged_with)
    naive, estimate = (np.abs([pair[k] for pair in found.values()]) for k in (0, 1))
    assert naive.max() > 0.13
    assert estimate.max() < (0.055 if stay == 0.99 else 0.12)
    assert estimate.max() < 0.75 * naive.max()
    assert estimate.mean() < 0.6 * naive.mean()


def test_direction_of_the_bias() -> None:
    """Short rounds start often in easy stretches, so long lengths look too good on them; and the other way round."""
    short, long = table(0.99, 4), table(0.99, 60)
    assert short["static:length=32"][0] > 0.5
    assert long["static:length=4"][0] < -0.1
    assert abs(short["static:length=32"][1]) < 0.03


@pytest.mark.parametrize("logged_with", [4, 16])
def test_the_logging_length_itself_is_exact(logged_with: int) -> None:
    for error in table(0.95, logged_with)[f"static:length={logged_with}"]:
        assert abs(error) < 0.01  # the last round of a request, whose end the log does not know


def test_segments_of_one_round_and_of_a_hundred_are_worse() -> None:
    five, one, hundred = (
        np.abs([pair[1] for pair in table(0.99, 4, segment).values()]).max() for segment in (5, 1, 100)
    )
    assert five < one
    assert five < hundred


def test_without_persistence_there_is_no_bias_to_repair() -> None:
    for naive, _ in table(0.5, 16).values():
        assert abs(naive) < 0.02


@given(worlds(coverage="every-position", long_rows=False), st.integers(0, 12))
def test_log_holds_the_rounds_and_replays_as_they_were(world: World, length: int) -> None:
    """The log of a static controller, replayed with it, gives its rounds again, and is not called off-policy."""
    rounds = rounds_of(world.meta, world.chunk, f"static:length={length}", world.latency)
    meta, log = rounds_to_trace(world.meta, world.chunk, rounds)
    assert (meta.coverage, log.rows) == ("every-round", len(rounds["pos"]))
    assert (log.lengths == rounds["submitted_len"]).all()
    assert (log.accept_len == rounds["accepted_len"]).all()
    if log.lengths.max() == 0:
        return
    again = rounds_of(meta, log, f"static:length={length}", world.latency)
    assert (again["submitted_len"] == rounds["submitted_len"]).all()
    found = off_policy(make_rows(log), again["submitted_len"], again["emitted_len"])
    # Only the last round of a request may differ: there the log does not know that the text ended.
    assert found.other_length == found.other_step == 0
    assert off_policy_note(found) is None


def test_log_is_a_valid_trace(tmp_path) -> None:
    meta, chunk = persistent(0.95)
    log_meta, log = rounds_to_trace(meta, chunk, rounds_of(meta, chunk, "static:length=4"))
    write_trace(tmp_path / "log.parquet", log_meta, log)
    read_meta, read = read_trace(tmp_path / "log.parquet")
    assert read_meta.coverage == "every-round"
    assert read_meta.max_draft_len == 4
    assert (read.accept_len == log.accept_len).all()
    assert read.q is not None
    assert log.q is not None
    assert (read.q == log.q).all()


@pytest.mark.parametrize("length", [2, 3, 5, 16])
@pytest.mark.parametrize("whole_drafts", [False, True])
def test_another_length_is_flagged(length: int, whole_drafts: bool) -> None:
    meta, chunk = persistent(0.95)
    log_meta, log = rounds_to_trace(meta, chunk, rounds_of(meta, chunk, "static:length=4"), whole_drafts=whole_drafts)
    result = replay(log_meta, [log], LATENCY, [f"static:length={length}"], keep_rounds=True)
    rounds = result.rounds[0]
    clamped = result.results[0]["clamped_rounds"]
    note = off_policy_note(off_policy(make_rows(log), rounds["submitted_len"], rounds["emitted_len"], clamped))
    assert note is not None
    assert note.startswith("off-policy: ")
    assert "stratified_speedup" in note
    if whole_drafts:  # what the log submitted is then not known; that rounds end elsewhere is
        assert "move on by another number" in note
    elif length < 4:
        assert f"({length:.2f} tokens against" in note or "submit another length" in note
    else:
        assert "ask for more than was recorded" in note


def test_whole_drafts_replayed_with_the_logging_length_are_not_flagged() -> None:
    meta, chunk = persistent(0.95)
    log_meta, log = rounds_to_trace(meta, chunk, rounds_of(meta, chunk, "static:length=4"), whole_drafts=True)
    rounds = rounds_of(log_meta, log, "static:length=4")
    found = off_policy(make_rows(log), rounds["submitted_len"], rounds["emitted_len"])
    assert found.other_length is None
    assert off_policy_note(found) is None


def test_sums_add_over_chunks() -> None:
    meta, chunk = persistent(0.95)
    log_meta, log = rounds_to_trace(meta, chunk, rounds_of(meta, chunk, "static:length=4"), whole_drafts=True)
    rounds = rounds_of(log_meta, log, "static:length=9")
    cut = int(np.searchsorted(log.request, 20))
    costs = make_costs(LATENCY, meta.max_draft_len)

    def parts(start: int, stop: int) -> tuple[Rows, dict[str, np.ndarray]]:
        return make_rows(log.slice(start, stop)), {name: values[start:stop] for name, values in rounds.items()}

    def sums(start: int, stop: int):
        rows, part = parts(start, stop)
        return stratified_sums(rows, costs, part["emitted_len"], part["round_s"])

    def departures(start: int, stop: int) -> OffPolicy:
        rows, part = parts(start, stop)
        return off_policy(rows, part["submitted_len"], part["emitted_len"])

    whole, halves = stratified([sums(0, log.rows)]), stratified([sums(0, cut), sums(cut, log.rows)])
    assert halves == pytest.approx(whole)
    assert departures(0, cut).plus(departures(cut, log.rows)) == departures(0, log.rows)


def test_plain_decoding_is_estimated_exactly() -> None:
    """One token per round and the same time everywhere: the estimate is the plain time of the text."""
    meta, chunk = persistent(0.95)
    log_meta, log = rounds_to_trace(meta, chunk, rounds_of(meta, chunk, "static:length=4"))
    rounds = rounds_of(log_meta, log, "plain")
    costs = make_costs(LATENCY, log_meta.max_draft_len)
    found = stratified([stratified_sums(make_rows(log), costs, rounds["emitted_len"], rounds["round_s"])])
    assert found["stratified_speedup"] == pytest.approx(1.0)
    assert found["stratified_tokens"] == pytest.approx(chunk.rows, rel=0.02)


def test_no_rounds_give_no_note() -> None:
    assert off_policy_note(OffPolicy(0, 0, 0, 0, 0, 0, 0)) is None
    assert stratified([])["stratified_speedup"] == 1.0


def test_requests_of_one_round() -> None:
    """Nothing but last rounds: steps are guessed from what was accepted."""
    meta, chunk = persistent(0.95)
    first = np.flatnonzero(chunk.pos == 0)
    lone = {name: np.asarray(getattr(chunk, name)[first]) for name in ("request", "pos")}
    log_meta, log = rounds_to_trace(meta, chunk, {**lone, "submitted_len": np.full(first.size, 4)})
    rounds = rounds_of(replace(log_meta, max_draft_len=4), log, "static:length=4")
    costs = make_costs(LATENCY, 4)
    found = stratified([stratified_sums(make_rows(log), costs, rounds["emitted_len"], rounds["round_s"])])
    assert found["stratified_tokens"] == rounds["emitted_len"].sum()


def test_the_replay_reports_what_its_log_is_worth() -> None:
    """Wired into the engine: chunk by chunk as in one piece, flagged when off the log, nothing for plain decoding."""
    meta, chunk = synthesize(kind="two-regime", requests=6, positions=80, max_draft_len=8, seed=2)
    latency = LatencyModel.affine(c_s=0.03, b_s=0.97, draft_pass_s=0.01)
    logged = replay(meta, [chunk], latency, ["static:length=4"], keep_rounds=True)
    log_meta, log = rounds_to_trace(meta, chunk, logged.rounds[0])
    rows = replay(log_meta, [log], latency, ["static:length=4", "static:length=2", "plain"]).results
    assert rows[0]["off_policy"] is None
    assert rows[0]["stratified_time_s"] == pytest.approx(logged.results[0]["time_s"], rel=0.02)
    assert "submit another length" in rows[1]["off_policy"]
    assert rows[2]["off_policy"] is rows[2]["stratified_speedup"] is None
    cut = int(np.searchsorted(log.request, 3))
    split = replay(log_meta, [log.slice(0, cut), log.slice(cut, log.rows)], latency, ["static:length=2"]).results[0]
    assert split["stratified_time_s"] == pytest.approx(rows[1]["stratified_time_s"], rel=1e-9)
    assert split["off_policy"] == rows[1]["off_policy"]
