"""Controllers of arms live on a text that grows: fading observations follow costs that change with it."""

from __future__ import annotations

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="real/ needs the extra 'real'")

from real.loop import Settings, decode  # noqa: E402
from real.session import build_for  # noqa: E402
from real.target import Target  # noqa: E402
from real.verify import Draft  # noqa: E402
from specsim.controllers.bandit_core import COSTS, PULLS  # noqa: E402
from specsim.online import OnlineController  # noqa: E402
from tests.real_law import one_thread  # noqa: E402, F401 - one_thread is a fixture
from tests.real_scripted import LATENCY, Pattern, scripted  # noqa: E402

DRAFT_LEN, TOKENS, CROSSING = 3, 240, 100
PROMPT = [1, 2, 3]


class Growing(Pattern):
    """Arm 0 is right about three tokens and its rounds get dearer with the text, arm 1 about one for the same price.

    It is its own clock. Arm 0 yields 4 tokens in 1 + length / 100 seconds, arm 1 2 tokens in one: the better one is arm
    0 up to a text of 100 tokens.
    """

    arm_costs, arm_draft_len = (1.0, 0.5), DRAFT_LEN

    def __init__(self) -> None:
        model = scripted(1, stop=False)
        super().__init__(model, lambda pos: self._next < (DRAFT_LEN, 1)[self.arm], max_draft_len=DRAFT_LEN)
        self.model, self.arm, self._next = model, -1, 0

    def propose(self, count: int, arm: int) -> Draft:
        self.arm = arm
        while len(self._draft) < count:
            self._next = len(self._draft)
            draft = super().propose(len(self._draft) + 1, arm)
        return draft

    def cost_s(self) -> float:
        return 1.0 + (len(self._text) / 100 if self.arm == 0 else 0.0)

    def enter(self) -> None: ...

    def leave(self, stage: str) -> None:
        self._now = self.cost_s()

    def read(self) -> tuple[float, float, float]:
        return 0.0, 0.0, self._now


class Clock:
    """The drafter's."""

    def __init__(self, drafter: Growing) -> None:
        self.enter, self.leave, self.read = drafter.enter, drafter.leave, drafter.read

    def start(self) -> None: ...


def switched(spelling: str) -> tuple[int, float]:
    """Text from which on arm 1 is played in most rounds; arm 0's mean cost, as remembered, over its last true one."""
    drafter = Growing()
    online = OnlineController(build_for(spelling, drafter, LATENCY), compiled=False)
    asked = Settings(max_new_tokens=TOKENS)
    found = decode(Target(drafter.model), drafter, online, torch.tensor(PROMPT), asked, clock=Clock(drafter))
    played = np.array([row.arm for row in found.rounds[:-1]])
    assert set(played) == {0, 1}
    where = next(k for k in range(len(played)) if played[k : k + 8].mean() > 0.75)
    last = [row for row in found.rounds if row.arm == 0][-1]
    state, arms = online._state[0], 2
    return found.rounds[where].ctx_len, state[COSTS * arms] / state[PULLS * arms] / last.round_s


def test_tracked_costs_follow_the_text_and_summed_ones_lag() -> None:
    tracked_at, tracked_cost = switched("sp2ec:beta=0,track=ewma,halflife=6")
    summed_at, summed_cost = switched("sp2ec:beta=0,reset=0")
    assert CROSSING <= tracked_at < CROSSING + 50 < summed_at
    assert 0.8 < tracked_cost <= 1.0
    assert summed_cost < 0.75
