"""Training a target on for self-speculation: arms of a step, data, what a check measures, and whole runs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

torch = pytest.importorskip("torch", reason="real/ needs the extra 'real'")

import real.training.skip_module  # noqa: E402
from real.builders.arm import Arm  # noqa: E402
from real.drafters.selfspec import make_selfspec  # noqa: E402
from real.drafters.subblocks import SubBlocks  # noqa: E402
from real.loop import Settings, decode  # noqa: E402
from real.models import load_target  # noqa: E402
from real.target import Target, hidden_states  # noqa: E402
from real.training.mixed_data import MixedText  # noqa: E402
from real.training.skip_arms import first_out  # noqa: E402
from real.training.skip_checks import cossim_arms, followed, run_lengths  # noqa: E402
from real.training.skip_module import SkipFriendlyModel  # noqa: E402
from real.training.texts import Text, read_texts  # noqa: E402
from specsim.online import OnlineController  # noqa: E402
from tests.conftest import ROOT  # noqa: E402
from tests.real_law import controller_of  # noqa: E402
from tests.real_selfspec import HALVED, blocks_of  # noqa: E402
from tests.real_tiny import tiny_llama  # noqa: E402
from tests.real_training import THIRD_PARTY_WARNINGS, curves, interrupted_at, make_texts, train  # noqa: E402

pytestmark = [pytest.mark.filterwarnings(text) for text in THIRD_PARTY_WARNINGS]
LAYERS = 8
EXIT, GAP = "3-7", "2-5"
Fit = Callable[..., int]


@pytest.fixture(autouse=True)
def untracked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WANDB_MODE", "disabled")


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A tiny target and texts it wrote."""
    return make_texts(tmp_path_factory.mktemp("skip"), layers=LAYERS)


def fit(place: tuple[Path, Path], out: Path, *more: str) -> int:
    """A few steps of the shipped configuration on the tiny target."""
    return train(
        *("--config", str(ROOT / "real" / "configs" / "train" / "lab_skip.yaml"), f"--model.start={place[0]}"),
        *("--model.exits=[2,3,5]", f"--model.check_arms=['{EXIT}','{GAP}']", "--model.check_removed=[1,3]"),
        *("--model.checks=3", "--model.warmup_steps=1"),
        *(f"--data.target={place[0]}", f"--data.folder={place[1]}", "--data.length=32", "--data.files=2"),
        *("--data.batch=2", "--data.own=2", "--data.validation_windows=6", "--trainer.precision=32-true"),
        *(f"--keep.out={out}", "--keep.every=2", "--keep.log_every=1"),
        *("--trainer.max_steps=6", "--trainer.val_check_interval=3", *more),
    )


