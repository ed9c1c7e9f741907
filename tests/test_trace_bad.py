"""Every kind of bad value in a trace: refused with the file, the place, the value, the allowed range and advice."""

from __future__ import annotations

from collections.abc import Callable
from itertools import permutations
from pathlib import Path
from typing import Any

import pytest

from specsim.errors import TraceError
from specsim.trace import open_trace, read_trace
from tests.trace_tables import ARM_META, META, arm_columns, columns, write_raw

NAN, INF = float("nan"), float("inf")


def _set(name: str, row: int, value: Any) -> Callable[[dict[str, Any]], None]:
    def change(data: dict[str, Any]) -> None:
        data[name][row] = value

    return change


def _replace(name: str, values: list[Any]) -> Callable[[dict[str, Any]], None]:
    return lambda data: data.update({name: values})


def _all_lists(row: int, value: Any) -> Callable[[dict[str, Any]], None]:
    def change(data: dict[str, Any]) -> None:
        for name in ("q", "p", "accept_prob", "entropy"):
            data[name][row] = value

    return change


# change, column, row in the file, fragments of the message
BAD_ROWS = {
    "request null": (_set("request", 3, None), "request", 3, ["null", "whole numbers"]),
    "request fraction": (_set("request", 3, 0.5), "request", 3, ["0.5", "whole numbers"]),
    "request negative": (_set("request", 0, -1), "request", 0, ["-1", "between 0 and"]),
    "request too large": (_set("request", 5, 2**31), "request", 5, ["2147483648"]),
    "request descends": (
        _replace("request", [5, 5, 5, 1, 1, 1]),
        "request",
        3,
        ["request 1 follows request 5", "ascending"],
    ),
    "pos null": (_set("pos", 4, None), "pos", 4, ["null"]),
    "pos negative": (_set("pos", 0, -2), "pos", 0, ["-2"]),
    "pos gap": (_set("pos", 5, 3), "pos", 5, ["pos 3 follows pos 1", "every-position", "every-round"]),
    "pos too large": (_set("pos", 4, 2**31), "pos", 4, ["value 2147483648", "between 0 and 2147483647"]),
    "pos repeated": (_set("pos", 1, 0), "pos", 1, ["pos 0 follows pos 0"]),
    "pos starts late": (_set("pos", 3, 1), "pos", 3, ["starts at 1"]),
    "ctx_len below pos": (_set("ctx_len", 4, 0), "ctx_len", 4, ["value 0 at pos 1", "between pos and"]),
    "ctx_len too large": (
        _set("ctx_len", 4, 2**31),
        "ctx_len",
        4,
        ["value 2147483648 at pos 1", "between pos and 2147483647"],
    ),
    "ctx_len null in one row": (_set("ctx_len", 4, None), "ctx_len", 4, ["null", "every row"]),
    "ctx_len null first": (_set("ctx_len", 0, None), "ctx_len", 1, ["earlier rows are null"]),
    "ctx_len NaN": (_set("ctx_len", 2, NAN), "ctx_len", 2, ["nan"]),
    "q above one": (_set("q", 3, [0.5, 1.25]), "q", 3, ["1.25", "list position 1", "between 0 and 1"]),
    "q negative": (_set("q", 3, [-0.5, 1.0]), "q", 3, ["-0.5", "list position 0"]),
    "q NaN": (_set("q", 4, [NAN]), "q", 4, ["NaN", "between 0 and 1"]),
    "q null entry": (_set("q", 0, [0.5, None]), "q", 0, ["null", "list position 1"]),
    "p infinite": (_set("p", 1, [INF]), "p", 1, ["inf"]),
    "accept_prob NaN": (_set("accept_prob", 1, [NAN]), "accept_prob", 1, ["NaN"]),
    "entropy negative": (_set("entropy", 1, [-0.5]), "entropy", 1, ["-0.5", ">= 0"]),
    "entropy infinite": (_set("entropy", 1, [INF]), "entropy", 1, ["inf", "finite"]),
    "unequal lists": (_set("p", 3, [0.5]), "p", 3, ["holds 1 values", "holds 2", "equal lengths"]),
    "m above max_draft_len": (_all_lists(3, [0.5] * 3), "q", 3, ["3 values", "max_draft_len = 2"]),
    "accept_len above m": (_set("accept_len", 4, 2), "accept_len", 4, ["value 2", "m = 1"]),
    "accept_len negative": (_set("accept_len", 4, -1), "accept_len", 4, ["value -1"]),
    "accept_len null": (_set("accept_len", 4, None), "accept_len", 4, ["null"]),
    "accept_len NaN": (_set("accept_len", 4, NAN), "accept_len", 4, ["nan"]),
    "draft_s negative": (_set("draft_s", 0, [0.1, -1.0]), "draft_s", 0, ["-1.0", "list position 1"]),
    "draft_s infinite": (_set("draft_s", 1, [INF]), "draft_s", 1, ["inf"]),
    "verify_s NaN": (_set("verify_s", 3, NAN), "verify_s", 3, ["nan", "null"]),
    "verify_s negative": (_set("verify_s", 3, -0.5), "verify_s", 3, ["-0.5"]),
    "verify_s infinite": (_set("verify_s", 3, INF), "verify_s", 3, ["value inf", "finite numbers >= 0"]),
}


