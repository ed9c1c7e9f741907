"""SWIFT, KnapSpec and CLaSp while a prompt is decoded: nothing changes but speed, and what they cost is told apart."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="real/ needs the extra 'real'")

import real.loop  # noqa: E402
from real import clock as clocks  # noqa: E402
from real.builders.arm import Arm, cost_order  # noqa: E402
from real.builders.knapspec import Latency, Schedule, budget_of, candidates, family, weights_of  # noqa: E402
from real.builders.swift import initial_arm, matchness  # noqa: E402
from real.cache import KVCache, forward  # noqa: E402
from real.clock import HostClock  # noqa: E402
from real.drafters import subblock_times  # noqa: E402
from real.drafters.opened import Opened  # noqa: E402
from real.drafters.selfspec import SelfDrafter  # noqa: E402
from real.drafters.states import StateArms  # noqa: E402
from real.drafters.swift import SwiftArms  # noqa: E402
from real.loop import Decoded, Settings, decode  # noqa: E402
from real.target import Target  # noqa: E402
from specsim.errors import ConfigError  # noqa: E402
from specsim.online import OnlineController  # noqa: E402
from tests.real_building import BUILDS, CLASP, KNAPSPEC, LAYERS, SWIFT, TOKENS, make, plain, tiny  # noqa: E402
from tests.real_law import FixedClock, one_thread  # noqa: E402, F401 - one_thread is a fixture
from tests.real_lossless import plain_greedy  # noqa: E402
from tests.real_selfspec import LIVE, LooksAtCache, controller_for  # noqa: E402
from tests.real_tiny import prompt_ids, tiny_loaded  # noqa: E402


class SlowClock(FixedClock):
    """Rounds so long that what is built in them, which is measured, does not change what arms are told to cost."""

    def read(self) -> tuple[float, float, float]:
        return 1e3, 1e3, 4e3


def swift_of(drafter: SelfDrafter) -> SwiftArms:
    assert isinstance(drafter.family, SwiftArms)
    return drafter.family


def states_of(drafter: SelfDrafter) -> StateArms:
    assert isinstance(drafter.family, StateArms)
    return drafter.family


def run(drafter: SelfDrafter, spelling: str = "sp2ec", prompt: Any = 1, **how: Any) -> Decoded:
    target = how.pop("target", None) or Target(drafter.blocks.target)
    ids = prompt_ids(prompt) if isinstance(prompt, int) else prompt
    lane = OnlineController(controller_for(spelling, drafter), seed=3, compiled=False)
    clock = how.pop("clock", None) or FixedClock()
    return decode(target, drafter, lane, ids, Settings(**{"max_new_tokens": TOKENS, **how}), clock=clock)


# --- nothing changes but speed ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("build", BUILDS)
@pytest.mark.parametrize("spelling", LIVE)
def test_greedy_output_is_plain_decodings_with_every_controller_of_arms(spelling: str, build: str) -> None:
    if spelling.startswith("arm"):
        spelling = "arm:index=2"
    more = ",warmup=rounds" if build == KNAPSPEC else ""
    published = build.replace(",window=6", "") + more
    for text, cache in (
        (f"{build},length=4", "dynamic"),
        (f"{build},length=3,tree=published,rebuild=7", "static"),
        (f"{published},length=4,stop=0.3,rebuild=12", "dynamic"),
    ):
        drafter = make(text)
        if spelling.startswith("sp2ec-2d") and build == KNAPSPEC:
            with pytest.raises(ConfigError, match="needs arms with a known draft_s"):
                controller_for(spelling, drafter)
            continue
        found = run(drafter, spelling, target=Target(drafter.blocks.target, cache=cache))
        assert found.output == plain(1), text
        assert found.built.build_s > 0
        assert found.built.families >= 1
        assert found.built.arms > 1


@pytest.mark.parametrize("build", [*BUILDS, KNAPSPEC.replace("window=6", "warmup=rounds")])
def test_short_prompts_short_drafts_and_early_ends(build: str) -> None:
    drafter = make(f"{build},length=1,rebuild=11")
    for length in (1, 2):
        prompt = prompt_ids(5, length)
        whole = plain_greedy(tiny().model, prompt, TOKENS)
        for spelling in ("sp2ec", "arm:index=2"):
            assert run(drafter, spelling, prompt).output == whole
        assert run(drafter, "sp2ec", prompt, max_new_tokens=1).output == whole[:1]
    long = make(f"{build},length=4,rebuild=11")
    for place in (0, 3, 9, 15):
        stop = plain(1)[place]
        ended = plain(1)[: plain(1).index(stop) + 1]
        found = run(long, "sp2ec", 1, stop_ids=(stop,))
        assert (found.output, found.reason) == (ended, "stop")
    assert run(long, "ucbspec", 2).output == plain(2)  # the drafter is none the worse for it


@pytest.mark.parametrize("tree", [False, True])
@pytest.mark.parametrize("build", [*BUILDS, KNAPSPEC.replace("window=6", "warmup=rounds")])
def test_the_cache_stays_a_fresh_prefills(build: str, tree: bool) -> None:
    """After every round, whatever was rejected: trials and looks run inside the committed text and leave nothing."""
    loaded = replace(tiny_loaded(layers=LAYERS, spread=0.15, seed=4), stop_ids=())
    loaded.model.double()
    for controller in ("sp2ec", "arm:index=0", "arm:index=1"):
        drafter = make(f"{build},length=4,rebuild=11{',tree=published' if tree else ''}", loaded)
        target = LooksAtCache(loaded.model)
        found = run(drafter, controller, target=target, max_new_tokens=2 * TOKENS)
        assert found.output == plain_greedy(loaded.model, prompt_ids(1), 2 * TOKENS)
        assert target.compared == len(found.rounds) > 5
        # Which arms SP2ec plays hangs on the clock, and so does whether drafts of theirs are refused.
        refused = any(row.accepted_len < row.submitted_len for row in found.rounds)
        assert refused or controller != "arm:index=1"
    assert target.gap < 1e-12 * max(1.0, target.scale)


@pytest.mark.parametrize("build", BUILDS)
def test_the_same_spelling_makes_the_same_arms_whatever_came_before(build: str) -> None:
    def seen(drafter: SelfDrafter, seed: int) -> Any:
        found = run(drafter, "thompson", seed, clock=SlowClock())
        rounds = [(row.arm, row.drafted_len, row.accepted_len) for row in found.rounds]
        return rounds, [drafter.family.arm(k) for k in range(drafter.family.size)], found.built._replace(build_s=0)

    one, other = make(f"{build},length=4"), make(f"{build},length=4")
    run(other, "ucbspec", 2)
    assert seen(one, 1) == seen(other, 1)
    assert seen(one, 1) == seen(one, 1)
    assert seen(one, 1)[1] != seen(one, 2)[1] or build == CLASP  # of one token each


def test_other_seeds_search_elsewhere() -> None:
    made = []
    for seed in (0, 1):
        run(drafter := make(SWIFT.replace("seed=3", f"seed={seed}")), "sp2ec")
        made.append([drafter.family.arm(k) for k in range(drafter.family.size)])
    assert made[0] != made[1]


# --- what they make --------------------------------------------------------------------------------------------------


def test_arms_of_trials_stand_by_cost_and_every_round_makes_a_trial() -> None:
    drafter = make(f"{SWIFT},zero=1,length=4,bayes=3")
    assert drafter.family.size == 5
    costs = drafter.arm_costs
    assert costs[0] == 1
    assert list(costs) == sorted(costs, reverse=True)
    swift, sizes, trials = swift_of(drafter), [], []

    class Watching(Target):
        def commit(self, length: int, path: Any = None) -> None:
            sizes.append([arm.skipped() for arm in swift.arms])
            assert swift.arms == cost_order(swift.arms, attention=drafter.blocks.attention, mlp=drafter.blocks.mlp)
            trials.append(swift.built.trials)
            super().commit(length, path)

    found = run(drafter, "sp2ec", target=Watching(drafter.blocks.target))
    # The first pulls, of sets drawn before there is text to judge them on: construction rounds like any other.
    assert [row.arm for row in found.rounds[:5]] == [0, 1, 2, 3, 4]
    assert {tuple(sorted(row)) for row in sizes} == {(0, 2, 4, 6, 8)}  # of the twelve of the inner layers
    assert found.built.preparatory == 0
    enough = [row.pos + row.emitted_len > 5 for row in found.rounds]
    assert found.built.trials == sum(enough) > 4
    assert trials == [sum(enough[:k]) for k in range(len(enough))]
    assert found.built.arms > 5  # some trial was an improvement
    tried = [search.trials for search in swift._searches]
    assert max(tried) - min(tried) <= 1
    # An arm is the best of what its search has tried.
    assert {*swift.arms} == {Arm(), *(search.arm for search in swift._searches)}


def test_one_search_begins_as_released_and_may_end() -> None:
    drafter = make("swift,arms=1,window=4,trials=1")
    assert drafter.family.size == 1
    assert run(drafter, "static:length=3").output == plain(1)
    assert swift_of(drafter).built.trials == 2  # more than one
    drafter.family.start(prompt_ids(1))
    assert drafter.family.arm(0) == initial_arm(LAYERS)
    assert run(make("swift,arms=1,window=30"), "arm:index=0").built.trials == 0  # never enough text
    ended = run(make("swift,ratio=0.5,0.8,window=4,trials=0"), "sp2ec")
    assert ended.built.trials == 2  # one for each search


@pytest.mark.parametrize("judged", ["last", "first"])
def test_trials_are_judged_on_the_last_tokens_or_the_first(judged: str, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[tuple[list[int], list[int]]] = []
    swift = swift_of(drafter := make(f"{SWIFT},length=4,judged={judged}"))

    def watched(predicted: list[int], text: list[int]) -> float:
        seen.append((text, swift._text[swift._prompt_len :]))
        return matchness(predicted, text)

    monkeypatch.setattr("real.drafters.swift.matchness", watched)
    output = run(drafter).output
    assert len(seen) > 4
    for text, so_far in seen:  # windows are of four tokens, each predicted from the one before it
        assert so_far == output[: len(so_far)]
        assert text == (so_far[-4:] if judged == "last" else output[1:5])


def test_searches_begin_anew_after_so_many_rounds_again_and_again() -> None:
    found = run(make(f"{SWIFT},length=1,rebuild=5"))
    assert found.built.families == 1 + len(found.rounds) // 5 > 2


@torch.inference_mode()
def test_knapspecs_arms_are_those_of_the_prompts_last_tokens() -> None:
    """On a cache of their own; and after so many rounds those of the text's."""
    drafter = make(f"{KNAPSPEC},length=4,rebuild=8")
    blocks, made = drafter.blocks, []

    def apart(text: list[int]) -> list[Arm]:
        start = len(text) - 6
        cache = KVCache(len(text) + 1)
        forward(blocks.target, torch.tensor(text[:start]), cache)
        opened = Opened(blocks, torch.tensor(text[start:]), cache, start)
        times = Latency(2e-4, 1e-7, 1e-4).at(start)
        weights, how = weights_of(times), {"n_layers": LAYERS, "times": times}
        budget = budget_of(LAYERS, weights, 0.6)
        found, _ = candidates(opened.states[1:], opened.run, blocks.predict, weights=weights, budget=budget)
        arms = [entry.candidate.arm for entry in family(found, count=4, zero_skip=True, **how)]
        return cost_order(arms, attention=blocks.attention, mlp=blocks.mlp)

    family_ = states_of(drafter)
    lane = OnlineController(controller_for("sp2ec:reset=8", drafter), seed=3, compiled=False)
    texts: list[list[int]] = []

    def look(row: Any, tokens: list[int]) -> None:
        texts.append([*(texts[-1] if texts else prompt_ids(1).tolist()), *tokens])
        made.append(list(family_.arms or ()))

    asked = Settings(max_new_tokens=4 * TOKENS)
    found = decode(Target(blocks.target), drafter, lane, prompt_ids(1), asked, clock=FixedClock(), on_round=look)
    assert made[0] == made[6] == apart(prompt_ids(1).tolist())
    assert len(made[0]) == 4
    assert made[7] == apart(texts[7])
    assert made[7] != made[0]
    assert found.built.families == 1 + len(found.rounds) // 8
    assert found.built.preparatory == 0
    assert [row.arm for row in found.rounds[8:12]] == [0, 1, 2, 3]  # their first pulls, again


