"""The report as a file: what is in it, that its numbers are the results' own, and that no name breaks out of it."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from itertools import pairwise
from pathlib import Path

import pytest

from analysis.report.__main__ import main
from specsim.provenance import git_revision
from specsim.report import spelled
from tests.analysis_logs import PLAIN, random_log, real_folder, status
from tests.conftest import ROOT
from tests.report_pages import (
    BREAKS_ATTRIBUTE,
    BREAKS_SCRIPT,
    Node,
    figures_of,
    hostile_real,
    hostile_replay,
    parsed,
    replayed,
    table_rows,
)

TRACES = ("humaneval-prompt-lookup", "open-ended-layer-skip")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return replayed(tmp_path_factory.mktemp("report") / "two", *TRACES)


@pytest.fixture(scope="module")
def text(folder: Path) -> str:
    assert status(main, folder, "-o", folder.parent / "two.html") == 0
    return (folder.parent / "two.html").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def document(text: str) -> Node:
    return parsed(text)


def test_structure(document: Node, text: str) -> None:
    assert text.startswith("<!DOCTYPE html>")
    assert document.one("html")["lang"] == "en"
    assert len(list(document.all("main"))) == len(list(document.all("h1"))) == 1
    levels = [int(node.tag[1]) for node in document.all() if re.fullmatch(r"h\d", node.tag)]
    assert levels[0] == 1
    assert all(after <= before + 1 for before, after in pairwise(levels))
    ids = [node["id"] for node in document.all() if "id" in node.attributes]
    assert len(set(ids)) == len(ids)
    targets = [node["href"] for node in document.all("a")]
    assert targets[0] == "#main"
    assert {target[1:] for target in targets} <= set(ids)
    named = {word for node in document.all() for word in node.attributes.get("aria-labelledby", "").split()}
    assert named <= set(ids)


def test_nothing_is_fetched(document: Node) -> None:
    policy = document.one("meta", http_equiv="Content-Security-Policy")["content"]
    assert "default-src 'none'" in policy
    assert "unsafe-inline" not in policy.partition("script-src")[2].partition(";")[0]
    for node in document.all():
        assert "src" not in node.attributes
        assert not any(name.startswith("on") for name in node.attributes)
        assert node.attributes.get("href", "#").startswith("#") or node["href"] == "data:,"
    styles = document.one("style").text
    assert "url(" not in styles
    assert "@import" not in styles


def test_tables(document: Node) -> None:
    tables = list(document.all("table"))
    assert tables
    for table in tables:
        assert table.one("caption").text.strip()
        assert all(cell["scope"] == "col" for cell in table.one("thead").all("th"))
        names, rows = table_rows(table)
        assert rows
        for row in rows:
            assert len(row) == len(names)
            assert all(cell.tag == "td" or cell["scope"] == "row" for cell in row)
    for figure in document.all("figure"):
        assert figure.one("figcaption").text.strip()


def test_every_plot_has_its_data_in_a_table(document: Node) -> None:
    panels = list(document.all("section", class_="panel"))
    assert len(panels) == len(figures_of(document)) > 10
    for panel in panels:
        _, rows = table_rows(panel.one("details").one("table"))
        assert rows
        assert panel.one("figure").one("script")


def test_what_cannot_be_shown_says_why(document: Node) -> None:
    lines = [line.text for line in document.one("section", aria_labelledby="run-1").one("ul", class_="gaps").all("li")]
    assert any("Predicted against measured: nothing was predicted" in line for line in lines)
    assert not any("arm" in line for line in lines)


def test_numbers_are_those_of_the_results_to_the_last_digit(document: Node, folder: Path) -> None:
    results = json.loads((folder / "results.json").read_text())["results"]
    for number, trace in enumerate(TRACES, 1):
        mine = {spelled(row): row for row in results if row["trace"].endswith(f"{trace}.parquet")}
        table = next(document.one("section", aria_labelledby=f"run-{number}").all("table"))
        names, rows = table_rows(table)
        assert len(rows) == len(mine)
        speedups = []
        for cells in rows:
            row = mine[cells[0].text.removesuffix(" *")]
            found = {name: cell.attributes.get("data-value") for name, cell in zip(names, cells, strict=True)}
            low, high = row["speedup_ci95"]
            rate = row["acceptance_rate"]
            assert found["speedup"] == repr(row["speedup"])
            assert (found["95 % low"], found["95 % high"]) == (repr(low), repr(high))
            assert found["tau"] == repr(row["tau"])
            assert found["draft length"] == repr(row["mean_submitted"])
            assert found["accepted"] == ("" if rate is None else repr(rate))
            assert (found["seconds"], found["plain s"]) == (repr(row["time_s"]), repr(row["plain_time_s"]))
            assert float(found["tokens/s"] or "nan") == pytest.approx(row["throughput"], rel=1e-12)
            assert float(found["tokens"] or "nan") == row["tokens"]
            speedups.append(row["speedup"])
        assert speedups == sorted(speedups, reverse=True)


def test_the_answer(document: Node, folder: Path) -> None:
    results = json.loads((folder / "results.json").read_text())["results"]
    pays = 0
    for number, trace in enumerate(TRACES, 1):
        mine = [row for row in results if row["trace"].endswith(f"{trace}.parquet")]
        best = max((r for r in mine if r["controller"] not in ("plain", "oracle")), key=lambda row: row["speedup"])
        said = next(document.one("section", aria_labelledby=f"run-{number}").all("div")).one("p").text
        low, high = best["speedup_ci95"]
        assert f"{best['speedup']:.3f}x the speed of plain decoding (95 % interval {low:.3f} to {high:.3f})" in said
        assert ("pays:" in said) == (low > 1)
        static = best["plain_time_s"] / (best["time_s"] - best["regret_best_fixed_s"])
        assert (f"In hindsight the best static setting gives {static:.3f}x." in said) == (
            static > max(best["speedup"], 1)
        )
        others = [row for row in mine if row["controller"] not in ("plain", "oracle")]
        assert ("Do not speculate" in said) == all(row["speedup_ci95"][1] < 1.005 for row in others)
        pays += low > 1
    lead = next(document.one("header").all("p", class_="most")).text
    assert (f"pays in {pays} of 2" in lead) == (pays > 0)


def test_the_two_best_are_compared(document: Node, folder: Path) -> None:
    """Best and second best by throughput on common requests, with numpy alone; the interval is the library's."""
    results = json.loads((folder / "results.json").read_text())["results"]
    for number, trace in enumerate(TRACES, 1):
        mine = [row for row in results if row["trace"].endswith(f"{trace}.parquet")]
        ranked = sorted(
            (r for r in mine if r["controller"] not in ("plain", "oracle")), key=lambda row: -row["speedup"]
        )
        (said,) = [
            line.text
            for line in document.one("section", aria_labelledby=f"run-{number}").all("p")
            if line.text.startswith("Of the two best")
        ]
        faster = 100 * (ranked[0]["throughput"] / ranked[1]["throughput"] - 1)
        assert f"{spelled(ranked[0])} is faster than {spelled(ranked[1])} by {faster:.1f} % [" in said or (
            f"no difference can be told between {spelled(ranked[0])} and {spelled(ranked[1])}" in said
            and f"the first has {faster:.1f} % [" in said
        )


