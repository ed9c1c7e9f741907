"""Key/value caches and the forward call: the only file that knows how transformers names and stores them.

Owns the caches a decoder layer can write to, `forward` (the one place a model is called with a cache), and the question
which models it can serve. Knows nothing about drafting, recording or prompts.

What differs between transformers 5.17 and 5.24, and is dealt with here: the model's argument is `past_key_values` in
one and `cache` in the other; a library cache crops to a length in one and removes a number of tokens in the other; the
mask code asks a cache for different things. Hence own cache objects that only need `update`, and masks that are always
given ready-made in four dimensions (the library then returns them unchanged in both versions). Sliding-window layers
keep every key and are limited by their mask, so taking tokens back cannot lose what a window had already dropped.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from real.vision.prompt import VisionPrompt
from specsim.errors import ConfigError

FIRST_CAPACITY = 256
CACHES = ("dynamic", "static")
FULL, SLIDING = "full_attention", "sliding_attention"


class KVCache:
    """Keys and values of one sequence, one pair of buffers per decoder layer that writes.

    Layers are addressed by their `layer_idx`, so that a model that runs only some layers leaves no gap. Buffers are
    allocated at a layer's first write and doubled when they are full: appending copies no old entry otherwise.

    Args:
        capacity: token positions the sequence may reach.
        static: allocate the whole capacity at once and show all of it to attention (what was not written is hidden by
            the mask), so that shapes stay the same from call to call.

    Attributes:
        shift: rotary position of a token less its place in the text. Not 0 behind pictures, which take fewer positions
            than tokens (`real.vision.prompt`); places, masks and windows count tokens all the same.
    """

    is_compileable = False

    def __init__(self, capacity: int, *, static: bool = False) -> None:
        self.capacity, self.static, self.shift = capacity, static, 0
        self._keys: dict[int, torch.Tensor] = {}
        self._values: dict[int, torch.Tensor] = {}
        self._lengths: dict[int, int] = {}
        self._positions: torch.Tensor | None = None  # of every slot, when they are not simply 0, 1, 2, ...

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, layer_idx: int, *_: Any, **__: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Append float[1, heads, new, head_dim] and return views of everything held by that layer (library hook)."""
        start = self._lengths.get(layer_idx, 0)
        end = start + key_states.shape[-2]
        assert end <= self.capacity, f"cache of {self.capacity} positions asked to hold {end}"
        for buffers, states in ((self._keys, key_states), (self._values, value_states)):
            buffer = buffers.get(layer_idx)
            if buffer is None or buffer.shape[2] < end:
                buffer = buffers[layer_idx] = self._allocate(states, end, buffer)
            buffer[:, :, start:end] = states
        self._lengths[layer_idx] = end
        shown = self.capacity if self.static else end
        return self._keys[layer_idx][:, :, :shown], self._values[layer_idx][:, :, :shown]

    def _allocate(self, like: torch.Tensor, needed: int, old: torch.Tensor | None) -> torch.Tensor:
        batch, heads, _, width = like.shape
        size = self.capacity if self.static else min(self.capacity, max(FIRST_CAPACITY, 2 * needed))
        # Zeros: attention multiplies hidden slots by a weight of 0, and 0 times a leftover NaN would be NaN.
        fresh = like.new_zeros(batch, heads, size, width)
        if old is not None:
            fresh[:, :, : old.shape[2]] = old
        return fresh

    @property
    def length(self) -> int:
        """Token positions held (the same in every layer that writes)."""
        return max(self._lengths.values(), default=0)

    def get_seq_length(self, layer_idx: int | None = None, **_: Any) -> int:
        """`length`; the library's name for it. Not layer 0's, which a layer-skip drafter may leave empty."""
        return self.length

    def crop_to(self, length: int) -> None:
        """Forget every position from `length` on; the buffers stay."""
        assert 0 <= length <= self.length
        for layer_idx in self._lengths:
            self._lengths[layer_idx] = length
        if self._positions is not None:
            self._positions = self._positions[:length]

    def keep(self, start: int, places: Sequence[int]) -> None:
        """Forget every position from `start` on but start + places[0], start + places[1], ..., which move together.

        Args:
            start: positions before it stay.
            places: ascending; what is left is one text again, each token at its place in it.
        """
        if list(places) != list(range(len(places))):
            rows = start + torch.tensor(list(places), dtype=torch.int64)
            for buffer in (*self._keys.values(), *self._values.values()):
                rows = rows.to(buffer.device)  # copied once where all layers are on one device
                buffer[:, :, start : start + len(places)] = buffer[:, :, rows]
        self.crop_to(start + len(places))
        self._positions = None

    @contextmanager
    def aside(self, length: int) -> Iterator[None]:
        """While it is open, what stands from `length` on is forgotten; afterwards the cache is as it was before."""
        lengths, positions = dict(self._lengths), self._positions
        kept = [
            {layer: buffer[:, :, length : lengths[layer]].clone() for layer, buffer in buffers.items()}
            for buffers in (self._keys, self._values)
        ]
        self.crop_to(length)
        try:
            yield
        finally:
            for buffers, rows in zip((self._keys, self._values), kept, strict=True):
                for layer, held in rows.items():
                    buffers[layer][:, :, length : lengths[layer]] = held
            self._lengths, self._positions = {layer: lengths.get(layer, 0) for layer in self._lengths}, positions

    def append_rows(self, source: KVCache, rows: torch.Tensor) -> None:
        """Append copies of what another cache holds at some places (int64[n]), in each layer that has written there."""
        for layer, keys in source._keys.items():
            self.update(keys[:, :, rows], source._values[layer][:, :, rows], layer)

    def place(self, position_ids: torch.Tensor | None, new: int, device: Any) -> tuple[torch.Tensor, torch.Tensor]:
        """Note where `new` coming tokens sit; (int64[new] their positions, int64[held + new] those of all slots)."""
        held = self.length
        if position_ids is None and self._positions is None:
            slots = torch.arange(held + new, device=device)
            return slots[held:], slots
        before = torch.arange(held, device=device) if self._positions is None else self._positions
        here = torch.arange(held, held + new, device=device) if position_ids is None else position_ids
        self._positions = torch.cat([before, here])
        return here, self._positions


