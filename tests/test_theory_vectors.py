"""All cases of theory.json run and agree; a case with one number changed is seen."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.vectors import cases_of, run_case

SECTIONS = {
    "eta": "dstar", "eps": "eps_printed", "alg1": "clip", "lambda": "d", "sp2ec": "first60", "g4": "d",
    "clair": "d_for_A_0_to_8",
}  # fmt: skip


def test_all_cases_agree(shared: Path) -> None:
    cases = list(cases_of(shared / "vectors" / "theory.json"))
    assert {component for _, component, _, _ in cases} == set(SECTIONS)
    results = [(component, name, run_case(file, component, case)) for file, component, name, case in cases]
    assert [result for result in results if result[2][0] != "ok"] == []


def changed(value: Any) -> Any:
    """The expectation with its first number, or its `d`, one higher."""
    return {**value, "d": value["d"] + 1} if isinstance(value, dict) else [value[0] + 1, *value[1:]]


@pytest.mark.parametrize("section", SECTIONS)
def test_a_changed_number_fails(shared: Path, section: str) -> None:
    file, component, _, case = next(x for x in cases_of(shared / "vectors" / "theory.json") if x[1] == section)
    wrong = {**case, SECTIONS[section]: changed(case[SECTIONS[section]])}
    assert run_case(file, component, wrong)[0] == "FAIL"
