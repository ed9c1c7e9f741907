"""Comparisons under Lightning: the command line, one folder twice, several processes."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
import yaml

torch = pytest.importorskip("torch", reason="real/ needs the extra 'real'")

from lightning.pytorch import Trainer  # noqa: E402

from real.folder import read_run  # noqa: E402
from real.interleave import Comparison  # noqa: E402
from real.lightning.cli import RunCLI  # noqa: E402
from real.lightning.data import PromptData  # noqa: E402
from real.lightning.module import DecodeModule  # noqa: E402
from specsim.latency import LatencyModel  # noqa: E402
from tests.conftest import ROOT  # noqa: E402
from tests.real_runs import (  # noqa: E402
    CONTROLLERS,
    PROMPTS,
    THIRD_PARTY_WARNINGS,
    decisions,
    kept_requests,
    make_place,
    run,
    start,
)
from tests.wandb_file import read_all  # noqa: E402

pytestmark = [pytest.mark.filterwarnings(text) for text in THIRD_PARTY_WARNINGS]
CONFIGS = sorted((ROOT / "real" / "configs").glob("*.yaml"))


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The configuration of tiny runs."""
    return make_place(tmp_path_factory.mktemp("place"))


@pytest.fixture(autouse=True)
def untracked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WANDB_MODE", "disabled")


