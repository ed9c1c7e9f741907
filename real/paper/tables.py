"""The paper's tables in Markdown, from rows (`real.paper.summary`).

A line is a method and a label (`FastdLLM static`, `FastdLLM LibraSpec`), a pair of columns a dataset: eta, the speedup,
and tau, tokens per round. Of several variants (swept lengths, tree budgets) a cell shows the fastest and which it is.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from real.paper.summary import Row, best

Key = tuple[str, str]


def markdown(title: str, rows: Sequence[Row]) -> str:
    """Every target and temperature as a table: all tokens, then without looping text, then the predictions."""
    parts = [f"# {title}"]
    places = list(dict.fromkeys((row["target"], row["temperature"]) for row in rows))
    for target, temperature in places:
        mine = [row for row in rows if (row["target"], row["temperature"]) == (target, temperature)]
        parts.append(f"## {target}, T = {temperature}")
        parts.append(_table(mine, _measured))
        share = sum(row["loop_share"] * row["tokens"] for row in mine) / sum(row["tokens"] for row in mine)
        parts.append(f"Without looping text ({share:.0%} of the tokens):")
        parts.append(_table(mine, _fresh))
        parts.append("Predicted eta, from a trace and a calibration made before, and its error:")
        parts.append(_table(mine, _predicted))
    return "\n\n".join(parts) + "\n"


def fastest(rows: Sequence[Row]) -> dict[tuple[Key, str], Row]:
    """The fastest variant of every (method, label) and dataset, for one target and temperature."""
    variants: dict[tuple[Key, str], list[Row]] = {}
    for row in rows:
        variants.setdefault(((row["method"], row["label"]), row["dataset"]), []).append(row)
    return {place: {**best(found), "variants": len(found)} for place, found in variants.items()}


def _table(rows: Sequence[Row], cells: Callable[[Row], tuple[str, str]]) -> str:
    chosen = fastest(rows)
    lines = list(dict.fromkeys(key for key, _ in chosen))
    datasets = list(dict.fromkeys(row["dataset"] for row in rows))
    names = cells(rows[0] | {"head": True})
    header = ["method", *(f"{dataset} {name}" for dataset in datasets for name in names)]
    if len(datasets) > 1:
        header.append("mean eta")
    table = [header, ["---", *["---:"] * (len(header) - 1)]]
    for key in lines:
        found = [chosen.get((key, dataset)) for dataset in datasets]
        line = [" ".join(key), *(cell for row in found for cell in (("", "") if row is None else cells(row)))]
        if len(datasets) > 1:
            line.append(_mean([row for row in found if row is not None]) if None not in found else "")
        table.append(line)
    return "\n".join("| " + " | ".join(cell.replace("|", r"\|") for cell in line) + " |" for line in table)


def _measured(row: Row) -> tuple[str, str]:
    if "head" in row:
        return "eta", "tau"
    return f"{row['eta']:.2f}{_interval(row['eta_ci95'])}{_variant(row)}", f"{row['tau']:.2f}"


def _fresh(row: Row) -> tuple[str, str]:
    if "head" in row:
        return "eta", "tau"
    return f"{row['eta_fresh']:.2f}{_interval(row['eta_fresh_ci95'])}{_variant(row)}", f"{row['tau_fresh']:.2f}"


def _predicted(row: Row) -> tuple[str, str]:
    if "head" in row:
        return "eta", "error"
    if row["predicted"] is None:
        return "-", "-"
    return f"{row['predicted']:.2f}", f"{row['error']:+.1%}"


def _mean(rows: Sequence[Row]) -> str:
    return f"{sum(row['eta'] for row in rows) / len(rows):.2f}"


def _interval(ci95: Any) -> str:
    return "" if ci95 is None else f" [{ci95[0]:.2f}, {ci95[1]:.2f}]"


def _variant(row: Row) -> str:
    """Which of several variants this is; nothing where there was no choice."""
    if row["variants"] == 1:
        return ""
    options = row["drafter"].partition(":")[2].split(",")
    settings = [row["controller"].partition(":")[2], *(option for option in options if option.startswith("budget="))]
    return f" ({', '.join(setting for setting in settings if setting)})"


def verdict_lines(verdicts: Sequence[dict[str, Any]], prediction: dict[str, Any]) -> list[str]:
    """For people: how rules compare with each other and the best static length, and how good the predictions are."""
    lines = []
    for one in verdicts:
        where = f"{one['target']}, {one['dataset']}, T = {one['temperature']}, {one['method']}"
        interval = "no interval" if one["ci95"] is None else f"{one['ci95'][0]:.3f} to {one['ci95'][1]:.3f}"
        word = "at least as fast" if one["at_least_as_fast"] else "SLOWER"
        lines.append(f"{where}: {one['label']} / {one['other_controller']} {one['ratio']:.3f} ({interval}): {word}")
        if not one["at_least_as_fast"]:
            lines.append(f"    {_explained(one['explained'])}")
    if prediction["median_error"] is None:
        return [*lines, f"predictions: none of {prediction['rows']} rows has one"]
    word = "within" if prediction["holds"] else "BEYOND"
    return [
        *lines,
        f"predictions: {prediction['predicted']} of {prediction['rows']} rows, median absolute error "
        f"{prediction['median_error']:.1%}, {word} the bound of {prediction['bound']:.1%}",
    ]


def _explained(found: dict[str, Any]) -> str:
    parts = ", ".join(f"{name} {ms:+.2f}" for name, ms in found["ms_per_token"].items())
    tau, submitted, foreseen = found["tau"], found["submitted"], found["predicted_ratio"]
    said = "not predicted" if foreseen is None else f"predicted ratio {foreseen:.3f}"
    return (
        f"ms per token more than the other: {parts}; tau {tau[0]:.2f} against {tau[1]:.2f}, submitted "
        f"{submitted[0]:.1f} against {submitted[1]:.1f}; {said}"
    )
