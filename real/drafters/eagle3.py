"""Drafting with an EAGLE-3 head: a chain of any length, or a dynamic tree (Li et al. 2025, arXiv 2503.01840).

Owns the head's keys and values over the committed text. Entries for committed tokens hold the target's features, taken
from its tap; entries for drafted tokens hold the head's own hidden states and are forgotten at the end of the round, so
that a drafted token that was accepted is replaced by what the target made of it.

The tree is EAGLE-2's (Li et al. 2024, arXiv 2406.16858, section 4; SafeAILab/EAGLE eagle/model/cnets.py @148042c,
topK_genrate): on every level the most probable nodes are expanded, then the most probable of all nodes are kept. Ours
are handed over in descending path probability, the reference's by level; the nodes are the same.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from real.cache import KVCache
from real.drafters.base import Drafter
from real.drafters.eagle3_load import load_eagle3
from real.drafters.eagle3_net import Eagle3Net
from real.drafters.model import DRAFT_SAMPLING
from real.drafters.options import whole
from real.draws import Draws
from real.models import Loaded
from real.target import make_tap
from real.verify import Draft, Processor, process, text_for
from specsim.errors import ConfigError
from specsim.schema import MAX_DRAFT_LEN

# Of a tree's nodes, levels and children: a level has topk squared candidates and widens its mask by as many columns.
MOST = {"tree": MAX_DRAFT_LEN, "depth": 256, "topk": 256}

Embed = Callable[[torch.Tensor], torch.Tensor]


def embedding_of(net: Eagle3Net, model: Any) -> Embed:
    """Token embeddings that a head uses: its own, else the target's."""
    return model.get_input_embeddings() if net.embed_tokens is None else net.embed_tokens


class HeadOverText:
    """A head with entries for the committed text, and for a draft after it.

    Args:
        net: the head, on the target's device.
        model: the target's, whose features it reads.

    Attributes:
        tap: filled by the target.
        hidden: float[1, H] the head's output for the newest committed token; None while there are no features.
    """

    def __init__(self, net: Eagle3Net, model: Any) -> None:
        self.net, self._embed = net, embedding_of(net, model)
        self.tap = make_tap(model, net.config.target_layers)

    def start(self, prompt: torch.Tensor, capacity: int) -> None:
        """Begin a request (prompt int64[P]); entries can grow to `capacity`."""
        self.text, self._device = prompt.tolist(), prompt.device
        self._keys, self._known = KVCache(capacity), 0
        self.hidden: torch.Tensor | None = None
        self.catch_up()

    def catch_up(self) -> None:
        """Take in what the target has since said of the committed text."""
        features = self.tap.take()
        new = len(features)
        if not new:
            return
        tokens = torch.tensor(self.text[self._known + 1 : self._known + 1 + new], device=self._device)
        places = torch.arange(self._known, self._known + new, device=self._device)
        self.hidden = self._run(self.net.fuse(features), tokens, places, None, keep=1)
        self._known += new

    def draft(
        self, hidden: torch.Tensor, tokens: torch.Tensor, step: int, seen: torch.Tensor | None = None
    ) -> torch.Tensor:
        """Add entries for drafted tokens.

        Args:
            hidden: float[n, H] outputs that the tokens were chosen from.
            tokens: int64[n] ids of the target.
            step: 0 for the first token after the text, and so on.
            seen: bool[n, drafted + n], which drafted entries each new one sees, itself included; None: all.

        Returns:
            float[n, H] outputs, which predict what follows each.
        """
        visible = None
        if seen is not None:
            visible = torch.cat([seen.new_ones(len(tokens), self._known), seen], dim=1)
        places = torch.full((len(tokens),), self._known + step, device=self._device)
        return self._run(hidden, tokens, places, visible)

    def commit(self, tokens: Sequence[int]) -> None:
        """Forget the draft; `tokens` belong to the text now."""
        self._keys.crop_to(self._known)
        self.text += tokens

    def _run(
        self,
        hidden: torch.Tensor,
        tokens: torch.Tensor,
        places: torch.Tensor,
        visible: torch.Tensor | None,
        *,
        keep: int = 0,
    ) -> torch.Tensor:
        return self.net(hidden[None], self._embed(tokens)[None], places, self._keys, visible, keep)[0]


