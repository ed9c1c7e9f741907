"""What the tests of builders at work in a decode share: a target, and drafters of it by their spelling."""

from __future__ import annotations

import functools
from dataclasses import replace

from real.drafters.choose import parse_drafter
from real.drafters.selfspec import SelfDrafter
from real.models import Loaded
from real.session import make_drafter
from tests.real_lossless import plain_greedy
from tests.real_tiny import prompt_ids, tiny_loaded

LAYERS, TOKENS = 8, 24
TIMES = "latency=2e-4,1e-7,1e-4"
SWIFT = "swift,ratio=0.2,0.35,0.5,0.7,window=4,seed=3"
KNAPSPEC = f"knapspec,arms=4,fraction=0.6,window=6,{TIMES}"
CLASP = "clasp,arms=3,zero=1"
BUILDS = (SWIFT, KNAPSPEC, CLASP)


@functools.cache
def tiny(layers: int = LAYERS) -> Loaded:
    """Small steps from layer to layer, so that drafts without some are taken up to a point; texts never end."""
    return replace(tiny_loaded(layers=layers, spread=0.15, seed=4), stop_ids=())


@functools.cache
def plain(seed: int, length: int = 12) -> list[int]:
    return plain_greedy(tiny().model, prompt_ids(seed, length), TOKENS)


def make(text: str, loaded: Loaded | None = None, max_draft_len: int = 24) -> SelfDrafter:
    loaded = loaded or tiny()
    spec = parse_drafter(f"self:build={text}", target="tiny", n_layers=loaded.model.config.num_hidden_layers)
    made = make_drafter(spec, loaded, max_draft_len=max_draft_len)
    assert isinstance(made, SelfDrafter)
    return made
