"""Work that process 0 does for all processes of a Trainer."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from lightning.pytorch import Trainer

from specsim.errors import ConfigError

T = TypeVar("T")


def from_zero(trainer: Trainer, call: Callable[[], T]) -> T:
    """What `call` returns in process 0, in every process; the others wait.

    Raises:
        ConfigError: in every process, when process 0's call raised one. Alone it would leave the others waiting.
    """
    result, refusal = None, None
    if trainer.is_global_zero:
        try:
            result = call()
        except ConfigError as error:
            refusal = str(error)
    result, refusal = trainer.strategy.broadcast((result, refusal))
    if refusal is not None:
        raise ConfigError(refusal)
    return result  # pyright: ignore[reportReturnType] - None only together with a refusal
