"""Compiled code on disk: used again, never stale, never needed. Each run is a process on a copy of the package."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import specsim
import specsim.jit as jit_module
from tests.replay_tools import make_trace

# What the copied package replays, and how often numba found machine code on disk or had to compile.
SCRIPT = """
import json, sys
from numba.core import event
import specsim
from specsim.engine import replay
from specsim.latency import LatencyModel
from specsim.trace import open_trace

compiled = []
class Compiles(event.Listener):
    def on_start(self, event): pass
    def on_end(self, event): compiled.append(str(event.data["dispatcher"].py_func.__name__))
event.register("numba:compile", Compiles())
with open_trace(sys.argv[1]) as reader:
    model = LatencyModel.affine(c_s=0.0005, b_s=0.03, draft_pass_s=0.002)
    result = replay(reader.meta, reader.chunks(["q"]), model, ["static:length=3"])
row = result.results[0]
print(json.dumps({"package": specsim.__file__, "compiled": compiled, **row}))
"""


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a copy of the package, a trace and the script."""
    folder = tmp_path_factory.mktemp("jit")
    ignored = shutil.ignore_patterns("__pycache__")
    shutil.copytree(Path(specsim.__file__).parent, folder / "specsim", ignore=ignored)
    make_trace(folder / "t.parquet")
    (folder / "script.py").write_text(SCRIPT)
    return folder


def run(home: Path, cache: Path) -> dict:
    environment = {**os.environ, "SPECSIM_CACHE": str(cache), "PYTHONPATH": str(home)}
    command = [sys.executable, "-W", "error", "script.py", "t.parquet"]
    done = subprocess.run(command, cwd=home, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert Path(found["package"]) == home / "specsim" / "__init__.py"
    return found


def files(cache: Path) -> dict[str, int]:
    return {str(path): path.stat().st_mtime_ns for path in cache.rglob("*") if path.is_file()}


def test_second_run_compiles_nothing_and_an_edited_callee_is_noticed(home: Path, tmp_path: Path) -> None:
    first = run(home, tmp_path)
    assert any("round_loop" in name for name in first["compiled"])
    kept = files(tmp_path)
    assert any(name.endswith(".nbc") for name in kept)
    second = run(home, tmp_path)
    assert second["compiled"] == []
    assert files(tmp_path) == kept
    assert second == first | {"compiled": []}
    # numba's own cache would look at kernel.py alone, where the compiled loop lies, and not at what it calls.
    callee = home / "specsim" / "controllers" / "schedules.py"
    text = callee.read_text()
    before, after = "return min(params.length, drafted), params.length", "return min(1, drafted), params.length"
    assert text.count(before) == 1
    callee.write_text(text.replace(before, after))
    try:
        edited = run(home, tmp_path)
        assert edited["mean_submitted"] < 1 < first["mean_submitted"]
        assert any("round_loop" in name for name in edited["compiled"])
    finally:
        callee.write_text(text)
    # Back at the old sources, the old code is still there.
    assert run(home, tmp_path) == second


def test_cache_that_cannot_be_written_only_costs_time(home: Path, tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("not a folder")
    found = run(home, blocked)
    assert any("round_loop" in name for name in found["compiled"])
    assert list(tmp_path.iterdir()) == [blocked]


@pytest.mark.parametrize(("kind", "size"), [("nbi", 0), ("nbi", 30), ("nbc", 0), ("nbc", 30)])
def test_damaged_cache_is_compiled_again(kind: str, size: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Files cut short by a crash are replaced, not stumbled over for ever."""
    monkeypatch.setattr(jit_module, "in_package", lambda function: True)
    monkeypatch.setattr(jit_module, "_cache_folder", lambda: str(tmp_path))

    def calls() -> tuple[int, int, int]:
        function = jit_module.jit(double)
        return function(21), sum(function.stats.cache_hits.values()), sum(function.stats.cache_misses.values())

    assert calls() == (42, 0, 1)
    assert calls() == (42, 1, 0)
    for path in tmp_path.rglob(f"*.{kind}"):
        os.truncate(path, size)
    assert calls() == (42, 0, 1)
    assert calls() == (42, 1, 0)


def test_cache_that_fills_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jit_module, "_cache_folder", lambda: str(tmp_path))
    function = jit_module.jit(double, disk_cache=True)

    def full(*args: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(function._cache._cache_file, "save", full)
    assert function(21) == 42


def double(x):
    return 2 * x
