"""Key/value caches and the forward call: the only file that knows how transformers names and stores them.

Owns `KVCache`, a preallocated buffer that a decoder layer can write to, and `forward`, the one place a model is called
with a cache. Knows nothing about drafting, recording or prompts.

What differs between transformers 5.17 and 5.24, and is dealt with here: the model's argument is `past_key_values` in
one and `cache` in the other; a library cache crops to a length in one and removes a number of tokens in the other; the
mask code asks a cache for different things. Hence an own cache object that only needs `update`, and a mask that is
always given ready-made in four dimensions (the library then returns it unchanged in both versions).
"""

from __future__ import annotations

import inspect
from typing import Any

import torch


class KVCache:
    """Keys and values of one sequence in preallocated buffers, one pair per decoder layer that writes.

    Layers are addressed by their `layer_idx`, so that a model that runs only some layers leaves no gap. A buffer is
    allocated at the layer's first write: appending copies no old entry, unlike the library's growing cache.

    Args:
        capacity: token positions the buffers can hold.
    """

    is_compileable = False

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self._keys: dict[int, torch.Tensor] = {}
        self._values: dict[int, torch.Tensor] = {}
        self._lengths: dict[int, int] = {}

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, layer_idx: int, *_: Any, **__: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Append float[1, heads, new, head_dim] and return views of everything held by that layer (library hook)."""
        start = self._lengths.get(layer_idx, 0)
        end = start + key_states.shape[-2]
        assert end <= self.capacity, f"cache of {self.capacity} positions asked to hold {end}"
        if layer_idx not in self._keys:
            self._keys[layer_idx] = self._allocate(key_states)
            self._values[layer_idx] = self._allocate(value_states)
        keys, values = self._keys[layer_idx], self._values[layer_idx]
        keys[:, :, start:end] = key_states
        values[:, :, start:end] = value_states
        self._lengths[layer_idx] = end
        return keys[:, :, :end], values[:, :, :end]

    def _allocate(self, like: torch.Tensor) -> torch.Tensor:
        batch, heads, _, width = like.shape
        return like.new_empty(batch, heads, self.capacity, width)

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
) -> torch.Tensor:
    """Run new tokens of one sequence through a causal language model and append them to the cache.

    Args:
        model: a transformers causal language model (or a layer-skip view of one).
        input_ids: int64[new], the tokens to append.
        cache: what they may look back on; longer by `new` afterwards.
        position_ids: int64[new]; default: they follow the cached tokens.
        visible: bool[new, cached + new], True where a new token sees a cached or new one; default: causal.
        keep: logits of only the last `keep` new tokens (0: all).

    Returns:
        float[new or keep, vocabulary] logits.
    """
    past, new, device = cache.length, input_ids.shape[0], input_ids.device
    if position_ids is None:
        position_ids = torch.arange(past, past + new, device=device)
    if visible is None:
        visible = causal_mask(new, past, device)
    dtype = next(model.parameters()).dtype
    # An additive mask, not a boolean one: the eager attention of the library adds whatever it is given.
    mask = torch.zeros(visible.shape, dtype=dtype, device=device).masked_fill_(~visible, torch.finfo(dtype).min)
    output = model(
        input_ids=input_ids[None],
        position_ids=position_ids[None],
        attention_mask=mask[None, None],
        use_cache=True,
        logits_to_keep=keep,
        **{_cache_argument(model): cache},
    )
    return output.logits[0]


def _cache_argument(model: torch.nn.Module) -> str:
    """`cache` (transformers 5.24) or `past_key_values` (before); the renamed one still works, but warns."""
    kind = type(model)
    if kind not in _CACHE_ARGUMENT:
        # A subclass may pass everything on in **kwargs: then the class it derives from decides.
        signatures = (inspect.signature(base.forward).parameters for base in kind.__mro__ if hasattr(base, "forward"))
        named = (name for parameters in signatures for name in ("cache", "past_key_values") if name in parameters)
        _CACHE_ARGUMENT[kind] = next(named, "past_key_values")
    return _CACHE_ARGUMENT[kind]


_CACHE_ARGUMENT: dict[type, str] = {}
