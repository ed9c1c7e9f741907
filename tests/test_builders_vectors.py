"""Golden vectors of the builders: all agree, each component is covered, and a changed expectation is seen."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch", reason="real/ needs the extra 'real'")

from tests.real_law import one_thread  # noqa: F401 - a fixture
from tests.vectors import cases_of, run_case
from tests.vectors_builders import HANDLERS as BUILDERS
from tests.vectors_knapspec import HANDLERS as KNAPSPEC
from tests.vectors_specvlm import HANDLERS as SPECVLM

HANDLERS = BUILDERS | KNAPSPEC | SPECVLM
FILES = ("sp2ec", "swift", "knapspec", "specvlm")


def cases(shared: Path) -> list[tuple[str, str, str, dict[str, Any]]]:
    return [case for name in FILES for case in cases_of(shared / "vectors" / f"{name}.json")]


def test_all_cases_agree(shared: Path) -> None:
    found = cases(shared)
    assert set(HANDLERS) <= {(name, component) for name, component, _, _ in found}
    results = [(case_id, run_case(name, component, case)) for name, component, case_id, case in found]
    assert [result for result in results if result[1][0] != "ok"] == []


def moved(value: Any) -> Any:
    """The expectation with its last number changed, or the last entry that has one."""
    if isinstance(value, list):
        return [*value[:-1], moved(value[-1])] if value else [1]
    if isinstance(value, dict):
        last = list(value)[-1]
        return {**value, last: moved(value[last])}
    if value is None or isinstance(value, str | bool):
        return 1 if value is None else not value
    return value + 900 if isinstance(value, int) else value + 0.01


@pytest.mark.parametrize("wanted", sorted(HANDLERS))
def test_every_changed_number_fails(shared: Path, wanted: tuple[str, str]) -> None:
    """Of one case of each component, every expectation that is read, changed one at a time."""
    name, component, _, case = next(x for x in cases(shared) if (x[0], x[1]) == wanted)
    for key in case["expected"]:
        if key != "paths_greedy":  # not in the file
            wrong = copy.deepcopy(case)
            wrong["expected"][key] = moved(wrong["expected"][key])
            assert run_case(name, component, wrong)[0] == "FAIL", key
