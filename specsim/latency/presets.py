"""The latency models that come with the package: fitted figures of public measurements (docs/latency.md, "Presets").

Owns `presets.json`. The public tables themselves are not here; `python -m specsim.latency points` and `fit` make the
figures from them again.
"""

from __future__ import annotations

from dataclasses import replace
from difflib import get_close_matches
from functools import cache
from importlib.resources import files
from typing import Any

from specsim.errors import ConfigError
from specsim.latency.forms import check_keys, fault
from specsim.latency.model import LatencyModel, parse_json

PRESETS_SCHEMA = "specsim.latency_presets/1"
_COSTS = ("draft_pass_s", "draft_token_s", "overhead_s", "ctx_s")


@cache
def load_presets() -> dict[str, LatencyModel]:
    """All presets by name, in file order; provenance holds device, valid range, error, source and licence."""
    document = parse_json(files("specsim.latency").joinpath("presets.json").read_text("utf-8"), where="presets.json")
    assert document["schema"] == PRESETS_SCHEMA
    return {
        name: LatencyModel.from_dict(entry, where=f"presets.json, {name}")
        for name, entry in document["presets"].items()
    }


def load_preset(spec: str) -> LatencyModel:
    """The preset that `spec` names: `NAME`, or `NAME:key=value,...` with costs of one's own.

    Presets hold verification only. The keys are `draft_pass_s`, `draft_token_s`, `overhead_s` and `ctx_s`, in seconds.

    Raises:
        ConfigError: no such preset (suggests the nearest name and lists all), unknown key, or a bad value.
    """
    name, _, costs = spec.partition(":")
    presets = load_presets()
    if name not in presets:
        begun = [known for known in presets if name and known.startswith(name)]
        close = begun or get_close_matches(name, presets, n=1, cutoff=0.3)
        guess = f"Did you mean preset:{close[0]}?" if close else "`python -m specsim.latency presets` describes them."
        raise ConfigError(f"preset:{name}: no such preset; allowed: {', '.join(presets)}. {guess}")
    try:
        return replace(presets[name], **_costs(costs)) if costs else presets[name]
    except ConfigError as error:
        raise ConfigError(f"preset:{spec}: {error}") from None


def _costs(text: str) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for item in text.split(","):
        key, equals, value = (part.strip() for part in item.partition("="))
        if not equals or key in found:
            raise fault(key or "cost", f"in {item!r}", "key=value, each key once", "Example: draft_pass_s=0.001")
        try:
            found[key] = float(value)
        except ValueError:
            raise fault(key, f"is {value!r}", "seconds, a number", "Example: draft_pass_s=0.001") from None
    check_keys("preset", found, _COSTS, strict=True)
    return found
