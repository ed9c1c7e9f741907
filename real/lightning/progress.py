"""Progress on standard error: a bar on a terminal, a line per prompt anywhere else."""

from __future__ import annotations

from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from real.folder import Request
from real.lightning.data import PromptData
from real.lightning.module import DecodeModule
from real.results import best_of, results_of, sums_of


class ProgressLines(Callback):
    """Shows how far a run is. With several processes, the lines of all of them and the bar of process 0.

    Args:
        console: where; default standard error.
    """

    def __init__(self, console: Console | None = None) -> None:
        self.console = console or Console(stderr=True)
        self._bar: Progress | None = None
        self._seen = self._total = 0

    def on_test_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        data = trainer.datamodule  # pyright: ignore[reportAttributeAccessIssue]
        self._seen, self._total = 0, len(data.share()) if isinstance(data, PromptData) else 0
        if self._total and self.console.is_terminal and trainer.is_global_zero:
            columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
            self._bar = Progress(*columns, TimeRemainingColumn(), console=self.console)
            self._bar.start()
            self._bar.add_task("prompts", total=self._total)

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
        for request in outputs:
            self._seen += 1
            if self._bar is not None:
                self._bar.advance(self._bar.task_ids[0])
            elif not self.console.is_terminal:
                process = f"process {trainer.global_rank}, " if trainer.world_size > 1 else ""
                text = f"{process}{self._seen}/{self._total} {_line(request, pl_module.controllers)}"
                self.console.print(text, markup=False, highlight=False, soft_wrap=True)

    def on_test_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._stop()

    # Prediction shows the same.
    on_predict_start = on_test_start
    on_predict_batch_end = on_test_batch_end
    on_predict_end = on_test_end

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        self._stop()

    def _stop(self) -> None:
        if self._bar is not None:
            self._bar.stop()
            self._bar = None


def _line(request: Request, controllers: list[str]) -> str:
    results = results_of(sums_of(request, controllers), controllers)
    best, seconds = best_of(results), sum(result.decode_s for result in results)
    text = f"{request.id}: {results[0].tokens} tokens, {len(results)} controllers in {seconds:.1f} s"
    return text if best is None else f"{text}, fastest {best.controller} {best.speedup:.2f}x"
