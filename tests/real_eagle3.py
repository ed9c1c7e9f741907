"""A tiny EAGLE-3 head that half agrees with its target, and the slow, obvious head that the fast one must equal."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from transformers import LlamaConfig

from real.drafters.eagle3_net import Eagle3Config, Eagle3Net
from real.target import hidden_states
from tests.real_lossless import plain_greedy
from tests.real_tiny import prompt_ids, tiny_llama

LAYERS, DRAFT_VOCABULARY, HEADS, KV_HEADS, EPS = 8, 40, 4, 2, 1e-5
TAPPED = (1, 3, 4)  # what the reference reads of a target of 8 layers


def tiny_config(*, vocabulary: int = 64, draft_vocabulary: int = DRAFT_VOCABULARY, **options: Any) -> Eagle3Config:
    """Sizes of a head for `tests.real_tiny.tiny_llama`; `options` for Eagle3Config."""
    layer = LlamaConfig(
        vocab_size=vocabulary,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=1,
        num_attention_heads=HEADS,
        num_key_value_heads=KV_HEADS,
        rms_norm_eps=EPS,
        rope_theta=500.0,
        max_position_embeddings=256,
    )
    found = {"target_hidden_size": 32, "target_layers": TAPPED, **options}
    return Eagle3Config(layer=layer, draft_vocab_size=draft_vocabulary, **found)


def random_head(config: Eagle3Config, *, seed: int = 0, spread: float = 0.3) -> Eagle3Net:
    """Random float32 weights, and a random choice of the target's tokens."""
    generator = torch.Generator().manual_seed(seed)
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        net = Eagle3Net(config)
    with torch.no_grad():
        for weights in net.parameters():
            weights += spread * torch.randn(weights.shape, generator=generator)
    chosen = torch.randperm(config.layer.vocab_size, generator=generator)[: config.draft_vocab_size]
    net.set_vocabulary(chosen.sort().values)
    return net.eval().requires_grad_(False)


class Pair(NamedTuple):
    """A target, a prompt, its greedy continuation, and a head that has seen most of it."""

    model: Any
    prompt: torch.Tensor
    plain: list[int]
    net: Eagle3Net
    losses: list[float]


@functools.cache
def pair(tokens: int = 24) -> Pair:
    """A head fitted to the first part of a text, so that its drafts are right now and then."""
    model, prompt = tiny_llama(layers=LAYERS), prompt_ids(1)
    plain = plain_greedy(model, prompt, tokens)
    text = torch.tensor([*prompt.tolist(), *plain])[None]
    config = tiny_config()
    net = random_head(config, spread=0.05).requires_grad_(True)
    known = list(dict.fromkeys(plain + list(range(64))))[:DRAFT_VOCABULARY]
    net.set_vocabulary(torch.tensor(sorted(known)))
    draft_ids = torch.full((64,), -100)
    draft_ids[net.target_ids] = torch.arange(DRAFT_VOCABULARY)
    with torch.no_grad():
        features = features_of(model, text[0])[None]
    optimizer, losses = torch.optim.Adam(net.parameters(), lr=3e-3), []
    seen = len(prompt) + 2 * tokens // 3
    for _ in range(60):
        loss = torch.zeros(())
        for step, logits in enumerate(net.unroll(features[:, :seen], text[:, :seen], model.get_input_embeddings(), 3)):
            wanted = draft_ids[text[0, 2 + step : seen + 1]]
            loss = loss + torch.nn.functional.cross_entropy(logits[0], wanted, ignore_index=-100)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    return Pair(model, prompt, plain, net.eval().requires_grad_(False), losses)


@torch.no_grad()
def features_of(model: Any, text: torch.Tensor, layers: Sequence[int] = TAPPED) -> torch.Tensor:
    """float[L, layers * H] of int64[L]: layer outputs of one pass without any cache."""
    with hidden_states(model, layers) as found:
        model(input_ids=text[None], use_cache=False)
    return torch.cat([found[layer][0] for layer in layers], dim=-1)


