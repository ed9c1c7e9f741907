"""What the notebooks call: commands as a reader would type them, run in a process of their own, their output shown.

A notebook that runs the commands of README shows what README promises, and a command that fails stops it.
"""

from __future__ import annotations

import html
import os
import shlex
import subprocess
import sys
from dataclasses import dataclass

from specsim.errors import ConfigError

WIDTH = 120  # characters of the tables
COLOURS = ("FORCE_COLOR", "CLICOLOR", "CLICOLOR_FORCE")


@dataclass(frozen=True)
class Printed:
    """Standard output of a command; a notebook shows it as it would stand in a terminal, wide lines scrolled."""

    text: str

    def __repr__(self) -> str:
        return self.text

    def _repr_html_(self) -> str:
        return f'<pre style="white-space: pre; overflow-x: auto">{html.escape(self.text)}</pre>'


def command(line: str) -> Printed:
    """Run `python -m` with a line of words, by the interpreter of the notebook, in the current folder.

    Args:
        line: a module and its arguments as in a shell, such as `specsim.replay trace.parquet -c oracle`.

    Returns:
        What it printed on standard output.

    Raises:
        ConfigError: it failed; the message is the command's own.
    """
    words = [sys.executable, "-m", *shlex.split(line)]
    # A kernel asks all programs for colours, which are escape sequences in a page.
    environment = {name: value for name, value in os.environ.items() if name not in COLOURS}
    environment |= {"COLUMNS": str(WIDTH), "NO_COLOR": "1"}
    done = subprocess.run(words, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise ConfigError(f"python -m {line}: exit status {done.returncode}\n{done.stderr.strip()}")
    return Printed("\n".join(text.rstrip() for text in done.stdout.splitlines()).strip("\n"))
