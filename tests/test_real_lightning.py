"""Comparisons under Lightning: shares of prompts, one folder twice, interruption, full disk, several processes."""

from __future__ import annotations

import errno
import json
import os
import signal
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

torch = pytest.importorskip("torch", reason="real/ needs the extra 'real'")

from lightning.pytorch import Trainer  # noqa: E402

import real.interleave  # noqa: E402
import specsim.paths  # noqa: E402
import specsim.roundlog  # noqa: E402
from real.data import Prompt, load_prompts  # noqa: E402
from real.drafters.base import NoDrafter  # noqa: E402
from real.drafters.choose import parse_drafter  # noqa: E402
from real.folder import Request, Run, RunFolder, read_run  # noqa: E402
from real.interleave import Comparison  # noqa: E402
from real.lightning.cli import RunCLI  # noqa: E402
from real.lightning.data import Batches, PromptData  # noqa: E402
from real.lightning.module import DecodeModule  # noqa: E402
from real.lightning.record import without_gaps  # noqa: E402
from real.loop import Decoded, Round, Settings  # noqa: E402
from real.recall import recall  # noqa: E402
from real.results import results_of, sums_of  # noqa: E402
from real.session import Session, make_drafter  # noqa: E402
from real.target import Target  # noqa: E402
from specsim.errors import ConfigError  # noqa: E402
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
from tests.real_tiny import prompt_ids, tiny_loaded  # noqa: E402
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


# --- which prompts -----------------------------------------------------------------------------------------------


@given(st.integers(1, 40), st.integers(1, 5), st.sets(st.integers(0, 39)))
def test_shares_hold_every_prompt_once(prompts: int, world: int, kept: set[int]) -> None:
    shares = []
    for rank in range(world):
        data = PromptData()
        data.prompts, data.kept = [Prompt(str(n), "x") for n in range(prompts)], kept
        data.trainer = SimpleNamespace(global_rank=rank, world_size=world)  # type: ignore[assignment]
        batches = data.test_dataloader()
        assert len(batches) == len(list(batches)) >= 1  # a Trainer without batches calls no hooks
        shares.append([task.number for batch in batches for task in batch])
        assert all(number % world == rank for number in shares[-1])
    assert sorted(number for share in shares for number in share) == sorted(set(range(prompts)) - kept)


def test_an_empty_share_is_one_empty_batch() -> None:
    assert list(Batches([])) == [()]


def test_data_modules(tmp_path: Path, shared: Path) -> None:
    for dataset, requests, count in (("humaneval", None, 164), ("open-ended", 3, 3)):
        data = PromptData(dataset, requests)
        data.setup("test")
        assert len(data.prompts) == count
    data = PromptData(str(shared / "data" / "prompts" / "Spec-Bench" / "question.jsonl"))
    data.setup("test")
    assert len(data.prompts) == 480
    assert data.prompts[0].id == "81"
    assert data.prompts[0].text.startswith("Compose an engaging travel blog post")
    other = PromptData("open-ended", 3, seed=1)
    other.setup("test")
    again = PromptData("open-ended", 3, seed=1)
    again.setup("test")
    assert other.digest() == again.digest() != data.digest()
    with pytest.raises(ConfigError, match=r"data\.requests 165: humaneval has 164"):
        PromptData("humaneval", 165).setup("test")


def fake_datasets(rows: list[dict], calls: list) -> ModuleType:
    module = ModuleType("datasets")

    def load_dataset(name: str, config: str | None, *, split: str) -> list[dict]:
        calls.append((name, config, split))
        if split == "missing":
            raise ValueError('Unknown split "missing".')
        if name == "far/away":
            raise ConnectionError("Couldn't reach 'far/away' on the Hub")
        return rows

    module.load_dataset = load_dataset  # type: ignore[attr-defined]
    return module


