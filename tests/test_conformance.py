"""What every registered controller must satisfy; a new one is tested by being registered and spelled in `worlds`."""

from __future__ import annotations

import dataclasses
import itertools
import math
import pickle

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from specsim.chunk import concat_chunks
from specsim.controllers import DEFAULT_SET, REGISTRY, Controller
from specsim.engine import controllers_for, replay
from specsim.online import OnlineController
from specsim.oracle import best_arms, best_round_lengths, fixed_arm_totals, shortest_arm_paths, shortest_paths
from specsim.rows import make_costs, make_rows
from specsim.tree import Tree, best_first
from specsim.tree_rows import tree_latency, tree_rows
from tests.worlds import EVERYWHERE, MAKERS, SPELLINGS, World, make_arm_world, make_world, worlds

COUNTS = ("rounds", "tokens", "drafted", "submitted", "accepted", "draft_passes", "clamped_rounds")


WORLDS = {kind: worlds(kind=kind) for kind in MAKERS}
everywhere = pytest.mark.parametrize(("spelling", "kind"), EVERYWHERE)


def built(world: World, spelling: str) -> Controller:
    return controllers_for(world.meta, world.latency, [spelling])[0]


def arm_seconds(world: World, row: int, arm: int) -> float:
    """Seconds of an arm's whole draft at a row: measured where the row has it, else stated."""
    stated = float(world.meta.arms[arm]["draft_s"]) * world.meta.draft_len
    measured = world.chunk.arm_draft_s
    return stated if measured is None or np.isnan(measured[row, arm]) else float(measured[row, arm])


def hints(world: World, controller: Controller) -> np.ndarray:
    """What a controller is told at each row: by its plan, or by its privilege."""
    if controller.plan is not None:
        return controller.plan(world.chunk).lengths
    if controller.privilege == "none":
        return np.full(world.chunk.rows, -1)
    path = controller.privilege == "path" and world.meta.coverage == "every-position"
    costs = make_costs(world.latency, world.meta.max_draft_len)
    if world.meta.kind in ("length", "tree"):
        rows, block_len = make_rows(world.chunk), world.meta.block_len
        if world.meta.kind == "tree":
            block_len = world.meta.tree_nodes
            rows = tree_rows(world.chunk, block_len).rows
            costs = make_costs(tree_latency(world.meta, world.latency), block_len)
        return shortest_paths(rows, costs, block_len)[1] if path else best_round_lengths(rows, costs, block_len)
    arms = range(world.meta.n_arms)
    rows = make_rows(
        world.chunk, arm_draft_s=np.array([[arm_seconds(world, i, k) for k in arms] for i in range(world.chunk.rows)])
    )
    if controller.privilege == "file":
        totals = fixed_arm_totals(rows, costs, world.meta.draft_len, world.meta.coverage == "every-round")
        return np.full(world.chunk.rows, np.argmax(totals[:, 0] / totals[:, 1]))
    return (
        shortest_arm_paths(rows, costs, world.meta.draft_len)[1]
        if path
        else best_arms(rows, costs, world.meta.draft_len)
    )


