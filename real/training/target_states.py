"""What a frozen target says about texts: the features a drafter reads, and its own next tokens.

A text's row is computed alone, whatever batch it comes in, and kept in bfloat16: so a resumed run, whose memory is
empty, sees the same numbers. On one CPU core this memory more than doubles the speed of training a one-layer drafter.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from real.target import hidden_states
from real.training.texts import Text


@dataclass(frozen=True, kw_only=True)
class Known:
    """Texts and what the target says about them, padded to the longest at the right.

    Args:
        ids: int64[B, T].
        lengths: int64[B], tokens of each text.
        prompt_lens: int64[B].
        greedy: int64[B, T], the target's likeliest token after each one.
        features: bfloat16[B, T, F], hidden states after the chosen layers side by side.
        last: bfloat16[B, T, H], what the target's head reads.
    """

    ids: torch.Tensor
    lengths: torch.Tensor
    prompt_lens: torch.Tensor
    greedy: torch.Tensor
    features: torch.Tensor
    last: torch.Tensor

    def agreed(self) -> torch.Tensor:
        """bool[B, T]: whether each token is what the target would have chosen there; True for the first one."""
        same = self.ids[:, 1:] == self.greedy[:, :-1]
        return torch.cat([torch.ones_like(same[:, :1]), same], dim=1)


class TargetStates:
    """Asks the target, and remembers.

    Args:
        model: the target's model.
        layers: 0-based decoder layers whose output the drafter reads; may be none.
        memory_gb: most that is remembered; what comes later is computed every time.
    """

    def __init__(self, model: Any, layers: Sequence[int], memory_gb: float) -> None:
        self._model, self._layers, self._room = model, tuple(layers), memory_gb * 1e9
        self._kept: dict[int, tuple[torch.Tensor, torch.Tensor, torch.Tensor]] = {}

    def of(self, numbers: Sequence[int], texts: Sequence[Text]) -> Known:
        """What is known about texts, which have a number each."""
        found = [self._one(number, text) for number, text in zip(numbers, texts, strict=True)]
        device = found[0][0].device
        ids = [torch.from_numpy(text.tokens).long() for text in texts]
        greedy, features, last = (_padded([row[part] for row in found]) for part in range(3))
        return Known(
            ids=_padded(ids).to(device),
            lengths=torch.tensor([len(text.tokens) for text in texts], device=device),
            prompt_lens=torch.tensor([text.prompt_len for text in texts], device=device),
            greedy=greedy.long(),
            features=features,
            last=last,
        )

    @torch.no_grad()
    def _one(self, number: int, text: Text) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        if number in self._kept:
            return self._kept[number]
        device = next(self._model.parameters()).device
        ids = torch.from_numpy(text.tokens).long().to(device)
        with torch.autocast(device.type, enabled=False), hidden_states(self._model, self._layers) as states:
            last = self._model.base_model(input_ids=ids[None], use_cache=False).last_hidden_state[0]
            greedy = self._model.get_output_embeddings()(last).argmax(dim=-1).int()
        parts = [states[layer][0] for layer in self._layers] or [last[:, :0]]
        row = greedy, torch.cat(parts, dim=-1).bfloat16(), last.bfloat16()
        size = sum(part.numel() * part.itemsize for part in row)
        if size <= self._room:
            self._room -= size
            self._kept[number] = row
        return row


def _padded(rows: Sequence[torch.Tensor]) -> torch.Tensor:
    return torch.nn.utils.rnn.pad_sequence(list(rows), batch_first=True)