def test_hub_datasets(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list = []
    rows = [{"q": "one", "task_id": "a"}, {"q": "two", "task_id": "b"}]
    monkeypatch.setitem(sys.modules, "datasets", fake_datasets(rows, calls))
    assert load_prompts("hub:org/set:config=main,split=train,column=q") == [Prompt("a", "one"), Prompt("b", "two")]
    assert calls == [("org/set", "main", "train")]
    for dataset, message in (
        ("hub:org/set", "no text in prompt or turns; name one of q, task_id with column="),
        ("hub:org/set:split=missing,column=q", "cannot be loaded .*Unknown split"),
        ("hub:far/away:column=q", "Couldn't reach .*reaches the hub"),
        ("hub:org/set:colum=q", "cannot read 'colum=q'"),
        ("hub:", "name one"),
    ):
        with pytest.raises(ConfigError, match=message):
            load_prompts(dataset)
    monkeypatch.setitem(sys.modules, "datasets", fake_datasets([{"turns": ["first", "second"]}], []))
    assert load_prompts("hub:org/set") == [Prompt("row-0", "first")]
    messages = [{"conversation": [{"role": "user", "content": "hello"}]}]
    monkeypatch.setitem(sys.modules, "datasets", fake_datasets(messages, []))
    assert load_prompts("hub:org/set:column=conversation") == [Prompt("row-0", "hello")]


def test_hub_without_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(ConfigError, match="pip install datasets"):
        load_prompts("hub:org/set")


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


# --- interruption and full disks -------------------------------------------------------------------------------------


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Numbers of prompts in the order they are decoded."""
    numbers: list[int] = []
    decode = Comparison.run

    def counting(self: Comparison, number: int, *args: object) -> object:
        numbers.append(number)
        return decode(self, number, *args)  # type: ignore[arg-type]

    monkeypatch.setattr(Comparison, "run", counting)
    return numbers


@pytest.mark.parametrize("at", [0, 2, 4])
def test_an_interrupted_run_continues_where_it_stopped(
    place: Path,
    finished: Path,
    tmp_path: Path,
    counted: list[int],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    at: int,
) -> None:
    out = tmp_path / "out"
    args = ["test", "--config", str(place), "--record.out", str(out)]
    with monkeypatch.context() as patch:
        decode, calls = real.interleave.decode, []
        # Warm-ups, the prompts before, and all but one controller of this prompt.
        last = len(CONTROLLERS) * (at + 2) - 1

        def interrupted(*args: Any, **options: Any) -> Decoded:
            calls.append(1)
            if len(calls) == last:
                signal.raise_signal(signal.SIGINT)  # what Ctrl-C sends
            return decode(*args, **options)

        patch.setattr(real.interleave, "decode", interrupted)
        assert run(*args) == 130
    told = capsys.readouterr().err
    assert f"{at} prompts are kept; the same command continues" in told
    assert told.count(" fastest ") == at  # a line per prompt
    assert kept_requests(out) == list(range(at))
    assert run(*args) == 0
    assert counted == [*range(at + 1), *range(at, len(PROMPTS))]  # the one that was cut off is decoded again
    assert decisions(out) == decisions(finished)


def fill_disk(patch: pytest.MonkeyPatch, name: str) -> None:
    """From now on there is no room for files of that name."""
    commit = specsim.paths.commit_file

    def refuse(temporary: Path, path: str | Path) -> None:
        if Path(path).name == name:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        commit(temporary, path)

    patch.setattr(specsim.paths, "commit_file", refuse)
    patch.setattr(specsim.roundlog, "commit_file", refuse)


def test_a_full_disk_loses_no_finished_prompt(
    place: Path,
    finished: Path,
    tmp_path: Path,
    counted: list[int],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """It fills up before the first prompt, at a prompt, and at each table; every time the same command goes on."""
    out = tmp_path / "out"
    args = ["test", "--config", str(place), "--record.out", str(out)]
    for name, kept in (
        ("run.json", 0),
        ("00003.json", 3),
        ("rounds.parquet", 5),
        ("outputs.jsonl", 5),
        ("run.json", 5),
    ):
        with monkeypatch.context() as patch:
            fill_disk(patch, name)
            assert run(*args) == 2
        told = capsys.readouterr().err
        assert "No space left on device" in told
        assert len(list(out.glob("requests/*.json"))) == kept
        assert not list(out.rglob("*.tmp"))
        if kept:
            assert f"{kept} prompts are kept in {out}; make room and repeat the command" in told
    assert run(*args) == 0
    assert counted == [0, 1, 2, 3, 3, 4]
    assert decisions(out) == decisions(finished)


@pytest.mark.slow
def test_an_interruption_of_the_command_itself(place: Path, finished: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    args = ["test", "--config", str(place), "--record.out", str(out)]
    process = start(*args)
    assert process.stderr is not None
    for line in process.stderr:
        if "prompts 1/5" in line:
            os.killpg(process.pid, signal.SIGINT)
            break
    _, told = process.communicate(timeout=120)
    assert process.returncode == 130, told
    assert "the same command continues" in told
    assert "Traceback" not in told
    kept = kept_requests(out)
    assert kept == list(range(len(kept)))
    assert 1 <= len(kept) < len(PROMPTS)
    assert run(*args) == 0
    assert decisions(out) == decisions(finished)


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
    assert shown.count("static:length=3") == 1  # one table
    results = read_run(out)["results"]
    assert [result["prompts"] for result in results] == [5, 5, 5]
    tracked = read_all(out)
    assert len(tracked) == 1 + len(CONTROLLERS)
    assert {len(run.history) for run in tracked if run.info["name"] == "plain"} == {results[0]["rounds"]}


# --- what controllers had learned ------------------------------------------------------------------------------------


def tiny_session(drafter: str) -> Session:
    loaded = tiny_loaded()
    spec = parse_drafter(drafter, target="tiny", n_layers=3)
    made = make_drafter(spec, loaded, max_draft_len=8)
    return Session(loaded=loaded, target=Target(loaded.model), drafter=made, plain=NoDrafter())


@pytest.mark.parametrize("drafter", ["early-exit:layers=2", "prompt-lookup"])
def test_recall_gives_controllers_back_what_they_had_learned(tmp_path: Path, drafter: str) -> None:
    latency = LatencyModel.affine(c_s=0.0005, b_s=0.002, draft_pass_s=0.0005)
    spellings = ["plain", "lambda", "lambda:calibrate=platt", "libraspec"]

    def fresh() -> Comparison:
        session = tiny_session(drafter)
        pairs = list(zip(spellings, session.controllers(spellings, latency), strict=True))
        return Comparison(session, pairs, Settings(max_new_tokens=24))

    comparison, folder = fresh(), RunFolder(tmp_path / "run", {})
    for number in range(4):
        prompt = prompt_ids(number, 16).repeat(2)
        request = comparison.run(number, str(number), prompt)
        folder.save(request)
    restored = fresh()
    for request in folder.load():
        recall(restored, request)
    learned = 0
    for spelling, lane in comparison.lanes.items():
        if lane.controller.per_request:
            continue
        width = lane.controller.initial.size
        before, after = lane._state[:, :width], restored.lanes[spelling]._state[:, :width]
        np.testing.assert_array_equal(after, before)
        learned += not np.array_equal(before, lane.controller.fresh_state()[:, :width])
    assert learned == 2


# --- formulas --------------------------------------------------------------------------------------------------------


def made_run(controller: str, tokens: int, rounds: int, seconds: float, *, token: int) -> Run:
    """Rounds of equal time that submit 3 tokens each (none when plain) and accept what makes `tokens` in all."""
    submitted = 0 if controller == "plain" else 3
    rows = [
        Round(
            arm=-1,
            drafted_len=submitted,
            submitted_len=submitted,
            draft_passes=0,
            available_len=submitted,
            q=np.zeros(submitted, np.float32),
            round=number,
            accepted_len=(tokens - rounds) // rounds,
            emitted_len=tokens // rounds,
            round_s=seconds / rounds,
        )
        for number in range(rounds)
    ]
    return Run(controller=controller, decoded=Decoded(prompt_len=3, output=[token] * tokens, rounds=rows))


def made_request(number: int, *, plain: tuple[int, float], fast: tuple[int, int, float]) -> Request:
    runs = (made_run("fast", *fast, token=5), made_run("plain", plain[0], *plain, token=4))
    return Request(number=number, id=str(number), runs=runs)


def test_results_are_ratios_of_sums_and_add_up_over_processes() -> None:
    """Two prompts of unequal length: the ratio of sums is not the mean of ratios, and both are given (P31)."""
    requests = [made_request(0, plain=(4, 1.0), fast=(4, 2, 0.5)), made_request(1, plain=(16, 2.0), fast=(16, 4, 4.0))]
    names = ["plain", "fast"]
    total = sum(sums_of(request, names) for request in requests)
    plain, fast = results_of(total, names)
    assert (plain.speedup, plain.tau, plain.different) == (1.0, 1.0, 0)
    assert fast.speedup == pytest.approx(3.0 / 4.5)
    assert fast.speedup_mean_of_ratios == pytest.approx((2.0 + 0.5) / 2)
    assert fast.tau == pytest.approx(20 / 6)
    assert fast.acceptance_rate == pytest.approx(14 / 18)
    assert fast.different == 2
    assert results_of(np.zeros_like(total), names) == []
    (alone,) = results_of(sums_of(requests[0], ["fast"]), ["fast"])
    assert alone.tokens_per_s == pytest.approx(8.0)


@pytest.mark.parametrize(
    ("done", "processes", "kept"),
    [
        ({0, 1, 2}, 1, {0, 1, 2}),
        ({0, 2, 3}, 1, {0}),  # 1 is gone: what followed it is decoded again
        ({1, 2}, 1, set()),
        ({0, 1, 3, 4, 5}, 2, {0, 1, 3, 5}),  # 2 is gone from process 0
    ],
)
def test_prompts_after_a_gap_are_decoded_again_in_their_order(done, processes, kept):
    assert without_gaps(done, processes) == kept
