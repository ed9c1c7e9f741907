"""Figures and claims of the paper from files alone: what is drawn, and how a result judges a claim."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

pytest.importorskip("matplotlib", reason="analysis/ needs the extra 'analysis'")

from matplotlib.figure import Figure

from analysis import claims, figures, judges
from analysis.paper_data import labelled, shown_prompt
from analysis.results import read_results
from specsim.errors import ConfigError
from tests.conftest import ROOT


def axes() -> Any:
    return Figure().subplots()


def test_bars_show_both_speedups_and_the_difference() -> None:
    data = pa.Table.from_pylist(
        [
            {"dataset": "A", "method": "M", "without": 1.5, "libraspec": 1.75, "gain": 0.25},
            {"dataset": "B", "method": "M", "without": 2.0, "libraspec": 1.5, "gain": -0.5},
        ]
    )
    ax = figures.speedup_gains(data, axes())
    assert [bar.get_height() for bar in ax.patches] == [1.5, 2.0, 1.75, 1.5]
    assert [text.get_text() for text in ax.texts] == ["+0.25", "-0.50"]


LENGTHS = [
    {"request": request, "series": series, "pos": pos, "length": length}
    for request, series, told in (
        (0, "LibraSpec", [(0, 4), (3, 6)]),
        (0, "oracle", [(0, 2), (3, 6)]),
        (0, "static", [(0, 8), (4, 8)]),
        (1, "LibraSpec", [(0, 1)]),
        (1, "oracle", [(0, 1)]),
        (1, "static", [(0, 8)]),
    )
    for pos, length in told
]


def test_lengths_are_steps_along_the_output() -> None:
    data = pa.Table.from_pylist([row for row in LENGTHS if row["request"] == 0])
    ax = figures.lengths_along(data, axes())
    drawn = {line.get_label(): (line.get_xdata().tolist(), line.get_ydata().tolist()) for line in ax.lines}
    assert drawn == {"static": ([0, 4], [8, 8]), "LibraSpec": ([0, 3], [4, 6]), "oracle": ([0, 3], [2, 6])}


def test_the_shown_prompt_is_the_median_one() -> None:
    deviations = [
        {"request": request, "series": "LibraSpec", "mad": mad} for request, mad in ((0, 1.0), (1, 0.0), (2, 5.0))
    ]
    deviations += [{"request": None, "series": "LibraSpec", "mad": 2.0}, {"request": 1, "series": "static", "mad": 1.0}]
    shown = shown_prompt(pa.Table.from_pylist(LENGTHS), pa.Table.from_pylist(deviations))
    assert set(shown["request"].to_pylist()) == {0}


def test_parts_of_a_round_are_stacked() -> None:
    rows = [{"method": "M", "controller": "static:length=16", "draft_ms": 1.0, "verify_ms": 2.0, "rest_ms": 0.5}]
    ax = figures.latency_breakdown(labelled(pa.Table.from_pylist(rows)), axes())
    assert [(bar.get_x(), bar.get_width()) for bar in ax.patches] == [(0.0, 1.0), (1.0, 2.0), (3.0, 0.5)]


DEPTHS = [
    {"depth": 1, "bin": 4, "n": 1, "mean_q": 0.4, "accepted": 0.0, "ece": 0.1},
    {"depth": 1, "bin": 9, "n": 3, "mean_q": 0.9, "accepted": 1.0, "ece": 0.1},
    {"depth": 2, "bin": 9, "n": 1, "mean_q": 1.0, "accepted": 0.5, "ece": 0.5},
]


def test_calibration_is_weighted_by_how_often_it_was_seen() -> None:
    ax = figures.error_by_depth(pa.Table.from_pylist(DEPTHS), axes())
    lines = {line.get_label(): np.asarray(line.get_ydata(), float).tolist() for line in ax.lines}
    assert lines["mean q"] == pytest.approx([(0.4 + 2.7) / 4, 1.0])
    assert lines["accepted"] == pytest.approx([0.75, 0.5])
    assert lines["calibration error"] == [0.1, 0.5]
    (_, points) = figures.reliability(pa.Table.from_pylist(DEPTHS), axes()).lines
    assert np.asarray(points.get_xdata(), float).tolist() == pytest.approx([0.4, (2.7 + 1.0) / 4])
    assert np.asarray(points.get_ydata(), float).tolist() == pytest.approx([0.0, 3.5 / 4])


def test_maxima_are_drawn_in_order_and_missing_lengths_left_out() -> None:
    rows = [
        {"max_len": 8, "libraspec": 1.4, "static": None, "best_static": 1.2},
        {"max_len": 4, "libraspec": 1.3, "static": None, "best_static": 1.2},
    ]
    schema = pa.schema(
        [("max_len", pa.int64()), *((name, pa.float64()) for name in ("libraspec", "static", "best_static"))]
    )
    ax = figures.speedup_by_max(pa.Table.from_pylist(rows, schema=schema), axes())
    assert {line.get_label(): line.get_ydata().tolist() for line in ax.lines} == {
        "LibraSpec": [1.3, 1.4],
        "best static": [1.2, 1.2],
    }


def test_a_folder_is_drawn_place_by_place(tmp_path: Path) -> None:
    place = {"target": "t", "temperature": 0, "method": "M"}
    rows = [row | place | {"dataset": dataset} for dataset in ("A", "B") for row in DEPTHS]
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "calibration.parquet")
    made = figures.draw_folder(tmp_path)
    assert [path.name for path in made] == ["depths-0.png", "depths-1.png", "reliability-0.png", "reliability-1.png"]
    assert all(path.read_bytes().startswith(b"\x89PNG") for path in made)


def row(label: str, eta: float, **more: Any) -> dict[str, Any]:
    place = {"target": "t", "dataset": "A", "temperature": 0, "method": "FastdLLM", "drafter": "fastdllm:path=x"}
    parts = {"draft_ms": 1.0, "verify_ms": 2.0, "rest_ms": 0.5}
    return {**place, "label": label, "controller": label, "eta": eta, "tau": 2.0, **parts, **more}


def document(experiment: str, rows: list[dict[str, Any]], **more: Any) -> dict[str, Any]:
    return {"schema": "specsim.paper/1", "experiment": experiment, "rows": rows, "deviations": [], "depths": [], **more}


ROWS = [row("static", 1.2), row("static", 1.4), row("FailFast", 1.5), row("LibraSpec", 1.75), row("lambda", 2.0)]


def test_claims_are_judged_by_the_fastest_variants() -> None:
    one = document("table1", ROWS)
    assert judges.gain("FastdLLM", 0)(one) == ("+0.35 to +0.35 over 1 places", True)
    assert judges.gain("DFlash", 0)(one) is None
    assert judges.gain("FastdLLM", 1)(one) is None
    assert judges.ratio("FastdLLM", 0)(one) == ("1.25x (1.75 against 1.40, +0.35)", True)
    assert judges.fastest_of_all(one) == ("fastest in 1 of 1; 1.17 to 1.17 of the best other", True)
    assert judges.highest(one) == ("at most 1.75x", None)
    eagle = row("static", 1.9, method="EAGLE-3")
    assert judges.fastest_of_all(document("table1", [*ROWS, eagle])) == (
        "fastest in 0 of 1; 0.92 to 0.92 of the best other",
        False,
    )
    fixed = document("table2", [*ROWS, row("fixed block", 1.8)])
    assert judges.gain(None, None)(fixed) == ("-0.05 to -0.05 over 1 places", False)


def test_sweeps_are_judged() -> None:
    alphas = [row("static", 1.4, tau=1.9), row("alpha=1.8", 1.5), row("alpha=2.0", 1.6), row("alpha=2.2", 1.3)]
    one = document("table4", alphas)
    assert judges.every_alpha(one) == ("faster for 2, tau higher for 3 of 3", False)
    assert judges.best_alpha("FastdLLM", 2.0)(one) == ("best alpha 2; the best is 23.1% above the worst", True)
    limits = [row("max=10", 1.5), row("max=20", 1.6), row("max=70", 1.605)]
    limits += [row("static", 1.4, controller="static:length=10"), row("static", 1.2, controller="static:length=20")]
    two = document("figure4", limits)
    assert judges.every_limit(two) == ("faster for 2 of 2, up to 1.33x", True)
    assert judges.plateau("FastdLLM", 50, 70)(two) == ("within 1 % of its best from 20 on (tried up to 70)", False)
    assert judges.plateau("FastdLLM", 50, 80)(two) == ("within 1 % of its best from 20 on (tried up to 70)", None)


def test_deviations_depths_and_parts_are_judged() -> None:
    place = {"target": "t", "dataset": "A", "method": "M", "drafter": "d"}
    found = [
        {**place, "request": request, "series": series, "mad": mad}
        for request, series, mad in ((None, "LibraSpec", 2.0), (None, "static", 3.0), (0, "LibraSpec", 9.0))
    ]
    assert judges.deviation(document("figure2", [], deviations=found)) == ("A, M: 2.00 against 3.00", True)
    depths = [{"method": "M", "temperature": 0, "depth": depth, "ece": ece} for depth, ece in ((1, 0.1), (2, 0.3))]
    text, worse = judges.calibration(document("figure4", [], depths=depths)) or ("", None)
    assert text == "M (T = 0): 0.10 at position 1, 0.10 early, 0.30 late"
    assert worse
    parts = {"verify_ms": 3.0, "rest_ms": 0.0}
    rows = [
        row("static", 1.0, draft_ms=1.0, **parts),
        row("static", 1.0, method="AR", drafter="eagle3:path=x", draft_ms=3.0, **parts),
    ]
    assert judges.drafting(document("figure3", rows)) == ("drafting: FastdLLM 25%, AR 50%", True)
    assert judges.drafting(document("figure3", rows[:1])) is None


def test_the_table_says_what_was_not_run(tmp_path: Path) -> None:
    folder = tmp_path / "table1_lab"
    folder.mkdir()
    (folder / "results.json").write_text(json.dumps(document("table1", ROWS)))
    lines = claims.table(read_results([folder])).split("\n")
    assert len(lines) == 2 + len(claims.CLAIMS)
    of = {claim.text: line for claim, line in zip(claims.CLAIMS, lines[2:], strict=True)}
    assert "table1_lab: at most 1.75x" in of["up to 8.49x over autoregressive decoding"]
    assert "cannot be tested here" in of["up to 8.49x over autoregressive decoding"]
    assert "not run yet" in of["DFlash gains with alpha up to 2.2"]
    file = tmp_path / "claims.md"
    first, second = claims.PAPERS
    places = f"before\n{first.begin}\n{{}}\n{first.end}\nbetween\n{second.begin}\n{{}}\n{second.end}\nafter\n"
    file.write_text(places.format("old", "old"))
    claims.write(file, ["new", "newer"])
    assert file.read_text() == places.format("\nnew\n", "\nnewer\n")
    file.write_text("nothing")
    with pytest.raises(ConfigError, match="has no place for the table"):
        claims.write(file, ["new", "newer"])
    with pytest.raises(ConfigError, match="no results there"):
        read_results([tmp_path])


def test_the_page_holds_every_claim() -> None:
    text = (ROOT / "docs" / "claims.md").read_text()
    for one in claims.PAPERS:
        table = text.partition(one.begin)[2].partition(one.end)[0]
        for claim in one.claims:
            assert f"| {claim.place} | {claim.text} |" in table
