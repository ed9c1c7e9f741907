"""`python -m specsim.replay` on good input: the document, the tables, and what the options change."""

from __future__ import annotations

import io
import json
import math
import os
import re
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from rich.console import Console

from specsim.controllers import DEFAULT_SET, REGISTRY
from specsim.engine import replay
from specsim.latency import LatencyModel, load_latency
from specsim.report import print_tables
from specsim.trace import TraceChunk, TraceMeta, open_trace, write_trace
from tests.conftest import ROOT
from tests.replay_tools import LATENCY, listing, make_trace, replay_here, replay_process
from tests.trace_tables import META, columns, write_raw

# Key -> type, as docs/formats.md spells the document; None marks what may be null.
RESULT_TYPES: dict[str, tuple[type | None, ...]] = {
    "trace": (str,),
    "controller": (str,),
    "params": (dict,),
    **dict.fromkeys(
        ("requests", "rounds", "tokens", "drafted", "submitted", "accepted", "draft_passes", "clamped_rounds"), (int,)
    ),
    **dict.fromkeys(
        ("tau", "mean_submitted", "time_s", "plain_time_s", "speedup", "throughput", "oracle_mad"), (float,)
    ),
    "acceptance_rate": (float, None),
    "speedup_ci95": (list,),
    "regret_best_fixed_s": (float, None),
    "regret_oracle_s": (float, None),
}
TRACE_TYPES = {"path": str, "rows": int, "requests": int, "exact": bool, "latency": dict}


def check_document(document: dict[str, Any]) -> None:
    """Keys and types exactly as fixed; keys of our own may come on top."""
    assert list(document)[:5] == ["schema", "seed", "acceptance", "traces", "results"]
    assert document["schema"] == "specsim.replay/1"
    for entry in document["traces"]:
        for key, kind in TRACE_TYPES.items():
            assert type(entry[key]) is kind, key
    for row in document["results"]:
        for key, kinds in RESULT_TYPES.items():
            assert (type(row[key]) if row[key] is not None else None) in kinds, (key, row[key])
        assert all(type(v) in (int, float, bool) for v in row["params"].values())
        assert [type(v) for v in row["speedup_ci95"]] in ([float, float], [type(None)] * 2)
        assert row["trace"] in [entry["path"] for entry in document["traces"]]


def test_document(tmp_path: Path) -> None:
    trace = make_trace(tmp_path / "t.parquet", "markov", requests=5, positions=40)
    document = replay_here(trace, "--json").document()
    check_document(document)
    assert (document["seed"], document["acceptance"]) == (0, "logged")
    assert [row["controller"] for row in document["results"]] == [text.partition(":")[0] for text in DEFAULT_SET]
    entry = document["traces"][0]
    assert (entry["path"], entry["rows"], entry["requests"], entry["exact"]) == (str(trace), 200, 5, False)
    assert entry["latency"]["verify"] == LATENCY["verify"]
    by_name = {row["controller"]: row for row in document["results"]}
    plain, static, oracle = by_name["plain"], by_name["static"], by_name["oracle"]
    assert plain["speedup"] == 1.0
    assert plain["acceptance_rate"] is None
    assert plain["tau"] == 1.0
    assert oracle["regret_oracle_s"] == pytest.approx(0.0, abs=1e-12)
    assert static["params"] == {"length": 4}
    assert by_name["libraspec"]["params"]["max"] == 8  # the trace's, below the written 60
    for row in document["results"]:
        assert row["tokens"] == 200
        assert row["speedup"] == pytest.approx(row["plain_time_s"] / row["time_s"], rel=1e-12)
        assert row["throughput"] == pytest.approx(200 / row["time_s"], rel=1e-12)
        assert row["tau"] == (row["accepted"] + row["rounds"]) / row["rounds"]
        assert row["mean_submitted"] == row["submitted"] / row["rounds"]
        low, high = row["speedup_ci95"]
        assert low <= row["speedup"] <= high
        assert row["regret_oracle_s"] == pytest.approx(row["time_s"] - oracle["time_s"], abs=1e-9)


