"""What a run's round log says of single controllers, request by request, from its scan."""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from analysis.derive.source import Floats, Missing, Sums
from analysis.loaded import Method, Run
from analysis.rounds import Scan

STATIC = re.compile(r"static:length=(\d+)")
ARM = re.compile(r"arm:index=(\d+)")
NO_LOG = "no round log was found with it"


def number(pattern: re.Pattern[str], controller: str) -> int | None:
    """The length or arm of a controller that always plays it; None for others."""
    found = pattern.fullmatch(controller)
    return None if found is None else int(found[1])


def rows_of(table: pa.Table, run: Run, controller: str) -> pa.Table:
    """A controller's rows of one of a scan's tables; none where it is not in the log."""
    return table.filter(pc.field("run_id") == run.run_ids.get(controller, ""))


def sums_of(run: Run, scan: Scan, controller: str) -> Sums | None:
    """A controller's tokens and seconds by request, in the order of requests; None where it has no rounds."""
    mine = rows_of(scan.requests, run, controller).sort_by("request")
    if not mine.num_rows:
        return None
    return Sums(
        tokens=column(mine, "tokens"),
        seconds=column(mine, "round_s"),
        rounds=float(column(mine, "rounds").sum()),
        submitted=float(column(mine, "submitted").sum()),
    )


def column(table: pa.Table, name: str) -> Floats:
    """float64 values of a column, NaN where null."""
    return table[name].cast(pa.float64()).to_numpy()


def needed(scan: Scan | None) -> Scan:
    """The scan of a run that has a round log.

    Raises:
        Missing: there is none.
    """
    if scan is None:
        raise Missing(NO_LOG)
    return scan


def fastest(methods: Sequence[Method]) -> Method | None:
    """The method with the most tokens per second; None of none."""
    return max(methods, key=lambda one: one.tokens_per_s, default=None)


def adaptive(run: Run) -> list[Method]:
    """Controllers that decide anew every round and could be deployed."""
    fixed = (STATIC, ARM)
    return [one for one in run.methods if one.rival and all(number(p, one.controller) is None for p in fixed)]


def by_number(run: Run, pattern: re.Pattern[str]) -> dict[int, Method]:
    """The run's fixed lengths or arms, ascending."""
    found = {number(pattern, one.controller): one for one in run.methods}
    return {length: found[length] for length in sorted(key for key in found if key is not None)}


def share(part: Floats, whole: Floats) -> Floats:
    """part / whole, NaN where nothing was counted."""
    return np.divide(part, whole, out=np.full(np.broadcast(part, whole).shape, np.nan), where=whole > 0)
