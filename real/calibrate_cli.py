"""The command of `python -m real.calibrate`: options in, a latency file and a table out."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import click
import numpy as np
import torch
from rich.console import Console
from rich.table import Table

from real.data import load_prompts
from real.drafters.subblock_times import CONTEXTS
from real.measure import arms_to_measure, most_new_tokens
from real.models import DEVICES, DTYPES, MAX_THREADS, SMOLLM2, Loaded
from real.options import SEED
from real.session import open_session
from real.trace_latency import measure_latency
from real.vision.load import prompt_for
from real.vision.prompt import ids_of
from specsim.errors import ConfigError
from specsim.latency import save_latency
from specsim.latency.fit import FitReport
from specsim.paths import temporary_beside
from specsim.schema import MAX_DRAFT_LEN


def calibration_texts(
    loaded: Loaded,
    dataset: str,
    lengths: Sequence[int],
    *,
    seed: int,
    max_draft_len: int,
    depth: int | None = None,
    arms: int = 0,
) -> list[torch.Tensor]:
    """Prompts of given lengths: prompts of a dataset one after the other, cut on the left, so that each ends as one.

    Args:
        loaded: the target; its window bounds the lengths.
        dataset: as for `real.data.load_prompts`.
        lengths: tokens of each text; those the window does not allow are shortened.
        seed: of the order.
        max_draft_len: longest draft that will be measured.
        depth, arms: as in `most_new_tokens`.

    Raises:
        ConfigError: a length below 2, a window too short to measure in at all, or prompts with pictures.
    """
    if min(lengths) < 2:
        raise ConfigError(f"--context {min(lengths)}: allowed: 2 or more tokens")
    window = getattr(loaded.model.config, "max_position_embeddings", None)
    most = max(lengths) if window is None else window - most_new_tokens(max_draft_len, depth, arms)
    if most < 2:
        raise ConfigError(
            f"the target's window of {window} tokens is too short to measure drafts of {max_draft_len}; lower "
            "--max-draft-len"
        )
    wanted = sorted({min(length, most) for length in lengths})
    prompts, rng = load_prompts(dataset), np.random.default_rng(seed)
    if any(prompt.pictures is not None for prompt in prompts):
        raise ConfigError(f"dataset {dataset!r} has pictures; contexts are cut from texts, so name a dataset of those")
    text: list[int] = []
    while len(text) < wanted[-1]:
        text += ids_of(prompt_for(loaded, prompts[int(rng.integers(len(prompts)))])).tolist()
    return [torch.tensor(text[-length:], dtype=torch.int64, device=loaded.device) for length in wanted]


def times_table(report: FitReport) -> Table:
    """Measured and modelled seconds of every length."""
    table = Table(box=None, header_style="bold", pad_edge=False)
    for name in ("positions", "measured ms", "model ms", "error"):
        table.add_column(name, justify="right")
    for s, time_s in report.model.provenance["points"]:
        fitted_s = float(report.model.verify_s(s))
        table.add_row(f"{s}", f"{time_s * 1e3:.2f}", f"{fitted_s * 1e3:.2f}", f"{fitted_s / time_s - 1:+.1%}")
    return table


@click.command()
@click.option("--target", default=SMOLLM2, show_default=True, help=f"{SMOLLM2}, a local folder or a hub id.")
@click.option("--drafter", default="layer-skip", show_default=True, help="As for python -m real.probe.")
@click.option("--max-draft-len", type=click.IntRange(2, MAX_DRAFT_LEN), default=24, show_default=True)
@click.option("--context", "contexts", type=int, multiple=True, default=CONTEXTS, show_default=True, help="Tokens.")
@click.option("--dataset", default="open-ended", show_default=True, help="Where the contexts' text is from.")
@click.option("--repeats", type=click.IntRange(2), default=15, show_default=True)
@click.option("--dtype", default="float32", show_default=True, help=", ".join(DTYPES))
@click.option("--device", default="auto", show_default=True, help=", ".join(DEVICES))
@click.option("--threads", type=click.IntRange(1, MAX_THREADS), help="CPU threads of torch.")
@click.option("--seed", type=SEED, default=0, show_default=True, help="Of texts and order.")
@click.option("--out", type=click.Path(path_type=Path, dir_okay=False), required=True, help="Latency file to write.")
@click.option("--force", is_flag=True, help="Replace --out.")
def main(
    *,
    target: str,
    drafter: str,
    max_draft_len: int,
    contexts: tuple[int, ...],
    dataset: str,
    repeats: int,
    dtype: str,
    device: str,
    threads: int | None,
    seed: int,
    out: Path,
    force: bool,
) -> None:
    """Measure what a round of the decode loop costs on this machine and write a latency model.

    The last line on standard output is the model as JSON. Nothing else should run on the machine meanwhile.
    """
    if out.exists() and not force:
        raise ConfigError(f"--out {out}: exists; choose another file or add --force to replace it")
    temporary_beside(out).unlink()  # a place that cannot be written is refused before minutes of measuring
    if threads is not None:
        torch.set_num_threads(threads)
    console = Console(stderr=True)
    session = open_session(target, drafter, dtype=dtype, device=device, max_draft_len=max_draft_len)
    longest = session.drafter.max_draft_len or max_draft_len  # of a tree its nodes
    texts = calibration_texts(
        session.loaded,
        dataset,
        contexts,
        seed=seed,
        max_draft_len=longest,
        depth=session.drafter.depth,
        arms=arms_to_measure(session.drafter),
    )
    report = measure_latency(
        session.loaded,
        session.drafter,
        texts,
        max_draft_len=longest,
        repeats=repeats,
        console=console,
        seed=seed,
    )
    save_latency(out, report.model)
    Console().print(times_table(report))
    click.echo(json.dumps(report.model.to_dict()))
