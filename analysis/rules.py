"""JSON files that others have written: read, and the values somebody counts on checked by name.

Owns what a sound value is and how a file or a value that is not sound is refused.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from specsim.errors import ConfigError
from specsim.schema import is_count


class Rule(NamedTuple):
    """Whether a JSON value is sound, and in words which ones are."""

    sound: Callable[[Any], bool]
    allowed: str


EXACT = 2**53  # beyond it a float does not hold every whole number


def _is_number(value: Any) -> bool:
    if isinstance(value, int):  # JSON's whole numbers may be longer than what a table of floats takes
        return not isinstance(value, bool) and abs(value) <= EXACT
    return isinstance(value, float) and math.isfinite(value)


TEXT = Rule(lambda value: isinstance(value, str) and value.isprintable(), "text in printable characters")
COUNT = Rule(is_count, "a whole number, 0 or more")
NUMBER = Rule(_is_number, "a number")
AMOUNT = Rule(lambda value: _is_number(value) and value >= 0, "a number, 0 or more")
POSITIVE = Rule(lambda value: _is_number(value) and value > 0, "a number above 0")
REQUEST = Rule(lambda value: value is None or is_count(value), "a whole number, or null for all prompts")
INTERVAL = Rule(
    lambda value: value is None or (isinstance(value, list) and len(value) == 2 and all(map(_is_number, value))),
    "two numbers, or null",
)
MAYBE = Rule(lambda value: value is None or _is_number(value), "a number or null")
MAYBE_POSITIVE = Rule(lambda value: value is None or POSITIVE.sound(value), "a number above 0, or null")
WORD = Rule(lambda value: value is None or TEXT.sound(value), "text in printable characters, or null")
OBJECT = Rule(lambda value: isinstance(value, dict), "a JSON object")
FLAG = Rule(lambda value: isinstance(value, bool), "true or false")


def read_json(file: Path, what: str, advice: str) -> Any:
    """A JSON file.

    Args:
        file: its path.
        what: the file does not hold, for the message.
        advice: what to do about it.

    Raises:
        ConfigError: it cannot be read, or is no JSON.
    """
    try:
        return json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise ConfigError(f"{file}: no {what} there ({reason}); {advice}") from None


def rows_of(document: Mapping[str, Any], key: str, rules: Mapping[str, Rule], file: Path, advice: str) -> list[Any]:
    """A list of JSON objects under a key, each checked.

    Raises:
        ConfigError: there is none, or a row of it breaks a rule.
    """
    rows = document.get(key)
    if not isinstance(rows, list):
        raise ConfigError(f"{file}: {key} is missing or no list; {advice}")
    for number, row in enumerate(rows):
        check(row, rules, f"{file}: {key}[{number}]", advice)
    return rows


def check(row: Any, rules: Mapping[str, Rule], where: str, advice: str) -> None:
    """Refuse a JSON object that lacks a value, or holds one that is not sound.

    Raises:
        ConfigError: names the first one.
    """
    if not isinstance(row, dict):
        raise ConfigError(f"{where} is no JSON object; {advice}")
    for key, rule in rules.items():
        if key not in row or not rule.sound(row[key]):
            said = f"is {row[key]!r:.60}" if key in row else "is missing"
            raise ConfigError(f"{where}.{key} {said}; allowed: {rule.allowed}; {advice}")