@pytest.mark.parametrize("group", [None, 2], ids=["one-group", "groups-of-2"])
@pytest.mark.parametrize("case", BAD_ROWS, ids=lambda name: name.replace(" ", "-"))
def test_bad_row(case: str, group: int | None, tmp_path: Path) -> None:
    change, column, row, fragments = BAD_ROWS[case]
    data = columns()
    change(data)
    path = tmp_path / "bad.parquet"
    for name in ("request", "ctx_len", "accept_len"):
        if any(isinstance(v, float) for v in data[name]):
            data[name] = [float(v) for v in data[name]]
    write_raw(path, data, META, row_group_size=group)
    with pytest.raises(TraceError) as caught:
        read_trace(path)
    error = caught.value
    assert (error.column, error.row) == (column, row), str(error)
    for fragment in [str(path), repr(column), f"row {row}", *fragments]:
        assert fragment in str(error)
    assert error.allowed
    assert error.advice


# column -> the fault to plant at a row; in the order in which faults of one row are reported
PLANTED: dict[str, Any] = {
    "pos": -7,
    "ctx_len": 2**31,
    "q": [NAN, 0.5],
    "p": [1.5, 0.5],
    "accept_prob": [-1.0, 0.5],
    "entropy": [-1.0, 0.5],
    "draft_s": [-1.0],
    "verify_s": INF,
    "accept_len": -1,
}


@pytest.mark.parametrize("group", [None, 1], ids=["one-group", "groups-of-1"])
@pytest.mark.parametrize(("late", "early"), list(permutations(PLANTED, 2)))
def test_the_earliest_faulty_row_is_named(late: str, early: str, group: int | None, tmp_path: Path) -> None:
    """Whatever the order of the checks: two columns are faulty, and the one whose row comes first is reported."""
    data = columns()
    data[early][0], data[late][3] = PLANTED[early], PLANTED[late]
    with pytest.raises(TraceError) as caught:
        read_trace(write_raw(tmp_path / "t.parquet", data, META, row_group_size=group))
    assert (caught.value.column, caught.value.row, caught.value.request) == (early, 0, 0)


def test_faults_of_one_row_are_named_from_cause_to_consequence(tmp_path: Path) -> None:
    data, names = columns(), list(PLANTED)
    for name in names:
        data[name][3] = PLANTED[name]
    for name in names:  # mend the reported one, and the next comes up
        with pytest.raises(TraceError) as caught:
            read_trace(write_raw(tmp_path / "t.parquet", data, META))
        assert (caught.value.column, caught.value.row) == (name, 3)
        data[name] = columns()[name]
    read_trace(write_raw(tmp_path / "t.parquet", data, META))


