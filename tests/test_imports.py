"""Import boundaries: the simulator needs its base dependencies only, proved in fresh processes; the contracts hold."""

from __future__ import annotations

import ast
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import specsim
from tests.conftest import ROOT

PACKAGE = Path(specsim.__file__).parent
FOREIGN = ("torch", "transformers", "lightning", "wandb", "matplotlib", "real", "analysis")
BASE = {"numpy", "scipy", "numba", "pyarrow", "rich", "click"}

# Imports every module of the package while anything that a base install lacks cannot be imported.
WALK = """
import importlib, pkgutil, sys

blocked = {blocked}

class Blocker:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in blocked:
            raise ImportError(f"{{name}} is not part of a base install")

sys.meta_path.insert(0, Blocker())
import specsim
names = [m.name for m in pkgutil.walk_packages(specsim.__path__, "specsim.") if not m.name.endswith("__main__")]
for name in names:
    importlib.import_module(name)
loaded = sorted(set(n.partition(".")[0] for n in sys.modules) & set({foreign}))
print(specsim.__file__)
print(len(names))
sys.exit(f"loaded: {{loaded}}" if loaded else 0)
"""


def walk(*, blocked: tuple[str, ...], home: Path, cache: Path) -> subprocess.CompletedProcess[str]:
    """Import all of the package that lies in `home`; exit status 1 names what should not have been loaded."""
    script = WALK.format(blocked=blocked, foreign=FOREIGN)
    command = [sys.executable, "-W", "error", "-c", script]
    environment = {"PYTHONPATH": str(home), "SPECSIM_CACHE": str(cache)}
    return subprocess.run(command, cwd=home, env=environment, capture_output=True, text=True)


@pytest.mark.parametrize("blocked", [(), (*FOREIGN, "hypothesis", "pytest", "pandas")], ids=["all-extras", "base-only"])
def test_every_module_imports_without_the_extras(blocked: tuple[str, ...], tmp_path: Path) -> None:
    done = walk(blocked=blocked, home=ROOT, cache=tmp_path)
    assert done.returncode == 0, done.stderr
    path, count = done.stdout.split()
    assert Path(path) == PACKAGE / "__init__.py"
    assert int(count) >= len(list(PACKAGE.rglob("*.py"))) - len(list(PACKAGE.rglob("__main__.py"))) - 1


def test_the_check_above_can_fail(tmp_path: Path) -> None:
    """A forbidden import anywhere in a copy is found: unblocked because it is loaded, blocked because it fails."""
    shutil.copytree(PACKAGE, tmp_path / "specsim", ignore=shutil.ignore_patterns("__pycache__"))
    (tmp_path / "wandb.py").write_text("")
    assert walk(blocked=(), home=tmp_path, cache=tmp_path / "cache").returncode == 0
    victim = tmp_path / "specsim" / "latency" / "points.py"
    victim.write_text(victim.read_text() + "\nimport wandb\n")
    loaded = walk(blocked=(), home=tmp_path, cache=tmp_path / "cache")
    assert loaded.returncode == 1
    assert "loaded: ['wandb']" in loaded.stderr
    refused = walk(blocked=("wandb",), home=tmp_path, cache=tmp_path / "cache")
    assert refused.returncode == 1
    assert "wandb is not part of a base install" in refused.stderr


def top_level_imports(path: Path) -> set[str]:
    """First components of everything a file imports, wherever in the file."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and not node.level and node.module:
            found.add(node.module.partition(".")[0])
    return found


def project() -> dict:
    return tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def test_base_dependencies_are_the_six() -> None:
    names = {re.split(r"[^\w-]", requirement)[0] for requirement in project()["dependencies"]}
    assert names == BASE


@pytest.mark.parametrize("path", sorted(PACKAGE.rglob("*.py")), ids=lambda path: str(path.relative_to(PACKAGE)))
def test_imports_are_base_dependencies(path: Path) -> None:
    allowed = BASE | {"specsim", "llvmlite"} | sys.stdlib_module_names  # llvmlite is numba's other half
    assert top_level_imports(path) <= allowed


def test_library_needs_no_command_line() -> None:
    """The engine as a library draws no tables (of click, only the error types of `specsim.errors` are used)."""
    script = "import specsim.engine, sys; sys.exit('rich loaded' if 'rich' in sys.modules else 0)"
    done = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_contracts() -> None:
    """import-linter also sees indirect imports, of every package here."""
    command = [str(Path(sys.executable).parent / "lint-imports"), "--no-cache"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "0 broken" in done.stdout