def test_static_by_hand(tmp_path: Path) -> None:
    """Two requests of three positions with m = 2, 1, 0, replayed with pencil and paper."""
    trace = write_raw(tmp_path / "t.parquet", columns(), META | {"latency": LATENCY})
    row = replay_here(trace, "-c", "static:length=2", "--json").document()["results"][0]
    # Request 0: at 0 two drafted, one accepted; at 2 none drafted. Request 1: two drafted and accepted, all is said.
    got = {
        k: row[k] for k in ("rounds", "tokens", "drafted", "submitted", "accepted", "draft_passes", "clamped_rounds")
    }
    assert got == {
        "rounds": 3,
        "tokens": 6,
        "drafted": 4,
        "submitted": 4,
        "accepted": 3,
        "draft_passes": 4,
        "clamped_rounds": 0,
    }
    verify = [0.03 + 0.0005 * s for s in (3, 1, 3)]
    assert row["time_s"] == pytest.approx(sum(verify) + 4 * 0.002 + 3 * 0.0001, rel=1e-12)
    assert row["plain_time_s"] == pytest.approx(6 * 0.0305, rel=1e-12)
    assert row["acceptance_rate"] == 0.75


def test_results_follow_traces_and_flags(tmp_path: Path) -> None:
    """Traces of different max_draft_len, controllers in the order given, twice the same one included, nothing added."""
    b = make_trace(tmp_path / "b.parquet", max_draft_len=3)
    a = make_trace(tmp_path / "a.parquet", max_draft_len=12, seed=1)
    flags = ["oracle", "static:length=7", "goodput", "static:length=7", "plain"]
    args = [part for flag in flags for part in ("--controllers", flag)]
    document = replay_here(b, a, *args, "--json").document()
    names = [flag.partition(":")[0] for flag in flags]
    assert [(row["trace"], row["controller"]) for row in document["results"]] == [
        (str(path), name) for path in (b, a) for name in names
    ]
    first, second = document["results"][:5], document["results"][5:]
    assert first[1] == first[3]
    assert [rows[2]["params"]["max"] for rows in (first, second)] == [3, 12]
    assert first[1]["mean_submitted"] <= 3 < second[1]["mean_submitted"]
    for path, rows in ((b, first), (a, second)):
        assert replay_here(path, *args, "--json").document()["results"] == rows


def test_the_same_file_twice_is_one_trace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trace = make_trace(tmp_path / "t.parquet")
    monkeypatch.chdir(tmp_path)
    absolute = replay_here(trace, "--json").document()
    relative = replay_here("t.parquet", trace, os.path.join(".", "t.parquet"), "--json").document()
    assert [entry["path"] for entry in relative["traces"]] == ["t.parquet"]
    assert absolute["traces"][0] | {"path": "t.parquet"} == relative["traces"][0]
    assert [row | {"trace": "t.parquet"} for row in absolute["results"]] == relative["results"]
    pattern = replay_here("*.parquet", "--json").document()
    assert pattern == relative


def test_same_command_same_bytes(tmp_path: Path) -> None:
    trace = make_trace(tmp_path / "t.parquet", "beta")
    args = (trace, "--json", "--acceptance", "sampled", "--seed", 3)
    fresh = replay_process(*args)
    assert fresh.status == 0, fresh.err
    assert fresh.err == ""
    assert replay_process(*args).out == fresh.out == replay_here(*args).out


def test_seed_moves_sampled_acceptance_only(tmp_path: Path) -> None:
    trace = make_trace(tmp_path / "t.parquet", requests=6)

    def times(mode: str, seed: int) -> list[float]:
        document = replay_here(
            trace, "-c", "static:length=3", "-c", "g4", "--json", "--acceptance", mode, "--seed", seed
        ).document()
        check_document(document) if mode != "expected" else None
        assert (document["seed"], document["acceptance"]) == (seed, mode)
        return [row["time_s"] for row in document["results"]]

    for mode in ("logged", "expected"):
        assert times(mode, 0) == times(mode, 7)
    draws = [times("sampled", seed) for seed in range(12)]
    assert len({tuple(draw) for draw in draws}) == 12
    assert draws[3] == times("sampled", 3)
    # The mean of the draws is the expectation, within five of its standard errors.
    want = np.array(times("expected", 0))
    error = np.std(draws, axis=0, ddof=1) / math.sqrt(len(draws))
    assert (np.abs(np.mean(draws, axis=0) - want) < 5 * error).all()


