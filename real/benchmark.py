"""`python -m real.benchmark`: this decode loop against transformers' own, on the same model, in one interleaved run.

Owns the pairs that are compared and the table. For each prompt every contestant decodes once, in an order drawn anew,
so that all share the machine's drifts. Ratios of sums are printed with what they mean; absolute speeds on a shared
machine mean little.

The pairs: plain decoding; prompt lookup with a fixed length; a drafting model with a fixed length (the target drafting
for itself, so that every token is accepted and both sides do the same work). Both sides count whole calls, the prompt
included, and both let the first round take the prompt in. The overhead share is the part of a round that is neither
drafting nor verifying.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import click
import numpy as np
import torch
from rich.console import Console
from rich.table import Table

from real.data import choose, encode, load_prompts
from real.drafters.base import Drafter, NoDrafter
from real.drafters.model import ModelDrafter
from real.drafters.prompt_lookup import PromptLookupDrafter
from real.loop import Settings, decode
from real.models import DTYPES, MAX_THREADS, SMOLLM2, Loaded, load_text_target
from real.options import SEED
from real.session import ANY_LATENCY, Session
from real.target import Target
from specsim.errors import run_cli
from specsim.online import OnlineController

LOOKUP_LEN, MODEL_LEN = 10, 5
PAIRS = (("plain", "hf plain"), ("lookup", "hf lookup"), ("model", "hf assisted"))


@dataclass(kw_only=True)
class Tally:
    """One contestant's sums over prompts: tokens, seconds of the whole call, seconds of rounds and of overhead."""

    tokens: int = 0
    time_s: float = 0.0
    rounds_s: float = 0.0
    overhead_s: float = 0.0
    outputs: list[list[int]] = field(default_factory=list)

    @property
    def per_second(self) -> float:
        """Tokens per second of the whole call, prompt included."""
        return self.tokens / self.time_s

    @property
    def overhead_share(self) -> float:
        """Part of all round time that was neither drafting nor verifying."""
        return self.overhead_s / self.rounds_s


Contestant = Callable[[torch.Tensor, Tally], None]


def contestants(loaded: Loaded, max_new_tokens: int) -> dict[str, Contestant]:
    """Every contestant by name; each decodes a prompt (int64[P]) and adds to its tally."""
    model = loaded.model
    assistant = copy.copy(model)  # same weights; transformers reads the draft length from its own settings
    assistant.generation_config = copy.deepcopy(model.generation_config)
    assistant.generation_config.num_assistant_tokens = MODEL_LEN
    assistant.generation_config.num_assistant_tokens_schedule = "constant"
    assistant.generation_config.assistant_confidence_threshold = 0.0
    lookup = PromptLookupDrafter(max_draft_len=LOOKUP_LEN, stop_ids=loaded.stop_ids)
    own = ModelDrafter(model, name="model", max_draft_len=MODEL_LEN, merge_prompt=True)
    settings = Settings(max_new_tokens=max_new_tokens, stop_ids=loaded.stop_ids)
    return {
        "plain": _ours(loaded, NoDrafter(), "plain", settings),
        "hf plain": _theirs(model, max_new_tokens),
        "lookup": _ours(loaded, lookup, f"static:length={LOOKUP_LEN}", settings),
        "hf lookup": _theirs(model, max_new_tokens, prompt_lookup_num_tokens=LOOKUP_LEN),
        "model": _ours(loaded, own, f"static:length={MODEL_LEN}", settings),
        "hf assisted": _theirs(model, max_new_tokens, assistant_model=assistant),
    }


def _ours(loaded: Loaded, drafter: Drafter, spelling: str, settings: Settings) -> Contestant:
    session = Session(loaded=loaded, target=Target(loaded.model, merge_prompt=True), drafter=drafter, plain=drafter)
    controller = OnlineController(session.controllers([spelling], ANY_LATENCY)[0])

    def run(prompt: torch.Tensor, tally: Tally) -> None:
        start = time.perf_counter()
        decoded = decode(session.target, drafter, controller, prompt, settings)
        _add(tally, decoded.output, start)
        tally.rounds_s += decoded.decode_s
        tally.overhead_s += sum(row.overhead_s for row in decoded.rounds)

    return run


