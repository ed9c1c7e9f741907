"""What controllers had learned when a run was interrupted, learned again from the rounds that were kept.

Owns the way from recorded rounds back into a controller: shadow replay, which tells it the same numbers in the same
order as when they were decoded, so that its state comes out the same, and notices when it does not. Nothing is decoded.
"""

from __future__ import annotations

from real.folder import Request
from real.interleave import Comparison
from real.shadow import shadow
from specsim.errors import ConfigError


def recall(comparison: Comparison, request: Request) -> None:
    """Tell every controller that learns over prompts what happened on a kept one.

    Args:
        comparison: its controllers; those that begin every prompt anew are left alone.
        request: one prompt's runs, in the order of the original run.

    Raises:
        ConfigError: a controller decides otherwise than it did.
    """
    drafter = comparison.session.drafter
    for run in request.runs:
        lane = comparison.lanes[run.controller]
        if run.warmup or lane.controller.per_request:
            continue
        difference = shadow(
            lane.controller,
            [(request.number, run.decoded.rounds)],
            block_len=drafter.block_len,
            max_draft_len=drafter.max_draft_len,
            seed=lane.seed,
            state=lane._state,  # replayed in place
        )
        if difference is not None:
            raise ConfigError(
                f"{run.controller} cannot go on where it stopped ({difference}); the code or the kept prompts have "
                "changed since; start again in another folder, or replace this one (--force; real.run: --record.force)"
            )
