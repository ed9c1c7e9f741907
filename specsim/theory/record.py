"""What a statement is, what running its checker finds, and when the two contradict each other.

Owns no mathematics. Every example is plain data: strings for rationals, lists, integers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from itertools import islice
from typing import Any, TypeAlias

Data: TypeAlias = dict[str, Any]

HOLDS = "holds"
REPAIRED = "holds after repair"  # the conclusion survives with another reading, assumption or range
FALSE = "false"  # the conclusion itself is wrong; what is true instead is a different statement
NOT_COVERED = "not covered"  # the argument does not reach the settings in use
ASSUMPTION = "assumption"  # nothing to prove; the record says what it must mean to carry the conclusions
VERDICTS = (HOLDS, REPAIRED, FALSE, NOT_COVERED, ASSUMPTION)


def plain(value: Any) -> Any:
    """The value with every rational spelled out."""
    if isinstance(value, Fraction):
        return str(value)
    if isinstance(value, Mapping):
        return {key: plain(x) for key, x in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(x) for x in value]
    return value


@dataclass(frozen=True, kw_only=True)
class Finding:
    """What a checker found.

    Attributes:
        instances: exact instances looked at.
        violations: of the printed form, within its own assumptions.
        example: the first violation of the search, which goes from small to large.
        confirmed: whether the recorded counterexample does what the record says.
        repaired_violations: of the repaired form.
        facts: further numbers.
    """

    instances: int
    violations: int
    example: Data | None = None
    confirmed: bool = True
    repaired_violations: int = 0
    facts: Data = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Statement:
    """One statement of a paper, or one of our repairs.

    Attributes:
        id: name in tables.
        source, number: where it stands.
        title: what it is about.
        printed: what it says, in our words.
        assumptions: what it needs.
        verdict: one of VERDICTS.
        counterexample: to the printed form (for what holds: to it without its assumptions); None when there is none.
        shown: the counterexample in words.
        repaired: what is true.
        proof: sketch of the repaired form.
        checker: searches for violations of both forms, and recomputes the counterexample it is given.
    """

    id: str
    source: str
    number: str
    title: str
    printed: str
    assumptions: str
    verdict: str
    counterexample: Data | None
    shown: str
    repaired: str
    proof: str
    checker: Callable[[Data | None], Finding]


def contradiction(statement: Statement, finding: Finding) -> str:
    """Why the finding contradicts the recorded verdict; empty when it does not."""
    if statement.verdict == HOLDS and finding.violations:
        return (
            f"the printed form fails in {finding.violations} of {finding.instances} instances, first {finding.example}"
        )
    if statement.verdict != HOLDS and not finding.violations:
        return f"no violation of the printed form among {finding.instances} instances"
    if not finding.confirmed:
        return f"the recorded counterexample {statement.counterexample} is none"
    if finding.repaired_violations:
        return f"the repaired form fails in {finding.repaired_violations} of {finding.instances} instances"
    return ""


class Tally:
    """Counts instances and keeps the first violation."""

    def __init__(self) -> None:
        self.instances = self.violations = self.repaired_violations = 0
        self.example: Data | None = None

    def printed(self, ok: bool, example: Data) -> None:
        """One check of the printed form."""
        if not ok:
            self.violations += 1
            if self.example is None:
                self.example = plain(example)

    def repaired(self, ok: bool) -> None:
        """One check of the repaired form."""
        self.repaired_violations += not ok

    def finding(self, *, confirmed: bool = True, **facts: Any) -> Finding:
        """All of it as a finding."""
        return Finding(
            instances=self.instances,
            violations=self.violations,
            example=self.example,
            confirmed=confirmed,
            repaired_violations=self.repaired_violations,
            facts=plain(facts),
        )


def first(found: Iterable[Data], count: int = 1) -> list[Data]:
    """The first `count` of what a search yields."""
    return list(islice(found, count))


def pairs(low: int, high: int) -> Iterator[tuple[int, int]]:
    """All (d, d') with d != d' in low..high."""
    return ((d, e) for d in range(low, high + 1) for e in range(low, high + 1) if d != e)
