"""Every registered controller still decides what it decided when its golden log was written (`tests/golden`)."""

from __future__ import annotations

import json

import pytest

from specsim.controllers import REGISTRY
from tests.golden import COLUMNS, FOLDER, ROUNDS, cases, golden_log, path_of

ADVICE = "write it with: python -m tests.golden --update, and read what changed before committing it"


def test_every_registered_controller_has_golden_logs() -> None:
    assert {name for name, _, _ in cases()} == set(REGISTRY), "a controller is not spelled in tests/worlds.py"
    wanted = {path_of(name, kind).name for name, kind, _ in cases()}
    found = {path.name for path in FOLDER.glob("*.json")}
    assert wanted - found == set(), f"a controller has no golden log; {ADVICE}"
    assert found - wanted == set(), f"a golden log belongs to no controller; {ADVICE}"
    assert all(path.stat().st_size < 4096 for path in FOLDER.glob("*.json"))


@pytest.mark.parametrize(("name", "kind", "spelling"), cases(), ids=lambda text: text)
def test_golden_log(name: str, kind: str, spelling: str) -> None:
    path = path_of(name, kind)
    assert path.exists(), f"{path.name} is missing; {ADVICE}"
    want = json.loads(path.read_text(encoding="utf-8"))
    got = golden_log(kind, spelling)
    assert (want["spelling"], want["kind"]) == (spelling, kind), ADVICE
    for column in COLUMNS:
        assert len(got[column]) == ROUNDS
        first = next(
            (i for i, pair in enumerate(zip(got[column], want[column], strict=True)) if len(set(pair)) > 1), -1
        )
        assert got[column] == want[column], f"{column} differs from round {first} on; {ADVICE}"