def test_published_rounds_draft_with_the_whole_target_until_there_are_arms() -> None:
    drafter = make(f"{KNAPSPEC.replace('window=6', 'warmup=rounds')},length=4,zero=1")
    found = run(drafter, "arm:index=2", 1)
    last = Schedule().last
    assert all(row.accepted_len == row.submitted_len for row in found.rounds[: last - 1])
    assert found.built.preparatory == min(last, sum(row.drafted_len > 0 for row in found.rounds))
    assert run(drafter, "arm:index=0", 1).built.preparatory == 0  # which leaves nothing out, too


def test_clasp_leaves_out_as_many_layers_as_asked() -> None:
    drafter = make("clasp,ratio=0.25,0.5,zero=1,length=3")
    run(drafter, "sp2ec")
    assert [arm.skipped() for arm in states_of(drafter).arms or ()] == [0, 4, 8]
    assert all(arm.attention == arm.mlp for arm in states_of(drafter).arms or ())
    assert drafter.arm_costs == tuple(drafter.blocks.cost(Arm.blocks(range(count))) for count in (0, 2, 4))


# --- what it costs ---------------------------------------------------------------------------------------------------


@pytest.fixture
def passes(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Time goes on by the target's passes, one second each, and stands still otherwise."""
    now = [0.0]

    def count(*_: object) -> None:
        now[0] += 1.0

    handle = tiny().model.get_input_embeddings().register_forward_hook(count)
    for place in (clocks.time, real.loop):
        monkeypatch.setattr(place, "perf_counter", lambda: now[0])
    monkeypatch.setattr("real.drafters.spent.perf_counter", lambda: now[0])
    yield
    handle.remove()


@pytest.mark.parametrize("build", BUILDS)
def test_seconds_of_construction_are_those_of_the_decode_and_told_apart(build: str, passes: None) -> None:
    drafter = make(f"{build},length=4,rebuild=9")
    told: list[float] = []

    class Told(OnlineController):
        def update(self, accepted: int, round_s: float) -> None:
            told.append(round_s)
            super().update(accepted, round_s)

    lane = Told(controller_for("sp2ec", drafter), seed=3, compiled=False)
    asked = Settings(max_new_tokens=TOKENS)
    for seed in (1, 2):
        told.clear()
        found = decode(Target(drafter.blocks.target), drafter, lane, prompt_ids(seed), asked, clock=HostClock())
        rebuilt = len(found.rounds) // 9
        looked = 0.0 if build == SWIFT else 1.0
        assert (found.prefill_s, found.early_build_s) == (1.0, looked)
        assert found.build_s == found.early_build_s + sum(row.build_s for row in found.rounds)
        assert found.build_s == (found.built.trials if build == SWIFT else 1 + rebuilt) > 0
        assert found.decode_s == found.early_build_s + sum(row.round_s for row in found.rounds)
        for row in found.rounds:
            assert (row.draft_s, row.verify_s) == (row.drafted_len, 1.0)
            assert row.round_s == row.draft_s + row.verify_s + row.build_s
            if build != SWIFT:
                assert row.build_s == float((row.round + 1) % 9 == 0)
        # What controllers are told is what a round costs when nothing is built.
        assert told == [row.draft_s + row.verify_s for row in found.rounds]
        assert found.built.families == 1 + rebuilt


def test_sub_blocks_are_timed_once_for_a_session(monkeypatch: pytest.MonkeyPatch) -> None:
    loaded = replace(tiny_loaded(layers=LAYERS, spread=0.15, seed=4), stop_ids=())
    measured: list[list[int]] = []
    original = subblock_times.measure

    def measure(blocks: Any, texts: Any, **how: Any) -> Any:
        measured.append([len(text) for text in texts])
        return original(blocks, texts, **{**how, "repeats": 2})

    monkeypatch.setattr(subblock_times, "measure", measure)
    one, other = make("knapspec,arms=3,length=4", loaded), make("knapspec,fraction=0.3,length=4", loaded)
    assert measured == [[64, 192, 256]]  # cut to the window
    for drafter in (one, other):
        found = run(drafter, "sp2ec", 1, target=Target(loaded.model))
        assert found.output == plain(1)
        assert found.built.timing_s == one.family._timing_s > 0  # pyright: ignore[reportAttributeAccessIssue]
        assert found.built.timing_s > 0
    make("knapspec,context=20,90", loaded)
    assert measured[1:] == [[20, 90]]
    assert run(make(KNAPSPEC)).built.timing_s == 0
    # Times that fall with the context are noise; nothing is taken from them but a mean.
    falls = Latency(1.0, -1.0, 100.0)
    monkeypatch.setattr(
        subblock_times,
        "measure",
        lambda *_, **__: subblock_times.Measured((10, 20), (90.0, 80.0), (1.0, 1.0), falls),
    )
    assert subblock_times.session_times(one.blocks, (10, 20)).latency == Latency(1.0, 0.0, 85.0)
