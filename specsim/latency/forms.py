"""The four shapes of a verification time as a function of token positions: affine, hinge, step, table.

Owns their formulas and the rules of validity (docs/latency.md, section "Forms"). Knows nothing about files, context
length, drafting or fitting. Everything here is in seconds and token positions.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from difflib import get_close_matches
from typing import Any, ClassVar, TypeAlias

import numpy as np
import numpy.typing as npt

from specsim.errors import ConfigError

FloatArray: TypeAlias = npt.NDArray[np.float64]


def fault(key: str, problem: str, allowed: str, advice: str) -> ConfigError:
    """A ConfigError in this package's one wording: key, what was found, what is allowed, what to do."""
    return ConfigError(f"{key} {problem}; allowed: {allowed}. {advice}")


def number(key: str, value: object, *, at_least: float | None = None) -> float:
    """`value` as a finite float.

    Args:
        key: dotted key, for the message.
        value: what was found there.
        at_least: smallest allowed value, if there is one.

    Raises:
        ConfigError: not a number, not finite, or below `at_least`.
    """
    allowed = "a finite number" if at_least is None else f"a finite number >= {at_least:g}"
    advice = "Times are seconds, written as plain JSON numbers."
    if isinstance(value, bool | np.bool_) or not isinstance(value, int | float | np.integer | np.floating):
        raise fault(key, f"is {value!r}", allowed, advice)
    try:
        result = float(value)
    except OverflowError:
        raise fault(key, "is an integer too large for float64", allowed, advice) from None
    if not math.isfinite(result):
        raise fault(key, f"is {value!r}", allowed, advice)
    if at_least is not None and result < at_least:
        advice = (
            "A negative cost per token or pass is measurement noise: measure again with more repeats, "
            "or write 0 if there is no cost."
        )
        raise fault(key, f"is {result:g}", allowed, advice)
    return result


def numbers(key: str, value: object, *, min_len: int) -> tuple[float, ...]:
    """`value` as a tuple of finite floats with at least `min_len` entries; raises ConfigError otherwise."""
    if isinstance(value, str | bytes | Mapping) or not isinstance(value, Sequence | np.ndarray):
        raise fault(key, f"is {value!r}", f"a list of at least {min_len} numbers", "Write a JSON list.")
    if len(value) < min_len:
        advice = "Add points, or use the affine form with c_s 0 for a constant time."
        raise fault(key, f"has length {len(value)}", f"a list of at least {min_len} numbers", advice)
    return tuple(number(f"{key}[{index}]", item) for index, item in enumerate(value))


def check_keys(
    where: str,
    found: Mapping[str, Any],
    allowed: Sequence[str],
    required: Sequence[str] = (),
    *,
    strict: bool = False,
) -> None:
    """Refuse missing keys and likely misspellings; `where` is the dotted name of the object.

    The format allows further keys, so an unknown one is ignored unless it looks like a known one that is not there;
    `strict` refuses every unknown key.
    """
    for key in found:
        if key not in allowed:
            absent = [name for name in allowed if name not in found]
            close = get_close_matches(str(key), absent, n=1, cutoff=0.5)
            if close or strict:
                advice = f"Did you mean {close[0]!r}?" if close else "Remove it."
                raise fault(f"{where}.{key}", "is an unknown key", ", ".join(allowed), advice)
    for key in required:
        if key not in found:
            raise fault(f"{where}.{key}", "is missing", f"{where} needs {', '.join(required)}", "Add it.")


def _check_stairs(s_key: str, s: tuple[float, ...], times_s: tuple[float, ...]) -> None:
    if len(s) != len(times_s):
        problem = f"has {len(times_s)} entries but verify.{s_key} has {len(s)}"
        raise fault("verify.times_s", problem, "one time per entry", "Make both lists equally long.")
    for index in range(1, len(s)):
        if s[index] <= s[index - 1]:
            problem = f"is {s[index]:g} after {s[index - 1]:g}"
            raise fault(f"verify.{s_key}[{index}]", problem, "strictly increasing", "Sort it and merge repeats.")
        if times_s[index] < times_s[index - 1]:
            problem = f"is {times_s[index]:g} after {times_s[index - 1]:g}"
            advice = "A longer forward pass cannot be faster: measure again, or smooth the times (isotonic)."
            raise fault(f"verify.times_s[{index}]", problem, "non-decreasing", advice)


def _check_positive(verify: VerifyForm) -> None:
    first = float(verify.at(np.ones(1))[0])
    if not (math.isfinite(first) and first > 0.0):
        advice = "Plain decoding must cost time: check units (seconds) and the intercept."
        raise fault("verify", f"gives verify(1) = {first:g} s", "verify(1) > 0", advice)


