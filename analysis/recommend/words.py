"""The recommendation in words and tables, from the document alone."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

from analysis.recommend.decision import LOSES, USE
from specsim.report import NARROWEST, PIPE_WIDTH

SHOWN = 6


def print_document(document: dict[str, Any], console: Console) -> None:
    """One section per trace, and one for all of them together."""
    console.width = max(console.width, NARROWEST if console.is_terminal else PIPE_WIDTH)
    for trace in document["traces"]:
        exact = "exact" if trace["exact"] else "not checked against plain decoding"
        title = f"{trace['path']}  ({trace['requests']} requests, {trace['rows']} rows, {exact})"
        console.print(Text(title, style="bold"), soft_wrap=True)
        _say(console, sentence(trace))
        _print_table(trace, console)
        for line in (*_judged(trace, document["repeats"]), _hindsight(trace)):
            _say(console, line)
        _print_robustness(trace, console)
        for note in trace["notes"]:
            _say(console, f"note: {note}")
        console.print(Text("to be surer, measure:"))
        for wish in trace["measure"]:
            _say(console, f"  * {_wish(wish)}")
            if wish["command"]:
                _say_command(console, wish["command"])
        console.print()
    if document["pooled"] is not None:
        _print_pooled(document, console)
    elif document["pooled_note"] is not None:
        _say(console, f"no single setting for all of them: {document['pooled_note']}")


def sentence(decided: dict[str, Any]) -> str:
    """The advice in one sentence."""
    speedup, fastest = decided["speedup"], decided["fastest"]
    if decided["verdict"] == LOSES:
        return (
            f"do not speculate: no controller gains; the one that comes closest, {decided['closest']}, is at "
            f"{times(speedup)} plain decoding {interval(speedup)}"
        )
    if decided["verdict"] != USE:
        return (
            "do not speculate yet: of no controller it is certain that it gains; the one that comes closest, "
            f"{decided['closest']}, is at {times(speedup)} plain decoding {interval(speedup)}"
        )
    text = f"use {decided['recommended']}: {times(speedup)} plain decoding {interval(speedup)}"
    static, more = decided["best_static"], fastest["gain_over_recommended"]
    if decided["recommended"] != static:
        text += f"; {percent(decided['gain_over_best_static'])} faster than the best static setting, {static}"
    elif more is None:
        text += "; nothing tried is faster"
    if more is not None:
        text += f"; less simple and not certainly faster: {fastest['controller']}, by {percent(more)}"
    return text


def times(ratio: dict[str, Any]) -> str:
    """A speedup."""
    return f"{ratio['value']:.2f}x"


def interval(ratio: dict[str, Any], digits: int = 2) -> str:
    """Its interval."""
    low, high = ratio["ci95"]
    return f"[{low:z.{digits}f}, {high:z.{digits}f}]"


def percent(ratio: dict[str, Any]) -> str:
    """Percent with its interval."""
    return f"{ratio['value']:z.1f} % {interval(ratio, 1)}"


def _say(console: Console, line: str) -> None:
    """A line, wrapped between words; lines that go on are indented like its first word and two blanks more."""
    indent = len(line) - len(line.lstrip())
    for part in textwrap.wrap(
        line, console.width, subsequent_indent=" " * (indent + 2), break_long_words=False, break_on_hyphens=False
    ):
        console.print(Text(part), soft_wrap=True)


def _say_command(console: Console, command: str) -> None:
    """A command over several lines, as a shell takes it."""
    parts = textwrap.wrap(
        command,
        console.width - 2,
        initial_indent="    ",
        subsequent_indent="      ",
        break_long_words=False,
        break_on_hyphens=False,
    )
    for number, part in enumerate(parts, 1):
        console.print(Text(part + (" \\" if number < len(parts) else "")), soft_wrap=True)


def _print_table(decided: dict[str, Any], console: Console) -> None:
    """The fastest families, and always the static one and the recommended one; those that do the same stand below."""
    always = (decided["best_static"], decided["recommended"], decided["closest"])
    rows, alike = [], {}
    for row in decided["table"]:
        twin = next((one for one in rows if one["speedup"] == row["speedup"]), None)
        if twin is None or row["controller"] in always:
            rows.append(row)
        else:
            alike.setdefault(twin["controller"], []).append(row["controller"])
    shown = [row for rank, row in enumerate(rows) if rank < SHOWN or row["controller"] in always]
    console.print(_table(decided["recommended"], shown))
    for row in shown:
        if row["controller"] in alike:
            _say(console, f"the same as {row['controller']} here: {', '.join(alike[row['controller']])}")


def _table(recommended: str, rows: Sequence[dict[str, Any]]) -> Table:
    table = Table(box=SIMPLE_HEAD, padding=(0, 1, 0, 0))
    table.add_column("controller", overflow="fold", min_width=22)
    for name in ("speedup", "95 %", "% over best static", "95 %", "same requests", "fastest in"):
        table.add_column(name, justify="right", no_wrap=True)
    for row in rows:
        gain = row["gain_over_best_static"]
        table.add_row(
            row["controller"],
            f"{row['speedup']['value']:.3f}",
            interval(row["speedup"]),
            f"{gain['value']:z.1f}",
            interval(gain, 1),
            f"{row['speedup_same_requests']:.3f}",
            f"{100 * row['share_fastest']:.0f} %",
            style="bold" if row["controller"] == recommended else None,
        )
    return table


def _judged(decided: dict[str, Any], repeats: int) -> list[str]:
    optimism = decided["optimism"]
    return [
        f"chosen on {decided['folds'] - 1} of {decided['folds']} parts of the requests and judged on the other, "
        f"{repeats} times; judged by the requests that chose, it would read {optimism['speedup_same_requests']:.3f}x "
        f"({optimism['speedup_removed']:z.3f}x of optimism removed), and the fastest of all "
        f"{optimism['gain_same_requests']:z.1f} % over the best static setting ({optimism['gain_removed']:z.1f} %)"
    ]


def _hindsight(trace: dict[str, Any]) -> str:
    found = trace["hindsight"]
    return (
        f"in hindsight (of these very requests, not to be expected of others): {found['best_static']} is the best "
        f"fixed setting, {found['best_static_speedup']:.3f}x; the advice, judged by requests that did not choose it, "
        f"is {_faster(found['gain_over_it'])} than that; "
        f"clairvoyant path {found['clairvoyant_speedup']:.3f}x"
    )


def _print_robustness(trace: dict[str, Any], console: Console) -> None:
    robustness = trace["robustness"]
    rows = robustness["scenarios"]
    if robustness["holds"]:
        words = "the advice holds under every shifted latency model"
    else:
        words = f"the advice does not hold under {sum(not row['holds'] for row in rows)} of {len(rows)} latency models"
    _say(console, f"{words}:")
    for row in rows:
        line = f"  {row['scenario']}: {times(row['speedup'])} {interval(row['speedup'])}"
        if trace["verdict"] == USE:
            line += f", {_faster(-row['staying_costs']['value'])} than choosing anew there"
        if not row["holds"]:
            there = row["recommended_there"]
            line += f"; there: {'do not speculate' if there == 'plain' else there}"
        _say(console, f"{line} ({row['origin']})")


def _faster(value: float) -> str:
    return f"{abs(value):.1f} % {'slower' if round(value, 1) < 0 else 'faster'}"


def _wish(wish: dict[str, Any]) -> str:
    text = wish["what"]
    if wish["what"] == "more requests":
        many = "far more" if wish["requests"] is None else f"about {wish['requests']} in all"
        text += f", {many}"
    return f"{text}: {wish['why']}"


def _print_pooled(document: dict[str, Any], console: Console) -> None:
    pooled = document["pooled"]
    console.print(Text(f"one setting for all {len(document['traces'])} traces, by their summed seconds", style="bold"))
    _say(console, sentence(pooled))
    _print_table(pooled, console)
    for line in _judged(pooled, document["repeats"]):
        _say(console, line)
    for row in pooled["costs"]:
        own = "plain decoding" if row["against"] == "plain" else f"its own advice, {row['against']}"
        line = f"  {row['path']}: {percent(row['cost'])} more time than {own}"
        _say(console, line + ("; a setting of its own is worth it" if row["dearer"] else ""))
    dear = sum(row["dearer"] for row in pooled["costs"])
    _say(
        console,
        f"a single setting costs more than {pooled['dearer_percent']:.0f} % on {dear} of {len(pooled['costs'])} traces",
    )