@pytest.mark.parametrize(
    ("spec", "free"), [("preset:a100-phi-2", True), ("preset:a100-phi-2:draft_token_s=1e-3", False)]
)
def test_drafts_that_cost_nothing_are_told(tmp_path: Path, spec: str, free: bool) -> None:
    found = replayed(tmp_path / "run", TRACES[0], controllers=("plain", "static:length=2"), latency=spec)
    assert status(main, found, "-o", tmp_path / "page.html") == 0
    assert ("Drafting costs nothing in this latency model" in (tmp_path / "page.html").read_text()) == free


def test_shared_controllers_are_compared(document: Node, folder: Path) -> None:
    results = json.loads((folder / "results.json").read_text())["results"]
    names, rows = table_rows(next(document.one("section", aria_labelledby="compared").all("table")))
    assert names[1:] == list(TRACES)
    found = {(spelled(row), Path(row["trace"]).stem): row["speedup"] for row in results}
    assert {cells[0].text for cells in rows} == {name for name, _ in found} - {"plain"}
    for cells in rows:
        for cell, trace in zip(cells[1:], TRACES, strict=True):
            assert cell["data-value"] == repr(found[cells[0].text, trace])


def test_origin(document: Node, folder: Path) -> None:
    shown = document.one("section", aria_labelledby="run-1").all("table")
    *_, table = shown
    facts = {cells[0].text: cells[1].text for cells in table_rows(table)[1]}
    assert str(folder) == facts["folder"]
    assert facts["git"] == git_revision() or not git_revision()
    assert "numpy" in facts["packages"]
    assert facts["trace"].endswith("humaneval-prompt-lookup.parquet")
    assert facts["latency: verification"].startswith("table form")


