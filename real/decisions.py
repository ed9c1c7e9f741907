"""A controller as the decode loop calls it, and the time that its functions take on the host.

Owns the measurement, no rule: `specsim.online` runs the controller. A controller is told of a round when its time has
been read, so that what that takes counts in the next round.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from real.clock import Stopwatch
from specsim.online import OnlineController
from specsim.passes import PassRecord


class Decisions:
    """The calls of one request.

    Args:
        controller: its request has been started.

    Attributes:
        watch: the seconds in its functions.
    """

    def __init__(self, controller: OnlineController) -> None:
        self._controller, self.watch = controller, Stopwatch()

    @property
    def undecided(self) -> bool:
        """As the controller's."""
        return self._controller.undecided

    def begin(self, pos: int, ctx_len: int) -> tuple[int, int]:
        """As `OnlineController.begin`."""
        with self.watch:
            return self._controller.begin(pos, ctx_len)

    def revise(self, q: npt.NDArray[np.float32], more: bool, passes: PassRecord | None) -> tuple[int, int]:
        """As `OnlineController.revise`."""
        with self.watch:
            return self._controller.revise(q, more, passes)

    def update(self, accepted: int, cost_s: float) -> None:
        """As `OnlineController.update`."""
        with self.watch:
            self._controller.update(accepted, cost_s)