class Branches:
    """The beginning of a cache as a batch of branches sees it, each of which goes on from there by itself.

    Args:
        cache: of one sequence.
        length: tokens of it that they see. They append nothing.
    """

    is_compileable = False

    def __init__(self, cache: KVCache, length: int) -> None:
        self._cache, self._length = cache, length

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, layer_idx: int, *_: Any, **__: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """What was cached, and behind it float[B, heads, new, head_dim] of the branches (library hook)."""
        keys, values = self._cache._keys.get(layer_idx), self._cache._values.get(layer_idx)
        return self._behind(keys, key_states), self._behind(values, value_states)

    def _behind(self, held: torch.Tensor | None, states: torch.Tensor) -> torch.Tensor:
        if held is None:
            return states
        branches, _, new, _ = states.shape
        before = held[:, :, : self._length].expand(branches, -1, -1, -1)
        # A static cache shows all its places, and its masks are as wide; they hide those behind.
        rest = held[:, :, self._length + new :] if self._cache.static else held[:, :, :0]
        return torch.cat([before, states, rest.expand(branches, -1, -1, -1)], dim=2)

    def get_seq_length(self, layer_idx: int | None = None, **_: Any) -> int:
        """Tokens before the branches' own."""
        return self._length


def causal_mask(new: int, past: int, device: torch.device | str = "cpu") -> torch.Tensor:
    """bool[new, past + new]: new token i sees everything before it and itself."""
    columns = torch.arange(past + new, device=device)
    return columns[None, :] <= past + torch.arange(new, device=device)[:, None]


def forward(
    model: torch.nn.Module,
    input_ids: torch.Tensor,
    cache: KVCache,
    *,
    position_ids: torch.Tensor | None = None,
    visible: torch.Tensor | None = None,
    keep: int = 0,
    prompt: VisionPrompt | None = None,
) -> torch.Tensor:
    """Run new tokens of one sequence through a causal language model and append them to the cache.

    Args:
        model: a transformers causal language model (or a layer-skip view of one).
        input_ids: int64[new], the tokens to append.
        cache: what they may look back on; longer by `new` afterwards.
        position_ids: int64[new]; default: they follow the cached tokens.
        visible: bool[new, cached + new], True where a new token sees a cached or new one; default: causal.
        keep: logits of only the last `keep` new tokens (0: all).
        prompt: a prompt with pictures, of which `input_ids` is the beginning up to any token behind the last picture.

    Returns:
        float[new or keep, vocabulary] logits.
    """
    past, new, device = cache.length, input_ids.shape[0], input_ids.device
    positions, slots = cache.place(position_ids, new, device)
    dtype = next(model.parameters()).dtype
    masks = {
        kind: _additive(_visible(visible, new, past, positions, slots, window), dtype, device, new, past, cache)
        for kind, window in attention_windows(model).items()
    }
    pictures: Mapping[str, torch.Tensor] = {}
    rotary = (positions + cache.shift if cache.shift else positions)[None]
    if prompt is not None:
        pictures = prompt.inputs
        rotary = positions[None] if prompt.positions is None else prompt.positions[:, None, :new]
    output = model(
        input_ids=input_ids[None],
        position_ids=rotary,
        # One mask when all layers look the same way, else one per kind: both forms the library hands on unchanged.
        attention_mask=masks if len(masks) > 1 else next(iter(masks.values())),
        use_cache=True,
        logits_to_keep=keep,
        **pictures,
        **{cache_argument(model): cache},
    )
    return output.logits[0]


def _visible(
    visible: torch.Tensor | None,
    new: int,
    past: int,
    positions: torch.Tensor,
    slots: torch.Tensor,
    window: int | None,
) -> torch.Tensor | None:
    """bool[new, past + new], or None where a single token sees everything."""
    if window is None:
        return visible if visible is not None else None if new == 1 else causal_mask(new, past, positions.device)
    seen = causal_mask(new, past, positions.device) if visible is None else visible
    return seen & (slots[None, :] > positions[:, None] - window)


