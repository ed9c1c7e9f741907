"""Golden-vector handler of FailFast's length rule for diffusion drafters: the case's passes become trace columns.

A case says only whether the window was filled after a pass, so `pass_filled` reaches exactly that window, or stays one
short of it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from specsim.chunk import TraceChunk, offsets_of
from specsim.controllers.failfast_repo import (
    EXTEND,
    REFINE,
    STOP_ENOUGH,
    STOP_LOW,
    FailFastRepoParams,
    draft_window,
)
from specsim.engine import replay
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
        length, decision = draft_window(columns.pass_conf, columns.pass_count, columns.pass_filled, params)
        decisions.append({"decision": NAMES[decision], "draft_length": length})
    yield "decisions", decisions, case["expected"]["decisions"]
    m = length + chunk  # more than the rule may submit
    meta = TraceMeta(max_draft_len=m, coverage="every-round")
    spelling = f"failfast-repo:chunk={chunk},tau={tau},max={most}"
    rounds = replay(meta, [chunk_of(done, m)], affine(), [spelling], keep_rounds=True).rounds[0]
    yield "final_draft_length", rounds["submitted_len"].tolist(), [case["expected"]["final_draft_length"]]


HANDLERS: dict[tuple[str, str], Callable[[Case], Checks]] = {("failfast", "diffusion_length_rule"): diffusion_rule}
