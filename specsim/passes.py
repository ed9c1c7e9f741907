"""What the denoising passes of one draft recorded: the live form of a trace's columns `schema.PASS_COLUMNS`."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, eq=False)
class PassRecord:
    """The passes a drafter made in one round so far.

    Args:
        conf: float32[C] confidences of all passes, pass after pass.
        count: int16[P] confidences each pass recorded; 0 for a pass that judged no token, such as one that only writes
            a cache.
        filled: int16[P] leading draft positions filled after each pass.
    """

    conf: NDArray[np.float32]
    count: NDArray[np.int16]
    filled: NDArray[np.int16]

    def within(self, length: int) -> PassRecord:
        """The same of a draft that is cut after `length` tokens."""
        return replace(self, filled=np.minimum(self.filled, length).astype(np.int16))

    @staticmethod
    def nothing() -> PassRecord:
        """No pass yet."""
        return PassRecord(np.zeros(0, np.float32), np.zeros(0, np.int16), np.zeros(0, np.int16))
