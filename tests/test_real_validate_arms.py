"""Predictions for drafters of several arms: the order and the prices of a live run, by hand and against live rounds."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console

torch = pytest.importorskip("torch", reason="real/ needs the extra 'real'")

from real import arm_costs, recordings  # noqa: E402
from real.arm_costs import ArmSeconds, arm_seconds, live_view  # noqa: E402
from real.builders.arm import Arm, ArmFile  # noqa: E402
from real.compare import in_sample_model, measured  # noqa: E402
from real.data import encode, load_prompts  # noqa: E402
from real.drafters.choose import parse_drafter  # noqa: E402
from real.drafters.family import Family  # noqa: E402
from real.drafters.selfspec import SelfDrafter  # noqa: E402
from real.foretold import foretell  # noqa: E402
from real.interleave import PLAIN, Comparison  # noqa: E402
from real.loop import Round, Settings  # noqa: E402
from real.session import open_session  # noqa: E402
from real.shadow import shadow_run  # noqa: E402
from real.validation import check_costs  # noqa: E402
from specsim.engine import replay  # noqa: E402
from specsim.errors import ConfigError  # noqa: E402
from specsim.latency import LatencyModel, Table  # noqa: E402
from specsim.trace import read_trace  # noqa: E402
from tests import real_paper  # noqa: E402
from tests.real_selfspec import LIVE, blocks_of, self_drafter  # noqa: E402
from tests.real_tiny import save_tiny  # noqa: E402
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
    ahead = foretell(world.trace, COSTS, [world.controllers[name] for name in SOME], seed=7)
    for name, was, now in zip(SOME, seen, ahead, strict=True):
        assert now.speedup == pytest.approx(was.speedup, rel=1e-6), name
        assert now.sd == 0.0, name
        assert (now.tokens, now.rounds) == (was.tokens, was.rounds), name
        assert now.time_s.sum() == pytest.approx(was.decode_s, rel=1e-6), name
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
    right = foretell(world.trace, COSTS, controllers, seed=7)
    monkeypatch.setattr(arm_costs, "reversed_arms", lambda meta, chunk: (meta, chunk))
    wrong = foretell(world.trace, COSTS, controllers, seed=7)
    for was, now in zip(right, wrong, strict=True):
        assert abs(now.speedup / was.speedup - 1) > 0.01


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
    own = foretell(world.trace, model, [world.controllers[name] for name in SOME], seed=7)
    assert max(abs(now.speedup / was.speedup - 1) for was, now in zip(seen, own, strict=True)) < 0.05


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
        ("build=swift,arms=2", "arms made while decoding are in no trace"),
        ("build=knapspec,arms=2,latency=2e-4,1e-7,1e-4", "arms made while decoding are in no trace"),
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
