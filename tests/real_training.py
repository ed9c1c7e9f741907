"""Whole runs of `python -m real.train` on tiny models, for the tests of real/training."""

from __future__ import annotations

import json
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from real.continuations import write_texts
from real.models import load_target
from real.train import main
from real.training.keep import Keeper
from real.training.texts import Text, write_shard
from specsim.errors import run_cli
from tests.real_tiny import save_tiny

LENGTH = 48
# Lightning 2.6 with torch 2.13, with jsonargparse 4.53, and with a Trainer that validates on a process's only thread.
THIRD_PARTY_WARNINGS = (
    "ignore:.*LeafSpec.*:FutureWarning",
    "ignore::jsonargparse._deprecated.JsonargparseDeprecationWarning",
    "ignore:.*does not have many workers.*",
)


def train(*args: str) -> int:
    """Exit status of `python -m real.train fit ARGS`, run in this process."""
    before, threads = sys.argv, torch.get_num_threads()
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        with pytest.raises(SystemExit) as leaving:
            run_cli(main, ["fit", "--trainer.accelerator", "cpu", *args])
    finally:
        sys.argv = before
        torch.set_num_threads(threads)
        for number, handler in handlers.items():
            signal.signal(number, handler)
    code = leaving.value.code
    return code if isinstance(code, int) else 0 if code is None else 1


def curves(out: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (out / "curves.jsonl").read_text().splitlines()]


def make_texts(folder: Path, *, layers: int = 4) -> tuple[Path, Path]:
    """(a tiny target, texts it wrote): 12 to train on, half of them greedy, and 4 of these to check by.

    A random model's texts have nothing in common, so that a drafter can only learn them by heart.
    """
    target = save_tiny(folder / "target", layers=layers)
    loaded = load_target(str(target), device="cpu")
    rng = np.random.default_rng(0)
    all_beginnings = [rng.integers(3, 60, size=8).tolist() for _ in range(12)]
    for number, held_out in ((0, False), (1, True)):
        beginnings = all_beginnings[:8:2] if held_out else all_beginnings
        greedy = np.ones(4, dtype=bool) if held_out else np.arange(12) % 2 == 0
        made = write_texts(
            loaded, beginnings, length=LENGTH, temperature=0.8, greedy=greedy, seed=number, held_out=held_out
        )
        (folder / "texts").mkdir(exist_ok=True)
        write_shard(folder / "texts", number, made)
    return target, folder / "texts"


def same_texts(first: list[Text], second: list[Text]) -> bool:
    return len(first) == len(second) and all(
        np.array_equal(one.tokens, two.tokens)
        and (one.prompt_len, one.greedy, one.held_out) == (two.prompt_len, two.greedy, two.held_out)
        for one, two in zip(first, second, strict=True)
    )


def _ctrl_c() -> None:
    raise KeyboardInterrupt


@contextmanager
def interrupted_at(step: int, by: Callable[[], None] = _ctrl_c) -> Iterator[None]:
    """Trainings within are interrupted when the callback that keeps checkpoints has seen this step."""
    note = Keeper.on_train_batch_end

    def interrupted(self: Keeper, trainer: Any, *rest: Any) -> None:
        note(self, trainer, *rest)
        if trainer.global_step == step:
            by()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Keeper, "on_train_batch_end", interrupted)
        yield
