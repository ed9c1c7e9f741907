"""`python -m specsim.replay --out DIR`: what it holds, that it is all or nothing, and what is never destroyed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from specsim.errors import ConfigError
from specsim.outdir import OutDir
from specsim.roundlog import read_round_log
from tests.replay_tools import LATENCY, assert_refused, listing, make_trace, replay_here, replay_process, strict_json

FILES = ["config.json", "provenance.json", "results.json", "rounds.parquet"]
PLAIN = ("-c", "plain")


def test_folder_holds_what_stdout_says(tmp_path: Path) -> None:
    """The same through a real process: results.json is stdout byte for byte; the rest says how it came about."""
    trace, out = make_trace(tmp_path / "t.parquet"), tmp_path / "deep" / "er" / "out"
    run = replay_process(trace, "-c", "static:length=3", "-c", "libraspec", "--seed", 5, "--json", "--out", out)
    assert run.status == 0, run.err
    assert run.err == ""
    assert listing(out) == FILES
    assert listing(out.parent) == ["out", *(f"out/{name}" for name in FILES)]
    assert (out / "results.json").read_text() == run.out
    assert json.loads((out / "config.json").read_text()) == {
        "traces": [str(trace)],
        "controllers": ["static:length=3", "libraspec"],
        "latency": None,
        "seed": 5,
        "acceptance": "logged",
        "max_requests": None,
        "quarantine": None,
        "chain": False,
        "max_nodes": None,
        "plugin": [],
    }
    source = strict_json((out / "provenance.json").read_text())
    assert set(source) >= {"created", "argv", "specsim", "python", "packages", "platform", "git"}
    assert source["argv"][1:] == [
        str(trace),
        "-c",
        "static:length=3",
        "-c",
        "libraspec",
        "--seed",
        "5",
        "--json",
        "--out",
        str(out),
    ]
    assert set(source["packages"]) >= {"numpy", "numba", "pyarrow"}
    assert out.stat().st_mode & 0o777 == 0o777 & ~_umask()
    people = replay_here(trace, *PLAIN, "--out", tmp_path / "second")
    assert people.out.endswith(f"written: {tmp_path / 'second'}\n")


def _umask() -> int:
    current = os.umask(0)
    os.umask(current)
    return current


def test_rounds_add_up_to_the_results(tmp_path: Path) -> None:
    """One run_id per trace and flag, in every flag's own rows; the sums are those of results.json."""
    traces = [make_trace(tmp_path / f"{n}.parquet", seed=n, prompt_len=p) for n, p in ((1, 20), (2, None))]
    flags = ["plain", "static:length=3", "g4", "static:length=3", "oracle"]
    args = [part for flag in flags for part in ("-c", flag)]
    document = replay_here(*traces, *args, "--json", "--out", tmp_path / "out").document()
    metadata, log = read_round_log(tmp_path / "out" / "rounds.parquet")
    assert metadata["schema"] == "specsim.round_log/1"
    labels = ["plain", "static:length=3", "g4", "static:length=3#2", "oracle"]
    ids = [f"{trace}#{label}" for trace in traces for label in labels]
    assert sorted(set(log["run_id"])) == sorted(ids)
    for run_id, row in zip(ids, document["results"], strict=True):
        mine = log["run_id"] == run_id
        assert mine.sum() == row["rounds"]
        for name, key in (
            ("emitted_len", "tokens"),
            ("drafted_len", "drafted"),
            ("submitted_len", "submitted"),
            ("accepted_len", "accepted"),
            ("draft_passes", "draft_passes"),
        ):
            assert log[name][mine].sum() == row[key], (run_id, name)
        assert log["round_s"][mine].sum() == pytest.approx(row["time_s"], rel=1e-9)
        parts = log["draft_s"][mine] + log["verify_s"][mine] + log["overhead_s"][mine]
        np.testing.assert_allclose(parts, log["round_s"][mine], rtol=1e-9)
        assert (log["lane"][mine] == 0).all()
        assert not log["warmup"][mine].any()
        assert np.array_equal(log["request"][mine], np.sort(log["request"][mine]))
    with_ctx = np.array([run_id.startswith(str(traces[0])) for run_id in log["run_id"]])
    assert (log["ctx_len"][with_ctx] == log["pos"][with_ctx] + 20).all()
    assert (log["ctx_len"][~with_ctx] == -1).all()


