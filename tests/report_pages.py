"""Pages of the report for its tests: a strict reading of HTML, and run folders whose names try to break out of it."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from dataclasses import dataclass, field
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

from specsim.replay import main as replay
from tests.analysis_logs import PLAIN, real_folder, status
from tests.conftest import ROOT

VOID = {"meta", "link", "br", "wbr", "img", "input", "hr"}
BREAKS_SCRIPT = "</script><script>alert(1)</script>"
BREAKS_ATTRIBUTE = '"><img src=x onerror=alert(1)>'
LENGTHS = ("plain", "static:length=2", "static:length=4", "g4:max=8", "oracle")


@dataclass
class Node:
    """An element: its tag, attributes, children and the text directly in it."""

    tag: str
    attributes: dict[str, str] = field(default_factory=dict)
    children: list[Node | str] = field(default_factory=list)

    def __getitem__(self, name: str) -> str:
        return self.attributes[name]

    def all(self, tag: str = "*", **attributes: str) -> Iterator[Node]:
        """Every element below with this tag and these attributes, in order (class_ and data_ as in Python)."""
        wanted = {name.rstrip("_").replace("_", "-"): value for name, value in attributes.items()}
        for child in self.children:
            if isinstance(child, Node):
                if tag in ("*", child.tag) and all(child.attributes.get(k) == v for k, v in wanted.items()):
                    yield child
                yield from child.all(tag, **attributes)

    def one(self, tag: str = "*", **attributes: str) -> Node:
        """The only one of `all`."""
        (found,) = self.all(tag, **attributes)
        return found

    @property
    def text(self) -> str:
        """All text below."""
        return "".join(child if isinstance(child, str) else child.text for child in self.children)


class _Reader(HTMLParser):
    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.open = [Node("document")]

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert len({name for name, _ in attrs}) == len(attrs), f"<{tag}> has an attribute twice"
        node = Node(tag, {name: value or "" for name, value in attrs})
        self.open[-1].children.append(node)
        if tag not in VOID:
            self.open.append(node)

    def handle_endtag(self, tag: str) -> None:
        assert self.open[-1].tag == tag, f"</{tag}> ends <{self.open[-1].tag}>"
        self.open.pop()

    def handle_data(self, data: str) -> None:
        self.open[-1].children.append(data)


def parsed(text: str) -> Node:
    """The document; every element has to be closed where it should be."""
    reader = _Reader()
    reader.feed(text)
    reader.close()
    assert [node.tag for node in reader.open] == ["document"]
    return reader.open[0]


def table_rows(table: Node) -> tuple[list[str], list[list[Node]]]:
    """Column names and cells of a table."""
    names = [cell.text for cell in table.one("thead").all("th")]
    rows = [[cell for cell in row.children if isinstance(cell, Node)] for row in table.one("tbody").all("tr")]
    return names, rows


def figures_of(document: Node) -> list[Any]:
    """The data of every plot."""
    return [json.loads(script.text) for script in document.all("script", type="application/json")]


def replayed(folder: Path, *traces: str, controllers: tuple[str, ...] = LENGTHS, latency: str | None = None) -> Path:
    """The folder of a replay of traces that come with the project, cut to a few requests."""
    files = [ROOT / "traces" / f"{name}.parquet" for name in traces]
    words = [word for name in controllers for word in ("-c", name)]
    words += [] if latency is None else ["--latency", latency]
    assert status(replay, *files, *words, "--max-requests", "4", "--out", folder) == 0
    return folder


def hostile_replay(folder: Path) -> Path:
    """A replay of a trace whose file name closes an attribute."""
    trace = folder.parent / f"{BREAKS_ATTRIBUTE}.parquet"
    shutil.copy(ROOT / "traces" / "humaneval-prompt-lookup.parquet", trace)
    words = ["-c", "plain", "-c", "static:length=2", "-c", "g4:max=8"]
    assert status(replay, trace, *words, "--max-requests", "3", "--out", folder) == 0
    return folder


def hostile_real(folder: Path) -> Path:
    """A real run whose controllers, target and dataset close elements and attributes."""
    decodes = {}
    for request in range(3):
        decodes[request, PLAIN] = [(0, 0, 0.1)] * 6
        decodes[request, BREAKS_SCRIPT] = [(3, 2, 0.12 + 0.01 * request), (3, 2, 0.13)]
        decodes[request, BREAKS_ATTRIBUTE] = [(2, 1, 0.11 + 0.02 * request)] * 3
    config = {"target": BREAKS_SCRIPT, "drafter": "<b>&amp;", "dataset": BREAKS_ATTRIBUTE, "temperature": 0.0}
    provenance = {"argv": ["run", BREAKS_SCRIPT], "git": BREAKS_ATTRIBUTE}
    return real_folder(folder, decodes, config=config, provenance=provenance)
