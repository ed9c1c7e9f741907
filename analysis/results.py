"""results.json of `python -m real.paper`, read and checked.

Owns which values judges may count on (`analysis.judges`), so that a file of another version or a broken one is refused
by name before anything is judged or written.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from specsim.errors import ConfigError
from specsim.schema import is_count

SCHEMA, RESULTS = "specsim.paper/1", "results.json"
Document = Mapping[str, Any]


class Rule(NamedTuple):
    """Whether a JSON value is sound, and in words which ones are."""

    sound: Callable[[Any], bool]
    allowed: str


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


TEXT = Rule(lambda value: isinstance(value, str) and value.isprintable(), "text in printable characters")
COUNT = Rule(is_count, "a whole number, 0 or more")
NUMBER = Rule(_is_number, "a number")
POSITIVE = Rule(lambda value: _is_number(value) and value > 0, "a number above 0")
REQUEST = Rule(lambda value: value is None or is_count(value), "a whole number, or null for all prompts")
INTERVAL = Rule(
    lambda value: value is None or (isinstance(value, list) and len(value) == 2 and all(map(_is_number, value))),
    "two numbers, or null",
)
MAYBE = Rule(lambda value: value is None or _is_number(value), "a number or null")
POINT = Rule(
    lambda value: (
        value is None or (isinstance(value, dict) and all(_is_number(value.get(key)) for key in ("tau", "eta")))
    ),
    "a JSON object with tau and eta, or null",
)
ROWS: Mapping[str, Mapping[str, Rule]] = {
    "rows": {
        **dict.fromkeys(("target", "dataset", "method", "drafter", "label", "controller"), TEXT),
        "temperature": COUNT,
        **dict.fromkeys(("eta", "tau"), POSITIVE),
        **dict.fromkeys(("draft_ms", "verify_ms", "rest_ms"), NUMBER),
    },
    "deviations": {
        **dict.fromkeys(("target", "dataset", "method", "drafter", "series"), TEXT),
        "request": REQUEST,
        "mad": NUMBER,
    },
    "depths": {"method": TEXT, "temperature": COUNT, "depth": COUNT, "ece": NUMBER},
}
PLACE = {**dict.fromkeys(("target", "dataset", "method", "label"), TEXT), "temperature": COUNT}
SECOND = "sp2ec"  # how the names of the second paper's experiments begin
ARM_ROWS: Mapping[str, Mapping[str, Rule]] = {
    "comparisons": {**PLACE, "against": TEXT, "ratio": POSITIVE, "ci95": INTERVAL},
    "acceptance": {"target": TEXT, "dataset": TEXT, "spearman": MAYBE, "higher": POINT, "lower": POINT},
    "contexts": {**PLACE, "prompt_len": POSITIVE, "eta": POSITIVE},
    "shares": {**PLACE, "controller": TEXT, "best": NUMBER, "outside_top3": MAYBE},
    "regrets": {
        **{**PLACE, "against": TEXT, "relative": NUMBER, "relative_ci95": INTERVAL},
        **{"predicted": MAYBE, "predicted_ci95": INTERVAL},
    },
    "construction": {**PLACE, "build_s": NUMBER, "share": NUMBER, "tokens": COUNT},
}


def read_results(folders: Sequence[Path]) -> dict[str, Document]:
    """results.json of each folder, by the folder's name.

    Raises:
        ConfigError: a folder without one, one of another kind, or two folders of one name.
    """
    found: dict[str, Document] = {}
    known: dict[str, Path] = {}
    for folder in folders:
        name = folder.resolve().name
        if name in known:
            raise ConfigError(
                f"{folder}: {known[name]} has the same name, by which results are told apart; name each folder once, "
                "or rename one"
            )
        known[name], found[name] = folder, _read(folder / RESULTS)
    return found


def _read(file: Path) -> Document:
    try:
        document = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise ConfigError(f"{file}: no results there ({reason}); make them with python -m real.paper") from None
    if not isinstance(document, dict) or document.get("schema") != SCHEMA:
        raise ConfigError(f"{file}: not the results of python -m real.paper (schema {SCHEMA})")
    if not TEXT.sound(document.get("experiment")):
        raise ConfigError(f"{file}: experiment is missing or no text; make the file again with python -m real.paper")
    needed = {**ROWS, **ARM_ROWS} if document["experiment"].startswith(SECOND) else ROWS
    for key, rules in needed.items():
        rows = document.get(key)
        if not isinstance(rows, list):
            raise ConfigError(f"{file}: {key} is missing or no list; make the file again with python -m real.paper")
        for number, row in enumerate(rows):
            _check(row, rules, f"{file}: {key}[{number}]")
    return document


def _check(row: Any, rules: Mapping[str, Rule], where: str) -> None:
    if not isinstance(row, dict):
        raise ConfigError(f"{where} is no JSON object; make the file again with python -m real.paper")
    for key, rule in rules.items():
        if key not in row or not rule.sound(row[key]):
            said = f"is {row[key]!r:.60}" if key in row else "is missing"
            raise ConfigError(f"{where}.{key} {said}; allowed: {rule.allowed}; make the file again")