def replay_online(world: World, controller: Controller, *, compiled: bool, seed: int) -> list[tuple]:
    """A live loop over the trace, written from the format's prose; it shares only the adapter with the kernel."""
    online = OnlineController(controller, seed=seed, compiled=compiled)
    chunk, model, n = world.chunk, world.latency, world.meta.block_len
    known = hints(world, controller)
    waits = np.zeros(chunk.rows) if controller.plan is None else controller.plan(chunk).waits
    overhead = 0.0 if controller.name == "plain" else model.overhead_s
    log = []
    i = 0
    while i < chunk.rows:
        request = int(chunk.request[i])
        end = int(np.searchsorted(chunk.request, request, side="right"))
        online.start_request(request)
        number = 0
        while i < end:
            pos, ctx = int(chunk.pos[i]), int(chunk.ctx_len[i])
            arm, want = online.begin(pos, ctx, int(known[i]))
            drafted = submit = passes = 0
            if world.meta.kind == "arm":
                free, draft_s = 0, 0.0
                if want > 0:
                    drafted, passes = want, math.ceil(want / n)
                    submit, _ = online.revise(np.zeros(want, np.float32), False)
                    free, draft_s = (
                        int(chunk.arm_accept_len[i, arm]),
                        arm_seconds(world, i, arm) * want / world.meta.draft_len,
                    )
            elif world.meta.kind == "tree":
                tree = tree_of(world, i)
                if want > 0 and len(tree.logw):
                    drafted, passes = len(tree.logw), max(1, math.ceil(world.meta.max_draft_len / n))
                    submit, _ = online.revise(tree.q.astype(np.float32), False)
                free = nodes_on_path(world, i, tree, submit)
                draft_s = passes * model.draft_pass_s + (
                    world.meta.max_draft_len * model.draft_token_s if passes else 0
                )
            else:
                row = chunk.q[chunk.offsets[i] : chunk.offsets[i + 1]]
                while want > drafted and drafted < len(row):
                    while drafted < min(want, len(row)):
                        passes += 1
                        drafted = min(passes * n, len(row))
                    submit, want = online.revise(row[:drafted], drafted < len(row))
                if drafted and (made := passes_recorded(world, i, drafted)):
                    passes = max(made, int(waits[i]))
                free, draft_s = int(chunk.accept_len[i]), passes * model.draft_pass_s + drafted * model.draft_token_s
            accepted = min(free, submit)
            round_s = draft_s + float(model.verify_s(submit + 1, ctx)) + overhead
            if controller.full_information:
                verify_s = float(model.verify_s(world.meta.draft_len + 1, ctx))
                seconds = [arm_seconds(world, i, k) + verify_s + overhead for k in range(world.meta.n_arms)]
                online.update_all(chunk.arm_accept_len[i].tolist(), seconds, world.meta.draft_len)
            else:
                online.update(accepted, round_s)
            emitted = accepted + 1 if world.meta.coverage == "every-round" else min(accepted + 1, end - i)
            log.append((request, number, pos, arm, drafted, submit, accepted, emitted, passes, round_s))
            i = min(i + (1 if world.meta.coverage == "every-round" else accepted + 1), end)
            number += 1
    return log


def passes_recorded(world: World, i: int, drafted: int) -> int:
    """Denoising passes of a row until its first `drafted` tokens are filled; 0 where the trace has none."""
    chunk = world.chunk
    if chunk.pass_offsets is None or chunk.pass_filled is None:
        return 0
    filled = chunk.pass_filled[chunk.pass_offsets[i] : chunk.pass_offsets[i + 1]].tolist()
    return next(number for number, places in enumerate(filled, start=1) if places >= drafted)


def tree_of(world: World, i: int) -> Tree:
    """The tree of a row, from its lists."""
    chunk = world.chunk
    tokens = range(chunk.offsets[i], chunk.offsets[i + 1])
    lists = [chunk.topk_q[chunk.topk_offsets[t] : chunk.topk_offsets[t + 1]].astype(float) for t in tokens]
    table = np.zeros((len(lists), max([1, *map(len, lists)])))
    for depth, values in enumerate(lists):
        table[depth, : len(values)] = values
    with np.errstate(divide="ignore"):
        return best_first(np.log(table), world.meta.tree_nodes)


def nodes_on_path(world: World, i: int, tree: Tree, submitted: int) -> int:
    """How far the target's own tokens lead down the first nodes of a tree."""
    ranks = world.chunk.target_rank[world.chunk.offsets[i] : world.chunk.offsets[i + 1]]
    children = {(int(tree.parent[k]), int(tree.rank[k])): k for k in range(submitted)}
    node, length = -1, 0
    while length < len(ranks) and (node, int(ranks[length])) in children:
        node, length = children[node, int(ranks[length])], length + 1
    return length


def columns_of(result_rounds: dict) -> list[tuple]:
    names = (
        "request",
        "round",
        "pos",
        "arm",
        "drafted_len",
        "submitted_len",
        "accepted_len",
        "emitted_len",
        "draft_passes",
    )
    return list(zip(*(result_rounds[n].tolist() for n in names), strict=True))


def test_every_registered_controller_is_spelled() -> None:
    assert set(SPELLINGS) == set(REGISTRY)
    assert all(s.partition(":")[0] == name for name, spellings in SPELLINGS.items() for s in spellings)
    assert len(DEFAULT_SET) == 8


@everywhere
def test_registry_says_what_is_built(spelling: str, kind: str) -> None:
    """`kinds` and, with default parameters, `per_request` of the registry entry are those of the controller."""
    world = MAKERS[kind](0)
    controller, spec = built(world, spelling), REGISTRY[spelling.partition(":")[0]]
    assert kind in spec.kinds
    if ":" not in spelling:
        assert controller.per_request == spec.per_request


@everywhere
@given(data=st.data(), seed=st.integers(0, 5))
def test_compiled_interpreted_and_online_agree(spelling: str, kind: str, data: st.DataObject, seed: int) -> None:
    world = data.draw(WORLDS[kind])
    controller = built(world, spelling)
    fast = replay(world.meta, [world.chunk], world.latency, [controller], seed=seed, keep_rounds=True)
    slow = replay(world.meta, [world.chunk], world.latency, [controller], seed=seed, keep_rounds=True, compiled=False)
    for name in fast.rounds[0]:
        assert np.array_equal(fast.rounds[0][name], slow.rounds[0][name]), name
    assert fast.results == slow.results
    for compiled in (True, False):
        live = replay_online(world, controller, compiled=compiled, seed=seed)
        assert columns_of(fast.rounds[0]) == [row[:-1] for row in live]
        np.testing.assert_allclose(fast.rounds[0]["round_s"], [row[-1] for row in live], rtol=1e-9)


@everywhere
@given(data=st.data(), parts=st.integers(2, 3))
def test_chunks_of_whole_requests_give_what_the_whole_gives(
    spelling: str, kind: str, data: st.DataObject, parts: int
) -> None:
    world = data.draw(WORLDS[kind])
    whole = replay(world.meta, [world.chunk], world.latency, [spelling], keep_rounds=True)
    cuts = [0, *(np.flatnonzero(np.diff(world.chunk.request)) + 1).tolist(), world.chunk.rows][:parts]
    cuts = sorted({*cuts, world.chunk.rows})
    pieces = [world.chunk.slice(a, b) for a, b in itertools.pairwise(cuts)]
    split = replay(world.meta, pieces, world.latency, [spelling], keep_rounds=True)
    for name, column in whole.rounds[0].items():
        assert np.array_equal(column, split.rounds[0][name]), name
    assert {k: whole.results[0][k] for k in COUNTS} == {k: split.results[0][k] for k in COUNTS}
    assert whole.results[0]["time_s"] == pytest.approx(split.results[0]["time_s"], rel=1e-12)


@everywhere
@given(data=st.data())
def test_lengths_stay_in_range_and_tokens_add_up(spelling: str, kind: str, data: st.DataObject) -> None:
    world = data.draw(WORLDS[kind])
    result = replay(world.meta, [world.chunk], world.latency, [spelling], keep_rounds=True)
    log, row = result.rounds[0], result.results[0]
    assert (log["submitted_len"] >= 0).all()
    assert (log["submitted_len"] <= log["drafted_len"]).all()
    assert (log["accepted_len"] <= log["submitted_len"]).all()
    if world.meta.coverage == "every-position":
        assert row["tokens"] == world.chunk.rows
    assert row["tau"] == (row["accepted"] + row["rounds"]) / row["rounds"]
    maximum = row["params"].get("max")
    if maximum is not None and spelling.partition(":")[0] != "failfast-repo":  # its max counts confidences
        assert log["submitted_len"].max() <= maximum


