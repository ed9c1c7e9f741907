"""Seconds of one attention, by context, and of one MLP: measured inside passes of the target itself.

KnapSpec's code times the first layer alone, again and again. Here a pass over one token goes through all layers, so
that weights come from where they come from in a decode, and passes at different contexts take turns in random order.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from time import perf_counter
from typing import Any, Final, NamedTuple

import numpy as np
import torch

from real.builders.knapspec import Latency
from real.cache import KVCache, forward
from real.drafters.opened import Opened
from real.drafters.spent import Spent
from real.drafters.subblocks import SubBlocks
from specsim.errors import ConfigError

ATTENTION: Final = "attention"
MLP: Final = "mlp"
CONTEXTS: Final = (64, 192, 448)
"""Tokens up to those that are timed, unless told otherwise."""
REPEATS: Final = 20
_UNTIMED: Final = 1  # passes at each context before those that count


class Measured(NamedTuple):
    """What was measured, in seconds per sub-block (medians over passes), and the line through it.

    Args:
        past: cached tokens of each measurement.
        attention, mlp: one of either kind, mean over the layers.
        latency: the fit.
    """

    past: tuple[int, ...]
    attention: tuple[float, ...]
    mlp: tuple[float, ...]
    latency: Latency

    def to_json(self) -> dict[str, Any]:
        """For `arms.json`."""
        return {"past": list(self.past), "attention_s": list(self.attention), "mlp_s": list(self.mlp)}


@torch.inference_mode()
def measure(
    blocks: SubBlocks,
    texts: Sequence[torch.Tensor],
    *,
    repeats: int,
    seed: int,
    done: Callable[[], None] = lambda: None,
) -> Measured:
    """Time every sub-block behind each of some texts.

    Args:
        blocks: the target in pieces.
        texts: int64[P] each, of at least two different lengths; the last token is the one that is run.
        repeats: passes at each that count.
        seed: of the order.
        done: called after every round of passes.

    Raises:
        ConfigError: fewer than two lengths.
    """
    passes = [_Pass(blocks, text) for text in texts]
    rng, seconds = np.random.default_rng(seed), np.zeros((repeats, len(passes), 2))
    for repeat in range(-_UNTIMED, repeats):
        for number in rng.permutation(len(passes)):
            found = passes[number].run()
            if repeat >= 0:
                seconds[repeat, number] = found
        done()
    past = tuple(one.past for one in passes)
    attention, mlp = np.median(seconds, axis=0).T.tolist()
    return Measured(past, tuple(attention), tuple(mlp), Latency.fit(past, attention, mlp))


class _Pass:
    """Passes over the last token of a text, half a layer at a time."""

    def __init__(self, blocks: SubBlocks, text: torch.Tensor) -> None:
        self.past, self._blocks, self._cache = len(text) - 1, blocks, KVCache(len(text))
        forward(blocks.target, text[:-1], self._cache, keep=1)
        self._opened = Opened(blocks, text[-1:], self._cache, self.past)

    def run(self) -> tuple[float, float]:
        """Seconds of an attention and of an MLP, means over the layers."""
        spent = Spent(self._blocks.target.device, (ATTENTION, MLP))
        states, how = self._opened.states[0][None], self._opened.how
        for part in range(2 * self._blocks.n_layers):
            with spent.on(MLP if part % 2 else ATTENTION):
                # On the cache itself, which appends in place as a decode does.
                states = self._blocks.half(part)(states, **how[part // 2])
        self._cache.crop_to(self.past)
        attention, mlp = (spent.seconds[kind] / self._blocks.n_layers for kind in (ATTENTION, MLP))
        return attention, mlp


class Timed(NamedTuple):
    """A target's times as a session knows them.

    Args:
        latency: one line for all contexts; attentions are taken to cost the same at every one where the line falls.
        least: cached tokens of the shortest measurement.
        timing_s: seconds that measuring took.
    """

    latency: Latency
    least: int
    timing_s: float


def session_times(blocks: SubBlocks, contexts: Sequence[int] = CONTEXTS) -> Timed:
    """Times of a target's sub-blocks, measured at the first call and remembered with the model, whoever asks.

    The tokens are any: what a pass takes does not depend on them.

    Args:
        blocks: the target in pieces.
        contexts: tokens up to those that are timed; those beyond the target's window are shortened.

    Raises:
        ConfigError: fewer than two lengths within the window, or times that are not positive.
    """
    known: dict[Any, Timed] = blocks.target.__dict__.setdefault("_specsim_times", {})
    key = (tuple(contexts), torch.get_num_threads())
    if key not in known:
        known[key] = _times_of(blocks, contexts)
    return known[key]


def _times_of(blocks: SubBlocks, contexts: Sequence[int]) -> Timed:
    window = getattr(blocks.target.config, "max_position_embeddings", None)
    lengths = sorted({context if window is None else min(context, window) for context in contexts})
    if len(lengths) < 2 or lengths[0] < 2:
        raise ConfigError(
            f"self: context is {','.join(map(str, contexts))}, in the target's window {','.join(map(str, lengths))}; "
            "allowed: at least two different numbers of tokens, 2 or more each"
        )
    began = perf_counter()
    embeddings = blocks.target.get_input_embeddings().weight
    texts = [torch.arange(length, device=embeddings.device) % len(embeddings) for length in lengths]
    measured = measure(blocks, texts, repeats=REPEATS, seed=0)
    latency = measured.latency
    if latency.slope < 0:  # noise: an attention does not get cheaper by what it looks back on
        latency = Latency(latency.mlp, 0.0, float(np.mean(measured.attention)))
    latency.at(measured.past[0])
    return Timed(latency, measured.past[0], perf_counter() - began)


def read_latency(what: str, text: str) -> Latency:
    """Times as spelled on a command line: MLP,PER-TOKEN,ATTENTION in seconds.

    Args:
        what: the option, for messages.
        text: its value.

    Raises:
        ConfigError: not three numbers, 0 or more.
    """
    try:
        if "_" in text or not text.isascii():
            raise ValueError
        mlp, slope, attention = (float(part) for part in text.split(","))
    except ValueError:
        mlp = slope = attention = math.nan
    if not all(math.isfinite(value) and value >= 0 for value in (mlp, slope, attention)):
        raise ConfigError(
            f"{what} {text!r}; allowed: three numbers, 0 or more: the seconds of an MLP, those an attention takes "
            "for every cached token, and those it takes besides, e.g. 2e-4,1e-7,1e-4"
        )
    return Latency(mlp, slope, attention)
