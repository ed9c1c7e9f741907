"""The command that checks a recommendation with real decoding, from the names in a trace's metadata."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping, Sequence
from typing import Any

from specsim.schema import TraceMeta


def live_command(meta: TraceMeta, spellings: Sequence[str]) -> str | None:
    """A command that decodes prompts drawn by another seed with these controllers; None where the trace does not say
    with what it was recorded.

    Greedy traces: `real.validate`, which predicts and measures; sampled ones: `real.run test`, which measures.
    """
    target, drafter = meta.extra.get("target_spec"), drafter_spelling(meta)
    if not isinstance(target, str) or drafter is None or meta.dataset is None:
        return None
    names = [_live(spelling, meta) for spelling in spellings]
    options: dict[str, Any] = {
        "target": target,
        "drafter": drafter,
        "dataset": meta.dataset,
        "requests": meta.requests,
        "max-new-tokens": meta.extra.get("max_new_tokens"),
        "max-draft-len": meta.tree_nodes if meta.kind == "tree" else meta.max_draft_len,
        "dtype": meta.dtype,
        "seed": (meta.seed or 0) + 1,
    }
    options = {key: value for key, value in options.items() if value is not None}
    if meta.temperature > 0:
        data = ("dataset", "requests", "seed")
        words = ["python", "-m", "real.run", "test"]
        for key, value in options.items():
            words += [f"--{'data' if key in data else 'model'}.{key.replace('-', '_')}", str(value)]
        words += ["--model.temperature", f"{meta.temperature:g}", "--model.controllers", json.dumps(["plain", *names])]
        return shlex.join(words)
    words = ["python", "-m", "real.validate"]
    if meta.extra.get("threads") is not None:
        options["threads"] = meta.extra["threads"]
    for key, value in options.items():
        words += [f"--{key}", str(value)]
    for name in names:
        words += ["--controllers", name]
    return shlex.join([*words, "--out", "runs/recommended"])


def drafter_spelling(meta: TraceMeta) -> str | None:
    """The drafter as `real.probe` is given it, from what that wrote into the metadata."""
    if meta.drafter is None or "target_spec" not in meta.extra:
        return None
    facts = meta.extra
    found: dict[str, str] = {}
    if facts.get("skip_layers"):
        found["skip"] = ",".join(str(layer) for layer in facts["skip_layers"])
    if facts.get("max_ngram_len"):
        found["ngram"] = str(facts["max_ngram_len"])
    if facts.get("drafter_path"):
        found["path"] = str(facts["drafter_path"])
    options = facts.get("drafter_options")
    found |= {str(k): str(v) for k, v in options.items()} if isinstance(options, Mapping) else {}
    name = "layer-skip" if meta.drafter == "early-exit" else meta.drafter  # recorded by the layers left out
    return name + (":" + ",".join(f"{key}={value}" for key, value in found.items()) if found else "")


def _live(spelling: str, meta: TraceMeta) -> str:
    """Live drafters number their arms the other way round (docs/real.md)."""
    if spelling.startswith("arm:index="):
        return f"arm:index={meta.n_arms - 1 - int(spelling.removeprefix('arm:index='))}"
    return spelling