class Eagle3Chain(Drafter):
    """One token per pass of the head.

    Args:
        net, model: as for `HeadOverText`.
        name: for logs and tables.
        max_draft_len: most tokens proposed in a round.
        sampling: as for `real.drafters.model.ModelDrafter`.

    Raises:
        ConfigError: an unknown kind of sampling, or a limit below 1.
    """

    block_len = 1

    def __init__(
        self, net: Eagle3Net, model: Any, *, name: str, max_draft_len: int = 24, sampling: str = "greedy"
    ) -> None:
        if sampling not in DRAFT_SAMPLING:
            raise ConfigError(f"draft sampling {sampling!r}: allowed: {', '.join(DRAFT_SAMPLING)}")
        if max_draft_len < 1:
            raise ConfigError(f"max_draft_len {max_draft_len}: a drafter proposes 1 token or more")
        self.net, self.model = net, model
        self.name, self.max_draft_len, self.samples = name, max_draft_len, sampling == "sample"
        self._head, self._ids = HeadOverText(net, model), net.target_ids
        self.tap = self._head.tap

    def start(self, prompt: torch.Tensor, capacity: int, draws: Draws, processors: Sequence[Processor]) -> None:
        self._draws, self._processors, self._prompt_len = draws, processors, len(prompt)
        self._head.start(prompt, capacity)
        self._draft = Draft.nothing(prompt.device)

    def propose(self, count: int, arm: int) -> Draft:
        drafted = len(self._draft.tokens)
        if not drafted:
            self._head.catch_up()
            self._hidden = self._head.hidden
        if self._hidden is None:  # a prompt of one token, or one the target has not read yet
            return self._draft._replace(passes=0)
        for number in range(drafted, count):
            if number:
                self._hidden = self._head.draft(self._hidden, self._draft.tokens[-1:], number - 1)
            logits = self.net.logits(self._hidden).float()
            self._draft = self._draft.then(self._sampled(logits, number) if self.samples else self._greedy(logits))
        return self._draft

    def commit(self, tokens: Sequence[int]) -> None:
        self._head.commit(tokens)
        self._draft = Draft.nothing(self._ids.device)

    def _greedy(self, logits: torch.Tensor) -> Draft:
        chosen = logits.argmax(dim=-1)
        return Draft(self._ids[chosen], torch.softmax(logits, dim=-1)[0, chosen])

    def _sampled(self, logits: torch.Tensor, number: int) -> Draft:
        known = self.net.t2d.shape[0]
        wide = logits.new_full((1, known), -torch.inf).index_copy_(1, self._ids, logits)
        text = text_for(self._processors, self._head.text, logits.device)
        scores = process(self._processors, torch.cat([text, self._draft.tokens]), text[:0], wide).float()
        # Processors may leave nothing the head knows (only the end of text, say); any law is a good one to draw from.
        scores = torch.where(torch.isfinite(scores).any(), scores, wide)
        law = torch.softmax(scores, dim=-1)
        token = self._draws.drafted(law, len(self._head.text) - self._prompt_len + number)
        return Draft(token, torch.softmax(wide, dim=-1)[0, token], law)