def test_max_requests(tmp_path: Path) -> None:
    trace = make_trace(tmp_path / "t.parquet", requests=5)
    meta, _ = _whole(trace)
    part = tmp_path / "part.parquet"
    write_trace(part, meta, _rows_of(trace, [0, 1]))
    cut = replay_here(trace, "--max-requests", 2, "--json").document()
    assert (cut["traces"][0]["requests"], cut["traces"][0]["rows"]) == (2, 60)
    assert _without_name(cut["results"]) == _without_name(replay_here(part, "--json").document()["results"])
    whole = replay_here(trace, "--json").document()
    assert replay_here(trace, "--max-requests", 99, "--json").document() == whole


def _whole(path: Path) -> tuple[TraceMeta, TraceChunk]:
    with open_trace(path) as reader:
        (chunk,) = reader.chunks()
        return reader.meta, chunk


def _rows_of(path: Path, requests: list[int]) -> list[TraceChunk]:
    _, chunk = _whole(path)
    edges = [(np.searchsorted(chunk.request, r), np.searchsorted(chunk.request, r, "right")) for r in requests]
    return [chunk.slice(int(a), int(b)) for a, b in edges]


def _without_name(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{key: value for key, value in row.items() if key != "trace"} for row in rows]


def test_quarantine(tmp_path: Path) -> None:
    """Bad requests go aside; the results of the good ones are those of a file that never held the bad ones."""
    whole = make_trace(tmp_path / "whole.parquet", requests=6)
    table = pq.read_table(whole)
    q = table.column("q").to_pylist()
    accept = table.column("accept_len").to_pylist()
    q[35][2] = 1.5  # request 1
    accept[125] = 99  # request 4
    for name, values in (("q", q), ("accept_len", accept)):
        at = table.schema.get_field_index(name)
        field = table.schema.field(name)
        table = table.set_column(at, field, pa.array(values, field.type))
    bad = tmp_path / "bad.parquet"
    pq.write_table(table, bad)
    good = tmp_path / "good.parquet"
    write_trace(good, _whole(whole)[0], _rows_of(whole, [0, 2, 3, 5]))
    assert replay_here(bad, "--json").status == 2
    aside, out = tmp_path / "aside", tmp_path / "out"
    run = replay_here(bad, "--json", "--quarantine", aside, "--out", out)
    document = run.document()
    assert _without_name(document["results"]) == _without_name(replay_here(good, "--json").document()["results"])
    entry = document["traces"][0]
    assert (entry["quarantined_requests"], entry["requests"], entry["rows"]) == (2, 4, 120)
    side = pq.read_table(aside / "bad.quarantined.parquet")
    assert sorted(set(side.column("request").to_pylist())) == [1, 4]
    assert side.num_rows == 60
    reasons = json.loads((aside / "bad.quarantine.json").read_text())["reasons"]
    assert "'q', row 35" in reasons["1"][0]
    assert "'accept_len', row 125" in reasons["4"][0]
    assert json.loads((out / "config.json").read_text())["quarantine"] == str(aside)
    for_people = replay_here(bad, "--quarantine", aside).out
    assert f"2 requests quarantined: {aside / 'bad.quarantined.parquet'}" in for_people
    clean = replay_here(good, "--quarantine", tmp_path / "nothing", "--json").document()
    assert clean["traces"][0]["quarantined_requests"] == 0
    assert not (tmp_path / "nothing").exists()


def test_quarantine_with_no_survivor(tmp_path: Path) -> None:
    data = columns()
    data["accept_len"][0] = data["accept_len"][3] = 9
    bad = write_raw(tmp_path / "bad.parquet", data, META | {"latency": LATENCY})
    run = replay_here(bad, "-c", "plain", "--quarantine", tmp_path / "aside", "--out", tmp_path / "out")
    assert run.status == 2
    assert "none of the 2 requests is usable" in run.err
    assert listing(tmp_path) == ["bad.parquet"]


