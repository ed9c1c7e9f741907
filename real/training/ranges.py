"""Which values settings of training may have: said once a class, as a table, and checked before anything is loaded."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from specsim.controllers.base import Param
from specsim.errors import ConfigError

COUNT = Param(kind=int, low=1)
NATURAL = Param(kind=int, low=0)
SEED = Param(kind=int, low=0, high=2**32 - 1)
POSITIVE = Param(kind=float, low=0, open_low=True)
LEARNING_RATE = Param(kind=float, low=0, open_low=True, high=1)
NOT_NEGATIVE = Param(kind=float, low=0)
SHARE = Param(kind=float, low=0, high=1)


def only(*values: Any) -> Param:
    """Nothing but these values."""
    return Param(kind=str, choices=tuple(str(value) for value in values))


def check_ranges(where: str, allowed: Mapping[str, Param], given: Mapping[str, Any]) -> None:
    """Check settings against a table; None, which stands for a default, is always allowed.

    Args:
        where: put before the names in messages, such as `data.`.
        allowed: per name.
        given: settings; those that are not in the table are not checked.

    Raises:
        ConfigError: a value out of range.
    """
    for name, param in allowed.items():
        value = given.get(name)
        if value is not None:
            param.parse(f"{where}{name}", str(value) if param.kind is str else value)


def head_size(hidden: int, heads: int) -> int:
    """Entries of an attention head, which rotary positions take in pairs.

    Raises:
        ConfigError: the hidden size is not as many pairs of entries for every head.
    """
    if hidden % (2 * heads):
        raise ConfigError(
            f"model.heads={heads}: allowed is a divisor of {hidden // 2}, half of the hidden size {hidden}"
        )
    return hidden // heads


def check_layers(key: str, layers: list[int], count: int) -> None:
    """Raise a ConfigError unless a list names layers of a target that has `count` of them."""
    if not layers or any(not 0 <= layer < count for layer in layers):
        raise ConfigError(f"{key}={layers}: allowed are layers of the target, 0..{count - 1}, at least one")
