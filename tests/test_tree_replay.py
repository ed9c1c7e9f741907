"""Replay of tree traces by number of nodes, against brute force over nodes and paths, and against chains."""

from __future__ import annotations

import dataclasses
import itertools
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from specsim import tree_rows as module
from specsim.engine import as_chain, replay
from specsim.errors import ConfigError
from specsim.latency import LatencyModel, load_latency, save_latency
from specsim.synth import KINDS, synthesize
from specsim.trace import write_trace
from specsim.tree_rows import tree_rows
from tests.replay_tools import replay_here
from tests.test_conformance import columns_of, nodes_on_path, tree_of
from tests.worlds import SPELLED, World, kinds_of, make_tree_world, worlds

TREES = [spelling for spelling in SPELLED if "tree" in kinds_of(spelling)]
BOTH = [s for s in TREES if "length" in kinds_of(s) and not s.startswith("lambda")]  # `lambda` learns otherwise there
SMALL = {"requests": 2, "positions": 6, "max_draft_len": 3, "width": 3}


def round_time(world: World, n: int, nodes: int, ctx: int) -> float:
    """Seconds of a round that verifies n nodes, straight from docs/formats.md."""
    model, depth = world.latency, world.meta.max_draft_len
    draft_s = max(1, -(-depth // world.meta.block_len)) * model.draft_pass_s + depth * model.draft_token_s
    return (draft_s if n and nodes else 0.0) + float(model.verify_s(n + 1, ctx)) + model.overhead_s


def outcomes(world: World) -> list[list[int]]:
    """For each row, what is accepted of its first n nodes, n = 0 to all."""
    trees = [tree_of(world, i) for i in range(world.chunk.rows)]
    return [[nodes_on_path(world, i, tree, n) for n in range(len(tree.logw) + 1)] for i, tree in enumerate(trees)]


@given(world=worlds(kind="tree"))
def test_rows_hold_the_trees_and_what_each_size_gains(world: World) -> None:
    rows = tree_rows(world.chunk, world.meta.tree_nodes).rows
    for i, gained in enumerate(outcomes(world)):
        nodes = slice(rows.offsets[i], rows.offsets[i + 1])
        assert rows.gained[nodes].tolist() == gained[1:]
        assert set(np.diff(gained)) <= {0, 1}  # accepted never falls with n
        assert rows.accept_len[i] == gained[-1]
        paths = np.exp(tree_of(world, i).logw)
        np.testing.assert_allclose(np.cumprod(rows.q[nodes].astype(float)), paths, rtol=1e-5)
        assert (rows.q[nodes] <= 1).all()


@given(world=worlds(kind="tree", coverage="every-position", **SMALL))
def test_oracles_and_static_sizes_against_brute_force(world: World) -> None:
    sizes = range(world.meta.tree_nodes + 1)
    spellings = [f"static:length={n}" for n in sizes]
    result = replay(world.meta, [world.chunk], world.latency, ["greedy-oracle", "oracle", *spellings], keep_rounds=True)
    np.testing.assert_allclose(result.static_s, [row["time_s"] for row in result.results[2:]], rtol=1e-9)
    gained, chunk = outcomes(world), world.chunk
    cuts = [0, *(np.flatnonzero(np.diff(chunk.request)) + 1).tolist(), chunk.rows]
    total, best = 0.0, {}
    for first, end in itertools.pairwise(cuts):
        to_go = [0.0] * (end + 1)
        for i in reversed(range(first, end)):
            times = [round_time(world, n, len(gained[i]) - 1, int(chunk.ctx_len[i])) for n in range(len(gained[i]))]
            to_go[i] = min(t + to_go[min(i + a + 1, end)] for t, a in zip(times, gained[i], strict=True))
            best[int(chunk.request[i]), int(chunk.pos[i])] = [
                (a + 1) / t for t, a in zip(times, gained[i], strict=True)
            ]
        total += to_go[first]
    assert result.oracle_s == pytest.approx(total, rel=1e-9)
    assert result.results[1]["time_s"] == pytest.approx(total, rel=1e-9)
    log = result.rounds[0]
    for request, pos, n in zip(log["request"], log["pos"], log["submitted_len"], strict=True):
        rates = best[int(request), int(pos)]
        assert rates[int(n)] >= max(rates) * (1 - 1e-12)


@given(
    kind=st.sampled_from(KINDS),
    seed=st.integers(0, 99),
    alpha=st.sampled_from([0.3, 0.7, 0.95]),
    depth=st.integers(1, 9),
    spelling=st.sampled_from(BOTH),
)
def test_lists_of_one_token_replay_as_the_chain(kind: str, seed: int, alpha: float, depth: int, spelling: str) -> None:
    model = LatencyModel.affine(c_s=0.1, b_s=1.0, draft_pass_s=0.3, overhead_s=0.05)
    shape = {"requests": 3, "positions": 30, "max_draft_len": depth, "block_len": depth}
    meta, chunk = synthesize(kind, seed=seed, alpha=alpha, top_k=1, **shape)
    assert meta.kind == "tree"
    meta = dataclasses.replace(meta, max_nodes=depth)
    tree = replay(meta, [chunk], model, [spelling], keep_rounds=True)
    chain = replay(as_chain(meta), [chunk], model, [spelling], keep_rounds=True)
    assert columns_of(tree.rounds[0]) == columns_of(chain.rounds[0])
    np.testing.assert_allclose(tree.rounds[0]["round_s"], chain.rounds[0]["round_s"], rtol=1e-12)
    np.testing.assert_allclose(tree.static_s, chain.static_s, rtol=1e-12)
    assert tree.results[0]["oracle_mad"] == chain.results[0]["oracle_mad"]


@pytest.mark.parametrize("kind", ["iid", "beta", "two-regime"])
def test_synthetic_trees_gain_what_their_paths_promise(kind: str) -> None:
    """The target's path goes through a node with exactly the node's path probability: sums over rows agree."""
    _, chunk = synthesize(kind, requests=40, positions=120, max_draft_len=6, alpha=0.6, top_k=6, seed=3)
    rows = tree_rows(chunk, 24).rows
    for n in (1, 4, 24):
        first = rows.offsets[:-1][np.diff(rows.offsets) >= n]
        gained = rows.gained[first + n - 1].astype(float)
        paths = np.stack([np.cumprod(rows.q[a : a + n].astype(float)) for a in first])
        error = (gained - paths.sum(axis=1)).sum()
        assert len(first) > 4000
        assert abs(error) < 4.5 * gained.std() * np.sqrt(len(first)), (n, error)


def test_longer_lists_leave_the_chain_columns_of_a_synthetic_trace_alone() -> None:
    shape = {"requests": 2, "positions": 40, "max_draft_len": 5, "distort": "noisy"}
    (_, plain), (meta, tree) = synthesize("markov", **shape), synthesize("markov", top_k=3, **shape)
    for name in ("q", "accept_prob", "accept_len", "offsets"):
        assert np.array_equal(getattr(plain, name), getattr(tree, name))
    assert np.array_equal(tree.topk_q[::3], tree.q)
    leading = [int(np.argmax(np.append(tree.target_rank[a:b], -1) != 0)) for a, b in itertools.pairwise(tree.offsets)]
    assert leading == tree.accept_len.tolist()
    assert (meta.extra["synth"]["top_k"], meta.drafter) == (3, "synthetic-markov")


@given(world=worlds(kind="tree", width=6, max_nodes=30, max_draft_len=3), width=st.integers(1, 5))
def test_certain_nodes_are_those_of_longer_lists(world: World, width: int) -> None:
    """Cut every list: what is then called certain is node for node the tree, and the gains, of the whole lists."""
    chunk = world.chunk
    rank_of = np.arange(len(chunk.topk_q)) - np.repeat(chunk.topk_offsets[:-1], np.diff(chunk.topk_offsets))
    cut = dataclasses.replace(
        chunk,
        topk_q=chunk.topk_q[rank_of < width],
        topk_offsets=np.append(0, np.cumsum(np.minimum(np.diff(chunk.topk_offsets), width))),
        target_rank=np.where(chunk.target_rank < width, chunk.target_rank, -1).astype(np.int16),
    )
    whole, part = tree_rows(chunk, 30), tree_rows(cut, 30)
    assert (part.exact <= np.diff(part.rows.offsets)).all()
    assert (part.exact <= whole.exact).all()
    for i, exact in enumerate(part.exact):
        a, b = whole.rows.offsets[i], part.rows.offsets[i]
        np.testing.assert_allclose(whole.rows.q[a : a + exact], part.rows.q[b : b + exact], rtol=1e-6)
        if len(set(whole.rows.q[a : a + exact].tolist())) == exact:  # of equals, the listed ones come in another order
            assert np.array_equal(whole.rows.gained[a : a + exact], part.rows.gained[b : b + exact])


def test_uncertain_rounds_are_counted() -> None:
    model = LatencyModel.affine(c_s=0.1, b_s=1.0)
    meta, chunk = synthesize("iid", requests=1, positions=20, max_draft_len=1, alpha=0.6, top_k=3)
    meta = dataclasses.replace(meta, max_nodes=3)
    one, three = replay(meta, [chunk], model, ["static:length=1", "static:length=3"]).results
    assert (one["inexact_rounds"], three["inexact_rounds"]) == (0, 0)  # the best three of one position are listed
    deep, rows = synthesize("iid", requests=1, positions=20, max_draft_len=4, alpha=0.6, top_k=1)
    log = replay(dataclasses.replace(deep, max_nodes=4), [rows], model, ["static:length=2", "static:length=1"])
    assert (
        log.results[0]["inexact_rounds"] > 0
    )  # 0.6 * 0.6 < 0.4, which the second token of the first position may have
    assert log.results[1]["inexact_rounds"] == 0


@pytest.mark.parametrize("spelling", ["static:length=5", "goodput", "lambda"])
def test_trees_of_a_chunk_are_built_part_by_part(spelling: str, monkeypatch: pytest.MonkeyPatch) -> None:
    world = make_tree_world(5, coverage="every-position", requests=3, positions=14)
    whole = replay(world.meta, [world.chunk], world.latency, [spelling], keep_rounds=True)
    monkeypatch.setattr(module, "_PART_NODES", 1)
    parts = list(module.tree_parts(world.chunk, world.meta.tree_nodes))
    assert len(parts) == len(set(world.chunk.request.tolist())) > 1
    split = replay(world.meta, [world.chunk], world.latency, [spelling], keep_rounds=True)
    assert columns_of(whole.rounds[0]) == columns_of(split.rounds[0])
    assert whole.results[0]["time_s"] == pytest.approx(split.results[0]["time_s"], rel=1e-12)


def test_a_tree_deeper_than_a_pass_costs_more_passes() -> None:
    model = LatencyModel.affine(c_s=0.0, b_s=1.0, draft_pass_s=0.25, draft_token_s=0.03125)
    meta, chunk = synthesize("iid", requests=1, positions=30, max_draft_len=6, block_len=4, alpha=0.5, top_k=2)
    result = replay(meta, [chunk], model, ["plain", "static:length=9"], keep_rounds=True)
    plain, one = result.results
    assert plain["draft_passes"] == 0
    drafted = int((result.rounds[1]["drafted_len"] > 0).sum())  # at the last position nothing is left to draft
    assert one["draft_passes"] == 2 * drafted == int(result.rounds[1]["draft_passes"].sum()) > 0
    assert one["time_s"] == pytest.approx(one["rounds"] * 1.0 + drafted * (2 * 0.25 + 6 * 0.03125))


def test_a_log_of_trees_says_nothing_of_the_lengths_it_was_made_with() -> None:
    world = make_tree_world(3, coverage="every-round")
    row = replay(world.meta, [world.chunk], world.latency, ["static:length=2"]).results[0]
    assert row["rounds"] == world.chunk.rows
    assert row["stratified_speedup"] > 0
    assert "another length than the log" not in (row["off_policy"] or "")


@pytest.mark.parametrize("acceptance", ["sampled", "expected"])
def test_other_acceptances_are_refused(acceptance: str) -> None:
    world = make_tree_world(3)
    with pytest.raises(ConfigError, match="tree traces hold the target's own path only"):
        replay(world.meta, [world.chunk], world.latency, ["plain"], acceptance=acceptance)


@pytest.mark.parametrize("spelling", [s for s in SPELLED if "tree" not in kinds_of(s)])
def test_rules_for_single_tokens_and_arms_are_refused(spelling: str) -> None:
    world = make_tree_world(3)
    message = "calibrate=.*regression" if spelling.startswith("lambda") else "chooses .*a tree"
    with pytest.raises(ConfigError, match=message):
        replay(world.meta, [world.chunk], world.latency, [spelling])
    if "length" in kinds_of(spelling) and spelling.partition(":")[0] != "failfast-repo":
        assert replay(as_chain(world.meta), [world.chunk], world.latency, [spelling]).kind == "length"


@pytest.mark.parametrize("given", ["file", "preset:h100-llama-2-7b:draft_pass_s=0.25,draft_token_s=0.03"])
def test_a_given_latency_takes_the_place_of_the_recordings(given: str, tmp_path: Path) -> None:
    """Its draft pass and token are those of the drafter, as the trace's own are; a tree pays all of them."""
    meta, chunk = synthesize("iid", requests=2, positions=30, max_draft_len=6, block_len=4, alpha=0.5, top_k=2)
    model = LatencyModel.affine(c_s=0.002, b_s=1.0, draft_pass_s=0.125, draft_token_s=0.01, overhead_s=0.5)
    if given == "file":
        given = str(tmp_path / "costs.json")
        save_latency(given, model)
    model = load_latency(given)
    for name, latency in (("own", model), ("other", LatencyModel.affine(c_s=1.0, b_s=1.0, draft_pass_s=9.0))):
        write_trace(tmp_path / f"{name}.parquet", replace(meta, latency=latency.to_dict()), [chunk])
    words = ("--json", "-c", "plain", "-c", "static:length=9", "-c", "lambda", "-c", "caddtree", "--max-nodes", "12")
    own = replay_here(tmp_path / "own.parquet", *words).document()["results"]
    found = replay_here(tmp_path / "other.parquet", *words, "--latency", given).document()["results"]
    assert [{**row, "trace": ""} for row in found] == [{**row, "trace": ""} for row in own]
    alone = replay(replace(meta, max_nodes=12), [chunk], model, ["static:length=9"], keep_rounds=True)
    (rounds,) = alone.rounds
    draft_s = int((rounds["drafted_len"] > 0).sum()) * (2 * model.draft_pass_s + 6 * model.draft_token_s)
    verify_s = model.verify_s(rounds["submitted_len"] + 1)  # the trace tells no context lengths
    assert found[1]["time_s"] == pytest.approx(draft_s + float((verify_s + model.overhead_s).sum()))


@pytest.mark.parametrize("given", ["nowhere.json", "preset:h100-llama-2-7c", "preset:h100-llama-2-7b:draft_pass_s=nan"])
def test_a_given_latency_that_cannot_be_used(given: str, tmp_path: Path) -> None:
    meta, chunk = synthesize("iid", requests=1, positions=9, max_draft_len=4, alpha=0.5, top_k=2)
    write_trace(tmp_path / "t.parquet", meta, [chunk])
    run = replay_here(tmp_path / "t.parquet", "--latency", given, "--out", tmp_path / "out")
    assert (run.status, run.out, run.err.count("\n")) == (2, "", 1)
    assert run.err.startswith("error: ")
    assert [path.name for path in tmp_path.iterdir()] == ["t.parquet"]
