"""Sweeps over alpha and maximum length: the grid, the best cell, and whether it can be told from its neighbours."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("wandb", reason="W&B needs the extra 'analysis'")

from analysis.cells import Sweep, sweeps_of
from analysis.runs import read_runs
from analysis.sweep import main, save_figure, statement
from specsim import errors
from specsim.roundlog import RoundLogWriter
from tests.conftest import ROOT
from tests.replay_tools import replay_here
from tests.wandb_file import environment, read_all, server  # noqa: F401 - fixtures

TRACE = ROOT / "traces" / "humaneval-layer-skip.parquet"
ALPHAS, MAXIMA = (1.2, 2.0), (1, 2, 4)
REQUESTS, TOKENS = 30, 40


def sweep_of(*args: object) -> int:
    """Exit status of `python -m analysis.sweep ARGS`, run in this process."""
    return errors._status_of(lambda: main.main(args=[str(arg) for arg in args], standalone_mode=False))


@pytest.fixture(scope="module")
def replay(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("sweep") / "grid"
    asked = ["-c", "plain"]
    for alpha in ALPHAS:
        for most in MAXIMA:
            asked += ["-c", f"libraspec:alpha={alpha},max={most}"]
    assert replay_here(TRACE, *asked, "--max-requests", 6, "--out", folder).status == 0
    return folder


def trial(folder: Path, alpha: float | None, seconds: np.ndarray, plain: np.ndarray, **config: Any) -> Path:
    """A run folder as `real.run` leaves it: plain decoding and one LibraSpec, one round per token and request."""
    folder.mkdir(parents=True)
    spelling = "libraspec" if alpha is None else f"libraspec:alpha={alpha}"
    times = {"plain": plain, spelling: seconds}
    results = [
        {
            **{"controller": name, "tokens": TOKENS * len(own), "rounds": len(own), "tau": float(TOKENS)},
            **{"decode_s": float(own.sum()), "speedup": float(plain.sum() / own.sum()), "submitted_len": 3.0},
            "acceptance_rate": 0.5,
        }
        for name, own in times.items()
    ]
    config = {"target": "tiny", "drafter": "d", "dataset": "x", "temperature": 0.0, "max_draft_len": 16, **config}
    config["prompts"] = [f"prompt {number}" for number in range(len(plain))]
    document = {"schema": "specsim.real_run/1", "config": config, "provenance": {}, "results": results}
    (folder / "run.json").write_text(json.dumps({**document, "finished": True}))
    with RoundLogWriter(folder / "rounds.parquet", {"config": {}}) as writer:
        for name, own in times.items():
            numbers = {"request": np.arange(len(own), dtype=np.int32), "round_s": own, "verify_s": own}
            lengths = {"drafted_len": 3, "submitted_len": 3, "accepted_len": 2, "emitted_len": TOKENS}
            others = {"lane": 0, "round": 0, "pos": 0, "ctx_len": None, "arm": -1, "draft_passes": 1, "warmup": False}
            writer.write({"run_id": name, **others, **lengths, **numbers, "draft_s": None, "overhead_s": None})
    return folder


@pytest.fixture
def trials(tmp_path: Path) -> Path:
    """Three trials, each with plain decoding of its own: 2.0 is a little faster than 1.2, on every request, and is not
    told from 3.0."""
    rng = np.random.default_rng(0)
    plain, noise = rng.uniform(1, 3, REQUESTS), rng.normal(0, 0.2, REQUESTS)
    trial(tmp_path / "trials" / "a", 1.2, plain / 1.5, plain)
    trial(tmp_path / "trials" / "b", 2.0, 1.1 * plain / 1.6, 1.1 * plain)
    trial(tmp_path / "trials" / "c", 3.0, 0.9 * plain / 1.59 * np.exp(noise - noise.mean()), 0.9 * plain)
    return tmp_path / "trials"


def only(folder: Path) -> Sweep:
    (found,) = sweeps_of(read_runs([folder]).runs)
    return found


def test_a_replay_of_a_grid_is_a_sweep(replay: Path) -> None:
    sweep, (run,) = only(replay), read_runs([replay]).runs
    assert (sweep.alphas, sweep.maxima) == (list(ALPHAS), list(MAXIMA))
    by_name = {method.controller: method for method in run.methods}
    for cell in sweep.cells:
        method = by_name[cell.controller]
        assert f"alpha={cell.alpha}" in cell.controller
        assert f"max={cell.max}" in cell.controller
        assert (cell.speedup, cell.ci95) == (method.speedup, method.ci95)
        assert cell.seconds[:, 0].sum() / cell.seconds[:, 1].sum() == pytest.approx(method.speedup)
    best = max(sweep.cells, key=lambda cell: cell.speedup)
    assert sweep.cells[sweep.best] is best
    assert sweep.leads == pytest.approx([best.speedup / cell.speedup for cell in sweep.cells])


def test_intervals_are_of_the_ratio_over_the_same_requests(replay: Path) -> None:
    """Recomputed by drawing requests with another generator; wide where requests were not paired."""
    sweep = only(replay)
    best, place = sweep.cells[sweep.best], next(i for i, lead in enumerate(sweep.leads) if lead > 1.01)
    other, size = sweep.cells[place], len(best.seconds)
    draws = np.random.default_rng(99).integers(0, size, (20_000, size))

    def speedups(cell: Any) -> np.ndarray:
        return np.divide(*cell.seconds[draws].sum(axis=1).T)

    low, high = np.percentile(speedups(best) / speedups(other), [2.5, 97.5])
    assert sweep.intervals[place] == pytest.approx((low, high), rel=0.02)


def test_trials_in_folders_of_their_own(trials: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert sweep_of(trials, "--mode", "disabled") == 0
    shown = capsys.readouterr().out
    assert "best: alpha=2, max=16: 1.600x plain decoding over 30 requests" in " ".join(shown.split())
    (sweep,) = sweeps_of(read_runs(sorted(trials.iterdir())).runs)
    assert sweep.leads[0] == pytest.approx(1.6 / 1.5)  # each over its own plain decoding
    assert sweep.intervals[0] == pytest.approx((1.6 / 1.5, 1.6 / 1.5))
    assert [sweep.differs(place) for place in range(3)] == [True, False, False]
    assert sweep.neighbours() == [0, 2]
    said = statement(sweep)
    assert "faster than alpha=1.2, max=16 (ratio 1.067 [1.067, 1.067])" in said
    assert "not told apart from alpha=3, max=16 (ratio 1.0" in said


def test_what_is_left_out_of_a_spelling_has_its_default(tmp_path: Path) -> None:
    plain = np.linspace(1, 2, 5)
    for name, alpha, longest in (("a", None, 12), ("b", None, 99)):
        trial(tmp_path / name, alpha, plain, plain, max_draft_len=longest)
    (sweep,) = sweeps_of(read_runs([tmp_path / "a", tmp_path / "b"]).runs)
    assert [(cell.alpha, cell.max) for cell in sweep.cells] == [(2.0, 12), (2.0, 60)]


@pytest.mark.parametrize(
    ("second", "message"),
    [
        ({"alpha": 1.2}, r"alpha=1.2, max=16 is in .*, too; name one of the two folders"),
        ({"alpha": 2.0, "count": 4}, r"cannot be paired request by request: the prompts' ids, of dataset x, differ"),
        ({"alpha": 2.0, "drafter": "another"}, r"no sweep there: two or more libraspec controllers"),
    ],
)
def test_what_is_no_sweep_is_refused(tmp_path: Path, second: dict[str, Any], message: str) -> None:
    plain = np.linspace(1, 2, 5)
    trial(tmp_path / "a", 1.2, plain, plain)
    shorter = plain[: second.pop("count", 5)]
    trial(tmp_path / "b", second.pop("alpha"), shorter, shorter, **second)
    with pytest.raises(errors.ConfigError, match=message):
        sweeps_of(read_runs([tmp_path / "a", tmp_path / "b"]).runs)


def test_it_is_logged_and_drawn(replay: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert sweep_of(replay, "--dir", tmp_path, "--group", "grid", "--figure", tmp_path / "map.svg") == 0
    assert "alpha \\ max" in capsys.readouterr().out
    assert (tmp_path / "map.svg").read_text().startswith("<?xml")
    (found,) = read_all(tmp_path)
    sweep = only(replay)
    best = sweep.cells[sweep.best]
    assert (found.info["job_type"], found.info["group"], found.exit_code) == ("sweep", "grid", 0)
    assert (found.summary["best_speedup"], found.summary["best_alpha"]) == (best.speedup, best.alpha)
    (file,) = tmp_path.glob("wandb/offline-run-*/files/media/table/cells_*.json")
    shown = json.loads(file.read_text())
    rows = [dict(zip(shown["columns"], row, strict=True)) for row in shown["data"]]
    assert [(row["alpha"], row["max"], row["speedup"]) for row in rows] == [
        (cell.alpha, cell.max, cell.speedup) for cell in sweep.cells
    ]
    assert [row["best"] for row in rows].count(True) == 1
    assert len(list(tmp_path.glob("wandb/offline-run-*/files/media/images/heat_map_*.png"))) == 1


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["--figure", "map.xyz"], "map.xyz: ending '.xyz'; allowed:"),
        (["--figure", "nowhere/map.png"], "the folder nowhere does not exist"),
    ],
)
def test_bad_figures(
    replay: Path, tmp_path: Path, args: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert sweep_of(replay, "--dir", tmp_path, *args) == 2
    assert message in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_a_folder_without_runs_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert sweep_of(tmp_path) == 2
    assert "neither a run folder nor a folder of run folders" in capsys.readouterr().err


@pytest.mark.parametrize("spelling", ["libraspec:alpha=x", "libraspec:max=1.5", "libraspec:=", "libraspec:alpha"])
def test_a_cell_that_cannot_be_placed_is_refused(replay: Path, spelling: str) -> None:
    (run,) = read_runs([replay]).runs
    method = next(one for one in run.methods if one.controller.startswith("libraspec"))
    for broken in (dataclasses.replace(method, controller=spelling), dataclasses.replace(method, speedup=None)):
        with pytest.raises(errors.ConfigError, match="make the folder again"):
            sweeps_of([dataclasses.replace(run, methods=(broken,))])


def test_a_cell_that_is_twice_in_one_run_is_refused(replay: Path) -> None:
    (run,) = read_runs([replay]).runs
    with pytest.raises(errors.ConfigError, match=r"is twice in .*; make the run with every controller once"):
        sweeps_of([dataclasses.replace(run, methods=run.methods * 2)])


def test_a_name_is_no_formula(replay: Path, tmp_path: Path) -> None:
    (one,) = sweeps_of(read_runs([replay]).runs)
    save_figure(dataclasses.replace(one, name=r"$\frac$ a_b^c $x"), tmp_path / "map.png")
    assert (tmp_path / "map.png").stat().st_size
