"""How checks are shown to people. Owns wording and layout only."""

from __future__ import annotations

from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from specsim.theory.check import Checked
from specsim.theory.check_record import HOLDS, VIOLATED, Verdict

PIPE_WIDTH = 120  # a pipe has no width of its own
_SHOWN_DEPTHS = 12
_COLOURS = {HOLDS: "green", VIOLATED: "red"}


def print_checked(checked: Checked, console: Console) -> None:
    """Verdicts of one trace, then acceptance by depth and the rules side by side."""
    if not console.is_terminal:
        console.width = PIPE_WIDTH
    title = f"{checked.path}  ({checked.requests} requests, {checked.rows} rows, {checked.coverage})"
    console.print(Text(title, style="bold"), soft_wrap=True)
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
    table.add_column("property", no_wrap=True)
    table.add_column("verdict", no_wrap=True)
    table.add_column("found", ratio=1)
    for verdict in checked.verdicts:
        if verdict.id.startswith("convergence:") and "moves" in verdict.details:
            continue
        style = _COLOURS.get(verdict.verdict, "yellow")
        table.add_row(verdict.id, Text(verdict.verdict, style=style), Text(verdict.text))
    console.print(table)
    by_id = {verdict.id: verdict for verdict in checked.verdicts}
    if "acceptance" in by_id.get("hazard", _NOTHING).details:
        console.print(_depth_table(by_id["hazard"].details))
    rules = [v for v in checked.verdicts if v.id.startswith("convergence:") and "moves" in v.details]
    if rules:
        console.print(_rule_table(rules))
        console.print(Text(_rule_note(rules[0].details)), soft_wrap=True)
    console.print()


_NOTHING = Verdict(id="", statement="", verdict="", text="")


def _depth_table(details: dict[str, Any]) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
    table.add_column("draft token", no_wrap=True)
    shown = range(min(_SHOWN_DEPTHS, len(details["depth"])))
    for k in shown:
        table.add_column(str(details["depth"][k] + 1), justify="right", no_wrap=True)

    def cell(values: list[float | None], k: int, form: str = ".2f") -> str:
        value = values[k] if k < len(values) else None
        return "-" if value is None else format(value, form)

    table.add_row("examined", *(str(details["examined"][k]) for k in shown))
    table.add_row("accepted given that all before were", *(cell(details["acceptance"], k) for k in shown))
    table.add_row("  band +-", *(cell(details["half_width"], k) for k in shown))
    table.add_row("all up to it accepted", *(cell(details["survival"], k) for k in shown))
    return table


def _rule_table(rules: list[Verdict]) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
    table.add_column("rule (from every start)", no_wrap=True)
    table.add_column("verdict", no_wrap=True)
    for name in ("moves", "lower it", "by the line", "cycles", "back and forth", "steps", "off best", "lost"):
        table.add_column(name, justify="right", no_wrap=True)
    for verdict in rules:
        d = verdict.details
        table.add_row(
            verdict.id.partition(":")[2],
            Text(verdict.verdict, style=_COLOURS.get(verdict.verdict, "yellow")),
            str(d["moves"]),
            f"{100 * d['lowering_share']:.1f} %",
            f"{100 * d['lowering_share_by_the_line']:.1f} %",
            f"{100 * d['cycle_share']:.1f} %",
            f"{100 * d['back_and_forth_share']:.1f} %",
            f"{d['mean_steps']:.2f}",
            f"{d['mean_distance']:.2f}",
            f"{100 * d['mean_loss']:.1f} %",
        )
    return table


def _rule_note(d: dict[str, Any]) -> str:
    return (
        f"p: {d['p']}; {d['rows']} rows. The rules are told a straight line, {d['line_c_s']:.3g} s per token + "
        f"{d['line_b_s']:.3g} s (off by up to {100 * d['line_largest_error']:.0f} %); judged by the latency model."
    )
