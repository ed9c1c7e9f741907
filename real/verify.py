"""Verification: which draft tokens the target accepts, and the token it adds. Pure tensor functions.

A draft is a chain or a tree (`Draft.parents`). What a tree's verification needs besides is in `real.tree`.

Greedy: a draft token is accepted when it is the target's own choice. Sampling: speculative sampling (Leviathan et al.
2023, Algorithm 1; Chen et al. 2023, Theorem 1): token x drafted from law q is accepted with probability
min(1, p(x)/q(x)); at the first rejection a token is drawn from max(p - q, 0), normalised; after full acceptance from p.
A drafter that chooses its token by a fixed rule has a point mass for q: acceptance p(x), and p without x after a
rejection. Either way the output's law is p's, whatever the drafter.

A verdict is int64[3] on the device: draft tokens accepted, the token that follows them, 1 when a number was not finite.
Nothing here reads a value back to the host: verification waits for the device once, in the loop's copy of that verdict.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol

import torch
from transformers.generation import logits_process

from real.draws import Draws
from specsim.passes import PassRecord

# Processors that treat every row alike, whatever tokens precede it; all others are asked row by row.
_ROWWISE = tuple(
    getattr(logits_process, name)
    for name in (
        "TemperatureLogitsWarper",
        "TopKLogitsWarper",
        "TopPLogitsWarper",
        "MinPLogitsWarper",
        "TypicalLogitsWarper",
        "EpsilonLogitsWarper",
        "EtaLogitsWarper",
        "InfNanRemoveLogitsProcessor",
        "LogitNormalization",
        "SuppressTokensLogitsProcessor",
    )
    if hasattr(logits_process, name)
)
Processor = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


class Draft(NamedTuple):
    """What a drafter proposes in one round, d tokens so far: a chain, or the nodes of a tree.

    Args:
        tokens: int64[d].
        q: float32[d]. Chain: the drafter's untempered softmax probability of each token. Tree: w_k / w_(k-1), w_k the
            probability of the path to node k, in descending order (w_0 = 1). Either way the first k numbers multiply to
            the probability of a path, and rules that read q work on both.
        law: float32[d, V], the distribution each token was drawn from, the same numbers that were drawn from; None when
            tokens were chosen by a fixed rule, as those of a tree always are.
        parents: int64[d] on the host, each node's parent among the tokens, always an earlier one; -1: the last
            committed token. Siblings differ. None: a chain.
        passes: network passes made for this round's draft; None: one for every `block_len` tokens.
        record: what each of those passes recorded, for rules that read it; None: the drafter does not report it.
    """

    tokens: torch.Tensor
    q: torch.Tensor
    law: torch.Tensor | None = None
    parents: torch.Tensor | None = None
    passes: int | None = None
    record: PassRecord | None = None

    @staticmethod
    def nothing(device: torch.device | str) -> Draft:
        """A draft of no tokens."""
        empty = torch.zeros(0, dtype=torch.int64, device=device)
        return Draft(empty, empty.float())

    def first(self, count: int) -> Draft:
        """What is verified when `count` tokens are submitted: the first ones."""
        return self._replace(
            tokens=self.tokens[:count],
            q=self.q[:count],
            law=None if self.law is None else self.law[:count],
            parents=None if self.parents is None else self.parents[:count],
        )

    def then(self, more: Draft) -> Draft:
        """This chain and another one after it; the number of passes is the later one's."""
        if not len(self.tokens):
            return more
        law = None if self.law is None or more.law is None else torch.cat([self.law, more.law])
        return Draft(torch.cat([self.tokens, more.tokens]), torch.cat([self.q, more.q]), law, passes=more.passes)


class Proposal(Protocol):
    """What the loop needs of a draft under way; a `Draft` is one. Others build what is verified when asked."""

    @property
    def q(self) -> torch.Tensor:
        """float32[m]: what the controller sees, one number per token it may submit."""
        ...

    @property
    def passes(self) -> int | None:
        """As in `Draft`."""
        ...

    @property
    def record(self) -> PassRecord | None:
        """As in `Draft`."""
        ...

    def first(self, count: int) -> Draft:
        """What is verified when the controller submits `count`, 0 <= count <= m."""
        ...


def verify_greedy(draft: Draft, scores: torch.Tensor) -> torch.Tensor:
    """Accept draft tokens while they are the argmax of the row before them.

    Args:
        draft: d tokens.
        scores: float[d + 1, V] processed logits of the target; row i follows the text and i draft tokens.
    """
    top, best = scores.max(dim=-1)
    accepted = (draft.tokens == best[:-1]).long().cumprod(dim=0).sum()
    # max() carries NaN and an infinity along, so the winners tell whether every row was sound.
    return torch.stack([accepted, best[accepted], ~torch.isfinite(top).all()])


