"""Rules about the repository itself: file sizes, targets of the Makefile, nothing of one machine."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from tests.conftest import ROOT

LINES = 400
CODE = ("specsim", "real", "analysis")
TARGETS = ("replay", "test", "lint", "models")


def tracked() -> list[Path]:
    """Files under version control; all files of the code folders where there is no repository."""
    done = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True)
    if done.returncode:
        return [path for folder in (*CODE, "tests", "docs") for path in (ROOT / folder).rglob("*.*")]
    return [ROOT / name for name in done.stdout.split("\0") if name and (ROOT / name).is_file()]


def test_files_stay_small() -> None:
    sizes = {
        str(path.relative_to(ROOT)): len(path.read_text().splitlines())
        for folder in CODE
        for path in (ROOT / folder).rglob("*.py")
    }
    assert sizes
    assert {name: size for name, size in sizes.items() if size > LINES} == {}


def make(*args: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["make", "--dry-run", *args], cwd=ROOT, capture_output=True, text=True)


@pytest.mark.parametrize("target", TARGETS)
def test_make_target(target: str) -> None:
    done = make(target)
    assert done.returncode == 0, done.stderr


def test_gates_call_existing_targets() -> None:
    script = ROOT / ".ci" / "run"
    assert script.stat().st_mode & 0o111 == 0o111
    gates = re.findall(r"^gate make (\S+)$", script.read_text(), re.MULTILINE)
    assert set(gates) >= {"lint", "test", "replay"}
    assert all(make(gate).returncode == 0 for gate in gates)
    assert make("no-such-target").returncode != 0  # so that the line above says something
    phony = re.search(r"^\.PHONY:(.*)$", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert phony
    assert set(phony[1].split()) >= {*TARGETS, *gates}


def test_makefile_uses_files_and_folders_that_exist() -> None:
    text = (ROOT / "Makefile").read_text()
    for name in re.findall(r"\b(?:tests|real|specsim)(?:/\w+)+(?:\.\w+)?", text):
        assert (ROOT / name).exists(), name
    for name in re.findall(r"-m ((?:real|specsim)\.\w+)", text):
        assert (ROOT / name.replace(".", "/")).with_suffix(".py").is_file(), name
    markers = set(re.findall(r"\b(slow|gpu|bench|models)\b", " ".join(re.findall(r'-m "([^"]+)"', text))))
    declared = (ROOT / "pyproject.toml").read_text()
    assert all(f'"{marker}: ' in declared for marker in markers)


def test_constraints_pin_every_dependency() -> None:
    pinned = {
        line.partition("==")[0].lower() for line in (ROOT / "constraints.txt").read_text().splitlines() if "==" in line
    }
    text = (ROOT / "pyproject.toml").read_text()
    wanted = {name.lower() for name in re.findall(r'^    "([\w-]+)>=', text, re.MULTILINE)}
    wanted |= {name.lower() for name in re.findall(r'\["([\w-]+)>=', text)} - {"setuptools"}
    assert wanted - pinned == set()


def test_nothing_of_one_machine() -> None:
    """Absolute paths of the machine this was written on would work nowhere else."""
    found = []
    for path in tracked():
        if path == Path(__file__) or path.suffix in (".parquet", ".png", ".npz", ".safetensors"):
            continue
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
            if re.search(r"(?<![\w.])/(?:work|root|home/\w+|Users/\w+)/", line):
                found.append(f"{path.relative_to(ROOT)}:{number}: {line.strip()[:100]}")
    assert found == []
