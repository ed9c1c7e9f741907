"""Time of a round's stages, without adding synchronisation to what is timed.

Owns the two clocks: one reads the host's counter, the other records events on the GPU's stream and reads them after
the round's own copy to the host; and a stopwatch for work that is part of a round or of its preparation. Knows nothing
about decoding.
"""

from __future__ import annotations

import time
from typing import Protocol

import torch

DRAFT, VERIFY = "draft", "verify"


class Clock(Protocol):
    """Times rounds that follow each other without a gap: each begins where the one before was read."""

    def start(self) -> None:
        """The first round begins now."""
        ...

    def enter(self) -> None:
        """A stage begins."""
        ...

    def leave(self, stage: str) -> None:
        """The stage begun last ends; its time is added to `stage`."""
        ...

    def read(self) -> tuple[float, float, float]:
        """(draft, verify, whole round) in seconds; the next round begins now. The host has waited for the device."""
        ...


class HostClock:
    """`time.perf_counter`: right on a CPU, where a call returns when its work is done."""

    def start(self) -> None:
        self._stages = {DRAFT: 0.0, VERIFY: 0.0}
        self._round = time.perf_counter()

    def enter(self) -> None:
        self._stage = time.perf_counter()

    def leave(self, stage: str) -> None:
        self._stages[stage] += time.perf_counter() - self._stage

    def read(self) -> tuple[float, float, float]:
        now = time.perf_counter()
        draft_s, verify_s = self._stages[DRAFT], self._stages[VERIFY]
        whole_s, self._round = now - self._round, now
        self._stages = {DRAFT: 0.0, VERIFY: 0.0}
        return draft_s, verify_s, whole_s


class EventClock:
    """CUDA events around the stages, the host's counter around the round.

    Events cost no waiting: they are recorded in the stream and read when the copy of the verdict, which a round needs
    anyway, has already made the host wait.
    """

    def start(self) -> None:
        torch.cuda.synchronize()  # the prompt's pass must not count as the first round
        self._spans: list[tuple[str, torch.cuda.Event, torch.cuda.Event]] = []
        self._round = time.perf_counter()

    def enter(self) -> None:
        self._open = _event()

    def leave(self, stage: str) -> None:
        self._spans.append((stage, self._open, _event()))

    def read(self) -> tuple[float, float, float]:
        now = time.perf_counter()
        totals = {DRAFT: 0.0, VERIFY: 0.0}
        for stage, first, last in self._spans:
            last.synchronize()  # done already, except for a draft whose tokens were never submitted
            totals[stage] += first.elapsed_time(last) / 1e3
        whole_s, self._round, self._spans = now - self._round, now, []
        return totals[DRAFT], totals[VERIFY], whole_s


def _event() -> torch.cuda.Event:
    event = torch.cuda.Event(enable_timing=True)
    event.record()
    return event


class Stopwatch:
    """Adds up what `with` blocks take by the host's counter.

    Args:
        device: wait for this device at both ends of a block, for work that is done there; None: work of the host.
    """

    def __init__(self, device: torch.device | str | None = None) -> None:
        self._waits, self._spent = device is not None and torch.device(device).type == "cuda", 0.0

    def __enter__(self) -> None:
        if self._waits:
            torch.cuda.synchronize()
        self._began = time.perf_counter()

    def __exit__(self, *_: object) -> None:
        if self._waits:
            torch.cuda.synchronize()
        self._spent += time.perf_counter() - self._began

    def read(self) -> float:
        """Seconds since it was read last; it begins at 0 again."""
        spent, self._spent = self._spent, 0.0
        return spent


def clock_for(device: torch.device | str) -> Clock:
    """The clock for a device."""
    return EventClock() if torch.device(device).type == "cuda" else HostClock()
