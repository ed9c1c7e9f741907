"""Dashboards by code: every panel and every key is in what would be sent, and building it touches no network."""

from __future__ import annotations

import json
import re
import socket
from typing import Any

import pytest

pytest.importorskip("wandb_workspaces", reason="dashboards need the extra 'analysis'")
pytestmark = pytest.mark.filterwarnings("ignore::pydantic.warnings.PydanticDeprecatedSince20")

from analysis import keys  # noqa: E402
from analysis.panels import SECTIONS, Panel  # noqa: E402
from tests.conftest import ROOT  # noqa: E402

PANELS = [panel for section in SECTIONS for panel in section.panels]
VIEWS = {
    "curve": "Run History Line Plot",
    "bars": "Bar Chart",
    "value": "Scalar Chart",
    "table": "Weave",
    "picture": "Media Browser",
}


@pytest.fixture(autouse=True)
def no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("the network was touched")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.setenv("WANDB_API_KEY", "")


@pytest.fixture
def project_id(monkeypatch: pytest.MonkeyPatch) -> None:
    """A report asks the server for the number of its project; here it is told."""
    import wandb_workspaces.reports.v2.interface as interface

    monkeypatch.setattr(interface, "_get_api", lambda: None)
    monkeypatch.setattr(interface, "execute_graphql", lambda *_: {"project": {"internalId": "17"}})


def spec(board: Any) -> Any:
    return json.loads(json.dumps(board._to_model().model_dump(by_alias=True, exclude_none=True)))


def check(panel: Panel, sent: dict[str, Any]) -> None:
    """What is sent of a panel has its kind, its title and its keys."""
    assert sent["viewType"] == VIEWS[panel.kind]
    if panel.kind == "table":
        assert {"nodeType": "const", "type": "string", "val": panel.keys[0]} in found(sent, "key")
        return
    assert sent["config"]["chartTitle"] == panel.title
    if panel.kind == "picture":
        assert tuple(sent["config"]["mediaKeys"]) == panel.keys
        return
    assert tuple(sent["config"]["metrics"]) == panel.keys
    if panel.kind == "curve":
        assert sent["config"]["xAxis"] == "round"


def found(document: Any, key: str) -> list[Any]:
    """Every value of a key, however deep."""
    if isinstance(document, list):
        return [value for one in document for value in found(one, key)]
    if not isinstance(document, dict):
        return []
    return [value for name, one in document.items() for value in ([one] if name == key else []) + found(one, key)]


def test_a_workspace_has_every_panel_for_the_groups() -> None:
    from analysis import boards

    sent = spec(boards.workspace("somebody", "specsim", ["mine", "a.b-c"]))
    assert (sent["entity"], sent["project"]) == ("somebody", "specsim")
    sections = sent["spec"]["section"]["panelBankConfig"]["sections"]
    assert [section["name"] for section in sections] == [section.title for section in SECTIONS]
    for section, made in zip(SECTIONS, sections, strict=True):
        for panel, one in zip(section.panels, made["panels"], strict=True):
            check(panel, one)
    (runs,) = sent["spec"]["section"]["runSets"]
    (rule,) = runs["filters"]["filters"]
    assert (rule["key"]["name"], rule["op"], rule["value"]) == ("group", "IN", ["mine", "a.b-c"])


@pytest.mark.usefixtures("project_id")
def test_a_report_has_every_panel_under_its_heading() -> None:
    from analysis import boards

    blocks = spec(boards.report("somebody", "specsim", ["mine"]))["spec"]["blocks"]
    headings = [block["children"][0]["text"] for block in blocks if block["type"] == "heading"]
    assert headings == [section.title for section in SECTIONS]
    texts = [block["children"][0].get("text") for block in blocks if block["type"] == "paragraph"]
    assert [text for text in texts if text] == [section.text for section in SECTIONS]
    grids = [block for block in blocks if block["type"] == "panel-grid"]
    for section, grid in zip(SECTIONS, grids, strict=True):
        panels = grid["metadata"]["panelBankSectionConfig"]["panels"]
        places = set()
        for panel, one in zip(section.panels, panels, strict=True):
            check(panel, one)
            places.add((one["layout"]["x"], one["layout"]["y"]))
        assert len(places) == len(panels)  # none covers another
        (runs,) = grid["metadata"]["runSets"]
        assert runs["project"]["entityName"] == "somebody"


@pytest.mark.parametrize("panel", PANELS, ids=lambda panel: panel.title)
def test_panels_show_keys_that_are_logged(panel: Panel) -> None:
    known = {
        "curve": keys.CURVES,
        "bars": keys.SUMMARY,
        "value": (keys.BEST_SPEEDUP,),
        "picture": (keys.HEAT_MAP,),
        "table": (keys.CONTROLLERS, keys.LATENCY, keys.CELLS),
    }
    assert set(panel.keys) <= set(known[panel.kind])
    assert panel.title.isprintable()


def test_every_column_of_a_round_is_shown() -> None:
    shown = {key for panel in PANELS if panel.kind == "curve" for key in panel.keys}
    assert shown == set(keys.CURVES) - {keys.ROUND, keys.REQUEST}


def test_wandb_is_imported_in_one_file_and_dashboards_in_one() -> None:
    texts = {path.name: path.read_text(encoding="utf-8") for path in (ROOT / "analysis").rglob("*.py")}
    assert [name for name, text in texts.items() if re.search(r"^\s*import wandb$", text, re.MULTILINE)] == [
        "tracking.py"
    ]
    assert [name for name, text in texts.items() if "import wandb_workspaces" in text] == ["boards.py"]