@pytest.fixture(scope="module")
def finished(place: Path) -> Path:
    """The folder of a finished run."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("WANDB_MODE", "disabled")
        assert run("test", "--config", str(place)) == 0
    return place.parent / "out"


class Parsed(RunCLI):
    """Reads a command line and builds everything, but runs nothing."""

    def _run_subcommand(self, subcommand: str) -> None:
        pass


def parsed(monkeypatch: pytest.MonkeyPatch, *args: str) -> Parsed:
    monkeypatch.setattr(sys, "argv", ["run", *args])
    return Parsed()


# --- the command line ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("config", CONFIGS, ids=lambda path: path.stem)
@pytest.mark.parametrize("subcommand", ["test", "predict"])
def test_p44_shipped_configs_and_their_resolved_forms(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, config: Path, subcommand: str
) -> None:
    """Every configuration is read, and written out and read again it is the same."""
    cli = parsed(monkeypatch, subcommand, "--config", str(config))
    assert isinstance(cli.model, DecodeModule)
    resolved = tmp_path / "config.yaml"
    resolved.write_text(cli.resolved())
    again = parsed(monkeypatch, subcommand, "--config", str(resolved))
    assert again.resolved() == cli.resolved()
    assert (again.model.choices, again.model.controllers) == (cli.model.choices, cli.model.controllers)


def test_there_are_configs() -> None:
    assert len(CONFIGS) >= 3


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["--model.targett", "x"], "model.targett"),
        (["--config", "more.yaml"], "surprise"),
        (["--model.controllers", "[plain,statik]"], "did you mean 'static'"),
        (["--model.controllers", "[plain,plain]"], "listed twice"),
        (["--model.controllers", '["static:length={n}"]'], "in braces"),
        (["--model.values.n", "3"], "in braces"),
        (["--model.controllers", '["static:length={"]'], "write braces in pairs"),
        (["--model.controllers", "[oracle]"], "exists in replay only"),
        (["--model.drafter", "promt-lookup"], "did you mean 'prompt-lookup'"),
        (["--model.draft_sampling", "sample", "--model.temperature", "1"], "changes the output"),
        (["--data.seed", "-1"], "seed -1 of the prompts"),
        (["--trainer.precision", "bf16-mixed"], "model.dtype is the precision"),
        (["--model.latency", "missing.json"], "missing.json"),
        (["--model.temperature", "-1"], "temperature"),
        (["--model.top_k", "5"], "need sampling"),
        (["--model.temperature", "1", "--model.top_p", "0"], "top_p"),
        (["--model.max_new_tokens", "0"], "max_new_tokens"),
        (["--data.requests", "99"], "has 5 prompts"),
        (["--data.dataset", "humanevil"], "did you mean 'humaneval'"),
        (["--model.target", "no/such/folder"], "cannot be loaded"),
        (["--trainer.accelerator", "abacus"], "invalid accelerator"),
        (["--trainer.accelerator", "tpu"], "trainer: "),
        (["--trainer.devices", "0"], "trainer: "),
        (["--model.targ", "x"], "--model.targ x"),  # no beginning of a key will do
        (["--model.max_new_tokens", "many"], "model.max_new_tokens: allowed: int; found many"),
        (["--config", "nowhere.yaml"], "nowhere.yaml"),
        (["--nothing", "1"], "--nothing 1"),
        (["--track.traces", "[missing.parquet]"], "missing.parquet is not a file"),
    ],
)
def test_what_cannot_be_run_exits_with_2(
    place: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    args: list[str],
    message: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    (tmp_path / "more.yaml").write_text("surprise: 1\n")
    assert run("test", "--config", str(place), "--record.out", "refused", *args) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.startswith("error: ")
    assert error.count("\n") == 1
    assert not (tmp_path / "refused").exists()  # else the corrected command would find other settings there


def test_prompts_that_do_not_fit_are_refused_before_the_first_token(
    place: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "long.jsonl").write_text('{"prompt": "short"}\n' + json.dumps({"id": "long", "prompt": "x" * 300}))
    dataset, out = str(tmp_path / "long.jsonl"), tmp_path / "out"
    assert run("test", "--config", str(place), "--data.dataset", dataset, "--record.out", str(out)) == 2
    assert "'long' has 300 tokens, the target's context window is 256" in capsys.readouterr().err
    assert not out.exists()
    out.mkdir()
    (out / "notes.txt").write_text("mine")
    assert run("test", "--config", str(place), "--data.dataset", dataset, "--record.out", str(out)) == 2
    assert (out / "notes.txt").read_text() == "mine"


# --- one folder ------------------------------------------------------------------------------------------------------


def test_a_finished_run(finished: Path) -> None:
    document = read_run(finished)
    assert document["finished"]
    results = {result["controller"]: result for result in document["results"]}
    assert list(results) == CONTROLLERS
    assert [result["different"] for result in results.values()] == [0, 0, 0]  # lossless
    assert {result["prompts"] for result in results.values()} == {len(PROMPTS)}
    assert results["plain"]["speedup"] == results["plain"]["tau"] == 1.0
    rows = decisions(finished)
    for name, result in results.items():
        mine = [row for row in rows if row[0] == name]
        assert (len(mine), sum(row[-1] for row in mine)) == (result["rounds"], result["tokens"])
    lines = [json.loads(line) for line in (finished / "outputs.jsonl").read_text().splitlines()]
    assert len(lines) == len(PROMPTS) * len(CONTROLLERS)
    assert all(line["text"] for line in lines)
    assert document["warmup_rounds"] > 0
    assert document["effective"]["processors"] == []


@pytest.mark.filterwarnings("ignore:.*GPU available but not used.*")
def test_p42_the_trainer_returns_the_test_metrics(place: Path, finished: Path) -> None:
    """From Python, with the Trainer's own defaults and no recorder."""
    options = yaml.safe_load(place.read_text())
    module, data = DecodeModule(**options["model"]), PromptData(**options["data"])
    trainer = Trainer(accelerator="cpu", devices=1, logger=False, enable_checkpointing=False, enable_progress_bar=False)
    (metrics,) = trainer.test(module, data, verbose=False)
    assert {name.rpartition("/")[0] for name in metrics} == set(CONTROLLERS)
    for result in read_run(finished)["results"]:
        for name in ("tau", "submitted_len", "different"):
            assert metrics[f"{result['controller']}/{name}"] == pytest.approx(result[name])
        assert metrics[f"{result['controller']}/speedup"] > 0
    assert metrics["plain/speedup"] == metrics["plain/speedup_mean_of_ratios"] == 1.0
    assert set(trainer.callback_metrics) == set(metrics)


