"""Many continuations of one text at once: the arithmetic behind the counterfactual recorder.

Owns `BranchRunner` (a model whose cache holds a text and any number of branches that leave it at different places) and
the two ways of using it: drafting branches greedily in lock-step, and scoring given branches. Knows nothing about
requests, files or metadata.

A branch starts after `start` tokens of the text. Its tokens see `text[:start]` and the branch's own earlier tokens,
nothing else, and sit at positions start, start + 1, ...: exactly what a decoder that stood there would compute. All
branches share one copy of the text's keys and values; a mask keeps them apart.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from real.cache import KVCache, forward
from real.vision.prompt import VisionPrompt

# Branch tokens in the cache at a time. Attention looks at every slot, so more slots cost more than they save.
SLOT_LIMIT = 768
# Rows of [rows, vocabulary] float32 probabilities made at a time: 256 x 49,152 x 4 bytes = 50 MB.
ROW_LIMIT = 256


class BranchRunner:
    """A model with `text` in its cache, ready to run branch tokens.

    Args:
        model: causal language model.
        text: int64[L] token ids.
        first: logits of the text are kept from this index on; a branch may start after `first + 1` tokens or later.
        slots: branch tokens the cache can hold at a time.
        width: keep logits of the first `width` ids only (a drafter's padding that the target does not have).
        prompt: what the text begins with, where the model is to see its pictures.
    """

    def __init__(
        self,
        model: Any,
        text: torch.Tensor,
        *,
        first: int,
        slots: int,
        width: int | None = None,
        prompt: VisionPrompt | None = None,
    ) -> None:
        self.model, self.text, self.text_len, self.first, self._width = model, text, len(text), first, width
        self._known = int(model.get_input_embeddings().weight.shape[0])
        self.cache = KVCache(self.text_len + slots)
        seen = None if prompt is None else prompt.followed_by(text[len(prompt) :])
        self.cache.shift = 0 if prompt is None else prompt.shift
        self.text_logits = self._run(text, keep=self.text_len - first, prompt=seen)  # [L - first, vocabulary]
        self.begin(torch.zeros(0, dtype=torch.int64, device=text.device))

    def begin(self, starts: torch.Tensor) -> None:
        """Drop all branches and open new ones after `starts` (int64[B]) tokens."""
        self.cache.crop_to(self.text_len)
        self.starts = starts
        self._owner = starts.new_zeros(0)  # branch of each slot
        self._depth = starts.new_zeros(0)  # its place inside the branch

    def logits_after(self, counts: torch.Tensor) -> torch.Tensor:
        """[B, vocabulary] logits of what follows the first `counts` (int64[B]) tokens of the text."""
        return self.text_logits[counts - 1 - self.first]

    def feed(self, tokens: torch.Tensor, branch: torch.Tensor, depth: torch.Tensor) -> torch.Tensor:
        """Append tokens (int64[T]) at place `depth` of `branch`; logits of what follows each, [T, vocabulary]."""
        self._owner = torch.cat([self._owner, branch])
        self._depth = torch.cat([self._depth, depth])
        starts = self.starts[branch]
        columns = torch.arange(self.text_len, device=tokens.device)
        in_text = columns[None, :] < starts[:, None]
        in_branch = (self._owner[None, :] == branch[:, None]) & (self._depth[None, :] <= depth[:, None])
        return self._run(tokens, position_ids=starts + depth, visible=torch.cat([in_text, in_branch], dim=1))

    def _run(self, tokens: torch.Tensor, **how: Any) -> torch.Tensor:
        # An id that only the target has is read as the drafter's last one, as real.drafters.model does.
        return forward(self.model, tokens.clamp(max=self._known - 1), self.cache, **how)[:, : self._width]


@dataclass(frozen=True, kw_only=True)
class Drafts:
    """What a drafter proposes at B positions. Entries beyond a row's length are padding (token -1, zeros).

    Args:
        tokens: int64[B, K] proposed token ids.
        lens: int64[B] draft length of each row, 0..K.
        q: float32[B, K] drafter's softmax probability of each proposed token.
        entropy: float32[B, K] entropy of the drafter's distribution, nats.
    """

    tokens: torch.Tensor
    lens: torch.Tensor
    q: torch.Tensor
    entropy: torch.Tensor

    @classmethod
    def empty(cls, lens: torch.Tensor) -> Drafts:
        """All-padding drafts with the given lengths, to be filled in."""
        shape = (len(lens), int(lens.max()) if len(lens) else 0)
        return cls(
            tokens=lens.new_full(shape, -1),
            lens=lens,
            q=torch.zeros(shape, device=lens.device),
            entropy=torch.zeros(shape, device=lens.device),
        )


def draft_everywhere(runner: BranchRunner, starts: torch.Tensor, lens: torch.Tensor) -> Drafts:
    """Greedy drafts of a model after each of `starts` tokens of the text, `lens` tokens long.

    A draft whose first token is the text's own goes on exactly like the draft one place later: such rows are copied, so
    only the drafts that leave the text at once are run.

    Args:
        runner: the drafter's model over the text.
        starts: int64[B] consecutive places, each one more than the one before.
        lens: int64[B] tokens to draft; a row may ask for at most one token more than the next row.
    """
    drafts = Drafts.empty(lens)
    rows = torch.nonzero(lens > 0)[:, 0]
    if not len(rows):
        return drafts
    tokens, q, entropy = greedy_choice(runner.logits_after(starts[rows]))
    drafts.tokens[rows, 0], drafts.q[rows, 0], drafts.entropy[rows, 0] = tokens, q, entropy
    on_text = tokens == runner.text[starts[rows]]
    for group in _groups(rows[~on_text], lens):
        _draft_in_lock_step(runner, starts[group], lens[group], group, drafts)
    for row in reversed(rows[on_text].tolist()):
        rest = int(lens[row]) - 1
        assert rest == 0 or int(lens[row + 1]) >= rest
        for values in (drafts.tokens, drafts.q, drafts.entropy):
            if rest:
                values[row, 1 : rest + 1] = values[row + 1, :rest]
    return drafts


def _draft_in_lock_step(
    runner: BranchRunner, starts: torch.Tensor, lens: torch.Tensor, rows: torch.Tensor, drafts: Drafts
) -> None:
    """Extend the one-token drafts in `rows` to their lengths; each step feeds one token of every unfinished branch."""
    runner.begin(starts)
    for step in range(1, int(lens.max())):
        alive = torch.nonzero(lens > step)[:, 0]
        fed = drafts.tokens[rows[alive], step - 1]
        tokens, q, entropy = greedy_choice(runner.feed(fed, alive, torch.full_like(alive, step - 1)))
        drafts.tokens[rows[alive], step] = tokens
        drafts.q[rows[alive], step] = q
        drafts.entropy[rows[alive], step] = entropy


def score_branches(runner: BranchRunner, starts: torch.Tensor, drafts: Drafts) -> tuple[torch.Tensor, torch.Tensor]:
    """What the target thinks of drafts, each token given the ones before it.

    A draft that follows the text for a tokens is the same branch as the rest of it, started a tokens later: only the
    part that leaves the text is run, and rows that share it share the work.

    Args:
        runner: the target's model over the text.
        starts: int64[B] text tokens before each draft.
        drafts: the drafts.

    Returns:
        (p, best): float32[B, K] target's softmax probability of each drafted token, and int64[B, K] the token the
        target itself would have chosen there; padding 0 and -1.
    """
    p, best = torch.zeros_like(drafts.q), torch.full_like(drafts.tokens, -1)
    agree = leading_matches(runner.text, starts, drafts)
    # Up to and including the first token that leaves the text, the text's own logits say everything.
    places = torch.arange(drafts.tokens.shape[1], device=starts.device)[None, :]
    row, place = torch.nonzero(places < torch.minimum(drafts.lens, agree + 1)[:, None], as_tuple=True)
    index = starts[row] + place - 1 - runner.first
    p[row, place] = torch.log_softmax(runner.text_logits.float(), dim=-1)[index, drafts.tokens[row, place]].exp()
    best[row, place] = runner.text_logits.argmax(dim=-1)[index]
    rest = drafts.lens - agree  # tokens from the first one that leaves the text on
    leader = _leaders(
        starts + agree, [t[a:m].tolist() for t, a, m in zip(drafts.tokens, agree, drafts.lens, strict=True)]
    )
    runs = torch.nonzero((leader == torch.arange(len(starts), device=starts.device)) & (rest > 1))[:, 0]
    for group in _groups(runs, rest):
        runner.begin((starts + agree)[group])
        # Token j of a branch predicts token j + 1, so the last one of each branch is not fed.
        branch, depth = torch.nonzero(places < (rest[group] - 1)[:, None], as_tuple=True)
        row, place = group[branch], agree[group][branch] + depth
        logits = runner.feed(drafts.tokens[row, place], branch, depth)
        p[row, place + 1], best[row, place + 1] = rate(logits, drafts.tokens[row, place + 1])
    for row in torch.nonzero((rest > 1) & (leader != torch.arange(len(starts), device=starts.device)))[:, 0].tolist():
        a, n, source = int(agree[row]), int(rest[row]) - 1, int(leader[row])
        b = int(agree[source])
        p[row, a + 1 : a + 1 + n], best[row, a + 1 : a + 1 + n] = (
            p[source, b + 1 : b + 1 + n],
            best[source, b + 1 : b + 1 + n],
        )
    return p, best


def leading_matches(text: torch.Tensor, starts: torch.Tensor, drafts: Drafts) -> torch.Tensor:
    """int64[B]: how many first tokens of each draft are the text's own."""
    places = torch.arange(drafts.tokens.shape[1], device=text.device)[None, :]
    index = starts[:, None] + places
    inside = (index < len(text)) & (places < drafts.lens[:, None])
    matches = (drafts.tokens == text[index.clamp(max=len(text) - 1)]) & inside
    return matches.int().cumprod(dim=1).sum(dim=1)


def _leaders(starts: torch.Tensor, tokens: list[list[int]]) -> torch.Tensor:
    """int64[B]: for each branch one with the same start that begins with all of its tokens, itself if there is none."""
    leader = list(range(len(tokens)))
    by_start: dict[int, list[int]] = {}
    for row in sorted(leader, key=lambda row: -len(tokens[row])):
        others = by_start.setdefault(int(starts[row]), [])
        found = next((other for other in others if tokens[other][: len(tokens[row])] == tokens[row]), None)
        if found is None:
            others.append(row)
        else:
            leader[row] = found
    return starts.new_tensor(leader)


def greedy_choice(logits: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """(tokens int64[R], their softmax probability float32[R], entropy in nats float32[R]) of logits [R, vocabulary]."""
    tokens, q, entropy = [], [], []
    for part in logits.split(ROW_LIMIT):
        log_probs = torch.log_softmax(part.float(), dim=-1)
        # argmax of the logits, not of the probabilities: rounding may make two of those equal.
        chosen = part.argmax(dim=-1)
        tokens.append(chosen)
        q.append(log_probs.gather(1, chosen[:, None])[:, 0].exp())
        entropy.append(torch.special.entr(log_probs.exp()).sum(dim=-1))
    return torch.cat(tokens), torch.cat(q), torch.cat(entropy)


def rate(logits: torch.Tensor, tokens: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """(softmax probability float32[R] of the given tokens int64[R], the most likely tokens int64[R])."""
    if not len(tokens):
        return logits.new_zeros(0).float(), tokens
    p, best = [], []
    for part, chosen in zip(logits.split(ROW_LIMIT), tokens.split(ROW_LIMIT), strict=True):
        p.append(torch.log_softmax(part.float(), dim=-1).gather(1, chosen[:, None])[:, 0].exp())
        best.append(part.argmax(dim=-1))
    return torch.cat(p), torch.cat(best)


def _groups(rows: torch.Tensor, lens: torch.Tensor) -> list[torch.Tensor]:
    """`rows` in groups whose branch tokens, at most `lens[row]` each, fit SLOT_LIMIT."""
    if not len(rows):
        return []
    return list(rows.split(max(1, SLOT_LIMIT // int(lens[rows].max()))))
