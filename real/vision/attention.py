"""`python -m real.vision.attention`: how few visual tokens hold the target's attention, prompt by prompt.

What pruning by attention has to go by (`real.builders.specvlm`): SpecVLM's premise is that few tokens hold most of it.
Owns the command and its table. Nothing is decoded.
"""

from __future__ import annotations

import json

import click
import torch
from rich.console import Console
from rich.table import Table

from real.builders.specvlm import SHARE, share_of_top, tokens_for_share
from real.data import choose, load_prompts
from real.models import DEVICES, DTYPES, load_target
from real.options import SEED
from real.target import Loan, Target
from real.vision.load import VisionLoaded, prompt_for
from real.vision.prompt import VisionPrompt
from real.vision.pruning import visual_attention
from specsim.errors import ConfigError, run_cli

TOP = (0.01, 0.1, 0.5)


@torch.inference_mode()
def concentration(target: Target, prompt: VisionPrompt) -> dict[str, float]:
    """How a prompt's visual tokens (at least one) share the attention: their number, the fewest that hold `SHARE` of
    it, and what the best hold, by the fraction of all tokens that they are."""
    loan = Loan()
    target.start(prompt, len(prompt) + 1, None, loan)
    places = prompt.visual.nonzero()[:, 0].tolist()
    scores = visual_attention(target.model, prompt.ids, places, loan.cache)
    held = {f"top_{fraction:g}": share_of_top(scores, fraction) for fraction in TOP}
    return {"visual_tokens": len(places), "tokens_for_share": tokens_for_share(scores, SHARE), **held}


@click.command()
@click.option("--target", required=True, help="A vision-language model: a local folder or a hub id.")
@click.option("--dataset", required=True, help="Questions about pictures, as for python -m real.run.")
@click.option("--requests", type=click.IntRange(1), default=10, show_default=True, help="Prompts, drawn by seed.")
@click.option("--visual-tokens", type=click.IntRange(1), help="Most of a prompt's pictures.")
@click.option("--dtype", default="float32", show_default=True, help=", ".join(DTYPES))
@click.option("--device", default="auto", show_default=True, help=", ".join(DEVICES))
@click.option("--seed", type=SEED, default=0, show_default=True, help="Chooses the prompts.")
def main(
    *, target: str, dataset: str, requests: int, visual_tokens: int | None, dtype: str, device: str, seed: int
) -> None:
    """Tell how concentrated the target's attention to visual tokens is; a JSON line for each prompt follows the table.

    Prompts without pictures are left out.
    """
    prompts = [one for one in choose(load_prompts(dataset), requests, seed) if one.pictures is not None]
    if not prompts:
        raise ConfigError(f"dataset {dataset!r}: none of the prompts drawn has pictures; name questions about pictures")
    loaded = load_target(target, dtype=dtype, device=device, visual_tokens=visual_tokens)
    if not isinstance(loaded, VisionLoaded):
        raise ConfigError(f"target {target!r} sees no pictures; use a vision-language target (docs/vision.md)")
    running = Target(loaded.model)
    table = Table(box=None, header_style="bold", pad_edge=False)
    for name in ("prompt", "visual tokens", f"hold {SHARE:.0%}", *(f"best {fraction:.0%} hold" for fraction in TOP)):
        table.add_column(name, justify="left" if name == "prompt" else "right")
    lines = []
    for prompt in prompts:
        encoded = prompt_for(loaded, prompt)
        assert isinstance(encoded, VisionPrompt)
        found = concentration(running, encoded)
        held = [f"{found[f'top_{fraction:g}']:.1%}" for fraction in TOP]
        table.add_row(prompt.id, f"{found['visual_tokens']}", f"{found['tokens_for_share']}", *held)
        lines.append(json.dumps({"prompt": prompt.id, **found}))
    Console().print(table)
    for line in lines:
        click.echo(line)


if __name__ == "__main__":
    run_cli(main, prog_name="python -m real.vision.attention")
