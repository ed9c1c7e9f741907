"""Predictions for drafters of several arms: the order and the prices of a live run, by hand and against live rounds."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

torch = pytest.importorskip("torch", reason="real/ needs the extra 'real'")

from real import arm_costs, recordings  # noqa: E402
from real.arm_costs import ArmSeconds, arm_seconds, check_arms, fit_arms, live_view, reversed_arms, run_costs  # noqa: E402
from real.builders.arm import Arm, ArmFile  # noqa: E402
from real.compare import in_sample_model, measured, predicted  # noqa: E402
from real.data import encode, load_prompts  # noqa: E402
from real.drafters.choose import parse_drafter  # noqa: E402
from real.drafters.family import Family  # noqa: E402
from real.drafters.selfspec import SelfDrafter  # noqa: E402
from real.interleave import PLAIN, Comparison  # noqa: E402
from real.loop import Round, Settings  # noqa: E402
from real.measure import PLAIN_ROUNDS, Sample, measure, most_new_tokens  # noqa: E402
from real.session import open_session  # noqa: E402
from real.shadow import shadow_run  # noqa: E402
from real.target import Target  # noqa: E402
from real.validation import check_costs  # noqa: E402
from specsim.chunk import TraceChunk  # noqa: E402
from specsim.engine import replay  # noqa: E402
from specsim.errors import ConfigError  # noqa: E402
from specsim.latency import LatencyModel, Table  # noqa: E402
from specsim.trace import TraceMeta, read_trace  # noqa: E402
from tests import real_paper  # noqa: E402
from tests.real_selfspec import ARMS, LIVE, blocks_of, self_drafter  # noqa: E402
from tests.real_tiny import prompt_ids, save_tiny  # noqa: E402
from tests.real_validate import TEXTS, results, run  # noqa: E402

LENGTH, NEW = 3, 21
SOME = (PLAIN, "sp2ec", "exp3spec", "arm:index=4")  # those replayed compiled; all are, uncompiled
NAMES = ("", "a1", "m1", "1", "a0+m1,2")  # ascending amount left out
SECONDS = {name: ArmSeconds((6 - k) / 64, (5 - k) / 2**14) for k, name in enumerate(NAMES)}
COSTS = LatencyModel(
    verify=Table(s=(1.0, 2.0, 3.0, 4.0), times_s=(0.5, 0.5625, 0.625, 0.75)),
    ctx_s=2**-12,
    overhead_s=2**-6,
    provenance={"arms": [{"name": name, **one._asdict()} for name, one in SECONDS.items()]},
)


def save_arms(folder: Path, *names: str, file: str = "arms.json", layers: int = 3) -> Path:
    ArmFile("tiny", layers, "by hand", tuple(Arm.parse(name) for name in names)).save(folder / file)
    return folder / file


def save_place(folder: Path, layers: int = 3) -> Path:
    """A folder with a model, prompts and arms in an order that is nobody's."""
    save_tiny(folder / "model", seed=3, spread=0.08, layers=layers)  # pyright: ignore[reportArgumentType]
    (folder / "p.jsonl").write_text("\n".join(json.dumps({"prompt": text}) for text in TEXTS))
    save_arms(folder, "1", "", "a0+m1,2", "m1", "a1", layers=layers)
    return folder


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_place(tmp_path_factory.mktemp("tiny"))


def price(name: str, row: Round) -> None:
    """Gives a round exactly its price, before the controller is told."""
    row.draft_s = 0.0
    if row.drafted_len:
        row.draft_s = float(SECONDS[NAMES[row.arm]].whole(row.drafted_len, row.ctx_len))
    row.verify_s = float(COSTS.verify_s(row.submitted_len + 1, row.ctx_len))
    row.round_s = row.draft_s + row.verify_s + (0.0 if name == PLAIN else COSTS.overhead_s)


class World:
    """A run of every live controller of arms at known prices, and a trace of its prompts."""

    def __init__(self, tiny: Path, trace: Path) -> None:
        text = f"self:arms={tiny / 'arms.json'},length={LENGTH}"
        self.session = open_session(str(tiny / "model"), text, device="cpu", max_draft_len=LENGTH)
        spellings = [PLAIN, *LIVE, "arm:index=4"]
        built = self.session.controllers(spellings, COSTS)
        self.controllers = dict(zip(spellings, built, strict=True))
        comparison = Comparison(self.session, list(self.controllers.items()), Settings(max_new_tokens=NEW, seed=7))
        prompts = load_prompts(str(tiny / "p.jsonl"))
        self.requests = [
            comparison.run(number, str(number), encode(self.session.loaded.tokenizer, prompt), price)
            for number, prompt in enumerate(prompts)
        ]
        settings = recordings.Settings(
            target=str(tiny / "model"),
            drafter=parse_drafter(text, target="tiny", n_layers=3),
            dataset=str(tiny / "p.jsonl"),
            requests=len(prompts),
            max_new_tokens=NEW,
            max_draft_len=LENGTH,
            dtype="float32",
            device="cpu",
            seed=0,
        )
        # In the order of the run's prompts.
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(recordings, "choose", lambda prompts, requests, seed: prompts)
            quiet = Console(quiet=True)
            rows = recordings.record(settings, self.session.loaded, self.session.drafter, trace, console=quiet)
            self.summary = recordings.save(trace, settings, self.session.loaded, self.session.drafter, rows, None)
        self.trace = trace

    def rounds(self, spelling: str) -> list[Round]:
        return [
            row
            for request in self.requests
            for one in request.runs
            if one.controller == spelling
            for row in one.decoded.rounds
        ]


