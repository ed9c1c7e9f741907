"""FailFast as its repository runs it for diffusion drafters: lengths from what each denoising pass recorded.

The rule reads columns of the trace that the round loop does not carry (`schema.PASS_COLUMNS`), so each row's length is
worked out before the loop (`Controller.plan`) and reaches it as the hint. In a live round the same function judges the
passes made so far (`Controller.judge`).
"""

from __future__ import annotations

from functools import partial
from typing import Any, NamedTuple

import numpy as np

from specsim.chunk import TraceChunk
from specsim.controllers.base import Controller, ControllerSpec, Param, Plan, Setting, length_param
from specsim.controllers.oracles import HintParams, begin_hint, revise_hint
from specsim.controllers.schedules import no_update
from specsim.errors import ConfigError
from specsim.jit import jit
from specsim.passes import PassRecord

REFINE, EXTEND, STOP_LOW, STOP_ENOUGH = range(4)


class FailFastRepoParams(NamedTuple):
    chunk: int
    tau: float
    max: int


@jit
def draft_window(conf, count, filled, params):
    """Run the rule over the passes of one row. A pass that recorded nothing decides nothing.

    Args:
        conf: float32[C], confidences of all passes, pass after pass.
        count: int16[P], confidences each pass recorded.
        filled: int16[P], leading draft positions filled after each pass.
        params: `FailFastRepoParams`.

    Returns:
        (length of the window, the last decision: REFINE, EXTEND or one of the STOPs, after which passes are ignored,
        number of passes that were looked at).
    """
    length, decision = params.chunk, REFINE
    recorded, low = 0, False
    for k in range(count.size):
        last = recorded + int(count[k])
        for i in range(recorded, last):
            if float(conf[i]) < params.tau:
                low = True
        recorded = last
        if count[k] == 0:  # the published loop decides after denoising passes only, not when it writes a full block
            continue
        if filled[k] < length:
            decision = REFINE
        elif low:
            return length, STOP_LOW, k + 1
        elif recorded >= params.max:
            return length, STOP_ENOUGH, k + 1
        else:
            length += params.chunk
            decision = EXTEND
    return length, decision, count.size


@jit
def draft_windows(pass_offsets, conf_offsets, conf, count, filled, params):
    """int32[R, 2]: the window of every row, and the number of passes it takes to know it."""
    found = np.empty((pass_offsets.size - 1, 2), np.int32)
    for row in range(len(found)):
        a, b = pass_offsets[row], pass_offsets[row + 1]
        row_conf = conf[conf_offsets[row] : conf_offsets[row + 1]]
        found[row, 0], _, found[row, 1] = draft_window(row_conf, count[a:b], filled[a:b], params)
    return found


def plan_windows(chunk: TraceChunk, params: FailFastRepoParams) -> Plan:
    """The length of each row of a chunk, not cut at what the row holds, and the passes the rule waits for.

    Raises:
        ConfigError: a row with draft tokens has no pass.
    """
    offsets = chunk.pass_offsets
    if offsets is None or ((np.diff(offsets) == 0) & (chunk.lengths > 0)).any():
        raise ConfigError(
            "controllers failfast-repo decide on the confidences of denoising passes, but column 'pass_conf' is "
            "missing or has null rows; record pass_conf, pass_count and pass_filled (docs/formats.md), or choose "
            "failfast, which needs q alone"
        )
    found = draft_windows(offsets, chunk.conf_offsets, chunk.pass_conf, chunk.pass_count, chunk.pass_filled, params)
    return Plan(np.ascontiguousarray(found[:, 0]), found[:, 1])


def judge_passes(record: PassRecord, params: FailFastRepoParams) -> tuple[int, bool]:
    """The window after the passes of a round so far, and whether the rule waits for another one."""
    length, decision, _ = draft_window(record.conf, record.count, record.filled, params)
    return int(length), decision in (REFINE, EXTEND)


def _build(values: dict[str, Any], setting: Setting) -> Controller:
    params = FailFastRepoParams(values["chunk"], values["tau"], values["max"])
    return Controller(
        name="failfast-repo",
        config=values,
        params=HintParams(0),
        begin=begin_hint,
        revise=revise_hint,
        update=no_update,
        scratch=1,
        plan=partial(plan_windows, params=params),
        judge=partial(judge_passes, params=params),
    )


SPECS = (
    ControllerSpec(
        name="failfast-repo",
        params={
            "chunk": length_param(10, low=1, doc="tokens added at a time"),
            "tau": Param(
                kind=float, default=0.45, low=0.0, high=1.0, doc="confidence below which growth ends for good"
            ),
            "max": length_param(60, doc="number of recorded confidences at which growth ends; no bound on the length"),
        },
        build=_build,
        doc="FailFast as released for diffusion drafters: chunks, judged by all confidences of all denoising passes",
    ),
)
