"""Reading files that other tools wrote, and reading parts of files."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from specsim.chunk import concat_chunks
from specsim.schema import METADATA_KEY, POSITION_SCHEMA, TraceMeta
from specsim.trace import TraceChunk, open_trace, read_trace, write_trace
from tests.strategies import traces
from tests.test_trace_roundtrip import assert_same
from tests.trace_tables import ARM_META, META, arm_columns, columns, write_raw

LISTS = ("q", "p", "accept_prob", "entropy", "draft_s")


def _read(path: Path) -> TraceChunk:
    return read_trace(path)[1]


@pytest.mark.parametrize("value", [pa.float16(), pa.float32(), pa.float64()], ids=str)
@pytest.mark.parametrize("make", [pa.list_, pa.large_list], ids=["list", "large_list"])
@pytest.mark.parametrize("integer", [pa.int16(), pa.uint32(), pa.int64(), pa.float64()], ids=str)
def test_any_lossless_type(value: pa.DataType, make: Any, integer: pa.DataType, tmp_path: Path) -> None:
    expected = _read(write_raw(tmp_path / "a.parquet", columns(), META))
    data = columns() | {"draft_s": [[0.5], None, [], [0.25], [], []], "verify_s": [0.5, None, 0.5, 0.25, 0.5, 0.5]}
    types = dict.fromkeys(("request", "pos", "ctx_len", "accept_len"), integer)
    types |= {name: make(value) for name in LISTS} | {"verify_s": value}
    found = _read(write_raw(tmp_path / "b.parquet", data, META, types=types, row_group_size=2))
    for name in ("request", "pos", "ctx_len", "accept_len", "offsets", "q", "p", "accept_prob", "entropy"):
        np.testing.assert_array_equal(getattr(found, name), getattr(expected, name))
        assert getattr(found, name).dtype == getattr(expected, name).dtype
    np.testing.assert_array_equal(found.verify_s, np.array([0.5, np.nan, 0.5, 0.25, 0.5, 0.5], np.float32))
    np.testing.assert_array_equal(found.draft_offsets, [0, 1, 1, 1, 2, 2, 2])


def test_fixed_size_and_integer_lists(tmp_path: Path) -> None:
    data = columns()
    for name in LISTS[:4]:
        data[name] = [[1, 0]] * 6
    data["p"][4] = None
    types: dict[str, pa.DataType] = dict.fromkeys(LISTS[:3], pa.list_(pa.float64(), 2))
    types |= {"accept_prob": pa.list_(pa.int8())}
    chunk = _read(write_raw(tmp_path / "t.parquet", data, META, types=types))
    np.testing.assert_array_equal(chunk.lengths, 2)
    assert chunk.p is not None
    assert chunk.accept_prob is not None
    np.testing.assert_array_equal(chunk.p, [1, 0] * 4 + [np.nan] * 2 + [1, 0])
    np.testing.assert_array_equal(chunk.accept_prob, [1, 0] * 6)


def test_null_typed_columns_and_null_rows(tmp_path: Path) -> None:
    """A column that its writer saw only nulls in has type null; m is then that of the other lists, or the longest."""
    data: dict[str, Any] = columns()
    data |= {name: pa.nulls(6) for name in ("ctx_len", "q", "p", "verify_s", "draft_s")}
    chunk = _read(write_raw(tmp_path / "a.parquet", data, META))
    assert chunk.ctx_len is chunk.q is chunk.p is chunk.verify_s is chunk.draft_s is chunk.draft_offsets is None
    np.testing.assert_array_equal(chunk.lengths, [2, 1, 0] * 2)
    data |= {"accept_prob": pa.nulls(6), "entropy": pa.nulls(6)}
    np.testing.assert_array_equal(_read(write_raw(tmp_path / "b.parquet", data, META)).lengths, 2)
    data |= {"entropy": pa.array([[]] * 6)}  # list<null>
    data |= {"accept_len": [0] * 6}
    np.testing.assert_array_equal(_read(write_raw(tmp_path / "c.parquet", data, META)).lengths, 0)


def test_empty_and_null_lists_in_the_first_row_group_survive(tmp_path: Path) -> None:
    data = columns()
    data["q"][:3] = [None] * 3
    data["entropy"] = [[], [], [], [0.5, 0.25], [1.0], []]
    for name in ("p", "accept_prob"):
        data[name][:3] = [[], [], []]
    data["accept_len"][:3] = [0, 0, 0]
    path = write_raw(tmp_path / "t.parquet", data, META, row_group_size=3)
    chunk = _read(path)
    np.testing.assert_array_equal(chunk.lengths, [0, 0, 0, 2, 1, 0])
    np.testing.assert_array_equal(chunk.q, np.array([0.5, 0.25, 1.0], np.float32))
    write_trace(tmp_path / "again.parquet", read_trace(path)[0], chunk)
    assert_same(_read(tmp_path / "again.parquet"), chunk)
    stored = pq.read_schema(tmp_path / "again.parquet")
    assert stored.remove_metadata().equals(POSITION_SCHEMA)


def test_request_over_many_row_groups(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("specsim.reader.ROW_GROUP_ROWS", 4)
    n = [1, 9, 2, 1]
    rows = sum(n)
    data = {name: [values[0]] * rows for name, values in columns().items()}
    data["request"] = np.repeat([0, 2, 3, 9], n).tolist()  # gaps between ids are fine
    data["pos"] = [i for count in n for i in range(count)]
    data["ctx_len"] = [20] * rows
    path = write_raw(tmp_path / "t.parquet", data, META, row_group_size=1)
    with open_trace(path) as reader:
        parts = list(reader.chunks())
    assert len(parts) > 1
    assert [r for part in parts for r in np.unique(part.request).tolist()] == [0, 2, 3, 9]
    np.testing.assert_array_equal(concat_chunks(parts).request, data["request"])


@given(trace=traces(max_requests=6), count=st.integers(0, 7), skipped=st.sets(st.integers(0, 12)), data=st.data())
def test_parts_of_a_file(
    trace: tuple[TraceMeta, TraceChunk],
    count: int,
    skipped: set[int],
    data: st.DataObject,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    meta, chunk = trace
    path = tmp_path_factory.mktemp("parts") / "t.parquet"
    group = data.draw(st.integers(2, 8))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("specsim.writer.ROW_GROUP_ROWS", group)
        patch.setattr("specsim.reader.ROW_GROUP_ROWS", group)
        write_trace(path, meta, chunk)
        with open_trace(path) as reader:
            parts = list(reader.chunks(columns=["q"], max_requests=count, skip_requests=skipped))
    wanted = [r for r in np.unique(chunk.request).tolist() if r not in skipped][:count]
    found: list[int] = []
    for part in parts:
        found += np.unique(part.request).tolist()
        assert part.p is part.accept_prob is part.ctx_len is part.verify_s is None
        where = slice(part.first_row, part.first_row + part.rows)
        np.testing.assert_array_equal(part.request, chunk.request[where])
        np.testing.assert_array_equal(part.pos, chunk.pos[where])
    assert found == wanted


def test_unknown_columns_and_keys_are_kept_and_ignored(tmp_path: Path) -> None:
    data = columns() | {"note": list("abcdef"), "blob": [{"a": 1}] * 6}
    meta, chunk = read_trace(write_raw(tmp_path / "t.parquet", data, META | {"engine": {"name": "x"}}))
    assert meta.extra == {"engine": {"name": "x"}}
    assert meta.to_json() == META | {"engine": {"name": "x"}, "pass_rule": "keep-first"}
    write_trace(tmp_path / "u.parquet", meta, chunk, extra_columns={"note": pa.array(data["note"])})
    assert pq.read_table(tmp_path / "u.parquet")["note"].to_pylist() == data["note"]
    assert read_trace(tmp_path / "u.parquet")[0] == meta


def test_arm_file_without_optional_columns(tmp_path: Path) -> None:
    meta, chunk = read_trace(write_raw(tmp_path / "t.parquet", arm_columns(), ARM_META))
    assert meta.n_arms == 2
    np.testing.assert_array_equal(chunk.arm_accept_len, [[1, 2], [0, 4]])
    np.testing.assert_array_equal(chunk.accept_len, [2, 4])
    np.testing.assert_array_equal(chunk.arm_draft_s, np.array([[0.1, 0.2], [np.nan, np.nan]], np.float32))
    np.testing.assert_array_equal(chunk.lengths, 4)


def test_metadata_only_the_required_keys(tmp_path: Path) -> None:
    few = {k: META[k] for k in ("schema", "kind", "coverage", "block_len", "max_draft_len", "temperature")}
    meta, _ = read_trace(write_raw(tmp_path / "t.parquet", columns(), few))
    assert not meta.exact
    assert not meta.prefix_closed
    assert meta.requests is None
    assert meta.pass_rule == "keep-first"


def test_files_are_written_in_bounded_row_groups(tmp_path: Path) -> None:
    rows = 150_000
    chunk = TraceChunk(
        request=np.arange(rows, dtype=np.int32) // 50,
        pos=np.arange(rows, dtype=np.int32) % 50,
        offsets=np.zeros(rows + 1, np.int64),
        accept_len=np.zeros(rows, np.int16),
        entropy=np.zeros(0, np.float32),
    )
    path = tmp_path / "t.parquet"
    write_trace(path, TraceMeta(max_draft_len=3), (chunk.slice(i, i + 10_000) for i in range(0, rows, 10_000)))
    footer = pq.read_metadata(path)
    assert [footer.row_group(i).num_rows for i in range(footer.num_row_groups)] == [65_536, 65_536, 18_928]
    assert METADATA_KEY in footer.metadata
    with open_trace(path) as reader:
        parts = list(reader.chunks())
    assert max(part.rows for part in parts) <= 65_536
    assert_same(concat_chunks(parts), chunk)


def test_base_import_loads_neither_click_nor_a_command() -> None:
    code = (
        "import sys, specsim; assert not [m for m in sys.modules if m.startswith('specsim.')], sys.modules\n"
        "import specsim.trace; assert 'rich' not in sys.modules and 'specsim.trace_cli' not in sys.modules"
    )
    subprocess.run([sys.executable, "-W", "error", "-c", code], check=True)


# VmHWM and not ru_maxrss: the latter starts at what the parent (pytest with 10 million rows) held at the fork.
_MEMORY = """
import sys
from specsim.trace import open_trace
rows = tokens = 0
with open_trace(sys.argv[1]) as reader:
    for chunk in reader.chunks():
        rows += chunk.rows
        tokens += len(chunk.q)
