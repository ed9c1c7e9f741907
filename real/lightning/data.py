"""Prompts as a Lightning data module: chosen by seed, shared out over processes, without those already decoded.

Owns which process decodes which prompt: process r of w takes the prompts r, r + w, r + 2w, ... of the chosen ones. A
Trainer's own sampler would pad the shares with repeated prompts, so batches come from a plain iterable, which it leaves
alone.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from lightning.pytorch import LightningDataModule

from real.data import Prompt, choose, load_prompts
from specsim.errors import ConfigError


@dataclass(frozen=True)
class Task:
    """A prompt and its number in the run."""

    number: int
    prompt: Prompt


Batch = tuple[Task, ...]


class Batches:
    """One prompt a batch; a single empty batch when there is none.

    A Trainer without batches calls no hooks, and the other processes would wait for this one in theirs.
    """

    def __init__(self, tasks: Sequence[Task]) -> None:
        self._batches: list[Batch] = [(task,) for task in tasks] or [()]

    def __len__(self) -> int:
        return len(self._batches)

    def __iter__(self) -> Iterator[Batch]:
        return iter(self._batches)


class PromptData(LightningDataModule):
    """Prompts of a dataset.

    Args:
        dataset: `humaneval`, `open-ended`, `lab`, a JSONL file with `prompt`, `turns` or `question`, with or without
            pictures, `hub:NAME[:config=...,split=...,column=...]` or `video-mme:frames=FOLDER` and the like (see
            `real.data.load_prompts`).
        requests: prompts, drawn by seed; all when not given.
        seed: of the draw.

    Attributes:
        prompts: the chosen ones, in the dataset's order; their index is their number. Set by `setup`.
        kept: numbers that need no decoding.
    """

    def __init__(self, dataset: str = "humaneval", requests: int | None = None, seed: int = 0) -> None:
        super().__init__()
        self.dataset, self.requests, self.seed = dataset, requests, seed
        self.prompts: list[Prompt] = []
        self.kept: set[int] = set()

    def setup(self, stage: str) -> None:
        """Load and choose.

        Raises:
            ConfigError: an unknown or unreadable dataset, or fewer prompts than wanted.
        """
        found = load_prompts(self.dataset)
        wanted = len(found) if self.requests is None else self.requests
        if not 1 <= wanted <= len(found):
            raise ConfigError(f"data.requests {wanted}: {self.dataset} has {len(found)} prompts; allowed: 1 to that")
        self.prompts = choose(found, wanted, self.seed)

    def digest(self) -> str:
        """sha256 of the chosen prompts, ids, texts and what pictures hold."""
        found = [
            (prompt.id, prompt.text, *([] if prompt.pictures is None else [prompt.pictures.digest()]))
            for prompt in self.prompts
        ]
        return hashlib.sha256(repr(found).encode()).hexdigest()

    def share(self) -> list[Task]:
        """What this process still has to decode."""
        rank, world = (0, 1) if self.trainer is None else (self.trainer.global_rank, self.trainer.world_size)
        tasks = [Task(number, prompt) for number, prompt in enumerate(self.prompts)][rank::world]
        return [task for task in tasks if task.number not in self.kept]

    def test_dataloader(self) -> Batches:
        """This process's share, one prompt a batch."""
        return Batches(self.share())

    def predict_dataloader(self) -> Batches:
        """The same as for testing."""
        return self.test_dataloader()

    def transfer_batch_to_device(self, batch: Batch, device: torch.device, dataloader_idx: int) -> Batch:
        """Batches hold texts and names of files; nothing to move."""
        return batch
