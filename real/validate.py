"""`python -m real.validate`: how far the simulator's prediction is from the clock.

Owns the command line and the order of work. In one folder:

    OUT/trace.parquet       what the drafter would propose at every position, recorded apart from the run
    OUT/calibration.json    costs of this machine, measured before the run
    OUT/run.json, requests/, rounds.parquet, outputs.jsonl    the run (`real.folder`)
    OUT/results.json        measured and predicted speedup of every controller

The first two are made once and never changed: the prediction knows nothing of the run. The run decodes every prompt
with every controller, in an order drawn anew for each prompt, plain decoding included.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click
import torch
from rich.console import Console

from real import recordings
from real.calibrate import check_machine
from real.compare import counted
from real.data import choose, load_prompts
from real.drafters.choose import parse_drafter
from real.evaluation import evaluate
from real.folder import RUN, RunFolder
from real.interleave import PLAIN
from real.loop import Settings
from real.models import DEVICES, DTYPES, MAX_THREADS, SMOLLM2
from real.options import SEED
from real.record import proposer_of
from real.session import ANY_LATENCY, open_session
from real.validate_report import print_report
from real.validation import (
    CALIBRATION,
    TRACE,
    Work,
    check_costs,
    check_predictable,
    check_trace,
    frozen_calibration,
    frozen_trace,
    run_prompts,
)
from real.vision.load import prompt_for
from specsim.errors import ConfigError, run_cli
from specsim.latency import load_latency
from specsim.paths import replace_file
from specsim.schema import MAX_DRAFT_LEN

RESULTS = "results.json"
REPORT_WIDTH = 140


def open_work(options: dict[str, Any], out: Path, frozen: dict[str, Path | None], *, force: bool) -> Work:
    """Load models and prompts, check everything a user may have got wrong, and claim the folder.

    Args:
        options: of the command line.
        out: the folder.
        frozen: given files by option; a continued run must be given the same.
        force: replace what the folder holds.

    Raises:
        ConfigError: anything unknown, missing or incompatible.
    """
    spellings = [PLAIN, *(name for name in options["controllers"] if name != PLAIN)]
    if len(set(spellings)) < len(spellings):
        raise ConfigError(f"--controllers {', '.join(spellings[1:])}: one is given twice; name each once")
    prompts = choose(load_prompts(options["dataset"]), options["requests"], options["seed"])
    named = {key: options[key] for key in ("dtype", "device", "max_draft_len")}
    session = open_session(options["target"], options["drafter"], **named)
    # Built again with the calibration; a misspelt one should not wait for it.
    check_predictable(session.controllers(spellings, ANY_LATENCY), session.drafter)
    spec = parse_drafter(
        options["drafter"], target=options["target"], n_layers=session.loaded.model.config.num_hidden_layers
    )
    limits = {key: options[key] for key in ("dataset", "requests", "max_new_tokens", "max_draft_len", "dtype", "seed")}
    encoded = [prompt_for(session.loaded, prompt) for prompt in prompts]
    recording = recordings.Settings(target=options["target"], drafter=spec, device=session.loaded.device, **limits)
    # All that can be refused is, before there is a folder.
    proposer_of(session.drafter)
    check_costs(session.drafter)
    recordings.check_prompts(session.loaded, session.drafter, prompts, encoded, options["max_new_tokens"])
    digests = {key: None if path is None else _digest(key, path) for key, path in frozen.items()}
    if (given := frozen["trace"]) is not None:
        check_trace(given, session, recording, prompts)
    if (given := frozen["calibration"]) is not None:
        check_machine(load_latency(given), session.loaded, session.drafter, where=str(given))
    config = {
        **{key: options[key] for key in ("target", "drafter", *limits, "repeats")},
        "controllers": spellings,
        "device": session.loaded.device,
        "threads": torch.get_num_threads(),
        "prompts": [prompt.id for prompt in prompts],
        **digests,
    }
    if force and (out / RUN).exists():
        _clear(out, keep=[path.resolve() for path in frozen.values() if path is not None])
    stop_ids = session.loaded.stop_ids
    return Work(
        session=session,
        settings=Settings(max_new_tokens=options["max_new_tokens"], stop_ids=stop_ids, seed=options["seed"]),
        recording=recording,
        prompts=prompts,
        encoded=encoded,
        spellings=spellings,
        folder=RunFolder(out, config, force=force),
        console=Console(stderr=True),
    )


def _clear(out: Path, keep: Sequence[Path]) -> None:
    for name in (TRACE, CALIBRATION, RESULTS):
        if (out / name).resolve() not in keep:
            (out / name).unlink(missing_ok=True)
    shutil.rmtree(out / f"{TRACE}.work", ignore_errors=True)


def _digest(option: str, path: Path) -> str:
    try:
        return hashlib.sha256(path.read_bytes()).hexdigest()
    except OSError as error:
        raise ConfigError(f"--{option} {path}: cannot be read ({error.strerror})") from error


@click.command()
@click.option("--target", default=SMOLLM2, show_default=True, help=f"{SMOLLM2}, a local folder or a hub id.")
@click.option("--drafter", default="layer-skip", show_default=True, help="As for python -m real.probe.")
@click.option("--controllers", multiple=True, required=True, help="One spelling each time; plain is always there.")
@click.option("--dataset", default="humaneval", show_default=True, help="humaneval, open-ended, lab or a JSONL file.")
@click.option("--requests", default=10, show_default=True, help="Prompts, drawn by seed.")
@click.option("--max-new-tokens", type=click.IntRange(1), default=64, show_default=True)
@click.option("--max-draft-len", type=click.IntRange(2, MAX_DRAFT_LEN), default=10, show_default=True)
@click.option("--dtype", default="float32", show_default=True, help=", ".join(DTYPES))
@click.option("--device", default="auto", show_default=True, help=", ".join(DEVICES))
@click.option("--threads", type=click.IntRange(1, MAX_THREADS), help="CPU threads of torch.")
@click.option("--seed", type=SEED, default=0, show_default=True, help="Prompts, order, controllers.")
@click.option("--repeats", type=click.IntRange(2), default=15, show_default=True, help="Of the calibration.")
@click.option("--out", type=click.Path(path_type=Path, file_okay=False), required=True, help="Folder to make.")
@click.option("--calibration", type=click.Path(path_type=Path, dir_okay=False), help="Latency file of this machine.")
@click.option("--trace", type=click.Path(path_type=Path, dir_okay=False), help="Trace of the same prompts.")
@click.option("--force", is_flag=True, help="Replace the run in --out.")
def main(
    *, out: Path, calibration: Path | None, trace: Path | None, force: bool, threads: int | None, **options: Any
) -> int:
    """Run controllers for real, replay the same prompts in the simulator, and compare the speedups.

    An interrupted run (exit status 130) continues when the same command is given again. Exit status 1: outputs differ
    from plain decoding's other than by a near tie below float32, or a replayed decision differs from the run's; the
    folder is complete then too.
    """
    if threads is not None:
        torch.set_num_threads(threads)
    work = open_work(options, out, {"calibration": calibration, "trace": trace}, force=force)
    try:
        frozen = frozen_trace(work, trace)
        latency = frozen_calibration(work, calibration, options["repeats"])
        controllers = work.session.controllers(work.spellings, latency)
        requests = run_prompts(work, controllers)
    except KeyboardInterrupt:
        work.console.print("interrupted; what is finished is kept, the same command continues")
        raise
    document = evaluate(work, controllers, requests, frozen, latency)
    with replace_file(out / RESULTS) as temporary:
        temporary.write_text(json.dumps(document, indent=1, allow_nan=False), encoding="utf-8")
    decode = work.session.loaded.tokenizer.decode
    texts = {(r.number, name): decode(counted(r, name).decoded.output) for r in requests for name in work.spellings}
    work.folder.finish(requests, texts=texts)
    print_report(document, Console(width=None if sys.stdout.isatty() else REPORT_WIDTH))
    click.echo(json.dumps({"out": str(out), "verdict": document["verdict"]}))
    lossless = all(d["near_tie"] and options["dtype"] != "float32" for d in document["differences"])
    return int(not lossless or any(row["shadow"] is not None for row in document["results"]))


if __name__ == "__main__":
    run_cli(main, prog_name="python -m real.validate")
