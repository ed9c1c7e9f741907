"""The papers' tables, from the rows of an experiment's results.json (`real.paper.summary` makes them).

A line is a method and a label (`FastdLLM static`, `FastdLLM LibraSpec`), a pair of columns a dataset: eta, the speedup,
and tau, tokens per round. Of several variants (swept lengths, tree budgets) a cell shows the fastest and which it is.
Every target and temperature is shown by all tokens, without looping text, and as it was predicted.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from analysis.grid import Column, Row, Table, number, percent, spread

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
        key = "predicted" if part == PREDICTED else f"eta{suffix}"
        columns.append(
            Column(
                name="mean eta",
                shown=lambda row: "" if _mean(row, key) is None else f"{_mean(row, key):.2f}",
                values={f"mean {key}": lambda row: _mean(row, key)},
            )
        )
    return columns


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
    """The mean of all datasets' speedups; None where one is missing."""
    found = [cell[key] for cell in row["cells"].values() if cell is not None and cell[key] is not None]
    return sum(found) / len(found) if len(found) == len(row["cells"]) else None


def _variant(row: Row) -> str:
    """Which of several variants this is; nothing where there was no choice."""
    if row["variants"] == 1:
        return ""
    options = row["drafter"].partition(":")[2].split(",")
    settings = [row["controller"].partition(":")[2], *(option for option in options if option.startswith("budget="))]
    return f" ({', '.join(setting for setting in settings if setting)})"


def place(row: Row) -> str:
    """Target, dataset and temperature."""
    return f"{row['target']}, {row['dataset']}, T = {row['temperature']}"


def _milliseconds(seconds: float | None, interval: Sequence[float] | None) -> str:
    if seconds is None:
        return "-"
    return f"{seconds * 1e3:.1f}" + spread(interval and [end * 1e3 for end in interval], ".1f")


def _example(row: Row) -> str:
    more, less = row["higher"], row["lower"]
    if more is None:
        return "none: no pair whose interval is clear of 1"
    told = [
        f"{one['method']} {one['label']} ({one['controller']}): tau {one['tau']:.2f}, {one['eta']:.2f}x"
        for one in (more, less)
    ]
    return f"{'; '.join(told)}; ratio {row['ratio']:.3f}{spread(row['ci95'], '.3f')}"


def _against(row: Row) -> str:
    told = [
        f"{fast} is faster than {slow} ({ratio:.3f}; predicted {guess:.3f})"
        for fast, slow, ratio, guess in row["against"]
    ]
    return "\n".join(told) or "none"


def _text(name: str, key: str) -> Column:
    return Column(name=name, shown=lambda row: str(row[key]), values={key: lambda row: row[key]}, left=True)


def _numbers(name: str, shown: Any, *keys: str) -> Column:
    """A column that shows values under keys; intervals are two columns of CSV."""
    values: dict[str, Any] = {}
    for key in keys:
        if key.endswith("_ci95") or key == "ci95":
            base = key.removesuffix("_ci95") if key != "ci95" else "ratio"
            values |= {f"{base}_low": _end(key, 0), f"{base}_high": _end(key, 1)}
        else:
            values[key] = lambda row, key=key: row[key]
    return Column(name=name, shown=shown, values=values, left=True)


def _end(key: str, place: int) -> Any:
    return lambda row: None if row[key] is None else row[key][place]


METHOD = (
    Column(
        name="place",
        shown=place,
        values={key: lambda row, key=key: row[key] for key in ("target", "dataset", "temperature")},
        left=True,
    ),
    _text("method", "method"),
)
RULE = (*METHOD, _text("rule", "label"), _text("controller", "controller"))
SECTIONS: Mapping[str, tuple[str, Sequence[Column]]] = {
    "acceptance": (
        "Acceptance against speed",
        (
            METHOD[0],
            _text("rows", "points"),
            _numbers("rank correlation of tau and eta", lambda row: number(row["spearman"], "+.2f"), "spearman"),
            Column(
                name="accepts more and is slower",
                shown=_example,
                values={"ratio": lambda row: row["ratio"] if row["higher"] else None},
                left=True,
            ),
        ),
    ),
    "contexts": (
        "By the length of prompts",
        (
            *METHOD,
            _text("label", "label"),
            _text("controller", "controller"),
            _numbers("prompt tokens", lambda row: f"{row['prompt_len']:.0f}", "prompt_len"),
            _numbers("eta", lambda row: f"{row['eta']:.2f}{spread(row['eta_ci95'], '.2f')}", "eta", "eta_ci95"),
            _numbers("tau", lambda row: f"{row['tau']:.2f}", "tau"),
        ),
    ),
    "construction": (
        "What making the arms took",
        (
            *METHOD,
            _text("rule", "label"),
            _numbers(
                "ms per family", lambda row: f"{row['build_s'] / row['families'] * 1e3:.1f}", "build_s", "families"
            ),
            _numbers("of the generation", lambda row: percent(row["share"], 2), "share"),
            _text("tokens", "tokens"),
            _numbers("tokens for 1 %", lambda row: f"{row['tokens_for_1_percent']:.0f}", "tokens_for_1_percent"),
        ),
    ),
    "shares": (
        "Who pulled what",
        (
            *RULE,
            _text("rounds", "rounds"),
            _numbers("best arm", lambda row: f"{row['best_arm']}: {percent(row['best'])}", "best_arm", "best"),
            _numbers("each prompt's best arm", lambda row: percent(row["own_best"]), "own_best"),
            _numbers("outside the best three", lambda row: percent(row["outside_top3"]), "outside_top3"),
        ),
    ),
    "regrets": (
        "Wall-time regret",
        (
            *RULE,
            Column(
                name="over the best arm of",
                shown=lambda row: "each prompt" if row["arm"] is None else f"all prompts ({row['arm']})",
                values={"against": lambda row: row["against"], "arm": lambda row: row["arm"]},
                left=True,
            ),
            _numbers(
                "ms per prompt",
                lambda row: _milliseconds(row["regret_s"], row["regret_s_ci95"]),
                *("regret_s", "regret_s_ci95"),
            ),
            _numbers(
                "of its time",
                lambda row: percent(row["relative"]) + spread(row["relative_ci95"], ".1%"),
                *("relative", "relative_ci95"),
            ),
            _numbers("predicted: best arm", lambda row: row["predicted_arm"] or "-", "predicted_arm"),
            _numbers(
                "ms",
                lambda row: _milliseconds(row["predicted_s"], row["predicted_s_ci95"]),
                *("predicted_s", "predicted_s_ci95"),
            ),
            _numbers(
                "of its time, predicted",
                lambda row: percent(row["predicted"]) + spread(row["predicted_ci95"], ".1%"),
                *("predicted", "predicted_ci95"),
            ),
        ),
    ),
    "orders": (
        "Whether the replay foresaw who is faster",
        (
            *METHOD,
            _text("pairs", "pairs"),
            _text("intervals separate", "separated"),
            _text("of these told apart by the replay", "foreseen"),
            _text("too close to tell", "untold"),
            _text("in the measured order", "agreed"),
            Column(name="not", shown=_against, values={"against": _against}, left=True),
        ),
    ),
}


def sections_of(title: str, document: Mapping[str, Any]) -> list[Table]:
    """What the second paper's experiments say besides the table of speedups: a table for every list of the document
    that is not empty."""
    return [
        Table(
            title=f"{title}: {heading}",
            place={"table": title, "part": key},
            columns=columns,
            rows=document[key],
            heading=f"## {heading}",
            aligned=False,
        )
        for key, (heading, columns) in SECTIONS.items()
        if document.get(key)
    ]