class SlowHead:
    """The head in float64 numpy, an entry at a time, each looking at a list of others. Written from the paper.

    Args:
        net: whose weights it has.
        embedding: float[V, H].
    """

    def __init__(self, net: Eagle3Net, embedding: torch.Tensor) -> None:
        self.weights = {key: value.double().numpy() for key, value in net.state_dict().items()}
        self.embedding = embedding.detach().double().numpy()
        self.before = net.config.norm_before_residual
        self.theta = 500.0
        self.keys: list[np.ndarray] = []
        self.values: list[np.ndarray] = []

    def fused(self, features: np.ndarray) -> np.ndarray:
        return self.weights["fc.weight"] @ features

    def entry(self, hidden: np.ndarray, token: int, place: int, sees: Sequence[int]) -> np.ndarray:
        """Output of a new entry that sees the entries `sees` and itself."""
        normed = self._rms(hidden, "midlayer.hidden_norm.weight")
        x = np.concatenate([self._rms(self.embedding[token], "midlayer.input_layernorm.weight"), normed])
        q, k, v = (
            (self.weights[f"midlayer.self_attn.{name}_proj.weight"] @ x).reshape(-1, 8) for name in ("q", "k", "v")
        )
        self.keys.append(np.stack([self._turned(head, place) for head in k]))
        self.values.append(v)
        looked = [*sees, len(self.keys) - 1]
        mixed = []
        for number, query in enumerate(q):
            group = number // (HEADS // KV_HEADS)
            scores = np.array([self.keys[other][group] @ self._turned(query, place) for other in looked]) / np.sqrt(8)
            share = np.exp(scores - scores.max())
            mixed.append(
                sum(p * self.values[other][group] for p, other in zip(share / share.sum(), looked, strict=True))
            )
        out = (normed if self.before else hidden) + self.weights["midlayer.self_attn.o_proj.weight"] @ np.concatenate(
            mixed
        )
        y = self._rms(out, "midlayer.post_attention_layernorm.weight")
        gate = self.weights["midlayer.mlp.gate_proj.weight"] @ y
        up = self.weights["midlayer.mlp.up_proj.weight"] @ y
        return out + self.weights["midlayer.mlp.down_proj.weight"] @ (gate / (1 + np.exp(-gate)) * up)

    def log_law(self, output: np.ndarray) -> dict[int, float]:
        """Log probability of every token of the target that the head knows."""
        logits = self.weights["lm_head.weight"] @ self._rms(output, "norm.weight")
        logs = logits - logits.max() - np.log(np.exp(logits - logits.max()).sum())
        return {draft + int(shift): logs[draft] for draft, shift in enumerate(self.weights["d2t"])}

    def read(self, text: Sequence[int], features: torch.Tensor) -> np.ndarray:
        """Entries for all of a text that has features (all but its last token); the last output."""
        output = np.zeros(0)
        for place, row in enumerate(features.double().numpy()[: len(text) - 1]):
            output = self.entry(self.fused(row), text[place + 1], place, range(place))
        return output

    def _rms(self, x: np.ndarray, name: str) -> np.ndarray:
        return self.weights[name] * x / np.sqrt((x * x).mean() + EPS)

    def _turned(self, x: np.ndarray, place: int) -> np.ndarray:
        """Rotary embedding: number i and i + half turn together."""
        turned = x.copy()
        for i in range(4):
            angle = place * self.theta ** (-i / 4)
            turned[i] = x[i] * np.cos(angle) - x[i + 4] * np.sin(angle)
            turned[i + 4] = x[i + 4] * np.cos(angle) + x[i] * np.sin(angle)
        return turned


def slow_chain(head: SlowHead, text: Sequence[int], features: torch.Tensor, count: int) -> list[tuple[int, float]]:
    """(token, probability) of each token of a greedy chain."""
    output, found = head.read(text, features), []
    for number in range(count):
        law = head.log_law(output)
        token = max(law, key=lambda token: law[token])
        found.append((token, float(np.exp(law[token]))))
        output = head.entry(output, token, len(text) - 1 + number, range(len(head.keys)))
    return found


def slow_tree(
    head: SlowHead, text: Sequence[int], features: torch.Tensor, *, size: int, depth: int, top_k: int
) -> dict[tuple[int, ...], float]:
    """Path probability of every node of the dynamic tree, a node being the tokens from the root to it."""
    root = head.read(text, features)
    before = list(range(len(head.keys)))
    outputs: dict[tuple[int, ...], np.ndarray] = {(): root}
    entries: dict[tuple[int, ...], int] = {}
    scores: dict[tuple[int, ...], float] = {(): 0.0}
    level: list[tuple[int, ...]] = [()]
    for deep in range(depth):
        grown: dict[tuple[int, ...], float] = {}
        for path in level:
            if path:
                sees = before + [entries[path[:length]] for length in range(1, len(path))]
                entries[path] = len(head.keys)
                outputs[path] = head.entry(outputs[path[:-1]], path[-1], len(text) - 1 + deep - 1, sees)
            law = head.log_law(outputs[path])
            for token in sorted(law, key=lambda token: -law[token])[:top_k]:
                grown[(*path, token)] = scores[path] + law[token]
        scores |= grown
        level = sorted(grown, key=lambda path: -grown[path])[:top_k]
    del scores[()]
    best = sorted(scores, key=lambda path: -scores[path])[:size]
    return {path: float(np.exp(scores[path])) for path in best}


def tree_paths(draft: Any) -> dict[tuple[int, ...], float]:
    """The same of a draft."""
    found: list[tuple[int, ...]] = []
    for token, parent in zip(draft.tokens.tolist(), draft.parents.tolist(), strict=True):
        found.append((*(found[parent] if parent >= 0 else ()), token))
    return dict(zip(found, draft.q.double().cumprod(0).tolist(), strict=True))
