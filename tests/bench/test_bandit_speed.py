"""Speed of bandit replay over 16 arms, as a ratio to the same rules in plain Python in the same run."""

from __future__ import annotations

import numpy as np
import pytest

from specsim.chunk import TraceChunk
from specsim.engine import controllers_for
from specsim.kernel import run_chunk
from specsim.latency import LatencyModel
from specsim.rows import make_costs, make_rows
from specsim.schema import TraceMeta
from tests.bench.test_speed import ATTEMPTS, fastest

ARMS, LENGTH, ROWS, PER_REQUEST = 16, 4, 100_000, 2_000
LATENCY = LatencyModel.affine(c_s=0.0009, b_s=0.063, draft_pass_s=0.003, overhead_s=0.0002)

pytestmark = pytest.mark.bench


@pytest.fixture(scope="module")
def trace() -> tuple[TraceMeta, TraceChunk]:
    rng = np.random.default_rng(0)
    draft_s = np.linspace(0.007, 0.05, ARMS)
    accept = np.minimum(rng.geometric(1 - np.linspace(0.4, 0.8, ARMS), size=(ROWS, ARMS)) - 1, LENGTH)
    pos = np.tile(np.arange(PER_REQUEST), ROWS // PER_REQUEST).astype(np.int32)
    meta = TraceMeta(
        kind="arm",
        max_draft_len=LENGTH,
        draft_len=LENGTH,
        arms=tuple({"name": f"arm-{k}", "budget": k + 1, "draft_s": float(s)} for k, s in enumerate(draft_s)),
    )
    chunk = TraceChunk(
        request=np.repeat(np.arange(ROWS // PER_REQUEST), PER_REQUEST).astype(np.int32),
        pos=pos,
        ctx_len=pos + 50,
        offsets=np.arange(ROWS + 1, dtype=np.int64) * LENGTH,
        accept_len=accept.max(axis=1).astype(np.int16),
        arm_accept_len=accept.astype(np.int16),
    )
    return meta, chunk


@pytest.mark.parametrize("spelling", ["sp2ec", "ucbspec", "exp3spec"])
def test_bandit_replay_is_50_times_faster_than_plain_python(trace: tuple[TraceMeta, TraceChunk], spelling: str) -> None:
    meta, chunk = trace
    controller = controllers_for(meta, LATENCY, [spelling])[0]
    costs = make_costs(LATENCY, LENGTH)
    stated = np.array([float(arm["draft_s"]) * LENGTH for arm in meta.arms or ()])

    def per_round(rows_used: int, repeats: int, *, compiled: bool) -> float:
        part = chunk.slice(0, rows_used)
        rows = make_rows(part, arm_draft_s=np.tile(stated, (rows_used, 1)))

        def run() -> int:
            ran = run_chunk(
                controller,
                controller.fresh_state(),
                rows,
                rows.hint,
                costs,
                block_len=1,
                every_round=False,
                limit=LENGTH,
                seed=0,
                draft_len=LENGTH,
                compiled=compiled,
            )
            return ran.rounds.row.size

        return fastest(run, repeats=repeats)[0] / run()

    per_round(PER_REQUEST, 1, compiled=True)  # compile
    ratios = []
    for _ in range(ATTEMPTS):
        ratios.append(per_round(PER_REQUEST, 2, compiled=False) / per_round(ROWS, 3, compiled=True))
        print(f"\n{spelling} over {ARMS} arms: {ratios[-1]:.0f} times faster than plain Python")
        if ratios[-1] >= 50:
            break
    assert max(ratios) >= 50