def test_fault_is_found_in_a_column_nobody_asked_for(tmp_path: Path) -> None:
    data = columns()
    data["entropy"][4] = [-1.0]
    path = write_raw(tmp_path / "t.parquet", data, META)
    with open_trace(path) as reader, pytest.raises(TraceError, match="entropy"):
        list(reader.chunks(columns=["q"]))


def test_every_round_positions(tmp_path: Path) -> None:
    meta = META | {"coverage": "every-round"}
    data = columns()
    data["pos"], data["ctx_len"] = [0, 3, 4, 2, 5, 9], [9] * 6
    assert read_trace(write_raw(tmp_path / "ok.parquet", data, meta))[1].rows == 6
    data["pos"] = [0, 3, 3, 2, 5, 9]
    with pytest.raises(TraceError, match=r"row 2.*pos 3 follows pos 3.*strictly increasing"):
        read_trace(write_raw(tmp_path / "bad.parquet", data, meta))
    # A request may start anywhere in such a log, but not before its first token, nor past what a column can hold.
    for value in (-1, 2**31):
        data["pos"], data["ctx_len"] = [value, 3, 4, 2, 5, 9], [None] * 6
        with pytest.raises(TraceError, match=rf"'pos', row 0 .*value {value};.*between 0 and 2147483647"):
            read_trace(write_raw(tmp_path / "bad.parquet", data, meta))


@pytest.mark.parametrize("name", list(columns()))
def test_missing_column(name: str, tmp_path: Path) -> None:
    data = columns()
    del data[name]
    with pytest.raises(TraceError, match=f"'{name}'.*missing") as caught:
        open_trace(write_raw(tmp_path / "t.parquet", data, META))
    if name in ("q", "verify_s", "ctx_len"):
        assert "all-null" in str(caught.value)


@pytest.mark.parametrize(
    ("name", "values"),
    [("q", ["a"] * 6), ("accept_len", [True] * 6), ("pos", [[0]] * 6), ("verify_s", ["x"] * 6), ("p", [0.5] * 6)],
)
def test_wrong_column_type(name: str, values: list[Any], tmp_path: Path) -> None:
    with pytest.raises(TraceError, match=f"'{name}'.*has type.*allowed: a column of"):
        open_trace(write_raw(tmp_path / "t.parquet", columns() | {name: values}, META))


BAD_META: dict[str, tuple[Any, str]] = {
    "missing": (None, "no metadata key 'specsim'"),
    "not JSON": ("{nope", "not valid JSON"),
    "NaN in JSON": ('{"schema": NaN}', "not valid JSON"),
    "infinite in JSON": ('{"schema": 1e999}', "not valid JSON"),
    "budget beyond a double": (ARM_META | {"arms": [{"name": "a", "budget": 10**400, "draft_s": 0}]}, r"arms\[0\]"),
    "not an object": ("[1]", "JSON list"),
    "older version": (META | {"schema": "specsim.position_trace/0"}, "position_trace/0.*position_trace/1"),
    "no version": ({k: v for k, v in META.items() if k != "schema"}, "schema = None"),
    "no coverage": ({k: v for k, v in META.items() if k != "coverage"}, "lacks the key 'coverage'"),
    "kind": (META | {"kind": "graph"}, "kind = 'graph'.*length, arm, tree"),
    "kind list": (META | {"kind": ["length"]}, "kind = "),
    "coverage": (META | {"coverage": "some"}, "coverage = 'some'.*every-position, every-round"),
    "block_len": (META | {"block_len": 0}, "block_len = 0.*>= 1"),
    "max_draft_len": (META | {"max_draft_len": -1}, "max_draft_len = -1"),
    "max_draft_len bool": (META | {"max_draft_len": True}, "max_draft_len = True"),
    "max_draft_len text": (META | {"max_draft_len": "8"}, "max_draft_len = '8'"),
    "temperature": (META | {"temperature": -0.1}, "temperature = -0.1"),
    "temperature null": (META | {"temperature": None}, "temperature = None"),
    "exact": (META | {"exact": "yes"}, "exact = 'yes'"),
    "exact sampled": (META | {"temperature": 0.7}, "exact = True.*only a greedy trace"),
    "requests": (META | {"requests": -3}, "requests = -3"),
    "latency": (META | {"latency": [1]}, r"latency = \[1\]"),
    "pass_rule": (META | {"pass_rule": "x"}, "pass_rule = 'x'.*keep-first, per-length"),
    "arm without arms": (META | {"kind": "arm", "draft_len": 3}, "arms = None"),
    "arm without draft_len": (ARM_META | {"draft_len": None}, "draft_len = None"),
    "arms descending": (ARM_META | {"arms": ARM_META["arms"][::-1]}, "ascending budget"),
    "arm without cost": (ARM_META | {"arms": [{"name": "a", "budget": 1}]}, r"arms\[0\].*draft_s"),
    "arm without name": (ARM_META | {"arms": [{"budget": 1, "draft_s": 0}]}, r"arms\[0\].*name"),
}


