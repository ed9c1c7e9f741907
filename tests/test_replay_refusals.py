"""What `python -m specsim.replay` refuses: exit status 2, a message that says where, what and what to do, no output."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from specsim.controllers import REGISTRY
from tests.replay_tools import LATENCY, assert_refused, listing, make_trace, replay_here, replay_process
from tests.test_trace_bad import BAD_META, BAD_ROWS
from tests.trace_tables import ARM_META, META, arm_columns, columns, write_raw

GOOD_META = META | {"latency": LATENCY}


def refused(folder: Path, *args: object, fragments: tuple[str, ...] = ()) -> None:
    """The command with these arguments, once with and once without --json, writes nothing and says the fragments."""
    before = listing(folder)
    out = folder / "made" / "on the way" / "out"
    for extra in ((), ("--json",), ("--json", "--out", out), ("--out", folder / "out", "--force")):
        assert_refused(replay_here(*args, *extra), folder, before, "error", *fragments)


@pytest.mark.parametrize("case", BAD_ROWS, ids=lambda name: name.replace(" ", "-"))
def test_bad_row(case: str, tmp_path: Path) -> None:
    change, column, row, found = BAD_ROWS[case]
    data = columns()
    change(data)
    for name in ("request", "ctx_len", "accept_len"):
        if any(isinstance(value, float) for value in data[name]):
            data[name] = [float(value) for value in data[name]]
    path = write_raw(tmp_path / "bad.parquet", data, GOOD_META)
    fragments = (str(path), f"column {column!r}", f"row {row}", "allowed:", *found)
    refused(tmp_path, path, "-c", "static:length=1", fragments=fragments)


@pytest.mark.parametrize("name", list(columns()))
def test_missing_column(name: str, tmp_path: Path) -> None:
    data = columns()
    del data[name]
    path = write_raw(tmp_path / "bad.parquet", data, GOOD_META)
    refused(tmp_path, path, "-c", "plain", fragments=(str(path), f"column {name!r}", "missing", "allowed:"))


@pytest.mark.parametrize("case", BAD_META, ids=lambda name: name.replace(" ", "-"))
def test_bad_metadata(case: str, tmp_path: Path) -> None:
    path = write_raw(tmp_path / "bad.parquet", columns(), BAD_META[case][0])
    refused(tmp_path, path, "--latency", "preset:h100-llama-2-7b", "-c", "plain", fragments=(str(path), "metadata"))


def _broken_files(folder: Path) -> dict[str, tuple[str, str]]:
    whole = write_raw(folder / "whole.parquet", columns(), GOOD_META)
    content = whole.read_bytes()
    (folder / "cut.parquet").write_bytes(content[: len(content) // 2])
    (folder / "text.parquet").write_text("request,pos\n0,0\n" * 10)
    (folder / "empty.parquet").write_bytes(b"")
    (folder / "sub").mkdir()
    empty = {name: pa.array([], pa.array(values).type) for name, values in columns().items()}
    write_raw(folder / "norows.parquet", empty, GOOD_META)
    return {
        "truncated": ("cut.parquet", "truncated"),
        "not parquet": ("text.parquet", "not a parquet file"),
        "empty file": ("empty.parquet", "empty"),
        "directory": ("sub", "directory"),
        "absent": ("absent.parquet", "does not exist"),
        "zero rows": ("norows.parquet", "no rows"),
        "unmatched pattern": ("none/*.parquet", "pattern matches no file"),
    }


@pytest.mark.parametrize(
    "case", ["truncated", "not parquet", "empty file", "directory", "absent", "zero rows", "unmatched pattern"]
)
def test_broken_file(case: str, tmp_path: Path) -> None:
    name, found = _broken_files(tmp_path)[case]
    refused(tmp_path, tmp_path / name, fragments=(str(tmp_path / name), found))
    # Also behind a good one: nothing of the good one is written.
    refused(
        tmp_path, tmp_path / "whole.parquet", tmp_path / name, "-c", "plain", fragments=(str(tmp_path / name), found)
    )


def test_a_bad_row_in_the_second_trace_leaves_nothing_of_the_first(tmp_path: Path) -> None:
    good = make_trace(tmp_path / "good.parquet")
    data = columns()
    data["accept_len"][5] = 1
    bad = write_raw(tmp_path / "bad.parquet", data, GOOD_META)
    refused(tmp_path, good, bad, "-c", "plain", fragments=(str(bad), "'accept_len'", "row 5", "m = 0"))


@pytest.mark.parametrize(
    ("spelling", "fragments"),
    [
        ("libraspek", ("unknown controller 'libraspek'", "did you mean 'libraspec'?", "greedy-oracle")),
        ("zzz", ("unknown controller 'zzz'", "known:", "static")),
        ("", ("unknown controller ''",)),
        ("static", ("'static' needs length", "static:length=VALUE")),
        ("static:lenght=3", ("'static' has no parameter 'lenght'", "did you mean 'length'?", "it takes: length")),
        ("plain:length=3", ("'plain' has no parameter 'length'", "none")),
        ("static:length=-1", ("length=-1", "[0, 32766]")),
        ("static:length=32768", ("length=32768", "[0, 32766]")),
        ("static:length=2.5", ("length=2.5", "an integer")),
        ("static:length=nan", ("length=nan", "an integer")),
        ("libraspec:alpha=0", ("alpha=0", "> 0")),
        ("libraspec:alpha=-2", ("alpha=-2", "> 0")),
        ("libraspec:alpha=inf", ("alpha=inf", "finite")),
        ("libraspec:alpha=nan", ("alpha=nan", "finite")),
        ("libraspec:alpha=two", ("alpha=two", "finite number")),
        ("libraspec:block=0", ("block=0",)),
        ("libraspec:fixpoint=maybe", ("fixpoint=maybe", "0 or 1")),
        ("threshold:tau=1.5", ("tau=1.5", "[0, 1]")),
        ("threshold:tau=-0.1", ("tau=-0.1", "[0, 1]")),
        ("threshold:max=-1", ("max=-1",)),
        ("specdecpp:h=1.01", ("h=1.01", "[0, 1]")),
        ("specdecpp:min=-1", ("min=-1",)),
        ("failfast:chunk=0", ("chunk=0",)),
        ("failfast:tau=nan", ("tau=nan",)),
        ("g4:up=-1", ("up=-1",)),
        ("g4:min=9,max=3", ("min=9", "max=3")),
        ("hf-heuristic:start=0", ("start=0", "[1, ")),
        ("goodput:max=x", ("max=x", "an integer")),
        ("static:length", ("'length' is not key=value", "static:key=value")),
        ("static:length=", ("is not key=value",)),
        ("static:=3", ("is not key=value",)),
        ("static:length=3,", ("is not key=value",)),
        ("static:length=3,length=4", ("given twice",)),
    ],
)
def test_bad_controller(spelling: str, fragments: tuple[str, ...], tmp_path: Path) -> None:
    refused(tmp_path, make_trace(tmp_path / "t.parquet"), "-c", "plain", "-c", spelling, fragments=fragments)


def _latency(**changes: Any) -> str:
    return json.dumps(LATENCY | changes)


@pytest.mark.parametrize(
    ("text", "fragments"),
    [
        (None, ("cannot be read", "presets")),
        ("", ("line 1", "JSON")),
        ("{", ("line 1", "JSON")),
        ("\xff", ("UTF-8",)),
        ("[]", ("a JSON object",)),
        ('{"schema": "specsim.latency/1", "verify": {"form": "affine", "c_s": NaN, "b_s": 1}}', ("NaN", "finite")),
        (_latency(schema="specsim.latency/2"), ("specsim.latency/2", "specsim.latency/1")),
        (_latency(verify={"form": "cubic"}), ("cubic", "affine")),
        (_latency(verify={"form": "affine", "c_s": -1e-3, "b_s": 0.03}), ("c_s", "-0.001")),
        (_latency(verify={"form": "affine", "c_s": 0.0, "b_s": 0.0}), ("verify(1)",)),
        (_latency(verify={"form": "step", "edges": [1, 4], "times_s": [0.2, 0.1]}), ("times_s",)),
        (_latency(overhead_s=-1), ("overhead_s", "-1")),
        (_latency(draft={"pass_s": "x"}), ("pass_s", "x")),
        (_latency(draft={"pass": 1}), ("draft.pass is", "'pass_s'")),
    ],
)
def test_bad_latency_file(text: str | None, fragments: tuple[str, ...], tmp_path: Path) -> None:
    trace = make_trace(tmp_path / "t.parquet")
    path = tmp_path / "latency.json"
    if text is not None:
        path.write_bytes(text.encode("latin-1"))
    refused(tmp_path, trace, "--latency", path, "-c", "plain", fragments=(str(path), *fragments))


def test_latency_that_is_a_folder_or_no_preset(tmp_path: Path) -> None:
    trace = make_trace(tmp_path / "t.parquet")
    refused(tmp_path, trace, "--latency", tmp_path, fragments=(str(tmp_path), "cannot be read"))
    refused(tmp_path, trace, "--latency", "preset:h100-lama-2-7b", fragments=("Did you mean preset:h100-llama-2-7b?",))


def test_no_latency_anywhere_says_how_to_get_one(tmp_path: Path) -> None:
    trace = make_trace(tmp_path / "t.parquet", latency=None)
    wanted = (
        "no latency model",
        "--latency",
        "specsim.latency fit",
        "real.probe --latency-only",
        "specsim.latency presets",
    )
    refused(tmp_path, trace, fragments=(str(trace), *wanted))


def test_bad_embedded_latency(tmp_path: Path) -> None:
    bad = LATENCY | {"overhead_s": -1}
    trace = write_raw(tmp_path / "t.parquet", columns(), META | {"latency": bad})
    refused(tmp_path, trace, "-c", "plain", fragments=(str(trace), "latency", "overhead_s"))
    assert replay_here(trace, "-c", "plain", "--latency", "preset:h100-llama-2-7b").status == 0


def test_trace_and_options_that_do_not_fit(tmp_path: Path) -> None:
    """Each message names the trace."""
    no_q = make_trace(tmp_path / "no_q.parquet", drop=("q",))
    good = make_trace(tmp_path / "good.parquet")
    fragments = (str(no_q), "threshold, libraspec", "'q'", "static", "record q")
    refused(tmp_path, good, no_q, "-c", "threshold", "-c", "libraspec", fragments=fragments)
    no_p = make_trace(tmp_path / "no_p.parquet", drop=("accept_prob",))
    for mode in ("sampled", "expected"):
        wanted = (str(no_p), f"--acceptance {mode}", "accept_prob", "logged")
        refused(tmp_path, no_p, "-c", "plain", "--acceptance", mode, fragments=wanted)
    ctx = LATENCY | {"verify": LATENCY["verify"] | {"ctx_s": 1e-6}}
    no_ctx = make_trace(tmp_path / "no_ctx.parquet", latency=ctx)
    refused(tmp_path, no_ctx, "-c", "plain", fragments=(str(no_ctx), "ctx_s", "ctx_len"))


def test_length_controller_on_an_arm_trace(tmp_path: Path) -> None:
    arm = write_raw(tmp_path / "arm.parquet", arm_columns(), ARM_META | {"latency": LATENCY})
    refused(tmp_path, arm, "-c", "static:length=2", fragments=(str(arm), "arm"))


@pytest.mark.parametrize(
    ("args", "fragment"),
    [
        (("--seed", "-1"), "--seed"),
        (("--seed", str(2**63)), "--seed"),
        (("--max-requests", "0"), "--max-requests"),
        (("--acceptance", "guess"), "'logged', 'sampled', 'expected'"),
        (("--acceptence", "logged"), "--acceptance"),
    ],
)
def test_bad_option(args: tuple[str, ...], fragment: str, tmp_path: Path) -> None:
    trace = make_trace(tmp_path / "t.parquet")
    before = listing(tmp_path)
    assert_refused(replay_here(trace, "--json", "--out", tmp_path / "out", *args), tmp_path, before, fragment)


def test_no_trace_at_all(tmp_path: Path) -> None:
    assert_refused(replay_here("--json"), tmp_path, [], "TRACES")


PLUGINS = {
    "raises": ("x = 1\nraise RuntimeError('no such luck')\n", ("line 2", "RuntimeError: no such luck")),
    "exits": ("import sys\nsys.exit(0)\n", ("line 2", "SystemExit")),
    "does not parse": ("def (:\n", ("SyntaxError", "line 1")),
    "imports nonsense": ("import specsim_no_such_module\n", ("ModuleNotFoundError", "line 1")),
    "takes a name": (
        "from specsim.controllers import REGISTRY, register\nregister(REGISTRY['plain'])\n",
        ("'plain' is registered already",),
    ),
}


@pytest.mark.parametrize("case", PLUGINS)
def test_plugin_that_cannot_be_loaded(case: str, tmp_path: Path) -> None:
    text, fragments = PLUGINS[case]
    trace, plugin = make_trace(tmp_path / "t.parquet"), tmp_path / "mine.py"
    plugin.write_text(text)
    refused(tmp_path, trace, "--plugin", plugin, "-c", "plain", fragments=(f"--plugin {plugin}", *fragments))


def test_plugin_that_is_not_there(tmp_path: Path) -> None:
    trace = make_trace(tmp_path / "t.parquet")
    for path in (tmp_path / "none.py", tmp_path):
        refused(tmp_path, trace, "--plugin", path, fragments=(f"--plugin {path}", "no such file"))


OWN = """
from specsim.controllers import Controller, ControllerSpec, NoParams, register
from specsim.jit import jit

