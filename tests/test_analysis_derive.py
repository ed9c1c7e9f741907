"""Derived tables from traces: equal to what the replay says of the same trace, and true to their definitions."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from analysis import derive
from analysis.derive import Missing
from analysis.derive.acceptance import MAX_UNITS, _Units
from analysis.derive.lengths import _best_lengths
from analysis.loaded import Run
from analysis.rounds import Scan, scan
from analysis.runs import read_runs
from specsim.latency import LatencyModel
from specsim.oracle import best_round_lengths
from specsim.replay import main as replay
from specsim.roundlog import read_round_log
from specsim.rows import make_costs, make_rows
from specsim.synth import synthesize
from specsim.theory.check_data import MAX_DEPTH
from specsim.trace import read_trace, write_trace
from tests.analysis_derived import method, rows, run_of, traced, world_run
from tests.analysis_logs import status
from tests.conftest import ROOT
from tests.replay_tools import LATENCY
from tests.worlds import World, make_arm_world, make_world, worlds

TRACE = ROOT / "traces" / "humaneval-prompt-lookup.parquet"
SPELLED = ("plain", "static:length=4", "static:length=7", "g4:max=8", "libraspec:max=8", "libraspec:max=24", "oracle")


def folder_of(folder: Path, trace: Path, *words: str) -> tuple[Run, Scan, list[dict[str, Any]]]:
    """A replay's run, the scan of its rounds, and its results."""
    assert status(replay, trace, *words, "--out", folder) == 0
    (run,) = read_runs([folder]).runs
    assert run.rounds is not None
    return run, scan(run.rounds), json.loads((folder / "results.json").read_text())["results"]


@pytest.fixture(scope="module")
def shipped(tmp_path_factory: pytest.TempPathFactory) -> tuple[Run, Scan, list[dict[str, Any]]]:
    words = [word for name in SPELLED for word in ("-c", name)]
    return folder_of(tmp_path_factory.mktemp("derive") / "one", TRACE, *words)


# --- throughput ----------------------------------------------------------------------------------------------------


def test_throughput_is_what_the_replay_says(shipped: tuple[Run, Scan, list[dict[str, Any]]]) -> None:
    run, scanned, results = shipped
    table = derive.throughput_by_length(run, scanned)
    curve = rows(table, kind="static")
    assert [row["length"] for row in curve] == list(range(25))
    told = {row["controller"]: row for row in results}
    for length in (4, 7):
        (result,) = [row for row in results if row["controller"] == "static" and row["params"]["length"] == length]
        assert curve[length]["tokens_per_s"] == pytest.approx(result["throughput"], rel=1e-12)
        assert curve[length]["low"] < curve[length]["tokens_per_s"] < curve[length]["high"]
    (oracle,) = rows(table, kind="oracle")
    assert oracle["tokens_per_s"] == pytest.approx(told["oracle"]["throughput"], rel=1e-12)
    assert oracle["length"] == pytest.approx(told["oracle"]["mean_submitted"], rel=1e-12)
    assert oracle["tokens_per_s"] > max(row["tokens_per_s"] for row in curve)
    marks = rows(table, kind="controller")
    assert [row["controller"].partition(":")[0] for row in marks] == ["plain", "g4", "libraspec", "libraspec"]
    assert marks[1]["tokens_per_s"] == pytest.approx(told["g4"]["throughput"], rel=1e-12)
    assert marks[1]["length"] == told["g4"]["mean_submitted"]
    assert marks[1]["low"] < marks[1]["tokens_per_s"] < marks[1]["high"]
    assert {row["source"] for row in table.to_pylist()} == {"replayed"}


def test_the_settings_of_the_replay_are_kept(tmp_path: Path) -> None:
    words = ("-c", "static:length=3", "--max-requests", "5", "--acceptance", "sampled", "--seed", "3")
    trace = tmp_path / "t.parquet"
    meta, chunk = synthesize("iid", latency=LATENCY, requests=8, positions=40, max_draft_len=6)
    write_trace(trace, meta, chunk)
    run, scanned, (result,) = folder_of(tmp_path / "r", trace, *words)
    (row,) = rows(derive.throughput_by_length(run, scanned), controller="static:length=3")
    assert row["tokens_per_s"] == pytest.approx(result["throughput"], rel=1e-12)
    assert status(replay, trace, *words[:2], "--acceptance", "expected", "--out", tmp_path / "e") == 0
    (run,) = read_runs([tmp_path / "e"]).runs
    with pytest.raises(Missing, match="expected"):
        derive.throughput_by_length(run, None)


