"""Documents of run folders with any value replaced or left out: read all the same, or refused in one line."""

from __future__ import annotations

import copy
import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from analysis.compare import matched, pairs_of
from analysis.runs import read_runs
from analysis.tables import FORMATS, choose
from specsim.errors import ConfigError
from specsim.replay import main as replay
from tests.analysis_logs import PLAIN, real_folder, status, validation_folder
from tests.conftest import ROOT
from tests.test_analysis_tables import STATIC, decodes

ODD = (None, "x", -1, 0, 1.5, 10**22, True, [], [1], {}, {"a": 1})
LEFT_OUT = object()


def places(value: Any, at: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Paths to every value of a document; of lists the first two entries, provenance and latency models aside."""
    if at:
        yield at
    items = value.items() if isinstance(value, dict) else enumerate(value[:2]) if isinstance(value, list) else ()
    for key, inner in items:
        if key not in ("latency", "provenance", "software"):
            yield from places(inner, (*at, key))


def changed(document: Any, place: tuple[Any, ...], value: Any) -> Any:
    """A copy with another value at a place."""
    new = copy.deepcopy(document)
    inside = new
    for key in place[:-1]:
        inside = inside[key]
    if value is LEFT_OUT:
        del inside[place[-1]]
    else:
        inside[place[-1]] = value
    return new


def use(folder: Path) -> None:
    """All that the commands do with a folder, or its refusal."""
    try:
        loaded = read_runs([folder])
        for write in FORMATS.values():
            write(choose(loaded, None))
        for runs in matched([folder]):
            pairs_of(runs, PLAIN, STATIC)
    except ConfigError as error:
        said = str(error)
    else:
        return
    assert "\n" not in said


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A folder of each kind."""
    at = tmp_path_factory.mktemp("folders")
    trace = ROOT / "traces" / "humaneval-layer-skip.parquet"
    assert status(replay, trace, "-c", "plain", "-c", STATIC, "--out", at / "replay") == 0
    more = {"config": {"target": "t", "dataset": {"data": "lab", "requests": 2}, "prompts": ["a"], "controllers": []}}
    real = real_folder(at / "real", decodes(requests=2), **more)
    lines = [json.dumps({"request": r, "controller": c, "id": "p", "decode_s": 1.0}) for r, c in decodes(requests=2)]
    (real / "outputs.jsonl").write_text("\n".join(lines))
    stopped = real_folder(at / "stopped", decodes(requests=2), finished=False)
    return {
        "replay": at / "replay",
        "real": real,
        "stopped": stopped,
        "validation": validation_folder(at / "validation", decodes(0, 2)),
    }


@pytest.mark.parametrize(
    ("kind", "file"),
    [
        ("replay", "results.json"),
        ("replay", "config.json"),
        ("real", "run.json"),
        ("stopped", "run.json"),
        ("validation", "results.json"),
        ("validation", "run.json"),
    ],
)
def test_any_value_may_be_another(folders: dict[str, Path], tmp_path: Path, kind: str, file: str) -> None:
    folder = Path(shutil.copytree(folders[kind], tmp_path / "copy"))
    document = json.loads((folder / file).read_text())
    use(folder)
    tried, failed = 0, []
    for place in places(document):
        for value in (*ODD, LEFT_OUT):
            (folder / file).write_text(json.dumps(changed(document, place, value)))
            tried += 1
            try:
                use(folder)
            except Exception as error:  # noqa: BLE001 (all of them are told at once)
                failed.append(f"{file} {place} = {value!r}: {error!r}")
    assert not failed, "\n".join(failed)
    assert tried > 30
