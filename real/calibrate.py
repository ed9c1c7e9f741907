"""Measuring what a round costs on this machine, and fitting the latency model a trace carries.

Owns the measurement loop. Knows nothing about traces; the fit itself is `specsim.latency.fit`.

Every repeat measures every length once, in a new random order, with drafter passes in between: all share the same
drifts, and no pass profits from caches that only a loop over itself would keep warm. The first repeats are dropped.
Nothing is synchronised inside a pass; reading the chosen tokens on the host ends it, as in real decoding.
"""

from __future__ import annotations

import platform
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import torch

from real.branches import greedy_choice
from real.cache import KVCache, forward
from real.drafters.prompt_lookup import lookup
from real.models import Loaded
from specsim.errors import ConfigError
from specsim.latency.estimators import MIN_LENGTHS
from specsim.latency.fit import FitReport, fit_latency
from specsim.latency.measurements import Measurements

PLAIN_TOLERANCE = 0.05
LENGTHS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 25, 32, 48, 64, 96, 128)


@dataclass(frozen=True, kw_only=True)
class Timings:
    """Single measurements in seconds, warm-up dropped.

    Args:
        verify: (token positions s, seconds) of target forward passes.
        draft_s: seconds of drafter passes (one drafter call each).
        commit_s: seconds of the host work after a verification: compare, count, crop the cache.
        ctx_len: cached tokens before every pass.
    """

    ctx_len: int
    verify: list[tuple[int, float]] = field(default_factory=list)
    draft_s: list[float] = field(default_factory=list)
    commit_s: list[float] = field(default_factory=list)


def lengths_up_to(max_draft_len: int) -> list[int]:
    """Token positions to measure: a spread from 1 to `max_draft_len` + 1, both ends included."""
    longest = max_draft_len + 1
    return sorted({s for s in LENGTHS if s < longest} | {longest})


def model_pass(model: Any, context: torch.Tensor) -> Callable[[], None]:
    """One drafter pass of a model: a token in, its successor, probability and entropy out, on the host."""
    cache = KVCache(len(context) + 1)
    with torch.inference_mode():
        forward(model, context, cache, keep=1)
    token = context[-1:].clone()

    def run() -> None:
        cache.crop_to(len(context))
        chosen, q, entropy = greedy_choice(forward(model, token, cache))
        torch.stack([chosen.double(), q.double(), entropy.double()]).tolist()

    return run


