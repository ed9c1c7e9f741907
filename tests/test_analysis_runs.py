"""What is read of run folders of every kind, and what is refused."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from analysis.runs import Run, read_runs
from specsim.errors import ConfigError
from specsim.replay import main as replay
from tests.analysis_logs import LENGTH, PLAIN, RULE, counted, real_folder, status
from tests.conftest import ROOT

TRACES = ("humaneval-layer-skip", "humaneval-prompt-lookup")
DECODES = {
    (0, PLAIN): [(0, 0, 0.11), (0, 0, 0.09), (0, 0, 0.1), (0, 0, 0.1)],
    (1, PLAIN): [(0, 0, 0.2), (0, 0, 0.1), (0, 0, 0.3)],
    (0, LENGTH): [(3, 2, 0.15), (3, 0, 0.14)],
    (1, LENGTH): [(3, 1, 0.25), (2, 1, 0.3)],
}


@pytest.fixture(scope="module")
def replayed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a replay of two traces; one controller is given twice."""
    out = tmp_path_factory.mktemp("replayed") / "two"
    traces = [ROOT / "traces" / f"{name}.parquet" for name in TRACES]
    words = ["-c", "plain", "-c", "static:length=2", "-c", "static:length=2", "-c", "g4:max=8", "-c", "oracle"]
    assert status(replay, *traces, *words, "--out", out) == 0
    return out


def only(folder: Path) -> Run:
    (run,) = read_runs([folder]).runs
    return run


def test_replay(replayed: Path) -> None:
    runs = read_runs([replayed]).runs
    document = json.loads((replayed / "results.json").read_text())
    assert [run.name for run in runs] == [f"two/{name}" for name in TRACES]
    rows = counted(replayed / "rounds.parquet")
    for run in runs:
        assert run.kind == "replay"
        assert (run.target, run.dataset, run.temperature) == ("SmolLM2-135M-Instruct", "humaneval", 0.0)
        assert run.latency is not None
        assert run.latency["provenance"]["points"]
        assert run.trace is not None
        assert run.trace.stem == run.name.partition("/")[2]
        assert not run.notes
        told = [row for row in document["results"] if row["trace"] == run.trace_name]
        assert [m.controller for m in run.methods][:3] == ["plain", "static:length=2", "static:length=2#2"]
        assert [m.privileged for m in run.methods] == [False] * 4 + [True]
        for method, row in zip(run.methods, told, strict=True):
            mine = [one for one in rows if one["run_id"] == run.run_ids[method.controller]]
            assert len(mine) == method.rounds
            assert sum(one["emitted_len"] for one in mine) == method.tokens
            assert sum(one["round_s"] for one in mine) == pytest.approx(method.time_s, rel=1e-9)
            assert (method.speedup, list(method.ci95 or ())) == (row["speedup"], row["speedup_ci95"])
            assert method.plain_s == row["plain_time_s"]


def test_default_controllers_and_one_trace(tmp_path: Path) -> None:
    trace = shutil.copy(ROOT / "traces" / f"{TRACES[0]}.parquet", tmp_path / "mine.parquet")
    assert status(replay, trace, "--out", tmp_path / "a") == 0
    run = only(tmp_path / "a")
    assert run.name == "a"
    known = {row["run_id"] for row in counted(tmp_path / "a" / "rounds.parquet")}
    assert set(run.run_ids.values()) == known
    assert len(run.run_ids) == len(run.methods)
    # The trace has moved beside the folder, to where neither the path as given nor the old one leads.
    (tmp_path / "b").mkdir()
    shutil.move(tmp_path / "a", tmp_path / "b" / "a")
    shutil.move(tmp_path / "mine.parquet", tmp_path / "b" / "mine.parquet")
    assert only(tmp_path / "b" / "a").trace == tmp_path / "b" / "mine.parquet"
    (tmp_path / "b" / "mine.parquet").unlink()
    gone = only(tmp_path / "b" / "a")
    assert (gone.trace, gone.temperature) == (None, None)
    assert "is not where it was" in gone.notes[0]


def test_a_trace_that_is_another_file_by_now(replayed: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(replayed, tmp_path / "copy"))
    document = json.loads((folder / "results.json").read_text())
    for less, trace in ((1, None), (-1, None), (0, ROOT / "traces" / f"{TRACES[0]}.parquet")):
        rows = document["traces"][0]["rows"] - less
        changed(folder, "results.json", traces=[document["traces"][0] | {"rows": rows}, *document["traces"][1:]])
        assert read_runs([folder]).runs[0].trace == trace
    changed(folder, "results.json", traces=[document["traces"][0] | {"drafter": "x"}, *document["traces"][1:]])
    assert "another file by now" in read_runs([folder]).runs[0].notes[0]
    changed(folder, "config.json", max_requests=3)
    changed(folder, "results.json", traces=[document["traces"][0] | {"rows": 5}, *document["traces"][1:]])
    assert read_runs([folder]).runs[0].trace is not None
    document["traces"][0]["rows"] += 1
    (tmp_path / "broken.parquet").write_bytes(b"PAR1")
    document["traces"][1]["path"] = "gone/broken.parquet"
    (folder / "results.json").write_text(json.dumps(document))
    first, second = read_runs([folder]).runs
    assert first.trace is None
    assert first.notes[0].endswith("rows, the replayed trace 1331: another file by now")
    assert second.trace is None
    assert "the trace is of no use any more" in second.notes[-1]


