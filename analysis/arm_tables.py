"""What an experiment's results.json says besides the papers' tables of speedups: comparisons on the same prompts, the
ablation of SP2ec's variants, and the second paper's other findings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from analysis.grid import Column, Row, Table, number, percent, spread
from analysis.paper_tables import fastest

VARIANT = "SP2ec"  # of which labels such as `SP2ec, kept` are variants


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


def _word(value: Any) -> str:
    return ("yes" if value else "no") if isinstance(value, bool) else str(value)


def _text(name: str, key: str) -> Column:
    return Column(name=name, shown=lambda row: _word(row[key]), values={key: lambda row: row[key]}, left=True)


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
    "comparisons": (
        "Compared on the same prompts",
        (
            *METHOD,
            _text("rule", "label"),
            _text("controller", "own_controller"),
            _text("against", "against"),
            _text("its controller", "other_controller"),
            _numbers(
                "ratio of speedups", lambda row: f"{row['ratio']:.3f}{spread(row['ci95'], '.3f')}", "ratio", "ci95"
            ),
            _text("at least as fast", "at_least_as_fast"),
        ),
    ),
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
            Column(
                name="s of timing, once",
                # Results of earlier versions do not have it.
                shown=lambda row: f"{row['timing_s']:.1f}" if row.get("timing_s") else "-",
                values={"timing_s": lambda row: row.get("timing_s")},
                left=True,
            ),
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


def ablation_of(title: str, rows: Sequence[Row]) -> list[Table]:
    """Variants of SP2ec side by side, as in the second paper's ablation of resets: a line is a method, a column a
    variant; empty without any. How sure a difference is, the comparisons say."""
    labels = list(dict.fromkeys(row["label"] for row in rows if row["label"].split(", ")[0] == VARIANT))
    if labels[:1] != [VARIANT] or len(labels) < 2:
        return []
    keys = ("target", "temperature")
    lines: dict[tuple[Any, ...], dict[str, Row]] = {}
    for target, temperature in dict.fromkeys((row["target"], row["temperature"]) for row in rows):
        mine = [row for row in rows if (row["target"], row["temperature"]) == (target, temperature)]
        for ((method, label), dataset), row in fastest(mine).items():
            if label in labels:
                lines.setdefault((target, temperature, dataset, method), {})[label] = row
    names = (*keys, "dataset", "method")
    table = Table(
        title=f"{title}: speedups of SP2ec's variants",
        place={"table": title, "part": "variants"},
        columns=[*METHOD, *(_variant(label) for label in labels)],
        rows=[dict(zip(names, place, strict=True)) | {"labels": found} for place, found in lines.items()],
        heading="## SP2ec's variants: eta, and what it has over SP2ec's",
        aligned=False,
    )
    return [table]


def _variant(label: str) -> Column:
    def gain(row: Row) -> float | None:
        mine, base = row["labels"].get(label), row["labels"].get(VARIANT)
        return None if mine is None or base is None else mine["eta"] - base["eta"]

    def eta(row: Row) -> float | None:
        return row["labels"][label]["eta"] if label in row["labels"] else None

    def shown(row: Row) -> str:
        value, more = eta(row), gain(row)
        if value is None:
            return ""
        return f"{value:.2f}" if label == VARIANT or more is None else f"{value:.2f} ({more:+.2f})"

    return Column(name=label, shown=shown, values={f"{label} eta": eta, f"{label} gain": gain}, left=True)


def sections_of(title: str, document: Mapping[str, Any]) -> list[Table]:
    """The ablation, and a table for every list of the document that is not empty."""
    return ablation_of(title, document.get("rows", [])) + [
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
