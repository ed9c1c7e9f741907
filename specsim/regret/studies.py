"""The studies by name, and how one is printed."""

from __future__ import annotations

from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

from specsim.regret.compare import WIDTH
from specsim.regret.study_bandits import ARMS, BETA, OUTSIDE, VALLEY
from specsim.regret.study_change import DRIFT, JOINT, RESET
from specsim.regret.study_tools import Study

STUDIES: dict[str, Study] = {
    "outside-top3": OUTSIDE,
    "reset": RESET,
    "arms": ARMS,
    "valley": VALLEY,
    "beta": BETA,
    "joint": JOINT,
    "drift": DRIFT,
}


def print_study(document: dict[str, Any], console: Console) -> None:
    """Question, tables, outcome."""
    if not console.is_terminal:
        console.width = max(console.width, WIDTH)
    console.print(Text(document["question"], style="bold"), soft_wrap=True)
    console.print(Text(f"{document['runs']} runs of {document['rounds']} rounds, seed {document['seed']}"))
    for part in document["tables"]:
        console.print(Text(part["title"]), soft_wrap=True)
        shown = Table(box=SIMPLE_HEAD, padding=(0, 1, 0, 0))
        for index, name in enumerate(part["columns"]):
            shown.add_column(name, justify="left" if index == 0 else "right", overflow="fold")
        for row in part["rows"]:
            shown.add_row(*(_cell(value) for value in row))
        console.print(shown)
    for line in document["outcome"]:
        console.print(Text(line), soft_wrap=True)


def _cell(value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, float):
        return f"{value:.1f}" if abs(value) >= 100 else f"{value:z.2f}"
    return str(value)
