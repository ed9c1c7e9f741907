"""Which layers to skip: a greedy search by top-1 agreement on the target's own text.

Owns the search: from the full model, drop again and again the layer whose loss keeps the most agreement with the
target on its own continuations. Agreement is teacher-forced (one pass over the text), which is cheap but flatters: a
drafter that runs alone also has to live with its own mistakes. So the best sets are judged by accepted draft length,
from `real.probe`, not by this number.

Run: `python -m real.skip_search --target smollm2-135m --max-skip 12`.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import click
import torch

from real.cache import KVCache, forward
from real.data import choose, encode, load_prompts
from real.drafters.layer_skip import skip_layers
from real.models import Loaded, load_text_target
from real.options import SEED
from real.record import decode_plain
from specsim.errors import run_cli


@dataclass(frozen=True)
class Text:
    """A prompt with the target's own continuation: int64[L] ids of which the last `n` were generated."""

    ids: torch.Tensor
    n: int


@dataclass(frozen=True)
class Step:
    """One step of the search: the skip set so far and the share of output tokens it predicts like the target."""

    skip: tuple[int, ...]
    agreement: float


def own_texts(loaded: Loaded, datasets: Iterable[str], *, prompts: int, tokens: int, seed: int) -> list[Text]:
    """Greedy continuations of a few prompts of each dataset. Take another seed than the one recordings use."""
    texts = []
    for dataset in datasets:
        for prompt in choose(load_prompts(dataset), prompts, seed):
            ids = encode(loaded.tokenizer, prompt).to(loaded.device)
            output = decode_plain(loaded.model, ids, tokens, loaded.stop_ids)
            texts.append(Text(torch.cat([ids, ids.new_tensor(output)]), len(output)))
    return texts


@torch.inference_mode()
def agreement(model: Any, texts: Sequence[Text]) -> float:
    """Share of generated tokens that are the model's first choice given the true text before them."""
    hits = total = 0
    for text in texts:
        logits = forward(model, text.ids, KVCache(len(text.ids)), keep=text.n + 1)
        hits += int((logits[:-1].argmax(dim=-1) == text.ids[-text.n :]).sum())
        total += text.n
    return hits / total


def search(loaded: Loaded, texts: Sequence[Text], max_skip: int, *, keep_ends: int = 1) -> Iterator[Step]:
    """Skip sets of 1, 2, ..., `max_skip` layers, each the best extension of the one before.

    Args:
        loaded: the target.
        texts: what agreement is measured on.
        max_skip: largest set.
        keep_ends: layers at either end that are never skipped.
    """
    n_layers = len(loaded.model.model.layers)
    skip: tuple[int, ...] = ()
    for _ in range(max_skip):
        candidates = [layer for layer in range(keep_ends, n_layers - keep_ends) if layer not in skip]
        if not candidates:
            return
        scored = [(agreement(skip_layers(loaded.model, (*skip, layer)), texts), layer) for layer in candidates]
        best, layer = max(scored)
        skip = tuple(sorted((*skip, layer)))
        yield Step(skip, best)


@click.command()
@click.option("--target", default="smollm2-135m", show_default=True)
@click.option("--dataset", "datasets", multiple=True, default=("humaneval", "open-ended"), show_default=True)
@click.option("--prompts", default=2, show_default=True, help="Prompts of each dataset.")
@click.option("--tokens", default=96, show_default=True, help="Generated tokens of each prompt.")
@click.option("--max-skip", default=12, show_default=True)
@click.option("--seed", type=SEED, default=1001, show_default=True, help="Chooses the prompts; recordings use 0.")
@click.option("--threads", default=2, show_default=True)
def main(
    target: str, datasets: tuple[str, ...], prompts: int, tokens: int, max_skip: int, seed: int, threads: int
) -> None:
    """Print one JSON line per number of skipped layers."""
    torch.set_num_threads(threads)
    loaded = load_text_target(target, device="cpu")
    texts = own_texts(loaded, datasets, prompts=prompts, tokens=tokens, seed=seed)
    for step in search(loaded, texts, max_skip):
        click.echo(json.dumps({"skip": step.skip, "skipped": len(step.skip), "agreement": step.agreement}))


if __name__ == "__main__":
    run_cli(main, prog_name="python -m real.skip_search")
