"""Thinned curves: sums are kept exactly, however the log is long and cut; short logs are as they stand."""

from __future__ import annotations

import json
import tracemalloc
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from analysis.curves import LIMIT, LOGGED, Curve, read_curves, read_live
from analysis.keys import COLUMNS, CURVES, LIVE_COLUMNS
from specsim.errors import ConfigError
from specsim.roundlog import RoundLogWriter


def rounds_of(count: int, seed: int) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    columns = {name: rng.integers(0, 9, count).astype(float) for name in LOGGED if name.endswith("_len")}
    return {
        **columns,
        **{name: rng.random(count) + 0.01 for name in LOGGED if name.endswith("_s")},
        "emitted_len": rng.integers(1, 9, count).astype(float),
        "request": np.sort(rng.integers(0, 5, count)),
    }


def matrix(columns: dict[str, np.ndarray]) -> np.ndarray:
    return np.stack([columns[name] for name in LOGGED], axis=1)


@settings(deadline=None, max_examples=60)
@given(
    st.integers(1, 300), st.sampled_from([2, 4, 16, 64]), st.integers(0, 9), st.lists(st.integers(0, 300), max_size=6)
)
def test_sums_survive_whatever_the_cuts(count: int, limit: int, seed: int, cuts: list[int]) -> None:
    columns = rounds_of(count, seed)
    values, curve = matrix(columns), Curve(limit)
    edges = [0, *sorted(min(cut, count) for cut in cuts), count]
    for start, stop in pairwise(edges):
        curve.add(values[start:stop], columns["request"][start:stop])
    points = list(curve.points())
    assert len(points) == curve.count <= limit
    assert count <= limit or curve.count > limit // 2
    ends = [point["round"] for point in points]
    assert ends[-1] == count
    widths = np.diff(ends, prepend=0)
    assert set(widths[:-1]) <= {widths[0]}
    assert widths[-1] <= widths[0]
    for name in LOGGED:
        sums = np.array([point[name] for point in points]) * widths
        assert sums.sum() == pytest.approx(columns[name].sum(), rel=1e-12), name
    tokens, seconds = columns["emitted_len"].cumsum(), columns["round_s"].cumsum()
    for point in points:
        last = point["round"] - 1
        assert set(point) == set(CURVES)
        assert point["request"] == columns["request"][last]
        assert point["tau"] == pytest.approx(tokens[last] / (last + 1), rel=1e-12)
        assert point["tokens_per_s"] == pytest.approx(tokens[last] / seconds[last], rel=1e-12)
    if count <= limit:
        assert [[point[name] for name in LOGGED] for point in points] == values.tolist()


def write(path: Path, runs: dict[str, dict[str, Any]], *, piece: int) -> None:
    """A log in which the runs' rounds come in pieces, turn about."""
    longest = max(len(columns["request"]) for columns in runs.values())
    with RoundLogWriter(path, {"source": "test"}) as writer:
        for start in range(0, longest, piece):
            for name, columns in runs.items():
                mine = {key: values[start : start + piece] for key, values in columns.items()}
                size = len(mine["request"])
                if size:
                    lengths = {key: values.astype(np.int16) for key, values in mine.items() if key.endswith("_len")}
                    numbers = {"request": mine["request"].astype(np.int32), "round": np.arange(size, dtype=np.int32)}
                    others = {"lane": 0, "pos": 0, "ctx_len": None, "arm": -1, "draft_passes": 0}
                    warm = {"warmup": mine.get("warmup", np.zeros(size, bool))}
                    seconds = {key: values for key, values in mine.items() if key.endswith("_s")}
                    writer.write({"run_id": name, **others, **numbers, **lengths, **seconds, **warm})


def test_a_log_of_several_runs_with_warm_ups_and_missing_times(tmp_path: Path) -> None:
    first, second = rounds_of(50, 1), rounds_of(70, 2)
    second["warmup"] = np.arange(70) < 5
    first["draft_s"] = np.full(50, np.nan)
    write(tmp_path / "rounds.parquet", {"a": first, "b": second, "c": rounds_of(9, 3)}, piece=20)
    found = read_curves(tmp_path / "rounds.parquet", ["a", "b", "never"])
    assert list(found) == ["a", "b", "never"]
    assert [curve.rounds for curve in found.values()] == [50, 65, 0]
    assert list(found["never"].points()) == []
    points = list(found["b"].points())
    for name in LOGGED:
        assert [point[name] for point in points] == pytest.approx(second[name][5:].tolist())
    assert {point["draft_s"] for point in found["a"].points()} == {None}  # not 0: nobody measured it
    assert all(point[name] is None for point in points for name in LIVE_COLUMNS)


def test_memory_does_not_grow_with_the_log(tmp_path: Path) -> None:
    peaks = []
    for count in (40_000, 400_000):
        write(tmp_path / "rounds.parquet", {"a": rounds_of(count, 4)}, piece=50_000)
        tracemalloc.start()
        found = read_curves(tmp_path / "rounds.parquet", ["a"])
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
        assert LIMIT // 2 < found["a"].count <= LIMIT
    assert peaks[1] < 1.2 * peaks[0]


def test_only_a_live_loop_times_its_controller() -> None:
    assert set(LOGGED) | set(LIVE_COLUMNS) == set(COLUMNS)


def test_live_columns_are_thinned_alike(tmp_path: Path) -> None:
    """Two prompts of one controller, warm-up first; an older folder without the columns; a broken file."""
    (tmp_path / "requests").mkdir()
    seconds = np.random.default_rng(5).random(19)
    for number, part in ((10, seconds[12:]), (9, seconds[:12])):  # 10 after 9, although not as text
        rounds = {"round_s": [1.0] * len(part), "controller_s": part.tolist(), "build_s": [0.5] * len(part)}
        warm = {"controller": "a", "warmup": True, "rounds": rounds}
        runs = [warm, {"controller": "a", "warmup": False, "rounds": rounds}]
        runs.append({"controller": "old", "warmup": False, "rounds": {"round_s": [1.0] * 3}})
        (tmp_path / "requests" / f"{number}.json").write_text(json.dumps({"number": number, "runs": runs}))
    columns, curve = rounds_of(19, 6), Curve(8)
    curve.add(matrix(columns), columns["request"])
    found = read_live(tmp_path, ["a", "old"], limit=8)
    curve.live = found["a"]
    points = list(curve.points())
    widths = np.diff([point["round"] for point in points], prepend=0)
    blocks = [seconds[start : start + 4].mean() for start in range(0, 19, 4)]
    assert [point["controller_s"] for point in points] == pytest.approx(blocks)
    assert sum(point["build_s"] * width for point, width in zip(points, widths, strict=True)) == pytest.approx(9.5)
    curve.live = found["old"]  # of 6 rounds, not of these 19
    assert {point["controller_s"] for point in curve.points()} == {None}
    (tmp_path / "requests" / "11.json").write_text("{}")
    with pytest.raises(ConfigError, match=r"11.json: cannot be read \(KeyError\('runs'\)\); repeat the command"):
        read_live(tmp_path, ["a"])
