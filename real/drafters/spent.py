"""What construction takes: seconds by part, rounds, trials, and what was generated meanwhile.

Owns the record and its stopwatch. The stopwatch waits for the device where a part begins and ends, which must not
happen in rounds that are measured; what is built here is timed apart from them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from time import perf_counter
from typing import Final

import torch

PASSES: Final = "passes"
SEARCH: Final = "search"
BOOKKEEPING: Final = "bookkeeping"
PARTS: Final = (PASSES, SEARCH, BOOKKEEPING)


class Spent:
    """Adds up seconds by part. A part inside another stops the outer one meanwhile, so nothing is counted twice.

    Args:
        device: where the work is done.
        parts: their names.

    Attributes:
        seconds: of each part so far.
        rounds, tokens: played and put out while there were arms to come.
        trials: sets of sub-blocks tried by themselves.
        generated: tokens of all prompts, to their end.
        generation_s: seconds of that, prompts and construction included.
    """

    def __init__(self, device: torch.device | str, parts: Sequence[str] = PARTS) -> None:
        self.seconds = dict.fromkeys(parts, 0.0)
        self.rounds = self.tokens = self.trials = self.generated = 0
        self.generation_s = 0.0
        self._waits = torch.device(device).type == "cuda"
        self._part: str | None = None
        self._since = 0.0

    @contextmanager
    def on(self, part: str) -> Iterator[None]:
        """While it is open, time is this part's."""
        outer = self._turn_to(part)
        try:
            yield
        finally:
            self._turn_to(outer)

    def round(self, tokens: int) -> None:
        """A round was played while there were arms to come."""
        self.rounds += 1
        self.tokens += tokens

    @property
    def construction_s(self) -> float:
        """Seconds of all parts."""
        return sum(self.seconds.values())

    @property
    def share(self) -> float | None:
        """Of construction in the seconds of generation; None where nothing was generated."""
        return self.construction_s / self.generation_s if self.generation_s else None

    def _turn_to(self, part: str | None) -> str | None:
        if self._waits:
            torch.cuda.synchronize()
        now = perf_counter()
        if self._part is not None:
            self.seconds[self._part] += now - self._since
        before, self._part, self._since = self._part, part, now
        return before
