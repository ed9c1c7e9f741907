"""What the studies share: a table of values, runs of a family, and intervals."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from specsim.regret.compare import measure, paired
from specsim.regret.family import ArmFamily
from specsim.regret.runner import Output, run_policy
from specsim.regret.worlds import Case, family_case


@dataclass(frozen=True, kw_only=True)
class Study:
    """One question. `run` takes (runs, rounds, seed) and returns tables and the outcome in sentences."""

    question: str
    runs: int
    rounds: int
    run: Callable[[int, int, int], dict[str, Any]]


class Field:
    """Policies run on one family, each once, all on the same random numbers."""

    def __init__(self, family: ArmFamily, *, rounds: int, runs: int, seed: int) -> None:
        self.family = family
        self.case: Case = family_case(family, rounds=rounds, quota=None, runs=runs, seed=seed)
        self._best = run_policy(self.case.build("best-arm"), self.case.job)
        self._outputs: dict[str, Output] = {}

    def output(self, spelling: str) -> Output:
        if spelling not in self._outputs:
            self._outputs[spelling] = run_policy(self.case.build(spelling), self.case.job)
        return self._outputs[spelling]

    def result(self, spelling: str) -> dict[str, Any]:
        """The measures of one policy."""
        return measure(spelling, self.case.build(spelling), self.case, self.output(spelling), self._best)

    def change(self, base: str, other: str) -> dict[str, float]:
        """Relative change in time from `base` to `other`, with its 95 % interval."""
        return paired(self.output(base), self.output(other))


def table(title: str, columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> dict[str, Any]:
    """A table: JSON values."""
    return {"title": title, "columns": list(columns), "rows": [list(row) for row in rows]}


def answer(
    question: str, command: str, runs: int, rounds: int, seed: int, tables: list[dict[str, Any]], outcome: list[str]
) -> dict[str, Any]:
    """What a study returns."""
    return {
        "question": question,
        "command": f"python -m specsim.regret study {command}",
        "runs": runs,
        "rounds": rounds,
        "seed": seed,
        "tables": tables,
        "outcome": outcome,
    }


def percent(value: float, digits: int = 1) -> str:
    return f"{100 * value:z.{digits}f} %"


def change_text(change: dict[str, float]) -> str:
    """A relative change of time with its interval, in percent; positive is slower."""
    return f"{100 * change['mean']:+.2f} [{100 * change['low']:+.2f}, {100 * change['high']:+.2f}]"


def verdict(change: dict[str, float]) -> str:
    """What a change of time means."""
    if change["low"] > 0:
        return "slower"
    return "faster" if change["high"] < 0 else "no difference shown"


def wilson(hits: int, trials: int) -> tuple[float, float]:
    """95 % interval of a share."""
    z, share = 1.96, hits / trials
    centre = (share + z * z / (2 * trials)) / (1 + z * z / trials)
    half = z * math.sqrt(share * (1 - share) / trials + z * z / (4 * trials * trials)) / (1 + z * z / trials)
    return max(0.0, centre - half), min(1.0, centre + half)