def lookup_pass(context: torch.Tensor, max_draft_len: int, max_ngram_len: int, seed: int = 0) -> Callable[[], None]:
    """One prompt-lookup call at a random place of the second half of the context; CPU work only."""
    ids, rng = context.tolist(), np.random.default_rng(seed)
    ends = iter(rng.integers(max(1, len(ids) // 2), len(ids) + 1, size=10_000).tolist())

    def run() -> None:
        found = lookup(ids[: next(ends)], max_draft_len, max_ngram_len=max_ngram_len)
        torch.tensor(found, dtype=torch.int64, device=context.device)

    return run


@torch.inference_mode()
def measure(
    target: Any,
    context: torch.Tensor,
    draft_pass: Callable[[], None],
    *,
    max_draft_len: int,
    repeats: int,
    warmup: int = 2,
    draft_passes: int = 3,
    seed: int = 0,
    tick: Callable[[], None] = lambda: None,
) -> Timings:
    """Time target passes of every length, drafter passes and commits, interleaved.

    Args:
        target: causal language model.
        context: int64[ctx_len] cached tokens; their values do not matter for time.
        draft_pass: makes one drafter pass and waits for it.
        max_draft_len: lengths go to `max_draft_len` + 1.
        repeats: measured repeats, after `warmup` dropped ones.
        draft_passes: drafter passes in every repeat.
        seed: of the order.
        tick: called after every repeat.
    """
    lengths, rng = lengths_up_to(max_draft_len), np.random.default_rng(seed)
    cache = KVCache(len(context) + lengths[-1])
    forward(target, context, cache, keep=1)
    tokens = context.repeat(-(-lengths[-1] // len(context)))[: lengths[-1]]
    timings = Timings(ctx_len=len(context))
    for repeat in range(warmup + repeats):
        tasks = np.array(lengths + [0] * draft_passes)
        rng.shuffle(tasks)
        for s in tasks.tolist():
            start = time.perf_counter()
            if s == 0:
                draft_pass()
                spent = time.perf_counter() - start
                commit_s = None
            else:
                best = forward(target, tokens[:s], cache).argmax(dim=-1)
                best_on_host = best.tolist()
                spent = time.perf_counter() - start
                commit_s = _commit(cache, len(context), tokens[:s], best_on_host)
            if repeat < warmup:
                continue
            if commit_s is None:
                timings.draft_s.append(spent)
            else:
                timings.verify.append((s, spent))
                timings.commit_s.append(commit_s)
        tick()
    return timings


def _commit(cache: KVCache, keep: int, draft: torch.Tensor, best: Sequence[int]) -> float:
    start = time.perf_counter()
    accepted = 0
    for proposed, chosen in zip(draft.tolist()[1:], best, strict=False):
        if proposed != chosen:
            break
        accepted += 1
    draft.new_tensor(best[accepted : accepted + 1])
    cache.crop_to(keep)
    return time.perf_counter() - start


def fit(timings: Timings, provenance: dict[str, Any]) -> FitReport:
    """The latency model of these timings: medians, form chosen on held-out error.

    `draft.pass_s` is the median drafter call, `overhead_s` the median commit. Two exceptions, which the provenance
    names. When a straight line is impossible because the time does not grow within the noise, a non-decreasing
    staircase is fitted. And when the chosen form misses the measured verify(1) by more than `PLAIN_TOLERANCE`, a
    table is: plain decoding is verify(1), the numerator of every speedup, and on CPUs a pass over one token runs other
    kernels than a pass over two, a jump at the very end of the range that held-out errors hardly see.

    Raises:
        ConfigError: longer passes were measurably faster: the machine was not quiet.
    """
    values = np.array(timings.verify, dtype=np.float64).reshape(-1, 2)
    measurements = Measurements(s=values[:, 0], time_s=values[:, 1], where="calibration")
    costs: dict[str, Any] = {
        "draft_pass_s": float(np.median(timings.draft_s)),
        "overhead_s": float(np.median(timings.commit_s)),
    }
    details = {
        **provenance,
        "ctx_len": timings.ctx_len,
        "draft_passes_measured": len(timings.draft_s),
        "overhead": "median host time of comparing, counting and cropping after a verification",
    }
    try:
        report = fit_latency(measurements, provenance=details, **costs)
    except ConfigError as error:
        details["fallback"] = f"step form, because: {error}"
        return fit_latency(measurements, form="step", provenance=details, **costs)
    plain_s = np.median(values[values[:, 0] == 1.0, 1])
    miss = abs(float(report.model.verify_s(1)) / float(plain_s) - 1.0)
    if miss > PLAIN_TOLERANCE and len(np.unique(values[:, 0])) >= MIN_LENGTHS["table"]:
        details["fallback"] = f"table form, because the {report.form} form misses the measured verify(1) by {miss:.0%}"
        return fit_latency(measurements, form="table", provenance=details, **costs)
    return report


def calibrate(
    loaded: Loaded,
    context: torch.Tensor,
    draft_pass: Callable[[], None],
    *,
    drafter: str,
    max_draft_len: int,
    repeats: int = 15,
    seed: int = 0,
    tick: Callable[[], None] = lambda: None,
) -> FitReport:
    """Measure and fit on this machine, in the dtype the model is loaded in.

    Args:
        loaded: the target.
        context: int64[ctx_len] tokens cached before every pass.
        draft_pass: `model_pass` or `lookup_pass`.
        drafter: its name, for the provenance.
        max_draft_len, repeats, seed, tick: as in `measure`.

    Raises:
        ConfigError: the measurements admit no latency model.
    """
    timings = measure(
        loaded.model, context, draft_pass, max_draft_len=max_draft_len, repeats=repeats, seed=seed, tick=tick
    )
    provenance = {
        "device": device_name(loaded.device),
        "threads": torch.get_num_threads(),
        "dtype": loaded.dtype,
        "target": loaded.name,
        "drafter": drafter,
        "repeats": repeats,
        "torch": torch.__version__,
        "created": datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
    }
    return fit(timings, provenance)


def device_name(device: str) -> str:
    """Name of the GPU or CPU the model runs on, e.g. `cpu: AMD EPYC (2 cores)`."""
    if device.startswith("cuda"):
        return f"cuda: {torch.cuda.get_device_name()}"
    model = platform.processor() or platform.machine()
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.is_file():
        names = [
            line.split(":", 1)[1].strip() for line in cpuinfo.read_text().splitlines() if line.startswith("model name")
        ]
        model = f"{names[0]} ({len(names)} cores)" if names else model
    return f"cpu: {model}"
