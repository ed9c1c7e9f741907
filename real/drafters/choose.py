"""From a drafter's name on the command line to its settings.

Owns the names, the syntax `name[:key=value,key=value]` and the default skip set. Loads nothing: `real.session` does.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass, field

from real.drafters.layer_skip import check_layers, parse_layers
from real.drafters.options import whole
from real.drafters.prompt_lookup import MAX_NGRAM_LEN
from specsim.errors import ConfigError

NONE, LAYER_SKIP, EARLY_EXIT, PROMPT_LOOKUP, MODEL = "none", "layer-skip", "early-exit", "prompt-lookup", "model"
DFLASH, DDTREE, FASTDLLM, EAGLE3 = "dflash", "ddtree", "fastdllm", "eagle3"
SELF = "self"
KEYS: dict[str, tuple[str, ...]] = {
    NONE: (),
    LAYER_SKIP: ("skip", "keep"),
    EARLY_EXIT: ("layers",),
    PROMPT_LOOKUP: ("ngram",),
    MODEL: ("path",),
    DFLASH: ("path", "pass_rule", "block"),
    DDTREE: ("path", "budget", "limit"),
    FASTDLLM: ("path", "threshold", "block", "small", "dual"),
    EAGLE3: ("path", "tree", "depth", "topk"),
    SELF: (
        *("skip", "arms", "build", "fraction", "zero", "warmup", "probe", "rebuild"),
        *("ratio", "trials", "tolerance", "score", "window", "judged", "every", "bayes", "seed"),
        *("latency", "context"),
        *("prune", "choice", "share", "attended", "lowest", "nested", "queries"),
        *("length", "lengths", "stop", "tree"),
    ),
}
# Drafters that cannot do without one of their keys.
NEEDED = {EARLY_EXIT: "layers", MODEL: "path", DFLASH: "path", DDTREE: "path", FASTDLLM: "path", EAGLE3: "path"}

# Found by `python -m real.skip_search`, see traces/README.md.
DEFAULT_SKIP = {"smollm2-135m": (5, 7, 12, 26)}


@dataclass(frozen=True, kw_only=True)
class DrafterSpec:
    """A drafter and its settings; those that do not belong to it are None.

    Args:
        name: one of `KEYS`.
        skip_layers: layers of the target left out (layer-skip, early-exit).
        max_ngram_len: longest n-gram searched (prompt-lookup).
        path: folder or hub id of the drafting model (model).
        options: keys and values as they were spelled, for the drafters of `real.session.MAKERS`, which read them.
    """

    name: str
    skip_layers: tuple[int, ...] | None = None
    max_ngram_len: int | None = None
    path: str | None = None
    options: Mapping[str, str] = field(default_factory=dict)


def parse_drafter(text: str, *, target: str, n_layers: int, skip_layers: str | None = None) -> DrafterSpec:
    """Read a drafter.

    `none`, `prompt-lookup`, `prompt-lookup:ngram=3`, `layer-skip`, `layer-skip:skip=9-14`, `layer-skip:keep=0-8,15-29`,
    `early-exit:layers=8` (the first 8), `model:path=HuggingFaceTB/SmolLM2-135M-Instruct`,
    `dflash:path=z-lab/Qwen3-4B-DFlash-b16,pass_rule=per-length`, `ddtree:path=z-lab/Qwen3-4B-DFlash-b16,budget=128`,
    `fastdllm:path=Efficient-Large-Model/Fast_dLLM_v2_1.5B,threshold=0.05`,
    `eagle3:path=yuhuili/EAGLE3-LLaMA3.1-Instruct-8B,tree=59`, `self:skip=a3,5-7+m2,9`,
    `self:skip=9-14,lengths=1,2,4,8`, `self:arms=arms.json,length=4,stop=0.7,tree=published`,
    `self:build=cossim,fraction=0.6,zero=1`, `self:build=swift,ratio=0.3,0.45`, `self:build=knapspec,arms=6`,
    `self:build=clasp,rebuild=64`, `self:prune=0,0.5,0.9,length=4`.

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
    options = _options(text, name, rest)
    if name != LAYER_SKIP and skip_layers is not None:
        raise ConfigError(f"--skip-layers belongs to the drafter {LAYER_SKIP}, not to {name}")
    needed = NEEDED.get(name)
    if needed is not None and needed not in options:
        raise ConfigError(f"drafter {text!r}: name its {needed}, {name}:{needed}=...")
    if name == MODEL:
        return DrafterSpec(name=name, path=options["path"])
    if name == EARLY_EXIT:
        first = whole(name, "layers", options["layers"])
        return DrafterSpec(name=name, skip_layers=check_layers(range(first, n_layers), n_layers))
    if name == PROMPT_LOOKUP:
        ngram = whole(name, "ngram", options["ngram"]) if options else MAX_NGRAM_LEN
        return DrafterSpec(name=name, max_ngram_len=ngram)
    if name == LAYER_SKIP:
        if len(options) + (skip_layers is not None) > 1:
            raise ConfigError(f"drafter {text!r}: give the layers by skip=, keep= or --skip-layers, not both")
        return DrafterSpec(name=name, skip_layers=_skip_set(target, n_layers, options, skip_layers))
    return DrafterSpec(name=name, options=options)


def _options(text: str, name: str, rest: str) -> dict[str, str]:
    """Keys and values of `key=value,key=value`; a piece without "=" belongs to the value before it (3,5,10-12)."""
    found: dict[str, str] = {}
    for piece in rest.split(",") if rest else []:
        key, equals, value = piece.partition("=")
        if not equals and found:
            found[next(reversed(found))] += f",{piece}"
        elif key not in KEYS[name] or not equals or not value:
            allowed = " or ".join(f"{name}:{known}=..." for known in KEYS[name]) or name
            raise ConfigError(f"drafter {text!r}: cannot read {piece!r}; allowed: {allowed}")
        elif key in found:
            raise ConfigError(f"drafter {text!r}: {key!r} is given twice")
        else:
            found[key] = value
    return found


def _skip_set(target: str, n_layers: int, options: Mapping[str, str], skip_layers: str | None) -> tuple[int, ...]:
    if "keep" in options:
        kept = parse_layers(options["keep"])
        if kept and kept[-1] >= n_layers:
            raise ConfigError(f"keep layer {kept[-1]}: the target has layers 0..{n_layers - 1}")
        return check_layers([layer for layer in range(n_layers) if layer not in kept], n_layers)
    if options or skip_layers is not None:
        return check_layers(parse_layers(options.get("skip") or skip_layers or ""), n_layers)
    if target not in DEFAULT_SKIP:
        raise ConfigError(f"layer-skip has no default skip set for {target!r}; name layers, e.g. layer-skip:skip=9-14")
    return check_layers(DEFAULT_SKIP[target], n_layers)
