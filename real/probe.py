"""`python -m real.probe`: record a PositionTrace of a real target and drafter, or measure a trace's latency again.

Owns the command line and its order of work. The recording is `real.recordings`.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click
import torch
from rich.console import Console

from real.arm_shape import warnings_of
from real.data import load_prompts
from real.drafters.choose import LAYER_SKIP, parse_drafter
from real.models import DEVICES, DTYPES, MAX_THREADS, SMOLLM2, Loaded, load_target
from real.options import SEED
from real.probe_summary import line_of
from real.recordings import Settings, flat, record, save
from real.session import make_drafter
from real.trace_latency import contexts_of, measure_again, measure_latency, stored_drafter
from specsim.errors import ConfigError, run_cli
from specsim.schema import MAX_DRAFT_LEN
from specsim.trace import read_trace


def _check_numbers(max_new_tokens: int, max_draft_len: int, threads: int | None, repeats: int) -> None:
    bounds = {
        "--max-new-tokens": (max_new_tokens, 1, None),
        "--max-draft-len": (max_draft_len, 1, MAX_DRAFT_LEN),
        "--threads": (1 if threads is None else threads, 1, MAX_THREADS),
        "--latency-repeats": (repeats, 0, None),
    }
    for name, (value, low, high) in bounds.items():
        if value < low or (high is not None and value > high):
            raise ConfigError(f"{name} {value}: allowed: {low} or more" + (f", at most {high}" if high else ""))


@click.command()
@click.option("--target", default=SMOLLM2, show_default=True, help=f"{SMOLLM2}, a local folder or a hub id.")
@click.option(
    "--drafter",
    default=LAYER_SKIP,
    show_default=True,
    help="layer-skip[:keep=..|skip=..], early-exit:layers=.., prompt-lookup[:ngram=2], model:path=.. or one of those "
    "in docs/drafters.md, such as dflash:path=..",
)
@click.option("--skip-layers", help="Layers the layer-skip drafter leaves out, e.g. 9-14,20.")
@click.option(
    "--dataset", default="humaneval", show_default=True, help="humaneval, open-ended, lab, a JSONL file or its folder."
)
@click.option("--requests", default=10, show_default=True, help="Prompts, drawn by seed.")
@click.option("--max-new-tokens", default=128, show_default=True)
@click.option("--max-draft-len", default=24, show_default=True)
@click.option("--out", type=click.Path(path_type=Path, dir_okay=False), help="Trace file to write.")
@click.option("--visual-tokens", type=click.IntRange(1), help="Most of a prompt's pictures (vision-language targets).")
@click.option("--dtype", default="float32", show_default=True, help=", ".join(DTYPES))
@click.option("--device", default="auto", show_default=True, help=", ".join(DEVICES))
@click.option("--threads", type=int, help="CPU threads of torch.")
@click.option("--seed", type=SEED, default=0, show_default=True, help="Chooses the prompts.")
@click.option("--latency-repeats", default=15, show_default=True, help="0: no latency model.")
@click.option("--force", is_flag=True, help="Replace a finished --out.")
@click.option("--restart", is_flag=True, help="Throw away an interrupted recording of --out.")
@click.option("--latency-only", is_flag=True, help="Measure the latency of the trace files given as arguments again.")
@click.argument("files", nargs=-1, type=click.Path(path_type=Path))
def main(
    *,
    out: Path | None,
    files: tuple[Path, ...],
    latency_only: bool,
    latency_repeats: int,
    threads: int | None,
    force: bool,
    restart: bool,
    **options: Any,
) -> None:
    """Record what a drafter would propose, and the target accept, at every position of real responses.

    An interrupted recording (exit status 130) continues when the same command is given again.
    """
    _check_numbers(options["max_new_tokens"], options["max_draft_len"], threads, latency_repeats)
    if threads is not None:
        torch.set_num_threads(threads)
    console = Console(stderr=True)
    if latency_only:
        if out is not None:
            raise ConfigError("--latency-only changes the files given as arguments; it takes no --out")
        _again(files, options["device"], max(1, latency_repeats), console)
        return
    if files or out is None:
        raise ConfigError("name the trace to record with --out FILE; files as arguments belong to --latency-only")
    if out.exists() and not force:
        raise ConfigError(f"--out {out}: exists; choose another file or add --force to replace it")
    _record_file(out, options, latency_repeats, console, restart=restart)


def _again(files: Sequence[Path], device: str, repeats: int, console: Console) -> None:
    if not files:
        raise ConfigError("--latency-only needs trace files as arguments, e.g. --latency-only traces/*.parquet")
    loaded: Loaded | None = None
    held = None
    for path in files:
        meta, _ = read_trace(path)
        stored_drafter(path, meta)
        wanted = (meta.extra["target_spec"], meta.dtype or "float32")
        if loaded is None or wanted != held:
            loaded, held = load_target(wanted[0], dtype=wanted[1], device=device), wanted
        console.print(f"{path}: measuring")
        measure_again(path, loaded, repeats=repeats, console=console)


def _record_file(out: Path, options: dict[str, Any], repeats: int, console: Console, *, restart: bool) -> None:
    load_prompts(options["dataset"])  # an unknown name should not wait for the model
    loaded = load_target(
        options["target"],
        dtype=options["dtype"],
        device=options["device"],
        visual_tokens=options["visual_tokens"],
    )
    skip, name = options.pop("skip_layers"), options.pop("drafter")
    n_layers = loaded.model.config.num_hidden_layers
    spec = parse_drafter(name, target=options["target"], n_layers=n_layers, skip_layers=skip)
    drafter = make_drafter(spec, loaded, max_draft_len=options["max_draft_len"])
    settings = Settings(**{**options, "device": loaded.device, "drafter": spec})
    try:
        requests = record(settings, loaded, drafter, out, console=console, restart=restart)
    except KeyboardInterrupt:
        console.print("interrupted; finished requests are kept, the same command continues")
        raise
    latency = None
    if repeats > 0:
        tokens, ctx_len = flat(requests)
        contexts = contexts_of(tokens, ctx_len, loaded, drafter)
        try:
            latency = measure_latency(
                loaded, drafter, contexts, max_draft_len=drafter.max_draft_len, repeats=repeats, console=console
            ).model.to_dict()
        except ConfigError as error:  # an hour of recording is worth more than one bad calibration
            console.print(f"no latency model: {error}. Later: python -m real.probe --latency-only {out}")
    summary = save(out, settings, loaded, drafter, requests, latency)
    click.echo(line_of(summary))
    for line in warnings_of(summary["arms"]):
        console.print(line, markup=False, highlight=False, soft_wrap=True)
    click.echo(json.dumps(summary))


if __name__ == "__main__":
    run_cli(main, prog_name="python -m real.probe")
