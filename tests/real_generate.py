"""What the tests of `real.generate` share: prompts, both outputs, a streamer, tokenizers."""

from __future__ import annotations

import torch

import real
from specsim.controllers import Setting
from specsim.latency import LatencyModel
from tests.real_tiny import prompt_ids

LATENCY = LatencyModel.affine(c_s=0.001, b_s=0.02, draft_pass_s=0.001)
SETTING = Setting(block_len=1, max_draft_len=24, latency=LATENCY)


def padded_batch() -> tuple[torch.Tensor, torch.Tensor]:
    """Three prompts of 12, 8 and 11 tokens, padded on the left, and their mask."""
    ids = torch.stack([prompt_ids(seed) for seed in (3, 4, 5)])
    mask = torch.ones_like(ids)
    for row, pads in enumerate((0, 4, 1)):
        ids[row, :pads], mask[row, :pads] = 0, 0
    return ids, mask


def one(seed: int = 3, n: int = 12) -> dict[str, torch.Tensor]:
    ids = prompt_ids(seed, n)[None]
    return {"input_ids": ids, "attention_mask": torch.ones_like(ids)}


def both(model, drafter, controller: str, inputs: dict, **arguments) -> tuple[torch.Tensor, torch.Tensor]:
    """The library's output and ours."""
    expected = model.generate(**inputs, **arguments)
    return expected, real.generate(model, inputs, drafter=drafter, controller=controller, **arguments)


class Collect:
    """A streamer that keeps what it is given."""

    def __init__(self) -> None:
        self.pieces: list[list[int]] = []
        self.ended = 0

    def put(self, tokens: torch.Tensor) -> None:
        self.pieces.append(tokens.flatten().tolist())

    def end(self) -> None:
        self.ended += 1


class Words:
    """A tokenizer of the tokens it is given, one per word."""

    def __init__(self, tokens: dict[str, int], *, lower: bool = False) -> None:
        self._tokens, self._lower = tokens, lower

    def get_vocab(self) -> dict[str, int]:
        return self._tokens

    def __call__(self, text: str) -> dict[str, list[int]]:
        text = text.lower() if self._lower else text
        return {"input_ids": [3 + ord(letter) % 61 for letter in text]}


TOKENS = {f"t{number}": number for number in range(64)}


def rounds_of(decoded) -> list[tuple[int, int, int]]:
    return [(row.drafted_len, row.submitted_len, row.accepted_len) for row in decoded.rounds]