peak = next(line.split()[1] for line in open("/proc/self/status") if line.startswith("VmHWM:"))
print(rows, tokens, peak)
"""


@pytest.mark.slow
@pytest.mark.parametrize("row_group_size", [65_536, 10_000_000], ids=["row-groups", "one-row-group"])
def test_ten_million_rows_stream_through_little_memory(row_group_size: int, tmp_path: Path) -> None:
    """Also for a file of another writer whose only row group holds everything; needs /proc (Linux)."""
    rows = 10_000_000
    ids, pos = np.divmod(np.arange(rows, dtype=np.int32), 100)
    pair = pa.FixedSizeListArray.from_arrays(pa.array(np.tile(np.float32([0.5, 0.25]), rows)), 2).cast(
        pa.list_(pa.float32())
    )
    given = {"request": ids, "pos": pos, "q": pair, "accept_len": np.zeros(rows, np.int16)}
    table = pa.table(
        [given.get(field.name, pa.nulls(rows, field.type)) for field in POSITION_SCHEMA],
        names=POSITION_SCHEMA.names,
    ).replace_schema_metadata({METADATA_KEY: json.dumps(META)})
    path = tmp_path / "big.parquet"
    pq.write_table(table, path, row_group_size=row_group_size, use_dictionary=False)
    done = subprocess.run([sys.executable, "-c", _MEMORY, str(path)], capture_output=True, text=True, check=True)
    found_rows, tokens, peak_kb = map(int, done.stdout.split())
    assert (found_rows, tokens) == (rows, 2 * rows)
    assert peak_kb < 500_000, peak_kb
