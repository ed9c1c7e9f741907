"""Values of a drafter's options as spelled on the command line: strict readers with one wording of refusals."""

from __future__ import annotations

from specsim.errors import ConfigError
from specsim.schema import MAX_DRAFT_LEN

MOST_COUNT = 10**9  # of rounds, trials and the like
MOST_DIGITS = 18  # int() refuses thousands of them in words of its own


def is_whole(text: str) -> bool:
    """Whether a text is a whole number in plain digits: no sign, no "_", no digits of other scripts."""
    return text.isascii() and text.isdecimal() and len(text) <= MOST_DIGITS


def whole(name: str, key: str, text: str, *, low: int = 1, high: int = MAX_DRAFT_LEN) -> int:
    """The value of a drafter's option.

    Args:
        name, key: of the drafter and the option, for messages.
        text: as spelled.
        low, high: allowed range, ends included.

    Raises:
        ConfigError: no whole number, or one out of range.
    """
    if not is_whole(text) or not low <= int(text) <= high:
        raise ConfigError(f"{name}: {key} is {text!r}; allowed: a whole number, {low}..{high}")
    return int(text)


def switch(name: str, key: str, text: str) -> bool:
    """The value of an option that is 0 (no) or 1 (yes); arguments and errors as for `whole`."""
    if text not in ("0", "1"):
        raise ConfigError(f"{name}: {key} is {text!r}; allowed: 0 or 1")
    return text == "1"


def fraction(name: str, key: str, text: str) -> float:
    """The value of an option that is a number from 0 to 1; arguments and errors as for `whole`."""
    try:
        value = float(text) if text.isascii() and "_" not in text else -1.0
    except ValueError:
        value = -1.0
    if not 0.0 <= value <= 1.0:  # false for nan
        raise ConfigError(f"{name}: {key} is {text!r}; allowed: a number from 0 to 1")
    return value