def _set(form: object, **values: object) -> None:
    # frozen dataclasses are normalised (ints to floats, lists to tuples) before anyone sees them
    for key, value in values.items():
        object.__setattr__(form, key, value)


@dataclass(frozen=True, kw_only=True)
class Affine:
    """verify(s) = c_s * s + b_s. `c_s` seconds per token position (>= 0), `b_s` seconds."""

    form: ClassVar[str] = "affine"
    c_s: float
    b_s: float

    def __post_init__(self) -> None:
        _set(self, c_s=number("verify.c_s", self.c_s, at_least=0.0), b_s=number("verify.b_s", self.b_s))
        _check_positive(self)

    def at(self, s: FloatArray) -> FloatArray:
        """Seconds at `s` token positions, same shape as `s`."""
        return self.c_s * s + self.b_s


@dataclass(frozen=True, kw_only=True)
class Hinge:
    """verify(s) = c_s * s + b_s + c2_s * max(0, s - knee). `knee` in token positions, the rest as in Affine."""

    form: ClassVar[str] = "hinge"
    c_s: float
    b_s: float
    knee: float
    c2_s: float

    def __post_init__(self) -> None:
        _set(
            self,
            c_s=number("verify.c_s", self.c_s, at_least=0.0),
            b_s=number("verify.b_s", self.b_s),
            knee=number("verify.knee", self.knee),
            c2_s=number("verify.c2_s", self.c2_s, at_least=0.0),
        )
        _check_positive(self)

    def at(self, s: FloatArray) -> FloatArray:
        """Seconds at `s` token positions, same shape as `s`."""
        return self.c_s * s + self.b_s + self.c2_s * np.maximum(0.0, s - self.knee)


@dataclass(frozen=True, kw_only=True)
class Step:
    """verify(s) = time of the first edge >= s: the staircase that padded matrix kernels make.

    Beyond the last edge, where the file format says nothing, the time grows linearly with the mean slope of the last
    step, (times_s[-1] - times_s[-2]) / (edges[-1] - edges[-2]): a constant would make long drafts free. With a single
    edge there is no slope and the time stays constant.
    """

    form: ClassVar[str] = "step"
    edges: tuple[float, ...]
    times_s: tuple[float, ...]

    def __post_init__(self) -> None:
        edges, times_s = (
            numbers("verify.edges", self.edges, min_len=1),
            numbers("verify.times_s", self.times_s, min_len=1),
        )
        _check_stairs("edges", edges, times_s)
        _set(self, edges=edges, times_s=times_s)
        _check_positive(self)

    def at(self, s: FloatArray) -> FloatArray:
        """Seconds at `s` token positions, same shape as `s`."""
        edges, times_s = np.array(self.edges), np.array(self.times_s)
        index = np.minimum(np.searchsorted(edges, s, side="left"), len(edges) - 1)
        slope_s = (times_s[-1] - times_s[-2]) / (edges[-1] - edges[-2]) if len(edges) > 1 else 0.0
        return times_s[index] + slope_s * np.maximum(0.0, s - edges[-1])


@dataclass(frozen=True, kw_only=True)
class Table:
    """Linear interpolation between measured points (at least two).

    Beyond the last point: linear extrapolation from the last two points. Below the first point: likewise from the
    first two, never below 0.
    """

    form: ClassVar[str] = "table"
    s: tuple[float, ...]
    times_s: tuple[float, ...]

    def __post_init__(self) -> None:
        s, times_s = numbers("verify.s", self.s, min_len=2), numbers("verify.times_s", self.times_s, min_len=2)
        _check_stairs("s", s, times_s)
        _set(self, s=s, times_s=times_s)
        _check_positive(self)

    def at(self, s: FloatArray) -> FloatArray:
        """Seconds at `s` token positions, same shape as `s`."""
        points, times_s = np.array(self.s), np.array(self.times_s)
        first_s = (times_s[1] - times_s[0]) / (points[1] - points[0])
        last_s = (times_s[-1] - times_s[-2]) / (points[-1] - points[-2])
        inside = np.interp(s, points, times_s)
        outside = last_s * np.maximum(0.0, s - points[-1]) - first_s * np.maximum(0.0, points[0] - s)
        return np.maximum(0.0, inside + outside)


VerifyForm: TypeAlias = Affine | Hinge | Step | Table

FORMS: dict[str, Callable[..., VerifyForm]] = {"affine": Affine, "hinge": Hinge, "step": Step, "table": Table}
FORM_KEYS: dict[str, tuple[str, ...]] = {
    cls.form: tuple(field.name for field in fields(cls)) for cls in (Affine, Hinge, Step, Table)
}
