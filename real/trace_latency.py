"""A trace's embedded latency model: measuring it for a recording, and measuring it again for an existing file.

Owns the way from a drafter's settings to what is timed, and the replacement of `latency` in a file's metadata.
The measurement itself is `real.calibrate`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import torch
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from real.calibrate import calibrate, lookup_pass, model_pass
from real.drafters.choose import LAYER_SKIP, DrafterSpec
from real.drafters.layer_skip import skip_layers
from real.models import Loaded
from specsim.errors import ConfigError
from specsim.trace import TraceChunk, TraceMeta, read_trace, write_trace


def measure_latency(
    drafter: DrafterSpec, max_draft_len: int, loaded: Loaded, context: np.ndarray, *, repeats: int, console: Console
) -> dict[str, Any]:
    """Latency document of this machine for a target and drafter; `context` int64[ctx_len] tokens are cached."""
    ids = torch.tensor(context.tolist(), dtype=torch.int64, device=loaded.device)
    if drafter.name == LAYER_SKIP:
        draft_pass = model_pass(skip_layers(loaded.model, drafter.skip_layers or ()), ids)
    else:
        draft_pass = lookup_pass(ids, max_draft_len, drafter.max_ngram_len or 1)
    with progress_bar(console) as progress:
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


def progress_bar(console: Console) -> Progress:
    """A bar for slow work; leaves nothing behind when the output is not a terminal."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    return Progress(*columns, TimeRemainingColumn(), console=console, transient=not console.is_terminal)
