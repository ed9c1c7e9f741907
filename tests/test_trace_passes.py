"""The per-pass columns of a length trace: all or none, checked, kept by everything that handles rows."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given

from specsim.chunk import TraceChunk, concat_chunks
from specsim.errors import TraceError
from specsim.quarantine import quarantine_requests
from specsim.schema import PASS_COLUMNS, POSITION_SCHEMA, TraceMeta, schema_for
from specsim.trace import read_trace, write_trace
from tests.strategies import traces
from tests.test_trace_roundtrip import assert_same
from tests.trace_tables import META, columns, write_raw


def pass_columns() -> dict[str, list[Any]]:
    """For the rows of `columns`, whose m is 2 1 0 2 1 0."""
    return columns() | {
        "pass_conf": [[0.5, 0.25, 1.0], [0.5], [], [0.5, 0.5], None, None],
        "pass_count": [[2, 0, 1], [1], [], [2], None, None],
        "pass_filled": [[0, 1, 2], [1], [], [2], None, None],
    }


def test_read(tmp_path: Path) -> None:
    _, chunk = read_trace(write_raw(tmp_path / "t.parquet", pass_columns(), META, row_group_size=2))
    assert chunk.pass_offsets.tolist() == [0, 3, 4, 4, 5, 5, 5]
    assert chunk.pass_count.tolist() == [2, 0, 1, 1, 2]
    assert chunk.pass_filled.tolist() == [0, 1, 2, 1, 2]
    assert chunk.conf_offsets.tolist() == [0, 3, 4, 4, 6, 6, 6]
    assert chunk.pass_conf.tolist() == [0.5, 0.25, 1.0, 0.5, 0.5, 0.5]
    assert (chunk.pass_count.dtype, chunk.pass_conf.dtype) == (np.int16, np.float32)


def test_written_rows_without_a_pass_are_null(tmp_path: Path) -> None:
    meta, chunk = read_trace(write_raw(tmp_path / "t.parquet", pass_columns(), META))
    write_trace(tmp_path / "again.parquet", meta, chunk)
    stored = pq.read_table(tmp_path / "again.parquet")
    assert stored.schema.remove_metadata().equals(schema_for("length", passes=True))
    for name in PASS_COLUMNS:
        wanted = pass_columns()[name]
        assert stored[name].to_pylist() == [*wanted[:2], None, wanted[3], None, None]


def test_files_without_the_columns_stay_as_they_were(tmp_path: Path) -> None:
    meta, chunk = read_trace(write_raw(tmp_path / "t.parquet", columns(), META))
    assert chunk.pass_count is chunk.pass_conf is chunk.pass_offsets is None
    write_trace(tmp_path / "again.parquet", meta, chunk)
    assert pq.read_schema(tmp_path / "again.parquet").remove_metadata().equals(POSITION_SCHEMA)


def test_null_in_every_row(tmp_path: Path) -> None:
    data = columns() | dict.fromkeys(PASS_COLUMNS, pa.nulls(6))
    _, chunk = read_trace(write_raw(tmp_path / "t.parquet", data, META))
    assert chunk.pass_offsets.tolist() == [0] * 7
    assert len(chunk.pass_conf) == len(chunk.pass_count) == 0


@given(trace=traces(with_passes=True))
def test_null_rows_first_and_any_cutting(trace: tuple[TraceMeta, TraceChunk]) -> None:
    """A file whose first rows have no pass is written from its chunks all the same."""
    meta, chunk = trace
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "t.parquet"
        write_trace(path, meta, [chunk.slice(i, i + 1) for i in range(chunk.rows)])
        assert_same(read_trace(path)[1], chunk)
        assert read_trace(path, columns=["pass_count", "pass_conf"])[1].pass_count is None
        kept = read_trace(path, columns=PASS_COLUMNS)[1]
        assert kept.q is None
        np.testing.assert_array_equal(kept.pass_offsets, chunk.pass_offsets)


def test_joining_with_rows_that_have_none(tmp_path: Path) -> None:
    meta, chunk = read_trace(write_raw(tmp_path / "t.parquet", pass_columns(), META))
    bare = chunk.slice(3, 6).keep({"ctx_len", "q", "p", "accept_prob", "entropy", "verify_s", "draft_s"})
    joined = concat_chunks([chunk.slice(0, 3), bare])
    assert joined.pass_offsets.tolist() == [0, 3, 4, 4, 4, 4, 4]
    assert joined.conf_offsets.tolist() == [0, 3, 4, 4, 4, 4, 4]
    write_trace(tmp_path / "a.parquet", meta, [chunk.slice(0, 3), bare])
    assert_same(read_trace(tmp_path / "a.parquet")[1], joined)
    with pytest.raises(TraceError, match="the first one of the file had no such arrays") as caught:
        write_trace(tmp_path / "b.parquet", meta, [bare, chunk.slice(0, 3)])
    assert caught.value.column == "pass_count"
    assert not (tmp_path / "b.parquet").exists()


def _set(name: str, row: int, value: Any) -> Callable[[dict[str, Any]], None]:
    def change(data: dict[str, Any]) -> None:
        data[name][row] = value

    return change


# change, column, row in the file, fragments of the message
BAD_ROWS = {
    "conf above one": (_set("pass_conf", 3, [0.5, 1.5]), "pass_conf", 3, ["1.5", "list position 1", "between 0 and 1"]),
    "conf NaN": (_set("pass_conf", 1, [float("nan")]), "pass_conf", 1, ["NaN"]),
    "conf too short": (_set("pass_conf", 3, [0.5]), "pass_conf", 3, ["holds 1 values", "adds up to 2"]),
    "conf too long": (_set("pass_conf", 2, [0.5]), "pass_conf", 2, ["holds 1 values", "adds up to 0"]),
    "conf null": (_set("pass_conf", 3, None), "pass_conf", 3, ["null", "all recorded or all null"]),
    "count negative": (_set("pass_count", 0, [2, -1, 2]), "pass_count", 0, ["-1", "list position 1", "0 to 32767"]),
    "count null entry": (_set("pass_count", 1, [None]), "pass_count", 1, ["null"]),
    "count null": (_set("pass_count", 0, None), "pass_count", 0, ["null"]),
    "filled alone": (_set("pass_filled", 4, [1]), "pass_conf", 4, ["null"]),
    "filled too few": (_set("pass_filled", 0, [1, 2]), "pass_filled", 0, ["holds 2 values", "pass_count holds 3"]),
    "filled above m": (_set("pass_filled", 1, [2]), "pass_filled", 1, ["value 2", "0 to m"]),
    "filled negative": (_set("pass_filled", 0, [-1, 1, 2]), "pass_filled", 0, ["-1"]),
    "filled falls": (_set("pass_filled", 0, [1, 2, 1]), "pass_filled", 0, ["value 1 follows 2", "never fall"]),
}


@pytest.mark.parametrize("group", [None, 2], ids=["one-group", "groups-of-2"])
@pytest.mark.parametrize("case", BAD_ROWS, ids=lambda name: name.replace(" ", "-"))
def test_bad_row(case: str, group: int | None, tmp_path: Path) -> None:
    change, column, row, fragments = BAD_ROWS[case]
    data = pass_columns()
    change(data)
    path = write_raw(tmp_path / "bad.parquet", data, META, row_group_size=group)
    with pytest.raises(TraceError) as caught:
        read_trace(path, columns=["q"])
    error = caught.value
    assert (error.column, error.row) == (column, row), str(error)
    for fragment in [str(path), *fragments]:
        assert fragment in str(error)
    assert error.allowed
    assert error.advice


@pytest.mark.parametrize("missing", PASS_COLUMNS)
def test_all_or_none(missing: str, tmp_path: Path) -> None:
    data = pass_columns()
    del data[missing]
    with pytest.raises(TraceError, match="all of pass_conf, pass_count, pass_filled, or none") as caught:
        read_trace(write_raw(tmp_path / "t.parquet", data, META))
    assert caught.value.column == missing


def test_wrong_type(tmp_path: Path) -> None:
    data = pass_columns() | {"pass_count": [3, 1, 0, 1, 0, 0]}
    with pytest.raises(TraceError, match="a column of lists of whole numbers") as caught:
        read_trace(write_raw(tmp_path / "t.parquet", data, META))
    assert caught.value.column == "pass_count"


def test_quarantine_keeps_the_columns(tmp_path: Path) -> None:
    data = pass_columns()
    data["pass_filled"][0] = [2, 1, 2]
    path = write_raw(tmp_path / "t.parquet", data, META)
    report = quarantine_requests(path, tmp_path / "out")
    assert list(report.reasons) == [0]
    assert "'pass_filled', row 0: value 1 follows 2" in report.reasons[0][0]
    moved = pq.read_table(report.side_file)
    assert moved["pass_filled"].to_pylist() == [[2, 1, 2], [1], []]
    _, chunk = read_trace(path, skip_requests=report.requests)
    assert chunk.pass_count.tolist() == [2]
    assert chunk.pass_offsets.tolist() == [0, 1, 1, 1]