def test_p44_the_same_command_twice_in_one_folder(
    place: Path, finished: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Nothing clashes, nothing is decoded again, and the saved configuration is the one in force."""
    before = {path: path.stat().st_mtime_ns for path in finished.glob("requests/*")}
    results = read_run(finished)["results"]
    monkeypatch.setattr(Comparison, "run", lambda *_: pytest.fail("decoded again"))
    assert run("test", "--config", str(place)) == 0
    assert run("test", "--config", str(finished / "config.yaml")) == 0
    shown = capsys.readouterr().out
    assert all(controller in shown for controller in CONTROLLERS)
    assert {path: path.stat().st_mtime_ns for path in finished.glob("requests/*")} == before
    assert read_run(finished)["results"] == results
    monkeypatch.undo()
    cli = parsed(monkeypatch, "test", "--config", str(finished / "config.yaml"))
    assert cli.resolved() == (finished / "config.yaml").read_text()


def test_other_settings_in_one_folder_are_refused_and_can_be_forced(
    place: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    args = ["predict", "--config", str(place), "--record.out", str(tmp_path / "out"), "--data.requests", "1"]
    assert run(*args) == 0
    kept = (tmp_path / "out" / "config.yaml").read_text()
    assert run(*args, "--model.max_new_tokens", "5") == 2
    assert "max_new_tokens was 12, now 5" in (told := capsys.readouterr().err)
    assert "--record.force true" in told
    assert (tmp_path / "out" / "config.yaml").read_text() == kept
    assert run(*args, "--model.max_new_tokens", "5", "--record.force", "true") == 0
    assert max(row[3] for row in decisions(tmp_path / "out")) < 5


def test_without_a_folder_one_is_named_after_the_settings(
    place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    args = ["test", "--config", str(place), "--record.out", "null", "--data.requests", "1"]
    assert run(*args) == run(*args) == 0
    assert run(*args, "--model.seed", "1") == 0
    assert len(list((tmp_path / "runs").glob("prompts-tiny-*"))) == 2


def test_latency_is_measured_once_where_none_is_given(
    place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    measured = []

    def measure(*_: object) -> LatencyModel:
        measured.append(1)
        return LatencyModel.affine(c_s=0.001, b_s=0.01 + len(measured))

    monkeypatch.setattr("real.lightning.module._measured", measure)
    args = ["test", "--config", str(place), "--record.out", str(tmp_path / "out"), "--model.latency", "null"]
    assert run(*args, "--trainer.limit_test_batches", "2") == 0
    assert kept_requests(tmp_path / "out") == [0, 1]
    assert not (tmp_path / "out" / "rounds.parquet").exists()
    assert run(*args) == 0
    assert len(measured) == 1
    assert json.loads((tmp_path / "out" / "latency.json").read_text())["verify"]["b_s"] == 1.01


def test_sampling_settings_reach_the_loop(place: Path, tmp_path: Path) -> None:
    args = ["predict", "--config", str(place), "--data.requests", "2", "--model.temperature", "0.8", "--model.top_k"]
    outputs = []
    for name, seed in (("a", "0"), ("b", "0"), ("c", "1")):
        out = tmp_path / name
        assert run(*args, "5", "--model.seed", seed, "--record.out", str(out)) == 0
        lines = [json.loads(line) for line in (out / "outputs.jsonl").read_text().splitlines()]
        outputs.append({(line["request"], line["controller"]): line["tokens"] for line in lines})
        assert read_run(out)["effective"]["processors"] == ["TemperatureLogitsWarper", "TopKLogitsWarper"]
    assert outputs[0] == outputs[1] != outputs[2]


# --- several processes -----------------------------------------------------------------------------------------------


def test_two_processes_decode_the_same_rounds_as_one(place: Path, finished: Path, tmp_path: Path) -> None:
    """P42 too: the metrics of both processes, logged by one of them."""
    out = tmp_path / "out"
    process = start(
        *("test", "--config", str(place), "--record.out", str(out), "--data.requests", "5"),
        *("--trainer.devices", "2", "--trainer.strategy", "ddp"),
        WANDB_MODE="offline",
        WANDB_DATA_DIR=str(tmp_path),
    )
    shown, told = process.communicate(timeout=240)
    assert process.returncode == 0, told
    assert decisions(out) == decisions(finished)
    lanes = [json.loads(path.read_text())["lane"] for path in sorted(out.glob("requests/*.json"))]
    assert lanes == [0, 1, 0, 1, 0]
    assert shown.count("static:length=3") == 2  # two tables, shown once
    results = read_run(out)["results"]
    assert [result["prompts"] for result in results] == [5, 5, 5]
    tracked = read_all(out)
    assert len(tracked) == 1 + len(CONTROLLERS)
    assert {len(run.history) for run in tracked if run.info["name"] == "plain"} == {results[0]["rounds"]}
