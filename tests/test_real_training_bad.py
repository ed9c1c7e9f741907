"""Training with settings, folders or files that cannot be used: refused in one line, with nothing lost or written."""

from __future__ import annotations

import inspect
import json
import os
import shutil
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="real/ needs the extra 'real'")

import real.training.drafter_module  # noqa: E402
import real.training.module  # noqa: E402
import real.training.text_data  # noqa: E402
from real.parser import OneLineParser, one_line  # noqa: E402
from real.training.corpus import Document  # noqa: E402
from real.training.dflash_module import DFlashModule  # noqa: E402
from real.training.drafter_data import WrittenTexts  # noqa: E402
from real.training.drafter_module import DrafterModule, SlotLoss  # noqa: E402
from real.training.eagle3_module import Eagle3Module  # noqa: E402
from real.training.fastdllm_module import FastDLLMModule  # noqa: E402
from real.training.keep import Keeper  # noqa: E402
from real.training.language_model import LanguageModel  # noqa: E402
from real.training.mixed_data import MixedText  # noqa: E402
from real.training.ranges import check_ranges  # noqa: E402
from real.training.skip_module import SkipFriendlyModel  # noqa: E402
from real.training.text_data import StdlibText  # noqa: E402
from real.training.texts import shard_path  # noqa: E402
from specsim.errors import ConfigError  # noqa: E402
from tests.real_training import THIRD_PARTY_WARNINGS, curves, interrupted_at, make_texts, train  # noqa: E402

pytestmark = [pytest.mark.filterwarnings(text) for text in THIRD_PARTY_WARNINGS]
CLASSES = (
    *(LanguageModel, SkipFriendlyModel, DFlashModule, Eagle3Module, FastDLLMModule),
    *(StdlibText, MixedText, WrittenTexts, Keeper, SlotLoss),
)
ARGUMENTS = ("block_size=5", "depth=1", "heads=4", "kv_heads=2", "feed_forward=48", "vocabulary=40", "anchors=4")


@pytest.fixture(autouse=True)
def untracked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WANDB_MODE", "disabled")


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A tiny target and texts it wrote."""
    return make_texts(tmp_path_factory.mktemp("bad"))


@pytest.fixture
def fit(place: tuple[Path, Path], tmp_path: Path) -> Callable[..., int]:
    """Four steps of a tiny DFlash drafter into `tmp_path/out`, without checks unless they are asked for."""

    def call(*more: str) -> int:
        return train(
            "--model=real.training.dflash_module.DFlashModule",
            f"--model.target={place[0]}",
            *(f"--model.{text}" for text in ARGUMENTS),
            "--model.warmup_steps=1",
            "--data=real.training.drafter_data.WrittenTexts",
            *(f"--data.folder={place[1]}", "--data.batch=4", "--data.shortest=2"),
            *(f"--keep.out={tmp_path / 'out'}", "--keep.every=2", "--keep.log_every=1"),
            *("--trainer.max_steps=4", "--trainer.limit_val_batches=0", *more),
        )

    return call


@pytest.fixture
def unloaded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Loading a target is a failure of the test."""
    monkeypatch.setattr(real.training.drafter_module, "load_text_target", None)


def held(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


# --- settings ----------------------------------------------------------------------------------------------------


def numbers_of(kind: type) -> list[str]:
    """Names of the arguments of a class that are numbers."""
    given = inspect.signature(kind).parameters
    return [name for name, one in given.items() if str(one.annotation).split(" |")[0] in ("int", "float")]


@pytest.mark.parametrize(
    ("kind", "name"), [(kind, name) for kind in CLASSES for name in numbers_of(kind)], ids=lambda one: str(one)
)
def test_every_number_has_a_range(kind: Any, name: str) -> None:
    assert numbers_of(kind)
    for value in (-1, float("nan"), float("inf")):
        with pytest.raises(ConfigError, match=rf"{name}={value}: allowed is "):
            check_ranges("", kind.ALLOWED, {name: value})
    default = inspect.signature(kind).parameters[name].default
    check_ranges("", kind.ALLOWED, {name: default})


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("keep.every=0", "keep.every=0: allowed is an integer >= 1"),
        ("keep.log_every=-3", "keep.log_every=-3: allowed is an integer >= 1"),
        ("keep.wandb=sometimes", "keep.wandb=sometimes: allowed is online or offline"),
        ("data.batch=0", "data.batch=0: allowed is an integer >= 1"),
        ("model.muon_lr=.nan", "model.muon_lr=nan: allowed is a finite number in (0, 1]"),
        ("model.adam_lr=0", "model.adam_lr=0"),
        ("model.block_size=1", "model.block_size=1: allowed is an integer >= 2"),
        ("model.kv_heads=3", "model.kv_heads=3: allowed is a divisor of model.heads, 4"),
        ("model.loss.soft=2", "model.loss.soft=2"),
        ("threads=0", "threads=0: allowed is an integer in [1, 1024]"),
        ("seed_everything=-1", "seed_everything=-1"),
        ("trainer.max_steps=0", "trainer.max_steps=0: allowed is an integer >= 1"),
        ("trainer.accumulate_grad_batches=2", "trainer.accumulate_grad_batches=2: allowed is 1"),
        ("trainer.devices=2", "trainer.devices=2: allowed is 1 or auto"),
        ("trainer.fast_dev_run=true", "trainer.fast_dev_run=True: allowed is False"),
        ("trainer.accelerator=tpu", "trainer: "),
        ("trainer.accelerator=abacus", "trainer: "),
        ("trainer.precision=3-bit", "trainer.precision"),
        ("trainer.max_step=3", "--trainer.max_step=3"),
        ("data.batch=many", "data.batch: allowed: int; found many"),
        ("data.bath=3", "data: Option 'bath' is not accepted"),
        ("model.loss.lam=x", "model.loss.lam: allowed: float; found x"),
        ("nothing=3", "--nothing=3"),
        ("config=nowhere.yaml", "nowhere.yaml"),
        ("model=real.training.keep.Keeper", "real.training.keep.Keeper"),
    ],
)
def test_settings_are_refused_before_the_target_is_loaded(
    fit: Callable[..., int],
    unloaded: None,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    setting: str,
    message: str,
) -> None:
    assert fit(f"--{setting}") == 2
    error = capsys.readouterr().err
    errors = [line for line in error.splitlines() if line.startswith("error: ")]
    assert len(errors) == 1
    assert message in errors[0]
    assert error.splitlines()[-1] == errors[0]
    assert not (tmp_path / "out").exists()