{decorator}
def begin(params, state, lane, pos, ctx_len, u, hint):
    return {begin}

{decorator}
def revise(params, state, lane, q, drafted, more):
    return {revise}

{decorator}
def update(params, state, lane, arm, drafted, submitted, accepted, round_s):
    pass

def build(values, setting):
    return {build}

register(ControllerSpec(name="mine", params={{}}, build=build, doc="a test"))
"""
BUILD = 'Controller(name="mine", config={}, params=NoParams(), begin=begin, revise=revise, update=update)'
FAILING = {
    "begin raises": ({"begin": "(-1, 1 // int(pos - pos))"}, ("line 7", "ZeroDivisionError")),
    "revise submits too much": ({"revise": "(drafted + 1, drafted + 1)"}, ("'mine'", "drafted")),
    "revise submits less than nothing": ({"revise": "(-1, 0)"}, ("'mine'", "drafted")),
    "begin wants less than nothing": ({"begin": "(-1, -2)"}, ("'mine'", "drafted")),
    "begin returns one number": ({"begin": "3"}, ("TypeError",)),
    "compiled code of no type": ({"decorator": "@jit", "begin": "(-1, params.nothing)"}, ("TypingError", "nothing")),
    "compiled revise submits too much": ({"decorator": "@jit", "revise": "(9999, 0)"}, ("'mine'", "drafted")),
    "build raises": ({"build": "{}['x']"}, ("line 18", "KeyError")),
    "build returns nothing": ({"build": "None"}, ("mine",)),
}


@pytest.mark.parametrize("case", FAILING)
def test_plugin_controller_that_fails(case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    changes, fragments = FAILING[case]
    parts = {"decorator": "", "begin": "(-1, 2)", "revise": "(drafted, drafted)", "build": BUILD} | changes
    trace, plugin = make_trace(tmp_path / "t.parquet"), tmp_path / "mine.py"
    plugin.write_text(OWN.format(**parts))
    before = listing(tmp_path)
    monkeypatch.setattr("specsim.controllers.REGISTRY", dict(REGISTRY))
    run = replay_here(trace, "--plugin", plugin, "-c", "plain", "-c", "mine", "--json", "--out", tmp_path / "out")
    assert_refused(run, tmp_path, before, "error", str(trace), *fragments)


def test_real_exit_status_of_a_refusal(tmp_path: Path) -> None:
    """The other tests run in this process; here are the real ones, through `python -m`."""
    bad = write_raw(tmp_path / "bad.parquet", columns() | {"accept_len": [1, 1, 0, 2, 1, 0]}, GOOD_META)
    data = columns()
    data["q"][3] = [0.5, 7.0]
    worse = write_raw(tmp_path / "worse.parquet", data, GOOD_META)
    before = listing(tmp_path)
    run = replay_process(bad, worse, "-c", "plain", "--json", "--out", tmp_path / "a" / "out")
    place = f"{worse}, column 'q', row 3 (request 1): value 7.0"
    assert_refused(run, tmp_path, before, place, "between 0 and 1")
    literal = os.path.join("nowhere", "*.parquet")
    assert_refused(replay_process(literal, "--out", "out", cwd=tmp_path), tmp_path, before, literal, "matches no file")


def test_a_failed_replay_takes_its_quarantine_back(tmp_path: Path) -> None:
    """One request is bad, another has no accept_prob: set aside, then refused; nothing may stay behind."""

    import pyarrow as pa
    import pyarrow.parquet as pq

    from tests.replay_tools import make_trace, replay_here

    trace = make_trace(tmp_path / "t.parquet")
    table = pq.read_table(trace)
    bad = table.column("accept_len").to_pylist()
    bad[0] = 99
    table = table.set_column(
        table.schema.get_field_index("accept_len"), table.schema.field("accept_len"), pa.array(bad, pa.int16())
    )
    index = table.schema.get_field_index("accept_prob")
    table = table.set_column(
        index, table.schema.field("accept_prob"), pa.nulls(len(table), table.schema.field("accept_prob").type)
    )
    pq.write_table(table, trace)
    run = replay_here(trace, "--quarantine", tmp_path / "q", "--acceptance", "sampled", "-c", "plain")
    assert run.status == 2
    assert sorted(p.name for p in tmp_path.iterdir()) == ["t.parquet"]


def test_two_traces_of_one_name_cannot_share_a_quarantine(tmp_path: Path) -> None:
    from tests.replay_tools import make_trace, replay_here

    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
        make_trace(tmp_path / folder / "t.parquet")
    run = replay_here(tmp_path / "a/t.parquet", tmp_path / "b/t.parquet", "--quarantine", tmp_path / "q")
    assert run.status == 2
    assert "one at a time" in run.err
    assert not (tmp_path / "q").exists()
