"""`python -m specsim.regret`: arguments, errors, JSON, the output folder, and every study at a small size."""

from __future__ import annotations

import contextlib
import dataclasses
import io
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from specsim import errors
from specsim.regret.__main__ import main
from specsim.regret.compare import DEFAULT_POLICIES
from specsim.regret.studies import STUDIES
from specsim.synth import synthesize
from specsim.trace import write_trace
from tests.replay_tools import Run, strict_json
from tests.worlds import make_arm_world

SMALL = ("--runs", "3", "--rounds", "60")


def regret(*args: object) -> Run:
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        texts = [str(arg) for arg in args]
        status = errors._status_of(lambda: main.main(args=texts, prog_name="regret", standalone_mode=False))
    return Run(status, out.getvalue(), err.getvalue())


@pytest.fixture(scope="module")
def arm_trace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    world = make_arm_world(11, coverage="every-position", requests=20, positions=60, arms=4)
    path = tmp_path_factory.mktemp("arms") / "arms.parquet"
    write_trace(path, dataclasses.replace(world.meta, latency=world.latency.to_dict()), [world.chunk])
    return path


def test_default_comparison() -> None:
    document = regret(*SMALL, "--json").document()
    assert document["schema"] == "specsim.regret/1"
    (case,) = document["cases"]
    assert [row["policy"] for row in case["results"]] == list(DEFAULT_POLICIES)
    assert case["family"] == "sharp"
    assert case["runs"] == 3
    assert len(case["arm_throughput"]) == case["arms"] == 14
    for row in case["results"]:
        assert row["growth"]["verdict"] == "undecided"
        assert len(row["curve"]["rounds"]) == len(row["curve"]["pseudo_s"])
    text = regret(*SMALL)
    assert text.status == 0
    assert "unimodal lower bound" in text.out
    assert "range too short" in text.out


def test_a_trace(arm_trace: Path) -> None:
    document = regret(arm_trace, "--runs", 4, "--json", "-c", "sp2ec", "-c", "best-arm").document()
    (case,) = document["cases"]
    assert case["trace"] == str(arm_trace)
    assert case["results"][1]["regret_s"]["max"] == 0.0
    carried = regret(arm_trace, "--runs", 4, "--json", "--carry", "-c", "sp2ec", "-c", "best-arm").document()
    assert carried["cases"][0]["results"][0]["mean_pulls"] != case["results"][0]["mean_pulls"]
    shown = regret(arm_trace, arm_trace, "--runs", 2, "--quota", 30)
    assert shown.status == 0
    assert "quota 30 tokens" in shown.out


@pytest.mark.parametrize("name", STUDIES)
def test_studies(name: str) -> None:
    document = regret("study", name, "--runs", 3, "--rounds", 130, "--json").document()
    assert document["study"] == name
    assert document["runs"] == 3
    for table in document["tables"]:
        assert all(len(row) == len(table["columns"]) for row in table["rows"])
    assert document["outcome"]
    shown = regret("study", name, "--runs", 3, "--rounds", 130)
    assert shown.status == 0
    assert document["question"] in shown.out


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (["-c", "sp2eck"], "did you mean 'sp2ec'"),
        (["-c", "sp2ec:bta=1"], "did you mean 'beta'"),
        (["-c", "sp2ec:beta=-1"], "allowed is"),
        (["-c", "oracle"], "knows the outcome"),
        (["-c", "static:length=3"], "chooses a length"),
        (["-c", "sp2ec:track=ewma,reset=5"], "not both"),
        (["-c", "arm:index=99"], "arms 0..13"),
        (["--family", "sharpp"], "sharpp"),
        (["--family", "valley", "--arms", "9"], "leave both out"),
        (["--cheapest", "0.9"], "cheapest < dearest"),
        (["--unit-s", "0"], "unit-s"),
        (["--unit-s", "nan"], "unit-s"),
        (["--gap-below", "-0.1"], "gap"),
        (["--carry"], "--carry"),
        (["--latency", "preset:a100"], "traces"),
        (["--rounds", "0"], "rounds"),
        (["--runs", "1000000", "--rounds", "1000000"], "lower one"),
        (["nothing.parquet"], "does not exist"),
        (["--seed", "-1"], "seed"),
        (["study"], "Missing argument"),
        (["study", "resets"], "resets"),
        (["study", "reset", "--runs", "1"], "runs"),
    ],
)
def test_refusals(args: list[str], said: str) -> None:
    run = regret(*args)
    assert run.status == 2, run.out
    assert said in run.err
    assert run.out == ""
    assert "Traceback" not in run.err


def test_refusals_about_traces(arm_trace: Path, tmp_path: Path) -> None:
    lengths = tmp_path / "lengths.parquet"
    write_trace(lengths, *synthesize("iid", requests=1, positions=5))
    for args, said in (
        ([lengths], "no arms"),
        ([arm_trace, "--arms", 5], "--arms is for synthetic"),
        ([arm_trace, "--rounds", 5], "--rounds is for synthetic"),
        ([arm_trace, "--quota", 10**9], "at most that"),
    ):
        run = regret(*args)
        assert run.status == 2
        assert said in run.err


def test_out_folder(tmp_path: Path) -> None:
    folder = tmp_path / "a" / "b"
    args = ("--runs", 2, "--rounds", 20, "-c", "sp2ec", "--out", folder)
    assert regret(*args).status == 0
    assert sorted(p.name for p in folder.iterdir()) == ["config.json", "provenance.json", "results.json"]
    result = strict_json((folder / "results.json").read_text())
    assert result == regret("--runs", 2, "--rounds", 20, "-c", "sp2ec", "--json").document()
    assert json.loads((folder / "config.json").read_text())["controllers"] == ["sp2ec"]
    again = regret(*args)
    assert again.status == 2
    assert "--force" in again.err
    assert regret(*args, "--force").status == 0
    assert regret("study", "reset", "--runs", 2, "--rounds", 20, "--out", folder, "--force").status == 0
    assert strict_json((folder / "results.json").read_text())["study"] == "reset"
    foreign = tmp_path / "mine"
    foreign.mkdir()
    (foreign / "results.json").write_text('{"schema": "specsim.replay/1"}')
    refused = regret("--runs", 2, "--rounds", 20, "-c", "sp2ec", "--out", foreign, "--force")
    assert refused.status == 2
    assert (foreign / "results.json").read_text() == '{"schema": "specsim.replay/1"}'


def test_as_users_run_it() -> None:
    command = [sys.executable, "-W", "error", "-m", "specsim.regret", *SMALL, "-c", "sp2ec", "--json"]
    done = subprocess.run(command, capture_output=True, text=True, env=dict(os.environ))
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    strict_json(done.stdout)