def test_what_only_the_target_tells_is_refused_too(
    fit: Callable[..., int], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for setting, message in (
        ("model.heads=6", "model.heads=6: allowed is a divisor of 16, half of the hidden size 32"),
        ("model.layers=[0,9]", "model.layers=[0, 9]: allowed are layers of the target, 0..3"),
        ("model.layers=[]", "at least one"),
        ("data.checks=0", "data.checks=0"),
    ):
        assert fit(f"--{setting}", "--model.kv_heads=1") == 2
        assert message in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_texts_of_another_target_are_refused(
    fit: Callable[..., int], tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(real.training.drafter_module, "logits_width", lambda model: 10)
    assert fit() == 2
    assert "another target wrote these texts" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_no_texts_to_check_by_are_refused_unless_nothing_is_checked(
    fit: Callable[..., int], place: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    texts = tmp_path / "texts"
    texts.mkdir()
    shutil.copy(shard_path(place[1], 0), texts)
    assert fit(f"--data.folder={texts}", "--trainer.limit_val_batches=1") == 2
    assert "no greedy text begun with held-out files" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()
    assert fit(f"--data.folder={texts}") == 0


def test_a_language_model_that_does_not_fit_its_data_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    text = "def add(first, second):\n    return first + second\n" * 20
    documents = [Document(f"f{number}.py", text) for number in range(40)]
    assert any(document.held_out for document in documents)
    monkeypatch.setattr(real.training.text_data, "stdlib_documents", lambda: documents)
    sizes = ("--model.layers=1", "--model.hidden=16", "--model.heads=2", "--model.kv_heads=1", "--model.window=32")
    for vocabulary, length, message in (
        (280, 33, "data.length=33: allowed is up to model.window, 32"),
        (257, 16, "model.vocabulary=257: allowed is data.vocabulary, 280, or more"),
    ):
        status = train(
            "--model=real.training.language_model.LanguageModel",
            *(*sizes, f"--model.vocabulary={vocabulary}"),
            "--data=real.training.text_data.StdlibText",
            *("--data.vocabulary=280", f"--data.length={length}", "--data.batch=1"),
            f"--keep.out={tmp_path / 'out'}",
        )
        assert status == 2
        assert message in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("apart", [True, False])
def test_a_configuration_that_is_no_text_is_named(tmp_path: Path, apart: bool) -> None:
    file = tmp_path / "binary.yaml"
    file.write_bytes(b"\xa6\xff\x00")
    parser = OneLineParser()
    parser.add_argument("--config", action="config")
    with pytest.raises(ConfigError, match=r"binary\.yaml: not a text file in UTF-8"):
        parser.parse_args(["--config", str(file)] if apart else [f"--config={file}"])


def test_one_line_of_a_tree_of_attempts() -> None:
    tree = """Parser key "model":
  Does not validate against any of the Union subtypes
  Subtypes: [<class 'a.B'>, <class 'NoneType'>]
  Errors:
    - Problem with given class_path 'a.B':
        Parser key "layers":
          Does not validate against any of the Union subtypes
          Errors:
            - Expected a <class 'list'>
            - Expected a <class 'NoneType'>
          Given value type: <class 'str'>
          Given value: foo
    - Expected a <class 'NoneType'>
  Given value: NestedArg(key='layers', val='foo')"""
    assert one_line(tree) == "model.layers: allowed: list; found foo"


# --- runs --------------------------------------------------------------------------------------------------------


def test_a_loss_that_is_not_finite_stops_the_training(
    fit: Callable[..., int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The last good checkpoint is kept, and no result is written."""
    out, loss, kept = tmp_path / "out", DrafterModule.slot_loss, {}

    def spoilt(self: DrafterModule, *args: Any) -> Any:
        if self.global_step == 2:
            kept.update(held(out))
        return loss(self, *args) * (float("nan") if self.global_step >= 2 else 1.0)

    monkeypatch.setattr(DrafterModule, "slot_loss", spoilt)
    assert fit() == 2
    assert "step 3: the loss is nan; the last checkpoint is kept, no result is written" in capsys.readouterr().err
    assert "last.ckpt" in kept
    assert held(out) == kept


def test_weights_that_are_not_finite_are_not_kept(
    fit: Callable[..., int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Though the loss, from before the step, is."""
    monkeypatch.setattr(real.training.module, "rate", lambda *_, **__: float("inf"))
    assert fit("--trainer.max_steps=1") == 2
    assert "weights are no longer finite; nothing was kept" in capsys.readouterr().err
    assert held(tmp_path / "out") == {}


def test_a_training_cut_short_writes_no_result(
    fit: Callable[..., int], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert fit("--trainer.limit_train_batches=0") == 2
    assert "0 of trainer.max_steps=4 steps" in capsys.readouterr().err
    assert not (tmp_path / "out" / "result").exists()


@pytest.fixture
def begun(fit: Callable[..., int], tmp_path: Path) -> Path:
    """A finished run's folder."""
    assert fit() == 0
    return tmp_path / "out"


def test_force_throws_nothing_away_before_all_is_in_order(
    fit: Callable[..., int], begun: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = held(begun)
    for more in (
        ["--model.heads=6", "--model.kv_heads=1"],
        ["--model.vocabulary=99"],
        ["--model.target=nowhere/at/all"],
        ["--data.batch=40"],
        [f"--data.folder={tmp_path / 'nothing'}"],
        ["--keep.every=0"],
        [f"--keep.result={tmp_path}"],
    ):
        assert fit("--keep.force=true", *more) == 2
        assert held(begun) == before
    capsys.readouterr()
    assert fit("--keep.force=true", "--model.muon_lr=0.01") == 0
    assert held(begun)["settings.json"] != before["settings.json"]
    assert len(curves(begun)) == 4


def _foreign(path: Path) -> None:
    torch.save({"weights": torch.ones(3)}, path)


def _other_shape(path: Path) -> None:
    found = torch.load(path, weights_only=True)
    name = next(iter(found["state_dict"]))
    found["state_dict"][name] = torch.ones(3, 3)
    torch.save(found, path)


def _code(path: Path) -> None:
    torch.save({"state_dict": Touch(path.parent / "touched")}, path)


class Touch:
    """Makes a file when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self.path),)


CHECKPOINTS: dict[str, Callable[[Path], Any]] = {
    "empty": lambda path: path.write_bytes(b""),
    "truncated": lambda path: path.write_bytes(path.read_bytes()[:1000]),
    "text": lambda path: path.write_text("mine"),
    "foreign": _foreign,
    "another shape": _other_shape,
    "code": _code,
    "without settings": lambda path: (path.parent / "settings.json").unlink(),
    "list of settings": lambda path: (path.parent / "settings.json").write_text("[]"),
    "broken settings": lambda path: (path.parent / "settings.json").write_text("{"),
    "wrong settings": lambda path: (path.parent / "settings.json").write_text(json.dumps({"model": 3, "data": []})),
}


def test_damaged_run_folders_are_refused(
    fit: Callable[..., int], begun: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    good = held(begun)
    for kind, damage in CHECKPOINTS.items():
        damage(begun / "last.ckpt")
        damaged = held(begun)
        assert fit() == 2, kind
        error = capsys.readouterr().err.splitlines()[-1]
        assert error.startswith(f"error: {begun}"), kind
        assert "choose another keep.out, or add --keep.force true" in error, kind
        assert held(begun) == damaged, kind
        assert not (begun / "touched").exists()
        for name in ("last.ckpt", "settings.json"):
            (begun / name).write_bytes(good[name])
    (begun / "last.ckpt").write_bytes(b"")
    assert fit("--keep.force=true") == 0


def test_a_signal_interrupts_and_the_training_goes_on(fit: Callable[..., int], tmp_path: Path) -> None:
    with interrupted_at(3, by=lambda: os.kill(os.getpid(), signal.SIGINT)):
        assert fit() == 130
    assert sorted(held(tmp_path / "out")) == ["curves.jsonl", "last.ckpt", "settings.json"]
    assert fit() == 0
    assert [row["step"] for row in curves(tmp_path / "out")] == [1, 2, 3, 4]
