"""Round logs: exact types, nulls, atomic files, refusals."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from specsim.errors import ConfigError, TraceError
from specsim.roundlog import RoundLogWriter, read_round_log
from specsim.schema import METADATA_KEY, ROUND_LOG_SCHEMA

INTS = [f.name for f in ROUND_LOG_SCHEMA if pa.types.is_integer(f.type)]
TIMES = ["draft_s", "verify_s", "overhead_s", "round_s"]


def rounds(count: int, **changes: Any) -> dict[str, Any]:
    columns: dict[str, Any] = {name: np.arange(count) for name in INTS}
    columns |= {name: np.linspace(0, 1, count) for name in TIMES}
    return columns | {"run_id": "r1", "warmup": False} | changes


@given(sizes=st.lists(st.integers(0, 30), max_size=5), group=st.integers(1, 40))
def test_round_trip(sizes: list[int], group: int, tmp_path_factory: pytest.TempPathFactory) -> None:
    path = tmp_path_factory.mktemp("log") / "rounds.parquet"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("specsim.roundlog.ROW_GROUP_ROWS", group)
        with RoundLogWriter(path, {"controller": "static:length=3"}) as log:
            for size in sizes:
                log.write(rounds(size))
            assert log.rows == sum(sizes)
    run, columns = read_round_log(path)
    assert run == {"schema": "specsim.round_log/1", "controller": "static:length=3"}
    assert list(columns) == ROUND_LOG_SCHEMA.names
    for field in ROUND_LOG_SCHEMA:
        values = columns[field.name]
        assert values.dtype == np.dtype(field.type.to_pandas_dtype()), field.name
        expected = [np.broadcast_to(rounds(size)[field.name], size) for size in sizes]
        assert values.tolist() == [v for part in expected for v in part.tolist()]
    assert pq.read_schema(path).remove_metadata().equals(ROUND_LOG_SCHEMA)


def test_nulls_and_scalars(tmp_path: Path) -> None:
    path = tmp_path / "r.parquet"
    with RoundLogWriter(path, {}) as log:
        log.write(rounds(2, ctx_len=None, arm=None, draft_s=np.array([0.5, np.nan]), verify_s=float("nan")))
        log.write(rounds(1) | dict.fromkeys(INTS, np.int64(3)) | dict.fromkeys(TIMES, np.float32(0.5)))
    _, columns = read_round_log(path)
    assert columns["ctx_len"].tolist() == [-1, -1, 3]
    assert columns["arm"].tolist() == [-1, -1, 3]
    np.testing.assert_array_equal(columns["draft_s"], [0.5, np.nan, 0.5])
    np.testing.assert_array_equal(columns["verify_s"], [np.nan, np.nan, 0.5])
    assert pq.read_table(path)["ctx_len"].null_count == 2


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"pos": 2**31}, "'pos'.*does not fit"),
        ({"arm": np.array([1, 40_000])}, "'arm'.*does not fit"),
        ({"accepted_len": np.array([0.5, 1.0])}, "'accepted_len'.*does not fit"),
        ({"round_s": np.array([0.1, np.nan])}, "'round_s', row 0|'round_s', row 1"),
        ({"round_s": float("nan")}, "'round_s'.*null or NaN"),
        ({"request": None}, "'request'.*null"),
        ({"lane": np.arange(3)}, "values"),
        ({"tau": 1.0}, "'tau'.*unknown"),
    ],
)
def test_refusals(changes: dict[str, Any], message: str, tmp_path: Path) -> None:
    path = tmp_path / "r.parquet"
    path.write_text("old")
    with pytest.raises(TraceError, match=message), RoundLogWriter(path, {}) as log:
        log.write(rounds(2, **changes))
    assert path.read_text() == "old"
    assert [p.name for p in tmp_path.iterdir()] == ["r.parquet"]


def test_missing_column_and_folder(tmp_path: Path) -> None:
    incomplete = rounds(1)
    del incomplete["warmup"]
    log = RoundLogWriter(tmp_path / "r.parquet", {})
    with pytest.raises(TraceError, match=r"'warmup'.*missing"):
        log.write(incomplete)
    log.abort()
    log.abort()
    log.close()
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(ConfigError, match="does not exist"):
        RoundLogWriter(tmp_path / "no" / "r.parquet", {})


def test_unreadable_logs(tmp_path: Path) -> None:
    path = tmp_path / "r.parquet"
    with RoundLogWriter(path, {}) as log:
        log.write(rounds(3))
    table = pq.read_table(path)
    pq.write_table(table.replace_schema_metadata({METADATA_KEY: b'{"schema": "other"}'}), tmp_path / "a.parquet")
    pq.write_table(table.replace_schema_metadata({METADATA_KEY: b"{"}), tmp_path / "b.parquet")
    pq.write_table(table.drop_columns(["lane"]), tmp_path / "c.parquet")
    at = table.schema.get_field_index("arm")
    pq.write_table(table.set_column(at, "arm", pa.array(["x"] * 3)), tmp_path / "d.parquet")
    pq.write_table(table.append_column("more", pa.array([1, 2, 3])), tmp_path / "e.parquet")
    for name, message in {"a": "'other'", "b": "None", "c": "'lane'.*missing", "d": "'arm'.*string"}.items():
        with pytest.raises(TraceError, match=message):
            read_round_log(tmp_path / f"{name}.parquet")
    assert "more" not in read_round_log(tmp_path / "e.parquet")[1]
    with pytest.raises(TraceError, match="does not exist"):
        read_round_log(tmp_path / "none.parquet")
