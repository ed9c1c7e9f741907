"""Traces of Fast-dLLM drafts: rows are what the live drafter does, passes and all, and replay as a run goes."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="real/ needs the extra 'real'")

import numpy as np  # noqa: E402

from real.loop import Settings, decode  # noqa: E402
from real.record import proposer_of, record_request  # noqa: E402
from real.recordings import to_chunks  # noqa: E402
from real.target import Target  # noqa: E402
from specsim.engine import replay  # noqa: E402
from specsim.latency import LatencyModel  # noqa: E402
from specsim.online import OnlineController  # noqa: E402
from specsim.schema import TraceMeta  # noqa: E402
from specsim.trace import read_trace, write_trace  # noqa: E402
from tests.real_fastdllm import BLOCK, block_drafter, denoise, quiet_target, twin_model  # noqa: E402
from tests.real_law import FixedClock, controller_of, one_thread  # noqa: E402, F401 - one_thread is a fixture
from tests.real_tiny import prompt_ids  # noqa: E402

TOKENS, LONGEST, THRESHOLD = 40, 14, 0.3
MODEL = quiet_target()
TWIN = twin_model(MODEL)
LATENCY = LatencyModel.affine(c_s=0.01, b_s=1.0, draft_pass_s=0.1)


def drafter() -> Any:
    return block_drafter(TWIN, threshold=THRESHOLD, max_draft_len=LONGEST)


@pytest.fixture(scope="module")
def rows() -> Any:
    return record_request(
        MODEL,
        proposer_of(drafter()),
        prompt_ids(1, 21),
        max_new_tokens=TOKENS,
        max_draft_len=LONGEST,
        stop_ids=(),
    )


def test_rows_are_fresh_drafts_pass_by_pass(rows: Any) -> None:
    text = [*prompt_ids(1, 21).tolist(), *rows.output.tolist()]
    assert len(rows.draft_s) == len(rows.pass_count)
    assert (rows.draft_s > 0).all()
    for pos in range(TOKENS):
        begin, m = rows.offsets[pos], rows.offsets[pos + 1] - rows.offsets[pos]
        assert m == min(LONGEST, TOKENS - pos - 1)
        length = 21 + pos
        expected = denoise(TWIN, text[:length], m, threshold=THRESHOLD, free_first=False)
        assert rows.tokens[begin : begin + m].tolist() == expected.tokens[:m]
        np.testing.assert_allclose(rows.q[begin : begin + m], expected.q[:m], rtol=2e-4)
        own = slice(rows.pass_offsets[pos], rows.pass_offsets[pos + 1])
        assert rows.pass_filled[own].tolist() == [min(filled, m) for _, filled in expected.passes]
        assert rows.pass_count[own].tolist() == [len(confidences) for confidences, _ in expected.passes]
        recorded = rows.pass_conf[rows.conf_offsets[pos] : rows.conf_offsets[pos + 1]]
        np.testing.assert_allclose(recorded, [c for confidences, _ in expected.passes for c in confidences], rtol=2e-4)
    assert any(length % BLOCK == 0 for length in range(21, 21 + TOKENS))


@pytest.mark.parametrize(
    "spelling",
    [
        "static:length=5",
        "libraspec:block=3,max=14",
        "failfast:chunk=3",
        "failfast-repo:chunk=3",
        "failfast-repo:chunk=9,tau=0.1",
        "g4",
    ],
)
@pytest.mark.parametrize("block", [3, 5])
def test_replay_takes_the_rounds_of_a_run(rows: Any, spelling: str, block: int, tmp_path: Any) -> None:
    """Every network pass included: a replay charges what the live drafter made for a draft of that length."""
    made = block_drafter(TWIN, threshold=THRESHOLD, max_draft_len=LONGEST, block=block)
    meta = TraceMeta(block_len=block, max_draft_len=LONGEST, exact=True, prefix_closed=True)
    write_trace(tmp_path / "trace.parquet", meta, *to_chunks([rows]))
    meta, chunk = read_trace(tmp_path / "trace.parquet")
    found = replay(meta, [chunk], LATENCY, [spelling], keep_rounds=True).rounds[0]
    controller = controller_of(spelling, made, c_s=0.01, pass_s=0.1)
    online = OnlineController(controller, compiled=True)
    decoded = decode(
        Target(MODEL), made, online, prompt_ids(1, 21), Settings(max_new_tokens=TOKENS), clock=FixedClock()
    )
    for column in ("pos", "drafted_len", "submitted_len", "accepted_len", "draft_passes"):
        assert found[column].tolist() == [getattr(row, column) for row in decoded.rounds], column
    assert [row.forward_passes for row in decoded.rounds] == [row.draft_passes for row in decoded.rounds]
    passes, blocks = found["draft_passes"], -(-found["drafted_len"] // block)
    assert (passes > blocks).any()
    np.testing.assert_allclose(found["draft_s"], 0.1 * passes)
