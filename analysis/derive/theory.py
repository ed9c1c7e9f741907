"""Derived table of theory verdicts: which of the theorems' assumptions and conclusions hold on a run's trace."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pyarrow as pa

from analysis.derive.source import Missing, opened
from analysis.loaded import Run
from analysis.rounds import Scan
from specsim.errors import SpecsimError
from specsim.latency import LatencyModel
from specsim.theory.check import check_trace

THEORY = pa.schema([(name, pa.string()) for name in ("trace", "property", "statement", "verdict", "evidence")])
RESAMPLES = 300  # of requests; docs/checks.md, the command's own default is 1000


def theory(run: Run, scan: Scan | None) -> pa.Table:
    """Verdicts of `specsim.theory check` on the run's trace under its latency model (docs/checks.md).

    Columns: trace, property, statement (what is tested), verdict (`holds`, `violated`, `not decidable`), evidence. With
    300 resamples in place of the command's 1000, over all requests of the file.

    Raises:
        Missing: no trace.
    """
    with opened(run) as source:
        latency: LatencyModel = source.latency
    assert run.trace is not None, "what was opened exists"
    try:
        checked = check_trace(run.trace, latency, resamples=RESAMPLES)
    except SpecsimError as error:
        raise Missing(f"its trace cannot be checked: {error}") from None
    return verdicts([checked.to_json()])


def verdicts(traces: list[Mapping[str, Any]] | list[dict[str, Any]]) -> pa.Table:
    """The same table from `traces` of a `specsim.theory_check/1` document."""
    rows = [
        {
            "trace": str(trace["path"]),
            "property": one["id"],
            **{"statement": one["statement"], "verdict": one["verdict"], "evidence": one["text"]},
        }
        for trace in traces
        for one in trace["properties"]
    ]
    return pa.Table.from_pylist(rows, schema=THEORY)