def _additive(
    visible: torch.Tensor | None, dtype: torch.dtype, device: Any, new: int, past: int, cache: KVCache
) -> torch.Tensor:
    """[1, 1, new, slots] to add to attention scores: the eager attention of the library adds whatever it is given."""
    hidden = torch.finfo(dtype).min
    columns = cache.capacity if cache.static else past + new
    mask = torch.zeros(new, columns, dtype=dtype, device=device)
    if visible is not None:
        mask[:, : past + new].masked_fill_(~visible, hidden)
    mask[:, past + new :] = hidden
    return mask[None, None]


def attention_windows(model: torch.nn.Module) -> dict[str, int | None]:
    """How many tokens each kind of attention layer of a model looks back; None: all.

    Raises:
        ConfigError: layers whose state is not keys and values per token, which tokens cannot be taken back from.
    """
    config: Any = model.config
    window = getattr(config, "sliding_window", None)
    kinds = set(getattr(config, "layer_types", None) or [SLIDING if window is not None else FULL])
    strange = sorted(kinds - {FULL, SLIDING})
    if strange:
        raise ConfigError(
            f"{type(model).__name__} has layers of type {', '.join(strange)}; speculative decoding has to take "
            f"rejected tokens back, which works for {FULL} and {SLIDING} here"
        )
    return {kind: window if kind == SLIDING else None for kind in sorted(kinds)}


def check_model(model: Any, *, static: bool = False) -> None:
    """Refuse a model whose logits after a rejection are not those of a fresh prefill.

    Feeds a few tokens, takes back a wrong continuation, feeds the right one, and compares with a call without any
    cache. Costs four short forward passes; a model is checked once for each kind of cache.

    Args:
        model: a transformers model.
        static: with a cache of fixed shape, whose unwritten slots the model's own masks may get wrong.

    Raises:
        ConfigError: an encoder-decoder, an attention implementation without masks, unsupported layers, a model that
            cannot be called this way, or logits that differ.
    """
    checked: set[bool] = getattr(model, "_specsim_checked", set())
    if static in checked:
        return
    name, config = type(model).__name__, model.config
    if getattr(config, "is_encoder_decoder", False):
        raise ConfigError(f"{name} is an encoder-decoder; a causal language model is needed")
    attention = str(getattr(config, "_attn_implementation", ""))
    if "flash" in attention or "flex" in attention:
        raise ConfigError(
            f"{name} uses {attention}, which takes no ready-made mask; load it with attn_implementation='sdpa'"
        )
    attention_windows(model)
    try:
        plain, cached = _logits_two_ways(model, static)
    except torch.OutOfMemoryError:
        raise
    except (AssertionError, AttributeError, IndexError, RuntimeError, TypeError, ValueError) as error:
        raise ConfigError(
            f"{name} cannot be called with a cache and a ready-made mask ({type(error).__name__}: {error}), as "
            "speculative decoding does here; models that work like Llama, Qwen, Mistral, Gemma or GPT-2 can be"
        ) from error
    scale = float(plain.abs().max())
    tolerance = (1e-3 if next(model.parameters()).dtype.itemsize >= 4 else 5e-2) * max(scale, 1e-6)
    gap = float((plain - cached).abs().max())
    if not gap <= tolerance:
        advice = "; load it with the dynamic cache" if static else ""
        raise ConfigError(
            f"{name}: after taking tokens back its logits differ from a fresh pass by {gap:.2g} (allowed "
            f"{tolerance:.2g}); its cache cannot be cropped, so speculative decoding would not be lossless{advice}"
        )
    model._specsim_checked = {*checked, static}


@torch.inference_mode()
def _logits_two_ways(model: Any, static: bool) -> tuple[torch.Tensor, torch.Tensor]:
    """float32[4, V] logits of the same tokens without a cache, and after tokens were taken back."""
    size = int(getattr(model.config, "vocab_size", 0) or model.get_output_embeddings().weight.shape[0])
    ids = (torch.arange(9, device=next(model.parameters()).device) * 7 + 3) % size
    plain = model(input_ids=ids[None], use_cache=False).logits[0, 5:].float()
    # Longer than a local window of 256 (GPT-Neo), so that a model which masks by the length of the buffer is seen.
    cache = KVCache(512, static=static)
    forward(model, ids[:5], cache)
    forward(model, ids[:4].flip(0), cache)
    cache.crop_to(5)
    return plain, forward(model, ids[5:], cache).float()


def cache_argument(model: torch.nn.Module) -> str:
    """`cache` (transformers 5.24) or `past_key_values` (before); the renamed one still works, but warns."""
    kind = type(model)
    if kind not in _CACHE_ARGUMENT:
        # A subclass may pass everything on in **kwargs: then the class it derives from decides.
        signatures = (inspect.signature(base.forward).parameters for base in kind.__mro__ if hasattr(base, "forward"))
        named = (name for parameters in signatures for name in ("cache", "past_key_values") if name in parameters)
        _CACHE_ARGUMENT[kind] = next(named, "past_key_values")
    return _CACHE_ARGUMENT[kind]


_CACHE_ARGUMENT: dict[type, str] = {}