def test_same_input_same_bytes(folder: Path, text: str, tmp_path: Path) -> None:
    command = [sys.executable, "-W", "error", "-m", "analysis.report", str(folder)]
    done = subprocess.run(
        command, cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(ROOT)}, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    assert "written: report.html (" in done.stdout
    assert (tmp_path / "report.html").read_text(encoding="utf-8") == text


@pytest.mark.parametrize("make", [hostile_replay, hostile_real])
def test_names_stay_text(make, tmp_path: Path) -> None:
    folder = make(tmp_path / "run")
    page = tmp_path / "page.html"
    assert status(main, folder, "-o", page) == 0
    text = page.read_text(encoding="utf-8")
    document = parsed(text)
    assert not list(document.all("img"))
    assert not list(document.all("b"))
    scripts = [node for node in document.all("script") if node.attributes.get("type") != "application/json"]
    assert len(scripts) == 3
    assert not any("alert(1)" in node.text for node in scripts)
    words = [BREAKS_ATTRIBUTE] if make is hostile_replay else [BREAKS_SCRIPT, BREAKS_ATTRIBUTE]
    for word in words:
        assert word not in text
        assert word in document.text
    for figure in figures_of(document):  # what plotly is given as text must not be markup to it
        for name in (trace.get("name") or "" for trace in figure["data"]):
            assert "<" not in name
            assert ">" not in name


def small(folder: Path) -> Path:
    return real_folder(folder, {(0, "plain"): [(0, 0, 0.1)], (0, "static:length=1"): [(1, 1, 0.1)]})


def test_existing_page_is_replaced(tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    page.write_text("old")
    assert status(main, small(tmp_path / "run"), "-o", page) == 0
    assert page.read_text(encoding="utf-8").startswith("<!DOCTYPE html>")
    assert sorted(os.listdir(tmp_path)) == ["page.html", "run"]


def test_bad_input(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "empty").mkdir()
    good = small(tmp_path / "good")
    cases = (
        ([tmp_path / "nowhere"], "no such folder"),
        ([tmp_path / "empty"], "neither results.json nor run.json"),
        ([good, "-o", tmp_path / "no" / "page.html"], "does not exist"),
        ([good, "-o", tmp_path], "is a directory"),
        ([], "Missing argument"),
    )
    for words, said in cases:
        assert status(main, *words) == 2
        assert said in capsys.readouterr().err
    assert sorted(os.listdir(tmp_path)) == ["empty", "good"]


def test_an_interrupted_command_leaves_nothing(tmp_path: Path) -> None:
    """Ctrl-C while a long log is read."""
    folder = small(tmp_path / "run")
    random_log(folder / "rounds.parquet", rounds=1_000_000, runs=["plain", "static:length=1"], requests=3)
    command = [sys.executable, "-m", "analysis.report", str(folder), "-o", str(tmp_path / "page.html")]
    process = subprocess.Popen(command, cwd=ROOT, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    deadline = time.monotonic() + 60
    while not list(tmp_path.glob(".page.html*")) and process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.01)
    process.send_signal(signal.SIGINT)
    _, told = process.communicate(timeout=60)
    assert process.returncode == 130, told
    assert "interrupted" in told
    assert os.listdir(tmp_path) == ["run"]


def test_a_long_log_makes_a_small_page(tmp_path: Path) -> None:
    """Plots of a log with many rounds and requests hold at most some thousand points each."""
    folder = small(tmp_path / "run")
    random_log(folder / "rounds.parquet", rounds=60_000, runs=["plain", "static:length=1", "g4"], requests=2000)
    assert status(main, folder, "-o", tmp_path / "page.html") == 0
    for figure in figures_of(parsed((tmp_path / "page.html").read_text(encoding="utf-8"))):
        points = sum(len(trace.get("x") or []) for trace in figure["data"])
        assert points <= 5000


def test_a_pipe_is_not_replaced(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    folder = real_folder(tmp_path / "real", {(0, PLAIN): [(0, 0, 0.1)]})
    assert status(main, folder, "-o", tmp_path / "pipe") == 2
    assert (tmp_path / "pipe").is_fifo()
