"""Progress of slow commands on standard error: a bar on a terminal, a line per step anywhere else.

Both say how long what is left will take, from the steps done so far.
"""

from __future__ import annotations

import time
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn


def progress_bar(console: Console) -> Progress:
    """A bar for slow work; leaves nothing behind when the output is not a terminal."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    return Progress(*columns, TimeRemainingColumn(), console=console, transient=not console.is_terminal)


class Steps:
    """Steps of one piece of work, as a context manager.

    Args:
        console: where.
        what: the work, in a word or two.
        total: steps in all.
        before: steps that were done by an earlier call; they say nothing about time.
    """

    def __init__(self, console: Console, what: str, total: int, *, before: int = 0) -> None:
        self._console, self._what, self._total, self._done, self._before = console, what, total, before, before
        self._bar = progress_bar(console) if console.is_terminal else None

    def __enter__(self) -> Self:
        self._started = time.perf_counter()
        if self._bar is not None:
            self._bar.start()
            self._task = self._bar.add_task(self._what, total=self._total, completed=self._before)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        if self._bar is not None:
            self._bar.stop()

    def done(self, note: str = "") -> None:
        """One more step is done."""
        self._done += 1
        if self._bar is not None:
            self._bar.advance(self._task)
            return
        spent_s = time.perf_counter() - self._started
        left_s = spent_s / (self._done - self._before) * (self._total - self._done)
        text = f"{self._what} {self._done}/{self._total}"
        if note:
            text += f": {note}"
        if self._done < self._total:
            text += f", about {left_s:.0f} s left"
        self._console.print(text, markup=False, highlight=False, soft_wrap=True)
