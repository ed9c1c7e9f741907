"""One prompt, every controller, in an order drawn anew for each prompt.

Owns the order of a comparison: all controllers share the machine's drifts, and none always goes first. Plain decoding
takes part like any other, except that it goes first where its output is the others' reference.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import torch

from real.folder import Request, Run
from real.loop import Decoded, Round, Settings, decode
from real.reference import ASSISTED, LIVE, Reference
from real.session import Session
from real.vision.prompt import VisionPrompt
from specsim.controllers import Controller
from specsim.online import OnlineController

PLAIN = "plain"
WARMUP_TOKENS = 8
OnRound = Callable[[str, Round], None]


class Comparison:
    """Controllers over prompts, interleaved.

    Args:
        session: target and drafter.
        controllers: (spelling, controller) in the order of tables; `plain` uses no drafter.
        settings: of every decode.
        verification: `live`, or `reference-assisted` by plain decoding's output, which then has to be among them
            (`real.reference`).

    Attributes:
        lanes: the controllers with what they have learned, by spelling.
    """

    def __init__(
        self,
        session: Session,
        controllers: Sequence[tuple[str, Controller]],
        settings: Settings,
        *,
        verification: str = LIVE,
    ) -> None:
        self.session, self.settings, self._assisted = session, settings, verification == ASSISTED
        self.lanes = {
            spelling: OnlineController(controller, seed=settings.seed) for spelling, controller in controllers
        }

    def warm_up(self, prompt: torch.Tensor | VisionPrompt) -> tuple[Run, ...]:
        """A few tokens with every controller before anything counts, by copies that learn nothing from it."""
        short = replace(self.settings, max_new_tokens=min(WARMUP_TOKENS, self.settings.max_new_tokens))
        twins = [(name, OnlineController(lane.controller, seed=lane.seed)) for name, lane in self.lanes.items()]
        found = self._decode_all(twins, prompt, short, 0)
        return tuple(Run(controller=spelling, decoded=decoded, warmup=True) for spelling, decoded in found)

    def run(
        self,
        number: int,
        id: str,
        prompt: torch.Tensor | VisionPrompt,
        on_round: OnRound = lambda name, row: None,
    ) -> Request:
        """Decode one prompt with every controller.

        Args:
            number: of the prompt; with the seed, the key of the order and of all randomness.
            id: of the prompt in its dataset.
            prompt: int64[P] on the target's device, or with pictures.
            on_round: called after every round with the controller's spelling.
        """
        order = list(self.lanes.items())
        np.random.default_rng([self.settings.seed, number]).shuffle(order)
        found = self._decode_all(order, prompt, self.settings, number, on_round)
        runs = tuple(Run(controller=spelling, decoded=decoded) for spelling, decoded in found)
        return Request(number=number, id=id, runs=runs)

    def _decode_all(
        self,
        order: Sequence[tuple[str, OnlineController]],
        prompt: torch.Tensor | VisionPrompt,
        settings: Settings,
        number: int,
        on_round: OnRound = lambda name, row: None,
    ) -> list[tuple[str, Decoded]]:
        """One decode after the other, in this order but for a reference's, which comes first."""
        text: list[int] | None = None
        found = []
        for spelling, lane in sorted(order, key=lambda one: self._assisted and one[0] != PLAIN):
            reference = None if text is None else Reference(text)
            decoded = self._decode(spelling, lane, prompt, settings, number, on_round, reference)
            if self._assisted and spelling == PLAIN:
                text = decoded.output
            found.append((spelling, decoded))
        return found

    def _decode(
        self,
        spelling: str,
        lane: OnlineController,
        prompt: torch.Tensor | VisionPrompt,
        settings: Settings,
        number: int,
        on_round: OnRound,
        reference: Reference | None,
    ) -> Decoded:
        drafter = self.session.plain if lane.controller.name == PLAIN else self.session.drafter
        return decode(
            self.session.target,
            drafter,
            lane,
            prompt,
            settings,
            request=number,
            reference=reference,
            on_round=lambda row, tokens: on_round(spelling, row),
        )
