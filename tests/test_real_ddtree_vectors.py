"""Golden vectors of DDTree: all agree, each component is covered, and a changed expectation is seen."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch", reason="real/ needs the extra 'real'")

from tests.real_law import one_thread  # noqa: F401 - a fixture
from tests.vectors import cases_of, run_case
from tests.vectors_ddtree import HANDLERS

UNREAD = ("smallest_gap",)  # the reference's own statistics


def cases(shared: Path) -> list[tuple[str, str, str, dict[str, Any]]]:
    return list(cases_of(shared / "vectors" / "ddtree.json"))


def test_all_cases_agree(shared: Path) -> None:
    found = cases(shared)
    assert {(name, component) for name, component, _, _ in found} == set(HANDLERS)
    results = [(case_id, run_case(name, component, case)) for name, component, case_id, case in found]
    assert [result for result in results if result[1][0] != "ok"] == []


def moved(value: Any) -> Any:
    """The expectation with its last number changed."""
    if isinstance(value, list):
        return [*value[:-1], moved(value[-1])] if value else [1]
    if isinstance(value, dict):
        return {key: moved(one) for key, one in value.items()}
    return value + 900 if isinstance(value, int) else value + 1e-3


def test_every_changed_number_fails(shared: Path) -> None:
    """Of one case of each component, every expectation that is read, changed one at a time."""
    for wanted in HANDLERS:
        name, component, _, case = next(x for x in cases(shared) if (x[0], x[1]) == wanted)
        for key in case["expected"]:
            if not key.startswith(UNREAD):
                wrong = copy.deepcopy(case)
                wrong["expected"][key] = moved(wrong["expected"][key])
                assert run_case(name, component, wrong)[0] == "FAIL", (component, key)
