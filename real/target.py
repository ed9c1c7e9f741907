"""The model whose output is wanted: prompt in, draft scored, rejected tokens taken back.

Owns the target's cache, and the hidden states that drafters ask for. A drafter that runs the target's own layers may
write into the cache too (`Loan`). Knows nothing about who drafts or decides.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from real.cache import CACHES, KVCache, check_model, forward
from real.tree import depths, visible
from real.vision.prompt import VisionPrompt, ids_of, seen_of
from specsim.errors import ConfigError

EMBEDDINGS = -1  # in place of a layer's number: what enters the first one


class Tap:
    """Hidden states of the target that a drafter reads: those of every committed token but the last.

    Made by `Target.tap`; the decode loop hands the drafter's tap to the target, which fills it.

    Args:
        layers: 0-based decoder layers, whose output is read, or `EMBEDDINGS`.
        width: numbers per token in all, len(layers) * hidden size.
        like: any tensor of the target's type and device.

    Attributes:
        prompt_only: fill it for the prompt's tokens and no others.
    """

    prompt_only = False

    def __init__(self, layers: tuple[int, ...], width: int, like: torch.Tensor) -> None:
        self.layers, self.width = layers, width
        self._nothing = like.new_zeros(0, width)
        self._rows: list[torch.Tensor] = []

    def clear(self) -> None:
        """Begin a request."""
        self._rows = []

    def add(self, rows: torch.Tensor) -> None:
        """Append float[new, width] features of tokens just committed."""
        self._rows.append(rows)

    def take(self) -> torch.Tensor:
        """float[new, width]: features of the committed tokens not taken before, in the order of the text, the layers'
        side by side."""
        rows, self._rows = self._rows, []
        return torch.cat(rows) if rows else self._nothing


class Loan:
    """The target's cache in the hands of a drafter that runs the target's own layers.

    Before each round it holds every committed token but the last, in every layer. What the drafter appends, in those
    layers that it runs, is forgotten when the target scores.

    Attributes:
        cache: of the request under way; set by `Target.start`.
    """

    cache: KVCache


class Target:
    """A causal language model under decoding.

    Args:
        model: transformers causal language model in eval mode.
        cache: `dynamic` (grows) or `static` (fixed shapes, for compiled models).
        merge_prompt: let the first round take the prompt in, which saves a pass per request; its time then holds the
            prompt's. For use, not for measuring rounds.

    Raises:
        ConfigError: a model that tokens cannot be taken back from (`real.cache.check_model`), or an unknown cache.
    """

    def __init__(self, model: Any, *, cache: str = "dynamic", merge_prompt: bool = False) -> None:
        if cache not in CACHES:
            raise ConfigError(f"cache {cache!r}: allowed: {', '.join(CACHES)}")
        check_model(model, static=cache == "static")
        self.model, self._static, self._merge = model, cache == "static", merge_prompt
        self.device = next(model.parameters()).device
        self.window: int | None = getattr(model.config, "max_position_embeddings", None)

    def tap(self, layers: Sequence[int]) -> Tap:
        """A tap on the output of some decoder layers, for a drafter of this target.

        Raises:
            ConfigError: no layers, or not the target's.
        """
        return make_tap(self.model, layers)

    def start(
        self,
        prompt: torch.Tensor | VisionPrompt,
        capacity: int,
        tap: Tap | None = None,
        loan: Loan | None = None,
    ) -> None:
        """Take in all of the prompt (P >= 1 tokens) but its last token, which the first round scores.

        Args:
            prompt: int64[P], or with pictures, which are taken in at once; only a model that `real.vision.load` made
                can see them.
            capacity: tokens that prompt, output and a draft can reach together.
            tap: what the drafter reads of this request.
            loan: how the drafter gets at the cache; the prompt is then taken in at once, for it to build on.
        """
        ids, seen = ids_of(prompt), seen_of(prompt)
        self._cache, self._waiting, self._tap = KVCache(capacity, static=self._static), ids[:-1], tap
        self._cache.shift = 0 if seen is None else seen.shift
        self._lent, self._held = loan is not None, len(ids) - 1
        self._features: torch.Tensor | None = None
        if loan is not None:
            loan.cache = self._cache
        if tap is not None:
            tap.clear()
        if len(ids) > 1 and (self._lent or seen is not None or not self._merge):
            self._forward(ids[:-1], keep=1, prompt=seen)
            self._waiting = ids[:0]
            if tap is not None and self._features is not None:
                tap.add(self._features)
        if tap is not None and tap.prompt_only:
            self._tap = None

    def score(self, tokens: torch.Tensor, parents: torch.Tensor | None = None) -> torch.Tensor:
        """float[s, V] logits of what follows each of int64[s] tokens: the last committed one and the draft.

        Args:
            tokens: int64[s].
            parents: int64[s - 1] on the host when the draft is a tree, see `real.verify.Draft`.
        """
        if self._lent:
            self._cache.crop_to(self._held)
        waiting, self._waiting = self._waiting, self._waiting[:0]
        # Where the draft begins in the cache, and the first position of which this pass sees the hidden state.
        self._first = self._cache.length
        self._base = self._first + len(waiting) + 1
        if parents is not None:
            return self._score_tree(torch.cat([waiting, tokens]), len(waiting), parents.tolist())
        if not len(waiting):
            return self._forward(tokens)
        return self._forward(torch.cat([waiting, tokens]), keep=len(tokens))

    def _score_tree(self, tokens: torch.Tensor, waiting: int, parents: list[int]) -> torch.Tensor:
        past, count = self._cache.length, len(parents) + 1
        seen = visible(parents, past + waiting, self.device)
        if waiting:
            causal = torch.ones(waiting, seen.shape[1], dtype=torch.bool, device=self.device).tril(past)
            seen = torch.cat([causal, seen])
        places = [*range(past, self._base), *(self._base - 1 + depth for depth in depths(parents))]
        position_ids = torch.tensor(places, device=self.device)
        return self._forward(tokens, position_ids=position_ids, visible=seen, keep=count if waiting else 0)

    def commit(self, length: int, path: Sequence[int] | None = None) -> None:
        """Keep the first `length` tokens of the text; what was scored beyond them is forgotten.

        Args:
            length: tokens of the text that were scored, all but the round's last one.
            path: nodes of the tree that were accepted, from the top; None when the draft was a chain.
        """
        nodes = list(range(length - self._base)) if path is None else list(path)
        self._cache.keep(self._base, nodes)
        self._held = self._base + len(nodes)
        if self._tap is not None and self._features is not None:
            before = self._base - self._first
            rows = torch.tensor([*range(before), *(before + node for node in nodes)], device=self.device)
            self._tap.add(self._features[rows])

    def _forward(self, tokens: torch.Tensor, **how: Any) -> torch.Tensor:
        if self._tap is None:
            return forward(self.model, tokens, self._cache, **how)
        with hidden_states(self.model, self._tap.layers) as found:
            logits = forward(self.model, tokens, self._cache, **how)
        self._features = torch.cat([found[layer][0] for layer in self._tap.layers], dim=-1)
        return logits


def make_tap(model: Any, layers: Sequence[int]) -> Tap:
    """`Target.tap` for a model.

    Raises:
        ConfigError: no layers, or not the model's.
    """
    count = len(decoder_layers(model))
    wrong = [layer for layer in layers if not EMBEDDINGS <= layer < count]
    if wrong or not layers:
        raise ConfigError(f"features of layers {list(layers)}: the target has layers 0..{count - 1}")
    weights = model.get_input_embeddings().weight
    return Tap(tuple(layers), len(layers) * weights.shape[1], weights.detach())


def decoder_layers(model: Any) -> torch.nn.ModuleList:
    """The decoder layers of a causal language model.

    Raises:
        ConfigError: a model whose layers are not where those of Llama (`model.layers`) or GPT-2 (`transformer.h`) are.
    """
    for path in ("model.layers", "model.language_model.layers", "transformer.h"):
        found: Any = model
        for name in path.split("."):
            found = getattr(found, name, None)
        if isinstance(found, torch.nn.ModuleList):
            return found
    raise ConfigError(
        f"{type(model).__name__} has no decoder layers in model.layers or transformer.h; a drafter that reads hidden "
        "states needs a target like Llama, Qwen, Mistral, Gemma or GPT-2"
    )


@contextmanager
def hidden_states(model: Any, layers: Sequence[int]) -> Iterator[dict[int, torch.Tensor]]:
    """While it is open, a forward pass leaves float[batch, tokens, H], the output of each of `layers`, in the dict.

    `EMBEDDINGS` stands for what enters the first layer.

    Hooks instead of `output_hidden_states`: those of all layers would be kept, and the last one is normalised there.
    """
    found: dict[int, torch.Tensor] = {}
    stack = decoder_layers(model)

    def keep(layer: int) -> Any:
        def hook(module: torch.nn.Module, inputs: Any, output: Any) -> None:
            found[layer] = output[0] if isinstance(output, tuple) else output  # a tuple in some models

        return hook

    def enter(module: torch.nn.Module, inputs: Any, given: Any) -> None:
        found[EMBEDDINGS] = inputs[0] if inputs else given["hidden_states"]

    handles = [
        stack[0].register_forward_pre_hook(enter, with_kwargs=True)
        if layer == EMBEDDINGS
        else stack[layer].register_forward_hook(keep(layer))
        for layer in dict.fromkeys(layers)
    ]
    try:
        yield found
    finally:
        for handle in handles:
            handle.remove()
