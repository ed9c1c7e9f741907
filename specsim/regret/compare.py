"""Run several policies on one case; the document and the table people read."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

from specsim.regret.measures import measure
from specsim.regret.runner import Output, run_policy
from specsim.regret.worlds import Case

SCHEMA = "specsim.regret/1"
WIDTH = 132  # of a pipe
# No resets, as regret is about one long run; the second SP2ec is the published one.
DEFAULT_POLICIES = (
    "best-arm",
    "sp2ec:beta=0.1,reset=0",
    "sp2ec:beta=0.3,reset=0",
    "sp2ec:beta=0.3,reset=512",
    "sp2ec:beta=0.707,reset=0",
    "sp2ec:beta=1,reset=0",
    "klucb-unimodal:reset=0",
    "global-ucb:reset=0",
    "ucbspec",
    "ucb1",
    "thompson",
    "exp3spec",
    "hedge",
)


def run_all(case: Case, spellings: Sequence[str]) -> tuple[list[Output], Output]:
    """Runs of every policy, and of the best single arm, on the same random numbers."""
    built = [case.build(spelling) for spelling in spellings]
    best = run_policy(case.build("best-arm"), case.job)
    return [run_policy(controller, case.job) for controller in built], best


def compare(case: Case, spellings: Sequence[str]) -> dict[str, Any]:
    """Results of the policies on a case: JSON values.

    Raises:
        ConfigError: a spelling that cannot be built or run here.
    """
    outputs, best = run_all(case, spellings)
    rows = [
        measure(spelling, case.build(spelling), case, out, best)
        for spelling, out in zip(spellings, outputs, strict=True)
    ]
    job, gap = case.job, case.job.world.gap[0, :, -1]
    return {
        "case": case.title,
        **case.facts,
        "seed": job.seed,
        "runs": job.runs,
        "rounds": int(job.grid[-1]) if job.world.is_trace else job.rounds,
        "quota_tokens": int(job.quota),
        "best_arm": job.best,
        "top3": case.top3,
        "arm_throughput": case.throughput.tolist(),
        "arm_gap_s": gap.tolist(),
        "initial_cost_s": float(gap.sum()),
        "lower_bound_slope_s": case.bound,
        "best_arm_s": float(best.quota[:, 0].mean()),
        "results": rows,
    }


def paired(first: Output, second: Output) -> dict[str, float]:
    """Relative difference in time at the quota, second less first, over runs on the same random numbers."""
    change = (second.quota[:, 0] - first.quota[:, 0]) / first.quota[:, 0]
    runs = change.size
    se = float(change.std(ddof=1) / np.sqrt(runs)) if runs > 1 else 0.0
    mean = float(change.mean())
    return {"mean": mean, "low": mean - 1.96 * se, "high": mean + 1.96 * se}


def number(value: float | None, digits: int = 2) -> str:
    if value is None:
        return "-"
    return f"{value:.3g}" if abs(value) >= 10_000 else f"{value:z.{digits}f}"


def print_case(result: dict[str, Any], console: Console) -> None:
    """The table of a comparison, and what it says in sentences."""
    if not console.is_terminal:
        console.width = max(console.width, WIDTH)
    console.print(Text(result["case"], style="bold"), soft_wrap=True)
    what = "orders of requests" if "trace" in result else "runs"
    line = (
        f"{result['runs']} {what}, quota {result['quota_tokens']} tokens (best arm: {number(result['best_arm_s'])} s);"
    )
    line += f" pulling every arm once costs {number(result['initial_cost_s'], 3)} s"
    console.print(Text(line), soft_wrap=True)
    table = Table(box=SIMPLE_HEAD, padding=(0, 1, 0, 0))
    table.add_column("policy", overflow="fold", min_width=20)
    for name in ("regret\ns", "+-1.96\nse", "runs 95 %\ns", "sd", "max", "pseudo\ns", "loss\n%", "outside\ntop 3 %"):
        table.add_column(name, justify="right", no_wrap=True)
    for name in ("first\npulls s", "after\nresets s", "switches\n%", "growth"):
        table.add_column(name, justify="right", no_wrap=True)
    for row in result["results"]:
        regret = row["regret_s"]
        low, high = regret["band95"]
        table.add_row(
            row["policy"],
            number(regret["mean"]),
            number(None if regret["se"] is None else 1.96 * regret["se"]),
            f"{number(low, 1)}..{number(high, 1)}",
            number(regret["sd"]),
            number(regret["max"]),
            number(row["pseudo_regret_s"]["mean"]),
            number(100 * row["relative_loss"]),
            number(100 * row["outside_top3"]["mean"], 1),
            number(row["first_pulls_s"]),
            number(row["reset_pulls_s"]),
            number(100 * row["switch_share"], 1),
            growth(row["growth"]),
        )
    console.print(table)
    _print_notes(result, console)


def growth(fit: dict[str, Any]) -> str:
    """The better fit in few characters, with a question mark where nothing may be concluded."""
    if fit["log"] is None or fit["power"] is None:
        return "-"
    power = (fit["power"]["r2"] or 0.0) > (fit["log"]["r2"] or 0.0)
    text = f"n^{fit['power']['g']:.2f}" if power else f"{fit['log']['a']:.3g} ln n"
    return text + ("?" if fit["verdict"] == "undecided" else "")


def _print_notes(result: dict[str, Any], console: Console) -> None:
    bound = result["lower_bound_slope_s"]
    if bound is not None:
        note = " (as if rounds were independent)" if "trace" in result else ""
        console.print(Text(f"unimodal lower bound: {bound:.3g} s per unit of ln n{note}"), soft_wrap=True)
    seen: dict[str, list[str]] = {}
    for row in result["results"]:
        fit = row["growth"]
        if not row["privileged"] and fit["verdict"] == "undecided":
            seen.setdefault(fit["why"].partition("; ")[2] or fit["why"], []).append(row["policy"])
    for why, policies in seen.items():
        who = "growth" if len(policies) > 3 else "growth of " + ", ".join(policies)
        console.print(Text(f"{who}: {why}"), soft_wrap=True)
    console.print()
