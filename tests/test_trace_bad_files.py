"""Every kind of bad file: refused whole, with advice and exit status 2; a writer leaves none behind."""

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
from click.testing import CliRunner

from specsim.errors import ConfigError, TraceError
from specsim.schema import METADATA_KEY, TraceMeta
from specsim.trace import TraceChunk, expand_paths, read_trace, write_trace
from specsim.trace_cli import main
from tests.trace_tables import ARM_META, META, columns, write_raw


def _bad_files(folder: Path) -> dict[str, tuple[str, str]]:
    """Name -> (argument, part of the message)."""
    good = write_raw(folder / "good.parquet", columns(), META).read_bytes()
    (folder / "cut.parquet").write_bytes(good[: len(good) // 2])
    (folder / "text.parquet").write_text("request,pos\n0,0\n" * 10)
    (folder / "empty.parquet").write_bytes(b"")
    (folder / "sub").mkdir()
    write_raw(folder / "norows.parquet", {n: pa.array([], _type(n)) for n in columns()}, META)
    return {
        "truncated": (str(folder / "cut.parquet"), "truncated"),
        "not parquet": (str(folder / "text.parquet"), "not a parquet file"),
        "empty": (str(folder / "empty.parquet"), "empty"),
        "directory": (str(folder / "sub"), "directory"),
        "absent": (str(folder / "absent.parquet"), "does not exist"),
        "pattern": (str(folder / "none*.parquet"), "pattern matches no file"),
        "no rows": (str(folder / "norows.parquet"), "no rows"),
    }


def _type(name: str) -> pa.DataType:
    if name in ("request", "pos", "ctx_len", "accept_len"):
        return pa.int32()
    return pa.float32() if name == "verify_s" else pa.list_(pa.float32())


@pytest.mark.parametrize("case", ["truncated", "not parquet", "empty", "directory", "absent", "pattern", "no rows"])
def test_bad_file(case: str, tmp_path: Path) -> None:
    argument, fragment = _bad_files(tmp_path)[case]
    with pytest.raises(TraceError, match=fragment) as caught:
        read_trace(argument)
    assert argument in str(caught.value)
    assert caught.value.advice


def test_damaged_page_is_noticed(tmp_path: Path) -> None:
    path = tmp_path / "t.parquet"
    rows = 5000
    rng = np.random.default_rng(0)
    chunk = TraceChunk(
        request=np.zeros(rows, np.int32),
        pos=np.arange(rows, dtype=np.int32),
        offsets=np.arange(rows + 1),
        accept_len=np.zeros(rows, np.int16),
        q=rng.random(rows, dtype=np.float32),
    )
    write_trace(path, TraceMeta(max_draft_len=1), chunk)
    data = bytearray(path.read_bytes())
    middle = len(data) // 2
    data[middle : middle + 64] = bytes(b ^ 0x5A for b in data[middle : middle + 64])
    path.write_bytes(bytes(data))
    with pytest.raises(TraceError, match="cannot be read"):
        read_trace(path)


def test_expand_paths(tmp_path: Path) -> None:
    a = write_raw(tmp_path / "a.parquet", columns(), META)
    b = write_raw(tmp_path / "b.parquet", columns(), META)
    odd = write_raw(tmp_path / "odd[1].parquet", columns(), META)
    assert expand_paths([b, a, tmp_path / "." / "b.parquet"]) == [b, a]
    assert expand_paths([str(tmp_path / "?.parquet")]) == [a, b]
    assert expand_paths([odd]) == [odd]
    for arguments in ([], [tmp_path], [tmp_path / "x*"], [a, tmp_path / "none"]):
        with pytest.raises(TraceError):
            expand_paths(arguments)


def test_writer_refuses_and_leaves_nothing(tmp_path: Path) -> None:
    meta = TraceMeta(max_draft_len=2)
    base: dict[str, Any] = {
        "request": np.zeros(2, np.int32),
        "pos": np.arange(2, dtype=np.int32),
        "offsets": np.array([0, 2, 4]),
        "accept_len": np.zeros(2, np.int16),
    }
    ok = TraceChunk(**base)
    bad = {
        "accept_len": TraceChunk(**base | {"accept_len": np.array([0, 3], np.int16)}),
        "NaN or null": TraceChunk(**base, q=np.array([0.5, 0.5, 0.5, np.nan], np.float32)),
        "no list column": TraceChunk(**base | {"offsets": np.array([0, 1, 2])}),
    }
    path = tmp_path / "t.parquet"
    for message, chunk in bad.items():
        with pytest.raises(TraceError, match=message):
            write_trace(path, meta, chunk)
    with pytest.raises(TraceError, match="no rows"):
        write_trace(path, meta, [])
    with pytest.raises(TraceError, match="block_len"):
        write_trace(path, TraceMeta(max_draft_len=2, block_len=0), ok)
    with pytest.raises(TraceError, match=r"'arm_accept_len'.*missing"):
        write_trace(path, TraceMeta.from_json(ARM_META), ok)
    with pytest.raises(TraceError, match="'note'"):
        write_trace(path, meta, ok, extra_columns={"note": np.zeros(3)})
    with pytest.raises(ConfigError, match="does not exist"):
        write_trace(tmp_path / "no" / "t.parquet", meta, ok)
    with pytest.raises(ConfigError, match="directory"):
        write_trace(tmp_path, meta, ok)
    assert list(tmp_path.iterdir()) == []


def test_interrupted_write_keeps_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "t.parquet"
    path.write_text("old")

    def chunks():
        yield read_trace(write_raw(tmp_path / "src.parquet", columns(), META))[1]
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_trace(path, TraceMeta.from_json(META), chunks())
    assert path.read_text() == "old"
    assert sorted(p.name for p in tmp_path.iterdir()) == ["src.parquet", "t.parquet"]


def test_exit_status_of_the_command(tmp_path: Path) -> None:
    """One subprocess for the real exit status; the other cases go through click in this process."""
    data = columns()
    data["q"][3] = [0.5, 7.0]
    path = write_raw(tmp_path / "bad.parquet", data, META)
    done = subprocess.run(
        [sys.executable, "-W", "error", "-m", "specsim.trace", "info", str(path)], capture_output=True, text=True
    )
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.startswith(f"error: {path}, column 'q', row 3 (request 1): value 7.0")
    good = write_raw(tmp_path / "good.parquet", columns(), META)
    result = CliRunner().invoke(main, ["check", str(path), str(good)], standalone_mode=False)
    assert result.return_value == 2
    assert "good.parquet: ok, 2 requests, 6 rows" in result.output


def test_metadata_survives_a_foreign_rewrite(tmp_path: Path) -> None:
    """Tools that keep schema metadata (pyarrow, pandas) keep a trace a trace."""
    path = write_raw(tmp_path / "a.parquet", columns(), META)
    table = pq.read_table(path)
    assert json.loads(table.schema.metadata[METADATA_KEY]) == META
    pq.write_table(table.append_column("note", pa.array(list("abcdef"))), tmp_path / "b.parquet")
    assert read_trace(tmp_path / "b.parquet")[0] == read_trace(path)[0]


def test_damaged_bytes_anywhere_are_a_trace_error_or_harmless(tmp_path: Path) -> None:
    """Cut at any byte, or with some bytes replaced, a file is refused as a TraceError and nothing else."""
    whole = write_raw(tmp_path / "t.parquet", columns(), META, row_group_size=2).read_bytes()
    rng = np.random.default_rng(0)
    refused = 0
    for case in range(200):
        data = bytearray(whole)
        if case % 3 == 0:
            data = data[: rng.integers(1, len(data))]
        else:
            for at in rng.integers(0, len(data), size=rng.integers(1, 6)):
                data[at] = rng.integers(0, 256)
        (tmp_path / "damaged.parquet").write_bytes(data)
        try:
            read_trace(tmp_path / "damaged.parquet")
        except TraceError:
            refused += 1
    assert refused > 100