@pytest.mark.parametrize("case", BAD_META, ids=lambda name: name.replace(" ", "-"))
def test_bad_metadata(case: str, tmp_path: Path) -> None:
    meta, message = BAD_META[case]
    path = write_raw(tmp_path / "t.parquet", columns(), meta)
    with pytest.raises(TraceError, match=message) as caught:
        open_trace(path)
    assert str(path) in str(caught.value)
    assert caught.value.advice


@pytest.mark.parametrize(
    ("change", "column", "fragment"),
    [
        (_set("arm_accept_len", 1, [1]), "arm_accept_len", "each of the 2 arms"),
        (_set("arm_accept_len", 1, None), "arm_accept_len", "null"),
        (_set("arm_accept_len", 1, [1, 5]), "arm_accept_len", "value 5"),
        (_set("arm_accept_len", 1, [-1, 5]), "arm_accept_len", "value -1"),
        (_set("arm_draft_s", 1, [0.1]), "arm_draft_s", "1 values"),
        (_set("arm_draft_s", 1, [0.1, -1.0]), "arm_draft_s", "-1.0"),
    ],
)
def test_bad_arm_row(change: Callable[[dict[str, Any]], None], column: str, fragment: str, tmp_path: Path) -> None:
    data = arm_columns()
    read_trace(write_raw(tmp_path / "ok.parquet", data, ARM_META))
    change(data)
    with pytest.raises(TraceError, match=fragment) as caught:
        read_trace(write_raw(tmp_path / "t.parquet", data, ARM_META))
    assert (caught.value.column, caught.value.row) == (column, 1)


@pytest.mark.parametrize(
    ("topk", "ranks", "column"),
    [
        ([[0.1, 0.5], [0.5]], [0, 0], "topk_q"),
        ([[0.5, NAN], [0.5]], [0, 0], "topk_q"),
        ([None, [0.5]], [0, 0], "topk_q"),
        ([[0.5]], [0, 0], "topk_q"),
        (None, [0, 0], "topk_q"),
        ([[0.5], [0.5]], [0, 1], "target_rank"),
        ([[0.5], [0.5]], [-2, 0], "target_rank"),
        ([[0.5], [0.5]], [0], "target_rank"),
        ([[0.5], [0.5]], None, "target_rank"),
    ],
)
def test_bad_tree_row(topk: Any, ranks: Any, column: str, tmp_path: Path) -> None:
    data = columns()
    data |= {"topk_q": [[[0.5], [0.5]], [[0.5]], []] * 2, "target_rank": [[0, -1], [0], []] * 2}
    meta = META | {"kind": "tree"}
    read_trace(write_raw(tmp_path / "ok.parquet", data, meta))
    data["topk_q"][3], data["target_rank"][3] = topk, ranks
    with pytest.raises(TraceError) as caught:
        read_trace(write_raw(tmp_path / "t.parquet", data, meta))
    assert (caught.value.column, caught.value.row) == (column, 3)