@pytest.fixture(scope="module")
def finished(place: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that was never interrupted."""
    out = tmp_path_factory.mktemp("finished") / "out"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("WANDB_MODE", "disabled")
        assert fit(place, out) == 0
    return out


@pytest.fixture
def module(place: tuple[Path, Path]) -> Callable[..., SkipFriendlyModel]:
    return lambda **options: SkipFriendlyModel(str(place[0]), **options)


def own_texts(model: Any, *, length: int = 40, count: int = 3) -> list[Text]:
    """What a model writes greedily, by whole passes."""
    texts = []
    for seed in range(count):
        ids = np.random.default_rng(seed).integers(3, 60, size=8).tolist()
        while len(ids) < length:
            ids.append(int(model(input_ids=torch.tensor([ids]), use_cache=False).logits[0, -1].argmax()))
        texts.append(Text(tokens=np.array(ids, np.int32), prompt_len=8, greedy=True, held_out=True))
    return texts


# --- arms of a step ----------------------------------------------------------------------------------------------


def test_arms_are_a_pure_function_of_seed_and_step(module: Callable[..., SkipFriendlyModel]) -> None:
    one, two, other = module(), module(), module(seed=1)
    found = [one.arms.draw(step) for step in range(40)]
    assert found == [two.arms.draw(step) for step in reversed(range(40))][::-1]
    assert found != [other.arms.draw(step) for step in range(40)]


def test_arms_have_the_shapes_that_are_asked_for(module: Callable[..., SkipFriendlyModel]) -> None:
    made = module(exits=[2, 5], tail=0.5, layer_dropout=1.0, sub_block_dropout=0.0)
    drawn = [made.arms.draw(step) for step in range(200)]
    assert {str(exits) for exits, _ in drawn} == {"2-5", "2-7", "5", "5-7"}
    for _, skip in drawn:
        assert skip.attention == skip.mlp <= frozenset(range(2, 6))
        assert 5 in skip.mlp  # the rate of the last one that may be left out is the highest: 1
    shares = np.mean([[layer in skip.mlp for layer in range(2, 6)] for _, skip in drawn], axis=0)
    assert shares == pytest.approx([0.25, 0.5, 0.75, 1.0], abs=0.1)
    assert {str(exits) for exits, _ in map(module(exits=[2], tail=0.0).arms.draw, range(9))} == {"2-7"}


def test_halves_are_left_out_by_themselves(module: Callable[..., SkipFriendlyModel]) -> None:
    made = module(layer_dropout=0.0, sub_block_dropout=1.0)
    halves = [made.arms.draw(step)[1] for step in range(50)]
    assert any(arm.attention - arm.mlp for arm in halves)
    assert any(arm.mlp - arm.attention for arm in halves)
    assert str(module(layer_dropout=0.0, sub_block_dropout=0.0).arms.draw(0)[1]) == "5"  # never nothing


@pytest.mark.parametrize("name", HALVED)
@pytest.mark.parametrize("text", ["1,2", "1", "a1+m2", "m1+a2"])
def test_an_arm_goes_on_from_the_whole_models_pass(name: str, text: str) -> None:
    blocks, arm = blocks_of(name), Arm.parse(text)
    ids, first = torch.arange(3, 33)[None], first_out(Arm.parse(text))
    with torch.no_grad(), hidden_states(blocks.target, [first - 1]) as states:
        blocks.target(input_ids=ids, use_cache=False)
        found = blocks.model(arm, first)(inputs_embeds=states[first - 1], use_cache=False).logits
        wanted = blocks.model(arm)(input_ids=ids, use_cache=False).logits
    torch.testing.assert_close(found, wanted)


# --- data --------------------------------------------------------------------------------------------------------


def test_a_batch_is_sources_and_then_the_targets_own(place: tuple[Path, Path]) -> None:
    options = {"length": 16, "batch": 2, "validation_windows": 3, "files": 2}
    both, sources = MixedText(str(place[0]), str(place[1]), own=3, **options), MixedText(str(place[0]), **options)
    for data in (both, sources):
        data.setup("fit")
    written = np.concatenate([text.tokens for text in read_texts(place[1]) if not text.held_out])
    spans = {tuple(written[at : at + 17]) for at in range(len(written) - 16)}
    for step in (0, 7, 3):
        rows = both._training_batch(step)
        assert torch.equal(rows[:2], sources._training_batch(step))
        assert len(rows) == 5
        assert all(tuple(row) in spans for row in rows[2:].tolist())
    assert "3 of 5 windows of a step from 12 texts" in both.about


# --- checks ------------------------------------------------------------------------------------------------------


@given(st.lists(st.booleans(), min_size=1, max_size=20), st.integers(1, 5))
def test_run_lengths_count_up_to_the_first_gap(same: list[bool], most: int) -> None:
    naive = []
    for at in range(len(same)):
        tail = same[at : at + most]
        naive.append(tail.index(False) if False in tail else len(tail))
    assert run_lengths(np.array(same), most).tolist() == naive


def test_the_check_of_an_exit_is_what_a_decode_does(place: tuple[Path, Path]) -> None:
    """Tokens per round are those of the decode loop on the same texts."""
    loaded = load_target(str(place[0]), device="cpu")
    texts, exits = own_texts(loaded.model), "6,7"
    drafter = make_selfspec({"skip": exits}, loaded, max_draft_len=4, sampling="greedy", merge_prompt=False)
    emitted = rounds = 0
    for text in texts:
        prompt, wanted = torch.from_numpy(text.tokens[: text.prompt_len]).long(), len(text.tokens) - text.prompt_len
        online = OnlineController(controller_of("static:length=4", drafter), compiled=False)
        found = decode(Target(loaded.model), drafter, online, prompt, Settings(max_new_tokens=wanted))
        assert found.output == text.tokens[text.prompt_len :].tolist()
        emitted, rounds = emitted + wanted, rounds + len(found.rounds)
    with torch.no_grad():
        metrics = followed(SubBlocks(loaded.model), {"exit": Arm.parse(exits), "whole": Arm()}, texts)
    assert metrics["tau_exit"] == emitted / rounds > 1.05
    assert metrics["agree_whole"] == 1.0
    assert 0.0 < metrics["agree_exit"] < 1.0


def test_cossim_removes_the_blocks_that_change_least() -> None:
    model = tiny_llama(layers=LAYERS)
    for number, size in ((4, 0.0), (2, 1e-3), (5, 1e-2)):
        for half in (model.model.layers[number].self_attn.o_proj, model.model.layers[number].mlp.down_proj):
            half.weight.data.mul_(size)
    with torch.no_grad():
        found = cossim_arms(SubBlocks(model), [1, 3], own_texts(model))
        assert found == {"cossim1": Arm.blocks([4]), "cossim3": Arm.blocks([2, 4, 5])}
        assert cossim_arms(SubBlocks(model), [], []) == {}


# --- runs --------------------------------------------------------------------------------------------------------


def test_the_shipped_configuration_runs_and_its_result_loads(finished: Path, place: tuple[Path, Path]) -> None:
    rows = curves(finished)
    assert all({"train/loss", "train/exit", "train/skip"} <= row.keys() for row in rows if "train/rate" in row)
    checks = [row for row in rows if "val/loss" in row]
    assert len(checks) == 2
    for name in (EXIT, GAP, "cossim1", "cossim3"):
        assert all(0.0 <= row[f"val/agree_{name}"] <= 1.0 and 1.0 <= row[f"val/tau_{name}"] <= 5.0 for row in checks)
    loaded = load_target(str(finished / "result"), device="cpu")
    start = load_target(str(place[0]), device="cpu")
    assert loaded.stop_ids == start.stop_ids
    assert loaded.tokenizer.get_vocab() == start.tokenizer.get_vocab()
    card = (finished / "result" / "README.md").read_text()
    assert f"start: {place[0]}" in card
    assert "2 of 4 windows of a step from 12 texts" in card


def test_training_brings_the_arms_nearer(place: tuple[Path, Path], tmp_path: Path) -> None:
    more = ("--model.checks=0", "--trainer.max_steps=40", "--trainer.val_check_interval=40")
    assert fit(place, tmp_path / "out", *more) == 0
    rows = [row for row in curves(tmp_path / "out") if "train/rate" in row]
    for name in ("train/exit", "train/skip"):
        losses = [row[name] for row in rows]
        assert np.mean(losses[-8:]) < 0.85 * np.mean(losses[:8])


@pytest.mark.parametrize("stop", [3, 5])
def test_an_interrupted_run_goes_on_bit_for_bit(
    finished: Path, place: tuple[Path, Path], tmp_path: Path, stop: int
) -> None:
    out = tmp_path / "out"
    with interrupted_at(stop):
        assert fit(place, out) == 130
    assert fit(place, out) == 0
    assert curves(out) == curves(finished)
    for name in ("model.safetensors", "tokenizer.json"):
        assert (out / "result" / name).read_bytes() == (finished / "result" / name).read_bytes()


# --- refusals ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("model.tail=2", "model.tail=2"),
        ("model.check_arms=['3-x']", "model.check_arms: layers '3-x'"),
        ("data.own=-1", "data.own=-1"),
    ],
)
def test_settings_are_refused_before_the_start_is_loaded(
    place: tuple[Path, Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    setting: str,
    message: str,
) -> None:
    monkeypatch.setattr(real.training.skip_module, "load_text_target", None)
    assert fit(place, tmp_path / "out", f"--{setting}") == 2
    assert message in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("model.ends=4", "model.ends=4: allowed is less than half of the target's 8 layers"),
        ("model.exits=[8]", "model.exits=[8]: allowed are numbers of layers, 1..7"),
        ("model.exits=[]", "at least one"),
        ("model.check_arms=['3-9']", "no layer 8"),
        ("model.check_removed=[5]", "model.check_removed=[5]: allowed are 1..4"),
        ("data.length=300", "data.length=300: allowed is up to the window"),
        ("data.target=smaller", "allowed is a target with the tokenizer of model.start"),
        ("data.batch=1", "data.batch=1: allowed is 2 or more rows with data.own"),
        ("data.folder=null", "data.own=2: name the target's texts in data.folder"),
        ("data.own=400", "make more texts, or use a smaller data.own"),
    ],
)
def test_what_only_start_and_data_tell_is_refused_too(
    place: tuple[Path, Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    setting: str,
    message: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    if setting == "data.target=smaller":
        make_smaller(place[0], tmp_path / "smaller")
    more = ("--data.own=0",) if setting in ("data.batch=1", "data.length=300") else ()
    assert fit(place, tmp_path / "out", f"--{setting}", *more) == 2
    assert message in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_texts_of_another_target_are_refused(
    place: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(real.training.skip_module, "logits_width", lambda model: 10)
    assert fit(place, tmp_path / "out") == 2
    assert "another target wrote these texts" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def make_smaller(target: Path, folder: Path) -> None:
    """A copy of a target's tokenizer with a token of another name."""
    folder.mkdir()
    for file in target.glob("tokenizer*"):
        (folder / file.name).write_text(file.read_text().replace('"%"', '"$"'))
    (folder / "config.json").write_text((target / "config.json").read_text())


def test_other_data_is_refused(place: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = ROOT / "real" / "configs" / "train" / "lab_skip.yaml"
    data = ("--data=real.training.drafter_data.WrittenTexts", f"--data.folder={place[1]}")
    more = (f"--model.start={place[0]}", "--model.exits=[2]", "--model.check_arms=[]", "--model.check_removed=[]")
    assert train("--config", str(config), *more, *data, f"--keep.out={tmp_path / 'out'}") == 2
    assert "trained on real.training." in capsys.readouterr().err
