"""Experiments of the papers and plain result files in the report."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from analysis.report.__main__ import main
from specsim.latency.cli import main as latency
from specsim.regret.__main__ import main as regret
from tests.analysis_logs import status
from tests.report_pages import Node, figures_of, parsed, table_rows

PLACE = {"target": "lab", "dataset": "lab", "temperature": 0, "method": "DFlash", "drafter": "dflash:path=x"}
TABLES = ("rows", "deviations", "depths", "comparisons", "acceptance", "contexts", "shares", "regrets", "construction")


def row(controller: str, eta: float, ci95: list[float] | None, **more: Any) -> dict[str, Any]:
    told = {"label": controller.partition(":")[0], "controller": controller, "eta": eta, "eta_ci95": ci95}
    return {**PLACE, **told, "tau": 1 + eta, "draft_ms": 1.0, "verify_ms": 2.0, "rest_ms": 0.5, **more}


ROWS = [
    row("static:length=3", 1.25, [1.1, 1.4]),
    row("libraspec:alpha=2.0", 1.0625, [0.9, 1.2]),
    row("static:length=9", 10.5, None, method="DDTree"),
]


def experiment(folder: Path, name: str, tables: dict[str, list[dict[str, Any]]]) -> Path:
    folder.mkdir()
    document = {**{key: [] for key in TABLES}, "schema": "specsim.paper/1", "experiment": name, "rows": ROWS}
    (folder / "results.json").write_text(json.dumps(document))
    for file, rows in tables.items():
        pq.write_table(pa.Table.from_pylist(rows), folder / f"{file}.parquet")
    return folder


def page_of(tmp_path: Path, *paths: Path) -> Node:
    assert status(main, *paths, "-o", tmp_path / "page.html") == 0
    return parsed((tmp_path / "page.html").read_text(encoding="utf-8"))


def test_rows_of_an_experiment(tmp_path: Path) -> None:
    document = page_of(tmp_path, experiment(tmp_path / "mine", "table2", {}))
    table, *_ = document.one("section", aria_labelledby="paper-1").all("table")
    names, rows = table_rows(table)
    assert names[:4] == ["method", "label", "controller", "speedup"]  # what all rows have in common is in the caption
    assert "All of target lab, dataset lab, temperature 0." in table.one("caption").text
    assert [cells[3]["data-value"] for cells in rows] == ["10.5", "1.25", "1.0625"]
    said = next(document.one("header").all("p", class_="most")).text
    assert "static:length=3 with DFlash pays: 1.250x" in said  # the fastest has no interval
    assert "static:length=9 with DDTree looks faster (10.500x) but is not shown to pay" in said
    assert "table2 has no figure" in document.one("ul", class_="gaps").text


def test_figures_of_an_experiment_are_drawn_by_place(tmp_path: Path) -> None:
    bins = [
        {**PLACE, "method": method, "depth": depth, "bin": one, "n": 4, "mean_q": 0.25 + one / 2, "accepted": share}
        | {"ece": 0.125}
        for method in ("DFlash", "DDTree")
        for depth, one, share in ((1, 0, 0.25), (1, 1, 1.0), (2, 0, 0.75), (2, 1, 0.5))
    ]
    folder = experiment(tmp_path / "mine", "figure4", {"calibration": bins})
    document = page_of(tmp_path, folder)
    titles = [panel.one("h3").text for panel in document.all("section", class_="panel")]
    kinds = ("Confidence by draft position", "Reliability of q")
    assert titles == [f"{kind}: {method}" for kind in kinds for method in ("DFlash", "DDTree")]
    depths, _, pooled, _ = figures_of(document)
    by_name = {trace["name"]: trace["y"] for trace in depths["data"]}
    assert by_name == {"mean confidence": [0.5, 0.5], "accepted": [0.625, 0.625], "calibration error": [0.125, 0.125]}
    (line,) = [trace for trace in pooled["data"] if trace["name"] == "all positions"]
    assert (line["x"], line["y"]) == ([0.25, 0.75], [0.5, 0.75])
    captions = [figure.one("figcaption").text for figure in document.all("figure")]
    assert captions[2].startswith("Expected calibration error: 0.125 (all positions).")


def test_tables_without_a_plot_are_shown(tmp_path: Path) -> None:
    shares = [{**PLACE, "label": name, "controller": name, "best": best} for name, best in (("a", 0.5), ("b", 0.1))]
    document = page_of(tmp_path, experiment(tmp_path / "mine", "sp2ec-pulls", {"shares": shares}))
    (table,) = [one for one in document.all("table") if one.one("caption").text.startswith("shares.parquet")]
    names, rows = table_rows(table)
    assert names == ["label", "controller", "best"]
    assert [cells[2]["data-value"] for cells in rows] == ["0.5", "0.1"]


def test_a_broken_table_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = experiment(tmp_path / "mine", "figure3", {"breakdown": [{**PLACE, "controller": "c", "draft_ms": 1.0}]})
    assert status(main, folder, "-o", tmp_path / "page.html") == 2
    assert "breakdown.parquet: column verify_ms is missing" in capsys.readouterr().err
    (folder / "breakdown.parquet").rename(folder / "shares.parquet").write_text("no parquet")
    assert status(main, folder, "-o", tmp_path / "page.html") == 2
    assert "shares.parquet: cannot be read" in capsys.readouterr().err
    assert not (tmp_path / "page.html").exists()


def test_result_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    statement = {"id": "x", "statement": "one peak", "verdict": "violated", "text": "a valley at 3"}
    checked = {"schema": "specsim.theory_check/1", "traces": [{"path": "a.parquet", "properties": [statement]}]}
    (tmp_path / "theory.json").write_text(json.dumps(checked))
    (tmp_path / "points.csv").write_text("s,time_s\n" + "".join(f"{s},{0.02 + s / 1000}\n" for s in (1, 2, 4, 8, 16)))
    assert status(latency, "fit", tmp_path / "points.csv", "--json") == 0
    (tmp_path / "fit.json").write_text(capsys.readouterr().out)
    assert status(regret, "run", "--runs", "2", "--rounds", "200", "-c", "ucb1", "-c", "best-arm", "--json") == 0
    (tmp_path / "regret.json").write_text(capsys.readouterr().out)
    found = json.loads((tmp_path / "regret.json").read_text())["cases"][0]["results"]
    document = page_of(tmp_path, *(tmp_path / f"{name}.json" for name in ("theory", "fit", "regret")))
    headings = [node.text for node in document.all("h2")]
    assert headings == ["Theory: theory.json", "Regret: regret.json", "Latency fit: fit.json"]
    _, rows = table_rows(next(document.one("section", aria_labelledby="file-1").all("table")))
    assert [cell.text for cell in rows[0]] == ["one peak", "violated", "a valley at 3"]
    _, rows = table_rows(next(document.one("section", aria_labelledby="file-2").all("table")))
    assert [(cells[0].text, cells[1]["data-value"]) for cells in rows] == [
        (one["policy"], repr(one["regret_s"]["mean"])) for one in found
    ]
    curves, points = figures_of(document)
    assert curves["layout"]["xaxis"]["title"]["text"] == "rounds"
    (measured,) = [trace for trace in points["data"] if trace["name"] == "verify, measured"]
    assert measured["y"] == pytest.approx([21, 22, 24, 28, 36])
    assert "Nothing to compare" in document.one("header").text


def test_a_result_file_that_lacks_something_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    broken = (
        {"schema": "specsim.latency_fit/1"},
        {"schema": "specsim.theory_check/1", "traces": [{"path": "a"}]},
        {"schema": "specsim.regret/1", "cases": 3},
        {"schema": "specsim.regret/1", "cases": [{"results": [{"policy": "a", "curve": {}}]}]},
        {"schema": "specsim.regret/1", "cases": ["a"]},
    )
    for document in broken:
        file = tmp_path / "broken.json"
        file.write_text(json.dumps(document))
        assert status(main, file, "-o", tmp_path / "page.html") == 2
        assert "broken.json" in capsys.readouterr().err
