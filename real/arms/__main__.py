"""`python -m real.arms build|show`: families of draft configurations for a target, by every published builder.

Owns the command line and what is written. What options mean is `real.arms.plan`'s matter, building `real.arms.build`'s.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click
import torch
from rich.console import Console

from real.arms.job import Job
from real.arms.plan import BUILDERS, plan_of
from real.arms.report import check_construction, cost_line, cost_table, family_table, headline, record
from real.builders.arm import ArmFile, read_arms
from real.builders.knapspec import ARMS
from real.data import choose, encode, load_prompts
from real.drafters.base import NoDrafter
from real.drafters.cossim import TOKENS, WARMUPS
from real.drafters.selfspec import DRAFT_LEN
from real.drafters.subblock_times import REPEATS
from real.drafters.subblocks import SubBlocks
from real.drafters.swift import FIRST, LAST
from real.loop import Settings
from real.models import DEVICES, DTYPES, MAX_THREADS, SMOLLM2, load_text_target
from real.options import SEED
from real.progress import Steps
from real.recordings import check_prompts
from specsim.errors import ConfigError, run_cli
from specsim.paths import temporary_beside
from specsim.schema import MAX_DRAFT_LEN


@click.group()
def main() -> None:
    """Families of draft configurations for a target (docs/builders.md)."""


@main.command("build")
@click.option("--builder", type=click.Choice(BUILDERS), required=True)
@click.option("--target", default=SMOLLM2, show_default=True, help=f"{SMOLLM2}, lab, lab-skip, a folder or a hub id.")
@click.option("--dataset", default="humaneval", show_default=True, help="humaneval, open-ended, lab or a JSONL file.")
@click.option("--requests", type=click.IntRange(1), default=1, show_default=True, help="Prompts, drawn by seed.")
@click.option("--max-new-tokens", type=click.IntRange(1), default=128, show_default=True, help="Of each prompt.")
@click.option("--draft-len", type=click.IntRange(1, MAX_DRAFT_LEN), default=DRAFT_LEN, show_default=True)
@click.option("--zero-skip/--no-zero-skip", default=True, show_default=True, help="An arm that leaves nothing out.")
@click.option("--arms", type=click.IntRange(1), help=f"How many, with zero-skip [default of knapspec: {ARMS}].")
@click.option("--fraction", type=click.FloatRange(0, 1), help="Most left out, as a share of layers or of all weight.")
@click.option("--warmup", type=click.Choice(WARMUPS), help=f"Where first importances are from [default: {TOKENS}].")
@click.option("--ratio", type=float, multiple=True, help="An arm that leaves out this share; may be repeated.")
@click.option("--trials", type=int, help="A search ends after more trials.")
@click.option("--tolerance", type=int, help="A search ends after more trials in a row without improvement.")
@click.option("--max-score", type=float, help="A search ends once a set scores higher.")
@click.option("--window", type=int, help="Tokens that a trial is scored on.")
@click.option("--judged", type=click.Choice((FIRST, LAST)), help=f"Which of the output those are [default: {LAST}].")
@click.option("--every", type=int, help="Rounds from one trial to the next.")
@click.option("--bayes-every", type=int, help="Trials from one suggestion of the optimiser to the next; 0: none.")
@click.option("--per-prompt", is_flag=True, help="Search anew for every prompt.")
@click.option("--published-choice", is_flag=True, help="Pass over the first network, whatever it is.")
@click.option("--context", type=int, multiple=True, help="Tokens up to timed sub-blocks [default: 64, 192, 448].")
@click.option("--repeats", type=click.IntRange(1), help=f"Timed passes at each context [default: {REPEATS}].")
@click.option("--latency", help="Seconds MLP,PER-TOKEN,ATTENTION, in place of measuring them.")
@click.option("--dtype", default="float32", show_default=True, help=", ".join(DTYPES))
@click.option("--device", default="auto", show_default=True, help=", ".join(DEVICES))
@click.option("--threads", type=click.IntRange(1, MAX_THREADS), help="CPU threads of torch.")
@click.option("--seed", type=SEED, default=0, show_default=True, help="Of prompts and draws.")
@click.option("--out", type=click.Path(path_type=Path, dir_okay=False), required=True, help="arms.json to write.")
@click.option("--force", is_flag=True, help="Replace --out.")
def build_command(
    *,
    builder: str,
    target: str,
    dataset: str,
    requests: int,
    max_new_tokens: int,
    draft_len: int,
    zero_skip: bool,
    dtype: str,
    device: str,
    threads: int | None,
    seed: int,
    out: Path,
    force: bool,
    **given: Any,
) -> None:
    """Build a family of arms for a target while prompts are decoded, and write it with what building took.

    An option of another builder is refused. The last line on standard output is the file as JSON.
    """
    if out.exists() and not force:
        raise ConfigError(f"--out {out}: exists; choose another file or add --force to replace it")
    temporary_beside(out).unlink()  # a place that cannot be written is refused before minutes of building
    plan = plan_of(builder, given, dataset)
    prompts = choose(load_prompts(dataset), requests, seed)
    if threads is not None:
        torch.set_num_threads(threads)
    loaded = load_text_target(target, dtype=dtype, device=device)
    blocks = SubBlocks(loaded.model)
    encoded = [encode(loaded.tokenizer, prompt).to(loaded.device) for prompt in prompts]
    check_prompts(loaded, NoDrafter(), prompts, encoded, max_new_tokens)
    with Steps(Console(stderr=True), builder, requests * plan.decodes) as steps:
        job = Job(
            blocks=blocks,
            prompts=encoded,
            asked=Settings(max_new_tokens=max_new_tokens, stop_ids=loaded.stop_ids, seed=seed),
            draft_len=draft_len,
            zero_skip=zero_skip,
            step=steps.done,
        )
        built = plan.build(job, loaded)
    asked = {"dataset": dataset, "requests": requests, "max_new_tokens": max_new_tokens, "draft_len": draft_len}
    machine = {"dtype": dtype, "device": loaded.device, "threads": torch.get_num_threads()}
    file = ArmFile(
        target=loaded.name,
        n_layers=blocks.n_layers,
        builder=builder,
        arms=tuple(built.arms),
        settings={**plan.settings, **asked, "zero_skip": zero_skip, "seed": seed},
        construction={
            **record(built.spent),
            "kept": [blocks.cost(arm) for arm in built.arms],
            "scores": [built.scores.get(arm) for arm in built.arms],
            **built.details,
            **machine,
        },
    )
    file.save(out)
    _show(file)
    click.echo(json.dumps(file.to_json()))


@main.command("show")
@click.argument("file", type=click.Path(path_type=Path))
def show_command(file: Path) -> None:
    """Print the arms of an arms.json, and what building them took."""
    read = read_arms(file)
    check_construction(read, file)
    _show(read)


def _show(file: ArmFile) -> None:
    console = Console()
    console.print(headline(file), markup=False, highlight=False, soft_wrap=True)
    console.print(family_table(file))
    if file.construction:
        console.print(cost_table(file.construction))
        console.print(cost_line(file.construction), markup=False, highlight=False, soft_wrap=True)


if __name__ == "__main__":
    run_cli(main, prog_name="python -m real.arms")