def test_log_of_executed_rounds(tmp_path: Path) -> None:
    """Coverage every-round: row by row, clamped rounds counted, no regrets, and every output says so."""
    data = columns()
    data["pos"], data["ctx_len"] = [0, 2, 5, 0, 3, 4], [9] * 6
    trace = write_raw(tmp_path / "t.parquet", data, META | {"coverage": "every-round", "latency": LATENCY})
    document = replay_here(trace, "-c", "static:length=2", "-c", "static:length=0", "-c", "oracle", "--json").document()
    check_document(document)
    two, none, oracle = document["results"]
    assert document["traces"][0]["coverage"] == "every-round"
    assert [row["coverage"] for row in document["results"]] == ["every-round"] * 3
    assert [row["rounds"] for row in document["results"]] == [6, 6, 6]
    # Rows hold m = 2, 1, 0 twice: a wish for two tokens is clamped at four of them.
    assert [two["clamped_rounds"], none["clamped_rounds"], oracle["clamped_rounds"]] == [4, 0, 0]
    assert (two["accepted"], two["tokens"]) == (1 + 1 + 0 + 2 + 0 + 0, 6 + 4)
    for row in document["results"]:
        assert row["regret_best_fixed_s"] is None
        assert row["regret_oracle_s"] is None
        assert row["oracle_mad"] is not None
    text = replay_here(trace, "-c", "static:length=2").out
    assert "every-round" in text
    assert "static:length=2 asked for more draft tokens than were recorded in 66.7 % of its rounds" in text


def test_latency_option_goes_before_the_embedded_model(tmp_path: Path) -> None:
    trace = make_trace(tmp_path / "t.parquet")
    model = tmp_path / "latency.json"
    model.write_text(json.dumps(LATENCY | {"draft": {"pass_s": 0.5, "token_s": 0.25}}))
    own = replay_here(trace, "-c", "static:length=4", "--json").document()
    given = replay_here(trace, "-c", "static:length=4", "--latency", model, "--json").document()
    assert given["traces"][0]["latency"]["draft"] == {"pass_s": 0.5, "token_s": 0.25}
    more = given["results"][0]["draft_passes"] * 0.498 + given["results"][0]["drafted"] * 0.25
    assert given["results"][0]["time_s"] - own["results"][0]["time_s"] == pytest.approx(more, rel=1e-9)
    preset = replay_here(trace, "-c", "plain", "--latency", "preset:rtx4090-llama-3.1-8b", "--json").document()
    table = load_latency("preset:rtx4090-llama-3.1-8b").verify_table(1)
    assert preset["results"][0]["time_s"] == pytest.approx(120 * table[1], rel=1e-9)


def test_one_request_has_no_interval(tmp_path: Path) -> None:
    trace = make_trace(tmp_path / "t.parquet", requests=1)
    document = replay_here(trace, "-c", "static:length=2", "--json").document()
    check_document(document)
    assert document["results"][0]["speedup_ci95"] == [None, None]
    assert replay_here(trace, "-c", "static:length=2").status == 0


def test_tables(tmp_path: Path) -> None:
    """Every column of the issue, the numbers of the document, and file names that look like markup as they are."""
    folder = tmp_path / "a [bold]b[red] :smile: folder with a name longer than any table that could be printed below it"
    folder.mkdir()
    trace = make_trace(folder / "x[dim].parquet", "markov")
    run = replay_here(trace, "-c", "static:length=3", "-c", "libraspec:fixpoint=1", "-c", "oracle")
    assert run.status == 0, run.err
    assert f"{trace}  (4 requests, 120 rows, not checked against plain decoding)" in run.out
    header = next(line for line in run.out.splitlines() if "controller" in line)
    for name in ("speedup", "95 %", "tau", "length", "off best", "vs static s", "vs oracle s"):
        assert name in header
    rows = replay_here(trace, "-c", "static:length=3", "--json").document()["results"]
    line = next(line for line in run.out.splitlines() if line.strip().startswith("static:length=3"))
    for value in (f"{rows[0]['speedup']:.3f}", f"{rows[0]['tau']:.2f}", f"{rows[0]['regret_oracle_s']:.2f}"):
        assert value in line.split()
    assert "fixpoint=1" in run.out
    assert "fastest that could be deployed: " in run.out
    assert "-0.00" not in run.out


