"""results.json of `python -m real.paper`, read and checked.

Owns which values judges may count on (`analysis.judges`), so that a file of another version or a broken one is refused
by name before anything is judged or written.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from analysis.rules import COUNT, INTERVAL, MAYBE, NUMBER, POSITIVE, REQUEST, TEXT, Rule, read_json, rows_of
from specsim.errors import ConfigError

SCHEMA, RESULTS = "specsim.paper/1", "results.json"
AGAIN = "make the file again with python -m real.paper"
Document = Mapping[str, Any]


POINT = Rule(
    lambda value: (
        value is None or (isinstance(value, dict) and all(NUMBER.sound(value.get(key)) for key in ("tau", "eta")))
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
        known[name], found[name] = folder, read_paper(folder)
    return found


def read_paper(folder: Path) -> Document:
    """results.json of one folder.

    Raises:
        ConfigError: there is none, or one of another kind.
    """
    file = folder / RESULTS
    document = read_json(file, "results", "make them with python -m real.paper")
    if not isinstance(document, dict) or document.get("schema") != SCHEMA:
        raise ConfigError(f"{file}: not the results of python -m real.paper (schema {SCHEMA})")
    if not TEXT.sound(document.get("experiment")):
        raise ConfigError(f"{file}: experiment is missing or no text; {AGAIN}")
    needed = {**ROWS, **ARM_ROWS} if document["experiment"].startswith(SECOND) else ROWS
    for key, rules in needed.items():
        rows_of(document, key, rules, file, AGAIN)
    return document
