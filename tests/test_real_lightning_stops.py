"""Comparisons under Lightning that a signal or a full disk stops: no finished prompt is lost or decoded twice."""

from __future__ import annotations

import errno
import os
import signal
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="real/ needs the extra 'real'")


import real.interleave  # noqa: E402
import specsim.paths  # noqa: E402
import specsim.roundlog  # noqa: E402
from real.interleave import Comparison  # noqa: E402
from real.loop import Decoded  # noqa: E402
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

pytestmark = [pytest.mark.filterwarnings(text) for text in THIRD_PARTY_WARNINGS]


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
