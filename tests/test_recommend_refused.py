"""What a recommendation tries, and what it refuses."""

from __future__ import annotations

import itertools
import re
from pathlib import Path
from typing import Any

import pytest

from analysis.recommend import outcome as recommend_outcome
from analysis.recommend.grid import GRID, STATIC, families_of
from specsim.controllers import REGISTRY
from specsim.latency import LatencyModel
from specsim.schema import TraceMeta
from specsim.trace import write_trace
from tests.check_worlds import arm_trace
from tests.conftest import ROOT
from tests.recommend_tools import asked, cheap_trace, recommend
from tests.replay_tools import LATENCY, assert_refused, listing, make_trace
from tests.worlds import make_arm_world, make_tree_world, make_world

PLAIN = LatencyModel.affine(c_s=0.001, b_s=0.02)


@pytest.mark.parametrize("kind", ["length", "arm", "tree"])
def test_grid_is_deployable_and_complete(kind: str) -> None:
    """Every registered controller of the kind that knows nothing it could not is tried; the static one comes first."""
    world = {"length": make_world, "arm": make_arm_world, "tree": make_tree_world}[kind](1)
    families = families_of(world.meta, world.latency, confidences=True, passes=True)
    names = [family.name for family in families]
    assert names[0] == STATIC[kind]
    hidden = {"plain", "oracle", "greedy-oracle", "best-arm", "hedge"}
    assert set(names) == {spec.name for spec in REGISTRY.values() if kind in spec.kinds} - hidden
    for family in families:
        assert all(c.privilege == "none" and not c.full_information for c in family.controllers)
        assert len(set(family.spellings)) == len(family.spellings) == len(family.controllers)
    assert [f.tuned for f in families[1:]] == sorted(f.tuned for f in families[1:])


def test_grid_is_documented() -> None:
    page = (ROOT / "docs" / "recommend.md").read_text(encoding="utf-8")
    for name, columns in GRID.items():
        line = next(line for line in page.splitlines() if line.startswith(f"| `{name}` |"))
        for key, values in columns.items():
            assert f"`{key}`" in line
            for value in values:
                assert value is None or re.search(rf"\b{re.escape(value)}\b", line), (name, key, value)


def test_long_static_lengths_are_thinned() -> None:
    static = families_of(TraceMeta(max_draft_len=96), PLAIN, asked=["static"], confidences=True, passes=False)[0]
    lengths = [int(text.partition("=")[2]) for text in static.spellings]
    assert lengths[:16] == list(range(1, 17))
    assert lengths[-1] == 96
    assert all(b - a <= max(1, a // 8) for a, b in itertools.pairwise(lengths))


def test_a_static_length_in_a_gap_of_the_grid_is_tried_when_asked_for() -> None:
    def lengths(*texts: str) -> list[str]:
        meta = TraceMeta(max_draft_len=96)
        return list(families_of(meta, PLAIN, asked=texts, confidences=True, passes=False)[0].spellings)

    grid = lengths("static")
    assert "static:length=19" not in grid
    assert lengths("static:length=19", "static:length=4", "static:length=019") == sorted(
        [*grid, "static:length=19"], key=lambda text: int(text.partition("=")[2])
    )


# Refusals


@pytest.mark.parametrize(
    ("names", "words"),
    [
        (["oracle"], "knows what a deployed one could not"),
        (["greedy-oracle", "g4"], "knows what a deployed one could not"),
        (["failfast-repo"], "denoising passes"),
        (["libraspek"], "did you mean 'libraspec'"),
        (["threshold:tau=2"], "allowed is"),
        (["sp2ec"], "chooses an arm"),
        (["static:length=999"], "length=999: the trace tells of 1 to "),
        (["static:length=0"], "length=0: the trace tells of 1 to "),
    ],
)
def test_controllers_that_cannot_be_used(tmp_path: Path, names: list[str], words: str) -> None:
    path = make_trace(tmp_path / "t.parquet")
    assert_refused(recommend(path, *asked(*names)), tmp_path, listing(tmp_path), words)


def test_hedge_is_no_controller_to_deploy(tmp_path: Path) -> None:
    meta, chunk = arm_trace(0, [1.0, 2.0], [0.0015, 0.002], requests=4, positions=10)
    write_trace(tmp_path / "t.parquet", meta, chunk)
    run = recommend(tmp_path / "t.parquet", "--latency", "preset:h100-llama-2-7b", *asked("hedge"))
    assert_refused(run, tmp_path, listing(tmp_path), "hedge", "knows what a deployed one could not")


@pytest.mark.parametrize(
    ("settings", "options", "words"),
    [
        ({"latency": None}, [], "holds no latency model"),
        ({"requests": 3}, [], "3 requests; allowed: at least 4"),
        ({}, ["--max-requests", "2"], "2 requests; allowed: at least 4"),
        ({"max_draft_len": 0}, [], "nothing to choose"),
        ({}, ["--latency", "preset:nosuch"], "no such preset"),
    ],
)
def test_bad_input(tmp_path: Path, settings: dict[str, Any], options: list[str], words: str) -> None:
    path = make_trace(tmp_path / "t.parquet", **settings)
    assert_refused(recommend(path, *asked("static"), *options), tmp_path, listing(tmp_path), words)


def test_logs_of_rounds_are_refused(tmp_path: Path) -> None:
    world = make_world(3, coverage="every-round", requests=5)
    path = tmp_path / "log.parquet"
    write_trace(path, TraceMeta(**{**vars(world.meta), "latency": LATENCY}), world.chunk)
    assert_refused(recommend(path), tmp_path, listing(tmp_path), "log of executed rounds", "real.probe")


def test_missing_file_and_equal_names(tmp_path: Path) -> None:
    assert_refused(recommend(tmp_path / "no.parquet"), tmp_path, [], "does not exist")
    for name in "ab":
        (tmp_path / name).mkdir()
        make_trace(tmp_path / name / "t.parquet")
    before = listing(tmp_path)
    run = recommend(tmp_path / "a/t.parquet", tmp_path / "b/t.parquet", "--quarantine", tmp_path / "q")
    assert_refused(run, tmp_path, before, "two traces are called 't'")


def test_interrupting_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C in the middle of the replays: status 130, no output, no side files."""
    path = cheap_trace(tmp_path / "t.parquet", requests=6, positions=20)
    before = listing(tmp_path)
    real = recommend_outcome.measure

    def interrupted(*args: Any, **kwargs: Any) -> Any:
        if kwargs.get("scenario") is not None:
            raise KeyboardInterrupt
        return real(*args, **kwargs)

    monkeypatch.setattr(recommend_outcome, "measure", interrupted)
    run = recommend(path, "--quarantine", tmp_path / "aside", *asked("static"))
    assert (run.status, run.out) == (130, "")
    assert listing(tmp_path) == before
