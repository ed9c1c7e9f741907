"""W&B: every round arrives, on an axis of rounds, offline, once, and without putting a result at risk."""

from __future__ import annotations

import json
import shlex
import socket
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np
import pytest
import yaml

torch = pytest.importorskip("torch", reason="real/ needs the extra 'real'")

import wandb  # noqa: E402
from wandb.sdk.launch.sweeps.utils import create_sweep_command, create_sweep_command_args  # noqa: E402

import analysis.tracking  # noqa: E402
from analysis.keys import COLUMNS  # noqa: E402
from real.folder import RunFolder, read_run  # noqa: E402
from real.lightning.record import Recorder  # noqa: E402
from real.lightning.track import WandbTracker  # noqa: E402
from real.tracking import Tracking  # noqa: E402
from specsim.errors import ConfigError  # noqa: E402
from specsim.metrics import bootstrap_ratios  # noqa: E402
from specsim.roundlog import read_round_log  # noqa: E402
from tests.conftest import ROOT  # noqa: E402
from tests.real_runs import CONTROLLERS, PROMPTS, THIRD_PARTY_WARNINGS, make_place, run  # noqa: E402
from tests.wandb_file import Tracked, environment, read_all, server  # noqa: E402, F401 - fixtures

pytestmark = [pytest.mark.filterwarnings(text) for text in THIRD_PARTY_WARNINGS]
SWEEPS = sorted((ROOT / "real" / "sweeps").glob("*.yaml"))
SCHEMA = ROOT / "tests" / "sweeps_schema" / "schema.json"


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_place(tmp_path_factory.mktemp("place"))


@pytest.fixture(scope="module")
def out(place: Path) -> Path:
    """A finished run, tracked at its end."""
    trace = place.parent / "trace.parquet"
    trace.write_bytes(b"any file")
    assert run("test", "--config", str(place), "--track.tags", "[tiny]", "--track.traces", f"[{trace}]") == 0
    return place.parent / "out"


def by_name(folder: Path) -> dict[str, Tracked]:
    """Tracked runs of a folder by name; there is one of each."""
    runs = read_all(folder)
    named = {found.info["name"]: found for found in runs}
    assert len(named) == len(runs)
    return named


def logged_rounds(folder: Path, controller: str) -> list[dict[str, Any]]:
    """Rounds of one controller in order, warm-ups left out: those of the round log, with what only requests keep."""
    _, columns = read_round_log(folder / "rounds.parquet")
    kept = (columns["run_id"] == controller) & ~columns["warmup"].astype(bool)
    names = ("request", *(name for name in COLUMNS if name in columns))
    rows = zip(*(columns[name][kept].tolist() for name in names), strict=True)
    requests = RunFolder(folder, read_run(folder)["config"], reopen=True).load()
    runs = [run for request in requests for run in request.runs if run.controller == controller and not run.warmup]
    rounds = [row for run in runs for row in run.decoded.rounds]
    besides = [{name: getattr(row, name) for name in COLUMNS if name not in columns} for row in rounds]
    return [{**dict(zip(names, row, strict=True)), **more} for row, more in zip(rows, besides, strict=True)]


@pytest.mark.parametrize("controller", CONTROLLERS)
def test_p40_no_round_is_dropped(out: Path, controller: str) -> None:
    """wandb drops rows whose step does not increase; every row of the round log is in the offline file, in order."""
    history = by_name(out)[controller].history
    rows = logged_rounds(out, controller)
    assert len(history) == len(rows) > len(PROMPTS)
    assert [row["_step"] for row in history] == list(range(len(rows)))
    for logged, kept in zip(history, rows, strict=True):
        assert logged["request"] == kept["request"]
        for name in COLUMNS:
            assert logged[name] == pytest.approx(kept[name], rel=1e-6, abs=1e-12), name
    tokens = sum(row["emitted_len"] for row in rows)
    assert history[-1]["tau"] == pytest.approx(tokens / len(rows))
    assert history[-1]["tokens_per_s"] == pytest.approx(tokens / sum(row["round_s"] for row in rows), rel=1e-6)