def test_expected_acceptance_has_no_log(replayed: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(replayed, tmp_path / "copy"))
    changed(folder, "results.json", acceptance="expected")
    (folder / "rounds.parquet").unlink()
    run = read_runs([folder]).runs[0]
    assert (run.rounds, run.run_ids) == (None, {})
    assert run.notes == ("expected acceptance: there are no single rounds to log",)
    assert run.methods[0].tokens > 0


def test_real_run_gets_its_interval_from_the_log(tmp_path: Path) -> None:
    run = only(real_folder(tmp_path / "run", DECODES))
    assert (run.kind, run.name, run.run_ids) == ("real", "run", {PLAIN: PLAIN, LENGTH: LENGTH})
    method = run.methods[1]
    plain = np.array([0.4, 0.6 * 4 / 3])  # 4 tokens each, where plain decoding emitted 4 and 3
    own = np.array([0.29, 0.55])
    assert method.speedup == pytest.approx(plain.sum() / own.sum())
    assert method.plain_s == pytest.approx(plain.sum())
    draws = np.random.default_rng(0).integers(0, 2, (1000, 2))
    low, high = np.percentile(plain[draws].sum(axis=1) / own[draws].sum(axis=1), [2.5, 97.5])
    assert method.ci95 == pytest.approx((low, high))
    assert run.methods[0].ci95 == (1.0, 1.0)
    assert run.notes == ("no latency model in the folder",)


def test_arms_made_before_the_first_round_are_in_the_interval(tmp_path: Path) -> None:
    folder = real_folder(tmp_path / "run", DECODES)
    document = json.loads((folder / "run.json").read_text())
    mine = document["results"][1]
    mine["decode_s"] += 0.4
    mine["speedup"] = (0.4 + 0.8) / mine["decode_s"]
    (folder / "run.json").write_text(json.dumps(document))
    assert any("outputs.jsonl is missing" in note for note in only(folder).notes)
    seconds = {(0, PLAIN): 0.4, (1, PLAIN): 0.6, (0, LENGTH): 0.29 + 0.3, (1, LENGTH): 0.55 + 0.1}
    lines = [json.dumps({"request": r, "controller": c, "decode_s": s}) for (r, c), s in seconds.items()]
    (folder / "outputs.jsonl").write_text("\n".join(lines) + "\n")
    plain, own = np.array([0.4, 0.8]), np.array([0.59, 0.65])
    draws = np.random.default_rng(0).integers(0, 2, (1000, 2))
    expected = np.percentile(plain[draws].sum(axis=1) / own[draws].sum(axis=1), [2.5, 97.5])
    assert only(folder).methods[1].ci95 == pytest.approx(tuple(expected))
    (folder / "outputs.jsonl").write_text(lines[0] + "\n")
    with pytest.raises(ConfigError, match=r"outputs\.jsonl: cannot be read"):
        read_runs([folder])


def test_one_request_has_no_interval(tmp_path: Path) -> None:
    decodes = {place: rounds for place, rounds in DECODES.items() if place[0] == 0}
    assert only(real_folder(tmp_path / "run", decodes)).methods[1].ci95 is None


def test_interrupted_run_loads_with_a_note(tmp_path: Path) -> None:
    folder = real_folder(tmp_path / "run", DECODES)
    document = json.loads((folder / "run.json").read_text())
    for key in ("finished", "results"):
        del document[key]
    (folder / "run.json").write_text(json.dumps(document))
    (folder / "rounds.parquet").unlink()
    (folder / "requests").mkdir()
    (folder / "requests" / "00000.json").write_text("{}")
    run = only(folder)
    assert (run.methods, run.rounds, run.run_ids) == ((), None, {})
    assert "1 of 3 prompts are kept" in run.notes[0]


def test_reference_assisted_runs_have_their_label_in_the_log(tmp_path: Path) -> None:
    label = f"{LENGTH} (reference-assisted)"
    decodes = {(r, label if c == LENGTH else c): rounds for (r, c), rounds in DECODES.items()}
    folder = real_folder(tmp_path / "run", decodes)
    document = json.loads((folder / "run.json").read_text())
    document["results"][1] |= {"controller": LENGTH, "verification": "reference-assisted"}
    (folder / "run.json").write_text(json.dumps(document))
    run = only(folder)
    assert run.run_ids[LENGTH] == label
    assert run.methods[1].name == label
    assert run.methods[1].ci95 is not None


