"""Decodes of which every token is known beforehand: scripted targets, drafters that are right where they should be."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch

from real.drafters.base import Drafter
from real.draws import Draws
from real.loop import Decoded, Settings, decode
from real.target import Target
from real.verify import Draft, Processor
from specsim.controllers import Setting, build
from specsim.latency import LatencyModel
from specsim.online import OnlineController
from tests.real_law import FixedClock, Scripted

VOCABULARY, STOP = 7, 6
LATENCY = LatencyModel.affine(c_s=0.3, b_s=1.0, draft_pass_s=0.02)
LENGTH_CONTROLLERS = (
    *(
        "plain",
        "static:length=3",
        "g4",
        "hf-heuristic",
        "threshold",
        "failfast:chunk=3",
        "specdecpp",
        "libraspec:block=4",
    ),
    *("goodput", "corrected", "lambda", "banditspec-ucb"),
)


def scripted(seed: int, *, window: int | None = None, stop: bool = True) -> Scripted:
    """A model whose choice after every text is its own; the last token is its end of text, rarely or never chosen."""

    def logits(context: tuple[int, ...]) -> np.ndarray:
        own = np.random.default_rng([seed, *context]).normal(size=VOCABULARY)
        own[STOP] -= 0.5 if stop else 99.0
        return own

    return Scripted(VOCABULARY, logits, window)


def choice(model: Scripted, text: Sequence[int]) -> int:
    return int(np.argmax(model._row(tuple(text))))


class Pattern(Drafter):
    """A drafter that is right where it is told to be.

    Args:
        model: the target.
        right: whether the draft token for an output position is the target's choice.
        q: the confidence reported for it.
        max_draft_len, block_len: as for any drafter.
    """

    name = "pattern"

    def __init__(
        self,
        model: Scripted,
        right: Callable[[int], bool],
        *,
        q: Callable[[int], float] = lambda pos: 0.7,
        max_draft_len: int = 8,
        block_len: int = 1,
    ) -> None:
        self._model, self._right, self._q = model, right, q
        self.max_draft_len, self.block_len = max_draft_len, block_len

    def start(self, prompt: torch.Tensor, capacity: int, draws: Draws, processors: Sequence[Processor]) -> None:
        self._text, self._prompt_len = prompt.tolist(), len(prompt)
        self._draft: list[int] = []

    def propose(self, count: int, arm: int) -> Draft:
        already = len(self._draft)
        for _ in range(already, count):
            text = self._text + self._draft
            token = choice(self._model, text)
            self._draft.append(token if self._right(len(text) - self._prompt_len) else (token + 1) % STOP)
        first = len(self._text) - self._prompt_len
        q = [self._q(first + place) for place in range(len(self._draft))]
        return Draft(torch.tensor(self._draft, dtype=torch.int64), torch.tensor(q))

    def commit(self, tokens: Sequence[int]) -> None:
        self._text += tokens
        self._draft = []


class Witness(OnlineController):
    """A controller that notes what it is told, and sees rounds take as long as its latency model says."""

    def __init__(self, *args, latency: LatencyModel, **options) -> None:
        super().__init__(*args, **options)
        self.latency = latency
        self.told: list[int] = []

    def update(self, accepted: int, round_s: float) -> None:
        self.told.append(accepted)
        _, drafted, submitted = self._round
        super().update(accepted, self.latency.draft_s(drafted, drafted) + self.latency.verify_s(submitted + 1))


def run(
    model: Scripted, drafter, spelling: str, prompt: Sequence[int], asked: Settings
) -> tuple[Decoded, Witness, list[int]]:
    """The decode, its controller, and the tokens as they were announced."""
    setting = Setting(block_len=drafter.block_len, max_draft_len=drafter.max_draft_len, latency=LATENCY)
    online = Witness(build(spelling, setting), latency=LATENCY, compiled=False)
    announced: list[int] = []
    decoded = decode(
        Target(model),
        drafter,
        online,
        torch.tensor(prompt),
        asked,
        clock=FixedClock(),
        on_round=lambda row, tokens: announced.extend(tokens),
    )
    return decoded, online, announced