@pytest.fixture(scope="module")
def world(tiny: Path, tmp_path_factory: pytest.TempPathFactory) -> World:
    return World(tiny, tmp_path_factory.mktemp("world") / "trace.parquet")


# --- live against replay ---------------------------------------------------------------------------------------------


def test_the_prediction_is_exact_where_costs_are(world: World) -> None:
    """Recorder, order, prices, cut drafts and formulas agree; the recording's own seconds play no part."""
    seen = measured(world.requests, SOME, seed=7)
    ahead = predicted(world.trace, COSTS, [world.controllers[name] for name in SOME], seed=7)
    for name, was, now in zip(SOME, seen, ahead, strict=True):
        assert now["speedup"] == pytest.approx(was.speedup, rel=1e-6), name
        assert (now["tokens"], now["rounds"]) == (was.tokens, was.rounds), name
    assert len({round(was.speedup, 3) for was in seen}) == len(SOME)


def test_live_rounds_and_replayed_ones_are_the_same(world: World) -> None:
    columns = ("arm", "pos", "ctx_len", "drafted_len", "submitted_len", "accepted_len", "emitted_len", "draft_passes")
    meta, chunk = live_view(*read_trace(world.trace), COSTS)
    played = set()
    for spelling, controller in world.controllers.items():
        [log] = replay(meta, [chunk], COSTS, [controller], seed=7, keep_rounds=True, compiled=False).rounds
        live = [tuple(getattr(row, key) for key in columns) for row in world.rounds(spelling)]
        assert live == [tuple(int(log[key][n]) for key in columns) for n in range(len(log["pos"]))], spelling
        seconds = [row.round_s for row in world.rounds(spelling)]
        np.testing.assert_allclose(log["round_s"], seconds, rtol=1e-6)
        played.add(tuple(arm for arm, *_ in live))
    assert len(played) > 6
    cut = [row for row in world.rounds("arm:index=4") if row.drafted_len < LENGTH]
    assert cut  # drafts at the end of the text are shorter, and cheaper


