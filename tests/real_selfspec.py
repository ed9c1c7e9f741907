"""What the tests of self-speculation share: drafters of arms, a reference written in loops, caches looked into."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import Any

import torch

from real.builders.arm import Arm
from real.cache import KVCache, forward
from real.drafters.family import FixedArms
from real.drafters.selfspec import SelfDrafter
from real.drafters.subblocks import SubBlocks
from real.session import build_for
from real.target import Target
from specsim.controllers import REGISTRY, Controller
from specsim.latency import LatencyModel
from tests.real_tiny import tiny_family
from tests.worlds import SPELLINGS, kinds_of

HALVED = ("llama", "qwen2", "qwen3", "mistral", "mistral-full")
COSTS = LatencyModel.affine(c_s=0.05, b_s=1.0)
ARMS = tuple(Arm.parse(text) for text in ("", "m1", "a1", "1", "a0+m1,2", "a0-2+m1", "0,1+m2"))


def chooses_arms(spelling: str) -> bool:
    return "arm" in kinds_of(spelling) and "length" not in kinds_of(spelling)


SPELLED = [spelling for name in REGISTRY for spelling in SPELLINGS[name] if chooses_arms(spelling)]
LIVE = [spelling for spelling in SPELLED if spelling.partition(":")[0] not in ("best-arm", "hedge")]


@functools.cache
def blocks_of(name: str) -> SubBlocks:
    return SubBlocks(tiny_family(name))


def self_drafter(blocks: SubBlocks, arms: Sequence[Arm] = ARMS, **options: Any) -> SelfDrafter:
    return SelfDrafter(blocks, FixedArms(arms), name="self", **{"max_draft_len": 4, **options})


def controller_for(spelling: str, drafter: SelfDrafter) -> Controller:
    return build_for(spelling, drafter, COSTS)


class LooksAtCache(Target):
    """A target that compares its cache, once a round's tokens are committed, with that of a fresh prefill.

    Attributes:
        gap: the largest difference found, of numbers of the size of `scale`.
        compared: rounds.
    """

    def start(self, prompt: torch.Tensor, *rest: Any) -> None:
        super().start(prompt, *rest)
        self._text, self.gap, self.scale, self.compared = prompt[:-1].tolist(), 0.0, 0.0, 0

    def score(self, tokens: torch.Tensor, parents: torch.Tensor | None = None) -> torch.Tensor:
        self._scored = tokens.tolist()
        return super().score(tokens, parents)

    def commit(self, length: int, path: Sequence[int] | None = None) -> None:
        super().commit(length, path)
        kept = range(length - len(self._text) - 1) if path is None else path
        self._text += [self._scored[0], *(self._scored[1 + node] for node in kept)]
        fresh = KVCache(length)
        forward(self.model, torch.tensor(self._text), fresh)
        assert self._cache._lengths == fresh._lengths
        for ours, theirs in ((self._cache._keys, fresh._keys), (self._cache._values, fresh._values)):
            for layer, there in theirs.items():
                here, there = ours[layer][:, :, :length], there[:, :, :length]
                self.gap = max(self.gap, float((here - there).abs().max()))
                self.scale = max(self.scale, float(there.abs().max()))
        self.compared += 1


def buffers(target: Target) -> list[torch.Tensor]:
    """Keys and values that a target's cache holds, cut to its length."""
    cache = target._cache
    return [found[layer][:, :, : cache.length].clone() for found in (cache._keys, cache._values) for layer in found]


# --- the reference ---------------------------------------------------------------------------------------------------