@given(worlds(coverage="every-position"))
def test_length_zero_is_plain_decoding_that_pays_the_overhead(
    tmp_path_factory: pytest.TempPathFactory, world: World
) -> None:
    run = world_run(tmp_path_factory.mktemp("w") / "t.parquet", world)
    curve = rows(derive.throughput_by_length(run, None), kind="static")
    tokens = world.chunk.rows
    ctx_len = np.zeros(tokens) if world.chunk.ctx_len is None else world.chunk.ctx_len
    plain_s = float(world.latency.verify_s(1, ctx_len).sum())
    assert curve[0]["tokens_per_s"] == pytest.approx(tokens / (plain_s + tokens * world.latency.overhead_s), rel=1e-9)
    assert len(curve) == world.meta.max_draft_len + 1


def test_throughput_of_trees_is_by_nodes_and_of_arms_by_arm(tmp_path: Path) -> None:
    run = world_run(tmp_path / "a.parquet", make_arm_world(3, coverage="every-position", arms=4))
    with pytest.raises(Missing, match="of arms, not of lengths"):
        derive.throughput_by_length(run, None)
    table = derive.throughput_by_arm(run, None)
    assert [row["length"] for row in rows(table, kind="arm")] == [0, 1, 2, 3]
    # Live runs number arms the other way round than their traces, and a replay as its trace.
    methods = (method("arm:index=2"), method("sp2ec"))
    live, own = (
        derive.throughput_by_arm(replace(run, kind=kind, methods=methods), None) for kind in ("real", "replay")
    )
    speeds = [[row["tokens_per_s"] for row in rows(one, kind="arm")] for one in (live, own)]
    assert speeds[0] == speeds[1][::-1] != speeds[1]
    assert [row["length"] for row in rows(live, kind="controller")] == [2.0, None]
    meta, chunk = synthesize("iid", latency=LATENCY, requests=4, positions=30, max_draft_len=4, top_k=3)
    tree = traced(tmp_path / "tree.parquet", meta, chunk, LatencyModel.from_dict(LATENCY, where="here"))
    curve = rows(derive.throughput_by_length(tree, None), kind="static")
    assert curve[-1]["length"] == meta.tree_nodes
    assert len(curve) <= 34


def test_a_log_of_rounds_says_nothing_of_other_lengths(tmp_path: Path) -> None:
    log = world_run(tmp_path / "t.parquet", make_world(5, coverage="every-round"))
    with pytest.raises(Missing, match="log of rounds"):
        derive.throughput_by_length(log, None)


# --- survival and reliability ----------------------------------------------------------------------------------------


@given(worlds(coverage="every-position"))
def test_survival_falls_and_hazard_is_its_loss(tmp_path_factory: pytest.TempPathFactory, world: World) -> None:
    run = world_run(tmp_path_factory.mktemp("w") / "t.parquet", world)
    try:
        found = derive.survival(run, None).to_pylist()
    except Missing:
        assert not world.chunk.lengths.any()
        return
    lengths, accepted = world.chunk.lengths, world.chunk.accept_len
    before = 1.0
    for depth, row in enumerate(found, 1):
        assert row["source"] == "trace"
        assert row["depth"] == depth
        seen = (lengths >= depth) & (accepted >= depth - 1)
        assert row["n"] == seen.sum()
        assert row["survival"] == pytest.approx(before * (accepted[seen] >= depth).mean(), abs=1e-12)
        assert 0 <= row["survival"] <= before
        if before:
            assert row["hazard"] == pytest.approx(1 - row["survival"] / before, abs=1e-12)
        before = row["survival"]


def test_survival_of_arms_and_of_rounds(tmp_path: Path) -> None:
    world = make_arm_world(3, coverage="every-position", arms=3)
    found = derive.survival(world_run(tmp_path / "t.parquet", world), None)
    assert world.chunk.arm_accept_len is not None
    for arm in range(3):
        first = rows(found, source=f"arm arm-{arm}", depth=1)[0]
        assert first["survival"] == pytest.approx((world.chunk.arm_accept_len[:, arm] >= 1).mean())
    with pytest.raises(Missing, match="no round log"):
        derive.survival(run_of(tmp_path), None)