def test_the_traces_own_order_would_be_another_run(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    spellings = ["arm:index=4", "sp2ec"]
    controllers = [world.controllers[name] for name in spellings]
    right = predicted(world.trace, COSTS, controllers, seed=7)
    monkeypatch.setattr(arm_costs, "reversed_arms", lambda meta, chunk: (meta, chunk))
    wrong = predicted(world.trace, COSTS, controllers, seed=7)
    for was, now in zip(right, wrong, strict=True):
        assert abs(now["speedup"] / was["speedup"] - 1) > 0.01


def test_every_decision_is_found_again_in_the_runs_log_and_a_changed_one_is_not(world: World) -> None:
    shape: Any = {"block_len": 1, "max_draft_len": LENGTH, "seed": 7, "compiled": False}
    for spelling, controller in world.controllers.items():
        assert shadow_run(controller, spelling, world.requests, **shape) is None, spelling
    row = next(row for row in world.rounds("sp2ec") if row.round == 6)
    row.arm = (row.arm + 1) % len(NAMES)
    try:
        found = shadow_run(world.controllers["sp2ec"], "sp2ec", world.requests, **shape)
    finally:
        row.arm = (row.arm - 1) % len(NAMES)
    assert found is not None
    assert (found.round, found.column) == (6, "arm")


def test_costs_fitted_to_the_run_are_those_it_had(world: World) -> None:
    model = in_sample_model(world.requests, block_len=1, arms=NAMES, draft_len=LENGTH)
    assert model is not None
    for s in (1, LENGTH + 1):
        assert float(model.verify_s(s, 20)) == pytest.approx(float(COSTS.verify_s(s, 20)), rel=0.02)
    known = arm_seconds(model, where="run")
    assert list(known) == list(NAMES)
    for name, one in known.items():
        # So few contexts are one group, whose median is not at 20 tokens.
        assert one.whole(LENGTH, 20) == pytest.approx(SECONDS[name].whole(LENGTH, 20), rel=0.03)
    seen = measured(world.requests, SOME, seed=7)
    own = predicted(world.trace, model, [world.controllers[name] for name in SOME], seed=7)
    assert max(abs(now["speedup"] / was.speedup - 1) for was, now in zip(seen, own, strict=True)) < 0.05


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


# --- the command -----------------------------------------------------------------------------------------------------


def test_a_validation_of_arms(tiny: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Predicted, and its frozen inputs refused where the arms are other ones."""
    rules = ("sp2ec", "ucbspec:variant=paper", "arm:index=1")
    arms = save_arms(tmp_path, *NAMES)
    drafter = f"--drafter=self:arms={arms},length={LENGTH}"
    assert run(tiny, tmp_path / "run", drafter, controllers=rules) == 0
    document = results(tmp_path / "run")
    assert [row["controller"] for row in document["results"]] == [PLAIN, *rules]
    for row in document["results"]:
        assert row["predicted"] is not None
        assert row["in_sample"] is not None
        assert row["shadow"] is None
    assert [one["name"] for one in document["arms"]["each"]] == list(NAMES)
    assert "an arm was played in 3 requests; needed: 8" in document["arms"]["not_judged"]
    calibration = json.loads((tmp_path / "run" / "calibration.json").read_text())
    assert [one["name"] for one in calibration["provenance"]["arms"]] == list(NAMES)
    capsys.readouterr()
    given = [f"--trace={tmp_path / 'run' / 'trace.parquet'}", f"--calibration={tmp_path / 'run' / 'calibration.json'}"]
    moved = save_arms(tmp_path, *reversed(NAMES), file="moved.json")  # the same arms elsewhere, in another order
    assert (
        run(tiny, tmp_path / "moved", f"--drafter=self:arms={moved},length={LENGTH}", given[0], controllers=rules) == 0
    )
    save_arms(tmp_path, *NAMES[:-1], "0-1")
    for number, message in enumerate(("its arms is ['a0+m1,2', '1', 'm1', 'a1', '']", "was calibrated with drafter")):
        capsys.readouterr()
        assert run(tiny, tmp_path / f"r{number}", drafter, given[number], controllers=rules) == 2
        assert message in capsys.readouterr().err
        assert not (tmp_path / f"r{number}").exists()


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ("build=cossim,arms=2", "arms made while decoding are in no trace"),
        ("arms=FILE,stop=0.5", "record it without stop"),
        ("arms=FILE,tree=published", "record it without tree"),
    ],
)
def test_what_no_trace_can_hold_is_refused_or_left_without_prediction(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], more: str, message: str
) -> None:
    """`real.validate` refuses it; `real.paper` measures it and says why nothing is predicted."""
    (tmp_path / "tiny").mkdir()
    tiny = save_place(tmp_path / "tiny", layers=6)  # the fewest that cosSim takes
    drafter = f"self:{more.replace('FILE', str(tiny / 'arms.json'))}"
    assert run(tiny, tmp_path / "run", f"--drafter={drafter}", controllers=("sp2ec",)) == 2
    assert message in capsys.readouterr().err
    assert not (tmp_path / "run").exists()
    method = {"name": "Self", "drafter": drafter, "max_draft_len": 4, "controllers": {"SP2ec": "sp2ec"}}
    pairs = [{"target": str(tiny / "model"), "methods": [method]}]
    assert real_paper.run(real_paper.config(tiny, pairs=pairs, temperatures=[0]), tmp_path / "paper") == 0
    document = real_paper.results(tmp_path / "paper")
    (why,) = document["not_predicted"]
    assert message in why["why"]
    assert [row["predicted"] for row in document["rows"]] == [None]
    assert document["rows"][0]["shadow"] is None


def test_arms_that_cost_what_a_prompt_makes_of_them_are_not_predicted() -> None:
    class Pruned(Family):
        size = 2

    blocks = blocks_of("llama")
    with pytest.raises(ConfigError, match="what its arms cost depends on the prompt"):
        check_costs(SelfDrafter(blocks, Pruned(), name="pruned", max_draft_len=4))
    check_costs(self_drafter(blocks))


def test_cells_of_arms_are_predicted(tiny: Path, tmp_path: Path) -> None:
    method = {
        "name": "Self",
        "drafter": f"self:arms={tiny / 'arms.json'},length={LENGTH}",
        "max_draft_len": 4,
        "controllers": {"SP2ec": "sp2ec", "EXP3": "exp3spec", "dearest": "arm:index=0"},
    }
    pairs = [{"target": str(tiny / "model"), "methods": [method]}]
    assert real_paper.run(real_paper.config(tiny, pairs=pairs), tmp_path / "run") == 0
    document = real_paper.results(tmp_path / "run")
    assert document["not_predicted"] == []
    assert {(row["temperature"], row["label"]) for row in document["rows"]} == {
        (t, label) for t in (0, 1) for label in method["controllers"]
    }
    assert all(row["predicted"] is not None and row["shadow"] is None for row in document["rows"])
