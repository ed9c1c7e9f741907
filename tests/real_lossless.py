"""What the tests of losslessness share: tiny targets of every class, drafters that half agree, plain greedy output."""

from __future__ import annotations

import copy
import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from transformers import GPT2Config, GPT2LMHeadModel

from real.drafters.base import NoDrafter
from real.drafters.layer_skip import skip_layers
from real.drafters.model import ModelDrafter
from real.drafters.prompt_lookup import PromptLookupDrafter
from real.loop import Decoded, Settings, decode
from real.target import Loan, Tap, Target
from real.tree import paths
from specsim.controllers import Controller
from specsim.online import OnlineController
from tests.real_law import FixedClock, controller_of
from tests.real_tiny import FAMILIES, VOCABULARY, prompt_ids, tiny_family

TOKENS, LONGEST = 14, 5
DRAFTERS = ("none", "prompt-lookup", "second model", "layer-skip", "early-exit")
NOISE = {
    "gemma3": 0.15,
    "gpt2": 0.4,
}  # of the second model, where it is not 0.05: how much makes it agree half the time
GPT2 = "gpt2"  # its layers are not in model.model.layers: no layer-skip, no early exit
CLASSES = (*FAMILIES, GPT2)
RANDOM = "random"


def drafters_of(name: str) -> tuple[str, ...]:
    return DRAFTERS[:3] if name == GPT2 else DRAFTERS


def tiny_class(name: str) -> Any:
    if name != GPT2:
        return tiny_family(name)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        config = GPT2Config(
            vocab_size=VOCABULARY,
            n_embd=32,
            n_layer=3,
            n_head=4,
            n_positions=256,
            initializer_range=0.25,
            bos_token_id=1,
            eos_token_id=2,
        )
        return GPT2LMHeadModel(config).eval()


def noisy(model: Any, name: str) -> Any:
    """A model of a class with every matrix disturbed by a share of its spread, so that it agrees now and then."""
    twin, generator = copy.deepcopy(model), torch.Generator().manual_seed(1)
    with torch.no_grad():
        for weights in twin.parameters():
            if weights.ndim > 1:
                weights += NOISE.get(name, 0.05) * weights.std() * torch.randn(weights.shape, generator=generator)
    return twin


def make_drafter(kind: str, model: Any, name: str) -> Any:
    if kind == "none":
        return NoDrafter()
    if kind == "prompt-lookup":
        return PromptLookupDrafter(max_draft_len=LONGEST)
    if kind == "second model":
        return ModelDrafter(noisy(model, name), name=kind, max_draft_len=LONGEST)
    return ModelDrafter(skip_layers(model, (1,) if kind == "layer-skip" else (2,)), name=kind, max_draft_len=LONGEST)


@torch.inference_mode()
def plain_greedy(model: Any, prompt: torch.Tensor, tokens: int) -> list[int]:
    """The most likely token again and again, each by a pass over the whole text without any cache."""
    text = prompt.tolist()
    for _ in range(tokens):
        text.append(int(model(input_ids=torch.tensor([text]), use_cache=False).logits[0, -1].argmax()))
    return text[len(prompt) :]


@dataclass(frozen=True, kw_only=True)
class Subject:
    """A tiny target, its drafters, and what plain decoding gives."""

    model: Any
    prompt: torch.Tensor
    plain: list[int]
    targets: dict[str, Target]
    drafters: dict[str, Any]


@functools.cache
def subject(name: str) -> Subject:
    """A model of a class; the prompt holds a piece of text twice, so that looking it up finds something."""
    model, prompt = tiny_class(name), prompt_ids(1)
    prompt = torch.cat([prompt, prompt[:6]])
    return Subject(
        model=model,
        prompt=prompt,
        plain=plain_greedy(model, prompt, TOKENS),
        targets={cache: Target(model, cache=cache) for cache in ("dynamic", "static")},
        drafters={kind: make_drafter(kind, model, name) for kind in drafters_of(name)},
    )


@functools.cache
def run(name: str, drafter: str, spelling: str, cache: str) -> Decoded:
    """A class's target decoding with a drafter and a controller."""
    tried = subject(name)
    made = tried.drafters[drafter]
    controller = random_lengths() if spelling == RANDOM else controller_of(spelling, made)
    online = OnlineController(controller, seed=5, compiled=not controller.compiled)
    settings = Settings(max_new_tokens=len(tried.plain))
    return decode(tried.targets[cache], made, online, tried.prompt, settings, clock=FixedClock())


WANT = 0  # state column: tokens to draft in this round; the next one: the share of them to submit


def random_lengths(longest: int = 6) -> Controller:
    """Drafts 0 to `longest` tokens and submits any part of them, at random, whatever they are."""

    def begin(params, state, lane, pos, ctx_len, u, hint):
        state[lane, WANT] = int(u * (longest + 1))
        state[lane, WANT + 1] = u * 1e6 % 1.0
        return -1, int(state[lane, WANT])

    def revise(params, state, lane, q, drafted, more):
        want = int(state[lane, WANT])
        if drafted < want and more:
            return 0, want
        return int(state[lane, WANT + 1] * (drafted + 1)), drafted

    return Controller(
        name=RANDOM,
        config={},
        params=None,
        begin=begin,
        revise=revise,
        update=lambda params, state, lane, arm, drafted, submitted, accepted, round_s: None,
        initial=np.zeros(2),
        random=True,
    )


class Checked(Target):
    """A target that compares every score with a pass over the whole text without any cache.

    Attributes:
        rejections: rounds compared that followed a rejection.
    """

    def __init__(self, model: Any, *, tolerance: float = 1e-4, **options: Any) -> None:
        super().__init__(model, **options)
        self.tolerance = tolerance

    def start(self, prompt: torch.Tensor, capacity: int, tap: Tap | None = None, loan: Loan | None = None) -> None:
        super().start(prompt, capacity, tap, loan)
        self._text, self._scored, self._taken_back, self.rejections = prompt[:-1], prompt[:-1], False, 0

    def score(self, tokens: torch.Tensor, parents: torch.Tensor | None = None) -> torch.Tensor:
        logits = super().score(tokens, parents)
        self._root, self._nodes = torch.cat([self._text, tokens[:1]]), tokens[1:]
        before = [list(range(i)) for i in range(len(tokens))] if parents is None else paths(parents.tolist())
        for row, path in zip(logits, before, strict=True):
            text = torch.cat([self._root, self._nodes[path]])
            fresh = self.model(input_ids=text[None], use_cache=False).logits[0, -1]
            assert float((fresh - row).abs().max()) <= self.tolerance * float(fresh.abs().max())
        self.rejections += self._taken_back
        return logits

    def commit(self, length: int, path: Sequence[int] | None = None) -> None:
        super().commit(length, path)
        kept = list(range(length - len(self._root)) if path is None else path)
        self._text, self._taken_back = torch.cat([self._root, self._nodes[kept]]), len(kept) < len(self._nodes)
        assert len(self._text) == length