@everywhere
@given(seed=st.integers(0, 2**32))
def test_doubling_latencies_doubles_times_of_scale_free_controllers(spelling: str, kind: str, seed: int) -> None:
    world = MAKERS[kind](seed)
    document = world.latency.to_dict()
    verify = document["verify"]
    doubled = {k: [2 * x for x in v] if k == "times_s" else 2 * v if k.endswith("_s") else v for k, v in verify.items()}
    twice = type(world.latency).from_dict(
        {
            **document,
            "verify": doubled,
            "draft": {k: 2 * v for k, v in document["draft"].items()},
            "overhead_s": 2 * document["overhead_s"],
        },
        where="doubled",
    )
    meta, chunk = world.meta, world.chunk
    if kind == "arm":
        meta = dataclasses.replace(meta, arms=tuple({**arm, "draft_s": 2 * arm["draft_s"]} for arm in meta.arms))
        measured = chunk.arm_draft_s
        chunk = dataclasses.replace(chunk, arm_draft_s=None if measured is None else 2 * measured)
    if built(world, spelling).scale_free:
        once = replay(world.meta, [world.chunk], world.latency, [spelling], keep_rounds=True)
        double = replay(meta, [chunk], twice, [spelling], keep_rounds=True)
        assert columns_of(once.rounds[0]) == columns_of(double.rounds[0])
        assert np.array_equal(2 * once.rounds[0]["round_s"], double.rounds[0]["round_s"])


@everywhere
@given(data=st.data(), shift=st.integers(1, 1000))
def test_renaming_requests_changes_nothing(spelling: str, kind: str, data: st.DataObject, shift: int) -> None:
    world = data.draw(WORLDS[kind])
    if built(world, spelling).random:
        return  # its draws are keyed by the request's number
    renamed = dataclasses.replace(world.chunk, request=(world.chunk.request * 3 + shift).astype(np.int32))
    a, b = (replay(world.meta, [c], world.latency, [spelling]).results for c in (world.chunk, renamed))
    assert a == b


@everywhere
@given(data=st.data())
def test_reordering_requests_reorders_rounds(spelling: str, kind: str, data: st.DataObject) -> None:
    world = data.draw(WORLDS[kind])
    if not built(world, spelling).per_request:
        return
    cuts = [0, *(np.flatnonzero(np.diff(world.chunk.request)) + 1).tolist(), world.chunk.rows]
    pieces = [world.chunk.slice(a, b) for a, b in itertools.pairwise(cuts)]
    forward = replay(world.meta, pieces, world.latency, [spelling], keep_rounds=True)
    backward = replay(world.meta, [concat_chunks(pieces[::-1])], world.latency, [spelling], keep_rounds=True)
    assert sorted(columns_of(forward.rounds[0])) == sorted(columns_of(backward.rounds[0]))
    for key in COUNTS:
        assert forward.results[0][key] == backward.results[0][key]
    assert forward.results[0]["time_s"] == pytest.approx(backward.results[0]["time_s"], rel=1e-9)


@everywhere
def test_online_controller_survives_pickling_in_mid_request(spelling: str, kind: str) -> None:
    world = make_world(7, coverage="every-position", long_rows=True)
    if kind == "arm":
        world = dataclasses.replace(make_arm_world(7, coverage="every-position", arms=3), chunk=world.chunk)
    online = OnlineController(built(world, spelling))
    row = world.chunk.q[: world.chunk.offsets[1]]
    assert len(row) > 3

    def play(player: OnlineController, steps: range) -> list[tuple]:
        trail = []
        for step in steps:
            _, want = player.begin(step, step + 30, 2)
            decision = player.revise(row[: max(want, 3)] if kind == "arm" else row, False) if want > 0 else (0, 0)
            player.update(decision[0] if step % 2 else 0, 1.0)
            trail.append((want, decision))
        return trail

    play(online, range(3))
    copy = pickle.loads(pickle.dumps(online))
    assert play(online, range(3, 8)) == play(copy, range(3, 8))