def test_plain_decoding_is_named_where_it_is_faster() -> None:
    trace = ROOT / "traces" / "humaneval-layer-skip.parquet"
    run = replay_here(trace, "-c", "static:length=8", "--max-requests", "2")
    assert re.search(r"deployed: static:length=8, 0\.\d+x plain decoding; plain decoding is faster\n", run.out)
    assert "is faster" not in replay_here(trace, "-c", "plain", "-c", "static:length=8", "--max-requests", "2").out


def test_help(tmp_path: Path) -> None:
    run = replay_here("--help")
    assert run.status == 0
    for option in (
        "--controllers",
        "--latency",
        "--acceptance",
        "--seed",
        "--max-requests",
        "--quarantine",
        "--plugin",
    ):
        assert option in run.out


def test_plugin_adds_a_controller(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A controller of three plain Python functions, equal to a shipped one, gives its numbers."""
    monkeypatch.setattr("specsim.controllers.REGISTRY", dict(REGISTRY))
    trace, plugin = make_trace(tmp_path / "t.parquet"), tmp_path / "mine.py"
    plugin.write_text(
        "from specsim.controllers import Controller, ControllerSpec, NoParams, Param, register\n"
        "def begin(params, state, lane, pos, ctx_len, u, hint):\n    return -1, 3\n"
        "def revise(params, state, lane, q, drafted, more):\n    return min(3, drafted), 3\n"
        "def update(params, state, lane, arm, drafted, submitted, accepted, round_s):\n    pass\n"
        "def build(values, setting):\n"
        "    rules = dict(begin=begin, revise=revise, update=update)\n"
        "    return Controller(name='three', config=values, params=NoParams(), **rules)\n"
        "x = Param(kind=float, default=0.5)\n"
        "register(ControllerSpec(name='three', params={'x': x}, build=build, doc='three'))\n"
    )
    args = ("--plugin", plugin, "-c", "three", "-c", "static:length=3", "--json")
    mine, shipped = replay_here(trace, *args).document()["results"]
    assert (mine["controller"], mine["params"]) == ("three", {"x": 0.5})
    ignored = ("controller", "params")
    assert {k: v for k, v in mine.items() if k not in ignored} == {k: v for k, v in shipped.items() if k not in ignored}


def test_works_without_a_terminal_width_or_colours(tmp_path: Path) -> None:
    """A pipe gets whole table lines and no escape sequences; COLUMNS of a narrow terminal does not fold numbers."""
    trace = make_trace(tmp_path / "t.parquet")
    run = replay_process(trace, "-c", "failfast", env={"COLUMNS": "40"})
    assert run.status == 0
    assert "\x1b" not in run.out
    assert any("failfast:chunk=10,tau=0.45,max=8" in line and line.count(".") >= 6 for line in run.out.splitlines())
    assert run.err == ""


@pytest.mark.parametrize("width", [40, 80, 99, 100, 200])
def test_tables_of_any_terminal_show_every_number(width: int, tmp_path: Path) -> None:
    """A narrow terminal folds controllers, in the worst case lines, and never cuts a number off."""
    trace = make_trace(tmp_path / "t.parquet")
    spellings = ["plain", "libraspec:alpha=2.2,block=15,shrink_at_cap=1", "failfast"]
    with open_trace(trace) as reader:
        model = LatencyModel.from_dict(LATENCY, where="test")
        result = replay(reader.meta, reader.chunks(["q"]), model, spellings)
    console = Console(file=io.StringIO(), width=width, force_terminal=True, color_system=None)
    print_tables([({"path": "t", "requests": 4, "rows": 120, "exact": True}, result, [])], console)
    text = console.file.getvalue()
    assert max(map(len, text.splitlines()[:-3])) <= max(width, 80)
    for row in result.results:
        line = next(line for line in text.splitlines() if line.strip().startswith(row["controller"]))
        for value in (f"{row['speedup']:.3f}", f"{row['regret_best_fixed_s']:z.2f}", f"{row['regret_oracle_s']:z.2f}"):
            assert value in line.split()
