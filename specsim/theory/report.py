"""How verdicts are shown: a table for people, a document for programs. Owns wording and layout only."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rich import box
from rich.table import Table

from specsim.theory.record import FALSE, HOLDS, Finding, Statement

SCHEMA_NAME = "specsim.theory/1"
Results = Sequence[tuple[Statement, Finding, str]]


def verdict_table(results: Results) -> Table:
    """One row per statement; fits 80 columns by wrapping."""
    table = Table(box=box.SIMPLE_HEAD, show_lines=False, pad_edge=False, leading=1)
    table.add_column("statement", no_wrap=True)
    table.add_column("verdict", width=10)
    table.add_column("what it says, smallest counterexample", ratio=1)
    table.add_column("what is true instead; found", ratio=1)
    for statement, finding, fault in results:
        claim = statement.title + (f". {statement.shown}" if statement.shown else "")
        violated = f"{finding.violations} of {finding.instances} instances violate it"
        truth = f"{statement.repaired or statement.printed}  [{violated}]"
        table.add_row(statement.id, _verdict(statement, fault), _escaped(claim), _escaped(truth))
    return table


def _verdict(statement: Statement, fault: str) -> str:
    if fault:
        return f"[bold red]{statement.verdict}: CONTRADICTED[/]"
    colour = {HOLDS: "green", FALSE: "red"}.get(statement.verdict, "yellow")
    return f"[{colour}]{statement.verdict}[/]"


def _escaped(text: str) -> str:
    return text.replace("[", "\\[")


def document(results: Results, seconds: float) -> dict[str, Any]:
    """JSON values: `schema`, `contradictions`, `seconds`, and `statements` with their findings."""
    rows = []
    for statement, finding, fault in results:
        rows.append(
            {
                "id": statement.id,
                "source": statement.source,
                "number": statement.number,
                "title": statement.title,
                "printed": statement.printed,
                "assumptions": statement.assumptions,
                "verdict": statement.verdict,
                "counterexample": statement.counterexample,
                "counterexample_in_words": statement.shown,
                "repaired": statement.repaired,
                "proof": statement.proof,
                "agrees": not fault,
                "fault": fault,
                "finding": {
                    "instances": finding.instances,
                    "violations": finding.violations,
                    "first_violation": finding.example,
                    "counterexample_confirmed": finding.confirmed,
                    "repaired_violations": finding.repaired_violations,
                    "facts": finding.facts,
                },
            }
        )
    contradictions = sum(bool(fault) for _, _, fault in results)
    return {"schema": SCHEMA_NAME, "contradictions": contradictions, "seconds": seconds, "statements": rows}
