"""A pass over a round log: the same sums as row by row, whatever the order of the rows, and bad logs refused."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from analysis import rounds as module
from analysis.rounds import along, scan
from specsim.errors import ConfigError, TraceError
from tests.analysis_logs import counted, random_log

RUNS = ("b", "a", "c#2")


def sums_by_hand(path: Path) -> dict[tuple[str, int], np.ndarray]:
    names = ("emitted_len", "drafted_len", "submitted_len", "accepted_len", "draft_passes")
    seconds = ("draft_s", "verify_s", "overhead_s", "round_s")
    found: dict[tuple[str, int], np.ndarray] = defaultdict(lambda: np.zeros(10))
    for row in counted(path):
        found[row["run_id"], int(row["request"])] += [1.0, *(float(row[name]) for name in (*names, *seconds))]
    return found


def check(path: Path) -> None:
    """Every table of a scan against sums row by row."""
    found = scan(path)
    expected = sums_by_hand(path)
    requests = found.requests.to_pylist()
    assert {(row["run_id"], row["request"]) for row in requests} == set(expected)
    for row in requests:
        assert list(row.values())[2:] == pytest.approx(expected[row["run_id"], row["request"]], rel=1e-12)
    rows = counted(path)
    for row in found.depths.to_pylist():
        mine = [one for one in rows if one["run_id"] == row["run_id"]]
        assert row["submitted"] == sum(one["submitted_len"] >= row["depth"] for one in mine)
        assert row["accepted"] == sum(one["accepted_len"] >= row["depth"] for one in mine)
        deep = [one for one in mine if one["submitted_len"] >= row["depth"]]
        assert row["seen"] == sum(one["accepted_len"] >= row["depth"] - 1 for one in deep)
    for table, column, key in ((found.lengths, "submitted_len", "length"), (found.pulls, "arm", "arm")):
        listed = table.to_pylist()
        for row in listed:
            mine = [one for one in rows if one["run_id"] == row["run_id"] and one[column] == row[key]]
            assert row["rounds"] == len(mine)
            assert row["tokens"] == sum(one["emitted_len"] for one in mine)
            assert row["seconds"] == pytest.approx(sum(one["round_s"] for one in mine), rel=1e-12)
        assert sum(row["rounds"] for row in listed) == sum(one[column] >= 0 for one in rows)


@pytest.mark.parametrize("pending", [1, 50, 200_000])
def test_sums_are_those_of_the_rows(tmp_path: Path, pending: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_PENDING", pending)
    path = random_log(tmp_path / "r.parquet", rounds=3000, runs=RUNS, requests=40, arms=3)
    pq.write_table(pq.read_table(path), path, row_group_size=400)  # pieces, as a long log has them
    check(path)


@given(st.integers(1, 60), st.integers(1, 4), st.integers(0, 3), st.integers(0, 1000))
def test_sums_are_those_of_the_rows_at_random(
    tmp_path_factory: pytest.TempPathFactory, rounds: int, requests: int, arms: int, seed: int
) -> None:
    path = tmp_path_factory.mktemp("log") / "r.parquet"
    check(random_log(path, rounds=rounds, runs=RUNS, requests=requests, arms=arms, seed=seed))


def test_runs_are_in_the_order_they_appear_in(tmp_path: Path) -> None:
    path = random_log(tmp_path / "r.parquet", rounds=500, runs=RUNS, requests=4)
    first = list(dict.fromkeys(row["run_id"] for row in counted(path)))
    for table in (scan(path).requests, scan(path).depths, scan(path).lengths):
        assert table["run_id"].unique().to_pylist() == first
    rows = scan(path).requests.filter(pc.field("run_id") == "a")
    assert rows["request"].to_pylist() == [0, 1, 2, 3]


def test_progress_ends_at_one_and_never_falls(tmp_path: Path) -> None:
    path = random_log(tmp_path / "r.parquet", rounds=140_000, runs=RUNS, requests=9)
    told: list[float] = []
    scan(path, on_progress=told.append)
    assert len(told) > 2
    assert told == sorted(told)
    assert told[-1] == 1.0


def test_rounds_of_one_request(tmp_path: Path) -> None:
    path = random_log(tmp_path / "r.parquet", rounds=800, runs=RUNS, requests=5, arms=2)
    rows = along(path, 3).to_pylist()
    mine = [row for row in counted(path) if row["request"] == 3]
    assert len(rows) == len(mine)
    by_run = {run: [row for row in mine if row["run_id"] == run] for run in RUNS}
    for run, expected in by_run.items():
        found = [row for row in rows if row["run_id"] == run]
        expected.sort(key=lambda row: row["round"])
        for name in ("round", "pos", "submitted_len", "accepted_len", "arm", "round_s"):
            assert [row[name] for row in found] == [row[name] for row in expected]
    with pytest.raises(ConfigError, match="no request 5 in it; the last is 4"):
        along(path, 5)


def test_a_log_without_rounds(tmp_path: Path) -> None:
    path = random_log(tmp_path / "r.parquet", rounds=0, runs=RUNS, requests=1)
    found = scan(path)
    assert [table.num_rows for table in vars(found).values()] == [0, 0, 0, 0]
    assert found.requests["round_s"].type == pa.float64()
    with pytest.raises(ConfigError, match="no request 0"):
        along(path, 0)


def test_warm_up_alone(tmp_path: Path) -> None:
    path = random_log(tmp_path / "r.parquet", rounds=20, runs=RUNS, requests=1)
    table = pq.read_table(path)
    place = table.schema.get_field_index("warmup")
    pq.write_table(table.set_column(place, "warmup", pa.array([True] * table.num_rows)), path)
    assert scan(path).requests.num_rows == 0


@pytest.mark.parametrize(
    ("column", "value", "message"),
    [
        ("round_s", -1.0, "column 'round_s': a value is -1.0; allowed: 0 or more"),
        ("round_s", float("nan"), "a value is nan"),
        ("round_s", None, "column 'round_s', row 7: a value is null"),
        ("verify_s", float("inf"), "column 'verify_s': a value is inf"),
        ("submitted_len", -3, "column 'submitted_len': a value is -3"),
        ("request", None, "column 'request', row 7: a value is null"),
        ("accepted_len", 2.5, "column 'accepted_len', row 0: a value does not fit"),
    ],
)
def test_values_that_cannot_be(tmp_path: Path, column: str, value: float | None, message: str) -> None:
    path = random_log(tmp_path / "r.parquet", rounds=20, runs=RUNS, requests=1)
    table = pq.read_table(path)
    values = table[column].to_pylist()
    values[7] = value
    place = table.schema.get_field_index(column)
    changed = table.set_column(place, column, pa.array(values, from_pandas=False))
    pq.write_table(changed.replace_schema_metadata(table.schema.metadata), path)
    with pytest.raises(TraceError, match=message.replace("(", r"\(")):
        scan(path)


def test_damaged_logs(tmp_path: Path) -> None:
    path = random_log(tmp_path / "r.parquet", rounds=20, runs=RUNS, requests=1)
    content = path.read_bytes()
    path.write_bytes(content[:-40])
    with pytest.raises(TraceError, match="truncated or damaged"):
        scan(path)
    pq.write_table(pa.table({"a": [1]}), path)
    with pytest.raises(TraceError, match="not a round log"):
        scan(path)
    with pytest.raises(TraceError, match="does not exist"):
        scan(tmp_path / "none.parquet")
