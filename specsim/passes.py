"""What the denoising passes of one draft recorded: the live form of a trace's columns `schema.PASS_COLUMNS`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from specsim.errors import ConfigError
from specsim.latency import LatencyModel
from specsim.schema import is_nonnegative

PASSES_PER_BLOCK: Final = "passes_per_block"
"""Key of a latency model's provenance, and of a trace's metadata, of drafters that fill a block in several passes."""


def passes_per_block(facts: Mapping[str, Any]) -> float:
    """Mean passes behind a block of `block_len` tokens, for rules that weigh what a block will cost; 1 where not said.

    What a draft is charged never rests on it: rounds count their own passes.

    Args:
        facts: provenance of a latency model, with what a trace adds to it (`with_passes`).

    Raises:
        ConfigError: not a finite number >= 0.
    """
    value = facts.get(PASSES_PER_BLOCK, 1.0)
    if not is_nonnegative(value):
        raise ConfigError(
            f"{PASSES_PER_BLOCK} is {value!r} in the latency model's provenance or, where that does not say, in the "
            "trace's metadata; allowed: a finite number >= 0; calibrate or record again, or leave it out"
        )
    return float(value)


def with_passes(latency: LatencyModel, facts: Mapping[str, Any]) -> LatencyModel:
    """A latency model with the passes per block that a trace's metadata tells of, where it does not say itself."""
    if PASSES_PER_BLOCK in latency.provenance or PASSES_PER_BLOCK not in facts:
        return latency
    return replace(latency, provenance={**latency.provenance, PASSES_PER_BLOCK: facts[PASSES_PER_BLOCK]})


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
