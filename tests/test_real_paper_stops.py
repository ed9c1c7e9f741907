"""Experiments that a signal or a full disk stops: nothing is half-written, and the same command continues."""

from __future__ import annotations

import errno
import os
import signal
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch", reason="real/ needs the extra 'real'")

from analysis.figures import write
from real import recordings
from real.interleave import Comparison
from real.paper import cells, outputs
from real.places import check_checkpoint
from tests.real_paper import LOOKUP, config, decisions, results, run, tiny_place


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_place(tmp_path_factory.mktemp("tiny"))


def small(tiny: Path, **changes: Any) -> dict[str, Any]:
    """One method at one temperature."""
    pairs = [{"target": str(tiny / "model"), "methods": [{**LOOKUP, "controllers": {}}]}]
    return config(tiny, pairs=pairs, **{"temperatures": [0], **changes})


@pytest.fixture(scope="module")
def finished(tiny: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("finished") / "run"
    assert run(small(tiny, temperatures=[0, 1]), out) == 0
    return out


def remains(folder: Path) -> list[Path]:
    """Files that a writer should have taken away."""
    return [path for path in folder.rglob("*") if path.suffix in (".tmp", ".part")]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize(
    ("module", "name", "call"),
    [
        (recordings, "record_request", 2),
        (cells, "frozen_calibration", 1),
        (Comparison, "run", 2),
        (cells, "evaluate", 1),
        (outputs, "markdown", 1),
        (write, "draw_folder", 1),
    ],
    ids=lambda value: getattr(value, "__name__", None),
)
def test_a_stopped_experiment_continues(
    tiny: Path,
    finished: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    module: Any,
    name: str,
    call: int,
    number: int,
) -> None:
    """Exit statuses as docs/formats.md has them: 130 after Ctrl-C, 143 after a termination."""
    original, calls = getattr(module, name), []

    def stopped(*args: Any, **options: Any) -> Any:
        calls.append(name)
        if len(calls) == call:
            os.kill(os.getpid(), number)
        return original(*args, **options)

    with monkeypatch.context() as patch:
        patch.setattr(module, name, stopped)
        assert run(small(tiny), tmp_path / "run") == 128 + number
    assert len(calls) == call
    assert not remains(tmp_path)
    kept = {path: path.stat().st_mtime_ns for path in (tmp_path / "run").rglob("requests/*.json")}
    assert run(small(tiny), tmp_path / "run") == 0
    assert {path: path.stat().st_mtime_ns for path in kept} == kept
    whole = [one for one in decisions(finished / "cells") if "-T0-" in one[0]]
    assert decisions(tmp_path / "run" / "cells") == whole


@pytest.mark.parametrize(
    "file",
    [
        *("run.json", "trace.parquet", "calibration.json", "00001.json", "outputs.jsonl", "results.json"),
        *("rows.parquet", "table1.md"),
    ],
)
def test_a_full_disk_is_said_and_finished_cells_are_kept(
    tiny: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    file: str,
) -> None:
    out, document = tmp_path / "run", small(tiny, temperatures=[0, 1])
    whole = small(tiny)
    assert run(whole, out) == 0
    capsys.readouterr()
    kept = {path: path.read_bytes() for path in (out / "cells").rglob("*") if path.is_file()}
    before = {path.name: path.read_bytes() for path in out.iterdir() if path.is_file()}
    commit = os.replace

    def full(temporary: Path, path: Path) -> None:
        if Path(path).name == file and ("-T1-" in str(path) or (file in before and Path(path).parent == out)):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        commit(temporary, path)

    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", full)
        assert run(document, out) == 2
    said = [line for line in capsys.readouterr().err.splitlines() if line.startswith("error:")]
    assert len(said) == 1
    assert file in said[0]
    assert "No space left on device" in said[0]
    assert not remains(tmp_path)
    assert {path: path.read_bytes() for path in kept} == kept
    if file not in before:
        assert {name: (out / name).read_bytes() for name in before} == before
    assert run(document, out) == 0
    assert {row["temperature"] for row in results(out)["rows"]} == {0, 1}


def test_a_disk_that_is_full_without_a_file_to_name_says_what_is_kept(
    tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def full(*_: Any, **__: Any) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(cells, "evaluate", full)
    assert run(small(tiny), tmp_path / "run") == 2
    said = capsys.readouterr().err
    assert "No space left on device; finished prompts and cells are kept in " in said
    assert "repeat the command" in said


@pytest.mark.parametrize("option", ["--out", "--cells"])
def test_a_folder_that_cannot_be_made_is_refused_before_a_model_is_loaded(
    tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], option: str
) -> None:
    monkeypatch.setattr(cells, "load_target", lambda *_, **__: pytest.fail("loaded a model"))
    (tmp_path / "file").write_text("")
    bad = tmp_path / "file" / "below"
    assert run(small(tiny), tmp_path / "run", f"{option}={bad}") == 2
    assert f"{option} {bad}: cannot be made (Not a directory)" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "cannot be read"),
        (b"\xff", "cannot be read"),
        (b"[]", "the file is no JSON object"),
        (b"{}", "the file has no results"),
        (b"[" * 100_000, "cannot be read"),
    ],
)
def test_a_broken_cell_is_named_and_made_again_once_deleted(
    tiny: Path, finished: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], content: bytes, message: str
) -> None:
    place = finished / "cells"
    file = next(place.glob("*-T0-*")) / "results.json"
    whole = file.read_bytes()
    file.write_bytes(content)
    try:
        assert run(small(tiny), tmp_path / "run", f"--cells={place}") == 2
    finally:
        file.write_bytes(whole)
    said = capsys.readouterr().err
    assert f"{file}: cannot be read" in said
    assert message in said
    assert "delete it and repeat the command" in said