def test_survival_from_a_log_is_of_what_was_submitted(shipped: tuple[Run, Scan, list[dict[str, Any]]]) -> None:
    run, scanned, _ = shipped
    bare = run_of(run.folder, run.methods, run_ids=run.run_ids, rounds=run.rounds)
    found = rows(derive.survival(bare, scanned), source="static:length=4")
    assert [row["depth"] for row in found] == [1, 2, 3, 4]
    assert all(row["low"] is None for row in found)
    _, columns = _read(run)
    mine = (columns["run_id"] == run.run_ids["static:length=4"]) & (columns["submitted_len"] >= 2)
    reached = mine & (columns["accepted_len"] >= 1)
    assert found[1]["n"] == reached.sum()
    assert found[1]["hazard"] == pytest.approx(1 - (columns["accepted_len"][reached] >= 2).mean())


def _read(run: Run) -> Any:
    assert run.rounds is not None
    return read_round_log(run.rounds)


def test_very_many_requests_are_taken_together() -> None:
    units = _Units()
    for number in range(3 * MAX_UNITS):
        units.add(np.full((2, MAX_DEPTH), float(number % 7)))
    held = units.array()
    assert len(held) <= MAX_UNITS
    assert held[:, 0, 0].sum() == sum(number % 7 for number in range(3 * MAX_UNITS))
    units = _Units()
    for _ in range(3 * MAX_UNITS):
        units.add(np.ones((2, MAX_DEPTH)))
    assert set(units.array()[:, 0, 0]) == {4.0}  # of as many requests each, so that a resample weighs all alike


def test_reliability_pools_its_depths(tmp_path: Path) -> None:
    _, chunk = read_trace(ROOT / "traces" / "humaneval-layer-skip.parquet")
    run = run_of(tmp_path, trace=ROOT / "traces" / "humaneval-layer-skip.parquet")
    found = derive.reliability(run, None)
    pooled, parts = rows(found, depth=None), [row for row in found.to_pylist() if row["depth"]]
    assert chunk.q is not None
    depth = np.concatenate([np.arange(1, n + 1) for n in chunk.lengths])
    accepted = np.repeat(chunk.accept_len, chunk.lengths)
    judged = depth <= accepted + 1
    q, hits = chunk.q[judged].astype(float), (depth <= accepted)[judged]
    bins = np.minimum((q * 10).astype(int), 9)
    gaps = []
    for row in pooled:
        mine = bins == row["bin"]
        assert row["n"] == mine.sum() == sum(part["n"] for part in parts if part["bin"] == row["bin"])
        assert (row["mean_q"], row["accepted"]) == pytest.approx((q[mine].mean(), hits[mine].mean()))
        gaps.append(mine.sum() * abs(q[mine].mean() - hits[mine].mean()))
    assert pooled[0]["ece"] == pytest.approx(sum(gaps) / judged.sum())
    bare = traced(tmp_path / "t.parquet", *_without_q())
    with pytest.raises(Missing, match="no confidences"):
        derive.reliability(bare, None)


def _without_q() -> Any:
    meta, chunk = synthesize("iid", latency=LATENCY, requests=3, positions=10, max_draft_len=4)
    return meta, chunk.keep({"ctx_len", "accept_prob"}), LatencyModel.from_dict(LATENCY, where="here")


# --- lengths along a request ---------------------------------------------------------------------------------------


