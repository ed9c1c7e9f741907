"""The local page shows the numbers that are logged: those of the offline files, panel by panel, with no network."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest

pytest.importorskip("plotly", reason="the local page needs the extra 'analysis'")
pytest.importorskip("wandb", reason="W&B needs the extra 'analysis'")

from analysis import keys
from analysis.logged import Logged, logged
from analysis.panels import SECTIONS, Panel
from analysis.runs import read_runs
from analysis.view import NOTHING, figure_of, page, rows_of, series_of
from analysis.wandb import main
from specsim import errors
from tests.conftest import ROOT
from tests.replay_tools import replay_here
from tests.wandb_file import Tracked, environment, read_all, server  # noqa: F401 - fixtures

TRACE = ROOT / "traces" / "humaneval-prompt-lookup.parquet"
PANELS = [panel for section in SECTIONS for panel in section.panels if panel.of != keys.SWEEP]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A replay in `mine`, logged and shown."""
    place = tmp_path_factory.mktemp("view")
    asked = ("-c", "plain", "-c", "static:length=3", "-c", "oracle")
    assert replay_here(TRACE, *asked, "--max-requests", 3, "--out", place / "mine").status == 0
    args = [str(place / "mine"), "--dir", str(place), "--view", str(place / "page.html")]
    assert errors._status_of(lambda: main.main(args=args, standalone_mode=False)) == 0
    return place


@pytest.fixture(scope="module")
def one(place: Path) -> Logged:
    return next(logged(read_runs([place / "mine"]).runs))


@pytest.fixture(scope="module")
def tracked(place: Path) -> dict[str, Tracked]:
    return {found.info["name"]: found for found in read_all(place)}


@pytest.mark.parametrize("panel", [p for p in PANELS if p.kind in ("curve", "bars")], ids=lambda panel: panel.title)
def test_a_panel_shows_what_the_offline_file_holds(panel: Panel, one: Logged, tracked: dict[str, Tracked]) -> None:
    found = series_of(panel, one)
    if panel.kind == "bars":
        for series in found:
            assert series.y == [tracked[label].summary.get(series.name) for label in series.x]
        expected = {key for key in panel.keys if any(key in run.summary for run in tracked.values())}
        assert {series.name for series in found} == expected
    elif panel.keys == keys.LIVE_COLUMNS:
        assert found == []  # of a replay nothing is known
        return
    else:
        (key,) = panel.keys
        for series in found:
            history = tracked[series.name].history
            assert series.x == [row[keys.ROUND] for row in history]
            assert series.y == [row[key] for row in history]
        assert [series.name for series in found] == ["plain", "static:length=3", "oracle"]
    drawn = figure_of(panel, found).data
    ends = sum(series.name.endswith(("_low", "_high")) for series in found)
    assert len(drawn) == len(found) - ends


def test_the_interval_is_drawn_as_error_bars(one: Logged) -> None:
    panel = next(panel for panel in PANELS if "speedup_low" in panel.keys)
    (bars,) = figure_of(panel, series_of(panel, one)).data
    result = one.controllers[1].result
    assert bars["x"][1] - bars["error_x"]["arrayminus"][1] == pytest.approx(result["speedup_low"])
    assert bars["x"][1] + bars["error_x"]["array"][1] == pytest.approx(result["speedup_high"])


def test_the_page_has_every_panel_and_loads_nothing(place: Path, one: Logged) -> None:
    text = (place / "page.html").read_text(encoding="utf-8")
    for panel in PANELS:
        assert f"<h4>{panel.title}</h4>" in text
    for column in (*keys.CONTROLLER_COLUMNS, *keys.LATENCY_COLUMNS):
        assert f"<th>{column}</th>" in text
    assert text.count(NOTHING) == 1
    assert not re.search(r"<(script|link|img)[^>]+(src|href)=", text)
    assert one.best is not None
    assert one.best.label == "static:length=3"  # the oracle cannot be deployed
    table = next(panel for panel in PANELS if panel.keys == (keys.LATENCY,))
    assert rows_of(table, one)[1][0][0] == 1


def test_names_are_text_not_markup(one: Logged) -> None:
    evil = "</script><script>alert(1)"
    controllers = [replace(controller, label=evil) for controller in one.controllers]
    odd = replace(one, name="<b>", notes=["a <script> & so on"], controllers=controllers)
    text = page([odd])
    assert "<h2>&lt;b&gt;</h2>" in text
    assert "a &lt;script&gt; &amp; so on" in text
    assert evil not in text


@pytest.mark.parametrize(
    ("target", "message"), [("nowhere/page.html", "the folder"), (".", "the output is a directory")]
)
def test_a_page_that_cannot_be_written_is_refused_before_anything_is_logged(
    place: Path, tmp_path: Path, target: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    args = [str(place / "mine"), "--dir", str(tmp_path), "--view", str(tmp_path / target)]
    assert errors._status_of(lambda: main.main(args=args, standalone_mode=False)) == 2
    assert message in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []
