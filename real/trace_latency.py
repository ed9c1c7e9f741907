"""A trace's embedded latency model: measuring it for a recording, and measuring it again for an existing file.

Owns the contexts that are measured at, and the replacement of `latency` in a file's metadata. The measurement itself is
`real.calibrate`.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import torch
from rich.console import Console

from real.arm_costs import arm_seconds
from real.calibrate import calibrate, misses
from real.drafters.base import Drafter
from real.drafters.choose import DrafterSpec
from real.measure import arms_to_measure, most_new_tokens
from real.models import Loaded
from real.progress import Steps
from real.session import make_drafter
from specsim.errors import ConfigError
from specsim.latency.fit import FitReport
from specsim.trace import TraceChunk, TraceMeta, read_trace, write_trace


def measure_latency(
    loaded: Loaded,
    drafter: Drafter,
    contexts: Sequence[torch.Tensor],
    *,
    max_draft_len: int,
    repeats: int,
    console: Console,
    seed: int = 0,
    cache: str = "dynamic",
    sample: bool = False,
) -> FitReport:
    """Latency of this machine for a target and drafter at contexts int64[ctx_len]; says how it goes and what came out.

    Raises:
        ConfigError: as from `real.calibrate.calibrate`.
    """
    with Steps(console, "calibration, repeat", repeats + 1) as steps:
        report = calibrate(
            loaded,
            drafter,
            contexts,
            max_draft_len=max_draft_len,
            repeats=repeats,
            seed=seed,
            cache=cache,
            sample=sample,
            tick=steps.done,
        )
    for line in (*report.warnings, *_lines(report, max_draft_len)):
        console.print(f"latency: {line}", markup=False, highlight=False, soft_wrap=True)
    return report


def _lines(report: FitReport, max_draft_len: int) -> list[str]:
    model, details = report.model, report.model.provenance
    context = int(np.median(details["ctx_len"]))
    lines = [
        f"verify(1) {float(model.verify_s(1, context)) * 1e3:.1f} ms, verify({max_draft_len + 1}) "
        f"{float(model.verify_s(max_draft_len + 1, context)) * 1e3:.1f} ms at {context} tokens of context "
        f"({report.form}), {model.ctx_s * 1e6:.1f} us per context token",
        f"drafter pass {model.draft_pass_s * 1e3:.2f} ms, {details['catch_up_s'] * 1e3:.1f} ms more after a draft "
        f"accepted to its end (acceptance {details['acceptance']:.2f}), expected in verify(2) and up; "
        f"{details.get('first_s', 0.0) * 1e3:.2f} ms per draft, in verify(2) and up",
        f"the loop's own work {model.overhead_s * 1e6:.0f} us per round, timing it {details['clock_s'] * 1e6:.1f} us",
    ]
    lines += [
        f"arm {name!r}: {one.whole(1, context) * 1e3:.2f} ms per drafted token"
        for name, one in arm_seconds(model, where="calibration").items()
    ]
    return lines + [
        f"verify({s}) is {fitted_s * 1e3:.1f} ms in the model, {measured_s * 1e3:.1f} ms measured: times that fall "
        "with length cannot be modelled"
        for s, measured_s, fitted_s in misses(report)
    ]


def measure_again(path: Path, loaded: Loaded, *, repeats: int, console: Console) -> None:
    """Replace the latency model inside a trace file; its rows stay as they are.

    Raises:
        ConfigError: the file was recorded with another target or dtype than the loaded one, or not by this module.
        TraceError: the file is not a valid trace.
    """
    meta, chunk = read_trace(path)
    spec = stored_drafter(path, meta)
    if meta.dtype != loaded.dtype or meta.target != loaded.name:
        raise ConfigError(
            f"{path}: recorded with {meta.target} in {meta.dtype}, loaded is {loaded.name} in {loaded.dtype}"
        )
    table = pq.read_table(path)
    known = set(TraceChunk.__dataclass_fields__)
    extra = {name: table[name].combine_chunks() for name in table.column_names if name not in known}
    if "token" not in extra or chunk.ctx_len is None:
        raise ConfigError(f"{path}: has no column 'token' or 'ctx_len', so no context can be rebuilt; record it again")
    drafter = make_drafter(spec, loaded, max_draft_len=meta.max_draft_len)
    contexts = contexts_of(np.asarray(extra["token"]), chunk.ctx_len, loaded, drafter)
    report = measure_latency(
        loaded, drafter, contexts, max_draft_len=drafter.max_draft_len, repeats=repeats, console=console
    )
    document = {**meta.to_json(), "latency": report.model.to_dict()}
    write_trace(path, TraceMeta.from_json(document, path), chunk, extra_columns=extra)


def stored_drafter(path: Path, meta: TraceMeta) -> DrafterSpec:
    """The drafter of a trace recorded here; ConfigError for a file from elsewhere."""
    if meta.drafter is None or "target_spec" not in meta.extra:
        raise ConfigError(
            f"{path}: was not recorded by real.probe (no target_spec); its latency cannot be measured here"
        )
    extra = meta.extra
    skip = extra.get("skip_layers")
    return DrafterSpec(
        name=meta.drafter,
        skip_layers=tuple(skip) if skip else None,
        max_ngram_len=extra.get("max_ngram_len"),
        path=extra.get("drafter_path"),
        options=extra.get("drafter_options") or {},
    )


def contexts_of(tokens: np.ndarray, ctx_len: np.ndarray, loaded: Loaded, drafter: Drafter) -> list[torch.Tensor]:
    """int64 prompts as long as the shortest, the median and the longest context of a trace.

    Args:
        tokens: the trace's output tokens, repeated where a context is longer.
        ctx_len: of its rows.
        loaded: the target; its window bounds the lengths.
        drafter: that will be measured.
    """
    window = getattr(loaded.model.config, "max_position_embeddings", None)
    new = most_new_tokens(drafter.max_draft_len, drafter.depth, arms_to_measure(drafter))
    most = int(ctx_len.max()) if window is None else max(2, window - new)
    lengths = sorted({min(most, max(2, int(value))) for value in (ctx_len.min(), np.median(ctx_len), ctx_len.max())})
    return [torch.from_numpy(np.resize(tokens, n).astype(np.int64)).to(loaded.device) for n in lengths]
