"""`python -m specsim.theory check`: documents, tables, every kind of trace, refusals."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st

from specsim.engine import replay
from specsim.errors import ConfigError, SpecsimError
from specsim.latency import LatencyModel, save_latency
from specsim.schema import TraceMeta
from specsim.synth import synthesize
from specsim.theory.__main__ import main
from specsim.theory.check import check_facts, check_trace
from specsim.theory.check_record import HOLDS, UNDECIDED, VIOLATED
from specsim.trace import TraceChunk, write_trace
from specsim.trace_info import trace_info
from specsim.validity import rounds_to_trace
from tests.check_worlds import ARM_LATENCY, arm_trace, facts_of, noise_of
from tests.strategies import trace_files

LATENCY = LatencyModel.affine(c_s=0.02, b_s=1.0, draft_pass_s=0.05, overhead_s=0.01)
IDS = [
    "replay-validity",
    "hazard",
    "calibration",
    "calibration-decay",
    "tokens-concave",
    "tau-concave",
    "throughput-peak",
    "convergence:theorem-3.4",
    "convergence:algorithm-1",
    "convergence:algorithm-1-exact-alpha",
    "convergence:repaired-R4",
    "convergence:repaired-R4-table",
]


def run(*args: object) -> Any:
    return CliRunner().invoke(main, ["check", *(str(a) for a in args)], catch_exceptions=True)


def check_json(*args: object) -> dict[str, Any]:
    done = run(*args, "--json", "--bootstrap", 200)
    assert done.exit_code == 0, done.output
    return json.loads(done.stdout)


@pytest.fixture
def length_file(tmp_path: Path) -> Path:
    meta, chunk = synthesize("beta", requests=12, positions=60, max_draft_len=6, latency=LATENCY.to_dict())
    write_trace(tmp_path / "beta.parquet", meta, chunk)
    return tmp_path / "beta.parquet"


def verdicts(document: dict[str, Any], k: int = 0) -> dict[str, dict[str, Any]]:
    return {row["id"]: row for row in document["traces"][k]["properties"]}


def test_document(length_file: Path) -> None:
    found = check_json(length_file, "--seed", 3)
    assert (found["schema"], found["seed"], found["bootstrap"], found["level"]) == (
        "specsim.theory_check/1",
        3,
        200,
        0.95,
    )
    trace = found["traces"][0]
    assert (trace["rows"], trace["requests"], trace["coverage"]) == (720, 12, "every-position")
    assert trace["latency"] == LATENCY.to_dict()
    assert [row["id"] for row in trace["properties"]] == IDS
    assert {row["verdict"] for row in trace["properties"]} <= {HOLDS, VIOLATED, UNDECIDED}
    assert all(row["text"] and row["statement"] for row in trace["properties"])
    assert verdicts(found)["convergence:repaired-R4"]["verdict"] == HOLDS
    assert verdicts(found)["tokens-concave"]["verdict"] == HOLDS


def test_equal_seeds_give_equal_documents(length_file: Path) -> None:
    first, again = run(length_file, "--json", "--bootstrap", 200), run(length_file, "--json", "--bootstrap", 200)
    assert first.stdout == again.stdout


def test_table_names_every_property_and_rule(length_file: Path) -> None:
    done = run(length_file)
    assert done.exit_code == 0
    for name in IDS:
        assert name.partition(":")[2] or name in done.output
    assert "accept_prob; " in done.output
    assert "accepted given that all before were" in done.output
    # The lines that hold the path are as long as the path.
    assert max(len(line) for line in done.output.splitlines() if ".parquet" not in line and "told" not in line) <= 120


def test_given_latency_replaces_the_embedded_one(length_file: Path, tmp_path: Path) -> None:
    other = LatencyModel.affine(c_s=0.5, b_s=1.0)
    save_latency(tmp_path / "other.json", other)
    found = check_json(length_file, "--latency", tmp_path / "other.json")
    assert found["traces"][0]["latency"]["verify"]["c_s"] == 0.5
    assert verdicts(found)["throughput-peak"] != verdicts(check_json(length_file))["throughput-peak"]


def test_level_widens_the_bands(length_file: Path) -> None:
    halves = [
        verdicts(check_json(length_file, "--level", level))["hazard"]["details"]["half_width"] for level in (0.8, 0.999)
    ]
    assert all(a < b for a, b in zip(*halves, strict=True))


def test_arm_trace(tmp_path: Path) -> None:
    meta, chunk = arm_trace(0, [1.0, 1.5, 1.8], [0.01, 0.02, 0.03])
    write_trace(tmp_path / "arms.parquet", replace(meta, latency=ARM_LATENCY.to_dict()), chunk)
    found = verdicts(check_json(tmp_path / "arms.parquet"))
    assert list(found) == ["replay-validity", "mu-concave", "nu-peak"]
    assert found["mu-concave"]["verdict"] == HOLDS
    assert found["nu-peak"]["details"]["argmax"] == ["arm-0"]
    assert found["nu-peak"]["details"]["mu"] == pytest.approx([2.0, 2.5, 2.8], abs=0.15)
    assert found["nu-peak"]["details"]["cost_s"] == pytest.approx([0.01, 0.02, 0.03])
    assert run(tmp_path / "arms.parquet").exit_code == 0


def test_log_of_rounds(tmp_path: Path) -> None:
    meta, chunk = synthesize("iid", requests=12, positions=100, max_draft_len=8, latency=LATENCY.to_dict())
    rounds = replay(meta, [chunk], LATENCY, ["static:length=4"], keep_rounds=True).rounds[0]
    write_trace(tmp_path / "log.parquet", *rounds_to_trace(meta, chunk, rounds))
    found = verdicts(check_json(tmp_path / "log.parquet"))
    assert found["replay-validity"]["verdict"] == VIOLATED
    assert "mostly 4" in found["replay-validity"]["text"]
    assert found["replay-validity"]["details"]["logged_lengths"]["4"] > 0.9
    for name in ("tau-concave", "throughput-peak"):
        assert found[name]["verdict"] == UNDECIDED
    assert found["hazard"]["verdict"] == HOLDS  # acceptance at the starts of rounds is still acceptance
    whole = rounds_to_trace(meta, chunk, rounds, whole_drafts=True)
    write_trace(tmp_path / "whole.parquet", *whole)
    assert verdicts(check_json(tmp_path / "whole.parquet"))["replay-validity"]["details"]["whole_drafts"]


def test_replay_validity_numbers_are_those_of_info(length_file: Path) -> None:
    details = verdicts(check_json(length_file))["replay-validity"]["details"]
    info = trace_info(length_file)
    assert details["staircase_rate"] == info["staircase_rate"]
    assert details["censored_share"] == info["censored_share"]


def test_shipped_traces_are_checked() -> None:
    folder = Path(__file__).resolve().parent.parent / "traces"
    found = check_json(*sorted(folder.glob("*-layer-skip.parquet")))
    for k in range(len(found["traces"])):
        assert [row["id"] for row in found["traces"][k]["properties"]] == IDS
        assert verdicts(found, k)["convergence:repaired-R4-table"]["details"]["p"].startswith("estimated out of fold")


def test_refusals(tmp_path: Path, length_file: Path) -> None:
    meta, chunk = synthesize("iid", requests=2, positions=10, max_draft_len=3)
    write_trace(tmp_path / "bare.parquet", meta, chunk)
    with pytest.raises(ConfigError, match="holds no latency model"):
        check_trace(tmp_path / "bare.parquet")
    with pytest.raises(ConfigError, match="no ctx_len"):
        check_trace(tmp_path / "bare.parquet", LatencyModel.affine(c_s=0.1, b_s=1.0, ctx_s=0.001))
    for args in ((tmp_path / "no*.parquet",), (length_file, "--latency", "preset:nope")):
        done = run(*args)
        assert isinstance(done.exception, SpecsimError)
        assert done.stdout == ""
    assert run(length_file, "--level", 1).exit_code == 2


@given(data=st.data())
@settings(max_examples=25)
def test_any_valid_trace_is_answered(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    """Null columns, rows without drafts, a single request, trees, logs: verdicts, never an exception or a NaN."""
    folder = tmp_path_factory.mktemp("any", numbered=True)
    kind = data.draw(st.sampled_from(["length", "arm", "tree"]))
    path, _, _ = data.draw(trace_files(folder, kind=kind))
    checked = check_trace(path, LATENCY, resamples=100)
    json.dumps(checked.to_json(), allow_nan=False)
    assert {verdict.verdict for verdict in checked.verdicts} <= {HOLDS, VIOLATED, UNDECIDED}


def test_drafts_of_length_zero_are_answered() -> None:
    """A drafter that never offered anything: nothing to decide, nothing violated."""
    rows = 90
    chunk = TraceChunk(
        request=np.repeat(np.arange(9), 10).astype(np.int32),
        pos=np.tile(np.arange(10), 9).astype(np.int32),
        offsets=np.zeros(rows + 1, np.int64),
        accept_len=np.zeros(rows, np.int16),
    )
    facts = facts_of(TraceMeta(max_draft_len=4), chunk, LATENCY)
    info = {"rows": rows, "censored_share": 1.0, "staircase_rate": None}
    found = {v.id: v.verdict for v in check_facts(facts, noise_of(facts), info)}
    assert set(found) == set(IDS)
    assert VIOLATED not in found.values()
