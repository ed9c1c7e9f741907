"""Other latency models that the same measurements could have given: how far off a fit may be, and in what direction.

A factor on all of verification, plain decoding's included, would cancel in every speedup of a cheap drafter. What
matters is a round's price against plain decoding's, so verify(1) stays and the passes over drafts are shifted.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from specsim.latency import LatencyModel
from specsim.latency.forms import Table

UNKNOWN = 0.1
"""Relative error supposed of what a fit says nothing about: of verification without `heldout_rel_err`, of drafting."""


@dataclass(frozen=True, kw_only=True)
class Scenario:
    """Costs that differ from the fitted ones.

    Attributes:
        name: what is shifted.
        verify: factor on verify(s), s > 1.
        slope_s: seconds added to verify(s) per position beyond the first.
        draft: factor on all drafting.
        origin: where the size of the shift comes from.
    """

    name: str
    origin: str
    verify: float = 1.0
    slope_s: float = 0.0
    draft: float = 1.0


def scenarios_of(latency: LatencyModel) -> list[Scenario]:
    """What to try for a model: verification and drafting up and down, and the ends of the slope's interval."""
    facts = latency.provenance
    stated = _number(facts.get("heldout_rel_err"))
    error = UNKNOWN if stated is None else stated
    why = "supposed: the model tells no held-out error" if stated is None else "the fit's held-out error"
    found = [
        Scenario(name=f"verification {sign}{100 * error:.1f} %", origin=why, verify=1 + way * error)
        for sign, way in (("+", 1), ("-", -1))
        if error > 0
    ]
    found += [
        Scenario(name=f"verification's slope {word}", origin="95 % interval of the fitted slope", slope_s=slope_s)
        for word, slope_s in _slopes(facts)
    ]
    found += [
        Scenario(
            name=f"drafting {sign}{100 * UNKNOWN:.0f} %",
            origin="supposed: fits tell no error of drafting",
            draft=1 + way * UNKNOWN,
        )
        for sign, way in (("+", 1), ("-", -1))
    ]
    return found


def shifted(latency: LatencyModel, scenario: Scenario, longest: int) -> LatencyModel:
    """The model of a scenario, tabulated up to `longest` draft tokens; like every model, it never falls with s."""
    times = latency.verify_table(longest + 1)[1:]
    moved = times * scenario.verify + scenario.slope_s * np.arange(times.size)
    moved[0] = times[0]
    moved = np.maximum.accumulate(moved)
    if times.size == 1:  # a table needs two points, and nothing is drafted here
        moved = np.repeat(moved, 2)
    return replace(
        latency,
        verify=Table(s=tuple(range(1, moved.size + 1)), times_s=tuple(moved.tolist())),
        draft_pass_s=latency.draft_pass_s * scenario.draft,
        draft_token_s=latency.draft_token_s * scenario.draft,
    )


def _slopes(facts: Mapping[str, Any]) -> list[tuple[str, float]]:
    """How far the ends of the slope's interval lie from the fitted slope, seconds per position."""
    line, interval = facts.get("line"), facts.get("c_ci95_s")
    fitted = _number(line.get("c_s")) if isinstance(line, Mapping) else None
    if fitted is None or not isinstance(interval, list) or len(interval) != 2:
        return []
    ends = [_number(end) for end in interval]
    return [
        (word, end - fitted)
        for word, end in zip(("low", "high"), ends, strict=True)
        if end is not None and end != fitted
    ]


def _number(value: Any) -> float | None:
    """The value if it is a finite number; provenance may hold anything."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not np.isfinite(value):
        return None
    return float(value)