def verify_sampling(draft: Draft, scores: torch.Tensor, draws: Draws, pos: int) -> torch.Tensor:
    """Speculative sampling.

    Args:
        draft: d tokens, with the law they were drawn from or None.
        scores: float32[d + 1, V] processed logits of the target (-inf: never).
        draws: randomness.
        pos: output position of the first draft token.
    """
    p = torch.softmax(scores.float(), dim=-1)
    d = len(draft.tokens)
    accept = acceptance(draft, p[:d])
    accepted = draws.leading(accept, pos)
    weights = p[accepted]
    if d:
        place = accepted.clamp(max=d - 1)
        left = residual(p[place], draft.tokens[place], None if draft.law is None else draft.law[place])
        weights = torch.where(accepted < d, left, weights)
    token = draws.token(weights, pos, accepted, d + 1)
    # A sum of probabilities is finite when all of them are, and one pass over them where asking each takes several.
    total = p.sum() + accept.sum() + (0.0 if draft.law is None else draft.law.sum())
    return torch.stack([accepted, token, ~torch.isfinite(total)])


def acceptance(draft: Draft, p: torch.Tensor) -> torch.Tensor:
    """float64[d] probability that each draft token is accepted, given that all before it were.

    min(1, p(x)/q(x)) of the law x was drawn from, or p(x) for a token chosen by a fixed rule. NaN when x has
    probability 0 under its own law: it cannot have been drawn from it.

    Args:
        draft: d tokens.
        p: float32[d, V] target distributions.
    """
    here = draft.tokens[:, None]
    target = p.gather(1, here)[:, 0].double()
    if draft.law is None:
        return target
    drafted = draft.law.gather(1, here)[:, 0].double()
    return torch.where(drafted > 0, (target / drafted).clamp(max=1.0), torch.nan)


def residual(p: torch.Tensor, token: torch.Tensor, q: torch.Tensor | None) -> torch.Tensor:
    """float64[V] weights (not normalised) of the token that replaces a rejected one.

    max(p - q, 0), or p without the token when it was chosen by a fixed rule. Where that is 0 everywhere (p equals q up
    to rounding, so a rejection was a rounding accident) p itself.

    Args:
        p: float32[V] target distribution.
        token: int64 scalar, the rejected token.
        q: float32[V] the law it was drawn from, or None.
    """
    p = p.double()
    left = (p - q.double()).clamp(min=0.0) if q is not None else p.scatter(0, token[None], 0.0)
    return torch.where(left.sum() > 0, left, p)


def rowwise(processors: Sequence[Processor]) -> bool:
    """Whether every row of logits is processed alike, whatever tokens precede it."""
    return all(isinstance(processor, _ROWWISE) for processor in processors)


def text_for(processors: Sequence[Processor], text: Sequence[int], device: torch.device | str) -> torch.Tensor:
    """int64[L] the text that `process` is given, or nothing of it when no processor looks at it."""
    return torch.tensor([] if rowwise(processors) else text, dtype=torch.int64, device=device)


def process(
    processors: Sequence[Processor],
    text: torch.Tensor,
    drafted: torch.Tensor,
    logits: torch.Tensor,
    *,
    paths: Sequence[Sequence[int]] | None = None,
) -> torch.Tensor:
    """Logits after the generation settings (temperature, top-k, penalties, ...), each row with the tokens before it.

    Args:
        processors: transformers logits processors, in order.
        text: int64[L] prompt and committed output.
        drafted: int64[d] draft tokens; row i of the logits follows text + drafted[:i].
        logits: float[d + 1, V].
        paths: places in `drafted` that row i follows, for each row; default: the first i.

    Returns:
        float32[d + 1, V]; the logits themselves, in their own dtype, when there are no processors.
    """
    if not processors:
        return logits
    scores = logits.to(torch.float32, copy=True)
    whole = torch.cat([text, drafted])
    for processor in processors:
        if isinstance(processor, _ROWWISE):
            scores = processor(whole[None], scores)
        else:
            before = range(len(scores)) if paths is None else paths
            rows = [
                processor(_prefix(whole, len(text), path)[None], scores[i : i + 1]) for i, path in enumerate(before)
            ]
            scores = torch.cat(rows)
    return scores


def _prefix(whole: torch.Tensor, length: int, path: int | Sequence[int]) -> torch.Tensor:
    """The first `length` tokens and then so many more, or those at some places behind them."""
    if isinstance(path, int):
        return whole[: length + path]
    return torch.cat([whole[:length], whole[length:][torch.tensor(path, dtype=torch.int64, device=whole.device)]])


def sampling_processors(*, temperature: float = 1.0, top_k: int = 0, top_p: float = 1.0) -> list[Any]:
    """The library's processors for the common sampling settings, in the library's order.

    Args:
        temperature: > 0.
        top_k: most likely tokens kept; 0 keeps all.
        top_p: share of probability kept, in (0, 1].
    """
    found: list[Any] = []
    if temperature != 1.0:
        found.append(logits_process.TemperatureLogitsWarper(temperature))
    if top_k:
        found.append(logits_process.TopKLogitsWarper(top_k))
    if top_p < 1.0:
        found.append(logits_process.TopPLogitsWarper(top_p))
    return found