class Reference:
    """A Llama, Qwen2, Qwen3 or Mistral written down again in float64, a token, a layer and a head at a time."""

    def __init__(self, model: Any) -> None:
        self.config = model.config
        self.weights = {name: weight.double() for name, weight in model.state_dict().items()}
        self.heads, self.groups = self.config.num_attention_heads, self.config.num_key_value_heads
        self.width = getattr(self.config, "head_dim", None) or self.config.hidden_size // self.heads
        self.window = getattr(self.config, "sliding_window", None)
        self.theta = 10000.0

    def read(self, text: Sequence[int]) -> list[list[Any]]:
        """Keys and values of a text, for each layer (place, keys, values) of each token."""
        held = [[] for _ in range(self.config.num_hidden_layers)]
        for place, token in enumerate(text):
            self._token(token, place, held, Arm())
        return held

    def draft(
        self, text: Sequence[int], arm: Arm, count: int, known: list[list[Any]] | None = None
    ) -> tuple[list[int], list[float]]:
        """Tokens that an arm drafts after a text, and their probabilities; `known`: what `read` gives for the text."""
        # Keys and values of the text are the whole target's; the last token has none yet.
        held = [entries[: len(text) - 1] for entries in (known or self.read(text[:-1]))]
        tokens, q = [text[-1]], []
        for step in range(count):
            law = torch.softmax(self._token(tokens[-1], len(text) - 1 + step, held, arm), dim=-1)
            tokens.append(int(law.argmax()))
            q.append(float(law.max()))
        return tokens[1:], q

    def _token(self, token: int, place: int, held: list[list[Any]], arm: Arm) -> torch.Tensor:
        state = self.weights["model.embed_tokens.weight"][token]
        for layer in range(self.config.num_hidden_layers):
            if layer not in arm.attention:
                state = state + self._attention(self._norm(state, layer, "input_layernorm"), layer, place, held[layer])
            if layer not in arm.mlp:
                inner = self._norm(state, layer, "post_attention_layernorm")
                gate = self._linear(inner, layer, "mlp.gate_proj")
                inner = gate * torch.sigmoid(gate) * self._linear(inner, layer, "mlp.up_proj")
                state = state + self._linear(inner, layer, "mlp.down_proj")
        return self.weights["lm_head.weight"] @ self._rms(state, self.weights["model.norm.weight"])

    def _attention(self, state: torch.Tensor, layer: int, place: int, held: list[Any]) -> torch.Tensor:
        q, k, v = (self._linear(state, layer, f"self_attn.{name}_proj").view(-1, self.width) for name in "qkv")
        q, k = (self._turned(self._head_norm(rows, layer, name), place) for rows, name in ((q, "q"), (k, "k")))
        held.append((place, k, v))
        seen = [entry for entry in held if self.window is None or entry[0] > place - self.window]
        found = []
        for head in range(self.heads):
            group = head * self.groups // self.heads
            scores = torch.stack([q[head] @ keys[group] / math.sqrt(self.width) for _, keys, _ in seen])
            share = torch.softmax(scores, dim=0)
            found.append(sum(share[i] * values[group] for i, (*_, values) in enumerate(seen)))
        return self._linear(torch.cat(found), layer, "self_attn.o_proj")

    def _turned(self, rows: torch.Tensor, place: int) -> torch.Tensor:
        half = self.width // 2
        angles = place / self.theta ** (torch.arange(half).double() * 2 / self.width)
        one, two = rows[:, :half], rows[:, half:]
        return torch.cat([one * angles.cos() - two * angles.sin(), two * angles.cos() + one * angles.sin()], dim=-1)

    def _head_norm(self, rows: torch.Tensor, layer: int, name: str) -> torch.Tensor:
        weight = self.weights.get(f"model.layers.{layer}.self_attn.{name}_norm.weight")
        return rows if weight is None else torch.stack([self._rms(row, weight) for row in rows])

    def _norm(self, state: torch.Tensor, layer: int, name: str) -> torch.Tensor:
        return self._rms(state, self.weights[f"model.layers.{layer}.{name}.weight"])

    def _rms(self, state: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return weight * state / torch.sqrt((state * state).mean() + self.config.rms_norm_eps)

    def _linear(self, state: torch.Tensor, layer: int, name: str) -> torch.Tensor:
        found = self.weights[f"model.layers.{layer}.{name}.weight"] @ state
        bias = self.weights.get(f"model.layers.{layer}.{name}.bias")
        return found if bias is None else found + bias