@pytest.mark.parametrize("controller", CONTROLLERS)
def test_p41_the_axis_is_rounds_and_goes_on_over_prompts(out: Path, controller: str) -> None:
    found = by_name(out)[controller]
    assert found.axes == {"round": "", "*": "round"}
    assert [row["round"] for row in found.history] == list(range(1, len(found.history) + 1))
    requests = [row["request"] for row in found.history]
    assert requests == sorted(requests)
    assert set(requests) == set(range(len(PROMPTS)))


def test_p42_test_metrics_and_tables_are_there(out: Path) -> None:
    """The two-process side is tests/test_real_lightning.py::test_two_processes_decode_the_same_rounds_as_one."""
    results = {result["controller"]: result for result in read_run(out)["results"]}
    whole = by_name(out)["comparison"]
    for controller, result in results.items():
        for key, value in result.items():
            if key != "controller" and value is not None:
                assert whole.summary[f"{controller}/{key}"] == pytest.approx(value), (controller, key)
        assert by_name(out)[controller].summary["tau"] == pytest.approx(result["tau"])
    runs = {run.controller: [] for run in next(RunFolder(out, read_run(out)["config"], reopen=True).load()).runs}
    for request in RunFolder(out, read_run(out)["config"], reopen=True).load():
        for one in request.runs:
            if not one.warmup:
                runs[one.controller].append((len(one.decoded.output), sum(row.round_s for row in one.decoded.rounds)))
    (plain_tokens, plain_s), (tokens, seconds) = (np.array(runs[name]).T for name in ("plain", "libraspec"))
    expected = bootstrap_ratios(plain_s * tokens / plain_tokens, [seconds], 0)[0]
    assert [whole.summary[f"libraspec/speedup_{end}"] for end in ("low", "high")] == pytest.approx(expected)
    assert {key for row in whole.history for key in row} >= {"controllers._type", "latency._type"}
    (table,) = out.glob("wandb/*/files/media/table/controllers_*.json")
    shown = json.loads(table.read_text())
    assert [row[0] for row in shown["data"]] == CONTROLLERS
    fastest = max(CONTROLLERS[1:], key=lambda name: results[name]["tokens_per_s"])
    assert (whole.summary["best_controller"], whole.summary["best_speedup"]) == (
        fastest,
        pytest.approx(results[fastest]["speedup"]),
    )


def test_p43_offline_is_the_default_and_nothing_leaves_the_machine(
    out: Path,
    server: socket.socket,  # noqa: F811
) -> None:
    runs = by_name(out)
    assert list(runs) != []
    with pytest.raises(BlockingIOError):
        server.accept()  # nobody ever called
    whole = runs["comparison"]
    assert ("latency", ["latency.json"]) in whole.artifacts
    assert ("trace", ["trace.parquet"]) in whole.artifacts
    (rounds,) = [files for kind, files in whole.artifacts if kind == "rounds"]
    assert set(rounds) == {"rounds.parquet", "outputs.jsonl", "run.json", "config.yaml"}
    assert {found.exit_code for found in runs.values()} == {0}


def test_one_group_with_config_and_provenance(out: Path) -> None:
    runs = by_name(out)
    assert set(runs) == {"comparison", *CONTROLLERS}
    assert len({found.info["group"] for found in runs.values()}) == 1
    assert {found.info["project"] for found in runs.values()} == {"specsim"}
    document = read_run(out)
    for name, found in runs.items():
        assert found.info["job_type"] == ("comparison" if name == "comparison" else "controller")
        assert found.config["provenance"] == document["provenance"]
        assert all(found.config[key] == value for key, value in document["config"].items())
        assert found.config.get("controller") == (None if name == "comparison" else name)
    assert runs["comparison"].config["latency_model"] == json.loads((out / "latency.json").read_text())


def test_a_finished_run_is_not_tracked_twice(place: Path, out: Path) -> None:
    before = sorted(out.glob("wandb/*"))
    assert run("test", "--config", str(place)) == 0
    assert sorted(out.glob("wandb/*")) == before