def test_lengths_along_the_median_request(shipped: tuple[Run, Scan, list[dict[str, Any]]]) -> None:
    run, scanned, _ = shipped
    found = derive.lengths_along(run, scanned)
    series = list(dict.fromkeys(found["series"].to_pylist()))
    assert series[0].startswith("static:length=")
    assert series[-1] == "best length"
    _, columns = _read(run)
    taus = {}
    for request in np.unique(columns["request"]):
        mine = (columns["run_id"] == run.run_ids[series[1]]) & (columns["request"] == request)
        taus[int(request)] = columns["emitted_len"][mine].mean()
    ordered = sorted(taus, key=lambda one: (taus[one], one))
    shown = found["request"][0].as_py()
    assert shown == ordered[(len(ordered) - 1) // 2]
    meta, chunk = read_trace(TRACE)
    costs = make_costs(LatencyModel.from_dict(run.latency or {}, where="run"), meta.max_draft_len)
    best = best_round_lengths(make_rows(chunk), costs, meta.block_len)
    for row in rows(found, series="best length"):
        assert row["length"] == best[(chunk.request == shown) & (chunk.pos == row["pos"])][0]
    assert [row["pos"] for row in rows(found, series="best length")] == [
        row["pos"] for row in rows(found, series=series[1])
    ]
    one = derive.lengths_along(run, scanned, request=2, controllers=["g4:start=10,up=2,down=1,min=1,max=8"])
    assert set(one["request"].to_pylist()) == {2}


@given(st.integers(0, 1000))
def test_no_best_length_where_the_trace_tells_of_another_text(seed: int) -> None:
    path = Path("nowhere.parquet")
    sampled = run_of(path, trace=path, temperature=1.0)
    other = run_of(path, trace=path, document={"other_texts_in_trace": 1})
    assert _best_lengths(sampled, seed) == _best_lengths(other, seed) == {}


# --- controllers -----------------------------------------------------------------------------------------------------


def test_regret_is_over_the_best_static_length_in_hindsight(shipped: tuple[Run, Scan, list[dict[str, Any]]]) -> None:
    run, scanned, results = shipped
    found = derive.regret_along(run, scanned)
    curve = rows(derive.throughput_by_length(run, scanned), kind="static")
    best = max(curve, key=lambda row: row["tokens_per_s"])
    assert set(found["against"].to_pylist()) == {best["controller"]}
    for one in run.methods:
        mine = rows(found, controller=one.controller)
        if one.controller.startswith("static:"):
            assert not mine
            continue
        (result,) = [row for row in results if row["time_s"] == one.time_s]
        assert [row["prompt"] for row in mine] == list(range(12))
        assert mine[-1]["cumulative_s"] == pytest.approx(result["regret_best_fixed_s"], abs=1e-9)
        assert all(row["low"] <= row["high"] for row in mine)
        assert mine[-1]["low"] < mine[-1]["cumulative_s"] < mine[-1]["high"]


def test_gains_and_maxima_are_of_the_run(shipped: tuple[Run, Scan, list[dict[str, Any]]]) -> None:
    run, scanned, _ = shipped
    speed = {one.controller: one.speedup or 0.0 for one in run.methods}
    libra = {name: value for name, value in speed.items() if name.startswith("libraspec")}
    static = {name: value for name, value in speed.items() if name.startswith("static")}
    (row,) = derive.gains(run, scanned).to_pylist()
    assert (row["without"], row["libraspec"]) == (max(static.values()), max(libra.values()))
    assert row["gain"] == max(libra.values()) - max(static.values())
    limits = derive.max_lengths(run, scanned).to_pylist()
    assert [row["max_len"] for row in limits] == [8, 24]
    assert [row["libraspec"] for row in limits] == [
        libra[name] for name in sorted(libra, key=lambda one: "max=24" in one)
    ]
    assert {row["best_static"] for row in limits} == {max(static.values())}
    tau = {row["controller"]: row["tau"] for row in derive.acceptance(run, scanned).to_pylist()}
    for one in run.methods:
        assert tau[one.controller] == pytest.approx(one.tokens / one.rounds, rel=0.02)


def test_of_several_libraspecs_with_one_maximum_the_fastest_counts(tmp_path: Path) -> None:
    names = ("alpha=1,max=8", "alpha=2,max=8", "alpha=3,max=8", "max=4")
    methods = [
        method(f"libraspec:{name}", time_s=time_s, speedup=3 / time_s)
        for name, time_s in zip(names, (2.0, 1.0, 1.5, 4.0), strict=True)
    ]
    found = derive.max_lengths(run_of(tmp_path, tuple(methods)), None).to_pylist()
    assert [(row["max_len"], row["libraspec"]) for row in found] == [(4, 0.75), (8, 3.0)]


def test_shares_of_pulls_add_up_to_one(tmp_path: Path) -> None:
    world = make_arm_world(11, coverage="every-position", arms=5, requests=6, positions=60)
    trace = tmp_path / "t.parquet"
    write_trace(trace, world.meta, world.chunk)
    latency = tmp_path / "l.json"
    latency.write_text(json.dumps(world.latency.to_dict()))
    words = [word for name in ("arm:index=0", "arm:index=3", "sp2ec", "ucb1") for word in ("-c", name)]
    run, scanned, results = folder_of(tmp_path / "r", trace, *words, "--latency", str(latency))
    found = derive.pulls(run, scanned)
    assert list(dict.fromkeys(row["controller"].partition(":")[0] for row in found.to_pylist())) == ["sp2ec", "ucb1"]
    for one in run.methods[2:]:
        mine = rows(found, controller=one.controller)
        assert sum(row["share"] for row in mine) == pytest.approx(1.0)
        (result,) = [row for row in results if row["controller"] == one.controller.partition(":")[0]]
        counts = {row["arm"]: row["rounds"] for row in mine}
        assert [counts.get(arm, 0) for arm in range(5)] == result["arm_pulls"]
    faster = max(run.methods[:2], key=lambda one: one.tokens_per_s)
    (first,) = {row["arm"] for row in found.to_pylist() if row["rank"] == 1}
    assert faster.controller == f"arm:index={first}"
    regret = derive.regret_along(run, scanned)
    for one in run.methods[2:]:
        (result,) = [row for row in results if row["controller"] == one.controller.partition(":")[0]]
        assert rows(regret, controller=one.controller)[-1]["cumulative_s"] == pytest.approx(
            result["regret_best_fixed_s"]
        )


def test_what_was_not_predicted_has_no_prediction(tmp_path: Path) -> None:
    run = run_of(tmp_path, (method("plain", predicted=1.0), method("g4", predicted=1.4), method("lambda")))
    assert derive.predictions(run, None).to_pylist() == [
        {"controller": "g4", "predicted": 1.4, "measured": 1.5, "low": 1.2, "high": 1.8}
    ]
    with pytest.raises(Missing, match="nothing was predicted"):
        derive.predictions(run_of(tmp_path, (method("g4"),)), None)


# --- seconds ---------------------------------------------------------------------------------------------------


def test_latency_points_are_the_models_own(shipped: tuple[Run, Scan, list[dict[str, Any]]]) -> None:
    run, scanned, _ = shipped
    found = derive.latency_points(run, scanned)
    assert run.latency is not None
    model = LatencyModel.from_dict(run.latency, where="run")
    measured = rows(found, kind="verify")
    assert [[row["s"], row["measured_s"]] for row in measured] == run.latency["provenance"]["points"]
    for row in measured:
        assert row["fitted_s"] == model.verify_s(row["s"])
        assert row["residual_s"] == row["measured_s"] - row["fitted_s"]
    assert not rows(found, kind="draft")
    assert [row["s"] for row in rows(found, kind="fit")] == list(range(1, 26))
    bare = run_of(run.folder, latency=LatencyModel.affine(c_s=0.1, b_s=1.0).to_dict())
    with pytest.raises(Missing, match=r"provenance\.points"):
        derive.latency_points(bare, None)


def test_parts_of_a_round_add_up(shipped: tuple[Run, Scan, list[dict[str, Any]]]) -> None:
    run, scanned, _ = shipped
    for one, row in zip(run.methods, derive.breakdown(run, scanned).to_pylist(), strict=True):
        whole = row["draft_ms"] + row["verify_ms"] + row["rest_ms"]
        assert row["controller"] == one.controller
        assert whole == pytest.approx(one.time_s / one.rounds * 1e3, rel=1e-9)


def test_theory_is_the_commands(tmp_path: Path) -> None:
    meta, chunk = synthesize("iid", latency=LATENCY, requests=3, positions=10, max_draft_len=4)
    found = derive.theory(traced(tmp_path / "t.parquet", meta, chunk, LatencyModel.from_dict(LATENCY, where="x")), None)
    told = {row["property"]: row["verdict"] for row in found.to_pylist()}
    assert told["replay-validity"] == "holds"
    assert told["hazard"] == "not decidable"


def test_a_run_without_anything_says_what_is_missing(tmp_path: Path) -> None:
    run = run_of(tmp_path, notes=("no trace: there was none",))
    for name, table in derive.TABLES.items():
        with pytest.raises(Missing) as reason:
            table(run, None)
        assert str(reason.value), name
        assert "\n" not in str(reason.value)


def test_every_table_of_the_list_is_exported() -> None:
    assert {table.__name__ for table in derive.TABLES.values()} <= set(derive.__all__)
