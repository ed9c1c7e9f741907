"""What the notebooks call: commands as a reader would type them, their output shown, and figures of runs.

A notebook that runs the commands of README shows what README promises, and a command that fails stops it.
"""

from __future__ import annotations

import html
import os
import shlex
import subprocess
import sys
from dataclasses import dataclass

import matplotlib.pyplot as plt
from matplotlib.axes import Axes

from analysis import derive
from analysis.figures import FIGURES
from analysis.figures.style import styled
from analysis.loaded import Run
from analysis.rounds import scan
from specsim.errors import ConfigError

WIDTH = 120  # characters of the tables
DPI = 150  # of figures, whose sizes are those of a paper's column
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


def figure(name: str, run: Run) -> Axes:
    """Draw one of `analysis.figures` of a run, in its style and size, as a picture of the cell; its axes.

    Args:
        name: as `python -m analysis.figures --figure` takes it.
        run: of `analysis.runs.read_runs`.

    Raises:
        ConfigError: no figure of runs of this name.
        Missing: the run cannot give it; the text says why.
    """
    kind = FIGURES.get(name)
    if kind is None or kind.derived is None:
        allowed = ", ".join(one for one, other in FIGURES.items() if other.derived)
        raise ConfigError(f"no figure {name!r} of a run; allowed: {allowed}")
    table = kind.adapt(derive.TABLES[kind.derived](run, scan(run.rounds) if run.rounds else None))
    with styled():
        _, ax = plt.subplots(figsize=kind.size(table), layout="constrained", dpi=DPI)
        return kind.draw(table, ax)
