"""Follows docs/adding-a-controller.md as written: its files, its edits, its commands."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PAGE = (ROOT / "docs" / "adding-a-controller.md").read_text(encoding="utf-8")
_MARKED = re.compile(r"^<!-- (file|edit|run): (\S+) -->\n```\w+\n(.*?)^```$", re.MULTILINE | re.DOTALL)
BLOCKS: list[tuple[str, str, str]] = _MARKED.findall(PAGE)


def apply_edit(text: str, diff: str) -> str:
    """The text after a diff without line numbers.

    Hunks are parted by lines of "@@"; the context and "-" lines of each must occur in the text exactly once. "..." at
    the end of a line stands for the rest of it, and in the "+" lines for the same rest.
    """
    for hunk in diff.split("@@\n"):
        lines = hunk.splitlines(keepends=True)
        before = "".join(line[1:] for line in lines if line[0] in " -")
        after = "".join(line[1:] for line in lines if line[0] in " +")
        pattern = "^" + re.escape(before).replace(re.escape("...\n"), "(.*)\n")
        found = list(re.finditer(pattern, text, re.MULTILINE))
        assert len(found) == 1, f"the page edits lines that are there {len(found)} times:\n{before}"
        for rest in found[0].groups():
            after = after.replace("...\n", rest + "\n", 1)
        text = text[: found[0].start()] + after + text[found[0].end() :]
    return text


def lay_out(folder: Path, prefix: str = "") -> None:
    """Write the page's files and edits whose path starts with `prefix` into `folder`."""
    for kind, path, content in BLOCKS:
        target = folder / path.removeprefix("plugin/")
        if path.startswith("plugin/") != (prefix == "plugin/"):
            continue
        if kind == "file":
            target.write_text(content, encoding="utf-8")
        elif kind == "edit":
            target.write_text(apply_edit(target.read_text(encoding="utf-8"), content), encoding="utf-8")


def run_commands(place: str, folder: Path, tmp_path: Path) -> str:
    """Run the page's commands for a place line by line; the output of all of them.

    Args:
        place: `plugin` or `checkout`.
        folder: working directory.
        tmp_path: where the changed checkout keeps its compiled code, so that it does not displace that of this one.
    """
    environment = {
        **os.environ,
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "SPECSIM_CACHE": os.environ.get("SPECSIM_CACHE", "") if place == "plugin" else str(tmp_path / "cache"),
        "HYPOTHESIS_PROFILE": "dev",
    }
    environment = {key: value for key, value in environment.items() if value and not key.startswith("PYTEST_")}
    output = ""
    for kind, where, commands in BLOCKS:
        for command in commands.splitlines() if (kind, where) == ("run", place) else []:
            done = subprocess.run(
                ["bash", "-c", command], cwd=folder, env=environment, capture_output=True, text=True, timeout=600
            )
            assert done.returncode == 0, f"$ {command}\n{done.stdout}\n{done.stderr}"
            output += done.stdout
    return output


def test_page_has_the_blocks_this_test_follows() -> None:
    assert [kind for kind, _, _ in BLOCKS] == ["file", "run", "file", "run", "file", "edit", "edit", "run"]
    assert PAGE.count("```") == 2 * len(BLOCKS), "a code block of the page has no marker, so nothing checks it"


def test_plugin_in_plain_python(tmp_path: Path) -> None:
    lay_out(tmp_path, "plugin/")
    output = run_commands("plugin", tmp_path, tmp_path)
    assert "echo:extra=2,max=8" in output
    assert "1 passed" in output


def test_compiled_and_shipped(tmp_path: Path) -> None:
    checkout = tmp_path / "checkout"
    for name in ("specsim", "tests"):
        shutil.copytree(ROOT / name, checkout / name, ignore=shutil.ignore_patterns("__pycache__", ".hypothesis"))
    shutil.copy(ROOT / "pyproject.toml", checkout)
    lay_out(checkout)
    output = run_commands("checkout", checkout, tmp_path)
    assert re.search(r"\d+ passed", output)
    assert "failed" not in output
    assert "| `echo` | `extra`: 1;" in output


def test_edits_are_applied_as_the_page_means_them() -> None:
    assert apply_edit("a\nb\nc\n", " a\n-b\n+B\n c\n+d\n") == "a\nB\nc\nd\n"
    assert apply_edit("a\nb\n", "+x\n b\n@@\n-a\n+A\n") == "A\nx\nb\n"
    assert (
        apply_edit("for f in (a, b)\nend\n", "-for f in (...\n+for f in (new, ...\n") == "for f in (new, a, b)\nend\n"
    )
    assert (
        apply_edit("for f in (\n    a,\n)\n", "-for f in (...\n+for f in (new, ...\n") == "for f in (new, \n    a,\n)\n"
    )


@pytest.mark.parametrize(("text", "times"), [("a\n", 0), ("b\na\nb\n", 2), ("bb\nab\n", 0)])
def test_an_edit_of_lines_that_are_not_there_once_is_noticed(text: str, times: int) -> None:
    with pytest.raises(AssertionError, match=f"there {times} times"):
        apply_edit(text, "-b\n+c\n")
