"""The latency models that come with the package: fitted figures of public measurements (docs/latency.md, "Presets").

Owns `presets.json`. The public tables themselves are not here; `python -m specsim.latency points` and `fit` make the
figures from them again.
"""

from __future__ import annotations

from difflib import get_close_matches
from functools import cache
from importlib.resources import files

from specsim.errors import ConfigError
from specsim.latency.model import LatencyModel, parse_json

PRESETS_SCHEMA = "specsim.latency_presets/1"


@cache
def load_presets() -> dict[str, LatencyModel]:
    """All presets by name, in file order; provenance holds device, valid range, error, source and licence."""
    document = parse_json(files("specsim.latency").joinpath("presets.json").read_text("utf-8"), where="presets.json")
    assert document["schema"] == PRESETS_SCHEMA
    return {
        name: LatencyModel.from_dict(entry, where=f"presets.json, {name}")
        for name, entry in document["presets"].items()
    }


def load_preset(name: str) -> LatencyModel:
    """The preset called `name`.

    Raises:
        ConfigError: there is none; suggests the nearest name and lists all.
    """
    presets = load_presets()
    if name not in presets:
        close = get_close_matches(name, presets, n=1, cutoff=0.3)
        guess = f"Did you mean preset:{close[0]}?" if close else "`python -m specsim.latency presets` describes them."
        raise ConfigError(f"preset:{name}: no such preset; allowed: {', '.join(presets)}. {guess}")
    return presets[name]
