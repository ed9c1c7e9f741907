"""The folder of a run by itself; commands that write one are tested in test_real_validate and test_real_lightning."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("torch", reason="real/ needs the extra 'real'")

from real.drafters.base import Built
from real.folder import REQUESTS, RUN, Request, Run, RunFolder
from real.loop import Decoded, Round
from specsim.errors import ConfigError


def kept(number: int) -> Request:
    """A prompt with one run of one round."""
    row = Round(
        arm=2,
        drafted_len=2,
        submitted_len=1,
        draft_passes=2,
        available_len=4,
        q=np.array([0.1, 1 / 3], np.float32),
        ctx_len=5,
        accepted_len=1,
        emitted_len=2,
        draft_s=0.1,
        verify_s=1 / 3,
        round_s=0.5,
        controller_s=1 / 7,
        build_s=1 / 9,
    )
    built = Built(build_s=1 / 8, arms=3, families=2, preparatory=1)
    decoded = Decoded(prompt_len=5, output=[7, 8], reason="stop", rounds=[row], prefill_s=1e-3, built=built)
    decoded.early_build_s = 1 / 11
    return Request(number=number, id="p", runs=(Run(controller="c", decoded=decoded, warmup=True),), lane=1)


def plain(request: Request) -> object:
    """The same as values that compare."""
    (run,) = request.runs
    rows = [{name: getattr(row, name) for name in Round.__dataclass_fields__} for row in run.decoded.rounds]
    rows = [{**row, "q": (row["q"].dtype, row["q"].tolist())} for row in rows]
    decoded = run.decoded
    facts = {**vars(decoded), "rounds": rows}
    return request.number, request.id, request.lane, run.controller, run.warmup, facts


def test_what_is_kept_comes_back_as_it_was(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path / "run", {"a": 1})
    for number in (3, 0):
        folder.save(kept(number))
    again = RunFolder(tmp_path / "run", {"a": 1})
    assert again.done() == {0, 3}
    assert [plain(request) for request in again.load()] == [plain(kept(0)), plain(kept(3))]


def test_prompts_kept_before_construction_was_recorded_are_read(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path / "run", {})
    folder.save(kept(0))
    file = tmp_path / "run" / REQUESTS / "00000.json"
    document = json.loads(file.read_text())
    (run,) = document["runs"]
    del run["built"], run["early_build_s"], run["rounds"]["build_s"], run["rounds"]["controller_s"]
    file.write_text(json.dumps(document))
    (request,) = folder.load()
    decoded = request.runs[0].decoded
    assert (decoded.built, decoded.decode_s, decoded.controller_s) == (Built(), 0.5, 0.0)


def test_a_prompt_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path / "run", {})
    folder.save(kept(0))
    file = tmp_path / "run" / REQUESTS / "00000.json"
    file.write_text(file.read_text()[:-20])
    with pytest.raises(ConfigError, match=r"00000.json: cannot be read .*; delete it"):
        list(folder.load())


def test_prompts_without_their_run_are_not_taken_over(tmp_path: Path) -> None:
    RunFolder(tmp_path / "run", {"a": 1}).save(kept(0))
    (tmp_path / "run" / RUN).unlink()
    for force in (False, True):
        with pytest.raises(ConfigError, match=r"holds prompts, but .*run.json is missing"):
            RunFolder(tmp_path / "run", {"a": 2}, force=force)


def test_a_kept_prompt_of_another_place_or_other_controllers_is_refused(tmp_path: Path) -> None:
    """Copied or edited files; what else lies in the folder is none of ours."""
    folder = RunFolder(tmp_path / "run", {"controllers": ["c", "d"]})
    requests = tmp_path / "run" / REQUESTS
    (run,) = kept(0).runs
    pair = tuple(replace(run, controller=name, warmup=False) for name in ("d", "c"))
    folder.save(replace(kept(0), runs=(run, *pair)))
    shutil.copy(requests / "00000.json", requests / "0 (copy).json")
    assert folder.done() == {0}
    assert len(list(folder.load())) == 1
    shutil.copy(requests / "00000.json", requests / "00001.json")
    with pytest.raises(ConfigError, match=r"00001.json: .*it holds prompt 0.*delete it"):
        list(folder.load())
    (requests / "00001.json").unlink()
    folder.save(replace(kept(0), runs=pair[:1]))
    with pytest.raises(ConfigError, match=r"00000.json: .*it holds runs of d; this run is of c, d.*delete it"):
        list(folder.load())
    (requests / "00000.json").write_text("[" * 100_000)
    with pytest.raises(ConfigError, match=r"00000.json: cannot be read"):
        list(folder.load())


@pytest.mark.parametrize("text", ["{", "[]", '{"schema": 1}', '{"schema": "specsim.real_run/1"}', "[" * 100_000])
def test_a_damaged_run_is_refused(tmp_path: Path, text: str) -> None:
    RunFolder(tmp_path / "run", {"a": 1})
    (tmp_path / "run" / RUN).write_text(text)
    with pytest.raises(ConfigError, match=r"run.json: (cannot be read|not the description of a run)"):
        RunFolder(tmp_path / "run", {"a": 1})
