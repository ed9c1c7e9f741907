"""Shadow replay: a real run's rounds fed back through the simulator's loop must give the same decisions.

Owns the way from logged rounds to rows of `specsim.kernel` and the comparison. The replay is told what the drafter
offered, the confidences, what was accepted and what each round cost (its seconds less construction); what to draft and
what to submit it has to find by itself. A difference means that loop and simulator do not run the same rule, or that
the log was changed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from real.folder import Request
from real.loop import Round
from specsim.chunk import offsets_of
from specsim.controllers import Controller
from specsim.kernel import run_chunk
from specsim.passes import PassRecord
from specsim.rows import Costs, Rows

COLUMNS = ("arm", "drafted_len", "submitted_len", "accepted_len", "emitted_len", "draft_passes")


@dataclass(frozen=True, kw_only=True)
class Difference:
    """The first round on which log and replay disagree.

    Args:
        request: number of the prompt.
        round: of the request, 0-based.
        column: what differs; `pos` when a round does not start where the one before ended.
        logged, replayed: the two values.
    """

    request: int
    round: int
    column: str
    logged: int
    replayed: int

    def __str__(self) -> str:
        return (
            f"request {self.request}, round {self.round}: {self.column} is {self.logged} in the log and "
            f"{self.replayed} in the replay"
        )


def shadow(
    controller: Controller,
    requests: Sequence[tuple[int, Sequence[Round]]],
    *,
    block_len: int,
    max_draft_len: int,
    seed: int,
    state: npt.NDArray[np.float64] | None = None,
    compiled: bool | None = None,
) -> Difference | None:
    """Replay one controller's rounds; None when every decision is the logged one.

    Args:
        controller: as it decoded.
        requests: (number, rounds) of whole requests, in the order they were decoded.
        block_len, max_draft_len: of the drafter.
        seed: of the run.
        state: float64[1, ...] to go on from, changed in place; default: a fresh one. Afterwards it holds what the
            controller has learned.
        compiled: False replays in plain Python; default: compiled where the controller is.
    """
    numbers = [number for number, rounds in requests for _ in rounds]
    logged = [row for _, rounds in requests for row in rounds]
    if not logged:
        return None
    run = run_chunk(
        controller,
        controller.fresh_state() if state is None else state,
        _rows(requests, numbers, logged)._replace(hint=np.array([_hint(controller, row) for row in logged], np.int32)),
        np.zeros(len(logged), np.int32),
        # Costs do not matter: every round brings its measured seconds.
        Costs(verify_s=np.zeros(max_draft_len + 2), ctx_s=0.0, pass_s=0.0, token_s=0.0, overhead_s=0.0),
        block_len=block_len,
        every_round=True,
        limit=max_draft_len,
        seed=seed,
        compiled=compiled,
    )
    expected_pos = 0
    for place, (number, row) in enumerate(zip(numbers, logged, strict=True)):
        start = 0 if row.round == 0 else expected_pos
        if row.pos != start:
            return Difference(request=number, round=row.round, column="pos", logged=row.pos, replayed=start)
        for column in COLUMNS:
            was, now = getattr(row, column), int(getattr(run.rounds, column)[place])
            # A search that finds nothing is a pass in reality; a row that offers nothing costs the simulator none.
            if was != now and (column != "draft_passes" or row.drafted_len > 0):
                return Difference(request=number, round=row.round, column=column, logged=was, replayed=now)
        expected_pos = row.pos + row.emitted_len
    return None


def shadow_run(
    controller: Controller,
    spelling: str,
    requests: Sequence[Request],
    *,
    block_len: int,
    max_draft_len: int,
    seed: int,
    compiled: bool | None = None,
) -> Difference | None:
    """`shadow` of one controller of a run folder, each lane by itself; warm-up is left out.

    Args:
        controller: as it decoded.
        spelling: its name in the folder.
        requests: of the folder, in order.
        block_len, max_draft_len, seed, compiled: as for `shadow`.
    """
    for lane in sorted({request.lane for request in requests}):
        decoded = [
            (request.number, run.decoded.rounds)
            for request in requests
            for run in request.runs
            if request.lane == lane and run.controller == spelling and not run.warmup
        ]
        found = shadow(
            controller, decoded, block_len=block_len, max_draft_len=max_draft_len, seed=seed, compiled=compiled
        )
        if found is not None:
            return found
    return None


def _hint(controller: Controller, row: Round) -> int:
    """What the simulator is told beforehand: the length by the passes of the round, for rules that judge those."""
    return -1 if controller.judge is None else controller.judge(row.record or PassRecord.nothing())[0]


def _rows(requests: Sequence[tuple[int, Sequence[Round]]], numbers: Sequence[int], logged: Sequence[Round]) -> Rows:
    """Rows of a log of rounds: as long as what the drafter could have offered, confidences it never gave being NaN."""

    def column(name: str, dtype: Any) -> npt.NDArray[Any]:
        return np.array([getattr(row, name) for row in logged], dtype)

    offered = [np.pad(row.q, (0, row.available_len - row.drafted_len), constant_values=np.nan) for row in logged]
    return Rows(
        starts=offsets_of(np.array([len(rounds) for _, rounds in requests if rounds])),
        request=np.array(numbers, np.int32),
        pos=column("pos", np.int32),
        ctx_len=column("ctx_len", np.int32),
        offsets=offsets_of(np.array([len(q) for q in offered])),
        q=np.concatenate(offered).astype(np.float32),
        accept_len=column("accepted_len", np.int16),
        hint=np.full(len(logged), -1, np.int32),
        arm_accept=np.zeros((len(logged), 0), np.int16),
        arm_draft_s=np.zeros((len(logged), 0)),
        measured_s=column("cost_s", np.float64),
        passes=np.concatenate([_passes(row) for row in logged]),
    )


def _passes(row: Round) -> npt.NDArray[np.int16]:
    """`Rows.passes` of a round: all that it made, as only its whole draft is asked for; -1 where none are reported."""
    told = -1 if row.record is None else row.draft_passes
    return np.full(row.available_len, told, np.int16)
