"""What the second paper's experiments say besides the table of speedups, in Markdown, from the rows of results.json."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from real.paper.summary import Row

Cell = Callable[[Row], str]


def sections(document: Mapping[str, Any]) -> str:
    """A section for every list of the document that is not empty; the empty text without any."""
    written = [
        f"## {title}\n\n{_table(document[key], columns)}" for key, title, columns in SECTIONS if document.get(key)
    ]
    return "".join(f"\n{part}\n" for part in written)


def _table(rows: Sequence[Row], columns: Mapping[str, Cell]) -> str:
    lines = [list(columns), ["---"] * len(columns), *([cell(row) for cell in columns.values()] for row in rows)]
    return "\n".join("| " + " | ".join(cell.replace("|", r"\|") for cell in line) + " |" for line in lines)


def place(row: Row) -> str:
    """Target, dataset and temperature."""
    return f"{row['target']}, {row['dataset']}, T = {row['temperature']}"


def percent(value: float | None, digits: int = 1) -> str:
    """A share, `-` where there is none."""
    return "-" if value is None else f"{value:.{digits}%}"


def spread(interval: Sequence[float] | None, form: str) -> str:
    """An interval behind its value."""
    return "" if interval is None else f" [{interval[0]:{form}}, {interval[1]:{form}}]"


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
    return "<br>".join(told) or "none"


METHOD: Mapping[str, Cell] = {"place": place, "method": lambda row: row["method"]}
RULE: Mapping[str, Cell] = {
    **METHOD,
    "rule": lambda row: row["label"],
    "controller": lambda row: row["controller"],
}
SECTIONS: Sequence[tuple[str, str, Mapping[str, Cell]]] = (
    (
        "acceptance",
        "Acceptance against speed",
        {
            "place": place,
            "rows": lambda row: str(row["points"]),
            "rank correlation of tau and eta": lambda row: (
                "-" if row["spearman"] is None else f"{row['spearman']:+.2f}"
            ),
            "accepts more and is slower": _example,
        },
    ),
    (
        "contexts",
        "By the length of prompts",
        {
            **METHOD,
            "label": lambda row: row["label"],
            "controller": lambda row: row["controller"],
            "prompt tokens": lambda row: f"{row['prompt_len']:.0f}",
            "eta": lambda row: f"{row['eta']:.2f}{spread(row['eta_ci95'], '.2f')}",
            "tau": lambda row: f"{row['tau']:.2f}",
        },
    ),
    (
        "construction",
        "What making the arms took",
        {
            **METHOD,
            "rule": lambda row: row["label"],
            "ms per family": lambda row: f"{row['build_s'] / row['families'] * 1e3:.1f}",
            "of the generation": lambda row: percent(row["share"], 2),
            "tokens": lambda row: str(row["tokens"]),
            "tokens for 1 %": lambda row: f"{row['tokens_for_1_percent']:.0f}",
        },
    ),
    (
        "shares",
        "Who pulled what",
        {
            **RULE,
            "rounds": lambda row: str(row["rounds"]),
            "best arm": lambda row: f"{row['best_arm']}: {percent(row['best'])}",
            "each prompt's best arm": lambda row: percent(row["own_best"]),
            "outside the best three": lambda row: percent(row["outside_top3"]),
        },
    ),
    (
        "regrets",
        "Wall-time regret",
        {
            **RULE,
            "over the best arm of": lambda row: "each prompt" if row["arm"] is None else f"all prompts ({row['arm']})",
            "ms per prompt": lambda row: _milliseconds(row["regret_s"], row["regret_s_ci95"]),
            "of its time": lambda row: percent(row["relative"]) + spread(row["relative_ci95"], ".1%"),
            "predicted: best arm": lambda row: row["predicted_arm"] or "-",
            "ms": lambda row: _milliseconds(row["predicted_s"], row["predicted_s_ci95"]),
            "of its time, predicted": lambda row: percent(row["predicted"]) + spread(row["predicted_ci95"], ".1%"),
        },
    ),
    (
        "orders",
        "Whether the replay foresaw who is faster",
        {
            **METHOD,
            "pairs": lambda row: str(row["pairs"]),
            "intervals separate": lambda row: str(row["separated"]),
            "of these told apart by the replay": lambda row: str(row["foreseen"]),
            "too close to tell": lambda row: str(row["untold"]),
            "in the measured order": lambda row: str(row["agreed"]),
            "not": _against,
        },
    ),
)
