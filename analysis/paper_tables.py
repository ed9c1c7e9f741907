"""The papers' tables, from the rows of an experiment's results.json (`real.paper.summary` makes them).

A line is a method and a label (`FastdLLM static`, `FastdLLM LibraSpec`), a pair of columns a dataset: eta, the speedup,
and tau, tokens per round. Of several variants (swept lengths, tree budgets) a cell shows the fastest and which it is.
Every target and temperature is shown by all tokens, without looping text, and as it was predicted.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from analysis.grid import Column, Row, Table, number, spread

Key = tuple[str, str]
MEASURED, FRESH, PREDICTED = "measured", "without looping text", "predicted"


def tables_of(title: str, rows: Sequence[Row]) -> list[Table]:
    """Every target and temperature three times.

    Args:
        title: over the first one.
        rows: of results.json, at least one.
    """
    tables: list[Table] = []
    for target, temperature in dict.fromkeys((row["target"], row["temperature"]) for row in rows):
        mine = [row for row in rows if (row["target"], row["temperature"]) == (target, temperature)]
        share = sum(row["loop_share"] * row["tokens"] for row in mine) / sum(row["tokens"] for row in mine)
        where = f"{target}, T = {temperature}"
        headings = {
            MEASURED: f"## {where}",
            FRESH: f"Without looping text ({share:.0%} of the tokens):",
            PREDICTED: "Predicted eta, from a trace and a calibration made before, and its error:",
        }
        for part, heading in headings.items():
            tables.append(
                Table(
                    title=f"{title}: {where}" + ("" if part == MEASURED else f", {part}"),
                    place={"table": title, "target": target, "temperature": temperature, "part": part},
                    columns=_columns(mine, part),
                    rows=_lines(mine),
                    heading=heading if tables else f"# {title}\n\n{heading}",
                    of=(title if part == MEASURED else f"{title}, {part}", where),
                )
            )
    return tables


def fastest(rows: Sequence[Row]) -> dict[tuple[Key, str], dict[str, Any]]:
    """The fastest variant of every (method, label) and dataset, for one target and temperature."""
    variants: dict[tuple[Key, str], list[Row]] = {}
    for row in rows:
        variants.setdefault(((row["method"], row["label"]), row["dataset"]), []).append(row)
    return {
        place: {**max(found, key=lambda row: row["eta"]), "variants": len(found)} for place, found in variants.items()
    }


def _lines(rows: Sequence[Row]) -> list[Row]:
    """A row per method and label: its name, and each dataset's cell under the dataset's name."""
    chosen = fastest(rows)
    datasets = list(dict.fromkeys(row["dataset"] for row in rows))
    return [
        {"name": " ".join(key), "method": key[0], "label": key[1]}
        | {"cells": {dataset: chosen.get((key, dataset)) for dataset in datasets}}
        for key in dict.fromkeys(key for key, _ in chosen)
    ]


def _columns(rows: Sequence[Row], part: str) -> list[Column]:
    datasets = list(dict.fromkeys(row["dataset"] for row in rows))
    names = {"method": lambda row: row["method"], "label": lambda row: row["label"]}
    columns = [Column(name="method", shown=lambda row: row["name"], values=names, left=True)]
    suffix = "" if part == MEASURED else "_fresh"
    for dataset in datasets:
        columns += _predicted(dataset) if part == PREDICTED else _measured(dataset, suffix)
    if len(datasets) > 1:
        keys = {"eta": "predicted"} if part == PREDICTED else {"eta": f"eta{suffix}", "tau": f"tau{suffix}"}
        columns += [_mean_of(name, key) for name, key in keys.items()]
    return columns


def _mean_of(name: str, key: str) -> Column:
    def shown(row: Row) -> str:
        mean = _mean(row, key)
        return "" if mean is None else f"{mean:.2f}"

    return Column(name=name, shown=shown, values={f"mean {key}": lambda row: _mean(row, key)}, group="mean")


def _measured(dataset: str, suffix: str) -> list[Column]:
    eta, tau, interval = f"eta{suffix}", f"tau{suffix}", f"eta{suffix}_ci95"

    def shown(row: Row) -> str:
        cell = row["cells"][dataset]
        return "" if cell is None else f"{cell[eta]:.2f}{spread(cell[interval], '.2f')}{_variant(cell)}"

    values = {
        f"{dataset} eta": _of(dataset, eta),
        f"{dataset} eta_low": _of(dataset, interval, 0),
        f"{dataset} eta_high": _of(dataset, interval, 1),
        f"{dataset} controller": _of(dataset, "controller"),
        f"{dataset} drafter": _of(dataset, "drafter"),
    }
    taus = {f"{dataset} tau": _of(dataset, tau)}
    return [
        Column(name="eta", shown=shown, values=values, group=dataset),
        Column(name="tau", shown=lambda row: _shown(row, dataset, tau, ".2f"), values=taus, group=dataset),
    ]


def _predicted(dataset: str) -> list[Column]:
    return [
        Column(
            name="eta",
            shown=lambda row: _shown(row, dataset, "predicted", ".2f"),
            values={f"{dataset} predicted": _of(dataset, "predicted")},
            group=dataset,
        ),
        Column(
            name="error",
            shown=lambda row: _shown(row, dataset, "error", "+.1%"),
            values={f"{dataset} error": _of(dataset, "error")},
            group=dataset,
        ),
    ]


def _shown(row: Row, dataset: str, key: str, form: str) -> str:
    cell = row["cells"][dataset]
    return "" if cell is None else number(cell[key], form)


def _of(dataset: str, key: str, end: int | None = None) -> Any:
    """A row's value in a dataset's cell; of an interval one end."""

    def value(row: Row) -> Any:
        cell = row["cells"][dataset]
        found = None if cell is None else cell[key]
        return found if end is None or found is None else found[end]

    return value


def _mean(row: Row, key: str) -> float | None:
    """The mean over all datasets; None where one is missing."""
    found = [cell[key] for cell in row["cells"].values() if cell is not None and cell[key] is not None]
    return sum(found) / len(found) if len(found) == len(row["cells"]) else None


def _variant(row: Row) -> str:
    """Which of several variants this is; nothing where there was no choice."""
    if row["variants"] == 1:
        return ""
    options = row["drafter"].partition(":")[2].split(",")
    settings = [row["controller"].partition(":")[2], *(option for option in options if option.startswith("budget="))]
    return f" ({', '.join(setting for setting in settings if setting)})"
