"""Progress on standard error: a bar on a terminal, a line per prompt anywhere else."""

from __future__ import annotations

from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer
from rich.console import Console

from real.folder import Request
from real.lightning.data import PromptData
from real.lightning.module import DecodeModule
from real.progress import Steps
from real.results import best_of, results_of, sums_of


class ProgressLines(Callback):
    """Shows how far a run is; of several processes, the first one shows its own share.

    Args:
        console: where; default standard error.
    """

    def __init__(self, console: Console | None = None) -> None:
        self.console = console or Console(stderr=True)
        self._steps: Steps | None = None

    def on_test_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        data = trainer.datamodule  # pyright: ignore[reportAttributeAccessIssue]
        if trainer.is_global_zero and isinstance(data, PromptData):
            what = "prompts" if trainer.world_size == 1 else f"prompts of process 0 of {trainer.world_size}"
            self._steps = Steps(self.console, what, len(data.share()))
            self._steps.__enter__()

    def on_test_batch_end(
        self,
        trainer: Trainer,
        pl_module: LightningModule,
        outputs: Any,
        batch: Any,
        batch_idx: int,
        dataloader_idx: int = 0,
    ) -> None:
        assert isinstance(pl_module, DecodeModule)
        if self._steps is not None:
            for request in outputs:
                self._steps.done(_line(request, pl_module.controllers))

    def on_test_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._stop()

    # Prediction shows the same.
    on_predict_start = on_test_start
    on_predict_batch_end = on_test_batch_end
    on_predict_end = on_test_end

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        self._stop()

    def _stop(self) -> None:
        if self._steps is not None:
            self._steps.__exit__(None, None, None)
            self._steps = None


def _line(request: Request, controllers: list[str]) -> str:
    results = results_of(sums_of(request, controllers), controllers)
    best, seconds = best_of(results), sum(result.decode_s for result in results)
    text = f"{request.id}: {results[0].tokens} tokens, {len(results)} controllers in {seconds:.1f} s"
    return text if best is None else f"{text}, fastest {best.label} {best.speedup:.2f}x"