def test_plain_files(tmp_path: Path) -> None:
    kinds = {"theory": "theory_check", "regret": "regret", "fits": "latency_fit"}
    paths = []
    for key, schema in kinds.items():
        paths.append(tmp_path / f"{key}.json")
        paths[-1].write_text(json.dumps({"schema": f"specsim.{schema}/1"}))
    loaded = read_runs(paths)
    for key, path in zip(kinds, paths, strict=True):
        assert [found for found, _ in getattr(loaded, key)] == [path]


def changed(folder: Path, file: str, **values: Any) -> None:
    document = json.loads((folder / file).read_text())
    (folder / file).write_text(json.dumps(document | values))


@pytest.mark.parametrize(
    ("file", "content", "message"),
    [
        ("results.json", b"", "no results there"),
        ("results.json", b"[" * 100_000, "no results there"),
        ("results.json", b"[]", "no JSON object there"),
        ("results.json", b'{"schema": "other/1"}', "schema is 'other/1'"),
        ("results.json", b'{"schema": ["specsim.replay/1"]}', "schema is"),
        ("results.json", b'{"schema": "specsim.replay/1"}', "traces is missing or no list"),
        ("results.json", b'{"schema": "specsim.replay/1", "traces": [1], "results": []}', r"traces\[0\] is no JSON"),
        ("config.json", b"{", "no JSON object there"),
        ("config.json", None, "no JSON object there"),
        ("provenance.json", None, "no JSON object there"),
        ("rounds.parquet", None, "the round log is missing"),
        ("rounds.parquet", b"PAR1 and no more", "truncated or damaged"),
        ("rounds.parquet", b"", "the file is empty"),
    ],
)
def test_broken_replays(replayed: Path, tmp_path: Path, file: str, content: bytes | None, message: str) -> None:
    folder = Path(shutil.copytree(replayed, tmp_path / "copy"))
    if content is None:
        (folder / file).unlink()
    else:
        (folder / file).write_bytes(content)
    with pytest.raises(ConfigError, match=message) as refused:
        read_runs([folder])
    assert str(folder / file) in str(refused.value)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("speedup", "fast"),
        *((key, value) for key in ("speedup", "time_s", "tokens", "regret_best_fixed_s") for value in (10**400, 1e999)),
        *(("speedup", value) for value in (0, -1)),
        ("regret_best_fixed_s", 1e9),
        ("time_s", 0),
        ("tokens", None),
        ("speedup_ci95", [1]),
        ("privileged", 1),
        ("params", []),
    ],
)
def test_values_of_a_replay_that_cannot_be(replayed: Path, tmp_path: Path, key: str, value: Any) -> None:
    folder = Path(shutil.copytree(replayed, tmp_path / "copy"))
    rows = json.loads((folder / "results.json").read_text())["results"]
    changed(folder, "results.json", results=[rows[0], rows[1] | {key: value}])
    with pytest.raises(ConfigError, match=rf"results\[1\]\.{key} is "):
        read_runs([folder])


def test_config_of_another_replay(replayed: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(replayed, tmp_path / "copy"))
    changed(folder, "config.json", controllers=["plain"])
    run = read_runs([folder]).runs[0]
    assert (run.rounds, run.run_ids) == (None, {})
    assert "rounds cannot be told apart" in run.notes[0]
    assert run.methods


def test_broken_real_runs(tmp_path: Path) -> None:
    folder = real_folder(tmp_path / "run", DECODES)
    sound = (folder / "run.json").read_bytes()
    changed(folder, "run.json", results=[{"controller": "other", **json.loads(sound)["results"][0]}])
    rows = json.loads(sound)["results"]
    for values, message in (
        ({"config": 3}, r"run\.json: run\.config is 3"),
        ({"results": {}}, "results is missing or no list"),
        ({"results": [rows[0] | {"decode_s": -1}]}, r"results\[0\]\.decode_s is -1; allowed: a number above 0"),
        ({"results": [*rows, rows[1] | {"controller": RULE}]}, "no round of libraspec"),
        ({"schema": "specsim.real_run/9"}, r"schema is 'specsim\.real_run/9'"),
    ):
        (folder / "run.json").write_bytes(sound)
        changed(folder, "run.json", **values)
        with pytest.raises(ConfigError, match=message):
            read_runs([folder])
    (folder / "run.json").write_bytes(sound)
    (folder / "rounds.parquet").unlink()
    with pytest.raises(ConfigError, match="the round log is missing"):
        read_runs([folder])


def test_folders_that_are_none(replayed: Path, tmp_path: Path) -> None:
    (tmp_path / "two").mkdir()
    for paths, message in (
        ([], "no folder was named"),
        ([tmp_path / "none"], "no such folder or file"),
        ([tmp_path / "two"], r"neither results\.json nor run\.json"),
        ([replayed.parent], r"it holds folders of runs \(two, \.\.\.\): name these"),
        ([replayed, replayed], "has the same name"),
        ([replayed, tmp_path / "two"], "has the same name"),
        ([replayed / "config.json"], "schema is None"),
        ([replayed / "rounds.parquet"], "no results there"),
    ):
        with pytest.raises(ConfigError, match=message):
            read_runs(paths)