def _theirs(model: Any, max_new_tokens: int, **options: Any) -> Contestant:
    def run(prompt: torch.Tensor, tally: Tally) -> None:
        start = time.perf_counter()
        ids = prompt[None]
        whole = model.generate(
            ids, attention_mask=torch.ones_like(ids), max_new_tokens=max_new_tokens, do_sample=False, **options
        )
        _add(tally, whole[0, len(prompt) :].tolist(), start)

    return run


def _add(tally: Tally, output: list[int], start: float) -> None:
    tally.time_s += time.perf_counter() - start
    tally.tokens += len(output)
    tally.outputs.append(output)


def compare(
    loaded: Loaded, prompts: list[torch.Tensor], max_new_tokens: int, *, seed: int = 0, say: Callable[[str], None]
) -> dict[str, Tally]:
    """Let every contestant decode every prompt, interleaved, after one unmeasured call each.

    Args:
        loaded: the target.
        prompts: int64[P] each.
        max_new_tokens: of every call.
        seed: of the orders.
        say: receives a line per prompt.
    """
    runners, rng = contestants(loaded, max_new_tokens), np.random.default_rng(seed)
    tallies = {name: Tally() for name in runners}
    for run in runners.values():
        run(prompts[0][: min(16, len(prompts[0]))], Tally())
    for number, prompt in enumerate(prompts, start=1):
        order = list(runners)
        rng.shuffle(order)
        for name in order:
            runners[name](prompt, tallies[name])
        say(f"prompt {number} of {len(prompts)} done")
    return tallies


def table(tallies: dict[str, Tally]) -> Table:
    """Pairs side by side; a ratio above 1 means that this loop is faster."""
    found = Table("pair", "tokens/s here", "tokens/s transformers", "ratio", "overhead share", "same tokens")
    for ours, theirs in PAIRS:
        here, there = tallies[ours], tallies[theirs]
        same = sum(a == b for a, b in zip(here.outputs, there.outputs, strict=True))
        found.add_row(
            f"{ours} / {theirs}",
            f"{here.per_second:.2f}",
            f"{there.per_second:.2f}",
            f"{here.per_second / there.per_second:.3f}",
            f"{here.overhead_share:.2%}",
            f"{same} of {len(here.outputs)}",
        )
    return found


@click.command()
@click.option("--target", default=SMOLLM2, show_default=True, help=f"{SMOLLM2}, a local folder or a hub id.")
@click.option("--dataset", default="humaneval", show_default=True, help="humaneval, open-ended or a JSONL file.")
@click.option("--requests", default=4, show_default=True, help="Prompts, drawn by seed.")
@click.option("--max-new-tokens", type=click.IntRange(1), default=48, show_default=True)
@click.option("--dtype", default="float32", show_default=True, help=", ".join(DTYPES))
@click.option("--device", default="auto", show_default=True)
@click.option("--threads", type=click.IntRange(1, MAX_THREADS), help="CPU threads of torch.")
@click.option("--seed", type=SEED, default=0, show_default=True)
def main(
    *,
    target: str,
    dataset: str,
    requests: int,
    max_new_tokens: int,
    dtype: str,
    device: str,
    threads: int | None,
    seed: int,
) -> None:
    """Compare this decode loop with transformers' own generate, pair by pair, interleaved."""
    if threads is not None:
        torch.set_num_threads(threads)
    chosen = choose(load_prompts(dataset), requests, seed)
    loaded = load_text_target(target, dtype=dtype, device=device)
    prompts = [encode(loaded.tokenizer, prompt).to(loaded.device) for prompt in chosen]
    console = Console(stderr=True)
    tallies = compare(loaded, prompts, max_new_tokens, seed=seed, say=console.print)
    Console().print(table(tallies))
    plain, lookup = tallies["plain"], tallies["lookup"]
    click.echo(f"prompt lookup against plain decoding, both here: {lookup.per_second / plain.per_second:.3f} x")


if __name__ == "__main__":
    run_cli(main, prog_name="python -m real.benchmark")
