"""All statements, and running their checkers."""

from __future__ import annotations

from collections.abc import Sequence

from specsim.theory.record import Finding, Statement, contradiction
from specsim.theory.statements_libraspec import LIBRASPEC
from specsim.theory.statements_repairs import REPAIRS
from specsim.theory.statements_sp2ec import SP2EC

STATEMENTS: tuple[Statement, ...] = (*LIBRASPEC, *SP2EC, *REPAIRS)


def check_all(statements: Sequence[Statement]) -> list[tuple[Statement, Finding, str]]:
    """Every statement, what its checker found, and why that contradicts the recorded verdict ("" if it does not)."""
    found = []
    for statement in statements:
        finding = statement.checker(statement.counterexample)
        found.append((statement, finding, contradiction(statement, finding)))
    return found
