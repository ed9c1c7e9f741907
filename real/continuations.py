"""`python -m real.continuations`: texts a target writes itself, which drafters for it are trained on.

Owns the command and the batched writing. Half of the texts are greedy and half are sampled; a shard is a batch, a pure
function of the settings and its number, so that an interrupted call goes on where it was.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click
import numpy as np
import torch
from rich.console import Console
from transformers import GenerationConfig

from real.models import DEVICES, DTYPES, MAX_THREADS, Loaded, load_text_target
from real.progress import Steps
from real.training.corpus import stdlib_documents
from real.training.prompt_sources import SOURCES, PromptSource, prompt_source
from real.training.ranges import COUNT, NATURAL, SEED, check_ranges, only
from real.training.texts import Text, check_folder, open_folder, shard_path, write_shard
from specsim.controllers.base import Param
from specsim.errors import ConfigError, run_cli

HELD_OUT = 90_000  # number of the first held-out shard
ALLOWED = {
    **dict.fromkeys(("texts", "batch"), COUNT),
    "held-out-texts": NATURAL,
    "length": Param(kind=int, low=2),
    "prompts": only(*SOURCES),
    "temperature": Param(kind=float, low=1e-3),  # logits divided by much less overflow
    "seed": SEED,
    "threads": Param(kind=int, low=1, high=MAX_THREADS),
}


def write_texts(
    loaded: Loaded,
    beginnings: list[list[int]],
    *,
    length: int,
    temperature: float,
    greedy: np.ndarray,
    seed: int,
    held_out: bool = False,
) -> list[Text]:
    """Let the target continue beginnings, all in one batch, until the longest has `length` tokens, or its end of text.

    Args:
        loaded: the target.
        beginnings: token ids, each shorter than `length`.
        length: of a text, its beginning included.
        temperature: of the sampled ones, above 0.
        greedy: bool[B], which take the likeliest token instead.
        seed: of the sampling.
        held_out: noted with the texts.

    Returns:
        B texts, in order.
    """
    widest = max(len(ids) for ids in beginnings)
    pad = loaded.stop_ids[0] if loaded.stop_ids else 0
    ids = torch.full((len(beginnings), widest), pad)
    mask = torch.zeros(len(beginnings), widest, dtype=torch.int64)
    for row, beginning in enumerate(beginnings):
        ids[row, widest - len(beginning) :] = torch.tensor(beginning)
        mask[row, widest - len(beginning) :] = 1
    devices = [torch.cuda.current_device()] if loaded.device == "cuda" else []
    clean = GenerationConfig(
        max_new_tokens=length - widest,
        do_sample=True,
        temperature=1.0,
        top_k=0,
        top_p=1.0,
        eos_token_id=list(loaded.stop_ids) or None,
        pad_token_id=pad,
    )
    with torch.random.fork_rng(devices=devices), torch.inference_mode(), _settings_of(loaded.model, clean):
        torch.manual_seed(seed)
        out = loaded.model.generate(
            input_ids=ids.to(loaded.device),
            attention_mask=mask.to(loaded.device),
            logits_processor=[_Choice(torch.from_numpy(greedy).to(loaded.device), temperature)],
        ).cpu()
    texts = []
    for row, beginning in enumerate(beginnings):
        tokens = out[row, widest - len(beginning) :][:length].tolist()
        ends = [at for at, token in enumerate(tokens) if at >= len(beginning) and token in loaded.stop_ids]
        kept = tokens[: ends[0] + 1] if ends else tokens
        texts.append(
            Text(
                tokens=np.array(kept, dtype=np.int32),
                prompt_len=len(beginning),
                greedy=bool(greedy[row]),
                held_out=held_out,
            )
        )
    return texts


@contextmanager
def _settings_of(model: Any, settings: GenerationConfig) -> Iterator[None]:
    """Generate with these settings alone: transformers fills up those of a call with the checkpoint's own, such as a
    repetition penalty, and the texts would no longer be what the target says by itself."""
    own, model.generation_config = model.generation_config, settings
    try:
        yield
    finally:
        model.generation_config = own


class _Choice:
    """Greedy rows keep their likeliest token only, the others are tempered: one batch for both."""

    def __init__(self, greedy: torch.Tensor, temperature: float) -> None:
        self._greedy, self._temperature = greedy, temperature

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        best = torch.zeros_like(scores, dtype=torch.bool).scatter_(1, scores.argmax(dim=-1, keepdim=True), True)
        only = scores.masked_fill(~best, -torch.inf)
        return torch.where(self._greedy[:, None], only, scores / self._temperature)


def make_shard(
    loaded: Loaded, source: PromptSource, number: int, *, seed: int, batch: int, held_out: bool, **how: Any
) -> list[Text]:
    """The texts of one shard; those of held-out beginnings are all greedy."""
    rng = np.random.default_rng((seed, number))
    place = float(rng.random())  # one length for all, so that nothing is padded
    beginnings = [source.draw(rng, place) for _ in range(batch)]
    greedy = np.arange(batch) % 2 == 0 if not held_out else np.ones(batch, dtype=bool)
    return write_texts(loaded, beginnings, greedy=greedy, seed=int(rng.integers(2**62)), held_out=held_out, **how)


@click.command()
@click.option("--target", default="lab", show_default=True, help="As for real.probe.")
@click.option("--out", type=click.Path(path_type=Path, file_okay=False), required=True, help="Folder of the shards.")
@click.option("--texts", default=1536, show_default=True, help="To train on; whole shards.")
@click.option("--held-out-texts", default=64, show_default=True, help="Further ones from held-out files.")
@click.option("--length", default=256, show_default=True, help="Tokens of a text, its beginning included.")
@click.option("--prompt-tokens", type=(int, int), default=(16, 96), show_default=True, help="Shortest and longest.")
@click.option("--prompts", default="auto", show_default=True, help=f"One of {', '.join(SOURCES)}.")
@click.option("--temperature", default=0.8, show_default=True, help="Of the half that is sampled.")
@click.option("--batch", default=64, show_default=True, help="Texts of a shard, written at once.")
@click.option("--seed", default=0, show_default=True)
@click.option("--dtype", type=click.Choice(DTYPES), default="float32", show_default=True)
@click.option("--device", type=click.Choice(DEVICES), default="auto", show_default=True)
@click.option("--threads", default=1, show_default=True, help="Of torch.")
def main(
    target: str,
    out: Path,
    texts: int,
    held_out_texts: int,
    length: int,
    prompt_tokens: tuple[int, int],
    prompts: str,
    temperature: float,
    batch: int,
    seed: int,
    dtype: str,
    device: str,
    threads: int,
) -> None:
    """Write texts with a target for training drafters; the same call again goes on after an interruption."""
    given = {name.replace("_", "-"): value for name, value in click.get_current_context().params.items()}
    check_ranges("--", ALLOWED, given)
    shortest, longest = prompt_tokens
    if not 1 <= shortest <= longest < length:
        raise ConfigError(
            f"--prompt-tokens {shortest} {longest}: allowed are a shortest and a longest, 1 or more and below --length "
            f"{length}"
        )
    if max(texts, held_out_texts) > HELD_OUT * batch:
        raise ConfigError(f"--texts and --held-out-texts: allowed are up to {HELD_OUT} shards of --batch {batch} each")
    check_folder(out)
    torch.set_num_threads(threads)
    loaded = load_text_target(target, dtype=dtype, device=device)
    settings = {
        "target": loaded.name,
        **{"length": length, "prompt_tokens": prompt_tokens, "prompts": prompts, "temperature": temperature},
        **{"batch": batch, "seed": seed, "dtype": dtype},
    }
    window = getattr(loaded.model.config, "max_position_embeddings", None)
    if window is not None and length > window:
        raise ConfigError(f"--length={length}: allowed is up to the target's context window, {window} tokens")
    documents = stdlib_documents()
    # Held-out shards have numbers of their own, so that more of either kind can be made later.
    plan = [(number, False) for number in range(-(-texts // batch))]
    plan += [(HELD_OUT + number, True) for number in range(-(-held_out_texts // batch))]
    sources = {
        held_out: prompt_source(
            prompts, loaded.tokenizer, [doc for doc in documents if doc.held_out == held_out], *prompt_tokens
        )
        for held_out in {held_out for _, held_out in plan}
    }
    open_folder(out, settings)
    missing = [step for step in plan if not shard_path(out, step[0]).exists()]
    with Steps(Console(stderr=True), "shards", len(plan), before=len(plan) - len(missing)) as steps:
        for number, held_out in missing:
            made = make_shard(
                loaded,
                sources[held_out],
                number,
                seed=seed,
                batch=batch,
                held_out=held_out,
                length=length,
                temperature=temperature,
            )
            write_shard(out, number, made)
            steps.done(f"{sum(len(text.tokens) - text.prompt_len for text in made)} tokens")


if __name__ == "__main__":
    run_cli(main, prog_name="python -m real.continuations")
