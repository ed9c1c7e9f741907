"""Fast-dLLM drafts at every position of a text: the live drafter itself, one position after the other.

Every row is a round that finds the blocks of the text before the last one in the cache, and nothing that an earlier
draft wrote. A live round finds more only when it begins exactly at the end of a block that the round before had filled
with its draft and got wrong nowhere though it submitted less: then it makes one pass fewer.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from time import perf_counter
from typing import Any

import numpy as np
import torch

from real.branches import Drafts
from real.drafters.fastdllm import FastDLLMDrafter
from real.draws import KeyedDraws
from specsim.passes import PassRecord


@dataclass(frozen=True, kw_only=True)
class PassDrafts(Drafts):
    """Drafts and what the passes behind them recorded.

    Args:
        records: of each row, B of them; a row without a draft has no pass.
        seconds: of each row's passes.
    """

    records: Sequence[PassRecord]
    seconds: Sequence[Sequence[float]]

    def columns(self) -> dict[str, Any]:
        """The fields of `real.record.RequestRows` for them."""
        passes = [len(record.count) for record in self.records]
        confidences = [len(record.conf) for record in self.records]
        return {
            "pass_offsets": np.concatenate([[0], np.cumsum(passes)]).astype(np.int64),
            "pass_count": np.concatenate([record.count for record in self.records]),
            "pass_filled": np.concatenate([record.filled for record in self.records]),
            "conf_offsets": np.concatenate([[0], np.cumsum(confidences)]).astype(np.int64),
            "pass_conf": np.concatenate([record.conf for record in self.records]),
            "draft_s": np.array([second for row in self.seconds for second in row], np.float32),
        }


class FastDLLMProposer:
    """What a Fast-dLLM drafter would propose at every position (`real.record.Proposer`).

    Args:
        drafter: the live drafter.
    """

    def __init__(self, drafter: FastDLLMDrafter) -> None:
        self._drafter = drafter

    def propose(self, text: torch.Tensor, prompt_len: int, lens: torch.Tensor) -> PassDrafts:
        drafter, tokens = self._drafter, text.tolist()
        # No draw is ever made: drafts are chosen.
        drafter.start(text[:prompt_len], len(text) + drafter.max_draft_len + 1, KeyedDraws(0, 0), ())
        rows: list[tuple[torch.Tensor, torch.Tensor, list[float]]] = []
        records: list[PassRecord] = []
        seconds: list[list[float]] = []
        for pos, longest in enumerate(lens.tolist()):
            taken: list[float] = []
            # A first token that is known without a pass would leave a row of one token without any.
            while drafter.filled < min(longest, drafter.room) or (longest and drafter.room and not taken):
                started = perf_counter()
                drafter.refine(0, -1)
                taken.append(perf_counter() - started)
            draft = drafter.propose(longest, -1)
            rows.append((draft.tokens, draft.q, drafter.entropies(len(draft.tokens))))
            records.append(drafter.record().within(len(draft.tokens)))
            seconds.append(taken)
            drafter.rewind()
            drafter.commit(tokens[prompt_len + pos : prompt_len + pos + 1])
        found = Drafts.empty(lens.new_tensor([len(drafted) for drafted, _, _ in rows]))
        for row, (drafted, q, entropy) in enumerate(rows):
            found.tokens[row, : len(drafted)], found.q[row, : len(drafted)] = drafted, q
            found.entropy[row, : len(drafted)] = torch.tensor(entropy, device=text.device)
        return PassDrafts(**vars(found), records=records, seconds=seconds)