def test_expectation_has_no_rounds(tmp_path: Path) -> None:
    trace, out = make_trace(tmp_path / "t.parquet"), tmp_path / "out"
    run = replay_here(trace, "-c", "static:length=2", "--acceptance", "expected", "--json", "--out", out)
    assert run.document()["results"][0]["tokens"] == pytest.approx(120)
    assert listing(out) == ["config.json", "provenance.json", "results.json"]


def test_finished_folder_needs_force(tmp_path: Path) -> None:
    trace, out = make_trace(tmp_path / "t.parquet"), tmp_path / "out"
    assert replay_here(trace, *PLAIN, "--out", out).status == 0
    (out / "notes.txt").write_text("mine")
    inode, before = out.stat().st_ino, listing(tmp_path)
    assert_refused(replay_here(trace, *PLAIN, "--json", "--out", out), tmp_path, before, f"--out {out}", "--force")
    assert_refused(
        replay_here(tmp_path / "no.parquet", "--json", "--out", out, "--force"), tmp_path, before, "no.parquet"
    )
    assert out.stat().st_ino == inode
    run = replay_here(trace, "-c", "static:length=2", "--acceptance", "expected", "--json", "--out", out, "--force")
    assert (out / "results.json").read_text() == run.out
    # Replaced as a whole: no round log of the older run; what no replay wrote is kept.
    assert listing(out) == ["config.json", "notes.txt", "provenance.json", "results.json"]
    assert listing(tmp_path) == ["out", *(f"out/{name}" for name in listing(out)), "t.parquet"]


def _foreign(path: Path, case: str) -> None:
    if case == "file":
        path.write_text("x")
        return
    path.mkdir()
    if case == "other results":
        (path / "results.json").write_text('{"schema": "other/1"}')
    elif case == "broken results":
        (path / "results.json").write_text("{")
    elif case == "results are a folder":
        (path / "results.json").mkdir()
    elif case == "hidden file":
        (path / ".keep").write_text("x")
    else:
        (path / "thesis.tex").write_text("x")


@pytest.mark.parametrize("force", [False, True])
@pytest.mark.parametrize(
    "case", ["file", "other results", "broken results", "results are a folder", "hidden file", "other file"]
)
def test_foreign_folder_is_never_replaced(case: str, force: bool, tmp_path: Path) -> None:
    trace, out = make_trace(tmp_path / "t.parquet"), tmp_path / "out"
    _foreign(out, case)
    before = listing(tmp_path)
    extra = ("--force",) if force else ()
    assert_refused(
        replay_here(trace, *PLAIN, "--json", "--out", out, *extra), tmp_path, before, f"--out {out}", "folder"
    )


def test_empty_folders_and_links_are_fine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trace = make_trace(tmp_path / "t.parquet")
    for name in ("empty", "target", "here"):
        (tmp_path / name).mkdir()
    (tmp_path / "link").symlink_to("target")
    monkeypatch.chdir(tmp_path / "here")
    for out in (tmp_path / "empty", tmp_path / "link", "../no/../here2"):
        run = replay_here(trace, *PLAIN, "--out", out)
        assert run.status == 0, run.err
    for name in ("empty", "target", "here2"):
        assert listing(tmp_path / name) == FILES
    assert (tmp_path / "link").is_symlink()
    before = listing(tmp_path)
    assert not any(name.startswith(".") for name in before)
    for out in (".", ".."):
        run = replay_here(trace, *PLAIN, "--json", "--out", out, "--force")
        assert_refused(run, tmp_path, before, f"--out {out}: is the folder you are in")


