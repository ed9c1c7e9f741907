"""Self-speculation: the target itself with some decoder layers left out, sharing every weight.

Owns the choice of layers and the shallow model. Knows nothing about drafting loops or recording.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from real.builders.arm import parse_layers as parse_layers  # drafter specs and tests take it from here
from specsim.errors import ConfigError


def check_layers(skip: Sequence[int], n_layers: int) -> tuple[int, ...]:
    """The skip set, sorted, if it can be used with a target of `n_layers` decoder layers.

    Raises:
        ConfigError: a layer out of range, nothing skipped, or nothing left.
    """
    layers = tuple(sorted(set(skip)))
    wrong = [layer for layer in layers if not 0 <= layer < n_layers]
    if wrong:
        raise ConfigError(f"skip layers {wrong}: the target has layers 0..{n_layers - 1}")
    if not layers:
        raise ConfigError("the skip set is empty: such a drafter is the target; name layers, e.g. layer-skip:skip=9-14")
    if len(layers) == n_layers:
        raise ConfigError(f"all {n_layers} layers would be skipped; leave at least one")
    return layers


def skip_layers(target: Any, skip: Sequence[int]) -> Any:
    """A model that runs the target's decoder layers except those in `skip`; no weight is copied.

    The kept layers are the target's own modules with their own `layer_idx`, so a cache addresses them as before.
    An empty `skip` is allowed here (tests use it: that drafter must always be accepted).

    Args:
        target: a transformers causal language model whose decoder layers are `model.model.layers`.
        skip: layer numbers, 0-based.

    Raises:
        ConfigError: layers out of range, or a decoder this cannot shorten.
    """
    layers = own_layers(target)
    dropped = set(check_layers(skip, len(layers))) if skip else set()
    return with_layers(target, {number: layer for number, layer in enumerate(layers) if number not in dropped}).eval()


def own_layers(target: Any) -> torch.nn.ModuleList:
    """The decoder layers of a model that can be given others in their place.

    Raises:
        ConfigError: they are not `target.model.layers`.
    """
    layers = getattr(getattr(target, "model", None), "layers", None)
    if not isinstance(layers, torch.nn.ModuleList):
        raise ConfigError(
            f"layer-skip needs decoder layers in model.model.layers, as Llama has; {type(target).__name__} has none"
        )
    return layers


def with_layers(target: Any, layers: Mapping[int, torch.nn.Module]) -> Any:
    """A model that runs these modules instead of the target's decoder layers, and shares everything else.

    Args:
        target: as for `skip_layers`.
        layers: by the number of the layer whose place each takes, ascending.
    """
    shallow, body, kept = _share(target), _share(target.model), list(layers)
    body.layers = torch.nn.ModuleList(layers.values())
    if kinds := getattr(target.config, "layer_types", None):
        # The library picks a layer's mask by its place in this list.
        shallow.config = body.config = copy.copy(target.config)
        body.config.layer_types = [kinds[number] for number in kept]
    shallow.model = body
    return shallow


def _share(module: torch.nn.Module) -> Any:
    """A module of the same class over the same children; replacing a child leaves the original alone."""
    twin = copy.copy(module)
    twin._modules = dict(module._modules)
    return twin
