"""Setting aside offending requests: the rest reads cleanly, what is moved is complete, the file untouched."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from specsim.errors import ConfigError, TraceError
from specsim.quarantine import quarantine_requests
from specsim.trace import TraceChunk, read_trace
from specsim.trace_cli import main
from tests.trace_tables import META, columns, write_raw


def _rows(groups: list[tuple[int, list[int]]]) -> dict[str, list[Any]]:
    """A trace whose row groups are (request, positions)."""
    data: dict[str, list[Any]] = {name: [] for name in columns()}
    for request, positions in groups:
        for pos in positions:
            row = {"request": request, "pos": pos, "ctx_len": pos + 5, "accept_len": 1, "verify_s": None}
            row |= {name: [0.5, 0.5] for name in ("q", "p", "accept_prob", "entropy")} | {"draft_s": None}
            for name, value in row.items():
                data[name].append(value)
    return data


def _write(path: Path, data: dict[str, list[Any]], group: int | None = None) -> Path:
    return write_raw(path, data | {"note": [f"n{i}" for i in range(len(data["pos"]))]}, META, row_group_size=group)


@pytest.mark.parametrize("group", [None, 1, 2])
def test_row_faults(group: int | None, tmp_path: Path) -> None:
    data = _rows([(0, [0, 1]), (1, [0, 1, 2]), (4, [0, 1]), (-2, [0]), (2**31, [0]), (5, [0, 1])])
    data["q"][3] = [0.5, 1.5]
    data["q"][4] = [0.5, -1.5]
    data["accept_len"][3] = 3
    data["pos"][6] = 7
    data["ctx_len"][6] = 20
    path = _write(tmp_path / "t.parquet", data, group)
    before = path.read_bytes()
    report = quarantine_requests(path, tmp_path / "out" / "q")
    assert path.read_bytes() == before
    assert sorted(report.requests) == [-2, 1, 4, 2**31]
    assert (report.requests_seen, report.rows, report.rows_moved) == (6, 11, 7)
    assert [("'q'" in why, "'accept_len'" in why) for why in report.reasons[1]] == [(True, False), (False, True)]
    assert "row 3: value 1.5 at list position 1" in report.reasons[1][0]
    assert "and 1 more rows" in report.reasons[1][0]
    assert "pos 7 follows pos 0" in report.reasons[4][0]

    assert report.side_file == tmp_path / "out" / "q" / "t.quarantined.parquet"
    moved = pq.read_table(report.side_file)
    assert moved["note"].to_pylist() == [f"n{i}" for i in (2, 3, 4, 5, 6, 7, 8)]
    assert moved.column_names == [*data, "note", "quarantine_reason"]
    assert moved["quarantine_reason"][0].as_py() == " | ".join(report.reasons[1])
    assert moved.schema.field("q").type == pq.read_schema(path).field("q").type
    assert report.report_file is not None
    stored = json.loads(report.report_file.read_text())
    assert stored == report.to_json()
    assert stored["quarantined_requests"] == 4
    assert sorted(p.name for p in (tmp_path / "out" / "q").iterdir()) == ["t.quarantine.json", "t.quarantined.parquet"]

    _, chunk = read_trace(path, skip_requests=report.requests)
    assert np.unique(chunk.request).tolist() == [0, 5]


@pytest.mark.parametrize(
    ("groups", "offending"),
    [
        ([(0, [0, 1]), (1, [0]), (0, [2]), (2, [0])], {0}),  # reappears and goes on
        ([(0, [0, 1]), (1, [0]), (0, [0]), (2, [0])], {0}),  # reappears from the start
        ([(5, [0]), (1, [0]), (5, [1]), (6, [0])], {5}),
        ([(0, [0]), (100, [0]), (1, [0]), (2, [0]), (3, [0])], {100}),  # one stray id does not condemn those after it
        ([(3, [0]), (4, [0]), (1, [0]), (5, [0])], {1}),
        ([(0, [0]), (1, [1]), (0, [1]), (2, [0])], {0, 1}),  # the one between is bad for another reason
        ([(0, [0]), (2, [0]), (7, [0])], set()),  # gaps are fine
    ],
)
@pytest.mark.parametrize("group", [None, 1])
def test_order_faults(
    groups: list[tuple[int, list[int]]], offending: set[int], group: int | None, tmp_path: Path
) -> None:
    path = _write(tmp_path / "t.parquet", _rows(groups), group)
    report = quarantine_requests(path, tmp_path / "q")
    assert report.requests == offending
    _, chunk = read_trace(path, skip_requests=report.requests)
    assert set(np.unique(chunk.request).tolist()) == {r for r, _ in groups} - offending
    if offending:
        assert report.side_file is not None
        moved = pq.read_table(report.side_file)["request"].to_pylist()
        assert moved == [r for r, positions in groups for _ in positions if r in offending]


def test_skipping_does_not_hide_a_request_in_two_places(tmp_path: Path) -> None:
    path = _write(tmp_path / "t.parquet", _rows([(5, [0, 1]), (3, [0]), (5, [2])]))
    with pytest.raises(TraceError, match=r"'request', row 3 \(request 5\): request 5 goes on after another"):
        read_trace(path, skip_requests={3})


def test_a_side_file_can_be_examined_again(tmp_path: Path) -> None:
    first = quarantine_requests(_write(tmp_path / "t.parquet", _rows([(0, [0]), (1, [0]), (0, [1])])), tmp_path / "q")
    assert first.side_file is not None
    data = _rows([(0, [0]), (1, [1])]) | {"quarantine_reason": ["old", "old"]}
    again = quarantine_requests(_write(tmp_path / "u.parquet", data), tmp_path / "q")
    assert again.side_file is not None
    assert pq.read_table(again.side_file)["quarantine_reason"].to_pylist() == [again.reasons[1][0]]


def test_context_length_recorded_in_some_requests_only(tmp_path: Path) -> None:
    data = _rows([(0, [0]), (1, [0, 1]), (2, [0]), (3, [0, 1])])
    data["ctx_len"][0] = None  # the first request is the odd one
    data["ctx_len"][5] = None  # mixed inside request 3
    report = quarantine_requests(_write(tmp_path / "t.parquet", data), tmp_path / "q")
    assert report.requests == {0, 3}
    assert "unlike most" in report.reasons[0][0]
    read_trace(tmp_path / "t.parquet", skip_requests=report.requests)


def test_nothing_to_do_writes_nothing(tmp_path: Path) -> None:
    report = quarantine_requests(_write(tmp_path / "t.parquet", _rows([(0, [0])])), tmp_path / "q")
    assert report.reasons == {}
    assert report.side_file is report.report_file is None
    assert not (tmp_path / "q").exists()


def _nothing_left(data: dict[str, list[Any]]) -> None:
    data["q"] = [[2.0, 2.0]] * len(data["q"])


def _null_request(data: dict[str, list[Any]]) -> None:
    data["request"][1] = None


def _no_column(data: dict[str, list[Any]]) -> None:
    del data["p"]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (_nothing_left, "none of the 2 requests is usable.*value 2.0"),
        (_null_request, "column 'request', row 1: the value is null"),
        (_no_column, "column 'p': the column is missing"),
    ],
)
def test_what_a_quarantine_cannot_help(
    change: Callable[[dict[str, list[Any]]], None], message: str, tmp_path: Path
) -> None:
    data = _rows([(0, [0, 1]), (1, [0])])
    change(data)
    path = _write(tmp_path / "t.parquet", data)
    with pytest.raises(TraceError, match=message):
        quarantine_requests(path, tmp_path / "q")
    assert not (tmp_path / "q").exists()


def test_two_files_of_one_name_do_not_overwrite_each_other(tmp_path: Path) -> None:
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
        data = _rows([(0, [0]), (1, [1])])
        _write(tmp_path / folder / "t.parquet", data)
    quarantine_requests(tmp_path / "a" / "t.parquet", tmp_path / "q")
    quarantine_requests(tmp_path / "a" / "t.parquet", tmp_path / "q")  # again is fine
    with pytest.raises(ConfigError, match=r"already holds the quarantine of .*a/t.parquet"):
        quarantine_requests(tmp_path / "b" / "t.parquet", tmp_path / "q")
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="cannot be used as quarantine folder"):
        quarantine_requests(tmp_path / "a" / "t.parquet", tmp_path / "file")


def test_command(tmp_path: Path) -> None:
    path = _write(tmp_path / "t.parquet", _rows([(0, [0]), (1, [1]), (2, [0])]))
    result = CliRunner().invoke(main, ["check", str(path)], standalone_mode=False)
    assert result.return_value == 2
    arguments = ["check", str(path), "--quarantine", str(tmp_path / "q")]
    result = CliRunner().invoke(main, arguments, standalone_mode=False)
    assert result.return_value == 0
    assert "quarantined 1 of 3 requests (1 of 3 rows)" in result.output


def _survivors(path: Path, skip: frozenset[int]) -> TraceChunk:
    return read_trace(path, skip_requests=skip)[1]


_GROUPS = st.lists(
    st.tuples(
        st.integers(0, 4),
        st.lists(st.integers(0, 2), min_size=1, max_size=3),
        st.sampled_from(["", "", "", "q", "ctx", "accept"]),
    ),
    min_size=1,
    max_size=7,
)


@given(groups=_GROUPS, group=st.integers(1, 5))
def test_what_survives_is_always_readable(
    groups: list[tuple[int, list[int], str]], group: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Any mixture of faults: either no request survives, or the rest passes the strict reader unchanged."""
    data = _rows([(request, positions) for request, positions, _ in groups])
    at = 0
    for _, positions, fault in groups:
        if fault == "q":
            data["q"][at] = [float("nan"), 0.5]
        if fault == "ctx":
            data["ctx_len"][at] = None
        if fault == "accept":
            data["accept_len"][at] = 9
        at += len(positions)
    folder = tmp_path_factory.mktemp("any")
    path = _write(folder / "t.parquet", data, group)
    try:
        report = quarantine_requests(path, folder / "q")
    except TraceError as error:
        if "is usable" not in str(error):
            raise
        return
    kept = _survivors(path, report.requests)
    assert kept.rows == report.rows - report.rows_moved
    assert not report.requests & set(kept.request.tolist())
    assert len(np.unique(kept.request)) == report.requests_seen - len(report.reasons)
