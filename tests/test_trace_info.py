"""The numbers and the two output forms of `python -m specsim.trace info`."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from hypothesis import given

from specsim.schema import TraceMeta
from specsim.trace import TraceChunk, write_trace
from specsim.trace_cli import main
from specsim.trace_info import trace_info
from tests.strategies import traces
from tests.trace_tables import META, columns, write_raw


def test_numbers_by_hand(tmp_path: Path) -> None:
    data = columns()
    data["accept_prob"] = [[1.0, 0.0], [0.0], [], [1.0, 1.0], [0.5], []]
    data["p"] = [[0.5, 0.5], None, [], [0.5, 0.5], [0.5], []]
    data["entropy"] = [None] * 6
    # accept_len is 1 1 0 | 2 0 0 and m is 2 1 0 | 2 1 0
    found = trace_info(write_raw(tmp_path / "t.parquet", data, META))
    assert (found["rows"], found["requests"]) == (6, 2)
    assert found["positions_per_request"] == {"min": 3, "median": 3, "max": 3}
    assert found["draft_len"] == {"min": 0, "median": 1, "max": 2, "rows_by_length": {"0": 2, "1": 2, "2": 2}}
    assert found["mean_accept_len"] == 4 / 6
    # rounds at pos 0 (1 accepted) and 2 (0); at pos 0 (2 accepted): 3 accepted in 3 rounds
    assert found["tau_full_len"] == 2.0
    assert found["survival"] == [3 / 4, 1 / 2]
    assert found["censored_share"] == 3 / 6  # rows 1, 2 and 5
    assert found["staircase_rate"] == 3 / 4  # only 2 -> 0 falls by more than one
    assert found["accept_prob_binary_share"] == 3 / 4
    assert found["accept_prob_agrees_share"] == 2 / 4  # row 1 says 0 where accept_len is 1
    assert found["null_columns"] == ["entropy"]
    assert found["partly_null_columns"] == ["p", "verify_s"]
    assert not found["has_latency"]
    assert found["metadata"]["coverage"] == "every-position"


@given(trace=traces())
def test_against_plain_loops(trace: tuple[TraceMeta, TraceChunk], tmp_path_factory: pytest.TempPathFactory) -> None:
    meta, chunk = trace
    path = tmp_path_factory.mktemp("info") / "t.parquet"
    write_trace(path, meta, chunk)
    found = trace_info(path)
    m, a = chunk.lengths.tolist(), chunk.accept_len.tolist()
    longest = max(m)
    assert found["mean_accept_len"] == pytest.approx(np.mean(a))
    for i in range(longest):
        assert found["survival"][i] == sum(x > i for x in a) / sum(x > i for x in m)
    assert found["censored_share"] == sum(x == y < longest for x, y in zip(a, m, strict=True)) / chunk.rows
    rounds = accepted = 0
    next_pos, request = 0, -1
    for r, pos, x in zip(chunk.request.tolist(), chunk.pos.tolist(), a, strict=True):
        if meta.coverage == "every-round" or r != request or pos >= next_pos:
            request, next_pos, rounds, accepted = r, pos + x + 1, rounds + 1, accepted + x
    assert found["tau_full_len"] == (accepted + rounds) / rounds
    json.dumps(found, allow_nan=False)


def test_json_is_the_only_output(tmp_path: Path) -> None:
    path = write_raw(tmp_path / "t.parquet", columns(), META)
    command = [sys.executable, "-W", "error", "-m", "specsim.trace", "info", "--json", str(path)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    document = json.loads(done.stdout)
    assert document["schema"] == "specsim.trace_info/1"
    assert document["traces"] == [trace_info(path)]
    assert done.stderr == ""


@pytest.mark.parametrize("kind", ["length", "arm", "tree"])
def test_table_for_every_kind(kind: str, tmp_path: Path) -> None:
    path = tmp_path / "name[with]brackets.parquet"

    @given(trace=traces(kind=kind))
    def shown(trace: tuple[TraceMeta, TraceChunk]) -> None:
        write_trace(path, *trace)
        result = CliRunner().invoke(main, ["info", str(path)], standalone_mode=False)
        assert result.exception is None, result.exception
        assert "[with]" in result.output
        assert "accept_len[i+1]" in result.output
        assert trace[0].coverage in result.output

    shown()


def test_request_count_that_differs_from_the_metadata_is_shown(tmp_path: Path) -> None:
    path = write_raw(tmp_path / "t.parquet", columns(), META | {"requests": 5})
    assert "metadata says 5 requests" in CliRunner().invoke(main, ["info", str(path)]).output
