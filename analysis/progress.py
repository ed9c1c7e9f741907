"""Progress of reading a long file, on a terminal; silence elsewhere."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn


@contextmanager
def reading(path: Path) -> Iterator[Callable[[float], None]]:
    """A function that is told the share of the file that has been read; the bar is gone afterwards."""
    console = Console(stderr=True)
    columns = (
        TextColumn("{task.description}", markup=False),  # a file name may hold brackets
        *(BarColumn(), TextColumn("{task.percentage:3.0f} %"), TimeRemainingColumn()),
    )
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        task = progress.add_task(str(path), total=1.0)
        yield lambda share: progress.update(task, completed=share)
