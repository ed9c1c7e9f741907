"""A replay logged by `analysis.wandb` and a live run tracked by `real` have the same keys; a live run's folder, too."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

torch = pytest.importorskip("torch", reason="real/ needs the extra 'real'")

from analysis import keys  # noqa: E402
from analysis.wandb import main  # noqa: E402
from specsim import errors  # noqa: E402
from tests.conftest import ROOT  # noqa: E402
from tests.real_runs import CONTROLLERS, THIRD_PARTY_WARNINGS, make_place, run  # noqa: E402
from tests.replay_tools import replay_here  # noqa: E402
from tests.wandb_file import Tracked, environment, read_all, server  # noqa: E402, F401 - fixtures

pytestmark = [pytest.mark.filterwarnings(text) for text in THIRD_PARTY_WARNINGS]
TRACE = ROOT / "traces" / "humaneval-prompt-lookup.parquet"
OWN = {"_step", "_timestamp", "_runtime", "_wandb"}  # wandb's
# Of a replay: no prompt is read, no controller is timed, nothing is built, and no output can differ.
LIVE_SUMMARY = {"prefill_s", "controller_share", "build_s", "build_share", "different"}


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = make_place(tmp_path_factory.mktemp("live"))
    assert run("test", "--config", str(place)) == 0
    return place.parent / "out"


@pytest.fixture(scope="module")
def places(live: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Where each was logged: the live run, its folder, and a replay."""
    base = tmp_path_factory.mktemp("logged")
    asked = [part for name in CONTROLLERS for part in ("-c", name)]
    assert replay_here(TRACE, *asked, "--max-requests", 3, "--out", base / "replay").status == 0
    for name, folder in (("folder", live), ("replayed", base / "replay")):
        args = [str(folder), "--dir", str(base / name)]
        assert errors._status_of(lambda args=args: main.main(args=args, standalone_mode=False)) == 0
    return {"live": live, "folder": base / "folder", "replayed": base / "replayed"}


def tracked(place: Path) -> dict[str, Tracked]:
    """By kind of controller, since a replay spells out its parameters."""
    return {found.info["name"].partition(":")[0]: found for found in read_all(place)}


def test_the_same_keys(places: dict[str, Path]) -> None:
    live = tracked(places["live"])
    assert set(live) == {"comparison", "plain", "static", "libraspec"}
    for other in (tracked(places["folder"]), tracked(places["replayed"])):
        assert set(other) == set(live)
        for name, found in live.items():
            mine = other[name]
            assert mine.axes == found.axes
            assert mine.info["job_type"] == found.info["job_type"]
            assert keys_of(mine) == keys_of(found)
    curves = keys_of(live["libraspec"])
    assert curves == set(keys.CURVES)


def keys_of(run: Tracked) -> set[str]:
    return {key for row in run.history for key in row} - OWN


def test_the_same_tables_and_summaries(places: dict[str, Path]) -> None:
    for key, columns in ((keys.CONTROLLERS, keys.CONTROLLER_COLUMNS), (keys.LATENCY, keys.LATENCY_COLUMNS)):
        for place in places.values():
            (file,) = place.glob(f"wandb/offline-run-*/files/media/table/{key}_*.json")
            assert json.loads(file.read_text())["columns"] == list(columns)
    live, folder, replayed = (tracked(place) for place in places.values())
    for name in ("plain", "static", "libraspec"):
        summary = set(live[name].summary) & set(keys.SUMMARY)
        assert set(folder[name].summary) & set(keys.SUMMARY) == summary
        assert set(replayed[name].summary) & set(keys.SUMMARY) == summary - LIVE_SUMMARY
        whole = {key.partition("/")[2] for key in live["comparison"].summary if key.startswith(f"{name}")}
        again = {key.partition("/")[2] for key in replayed["comparison"].summary if key.startswith(f"{name}")}
        assert again == whole - LIVE_SUMMARY
    for found in (live, folder, replayed):
        assert {"best_controller", "best_speedup"} <= set(found["comparison"].summary)
        assert {"kind", "provenance", "latency_model"} <= set(found["comparison"].config)
        assert {"controller", "verification"} <= set(found["libraspec"].config)


def test_a_live_runs_folder_gives_the_same_numbers(places: dict[str, Path]) -> None:
    live, folder = tracked(places["live"]), tracked(places["folder"])
    for name in ("plain", "static", "libraspec"):
        found, again = live[name], folder[name]
        assert len(found.history) == len(again.history) > 5
        for key in keys.CURVES:
            assert [row[key] for row in again.history] == pytest.approx([row[key] for row in found.history]), key
        for key in keys.SUMMARY:
            if key not in keys.LIVE_COLUMNS and found.summary.get(key) is not None:
                assert again.summary[key] == pytest.approx(found.summary[key]), key
    assert folder["comparison"].summary["best_controller"] == live["comparison"].summary["best_controller"]
