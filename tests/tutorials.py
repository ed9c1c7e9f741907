"""Follows the tutorials as a reader would: their files, their commands in order, and what they show as output.

`python -m tests.tutorials --update` writes the outputs anew; without it, `tests/test_tutorials.py` compares.
A tutorial's blocks are marked `<!-- file: NAME -->`, `<!-- run -->` and `<!-- shown -->`; what is shown is the output
of the commands before it.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.readme import ROOT, normalised

BLOCK = re.compile(r"^<!-- (file: (?P<file>\S+)|run|shown) -->\n```\w+\n(?P<text>.*?)^```$", re.MULTILINE | re.DOTALL)
TUTORIALS = sorted((ROOT / "docs").glob("tutorial-*.md"))


def lay_out(folder: Path) -> None:
    """Make a folder look like the root of the repository, as far as the tutorials look."""
    (folder / "traces").symlink_to(ROOT / "traces")
    (folder / "real").symlink_to(ROOT / "real")
    (folder / ".venv" / "bin").mkdir(parents=True)
    python = folder / ".venv" / "bin" / "python"
    python.write_text(f'#!/bin/sh\nexec "{sys.executable}" "$@"\n')
    python.chmod(0o755)


def run(commands: str, folder: Path) -> str:
    """What a block of commands prints on standard output.

    Raises:
        RuntimeError: one failed; with its error output.
    """
    # One thread of torch: two on a busy machine wait for each other longer than they work.
    environment = {**os.environ, "COLUMNS": "120", "NO_COLOR": "1", "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        ["bash", "-ec", commands], cwd=folder, env=environment, capture_output=True, text=True, timeout=300, check=False
    )
    if done.returncode:
        raise RuntimeError(f"{commands}\nexit status {done.returncode}\n{done.stdout}{done.stderr}")
    return done.stdout


def followed(text: str, folder: Path) -> str:
    """A tutorial with its shown outputs as they come now; everything else as it is."""
    printed = ""

    def step(found: re.Match[str]) -> str:
        nonlocal printed
        if found["file"]:
            (folder / found["file"]).write_text(found["text"], encoding="utf-8")
        elif found[1] == "run":
            printed = run(found["text"], folder)
        else:
            return found[0].replace(found["text"], normalised(printed) + "\n")
        return found[0]

    return BLOCK.sub(step, text)


def main(arguments: list[str]) -> int:
    if arguments != ["--update"]:
        print("usage: python -m tests.tutorials --update")
        return 0 if arguments == ["--help"] else 2
    for page in TUTORIALS:
        with tempfile.TemporaryDirectory() as folder:
            lay_out(Path(folder))
            page.write_text(followed(page.read_text(encoding="utf-8"), Path(folder)), encoding="utf-8")
            print(f"updated {page.relative_to(ROOT)}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
