"""What every training here has in common: the optimizer, its schedule, and what is logged."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

from lightning.pytorch import LightningModule

from real.training.optimizer import MuonAdamW, rate
from real.training.ranges import LEARNING_RATE, NATURAL, check_ranges
from specsim.controllers.base import Param
from specsim.errors import ConfigError


class TrainModule(LightningModule):
    """A module trained for a fixed number of steps.

    A subclass logs `train/loss` and its validation metrics, and writes its result with `export`.

    Args:
        muon_lr: learning rate of matrices.
        adam_lr: of embeddings, norms and all else.
        warmup_steps: in which the rates rise from 0.

    Attributes:
        ALLOWED: values of the arguments; a subclass adds its own.
    """

    ALLOWED: ClassVar[Mapping[str, Param]] = {
        "muon_lr": LEARNING_RATE,
        "adam_lr": LEARNING_RATE,
        "warmup_steps": NATURAL,
    }

    def __init__(self, muon_lr: float = 0.02, adam_lr: float = 0.003, warmup_steps: int = 100) -> None:
        super().__init__()
        self.muon_lr, self.adam_lr, self.warmup_steps = muon_lr, adam_lr, warmup_steps

    @classmethod
    def check(cls, given: Mapping[str, Any]) -> None:
        """Refuse arguments before a module is made, which may take long.

        Raises:
            ConfigError: a value out of range.
        """
        check_ranges("model.", cls.ALLOWED, given)
        heads, kv_heads = given.get("heads"), given.get("kv_heads")
        if heads and kv_heads and heads % kv_heads:
            raise ConfigError(f"model.kv_heads={kv_heads}: allowed is a divisor of model.heads, {heads}")

    def export(self, folder: Path) -> None:
        """Write what was trained into an empty folder."""
        raise NotImplementedError

    def about(self) -> dict[str, str]:
        """Facts for the card beside the weights; `title`, `data` and `model` at least."""
        raise NotImplementedError

    def configure_optimizers(self) -> MuonAdamW:
        named = [(name, parameter) for name, parameter in self.named_parameters() if parameter.requires_grad]
        matrices = [parameter for name, parameter in named if parameter.ndim == 2 and not _looked_up(name)]
        others = [parameter for name, parameter in named if parameter.ndim != 2 or _looked_up(name)]
        return MuonAdamW(
            [
                {"params": matrices, "kind": "muon", "lr": self.muon_lr, "full_lr": self.muon_lr},
                {"params": others, "kind": "adamw", "lr": self.adam_lr, "full_lr": self.adam_lr},
            ]
        )

    def on_train_batch_start(self, batch: Any, batch_idx: int) -> None:
        share = rate(self.global_step, warmup=self.warmup_steps, total=self.trainer.max_steps)
        for optimizer in self.trainer.optimizers:
            for group in optimizer.param_groups:
                group["lr"] = group["full_lr"] * share
        self.log("train/rate", share)


def _looked_up(name: str) -> bool:
    """Whether a matrix has a row per token: such are trained by AdamW."""
    return "embed" in name or "lm_head" in name
