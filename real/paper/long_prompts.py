"""Prompts lengthened to a wanted context, for measurements that the paper states at one (its Figure 3: 1K tokens).

Owns the file of such prompts: a dataset like any other, so that recording, decoding and continuing need not know.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

from real.data import Prompt, choose, encode, load_prompts
from real.models import Loaded
from specsim.errors import ConfigError
from specsim.paths import replace_file


def long_prompts(data: str, requests: int, context: int, loaded: Loaded, place: Path, *, seed: int) -> Path:
    """A JSONL file of `requests` prompts of at most `context` tokens each, the most that whole texts allow.

    Before each chosen prompt stand texts of the dataset in its order, from the one after it on, as many as fit; so a
    prompt ends as it would by itself.

    Args:
        data, requests, seed: the prompts to lengthen.
        context: tokens.
        loaded: whose tokens are counted.
        place: folder of the file.

    Raises:
        ConfigError: a prompt that is longer by itself.
    """
    every = load_prompts(data)
    chosen = choose(every, requests, seed)
    digest = hashlib.sha256(json.dumps([data, requests, context, seed, loaded.name]).encode()).hexdigest()[:8]
    file = place / f"prompts-{context}-{digest}.jsonl"
    lines = [
        json.dumps({"id": one.id, "prompt": _lengthened(every, every.index(one), context, loaded)}) for one in chosen
    ]
    with replace_file(file) as temporary:
        temporary.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return file


def _lengthened(every: list[Prompt], index: int, context: int, loaded: Loaded) -> str:
    text, at = every[index].text, index
    if len(encode(loaded.tokenizer, every[index])) > context:
        raise ConfigError(f"prompt {every[index].id!r} is longer than the context of {context} tokens by itself")
    while True:
        at += 1
        longer = f"{every[at % len(every)].text}\n\n{text}"
        if len(encode(loaded.tokenizer, Prompt("", longer))) > context:
            return text
        text = longer
