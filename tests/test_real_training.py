"""Training in general: corpus, order, optimizer, runs that go on after an interruption, and a small target."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

torch = pytest.importorskip("torch", reason="real/ needs the extra 'real'")

from real.models import load_target  # noqa: E402
from real.training.corpus import Document, is_held_out, stdlib_documents  # noqa: E402
from real.training.keep import Keeper  # noqa: E402
from real.training.optimizer import MuonAdamW, orthogonalize, rate  # noqa: E402
from real.training.tokenizer import train_tokenizer  # noqa: E402
from real.training.windows import Windows  # noqa: E402
from specsim.errors import ConfigError  # noqa: E402
from tests.conftest import ROOT  # noqa: E402
from tests.real_training import THIRD_PARTY_WARNINGS, curves, interrupted_at, train  # noqa: E402
from tests.wandb_file import read_all  # noqa: E402

pytestmark = [pytest.mark.filterwarnings(text) for text in THIRD_PARTY_WARNINGS]
TINY = [
    *("--config", str(ROOT / "real" / "configs" / "train" / "lab_target.yaml")),
    *("--model.layers", "2", "--model.hidden", "32", "--model.heads", "2", "--model.kv_heads", "1"),
    *("--model.feed_forward", "48", "--model.vocabulary", "300", "--model.window", "32", "--model.warmup_steps", "1"),
    *("--data.vocabulary", "300", "--data.length", "16", "--data.batch", "2", "--data.validation_windows", "3"),
    *("--data.files", "2", "--trainer.max_steps", "8", "--trainer.val_check_interval", "4"),
    *("--keep.every", "2", "--keep.log_every", "1"),
]


def tiny(out: Path, *more: str) -> int:
    return train(*TINY, "--keep.out", str(out), "--keep.result", str(out / "result"), *more)


@pytest.fixture(autouse=True)
def untracked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WANDB_MODE", "disabled")


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that was never interrupted."""
    out = tmp_path_factory.mktemp("training") / "out"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("WANDB_MODE", "disabled")
        assert tiny(out) == 0
    return out


# --- data --------------------------------------------------------------------------------------------------------


def test_whole_files_are_held_out_by_name() -> None:
    documents = stdlib_documents()
    held_out = {document.name for document in documents if document.held_out}
    assert 0 < len(held_out) < len(documents) / 8
    assert {"argparse.py", "json/decoder.py"} <= {document.name for document in documents}
    assert not any(part in ("test", "tests") for document in documents for part in document.name.split("/"))
    # The same name, whatever stands in the file and whatever other files there are.
    assert all(Document(name, "").held_out for name in held_out)
    assert not is_held_out("argparse.py")


def test_a_library_without_sources_is_refused(tmp_path: Path) -> None:
    (tmp_path / "one.py").write_text("x = 1\n")
    with pytest.raises(ConfigError, match="no Python sources"):
        stdlib_documents(tmp_path)


@given(st.text(max_size=60))
def test_the_tokenizer_loses_nothing(text: str) -> None:
    tokenizer = train_tokenizer(["def f(x):\n    return x\n" * 3], 280, 64)
    assert tokenizer.decode(tokenizer(text)["input_ids"]) == text
    assert tokenizer.eos_token_id == 0


@given(st.integers(40, 400), st.integers(2, 9), st.integers(1, 4), st.lists(st.integers(0, 40), min_size=1), st.data())
def test_a_steps_windows_are_a_pure_function_of_it(
    size: int, length: int, batch: int, steps: list[int], data: st.DataObject
) -> None:
    stream = np.arange(size)
    windows, seed = [], data.draw(st.integers(0, 3))
    if (size - length) // length < batch:
        with pytest.raises(ValueError, match="less than one batch"):
            Windows(stream, length, batch, seed)
        return
    once = Windows(stream, length, batch, seed)
    for step in steps:
        found = Windows(stream, length, batch, seed).batch(step)
        assert np.array_equal(found, once.batch(step))
        assert found.shape == (batch, length + 1)
        assert (np.diff(found, axis=1) == 1).all()
    epoch = steps[0] * once.per_epoch
    windows = np.concatenate([once.batch(epoch + place)[:, :-1] for place in range(once.per_epoch)])
    assert len(np.unique(windows)) == windows.size  # nothing twice in an epoch


# --- optimizer ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", [(3, 16, 16), (2, 24, 8), (2, 8, 24)])
def test_orthogonalized_matrices_have_singular_values_near_one(shape: tuple[int, ...]) -> None:
    found = orthogonalize(torch.randn(shape, generator=torch.Generator().manual_seed(0))).float()
    values = torch.linalg.svdvals(found)
    assert found.shape == shape
    assert 0.3 < values.min() <= values.max() < 1.4


def test_other_parameters_get_torchs_adamw() -> None:
    generator = torch.Generator().manual_seed(0)
    start = torch.randn(5, 3, generator=generator)
    ours, theirs = (torch.nn.Parameter(start.clone()) for _ in range(2))
    one = MuonAdamW([{"params": [ours], "kind": "adamw", "lr": 0.01}])
    two = torch.optim.AdamW([theirs], lr=0.01, betas=(0.9, 0.95), weight_decay=0.0)
    for _ in range(5):
        gradient = torch.randn(5, 3, generator=generator)
        for parameter, optimizer in ((ours, one), (theirs, two)):
            parameter.grad = gradient.clone()
            optimizer.step()
    torch.testing.assert_close(ours, theirs)


def test_muon_steps_are_those_of_torch() -> None:
    generator = torch.Generator().manual_seed(0)
    start = torch.randn(12, 6, generator=generator)
    ours, theirs = (torch.nn.Parameter(start.clone()) for _ in range(2))
    one = MuonAdamW([{"params": [ours], "kind": "muon", "lr": 0.02}])
    two = torch.optim.Muon([theirs], lr=0.02, weight_decay=0.0)
    for _ in range(3):
        gradient = torch.randn(12, 6, generator=generator)
        for parameter, optimizer in ((ours, one), (theirs, two)):
            parameter.grad = gradient.clone()
            optimizer.step()
    moved = theirs.detach() - start
    torch.testing.assert_close(ours.detach() - start, moved, atol=0.02 * float(moved.abs().max()), rtol=0.05)


def test_the_rate_rises_and_falls_to_nothing() -> None:
    rates = [rate(step, warmup=4, total=20) for step in range(21)]
    assert rates[:4] == [0.25, 0.5, 0.75, 1.0]
    assert rates[4:] == sorted(rates[4:], reverse=True)
    assert rates[20] == pytest.approx(0)


# --- runs --------------------------------------------------------------------------------------------------------


def test_a_small_target_is_trained_and_loads(finished: Path) -> None:
    loaded = load_target(str(finished / "result"), device="cpu")
    assert loaded.stop_ids == (0,)
    ids = loaded.tokenizer("def add(a, b):", return_tensors="pt")["input_ids"]
    assert loaded.model(input_ids=ids).logits.shape[-1] == 300
    checks = [row["val/loss"] for row in curves(finished) if "val/loss" in row]
    assert len(checks) == 2
    assert checks[1] < checks[0] < np.log(300) + 0.1
    card = (finished / "result" / "README.md").read_text()
    assert "python -m real.train fit" in card
    assert f"val/loss {checks[1]:.4g}" in card


@pytest.mark.parametrize("stop", [5, 7])
def test_an_interrupted_run_goes_on_bit_for_bit(finished: Path, tmp_path: Path, stop: int) -> None:
    out = tmp_path / "out"
    with interrupted_at(stop):
        assert tiny(out) == 130
    assert not (out / "result").exists()
    assert tiny(out) == 0
    assert curves(out) == curves(finished)
    for name in ("model.safetensors", "tokenizer.json"):
        assert (out / "result" / name).read_bytes() == (finished / "result" / name).read_bytes()
    one, two = (torch.load(folder / "last.ckpt", weights_only=False) for folder in (out, finished))
    for key, state in one["optimizer_states"][0]["state"].items():
        for name, value in state.items():
            assert torch.equal(value, two["optimizer_states"][0]["state"][key][name])


def test_a_finished_run_only_writes_its_result_again(finished: Path) -> None:
    before = curves(finished), (finished / "result" / "model.safetensors").read_bytes()
    assert tiny(finished) == 0
    assert (curves(finished), (finished / "result" / "model.safetensors").read_bytes()) == before


def test_other_settings_do_not_go_on_with_it(finished: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert tiny(finished, "--model.muon_lr", "0.01") == 2
    assert "model" in capsys.readouterr().err
    assert tiny(finished, "--trainer.max_steps", "9") == 2
    assert "--keep.force true" in capsys.readouterr().err


def test_too_long_windows_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert tiny(tmp_path / "out", "--data.batch", "100000") == 2
    assert "smaller batch" in capsys.readouterr().err


def test_curves_are_tracked_offline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WANDB_MODE", "offline")
    out = tmp_path / "out"
    assert tiny(out) == 0
    (tracked,) = read_all(out)
    rows = [{key: value for key, value in row.items() if not key.startswith("_")} for row in tracked.history]
    assert rows == curves(out)
    assert tracked.summary["val/loss"] == curves(out)[-1]["val/loss"]
    assert tracked.exit_code == 0
    ((kind, files),) = tracked.artifacts
    assert kind == "model"
    assert "model.safetensors" in files


def test_a_result_replaces_only_what_a_training_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    mine = tmp_path / "mine"
    mine.mkdir()
    (mine / "thesis.txt").write_text("years of work")
    (tmp_path / "file").write_text("")
    earlier = tmp_path / "earlier"
    earlier.mkdir()
    for name in ("README.md", "config.json", "model.safetensors"):
        (earlier / name).write_text("")
    assert Keeper("out", result=str(earlier)).open() is None
    (earlier / "notes.txt").write_text("added later")
    for result in ("mine", "file", "out", ".", "..", "earlier"):
        with pytest.raises(ConfigError, match="choose a new folder"):
            Keeper("out", result=result).open()
    assert (mine / "thesis.txt").read_text() == "years of work"
    assert (earlier / "notes.txt").exists()
