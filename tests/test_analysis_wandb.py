"""Run folders in W&B: the keys of live runs, numbers that can be read back, and nothing half-done called done."""

from __future__ import annotations

import json
import shutil
import socket
from pathlib import Path
from typing import Any

import pytest

wandb = pytest.importorskip("wandb", reason="W&B needs the extra 'analysis'")

import analysis.tracking  # noqa: E402
import analysis.wandb  # noqa: E402
from analysis import keys  # noqa: E402
from analysis.panels import SECTIONS, Panel  # noqa: E402
from analysis.runs import read_runs  # noqa: E402
from analysis.wandb import main, save_boards  # noqa: E402
from specsim import errors  # noqa: E402
from specsim.roundlog import read_round_log  # noqa: E402
from tests.conftest import ROOT  # noqa: E402
from tests.replay_tools import replay_here  # noqa: E402
from tests.wandb_file import Tracked, environment, read_all, server  # noqa: E402, F401 - fixtures

CONTROLLERS = ["plain", "static:length=3", "libraspec"]
TRACE = ROOT / "traces" / "humaneval-prompt-lookup.parquet"
PANELS = [panel for section in SECTIONS for panel in section.panels if panel.of != keys.SWEEP]


def log(*args: object) -> int:
    """Exit status of `python -m analysis.wandb ARGS`, run in this process."""
    return errors._status_of(lambda: main.main(args=[str(arg) for arg in args], standalone_mode=False))


