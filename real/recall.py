"""What controllers had learned when a run was interrupted, learned again from the rounds that were kept.

Owns the way from recorded rounds back into a controller: it is told the same numbers in the same order as when they
were decoded, so that its state comes out the same. Nothing is decoded.
"""

from __future__ import annotations

from real.folder import Request
from real.interleave import Comparison
from real.loop import Round
from specsim.kernel import served
from specsim.online import OnlineController


def recall(comparison: Comparison, request: Request) -> None:
    """Tell every controller that learns over prompts what happened on a kept one.

    Args:
        comparison: its controllers; those that begin every prompt anew are left alone.
        request: one prompt's runs, in the order of the original run.
    """
    block_len = comparison.session.drafter.block_len
    for run in request.runs:
        lane = comparison.lanes[run.controller]
        if run.warmup or lane.controller.per_request:
            continue
        lane.start_request(request.number)
        for row in run.decoded.rounds:
            _tell(lane, row, block_len)


def _tell(lane: OnlineController, row: Round, block_len: int) -> None:
    """One round again: the calls of `real.loop`, with recorded confidences in place of a drafter's."""
    _, want = lane.begin(row.pos, row.ctx_len)
    for number in range(row.draft_passes):
        is_last = number == row.draft_passes - 1
        # Before the last pass the drafter gave all it was asked for and could go on, else there was no later pass.
        drafted = row.drafted_len if is_last else served(want, row.drafted_len, block_len)
        if drafted:
            more = not is_last or drafted < row.available_len
            _, want = lane.revise(row.q[:drafted], more)
    lane.update(row.accepted_len, row.round_s)
