"""Speed of the replay, always as a ratio to something timed in the same process, interleaved, minimum of five.

`.venv/bin/python -m pytest -m bench tests/bench -s` prints the figures.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

from specsim.chunk import TraceChunk
from specsim.controllers import Setting, build
from specsim.engine import replay
from specsim.kernel import run_chunk
from specsim.latency import LatencyModel
from specsim.oracle import best_round_lengths
from specsim.rows import make_costs, make_rows
from specsim.schema import TraceMeta
from specsim.trace import write_trace

ROWS, LENGTH, PER_REQUEST = 200_000, 60, 1_000
EIGHT = (
    "libraspec:alpha=2.0",
    "libraspec:alpha=2.2",
    "goodput",
    "static:length=8",
    "g4",
    "threshold",
    "failfast",
    "greedy-oracle",
)
LATENCY = LatencyModel.affine(c_s=0.0009, b_s=0.063, draft_pass_s=0.003, overhead_s=0.0002)
ATTEMPTS = 3  # the machines are shared: a neighbour's burst in one attempt is not the program's speed

pytestmark = pytest.mark.bench


@pytest.fixture(scope="module")
def trace() -> tuple[TraceMeta, TraceChunk]:
    """200,000 rows of 60 confidences, acceptance drawn from them (Beta, mean 0.85)."""
    rng = np.random.default_rng(0)
    q = rng.beta(8, 8 * 0.15 / 0.85, size=(ROWS, LENGTH)).astype(np.float32)
    accepted = rng.random((ROWS, LENGTH)) < q
    lengths = np.where(accepted.all(axis=1), LENGTH, accepted.argmin(axis=1))
    pos = np.tile(np.arange(PER_REQUEST), ROWS // PER_REQUEST).astype(np.int32)
    chunk = TraceChunk(
        request=np.repeat(np.arange(ROWS // PER_REQUEST), PER_REQUEST).astype(np.int32),
        pos=pos,
        ctx_len=pos + 50,
        offsets=np.arange(ROWS + 1, dtype=np.int64) * LENGTH,
        q=q.ravel(),
        p=q.ravel(),
        accept_len=lengths.astype(np.int16),
    )
    return TraceMeta(max_draft_len=LENGTH, temperature=1.0), chunk


def fastest(*actions: Callable[[], object], repeats: int = 5) -> list[float]:
    """Seconds of each action, minimum over interleaved repeats."""
    best = [float("inf")] * len(actions)
    for _ in range(repeats):
        for index, action in enumerate(actions):
            start = time.perf_counter()
            action()
            best[index] = min(best[index], time.perf_counter() - start)
    return best


def test_eight_controllers_take_no_longer_than_reading_their_columns(
    trace: tuple[TraceMeta, TraceChunk], tmp_path: Path
) -> None:
    meta, chunk = trace
    path = tmp_path / "trace.parquet"
    write_trace(path, meta, chunk)  # zstd, no dictionary

    def run() -> None:
        result = replay(meta, [chunk], LATENCY, EIGHT, keep_rounds=True)
        assert len(result.results) == len(result.rounds) == len(EIGHT)

    def read() -> None:
        pq.read_table(path, columns=["q", "p"], use_threads=False)

    run()  # compile
    ratios = []
    for _ in range(ATTEMPTS):
        run_s, read_s = fastest(run, read)
        ratios.append(run_s / read_s)
        print(
            f"\neight controllers {1000 * run_s:.0f} ms, reading q and p {1000 * read_s:.0f} ms, ratio {ratios[-1]:.2f}"
        )
        if ratios[-1] <= 1.0:
            break
    assert min(ratios) <= 1.0


@pytest.mark.parametrize("spelling", [*EIGHT, "plain", "hf-heuristic", "specdecpp", "oracle"])
def test_each_controller_is_25_times_faster_than_plain_python(
    trace: tuple[TraceMeta, TraceChunk], spelling: str
) -> None:
    meta, chunk = trace
    controller = build(spelling, Setting(block_len=1, max_draft_len=LENGTH, latency=LATENCY))
    costs = make_costs(LATENCY, LENGTH)

    def per_round(rows_used: int, repeats: int, *, compiled: bool) -> float:
        rows = make_rows(chunk.slice(0, rows_used))
        best = best_round_lengths(rows, costs, meta.block_len)
        rows = rows._replace(hint=best if controller.privilege != "none" else rows.hint)

        def run() -> int:
            ran = run_chunk(
                controller,
                controller.fresh_state(),
                rows,
                best,
                costs,
                block_len=1,
                every_round=False,
                limit=LENGTH,
                seed=0,
                compiled=compiled,
            )
            return ran.rounds.row.size

        rounds = run()
        return fastest(run, repeats=repeats)[0] / rounds

    ratio = per_round(PER_REQUEST, 2, compiled=False) / per_round(ROWS, 5, compiled=True)
    print(f"\n{spelling}: {ratio:.0f} times faster than plain Python")
    assert ratio >= 25