def test_p41_another_seed_is_another_group(place: Path, out: Path, tmp_path: Path) -> None:
    args = ["--record.out", str(tmp_path / "out"), "--model.seed", "1", "--data.requests", "2"]
    assert run("predict", "--config", str(place), *args) == 0
    runs = by_name(tmp_path / "out")
    assert {found.info["group"] for found in runs.values()} != {by_name(out)["plain"].info["group"]}
    assert [row["round"] for row in runs["plain"].history] == list(range(1, len(runs["plain"].history) + 1))


def test_p43_live_tracking_survives_an_interruption(
    place: Path, out: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An offline run cannot be resumed: the first attempt's runs end as failed, the second's hold everything."""
    folder = tmp_path / "out"
    args = ["test", "--config", str(place), "--record.out", str(folder), "--track.live", "true"]
    save = Recorder.on_test_batch_end
    with monkeypatch.context() as patch:

        def stopping(self: Recorder, *rest: Any) -> None:
            save(self, *rest)
            if rest[4] == 1:
                raise KeyboardInterrupt

        patch.setattr(Recorder, "on_test_batch_end", stopping)
        assert run(*args) == 130
    first = {found.info["id"]: found for found in read_all(folder)}
    assert {found.exit_code for found in first.values()} == {1}
    assert {row["request"] for found in first.values() for row in found.history} == {0}
    assert run(*args) == 0
    second = [found for found in read_all(folder) if found.info["id"] not in first]
    assert {found.info["name"] for found in second} == {"comparison", *CONTROLLERS}
    assert {found.exit_code for found in second} == {0}
    for found in second:
        if found.info["name"] != "comparison":
            rows = logged_rounds(folder, found.info["name"])
            assert [row["request"] for row in found.history] == [row["request"] for row in rows]
            assert [row["round"] for row in found.history] == list(range(1, len(rows) + 1))


@pytest.mark.parametrize("failing", ["folder", "disk", "init", "log", "log_artifact", "finish"])
def test_a_failure_of_tracking_costs_no_result(
    place: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    failing: str,
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise wandb.errors.CommError("no room\nleft")

    if failing == "folder":
        (tmp_path / "file").touch()
        monkeypatch.setenv("WANDB_DIR", str(tmp_path / "file"))
    elif failing == "disk":
        monkeypatch.setattr(analysis.tracking, "ROOM_BYTES", 1 << 62)
    elif failing == "init":
        monkeypatch.setattr(wandb, "init", refuse)
    else:
        monkeypatch.setattr(wandb.Run, failing, refuse)
    folder = tmp_path / "out"
    assert run("test", "--config", str(place), "--record.out", str(folder), "--data.requests", "2") == 0
    told = capsys.readouterr().err
    # Closing a run is not worth a message: everything has been logged by then.
    assert told.count("W&B:") == (0 if failing == "finish" else 1)
    if failing in ("folder", "disk"):
        assert "starting failed" in told
        assert {"folder": "Not a directory", "disk": "MiB are free"}[failing] in told
    elif failing != "finish":
        assert "failed (no room left); the run goes on without it" in told
    assert read_run(folder)["finished"]
    assert len(logged_rounds(folder, "plain")) > 0


@pytest.mark.parametrize(
    ("given", "variables", "expected"),
    [
        (None, {}, "offline"),
        (None, {"WANDB_MODE": "online"}, "online"),
        (None, {"WANDB_MODE": "disabled"}, "disabled"),
        ("offline", {"WANDB_MODE": "online"}, "offline"),
        (None, {"WANDB_SWEEP_ID": "abc"}, "online"),
        (None, {"WANDB_SWEEP_ID": "abc", "WANDB_MODE": "offline"}, "offline"),
    ],
)
def test_mode(monkeypatch: pytest.MonkeyPatch, given: str | None, variables: dict[str, str], expected: str) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert Tracking(mode=given).effective_mode == expected


def test_disabled_tracking_leaves_no_file(place: Path, tmp_path: Path) -> None:
    args = ["--record.out", str(tmp_path / "out"), "--track.mode", "disabled", "--data.requests", "1"]
    assert run("test", "--config", str(place), *args) == 0
    assert not (tmp_path / "out" / "wandb").exists()


def test_tracking_needs_a_recorder_before_it() -> None:
    tracker, recorder = WandbTracker(), Recorder()
    for callbacks in ([tracker], [tracker, recorder]):
        trainer = type("Trainer", (), {"callbacks": callbacks})()
        with pytest.raises(ConfigError, match="Recorder before it"):
            tracker.setup(trainer, None, "test")  # type: ignore[arg-type]


def test_wandb_is_imported_in_one_file() -> None:
    files = [path for path in (ROOT / "real").rglob("*.py") if "import wandb" in path.read_text(encoding="utf-8")]
    assert [path.name for path in files] == ["tracking.py"]


# --- sweeps ----------------------------------------------------------------------------------------------------------


def sweep_args(sweep: dict[str, Any]) -> list[str]:
    """The words after `-m` of the command that W&B's agent runs for a sweep's first trial."""
    chosen = {
        name: {"value": value.get("value", value["values"][0] if "values" in value else None)}
        for name, value in sweep["parameters"].items()
    }
    macros = {**create_sweep_command_args({"args": chosen}), "env": ["env"], "interpreter": ["python"]}
    words: list[str] = []
    for word in create_sweep_command(list(sweep["command"])):
        words += macros[word[2:-1]] if word.startswith("${") else [word]
    assert words[:3] == ["env", "python", "-m"], shlex.join(words)
    return words[3:]


@pytest.mark.parametrize("path", SWEEPS, ids=lambda path: path.stem)
def test_sweeps_fit_the_schema(path: Path) -> None:
    """W&B's own schema (package sweeps), and every parameter is one of the command's, with a value in every trial."""
    sweep = yaml.safe_load(path.read_text())
    validator = jsonschema.Draft7Validator(json.loads(SCHEMA.read_text()))
    assert [error.message for error in validator.iter_errors(sweep)] == []
    assert (ROOT / sweep["program"]).is_file()
    assert sweep["metric"] == {"name": "best_speedup", "goal": "maximize"}
    assert all(set(value) in ({"value"}, {"values"}) for value in sweep["parameters"].values())
    broken = {**sweep, "methud": sweep["method"]}
    assert list(validator.iter_errors(broken))  # so that the line above says something


@pytest.mark.parametrize("path", SWEEPS, ids=lambda path: path.stem)
def test_a_sweeps_command_runs(path: Path, place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the first values, on the tiny model, as the agent's run: one tracked run, under the agent's id."""
    module, *args = sweep_args(yaml.safe_load(path.read_text()))
    assert module == "real.run"
    monkeypatch.chdir(ROOT)
    monkeypatch.setenv("WANDB_SWEEP_ID", "sweep123")
    monkeypatch.setenv("WANDB_RUN_ID", "trial123")
    monkeypatch.setenv("WANDB_MODE", "offline")
    tiny = yaml.safe_load(place.read_text())
    for key in ("target", "drafter", "latency", "max_new_tokens"):
        args += [f"--model.{key}", str(tiny["model"][key])]
    args += ["--data.dataset", tiny["data"]["dataset"], "--data.requests", "2", "--trainer.accelerator", "cpu"]
    assert run(*args, "--record.out", str(tmp_path / "out")) == 0
    (found,) = read_all(tmp_path / "out")
    assert found.info["id"] == "trial123"
    assert found.summary["best_speedup"] > 0
    assert found.summary["best_controller"].startswith("libraspec:")


def test_there_are_sweeps() -> None:
    assert {path.stem for path in SWEEPS} == {"alpha", "max_length"}


def test_an_unknown_mode_is_refused_before_anything_runs():
    with pytest.raises(ConfigError, match="mode 'ofline': allowed: online, offline"):
        Tracking(mode="ofline")