class Eagle3Tree(Drafter):
    """A dynamic tree, made whole before anything is verified: the controller chooses how many of its nodes are.

    Args:
        net, model: as for `HeadOverText`.
        name: for logs and tables.
        size: most nodes; the reference's total_token - 1.
        depth: levels, one pass of the head each; the reference's depth + 1.
        top_k: nodes expanded per level, and children of each.

    Raises:
        ConfigError: a number out of range.
    """

    branches = True

    def __init__(
        self, net: Eagle3Net, model: Any, *, name: str, size: int = 59, depth: int = 8, top_k: int = 10
    ) -> None:
        for what, number in (("tree", size), ("depth", depth), ("topk", top_k)):
            if not 1 <= number <= MOST[what]:
                raise ConfigError(f"eagle3: {what} is {number}; allowed: 1..{MOST[what]}")
        self.net, self.name = net, name
        self.top_k, self.depth, self._levels = min(top_k, net.config.draft_vocab_size), depth, depth
        # The first level has top_k nodes, every other one top_k squared that compete.
        self.max_draft_len = min(size, self.top_k + (depth - 1) * self.top_k**2)
        self.block_len = self.max_draft_len
        self._head, self._ids = HeadOverText(net, model), net.target_ids
        self.tap = self._head.tap

    def start(self, prompt: torch.Tensor, capacity: int, draws: Draws, processors: Sequence[Processor]) -> None:
        self._head.start(prompt, capacity + self.top_k * self._levels)
        self._draft: Draft | None = None

    def propose(self, count: int, arm: int) -> Draft:
        if self._draft is None:
            self._head.catch_up()
            self._draft = self._grown()
        return self._draft

    def commit(self, tokens: Sequence[int]) -> None:
        self._head.commit(tokens)
        self._draft = None

    def _grown(self) -> Draft:
        if self._head.hidden is None:
            return Draft.nothing(self._ids.device)._replace(passes=0)
        k, device = self.top_k, self._ids.device
        own = torch.eye(k, dtype=torch.bool, device=device)
        scores, tokens = self._children(self._head.hidden, self._head.hidden.new_zeros(1).float())
        all_scores, all_tokens, all_parents = [scores[0]], [tokens[0]], [torch.full((k,), -1, device=device)]
        beam, hidden = torch.arange(k, device=device), self._head.hidden.expand(k, -1)
        score, token, seen, total = scores[0], tokens[0], own, k
        for step in range(self._levels - 1):
            output = self._head.draft(hidden, token, step, seen)
            scores, tokens = self._children(output, score)
            all_scores.append(scores.flatten())
            all_tokens.append(tokens.flatten())
            all_parents.append(beam.repeat_interleave(k))
            score, slot = scores.flatten().topk(k)
            from_ = slot // k
            beam, hidden, token = total + slot, output[from_], tokens.flatten()[slot]
            seen, total = torch.cat([seen[from_], own], dim=1), total + k * k
        return self._best(torch.cat(all_scores), torch.cat(all_tokens), torch.cat(all_parents))

    def _children(self, output: torch.Tensor, score: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """(log path probability float32[n, k], token int64[n, k]) of the likeliest children of n nodes."""
        top = torch.log_softmax(self.net.logits(output).float(), dim=-1).topk(self.top_k)
        return score[:, None] + top.values, self._ids[top.indices]

    def _best(self, scores: torch.Tensor, tokens: torch.Tensor, parents: torch.Tensor) -> Draft:
        """The most probable nodes, in that order."""
        # A child is never more probable than its parent and stands behind it: with a stable sort parents come first.
        order = torch.sort(scores, descending=True, stable=True).indices[: self.max_draft_len]
        place = torch.full((len(scores) + 1,), -1, device=scores.device)  # the last one is the root's
        place[order] = torch.arange(len(order), device=scores.device)
        kept = scores[order].double()
        return Draft(
            tokens[order],
            (kept - torch.cat([kept.new_zeros(1), kept[:-1]])).exp().float(),
            parents=place[parents[order]].cpu(),
            passes=self._levels,
        )


def make_eagle3(
    options: Mapping[str, str], loaded: Loaded, *, max_draft_len: int, sampling: str, merge_prompt: bool
) -> Eagle3Chain | Eagle3Tree:
    """The drafter `eagle3:path=P` or `eagle3:path=P,tree=59[,depth=8][,topk=10]` of a target (`real.session.Maker`).

    Args:
        options: keys and values as spelled.
        loaded: the target.
        max_draft_len: most tokens of a chain, or of the longest path of a tree.
        sampling: of a chain; a tree is always greedy.

    Raises:
        ConfigError: an option that is not allowed, or a checkpoint that is broken or of another target.
    """
    numbers = {key: whole("eagle3", key, options[key], high=most) for key, most in MOST.items() if key in options}
    if numbers and "tree" not in numbers:
        raise ConfigError(f"eagle3: {', '.join(numbers)} belong to a tree; give its most nodes as well, e.g. tree=59")
    if numbers and sampling != "greedy":
        raise ConfigError(
            f"eagle3: draft sampling {sampling!r} with a tree: allowed: greedy, which is lossless at any temperature"
        )
    net = load_eagle3(options["path"], loaded.model)
    name = f"eagle3:{','.join(f'{key}={value}' for key, value in options.items())}"
    if not numbers:
        return Eagle3Chain(net, loaded.model, name=name, max_draft_len=max_draft_len, sampling=sampling)
    depth, top_k = min(numbers.get("depth", 8), max_draft_len), numbers.get("topk", 10)
    return Eagle3Tree(net, loaded.model, name=name, size=numbers["tree"], depth=depth, top_k=top_k)