@pytest.mark.parametrize("place", ["file/out", "file/deep/out", "/proc/no/out", "x" * 300, "ok/" + "x" * 300])
def test_place_that_cannot_be_written(place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    make_trace(tmp_path / "t.parquet")
    (tmp_path / "file").write_text("x")
    run = replay_here("t.parquet", *PLAIN, "--json", "--out", place)
    assert_refused(run, tmp_path, ["file", "t.parquet"], f"--out {place}", "choose a folder you can write to")


def test_full_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The disk fills while the documents are written: a message, and nothing stays."""
    trace = make_trace(tmp_path / "t.parquet")

    def full(self: Path, *args: Any, **kwargs: Any) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_text", full)
    run = replay_here(trace, *PLAIN, "--json", "--out", tmp_path / "new" / "out")
    assert_refused(run, tmp_path, ["t.parquet"], "No space left on device", "--out")


def test_folder_taken_meanwhile(tmp_path: Path) -> None:
    """Two replays into one folder: the one that comes second does not destroy the first one's results."""
    out = tmp_path / "out"
    (tmp_path / "t").mkdir()
    trace = make_trace(tmp_path / "t" / "t.parquet")
    with OutDir(out, force=False) as slow:
        assert replay_here(trace, *PLAIN, "--out", out).status == 0
        before = (out / "results.json").read_text()
        with pytest.raises(ConfigError, match="holds a finished replay"):
            slow.finish({"schema": "specsim.replay/1"}, {})
    assert (out / "results.json").read_text() == before
    assert listing(tmp_path) == ["out", *(f"out/{name}" for name in FILES), "t", "t/t.parquet"]


def test_interrupted_swap_keeps_the_old_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trace, out = make_trace(tmp_path / "t.parquet"), tmp_path / "out"
    assert replay_here(trace, *PLAIN, "--out", out).status == 0
    before, content = listing(tmp_path), (out / "results.json").read_text()
    real, calls = os.replace, []

    def interrupted(source: Any, target: Any) -> None:
        if Path(target) == out and not calls:
            calls.append(source)
            raise KeyboardInterrupt
        real(source, target)

    monkeypatch.setattr(os, "replace", interrupted)
    run = replay_here(trace, "-c", "static:length=2", "--json", "--out", out, "--force")
    assert (run.status, run.out) == (130, "")
    assert calls
    assert listing(tmp_path) == before
    assert (out / "results.json").read_text() == content


def test_quarantine_inside_the_folder_is_refused(tmp_path: Path) -> None:
    """The folder appears as a whole, so rows set aside in it would be lost."""
    trace, out = make_trace(tmp_path / "t.parquet"), tmp_path / "out"
    for aside in (out, out / "aside"):
        run = replay_here(trace, *PLAIN, "--json", "--out", out, "--quarantine", aside)
        assert_refused(run, tmp_path, ["t.parquet"], "--quarantine", "name a folder beside it")


def test_interrupt(tmp_path: Path) -> None:
    """Ctrl-C in the middle of a long replay: status 130, nothing on stdout, nothing left behind."""
    trace = make_trace(tmp_path / "t.parquet", requests=400, positions=100, latency=LATENCY)
    many = [part for _ in range(150) for part in ("-c", "libraspec")]
    command = [
        sys.executable,
        "-m",
        "specsim.replay",
        str(trace),
        *many,
        "--json",
        "--out",
        str(tmp_path / "a" / "out"),
    ]
    # A test run in the background may have SIGINT ignored, and children inherit that.
    process = subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    deadline = time.monotonic() + 60
    while not list((tmp_path / "a").glob(".out.*/*.tmp")) and process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.01)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 130, err
    assert out == ""
    assert err.strip() == "interrupted"
    assert listing(tmp_path) == ["t.parquet"]
