"""From a drafter's name on the command line to its settings.

Owns the names, the syntax `name[:key=value]` and the default skip set. Knows nothing about recording.
"""

from __future__ import annotations

import difflib
from dataclasses import dataclass

from real.drafters.layer_skip import check_layers, parse_layers
from real.drafters.prompt_lookup import MAX_NGRAM_LEN
from specsim.errors import ConfigError

LAYER_SKIP, PROMPT_LOOKUP = "layer-skip", "prompt-lookup"
KEYS = {LAYER_SKIP: ("skip", "keep"), PROMPT_LOOKUP: ("ngram",)}

# Found by `python -m real.skip_search`, see traces/README.md.
DEFAULT_SKIP = {"smollm2-135m": (5, 7, 12, 26)}


@dataclass(frozen=True, kw_only=True)
class DrafterSpec:
    """A drafter and its settings; `skip_layers` for layer-skip, `max_ngram_len` for prompt-lookup, else None."""

    name: str
    skip_layers: tuple[int, ...] | None = None
    max_ngram_len: int | None = None

    def block_len(self, max_draft_len: int) -> int:
        """Tokens one drafter pass yields: one for layer-skip, a whole draft for a prompt lookup."""
        return 1 if self.name == LAYER_SKIP else max_draft_len


def parse_drafter(text: str, *, target: str, n_layers: int, skip_layers: str | None = None) -> DrafterSpec:
    """Read a drafter: `layer-skip`, `layer-skip:skip=9-14`, `layer-skip:keep=0-8,15-29`, `prompt-lookup:ngram=3`.

    Args:
        text: the drafter.
        target: name of the target, which decides the default skip set.
        n_layers: decoder layers of the target.
        skip_layers: value of `--skip-layers`, the same as `skip=`.

    Raises:
        ConfigError: unknown name or key, layers out of range, no or all layers skipped.
    """
    name, _, rest = text.partition(":")
    if name not in KEYS:
        close = difflib.get_close_matches(name, KEYS, n=1)
        hint = f"did you mean {close[0]!r}?" if close else f"allowed: {', '.join(KEYS)}"
        raise ConfigError(f"drafter {name!r}: no such drafter; {hint}")
    key, equals, value = rest.partition("=")
    if rest and (key not in KEYS[name] or not equals or not value):
        allowed = " or ".join(f"{name}:{known}=..." for known in KEYS[name])
        raise ConfigError(f"drafter {text!r}: cannot read {rest!r}; allowed: {allowed}")
    if name == PROMPT_LOOKUP:
        if skip_layers is not None:
            raise ConfigError("--skip-layers belongs to the drafter layer-skip; prompt-lookup has no layers")
        return DrafterSpec(name=name, max_ngram_len=_ngram(value) if rest else MAX_NGRAM_LEN)
    if rest and skip_layers is not None:
        raise ConfigError(f"drafter {text!r}: give the layers here or in --skip-layers, not both")
    return DrafterSpec(name=name, skip_layers=_skip_set(target, n_layers, key, value, skip_layers))


def _skip_set(target: str, n_layers: int, key: str, value: str, skip_layers: str | None) -> tuple[int, ...]:
    if key == "keep":
        kept = parse_layers(value)
        wrong = [layer for layer in kept if layer >= n_layers]
        if wrong:
            raise ConfigError(f"keep layers {wrong}: the target has layers 0..{n_layers - 1}")
        return check_layers([layer for layer in range(n_layers) if layer not in kept], n_layers)
    if key == "skip" or skip_layers is not None:
        return check_layers(parse_layers(value or skip_layers or ""), n_layers)
    if target not in DEFAULT_SKIP:
        raise ConfigError(f"layer-skip has no default skip set for {target!r}; name layers, e.g. --skip-layers 9-14")
    return check_layers(DEFAULT_SKIP[target], n_layers)


def _ngram(value: str) -> int:
    if not value.isdigit() or int(value) < 1:
        raise ConfigError(f"prompt-lookup: ngram is {value!r}; allowed: a whole number >= 1")
    return int(value)
