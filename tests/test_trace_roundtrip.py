"""What is written is what is read, whatever the cutting into chunks, row groups and requests."""

from __future__ import annotations

import dataclasses
import tempfile
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from specsim import reader as reader_module
from specsim import writer as writer_module
from specsim.chunk import TraceChunk, concat_chunks
from specsim.schema import TraceMeta
from specsim.trace import open_trace, read_trace, write_trace
from tests.strategies import trace_files, traces

KINDS = st.sampled_from(["length", "arm", "tree"])
ANY_TRACE = KINDS.flatmap(lambda kind: traces(kind=kind))


def assert_same(found: TraceChunk, expected: TraceChunk) -> None:
    for field in dataclasses.fields(TraceChunk):
        a, b = getattr(found, field.name), getattr(expected, field.name)
        if a is None or b is None:
            assert a is None, field.name
            assert b is None, field.name
        else:
            np.testing.assert_array_equal(a, b, err_msg=field.name)
            assert np.asarray(a).dtype == np.asarray(b).dtype, field.name


@settings(suppress_health_check=[HealthCheck.too_slow], deadline=None, max_examples=80)
@given(trace=ANY_TRACE, group=st.integers(2, 9), cut=st.integers(1, 20))
def test_round_trip(trace: tuple[TraceMeta, TraceChunk], group: int, cut: int) -> None:
    meta, chunk = trace
    pieces = [chunk.slice(a, min(a + cut, chunk.rows)) for a in range(0, chunk.rows, cut)]
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        path = Path(folder) / "t.parquet"
        patch.setattr(writer_module, "ROW_GROUP_ROWS", group)
        patch.setattr(reader_module, "ROW_GROUP_ROWS", group)
        write_trace(path, meta, iter(pieces))
        with open_trace(path) as reader:
            assert reader.meta == meta
            assert reader.rows == chunk.rows
            parts = list(reader.chunks())
        assert_same(concat_chunks(parts), chunk)
        for before, after in pairwise(parts):
            assert before.request[-1] < after.request[0]
            assert before.first_row + before.rows == after.first_row
        assert [p.name for p in Path(folder).iterdir()] == ["t.parquet"]


@given(data=st.data())
def test_file_strategy(data: st.DataObject) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path, meta, chunk = data.draw(
            trace_files(Path(folder), coverage="every-position", with_ctx=True, id_gaps=False)
        )
        found_meta, found = read_trace(path)
        assert found_meta == meta
        assert meta.coverage == "every-position"
        assert found.ctx_len is not None
        assert np.unique(found.request).tolist() == list(range(len(np.unique(chunk.request))))
        assert_same(found, chunk)
