"""The replay result document (docs/formats.md) and the tables people read. Computes no numbers of its own."""

from __future__ import annotations

import json
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

from specsim.engine import TraceResult

SCHEMA = "specsim.replay/1"
PIPE_WIDTH = 120  # a pipe has no width of its own
ONE_LINE_WIDTH = 100  # below it, column names take two lines to leave room for the controllers
NARROWEST = 80  # below it the terminal may wrap lines: that is better than numbers cut off
Done = list[tuple[dict[str, Any], TraceResult, list[str]]]


def document(seed: int, acceptance: str, done: Done) -> dict[str, Any]:
    """The result document.

    Args:
        seed, acceptance: as replayed.
        done: per trace its entry, its result and notes.
    """
    results = [{"trace": entry["path"], **row} for entry, result, _ in done for row in result.results]
    return {
        "schema": SCHEMA,
        "seed": seed,
        "acceptance": acceptance,
        "traces": [entry for entry, _, _ in done],
        "results": results,
    }


def to_json(result: dict[str, Any]) -> str:
    """Strict JSON: an undefined number would raise here rather than print NaN."""
    return json.dumps(result, indent=1, allow_nan=False) + "\n"


def print_tables(done: Done, console: Console) -> None:
    """One table per trace, and under it the answer in a sentence.

    Columns: speedup over plain decoding with its bootstrap interval, tau, mean submitted length, mean distance from the
    best length of each round, and seconds lost to the best static length and to the clairvoyant path.
    """
    console.width = max(console.width, NARROWEST if console.is_terminal else PIPE_WIDTH)
    for entry, outcome, notes in done:
        exact = "exact" if entry["exact"] else "not checked against plain decoding"
        title = f"{entry['path']}  ({entry['requests']} requests, {entry['rows']} rows, {exact})"
        # Text, not str: a file name may look like markup. No table title: that would be folded at the table's width.
        console.print(Text(title, style="bold"), soft_wrap=True)
        console.print(_table(outcome.results, two_lines=console.width < ONE_LINE_WIDTH))
        for line in (*_verdict(outcome), *notes):
            console.print(Text(line), soft_wrap=True)
        console.print()


def spelled(row: dict[str, Any]) -> str:
    """A controller with its parameters as it would be typed; switches that are off are left out."""
    items = [f"{k}={int(v) if isinstance(v, bool) else v}" for k, v in row["params"].items() if v is not False]
    return row["controller"] + (":" + ",".join(items) if items else "")


def _table(rows: list[dict[str, Any]], *, two_lines: bool) -> Table:
    table = Table(box=SIMPLE_HEAD, padding=(0, 1, 0, 0))
    table.add_column("controller", overflow="fold", min_width=10 if two_lines else 22)
    for name in ("speedup", "95 %", "tau", "length", "off best", "vs static s", "vs oracle s"):
        header = name.replace(" ", "\n", 1) if two_lines and name != "95 %" else name
        table.add_column(header, justify="right", no_wrap=True)
    fastest = max(rows, key=lambda row: row["speedup"])
    for row in rows:
        table.add_row(
            spelled(row),
            _number(row["speedup"], 3),
            _interval(row["speedup_ci95"]),
            _number(row["tau"], 2),
            _number(row["mean_submitted"], 2),
            _number(row["oracle_mad"], 2),
            _number(row["regret_best_fixed_s"], 2),
            _number(row["regret_oracle_s"], 2),
            style="bold" if row is fastest else None,
        )
    return table


def _verdict(outcome: TraceResult) -> list[str]:
    rows = outcome.results
    lines = []
    deployable = [row for row in rows if not row["privileged"]]
    best = max(deployable, key=lambda row: row["speedup"], default=None)
    if best is not None:
        faster = "; plain decoding is faster" if best["speedup"] < 1 else ""
        lines.append(f"fastest that could be deployed: {spelled(best)}, {best['speedup']:.3f}x plain decoding{faster}")
    if outcome.static_s is not None and outcome.oracle_s is not None:
        plain_s, choice = rows[0]["plain_time_s"], int(outcome.static_s.argmin())
        what = {"arm": "single arm", "tree": "number of nodes"}.get(outcome.kind, "static length")
        line = f"best {what} in hindsight: {choice} ({plain_s / outcome.static_s[choice]:.3f}x); "
        line += f"clairvoyant path: {plain_s / outcome.oracle_s:.3f}x"
        if best is not None:
            left = 100 * (1 - outcome.oracle_s / best["time_s"])
            line += f", so {left:.1f} % of the time of the fastest is left to gain"
        lines.append(line)
    for row in rows:
        if row["clamped_rounds"]:
            share = 100 * row["clamped_rounds"] / row["rounds"]
            lines.append(
                f"warning: {spelled(row)} asked for more draft tokens than were recorded in {share:.1f} % of its rounds"
            )
        if row.get("off_policy"):
            lines.append(f"caution: {spelled(row)}: {row['off_policy']}")
    if any(row["inexact_rounds"] for row in rows):
        lines.append(
            "warning: the recorded lists are too short to be sure of the largest trees (inexact_rounds)"
            if outcome.kind == "tree"
            else "warning: this drafter redraws a longer block, so lengths short of the recorded pass are approximate "
            "(inexact_rounds)"
        )
    return lines


def _number(value: float | None, digits: int) -> str:
    return "-" if value is None else f"{value:z.{digits}f}"  # z: a rounding error is no "-0.00"


def _interval(pair: list[float | None]) -> str:
    return "-" if pair[0] is None else f"[{pair[0]:.2f}, {pair[1]:.2f}]"
