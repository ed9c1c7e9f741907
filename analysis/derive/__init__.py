"""Derived tables: from a run and the scan of its round log to what figures and reports draw, as Arrow tables.

`TABLES` names them. Each takes a `Run` and the `Scan` of its round log (None where it has none) and raises `Missing`
with a reason for people where the run cannot give it. They read the run's trace in streamed passes, hold sums only, and
take seconds at most on the traces that come with the project; `theory` takes longest.
"""

from collections.abc import Callable, Mapping

import pyarrow as pa

from analysis.derive.acceptance import reliability, survival
from analysis.derive.costs import breakdown, fit_points, latency_points
from analysis.derive.lengths import lengths_along, throughput_by_arm, throughput_by_length
from analysis.derive.outcomes import acceptance, gains, max_lengths, predictions, pulls
from analysis.derive.regret import regret_along
from analysis.derive.source import Missing
from analysis.derive.theory import theory, verdicts
from analysis.loaded import Run
from analysis.rounds import Scan

Derive = Callable[[Run, Scan | None], pa.Table]
TABLES: Mapping[str, Derive] = {
    "acceptance": acceptance,
    "throughput": throughput_by_length,
    "arms": throughput_by_arm,
    "lengths": lengths_along,
    "survival": survival,
    "reliability": reliability,
    "latency": latency_points,
    "breakdown": breakdown,
    "regret": regret_along,
    "pulls": pulls,
    "gains": gains,
    "max-lengths": max_lengths,
    "predictions": predictions,
    "theory": theory,
}

__all__ = [
    "TABLES",
    "Derive",
    "Missing",
    "acceptance",
    "breakdown",
    "fit_points",
    "gains",
    "latency_points",
    "lengths_along",
    "max_lengths",
    "predictions",
    "pulls",
    "regret_along",
    "reliability",
    "survival",
    "theory",
    "throughput_by_arm",
    "throughput_by_length",
    "verdicts",
]
