"""Golden-vector handler of FailFast's length rule for diffusion drafters: the case's passes become trace columns.

A case says only whether the window was filled after a pass, so `pass_filled` reaches exactly that window, or stays one
short of it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from specsim.chunk import TraceChunk, offsets_of
from specsim.controllers import Setting, build
from specsim.controllers.failfast_repo import (
    EXTEND,
    REFINE,
    STOP_ENOUGH,
    STOP_LOW,
    FailFastRepoParams,
    draft_window,
)
from specsim.engine import replay
from specsim.online import OnlineController
from specsim.passes import PassRecord
from specsim.schema import TraceMeta
from tests.vectors_tools import Case, Checks, NotCovered, affine

NAMES = {REFINE: "refine", EXTEND: "extend", STOP_LOW: "stop_low_confidence", STOP_ENOUGH: "stop_enough_recorded"}


def chunk_of(passes: list[tuple[list[float], int]], m: int) -> TraceChunk:
    """One row of m draft tokens with the confidences and the filled positions of each pass."""
    counts = [len(conf) for conf, _ in passes]
    return TraceChunk(
        request=np.zeros(1, np.int32),
        pos=np.zeros(1, np.int32),
        offsets=np.array([0, m], np.int64),
        accept_len=np.array([m], np.int16),
        pass_offsets=np.array([0, len(passes)], np.int64),
        pass_count=np.array(counts, np.int16),
        pass_filled=np.array([filled for _, filled in passes], np.int16),
        conf_offsets=offsets_of(np.array([sum(counts)])),
        pass_conf=np.array([value for conf, _ in passes for value in conf], np.float32),
    )


def diffusion_rule(case: Case) -> Checks:
    parameters = case["parameters"]
    chunk, tau, most = parameters["increment"], parameters["confidence_limit"], parameters["maximum"]
    if parameters["initial_length"] != chunk:
        raise NotCovered("a first length other than the increment: `chunk` is both here")
    params = FailFastRepoParams(chunk, tau, most)
    done: list[tuple[list[float], int]] = []
    decisions: list[dict[str, Any]] = []
    length = chunk
    for row in case["inputs"]["passes"]:
        filled = length if row["draft_window_fully_unmasked"] else max([length - 1, *(f for _, f in done)])
        done.append((row["confidences_recorded"], filled))
        columns = chunk_of(done, length)
        length, decision, _ = draft_window(columns.pass_conf, columns.pass_count, columns.pass_filled, params)
        decisions.append({"decision": NAMES[decision], "draft_length": length})
    yield "decisions", decisions, case["expected"]["decisions"]
    m = length + chunk  # more than the rule may submit
    meta = TraceMeta(max_draft_len=m, coverage="every-round")
    spelling = f"failfast-repo:chunk={chunk},tau={tau},max={most}"
    rounds = replay(meta, [chunk_of(done, m)], affine(), [spelling], keep_rounds=True).rounds[0]
    final = case["expected"]["final_draft_length"]
    yield "final_draft_length", rounds["submitted_len"].tolist(), [final]
    yield "live", live_round(done, spelling, m), (final, len(done))


def live_round(passes: list[tuple[list[float], int]], spelling: str, m: int) -> tuple[int, int]:
    """(tokens submitted, passes made) by a round of the decode loop whose drafter makes these passes."""
    online = OnlineController(build(spelling, Setting(block_len=1, max_draft_len=m, latency=affine())))
    made = drafted = submit = 0
    _, want = online.begin(0, 1)
    while (want > drafted or online.undecided) and made < len(passes):
        made += 1
        while passes[made - 1][1] < want and made < len(passes):
            made += 1
        drafted = min(want, passes[made - 1][1])
        chunk = chunk_of(passes[:made], m)
        assert chunk.pass_conf is not None
        assert chunk.pass_count is not None
        assert chunk.pass_filled is not None
        record = PassRecord(chunk.pass_conf, chunk.pass_count, chunk.pass_filled)
        submit, want = online.revise(np.ones(drafted, np.float32), True, record)
    return submit, made


HANDLERS: dict[tuple[str, str], Callable[[Case], Checks]] = {("failfast", "diffusion_length_rule"): diffusion_rule}
