"""The counterfactual recorder: what would happen if a round started at every position of a response.

Owns the proposals of a drafter at every position of a plainly decoded response, and the target's verdict on them. The
response is decoded by `real.loop`. Knows nothing about files, command lines or timing.

Under greedy verification the committed text does not depend on the controller. So one row per position, with a draft
as long as allowed, replays every length controller exactly.

A sampled response is one draw of the target's. A drafted token is its next token with the target's probability of that
token, which is also the chance that speculative sampling accepts it (drafts chosen by a fixed rule), and after a
rejection the response goes on with a token of the right law. So a replay of such a trace is one draw of what any length
controller would go through, though not the draw that a run with other random numbers makes.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import torch

from real.branches import SLOT_LIMIT, BranchRunner, Drafts, draft_everywhere, leading_matches, score_branches
from real.drafters.base import Drafter, NoDrafter
from real.drafters.ddtree import DepthTrees, NodeTrees
from real.drafters.ddtree_record import TreeDrafts, TreeProposer, target_ranks
from real.drafters.dflash import DFlashDrafter
from real.drafters.dflash_everywhere import DFlashProposer
from real.drafters.eagle3 import Eagle3Chain, Eagle3Tree
from real.drafters.eagle3_record import Eagle3Proposer
from real.drafters.fastdllm import FastDLLMDrafter
from real.drafters.fastdllm_record import FastDLLMProposer, PassDrafts
from real.drafters.model import ModelDrafter
from real.drafters.prompt_lookup import MAX_NGRAM_LEN, PromptLookupDrafter, lookup
from real.drafters.selfspec import SelfDrafter
from real.drafters.selfspec_record import ArmsRecorder
from real.loop import Settings, decode
from real.session import ANY_LATENCY
from real.target import Target
from real.vision.prompt import VisionPrompt, ids_of, seen_of
from specsim.controllers import Setting, build
from specsim.errors import ConfigError
from specsim.online import OnlineController

Int64Array = npt.NDArray[np.int64]
Float32Array = npt.NDArray[np.float32]


class Proposer(Protocol):
    """What the recorder asks of a drafter. A proposal may depend on the committed text only."""

    def propose(self, text: torch.Tensor, prompt_len: int, lens: torch.Tensor) -> Drafts:
        """Drafts at every output position.

        Args:
            text: int64[prompt_len + n] prompt and the whole response; a draft at position pos may look at
                `text[: prompt_len + pos]` only.
            prompt_len: tokens of the prompt.
            lens: int64[n] longest draft allowed at each position; the drafts may be shorter.
        """
        ...


class ModelProposer:
    """Drafts greedily with a model; q and entropy are that model's.

    Args:
        model: causal language model that drafts (`real.drafters`).
        width: ids the target knows; None: those of the drafter.
    """

    def __init__(self, model: Any, *, width: int | None = None) -> None:
        self.model, self.width = model, width

    def propose(self, text: torch.Tensor, prompt_len: int, lens: torch.Tensor) -> Drafts:
        runner = BranchRunner(self.model, text, first=prompt_len - 1, slots=SLOT_LIMIT, width=self.width)
        return draft_everywhere(runner, _starts(prompt_len, lens), lens)


class PromptLookupProposer:
    """Copies what followed the last tokens earlier. A point mass: q = 1 and entropy = 0 everywhere.

    Rules that look at the drafter's confidence see no information in such a trace.

    Args:
        max_ngram_len: longest n-gram searched.
        stop_ids: tokens never proposed.
    """

    def __init__(self, *, max_ngram_len: int = MAX_NGRAM_LEN, stop_ids: Collection[int] = ()) -> None:
        self.max_ngram_len, self.stop_ids = max_ngram_len, frozenset(stop_ids)

    def propose(self, text: torch.Tensor, prompt_len: int, lens: torch.Tensor) -> Drafts:
        context = text.tolist()
        found = [
            lookup(context[: prompt_len + pos], max_len, max_ngram_len=self.max_ngram_len, stop_ids=self.stop_ids)
            for pos, max_len in enumerate(lens.tolist())
        ]
        drafts = Drafts.empty(torch.tensor([len(tokens) for tokens in found], dtype=torch.int64, device=text.device))
        for row, tokens in enumerate(found):
            drafts.tokens[row, : len(tokens)] = torch.tensor(tokens, dtype=torch.int64, device=text.device)
            drafts.q[row, : len(tokens)] = 1.0
        return drafts


def proposer_of(drafter: Drafter) -> Proposer | ArmsRecorder:
    """What a drafter of the decode loop would propose at every position.

    Raises:
        ConfigError: a drafter that proposes nothing, draws its tokens, or makes drafts that no trace can hold.
    """
    if isinstance(drafter, ModelDrafter) and not drafter.samples:
        return ModelProposer(drafter.model, width=drafter.width)
    if isinstance(drafter, DFlashDrafter) and not drafter.samples:
        return DFlashProposer(drafter)
    if isinstance(drafter, Eagle3Chain) and not drafter.samples:
        return Eagle3Proposer(drafter.net, drafter.model)
    if isinstance(drafter, NodeTrees):
        return TreeProposer(drafter)
    if isinstance(drafter, DepthTrees):
        raise ConfigError(
            f"drafter {drafter.name!r}: how much of a tree is accepted that is limited in depth is in no trace; record "
            "limit=nodes, whose trace replays trees by their number of nodes, or compare controllers live (real.run)"
        )
    if isinstance(drafter, Eagle3Tree):
        raise ConfigError(
            f"drafter {drafter.name!r}: a tree whose distributions depend on the path is in no trace; record the chain "
            "(eagle3:path=.. without tree), or compare controllers live (real.run)"
        )
    if isinstance(drafter, SelfDrafter):
        return ArmsRecorder(drafter)
    if isinstance(drafter, FastDLLMDrafter):
        return FastDLLMProposer(drafter)
    if isinstance(drafter, PromptLookupDrafter):
        return PromptLookupProposer(max_ngram_len=drafter.max_ngram_len, stop_ids=drafter.stop_ids)
    raise ConfigError(f"drafter {drafter.name!r}: there is nothing to record; choose one that drafts, and greedily")


@dataclass(frozen=True, kw_only=True)
class RequestRows:
    """The trace rows of one response of n tokens, in flat arrays (N = sum of draft lengths over the n rows).

    Args:
        prompt_len: tokens of the prompt.
        output: int64[n] response token ids, the end-of-text token included when it was produced.
        offsets: int64[n + 1]; row pos owns entries offsets[pos]..offsets[pos + 1].
        tokens: int64[N] proposed token ids.
        q, p, accept_prob, entropy: float32[N], as in the trace format.
        accept_len: int16[n].
        mismatches: output positions where a teacher-forced pass disagrees with the recorded token.
        topk_q: float32[N, k] probabilities of the likeliest tokens of a tree's positions, descending; k = 0: no trees.
        target_rank: int16[N] rank of the text's token among them, or -1, of trees (`real.drafters.ddtree_record`).
        pass_offsets, pass_count, pass_filled, conf_offsets, pass_conf, draft_s: as in `specsim.chunk.TraceChunk`, all
            with pass_offsets; empty where the drafter does not report its passes.
        arm_accept_len, arm_draft_s: int16[n, K] and float32[n, K] as in `specsim.chunk.TraceChunk`; K = 0: no arms.
            With arms the offsets are those of their draft length, N is 0, and accept_len the best arm's.
    """

    prompt_len: int
    output: Int64Array
    offsets: Int64Array
    tokens: Int64Array
    q: Float32Array
    p: Float32Array
    accept_prob: Float32Array
    entropy: Float32Array
    accept_len: npt.NDArray[np.int16]
    mismatches: int
    topk_q: Float32Array = field(default_factory=lambda: np.zeros((0, 0), np.float32))
    target_rank: npt.NDArray[np.int16] = field(default_factory=lambda: np.zeros(0, np.int16))
    pass_offsets: Int64Array = field(default_factory=lambda: np.zeros(0, np.int64))
    pass_count: npt.NDArray[np.int16] = field(default_factory=lambda: np.zeros(0, np.int16))
    pass_filled: npt.NDArray[np.int16] = field(default_factory=lambda: np.zeros(0, np.int16))
    conf_offsets: Int64Array = field(default_factory=lambda: np.zeros(0, np.int64))
    pass_conf: Float32Array = field(default_factory=lambda: np.zeros(0, np.float32))
    draft_s: Float32Array = field(default_factory=lambda: np.zeros(0, np.float32))
    arm_accept_len: npt.NDArray[np.int16] = field(default_factory=lambda: np.zeros((0, 0), np.int16))
    arm_draft_s: Float32Array = field(default_factory=lambda: np.zeros((0, 0), np.float32))


def decode_plain(
    model: Any,
    prompt: torch.Tensor | VisionPrompt,
    max_new_tokens: int,
    stop_ids: Collection[int],
    *,
    sampled: tuple[int, int] | None = None,
) -> list[int]:
    """Plain decoding, one token per forward pass, in the decode loop: the reference text.

    Args:
        model: causal language model.
        prompt: int64[P], P >= 1, or with pictures.
        max_new_tokens: longest response.
        stop_ids: end-of-text tokens; the one produced is part of the response.
        sampled: seed and number of the request, to sample at temperature 1; None: greedy.
    """
    plain = build("plain", Setting(block_len=1, max_draft_len=1, latency=ANY_LATENCY))
    seed, request = sampled or (0, 0)
    settings = Settings(max_new_tokens=max_new_tokens, stop_ids=tuple(stop_ids), sample=sampled is not None, seed=seed)
    return decode(Target(model), NoDrafter(), OnlineController(plain), prompt, settings, request=request).output


@torch.inference_mode()
def record_request(
    target: Any,
    proposer: Proposer | ArmsRecorder,
    prompt: torch.Tensor | VisionPrompt,
    *,
    max_new_tokens: int,
    max_draft_len: int,
    stop_ids: Collection[int],
    sampled: tuple[int, int] | None = None,
    log: Callable[[str], None] = lambda line: None,
) -> RequestRows:
    """Decode one response plainly, then try the drafter at every position of it.

    Row pos: the drafter sees the prompt and `pos` output tokens; its token i (1-based) is compared with output token
    pos + i - 1. The draft length m is at most `max_draft_len` and n - pos - 1, the tokens left after this position.
    Positions of trees are not cut there (`real.drafters.ddtree_record`), nor are drafts of arms, of which the seconds
    are wanted; no more tokens count as accepted than are left.

    Args:
        target: causal language model; the comparison is exact only in float32.
        proposer: the drafter.
        prompt: int64[P], P >= 1, on the target's device, or with pictures; a drafter with weights of its own is given
            the ids alone, as when decoding.
        max_new_tokens: longest response.
        max_draft_len: longest draft.
        stop_ids: end-of-text tokens.
        sampled: as for `decode_plain`.
        log: receives one line per mismatch of a greedy response, with its place and logit gap.
    """
    output = decode_plain(target, prompt, max_new_tokens, stop_ids, sampled=sampled)
    ids = ids_of(prompt)
    text = torch.cat([ids, ids.new_tensor(output)])
    n, prompt_len = len(output), len(ids)
    if isinstance(proposer, ArmsRecorder):
        return _arm_rows(target, proposer, prompt, text, log=None if sampled else log)
    left = n - 1 - torch.arange(n, device=ids.device)
    longest = left.clamp(max=max_draft_len)
    if isinstance(proposer, TreeProposer):
        # The decode loop asks for no draft only where the last token is all that fits.
        longest = torch.where(torch.arange(n, device=ids.device) < max_new_tokens - 1, max_draft_len, 0)
    drafts = proposer.propose(text, prompt_len, longest)
    runner = BranchRunner(target, text, first=prompt_len - 1, slots=SLOT_LIMIT, prompt=seen_of(prompt))
    mismatches = 0 if sampled else _check_text(runner.text_logits[:n], text[prompt_len:], log)
    starts = _starts(prompt_len, left)
    p, best = score_branches(runner, starts, drafts)
    accept_len = torch.minimum(leading_matches(text, starts, drafts), left)
    accepted = p if sampled else _verdict(accept_len, drafts, best)
    filled = _filled(drafts)

    def flat(values: torch.Tensor) -> Any:
        return values[filled].cpu().numpy()

    trees = {}
    if isinstance(drafts, TreeDrafts):
        ranks = target_ranks(drafts, text, starts)
        trees = {"topk_q": flat(drafts.top_q), "target_rank": flat(ranks).astype(np.int16)}
    return RequestRows(
        prompt_len=prompt_len,
        output=np.asarray(output, dtype=np.int64),
        offsets=np.concatenate([[0], np.cumsum(drafts.lens.cpu().numpy())]).astype(np.int64),
        tokens=flat(drafts.tokens),
        q=flat(drafts.q),
        p=flat(p),
        accept_prob=flat(accepted.float()),
        entropy=flat(drafts.entropy),
        accept_len=accept_len.cpu().numpy().astype(np.int16),
        mismatches=mismatches,
        **trees,
        **(drafts.columns() if isinstance(drafts, PassDrafts) else {}),
    )


def _arm_rows(
    target: Any,
    recorder: ArmsRecorder,
    prompt: torch.Tensor | VisionPrompt,
    text: torch.Tensor,
    *,
    log: Callable[[str], None] | None,
) -> RequestRows:
    """The rows of a text by arms; `log` as for `record_request`, None for a sampled text."""
    found, prompt_len = recorder.walk(prompt, text), len(prompt)
    n, arms, length = found.tokens.shape
    left = n - 1 - torch.arange(n, device=text.device)
    starts, mismatches = _starts(prompt_len, left), 0
    if log is not None:
        whole = BranchRunner(target, text, first=prompt_len - 1, slots=0, prompt=seen_of(prompt))
        mismatches = _check_text(whole.text_logits[:n], text[prompt_len:], log)
    accepted = torch.zeros(n, arms, dtype=torch.int64)
    for arm in range(arms):
        drafts = replace(Drafts.empty(torch.full_like(left, length)), tokens=found.tokens[:, arm])
        accepted[:, arm] = torch.minimum(leading_matches(text, starts, drafts), left).cpu()
    nothing = np.zeros(0, np.float32)
    return RequestRows(
        prompt_len=prompt_len,
        output=text[prompt_len:].cpu().numpy(),
        offsets=np.arange(n + 1, dtype=np.int64) * length,
        tokens=np.zeros(0, np.int64),
        q=nothing,
        p=nothing,
        accept_prob=nothing,
        entropy=nothing,
        accept_len=accepted.amax(dim=1).numpy().astype(np.int16),
        mismatches=mismatches,
        arm_accept_len=accepted.numpy().astype(np.int16),
        arm_draft_s=found.draft_s.astype(np.float32),
    )


def _starts(prompt_len: int, lens: torch.Tensor) -> torch.Tensor:
    return prompt_len + torch.arange(len(lens), device=lens.device)


def _filled(drafts: Drafts) -> torch.Tensor:
    """bool[B, K]: entries that are not padding."""
    places = torch.arange(drafts.tokens.shape[1], device=drafts.lens.device)
    return places[None, :] < drafts.lens[:, None]


def _verdict(accept_len: torch.Tensor, drafts: Drafts, best: torch.Tensor) -> torch.Tensor:
    """bool[n, K]: draft token accepted given that all before it were.

    Up to a row's first rejection the branch is the recorded text, so the recorded token decides: a draft is accepted
    exactly where plain decoding would have produced it. After it only the target's choice on the branch exists.
    """
    places = torch.arange(drafts.tokens.shape[1], device=best.device)[None, :]
    beyond = (places > accept_len[:, None]) & _filled(drafts)
    return (places < accept_len[:, None]) | (beyond & (drafts.tokens == best))


def _check_text(logits: torch.Tensor, output: torch.Tensor, log: Callable[[str], None]) -> int:
    """Positions where the whole text in one pass (logits [n, vocabulary]) disagrees with one token at a time."""
    best = logits.argmax(dim=-1)
    wrong = torch.nonzero(best != output)[:, 0].tolist()
    for pos in wrong:
        gap = float(logits[pos, best[pos]] - logits[pos, output[pos]])
        log(f"output position {pos}: decoded {int(output[pos])}, one pass says {int(best[pos])}, logit gap {gap:.2e}")
    return len(wrong)
