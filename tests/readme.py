"""Marked output blocks of README.md and docs/: `python -m tests.readme` checks them, `--update` rewrites them.

A block is what lies between `<!-- output: COMMAND -->` and `<!-- end -->`, each on a line of its own. When it is a
fenced code block, the fence stays and its inside is the output; otherwise the output stands there as it is (a table).
Commands run in the repository root; `.venv/bin/python` stands for the interpreter that runs this file.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
INTERPRETER = ".venv/bin/python"
_BLOCK = re.compile(r"^<!-- output: (?P<command>.+?) -->\n(?P<body>.*?)^<!-- end -->$", re.MULTILINE | re.DOTALL)
_FENCED = re.compile(r"\A(?P<open>```\w*\n)(?P<inside>.*?)(?P<close>^```\n)\Z", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True, kw_only=True)
class Block:
    """One marked block: the page, the command as written, and what the page says it prints."""

    page: Path
    command: str
    shown: str

    def __str__(self) -> str:
        return f"{self.page.relative_to(ROOT)}: {self.command}"


def pages() -> list[Path]:
    """README.md and every page under docs/."""
    return [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


def blocks_of(page: Path) -> Iterator[Block]:
    """The marked blocks of a page."""
    for found in _BLOCK.finditer(page.read_text(encoding="utf-8")):
        yield Block(page=page, command=found["command"], shown=_inside(found["body"]))


def _inside(body: str) -> str:
    fenced = _FENCED.match(body)
    return fenced["inside"] if fenced else body


def normalised(text: str) -> str:
    """Without blanks at line ends and without empty lines around."""
    return "\n".join(line.rstrip() for line in text.splitlines()).strip("\n")


def run(command: str) -> str:
    """Standard output of a marked command.

    Raises:
        RuntimeError: it failed; the message holds its error output.
    """
    words = [sys.executable if word == INTERPRETER else word for word in shlex.split(command)]
    environment = {**os.environ, "COLUMNS": "120", "NO_COLOR": "1"}
    done = subprocess.run(words, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=300, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"{command}: exit status {done.returncode}\n{done.stderr.strip()}")
    return done.stdout


def updated(text: str, failed: list[str]) -> str:
    """The page text with the output of every block produced anew; a block whose command fails stays as it is.

    Args:
        text: a page.
        failed: gets the message of each command that failed.
    """

    def renew(found: re.Match[str]) -> str:
        try:
            output = normalised(run(found["command"])) + "\n"
        except RuntimeError as error:
            failed.append(str(error))
            return found[0]
        fenced = _FENCED.match(found["body"])
        body = fenced["open"] + output + fenced["close"] if fenced else output
        return f"<!-- output: {found['command']} -->\n{body}<!-- end -->"

    return _BLOCK.sub(renew, text)


def _update() -> list[str]:
    failed: list[str] = []
    for page in pages():
        old = page.read_text(encoding="utf-8")
        new = updated(old, failed)
        if new != old:
            page.write_text(new, encoding="utf-8")
            print(f"updated {page.relative_to(ROOT)}")
    return failed


def _check() -> list[str]:
    failed: list[str] = []
    for block in (block for page in pages() for block in blocks_of(page)):
        try:
            same = normalised(run(block.command)) == normalised(block.shown)
        except RuntimeError as error:
            failed.append(str(error))
            continue
        print(f"{'ok   ' if same else 'STALE'} {block}")
        if not same:
            failed.append(f"{block}: run python -m tests.readme --update")
    return failed


def main(arguments: list[str]) -> int:
    if arguments not in ([], ["--update"]):
        print("usage: python -m tests.readme [--update]")
        return 0 if arguments == ["--help"] else 2
    failed = _update() if arguments else _check()
    for message in failed:
        print(f"error: {message}", file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