@pytest.fixture(scope="module")
def replay(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("replay") / "mine"
    asked = [part for name in CONTROLLERS for part in ("-c", name)]
    done = replay_here(TRACE, *asked, "--max-requests", 3, "--out", folder)
    assert done.status == 0, done.err
    return folder


@pytest.fixture(scope="module")
def logged(replay: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the replay was logged."""
    place = tmp_path_factory.mktemp("logged")
    assert log(replay, "--dir", place) == 0
    return place


def by_name(place: Path) -> dict[str, Tracked]:
    runs = read_all(place)
    named = {found.info["name"]: found for found in runs}
    assert len(named) == len(runs)
    return named


def table(place: Path, key: str) -> dict[str, Any]:
    (file,) = place.glob(f"wandb/offline-run-*/files/media/table/{key}_*.json")
    return json.loads(file.read_text())


def test_a_replay_is_a_group_offline_and_nothing_leaves_the_machine(
    replay: Path,
    logged: Path,
    server: socket.socket,  # noqa: F811
) -> None:
    runs = by_name(logged)
    names = [method.controller for method in read_runs([replay]).runs[0].methods]
    assert set(runs) == {"comparison", *names}
    assert {found.info["group"] for found in runs.values()} == {"mine"}
    assert {found.info["project"] for found in runs.values()} == {"specsim"}
    assert {found.exit_code for found in runs.values()} == {0}
    for name, found in runs.items():
        assert found.info["job_type"] == ("comparison" if name == "comparison" else "controller")
        assert (found.config["kind"], found.config["trace"]) == ("replay", str(TRACE))
        assert found.config["provenance"] == json.loads((replay / "provenance.json").read_text())
    assert dict(runs["comparison"].artifacts).keys() >= {"rounds", "trace"}
    with pytest.raises(BlockingIOError):
        server.accept()  # nobody ever called


def test_every_round_is_there_and_sums_to_the_results(replay: Path, logged: Path) -> None:
    runs = by_name(logged)
    (run,) = read_runs([replay]).runs
    _, columns = read_round_log(replay / "rounds.parquet")
    for method in run.methods:
        found = runs[method.controller]
        mine = columns["run_id"] == run.run_ids[method.controller]
        assert [row["round"] for row in found.history] == list(range(1, int(mine.sum()) + 1))
        assert found.axes == {"round": "", "*": "round"}
        for name in ("request", "submitted_len", "accepted_len", "emitted_len", "draft_s", "verify_s", "round_s"):
            assert [row[name] for row in found.history] == pytest.approx(columns[name][mine].tolist()), name
        assert found.history[-1]["tokens_per_s"] == pytest.approx(method.tokens / method.time_s)
        assert found.summary["speedup"] == method.speedup
        whole = runs["comparison"].summary
        assert whole[f"{method.controller}/speedup"] == method.speedup
    deployable = [method for method in run.methods if method.controller != "plain"]
    best = max(deployable, key=lambda method: method.tokens / method.time_s)
    assert (whole["best_controller"], whole["best_speedup"]) == (best.controller, best.speedup)
    shown = table(logged, "controllers")
    assert shown["columns"] == list(keys.CONTROLLER_COLUMNS)
    assert [row[0] for row in shown["data"]] == [method.controller for method in run.methods]


@pytest.mark.parametrize("panel", PANELS, ids=lambda panel: panel.title)
def test_each_panels_numbers_can_be_read_back(replay: Path, logged: Path, panel: Panel) -> None:
    """What a panel shows is in the offline files; null, and said so, where a replay cannot know it."""
    runs = [found for found in by_name(logged).values() if found.info["job_type"] == panel.of]
    assert runs
    for key in panel.keys:
        if panel.kind == "table":
            rows = table(logged, key)["data"]
            assert rows
            assert all(value is not None for row in rows for value in row[:2])
            continue
        live_only = key in (*keys.LIVE_COLUMNS, "controller_share", "build_share")
        for run in runs:
            values = [row[key] for row in run.history] if panel.kind == "curve" else [run.summary.get(key)]
            nothing = live_only or (key == "acceptance_rate" and run.info["name"] == "plain")
            assert all((value is None) == nothing for value in values), (key, run.info["name"])


@pytest.mark.parametrize("failing", ["folder", "disk", "init", "log", "log_artifact", "finish", "interrupted"])
def test_what_fails_is_said_and_never_called_done(
    replay: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    failing: str,
) -> None:
    def refuse(*_: object, **__: object) -> None:
        if failing == "interrupted":
            raise KeyboardInterrupt
        raise wandb.errors.CommError("no room\nleft")

    if failing == "folder":
        (tmp_path / "wandb").touch()
    elif failing == "disk":
        monkeypatch.setattr(analysis.tracking, "ROOM_BYTES", 1 << 62)
    elif failing == "init":
        monkeypatch.setattr(wandb, "init", refuse)
    elif failing == "finish":
        finish = wandb.Run.finish
        monkeypatch.setattr(wandb.Run, "finish", lambda run, **how: (finish(run, **{**how, "exit_code": 1}), refuse()))
    else:
        monkeypatch.setattr(wandb.Run, "log" if failing == "interrupted" else failing, refuse)
    status = log(replay, "--dir", tmp_path)
    shown = capsys.readouterr()
    assert "mine:" not in shown.out  # the line of a group that is complete
    if failing == "interrupted":
        assert (status, shown.err.strip()) == (130, "interrupted")
    else:
        assert status == 2
        assert shown.err.count("error: W&B: logging mine failed (") == 1
        reason = {"folder": "File exists", "disk": "MiB are free"}.get(failing, "no room left")
        assert reason in shown.err
    monkeypatch.undo()
    if failing not in ("folder", "disk", "init"):
        runs = by_name(tmp_path)
        assert runs["comparison"].exit_code == 1
        done = {name for name, found in runs.items() if found.exit_code == 0}
        assert done == (set(runs) - {"comparison"} if failing == "log_artifact" else set())


def test_a_run_that_was_not_finished_is_marked_as_failed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "half"
    (folder / "requests").mkdir(parents=True)
    config = {"target": "tiny", "controllers": CONTROLLERS, "requests": 5}
    (folder / "run.json").write_text(json.dumps({"schema": "specsim.real_run/1", "config": config, "provenance": {}}))
    assert log(folder, "--dir", tmp_path) == 0
    assert "half: 0 controllers, 0 rounds, marked as failed: the run was not finished" in capsys.readouterr().out
    (found,) = read_all(tmp_path)
    assert found.exit_code == 1
    assert "0 of 5 prompts" in found.config["notes"][0]


def test_an_experiment_of_the_papers_is_one_run_with_its_tables(tmp_path: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    folder = tmp_path / "table2"
    folder.mkdir()
    rows = [{"label": "LibraSpec", "eta": 1.5}, {"label": "static", "eta": 1.25}]
    document = {
        "schema": "specsim.paper/1",
        "experiment": "table2",
        "config": {"name": "x"},
        "provenance": {"git": "y"},
    }
    document |= {"rows": [], "deviations": [], "depths": []}
    (folder / "results.json").write_text(json.dumps(document))
    pq.write_table(pa.Table.from_pylist(rows), folder / "rows.parquet")
    assert log(folder, "--dir", tmp_path, "--group", "papers") == 0
    (found,) = read_all(tmp_path)
    assert (found.info["group"], found.info["job_type"], found.exit_code) == ("papers", "paper", 0)
    assert (found.config["experiment"], found.config["provenance"]) == ("table2", {"git": "y"})
    assert table(tmp_path, "rows")["data"] == [list(row.values()) for row in rows]


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["missing"], "missing: no such folder or file"),
        (["--group", "two words"], "--group 'two words': allowed are letters"),
        (["--mode", "ofline"], "'ofline' is not one of"),
    ],
)
def test_bad_arguments(
    replay: Path, tmp_path: Path, args: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    given = args if args == ["missing"] else [replay, *args]
    assert log(*given, "--dir", tmp_path) == 2
    assert message in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_disabled_logs_nothing(
    replay: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("WANDB_MODE", "disabled")
    assert log(replay, "--dir", tmp_path) == 0
    assert "nothing is logged" in capsys.readouterr().out
    assert list(tmp_path.iterdir()) == []


def test_a_damaged_round_log_is_named(replay: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shutil.copytree(replay, tmp_path / "mine")
    log_file = tmp_path / "mine" / "rounds.parquet"
    log_file.write_bytes(log_file.read_bytes()[:-100])
    assert log(tmp_path / "mine", "--dir", tmp_path) == 2
    assert f"{log_file}: the file is truncated or damaged" in capsys.readouterr().err


@pytest.mark.parametrize("mode", ["online", "offline"])
def test_dashboards_are_made_online_only(
    replay: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], mode: str
) -> None:
    asked: list[Any] = []

    def save(*args: Any) -> list[str]:
        asked.append(args)
        return ["https://example.org/workspace", "https://example.org/report"]

    monkeypatch.setattr(analysis.wandb, "log_group", lambda *_, **__: "somebody")
    monkeypatch.setattr(analysis.wandb, "save_boards", save)
    assert log(replay, "--mode", mode, "--dir", tmp_path, "--project", "mine") == 0
    shown = capsys.readouterr().out
    assert asked == ([("somebody", "mine", ["mine"])] if mode == "online" else [])
    assert ("https://example.org/report" in shown) == (mode == "online")
    assert ("wandb sync" in shown) == (mode == "offline")


@pytest.mark.filterwarnings("ignore::pydantic.warnings.PydanticDeprecatedSince20")
def test_dashboards_are_saved_by_whoever_is_told_to() -> None:
    pytest.importorskip("wandb_workspaces", reason="dashboards need the extra 'analysis'")
    saved: list[Any] = []

    def save(board: Any) -> None:
        saved.append(board)
        raise wandb.errors.CommError("no server")

    with pytest.raises(errors.ConfigError, match=r"saving the dashboards failed \(no server\); the runs are logged"):
        save_boards("somebody", "specsim", ["mine"], save)
    (workspace,) = saved
    assert (workspace.entity, workspace.project, workspace.name) == ("somebody", "specsim", "mine")
