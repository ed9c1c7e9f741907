"""What the golden-vector handlers share: types, the controllers, and one round of drafting. Restates no rule."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from specsim.controllers import REGISTRY, Controller, Setting
from specsim.kernel import served
from specsim.latency import LatencyModel
from specsim.online import OnlineController

Case = dict[str, Any]
Checks = Iterator[tuple[str, Any, Any]]  # (what, got, want)


class NotCovered(Exception):
    """The case checks something this project does not have; the text says what."""


def affine(c_s: float = 0.0, b_s: float = 1.0) -> LatencyModel:
    return LatencyModel.from_dict(
        {"schema": "specsim.latency/1", "verify": {"form": "affine", "c_s": c_s, "b_s": b_s}}, where="vectors"
    )


def controller(name: str, *, max_draft_len: int, block_len: int = 1, **params: Any) -> Controller:
    setting = Setting(block_len=block_len, max_draft_len=max_draft_len, latency=affine())
    return REGISTRY[name].resolve(params, setting)


def draft(online: OnlineController, q: np.ndarray, pos: int = 0) -> tuple[int, list[int]]:
    """One round up to verification, token by token from `q`: (submitted, sizes of the pieces drafted)."""
    _, want = online.begin(pos, pos)
    drafted = submit = 0
    sizes = []
    while want > drafted and drafted < len(q):
        sizes.append(served(want, len(q), 1) - drafted)
        drafted += sizes[-1]
        submit, want = online.revise(q[:drafted], drafted < len(q))
    return submit, sizes
