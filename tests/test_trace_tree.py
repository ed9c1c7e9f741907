"""Tree traces as files: what a fault says, what quarantine leaves, what `info` and a replay tell."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

from specsim.controllers import DEFAULT_TREE_SET
from specsim.errors import TraceError
from specsim.quarantine import quarantine_requests
from specsim.reader import read_trace
from specsim.schema import DEFAULT_MAX_NODES
from specsim.synth import synthesize
from specsim.synth_cli import main as synth
from specsim.trace import write_trace
from specsim.trace_cli import main
from tests.replay_tools import LATENCY, listing, replay_here
from tests.trace_tables import META, columns, write_raw

NAN = float("nan")
TREE_META = META | {"kind": "tree", "latency": LATENCY}

BAD: dict[str, tuple[Any, Any, str, tuple[str, ...]]] = {
    "rises": (
        [[0.5, 0.125, 0.25], [0.5]],
        [0, 0],
        "topk_q",
        ("0.25 follows 0.125 at rank 2 at draft position 0", "descend"),
    ),
    "NaN": ([[0.5], [0.25, NAN]], [0, 0], "topk_q", ("value NaN or null at rank 1 at draft position 1", "0 and 1")),
    "null inside": ([[0.5, None], [0.5]], [0, 0], "topk_q", ("value NaN or null at rank 1 at draft position 0",)),
    "no probability": ([[0.5], [-0.5]], [0, 0], "topk_q", ("value -0.5 at rank 0 at draft position 1",)),
    "no distribution": ([[0.9, 0.8], [0.5]], [0, 0], "topk_q", ("add up to 1.7 at draft position 0", "at most 1")),
    "null list": ([[0.5], None], [0, 0], "topk_q", ("the list is null at draft position 1",)),
    "null row": (None, [0, 0], "topk_q", ("the value is null",)),
    "too short": ([[0.5]], [0, 0], "topk_q", ("holds 1 values, but another list of the row holds 2",)),
    "rank beyond": ([[0.5], [0.5]], [0, 1], "target_rank", ("value 1 at list position 1", "k - 1")),
    "rank below": ([[0.5], [0.5]], [-2, 0], "target_rank", ("value -2 at list position 0", "-1 (absent)")),
    "rank of nothing": ([[], [0.5]], [0, 0], "target_rank", ("value 0 at list position 0",)),
    "ranks missing": ([[0.5], [0.5]], None, "target_rank", ("the value is null",)),
}


def tree_columns() -> dict[str, list[Any]]:
    return columns() | {"topk_q": [[[0.5, 0.25], [0.25]], [[1.0]], []] * 2, "target_rank": [[0, -1], [0], []] * 2}


@pytest.mark.parametrize("case", BAD, ids=lambda name: name.replace(" ", "-"))
def test_a_fault_names_row_position_and_rank(case: str, tmp_path: Path) -> None:
    topk, ranks, column, fragments = BAD[case]
    data = tree_columns()
    data["topk_q"][3], data["target_rank"][3] = topk, ranks
    path = write_raw(tmp_path / "bad.parquet", data, TREE_META)
    with pytest.raises(TraceError) as caught:
        read_trace(path)
    assert (caught.value.column, caught.value.row, caught.value.request) == (column, 3, 1)
    run = replay_here(path, "--json")
    assert (run.status, run.out) == (2, "")
    for fragment in (str(path), "allowed:", *fragments):
        assert fragment in run.err
    assert listing(tmp_path) == ["bad.parquet"]


def test_quarantine_moves_the_offending_request_alone(tmp_path: Path) -> None:
    """A NaN in one request hides no fault of another."""
    data = {name: values * 2 for name, values in tree_columns().items()}
    data["request"] = [0, 0, 0, 1, 1, 1, 2, 2, 2, 3, 3, 3]
    data["topk_q"][0] = [[NAN], [0.5]]
    data["topk_q"][6] = [[0.9, 0.9], [0.5]]
    path = write_raw(tmp_path / "t.parquet", data, TREE_META)
    report = quarantine_requests(path, tmp_path / "aside")
    assert sorted(report.requests) == [0, 2]
    document = replay_here(path, "--quarantine", tmp_path / "aside", "--json").document()
    assert document["traces"][0]["rows"] == 6


@pytest.mark.parametrize("value", [0, -1, 1.5, "many", True])
def test_bad_max_nodes(value: object, tmp_path: Path) -> None:
    path = write_raw(tmp_path / "bad.parquet", tree_columns(), TREE_META | {"max_nodes": value})
    with pytest.raises(TraceError, match=r"max_nodes.*between 1 and"):
        read_trace(path)


def test_max_nodes_is_kept_and_only_where_it_is_given(tmp_path: Path) -> None:
    meta, chunk = synthesize("iid", requests=2, positions=9, max_draft_len=3, top_k=2)
    for nodes in (None, 7):
        path = tmp_path / f"{nodes}.parquet"
        write_trace(path, dataclasses.replace(meta, max_nodes=nodes), chunk)
        again, rows = read_trace(path)
        assert (again.max_nodes, again.tree_nodes) == (nodes, nodes or DEFAULT_MAX_NODES)
        assert ("max_nodes" in again.to_json()) == (nodes is not None)
        assert np.array_equal(rows.topk_q, chunk.topk_q)
        assert np.array_equal(rows.target_rank, chunk.target_rank)


@pytest.fixture(scope="module")
def trace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("tree") / "tree.parquet"
    meta, chunk = synthesize(
        "beta", latency=LATENCY, requests=4, positions=40, max_draft_len=5, block_len=5, top_k=4, alpha=0.6
    )
    write_trace(path, dataclasses.replace(meta, max_nodes=40), chunk)
    return path


def test_info_counts_lists_and_ranks(trace: Path) -> None:
    result = CliRunner().invoke(main, ["info", "--json", str(trace)], standalone_mode=False)
    tree = json.loads(result.output)["traces"][0]["tree"]
    _, chunk = read_trace(trace)
    assert tree["max_nodes"] == 40
    assert tree["listed"] == {"min": 4, "median": 4, "max": 4}
    shares = tree["target_ranks"]
    assert shares["first"] == pytest.approx((chunk.target_rank == 0).mean())
    assert shares["listed"] + shares["absent"] == pytest.approx(1)
    shown = CliRunner().invoke(main, ["info", str(trace)], standalone_mode=False).output
    assert "up to 40 nodes" in shown
    assert "absent" in shown


def test_replay_by_nodes_by_fewer_nodes_and_by_chain(trace: Path) -> None:
    document = replay_here(trace, "--json").document()
    assert [row["controller"] for row in document["results"]] == [s.partition(":")[0] for s in DEFAULT_TREE_SET]
    assert document["traces"][0]["max_nodes"] == 40
    few = replay_here(trace, "--json", "--max-nodes", 8, "-c", "static:length=8", "-c", "static:length=9").document()
    assert few["traces"][0]["max_nodes"] == 8
    assert few["results"][0]["clamped_rounds"] == 0
    assert few["results"][1]["clamped_rounds"] > 0  # eight nodes were built, and nine asked for
    assert few["results"][0]["time_s"] == few["results"][1]["time_s"]
    chain = replay_here(trace, "--json", "--chain", "-c", "static:length=5", "-c", "threshold").document()
    assert "max_nodes" not in chain["traces"][0]
    assert chain["results"][0]["mean_submitted"] <= 5
    refused = replay_here(trace, "-c", "threshold")
    assert refused.status == 2
    assert "--chain" in refused.err


def test_the_command_makes_tree_traces(tmp_path: Path) -> None:
    path = tmp_path / "made.parquet"
    arguments = ["two-regime", str(path), "--top-k", "3", "--positions", "12", "--requests", "2", "--b-s", "0.02"]
    CliRunner().invoke(synth, arguments, standalone_mode=False, catch_exceptions=False)
    meta, chunk = read_trace(path)
    assert meta.kind == "tree"
    assert set(np.diff(chunk.topk_offsets)) == {3}
    assert replay_here(path, "-c", "caddtree", "--json").document()["results"][0]["controller"] == "caddtree"


def test_replay_tells_what_a_length_is(trace: Path) -> None:
    run = replay_here(trace)
    assert run.status == 0
    assert "trees of up to 40 nodes" in run.out
    assert "best number of nodes in hindsight" in run.out