@pytest.mark.parametrize(
    ("target", "drafter", "message"),
    [
        ("{}/nowhere", "prompt-lookup", "nowhere': there is no such folder"),
        ("{}/p.jsonl", "prompt-lookup", "p.jsonl': is a file"),
        ("{}", "prompt-lookup", "there is no config.json in it"),
        ("{}/model", "dflash:path={}/nowhere", "drafter '{}/nowhere': there is no such folder"),
        ("{}/model", "eagle3:path=runs/x/eagle3", "drafter 'runs/x/eagle3': there is no such folder"),
        ("{}/model", "model:path={}", "there is no config.json in it"),
        ("{}/model", "self:arms={}/arms.json", "arms.json"),
    ],
)
def test_what_a_later_pair_names_is_looked_for_first(
    tiny: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    target: str,
    drafter: str,
    message: str,
) -> None:
    monkeypatch.setattr(cells, "load_target", lambda *_, **__: pytest.fail("loaded a model"))
    later = {"target": target.format(tiny), "methods": [{**LOOKUP, "drafter": drafter.format(tiny), "name": "later"}]}
    document = config(tiny)
    assert run({**document, "pairs": [*document["pairs"], later]}, tmp_path / "run") == 2
    said = capsys.readouterr().err
    assert message.format(tiny) in said
    assert said.count("\n") == 1
    assert [path.name for path in tmp_path.iterdir()] == ["run.yaml"]


def test_hub_ids_are_not_looked_for() -> None:
    for name in ("t", "Qwen/Qwen3-4B", "z-lab/Qwen3-4B-DFlash-b16", "ruipeterpan/Qwen2.5-7B-Instruct_EAGLE3"):
        check_checkpoint(name, "drafter")


@pytest.mark.parametrize("option", ["--out", "--cells"])
def test_a_folder_that_cannot_be_written_is_found_before_measuring(
    tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], option: str
) -> None:
    monkeypatch.setattr(cells, "load_target", lambda *_, **__: pytest.fail("loaded a model"))
    closed, touch = tmp_path / "closed", Path.touch
    closed.mkdir()

    def refuse(path: Path, *args: Any, **options: Any) -> None:  # a mode would not stop the superuser
        if path.parent == closed:
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
        touch(path, *args, **options)

    monkeypatch.setattr(Path, "touch", refuse)
    words = (closed,) if option == "--out" else (tmp_path / "run", f"--cells={closed}")
    assert run(small(tiny), *words) == 2
    said = capsys.readouterr().err
    assert f"{closed}" in said
    assert "cannot be written (Permission denied)" in said
    assert not list(closed.iterdir())
