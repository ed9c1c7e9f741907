"""Pieces of the report: data inside scripts, contrast of colours, thinning, numbers, plots of hand-made tables."""

from __future__ import annotations

import json
import re
from html import unescape
from pathlib import Path

import numpy as np
import plotly.graph_objects as go
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import analysis.report
from analysis.report import captions, plots
from analysis.report.comparison import lead
from analysis.report.embed import as_data, breakable, policy, script
from analysis.report.results import Candidate, answer
from analysis.report.style import GREY, LINE, LONGEST, PALETTE, lines, looks, short
from analysis.report.thin import thin
from analysis.report.wording import exact, fixed, joined, listed
from analysis.report.wording import short as shortened

HERE = Path(analysis.report.__file__).parent
TEXT_CONTRAST, GRAPHIC_CONTRAST = 4.5, 3.0  # WCAG 2.2, AA: 1.4.3 and 1.4.11


def luminance(color: str) -> float:
    parts = [int(color[place : place + 2], 16) / 255 for place in (1, 3, 5)]
    red, green, blue = (p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def contrast(one: str, other: str) -> float:
    light, dark = sorted((luminance(one), luminance(other)), reverse=True)
    return (light + 0.05) / (dark + 0.05)


def themes() -> list[dict[str, str]]:
    """The colours of each block of report.css that sets them."""
    css = (HERE / "report.css").read_text()
    blocks = [
        dict(re.findall(r"--([\w-]+): (#\w{6});", block)) for block in re.findall(r"\{[^{}]*--page: [^{}]*\}", css)
    ]
    assert len(blocks) == 4  # light, dark by the system, dark by the button, paper
    return blocks


def test_contrast_by_hand() -> None:
    assert contrast("#ffffff", "#000000") == pytest.approx(21)
    assert contrast("#777777", "#ffffff") == pytest.approx(4.48, abs=0.01)


@pytest.mark.parametrize("colors", themes(), ids=["light", "dark", "button", "paper"])
def test_contrast(colors: dict[str, str]) -> None:
    for ground in ("page", "panel"):
        for text in ("text", "soft", "link", "good", "bad", "open"):
            assert contrast(colors[text], colors[ground]) >= TEXT_CONTRAST, (text, ground)
    if "focus" in colors:
        assert contrast(colors["focus"], colors["page"]) >= GRAPHIC_CONTRAST
        for color in (*PALETTE, GREY):
            assert contrast(color, colors["page"]) >= GRAPHIC_CONTRAST, color


def test_both_dark_blocks_are_one() -> None:
    _, system, button, _ = themes()
    assert system == button


@given(st.recursive(st.text() | st.floats(allow_nan=False, allow_infinity=False), st.lists, max_leaves=8))
def test_data_comes_back_and_holds_no_markup(value: object) -> None:
    text = as_data(value)
    assert json.loads(text) == value
    assert not set(text) & set("<>&\u2028\u2029")


def test_data_refuses_what_json_lacks() -> None:
    with pytest.raises(ValueError, match="JSON"):
        as_data([float("nan")])


def test_policy_names_the_very_scripts() -> None:
    import base64
    import hashlib

    for name in ("theme.js", "plotly", "report.js"):
        digest = base64.b64encode(hashlib.sha256(script(name).encode()).digest()).decode()
        assert f"'sha256-{digest}'" in policy(("theme.js", "plotly", "report.js"))
        assert "\r" not in script(name)  # a browser reads it as another line end, and the digest is wrong


@given(st.text())
def test_breakable_only_adds_places_to_break(text: str) -> None:
    import html

    assert html.unescape(breakable(text).replace("<wbr>", "")) == html.unescape(html.escape(text))
    assert "<" not in breakable(text).replace("<wbr>", "")


@given(st.text(max_size=80))
def test_names_in_plots_are_no_markup(name: str) -> None:
    assert "<" not in short(name)
    assert "<" not in lines(name).replace("<br>", "")
    assert len(unescape(short(name))) <= LONGEST


def test_names_on_axes_are_narrow() -> None:
    assert lines("g4:start=10,up=2,down=1") == "g4:start=10,<br>up=2,down=1"
    assert all(len(line) <= LINE for line in lines("humaneval-prompt-lookup").split("<br>"))


def test_looks_differ() -> None:
    names = [f"c{number}" for number in range(40)]
    found = looks([*names, "oracle"])
    assert len({(look.color, look.dash) for look in found.values()}) == 41
    assert len({(look.color, look.symbol) for look in found.values()}) == 41
    assert found["oracle"].color == GREY


@given(
    st.lists(st.tuples(st.sampled_from(["a", "b", None]), st.integers(0, 9)), min_size=1, max_size=200),
    st.integers(1, 60),
)
def test_thinning_keeps_ends_and_order(rows: list[tuple[str | None, int]], limit: int) -> None:
    names, values = zip(*rows, strict=True)
    table = pa.table({"series": pa.array(names, pa.string()), "value": values, "place": range(len(rows))})
    kept = thin(table, ["series"], limit)
    places = kept["place"].to_pylist()
    assert places == sorted(places)
    if table.num_rows <= limit:
        assert kept.num_rows == table.num_rows
        return
    assert kept.num_rows <= max(limit, 2 * len(set(names)))
    for name in set(names):
        mine = [place for place, one in enumerate(names) if one == name]
        assert {mine[0], mine[-1]} <= set(places)


def test_long_tables_say_what_they_leave_out() -> None:
    table = pa.table({"x": range(1000), "y": [None, *range(999)]})
    grid = listed(table, (), "python -m analysis.figures run")
    assert len(grid.rows) == 300
    assert "300 of 1000 rows" in grid.caption
    assert [column.number for column in grid.columns] == [True, True]
    assert grid.rows[0].cells[1].text == "–"
    assert listed(table.slice(0, 3), (), "").caption == "3 rows."


def test_numbers() -> None:
    assert (fixed(1.23456, 3), fixed(None), fixed(float("nan")), fixed(-0.001)) == ("1.235", "–", "–", "0.00")
    assert exact(0.1 + 0.2) == "0.30000000000000004"
    assert (exact(None), exact(float("inf")), exact(3)) == ("", "", "3")
    assert (shortened(3.0), shortened(1234567), shortened(0.00012345), shortened(0.12345)) == (
        "3", "1234567", "1.234e-04", "0.1235",
    )  # fmt: skip
    assert (joined([]), joined(["a"]), joined(["a", "b", "c"], " and ")) == ("", "a", "a, b and c")


def test_answers() -> None:
    def kind(*found: Candidate) -> str:
        return answer(found).kind

    assert answer([]).verdict == "Nothing to compare."
    assert kind(Candidate("a", 1.2, (1.01, 1.4)), Candidate("b", 1.1, (1.05, 1.2))) == "pays"
    assert kind(Candidate("a", 1.2, (0.99, 1.4))) == "open"
    assert kind(Candidate("a", 1.2, (1.0, 1.4))) == "open"
    assert kind(Candidate("a", 1.2, None)) == "open"
    assert kind(Candidate("a", 0.9, (0.8, 1.1))) == "open"  # it may gain: too few requests to tell
    assert kind(Candidate("a", 1.0, None)) == "open"
    assert kind(Candidate("a", 0.9, (0.8, 1.0)), Candidate("b", 0.8, (0.7, 1.004))) == "loses"
    assert kind(Candidate("a", 0.9, (0.8, 1.0)), Candidate("b", 0.8, (0.7, 1.1))) == "open"
    said = answer([Candidate("a", 1.2, (1.01, 1.4)), Candidate("b", 1.3, (1.02, 1.5))])
    assert (said.verdict, said.text) == (
        "b pays:",
        "1.300x the speed of plain decoding (95 % interval 1.020 to 1.500), the best of 2 controllers.",
    )
    unsure = answer([Candidate("a", 1.2, (1.01, 1.4)), Candidate("b", 1.3, (0.9, 1.5))])
    assert (unsure.kind, unsure.verdict) == ("pays", "a pays:")
    assert "b looks faster (1.300x) but is not shown to pay" in unsure.text


@pytest.mark.parametrize("interval", [(1.01, 1.4), (0.9, 1.4), (0.7, 0.9), None])
def test_answers_tell_of_a_static_setting_only_where_it_is_faster(interval: tuple[float, float] | None) -> None:
    speedup = 0.8 if interval == (0.7, 0.9) else 1.2
    found = [Candidate("a", speedup, interval)]
    assert answer(found, fixed_best=1.21).text.endswith(" In hindsight the best static setting gives 1.210x.")
    # Length 0 is plain decoding: below 1 nothing is to be had.
    for other in (None, speedup, speedup - 0.01, speedup * (1 + 1e-15), min(1.0, speedup + 0.1)):
        assert "In hindsight" not in answer(found, fixed_best=other).text


def test_lead_keeps_spellings_with_commas_apart() -> None:
    found = [(f"run{n}", answer([Candidate("g4:up=2,down=1", 1.2, (1.01, 1.4))])) for n in range(4)]
    assert lead(found[:2]).text == "g4:up=2,down=1 on run0; g4:up=2,down=1 on run1."
    assert lead(found).text.endswith("on run2; and others.")


def coordinates(figure: go.Figure, name: str) -> list[tuple[object, object]]:
    (trace,) = [trace for trace in figure.data if trace.name == name and trace.showlegend is not False]
    return list(zip(trace.x, trace.y, strict=True))


def test_throughput_shows_the_curve_and_the_marks() -> None:
    table = pa.Table.from_pylist(
        [
            *({"kind": "static", "controller": f"static:length={n}", "length": float(n), "tokens_per_s": 10.0 - n,
               "low": 9.0 - n, "high": 11.0 - n, "source": "replayed"} for n in range(3)),
            {"kind": "controller", "controller": "a<b", "length": 1.5, "tokens_per_s": 9.5, "low": None, "high": None,
             "source": "replayed"},
            {"kind": "oracle", "controller": "oracle", "length": 1.0, "tokens_per_s": 12.0, "low": 11.0, "high": 13.0,
             "source": "replayed"},
        ]
    )  # fmt: skip
    figure = plots.throughput(table)
    assert coordinates(figure, "static lengths") == [(0, 10), (1, 9), (2, 8)]
    assert coordinates(figure, "a&lt;b") == [(1.5, 9.5)]
    (oracle,) = [trace for trace in figure.data if trace.name == "oracle"]
    assert (oracle.error_y.array, oracle.error_y.arrayminus) == ((1.0,), (1.0,))
    said = captions.throughput(table)
    assert "fastest is 0 with 10.00 tokens/s" in said
    assert "oracle 12.00 at mean length 1.00, a<b 9.50 at mean length 1.50" in said


def test_latency_is_told_in_milliseconds_with_what_the_fit_leaves() -> None:
    rows = [
        ("verify", 1.0, 0.010, 0.012),
        ("verify", 4.0, 0.020, 0.020),
        ("fit", 1.0, None, 0.012),
        ("fit", 4.0, None, 0.020),
    ]
    table = pa.Table.from_pylist(
        [
            {"kind": kind, "s": s, "measured_s": measured, "fitted_s": fitted, "low": None, "high": None}
            | {"residual_s": None if measured is None else measured - fitted}
            for kind, s, measured, fitted in rows
        ]
    )
    figure = plots.latency_points(table)
    assert coordinates(figure, "verify, measured") == [(1.0, 10.0), (4.0, 20.0)]
    assert coordinates(figure, "fit") == [(1.0, 12.0), (4.0, 20.0)]
    (left,) = [trace for trace in figure.data if trace.name == "verify, residual"]
    assert (left.y, left.yaxis) == ((-2.0, 0.0), "y2")
    assert "misses by at most 20.0 % (at 1)" in captions.latency_points(table)


def test_pulls_are_stacked_by_arm() -> None:
    table = pa.Table.from_pylist(
        [{"controller": name, "arm": arm, "share": share} for name, arm, share in
         (("sp2ec", 0, 0.25), ("sp2ec", 1, 0.75), ("ucb1", 0, 0.5), ("ucb1", 1, 0.5))]
    )  # fmt: skip
    figure = plots.pulls(table)
    assert figure.layout.barmode == "stack"
    assert coordinates(figure, "arm 1") == [(0.75, "sp2ec"), (0.5, "ucb1")]
    assert captions.pulls(table) == "sp2ec plays arm 1 in 75 % of rounds, ucb1 plays arm 0 in 50 % of rounds."


def test_reliability_draws_all_positions_and_a_few() -> None:
    rows = [
        {"depth": depth, "bin": one, "n": 10 + one, "mean_q": one / 4, "accepted": one / 5, "ece": 0.05}
        for depth in (None, 1, 2, 3, 4)
        for one in range(4)
    ]
    table = pa.Table.from_pylist(rows, schema=pa.schema([("depth", pa.int64()), ("bin", pa.int64()), ("n", pa.int64()),
        *((name, pa.float64()) for name in ("mean_q", "accepted", "ece"))]))  # fmt: skip
    figure = plots.reliability(table)
    assert {trace.name for trace in figure.data} == {
        "calibrated",
        "all positions",
        "position 1",
        "position 2",
        "position 4",
    }
    assert coordinates(figure, "all positions")[1] == (0.25, 0.2)
    assert "0.05 (all positions)" in captions.reliability(table)


def test_a_prediction_inside_the_interval_counts() -> None:
    table = pa.Table.from_pylist(
        [
            {"controller": "a", "predicted": 1.5, "measured": 1.4, "low": 1.3, "high": 1.6},
            {"controller": "b", "predicted": 2.0, "measured": 1.0, "low": 0.9, "high": 1.1},
        ]
    )
    figure = plots.predictions(table)
    assert coordinates(figure, "b") == [(2.0, 1.0)]
    assert captions.predictions(table).startswith("Largest error +100.0 % (b)")
    assert "for 1 of 2" in captions.predictions(table)


def test_bands_leave_out_what_has_no_interval() -> None:
    figure = go.Figure()
    plots.band(figure, [1, 2, 3], [0.5, None, 0.7], [1.5, None, 1.7], "#102030")
    (trace,) = figure.data
    assert trace.x == (1, 3, 3, 1)
    assert trace.y == (1.5, 1.7, 0.7, 0.5)
    assert np.allclose([float(v) for v in re.findall(r"[\d.]+", trace.fillcolor)], [16, 32, 48, 0.18])
    plots.band(figure, [1], [None], [None], "#102030")
    assert len(figure.data) == 1
