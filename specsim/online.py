"""The same controller, one round at a time: what a live decode loop calls.

Wraps the very functions the batch kernel is compiled from (state with one lane), counts rounds, range-checks what comes
back, and pickles. It holds no rule of its own.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from specsim.controllers import Controller
from specsim.errors import ConfigError
from specsim.jit import uncompiled
from specsim.kernel import CONTROLLER_STREAM
from specsim.passes import PassRecord
from specsim.rng import uniform_stream


class OnlineController:
    """One lane of a controller.

    Per round call `begin`, then `revise` after each time tokens were drafted, then `update`:

        arm, want = online.begin(pos, ctx_len)
        while want > drafted and more:           # draft; `more` tells whether the drafter could go on
            submit, want = online.revise(q, more)
        online.update(accepted, round_s)

    Rules that read the passes themselves (`Controller.judge`) are given their record too, and may be `undecided` with
    as many tokens as they want so far: then one more pass is due.

    Args:
        controller: the controller.
        seed: key of its randomness.
        compiled: False runs the functions as plain Python.
    """

    def __init__(self, controller: Controller, *, seed: int = 0, compiled: bool = True) -> None:
        self.controller, self.seed, self._compiled = controller, seed, compiled
        self._bind()
        self._state = controller.fresh_state()
        self._request = 0
        self._round, self._place = (-1, 0, 0), (0, 0, 0.0)  # arm, drafted, submitted; pos, ctx_len, u
        self._judging = self.undecided = False

    def _bind(self) -> None:
        functions = (self.controller.begin, self.controller.revise, self.controller.update)
        self._begin, self._revise, self._update = functions if self._compiled else (uncompiled(f) for f in functions)

    def __getstate__(self) -> dict[str, object]:
        return {k: v for k, v in self.__dict__.items() if k not in ("_begin", "_revise", "_update")}

    def __setstate__(self, state: dict[str, object]) -> None:
        self.__dict__.update(state)
        self._bind()

    def start_request(self, request: int) -> None:
        """Begin a request: clears the state of controllers that keep none between requests."""
        self._request = request
        if self.controller.per_request:
            self._state = self.controller.fresh_state()

    def begin(self, pos: int, ctx_len: int, hint: int = -1) -> tuple[int, int]:
        """Start a round.

        Args:
            pos: output tokens committed so far.
            ctx_len: prompt length + pos.
            hint: for privileged controllers, see `Controller`; for those with a plan, the length of the round where it
                is known beforehand, else `revise` has to be given the passes.

        Returns:
            (arm, tokens to draft first; 0 is a plain round).

        Raises:
            ConfigError: the controller wants a negative number of tokens, or none while its judge waits for a pass.
        """
        persistent = self.controller.initial.size
        self._state[:, persistent : persistent + self.controller.scratch] = 0.0
        u = (
            float(uniform_stream(self.seed, CONTROLLER_STREAM, self._request, pos, 0))
            if self.controller.random
            else 0.0
        )
        judge = self.controller.judge if hint < 0 else None
        self._judging, self.undecided = judge is not None, False
        if judge is not None:
            hint, self.undecided = judge(PassRecord.nothing())
        arm, want = self._begin(self.controller.params, self._state, 0, pos, ctx_len, u, hint)
        if want < 0:
            raise self._refusal("begin", f"want={want}", ">= 0")
        if self.undecided and not want:
            raise self._refusal("begin", "want=0 while its judge waits for a pass", "want >= 1")
        self._round, self._place = (int(arm), 0, 0), (pos, ctx_len, u)
        return int(arm), int(want)

    def revise(self, q: NDArray[np.floating], more: bool, passes: PassRecord | None = None) -> tuple[int, int]:
        """Decide after drafting.

        Args:
            q: confidences of all tokens drafted in this round, float[drafted].
            more: whether the drafter could still go on in this round.
            passes: what the round's passes recorded; needed by controllers with a `judge` whose round began without a
                hint.

        Returns:
            (tokens to submit, tokens wanted in all); more than drafted asks for more.

        Raises:
            ConfigError: submit is not in 0..drafted, or no passes where they are needed.
        """
        drafted = len(q)
        if self.controller.judge is not None and self._judging:
            if passes is None:
                raise ConfigError(
                    f"controller {self.controller.name!r} judges the drafter's passes, of which it was told nothing"
                )
            # The plan as far as it is known takes the place of the one before.
            hint, self.undecided = self.controller.judge(passes)
            self._begin(self.controller.params, self._state, 0, *self._place, hint)
        submit, want = self._revise(self.controller.params, self._state, 0, q, drafted, more)
        if not 0 <= submit <= drafted or want < 0:
            raise self._refusal("revise", f"submit={submit}, want={want}", f"0 <= submit <= {drafted}, want >= 0")
        self._round = (self._round[0], drafted, int(submit))
        return int(submit), int(want)

    def update(self, accepted: int, round_s: float) -> None:
        """Feedback after verification.

        Args:
            accepted: draft tokens accepted, 0..submitted.
            round_s: the round's wall time in seconds.

        Raises:
            ConfigError: accepted is not in 0..submitted.
        """
        arm, drafted, submitted = self._round
        if not 0 <= accepted <= submitted:
            raise self._refusal("update", f"accepted={accepted}", f"0..{submitted}, what was submitted")
        self._update(self.controller.params, self._state, 0, arm, drafted, submitted, accepted, round_s)

    def update_all(self, accepted: Sequence[int], round_s: Sequence[float], draft_len: int) -> None:
        """Feedback on every arm, for controllers with full information.

        Args:
            accepted: tokens each arm's draft would have had accepted in this round, length K.
            round_s: seconds the round would have taken with each arm, length K.
            draft_len: tokens each arm drafts.
        """
        for arm, (tokens, seconds) in enumerate(zip(accepted, round_s, strict=True)):
            self.feed(arm, tokens, seconds, draft_len)

    def feed(self, arm: int, accepted: float, round_s: float, draft_len: int) -> None:
        """Feedback on one arm as it is, without the checks of `update`: scripted rewards need not be token counts."""
        self._update(self.controller.params, self._state, 0, arm, draft_len, draft_len, accepted, round_s)

    def _refusal(self, call: str, found: str, allowed: str) -> ConfigError:
        return ConfigError(f"controller {self.controller.name!r}: {call} gave {found}; allowed: {allowed}")
