"""`python -m real.calibrate`: what a round costs on this machine, as the latency model that predicts runs.

Owns the fit of measured rounds (`real.measure`) and what it holds for; the command is in `real.calibrate_cli`, the
forms and their choice in `specsim.latency.fit`.

A drafting model has to read two tokens instead of one after a draft that was accepted to its end. The latency format
has no cost of its own for that. Its expectation is part of verify(s) for s > 1, the verification that causes it:
`catch_up_s` times the chance that s - 1 tokens are all accepted, `acceptance` to the power s - 1 (both are in the
provenance). Rounds without a draft do not pay for it.

Nor has it one for what a draft costs once, however long it is: a head that reads the last round's tokens in its first
pass, a block drafter that reads the text's newest blocks. Where drafts had different numbers of passes, `first_s` +
`pass_s` * passes is fitted to their seconds, and `first_s` put into verify(s) for s > 1 in the same way.
"""

from __future__ import annotations

import platform
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import torch

from real.arm_costs import ARMS, NOISE, check_arms, fit_arms, residuals
from real.clock import DRAFT, VERIFY, Clock, clock_for
from real.drafters.base import Drafter
from real.measure import Sample, lengths_up_to, measure, similar_contexts
from real.models import Loaded
from real.target import Target
from specsim.errors import ConfigError
from specsim.latency import LatencyModel
from specsim.latency.estimators import MIN_LENGTHS
from specsim.latency.fit import FitReport, fit_latency
from specsim.latency.measurements import Measurements
from specsim.passes import PASSES_PER_BLOCK

TOLERANCE = 0.05
NO_FIRST = 0.02  # of a pass


@dataclass(frozen=True, kw_only=True)
class DraftCosts:
    """Seconds of drafting and of the loop's own work.

    Args:
        pass_s: one drafter pass that reads one token; of a drafter that reports its passes, one of those.
        first_s: what a draft costs once, beyond its passes.
        catch_up_s: what a pass that reads two costs more.
        acceptance: chance that a drafted token is accepted when all before it were.
        host_s: loop, controller and bookkeeping per round.
        per_block: mean passes behind a block of a drafter that reports its passes; None for others.
    """

    pass_s: float
    catch_up_s: float
    acceptance: float
    host_s: float
    first_s: float = 0.0
    per_block: float | None = None

    def after_verifying_s(self, s: int) -> float:
        """Expected cost of catching up after a pass over s token positions: all of s - 1 drafted tokens accepted."""
        return self.catch_up_s * self.acceptance ** (s - 1) if s > 1 else 0.0


def draft_costs(samples: Sequence[Sample]) -> DraftCosts:
    """Medians of the parts that are not the target's."""
    drafting = [sample for sample in samples if sample.passes]
    steady = [sample for sample in drafting if sample.reads == 1] or drafting
    first_s, pass_s = draft_line([one.passes for one in steady], [one.draft_s for one in steady])
    behind = [sample.draft_s - sample.passes * pass_s - first_s for sample in drafting if sample.reads == 2]
    blocks = sum(sample.blocks for sample in drafting)
    accepted = sum(sample.accepted for sample in drafting)
    refused = sum(sample.accepted < sample.own for sample in drafting)
    return DraftCosts(
        pass_s=pass_s,
        catch_up_s=max(0.0, float(np.median(behind))) if behind else 0.0,
        acceptance=accepted / (accepted + refused) if behind else 0.0,
        host_s=float(np.median([sample.overhead_s for sample in samples])),
        first_s=first_s,
        per_block=sum(one.passes for one in drafting) / blocks if blocks else None,
    )


def draft_line(passes: Sequence[int], draft_s: Sequence[float]) -> tuple[float, float]:
    """(seconds a draft costs once, seconds per pass) of drafts of some numbers of passes; (0, 0) without any.

    Medians per number of passes, then the weighted median of the slopes between every two of them (Theil-Sen; a pair
    counts by its distance and by its rarer number) and of what is left. Where all drafts have as many passes nothing
    tells the two apart, and where the first is below `NO_FIRST` of a pass it is none: then the median of seconds per
    pass is the whole cost.
    """
    if not passes:
        return 0.0, 0.0
    count, seconds = np.array(passes, np.float64), np.array(draft_s, np.float64)
    x, seen = np.unique(count, return_counts=True)
    y = np.array([np.median(seconds[count == number]) for number in x])
    i, j = np.triu_indices(len(x), k=1)
    if len(i):
        weights = (x[j] - x[i]) * np.minimum(seen[i], seen[j])
        slope = _weighted_median((y[j] - y[i]) / (x[j] - x[i]), weights)
        first_s = _weighted_median(y - slope * x, seen)
        if slope > 0 and first_s > NO_FIRST * slope:
            return first_s, slope
    return 0.0, float(np.median(seconds / count))


def _weighted_median(values: np.ndarray, weights: np.ndarray) -> float:
    order = np.argsort(values)
    total = np.cumsum(weights[order])
    return float(values[order][np.searchsorted(total, total[-1] / 2)])


def fit(
    samples: Sequence[Sample], provenance: Mapping[str, Any], *, arms: Sequence[str] | None = None, draft_len: int = 0
) -> FitReport:
    """The latency model of these rounds: medians, form chosen on held-out error, context term where it shows.

    Three exceptions, which the provenance names. A context term that comes out negative is noise and left out. When a
    straight line is impossible because the time does not grow within the noise, a non-decreasing staircase is fitted.
    And when the chosen form misses a measured length by more than `TOLERANCE` a table is, if that comes closer: on CPUs
    a pass over one token runs other kernels than a pass over two, a jump that held-out errors hardly see.

    Args:
        samples: measured rounds.
        provenance: what else the model's says.
        arms: spellings of the drafter's configurations, if it has several (none: they are made while it decodes). The
            seconds of their drafts, and how rounds differ, are in the provenance (`real.arm_costs`), so nothing of a
            draft's cost is put into verify.
        draft_len: tokens of a whole draft of an arm.

    Raises:
        ConfigError: too few lengths, or longer passes were measurably faster: the machine was not quiet.
    """
    costs = draft_costs(samples)
    if arms is not None:
        first = draft_costs([sample for sample in samples if sample.arm <= 0])
        costs = replace(costs, pass_s=first.pass_s, first_s=0.0, catch_up_s=0.0, acceptance=0.0)
    details: dict[str, Any] = {
        **provenance,
        "rounds_measured": len(samples),
        "catch_up_s": costs.catch_up_s,
        "acceptance": costs.acceptance,
        "verify": "passes of the target; for s > 1 with catch_up_s * acceptance^(s - 1) (real.calibrate)",
    }
    if costs.first_s:
        details |= {"first_s": costs.first_s, "verify": details["verify"] + ", and first_s"}
    if costs.per_block is not None:
        details[PASSES_PER_BLOCK] = costs.per_block
    if arms:
        details |= {ARMS: fit_arms(samples, arms, draft_len), NOISE: residuals(samples)}
    ctx_len = similar_contexts([sample.ctx_len for sample in samples])
    measured = Measurements(
        s=np.array([sample.s for sample in samples], np.float64),
        time_s=np.array([one.verify_s + costs.after_verifying_s(one.s) for one in samples], np.float64),
        ctx_len=ctx_len,
        where="calibration",
    )
    details["ctx_len"] = sorted(set(ctx_len.round(1).tolist()))
    options: dict[str, Any] = {"draft_pass_s": costs.pass_s, "overhead_s": costs.host_s, "provenance": details}
    try:
        report = _fit(measured, options)
    except ConfigError as error:
        if "context term" not in str(error):
            raise
        details["context"] = f"left out, because: {error}"
        report = _fit(Measurements(s=measured.s, time_s=measured.time_s, where=measured.where), options)
    return _with_first(report, costs.first_s)


def _with_first(report: FitReport, first_s: float) -> FitReport:
    """The fit with `first_s` more for every s > 1: a step that no form but a table has, so added to the fitted one."""
    if not first_s:
        return report
    model, points = report.model, report.model.provenance["points"]
    longest = max(2, max(s for s, _ in points))
    times_s = model.verify_table(longest)[1:] + np.where(np.arange(longest) > 0, first_s, 0.0)
    table = {"form": "table", "s": list(range(1, longest + 1)), "times_s": times_s.tolist()}
    provenance = {
        **model.provenance,
        "form": f"{report.form}, and first_s for s > 1",
        "points": [[s, time_s + (first_s if s > 1 else 0.0)] for s, time_s in points],
    }
    document = model.to_dict()
    ctx = {"ctx_s": model.ctx_s} if model.ctx_s else {}
    document |= {"verify": {**table, **ctx}, "provenance": provenance}
    return replace(report, model=LatencyModel.from_dict(document, where="calibration"))


def _fit(measured: Measurements, options: dict[str, Any]) -> FitReport:
    details = options["provenance"]
    try:
        report = fit_latency(measured, **options)
    except ConfigError as error:
        if "context term" in str(error) or "longer passes were faster" in str(error):
            raise
        details["fallback"] = f"step form, because: {error}"
        return fit_latency(measured, form="step", **options)
    if report.max_rel_err <= TOLERANCE or len(np.unique(measured.s)) < MIN_LENGTHS["table"]:
        return report
    details["fallback"] = (
        f"table form, because the {report.form} form misses a measured length by {report.max_rel_err:.0%}"
    )
    table = fit_latency(measured, form="table", **options)
    if table.max_rel_err < report.max_rel_err:
        return table
    del details["fallback"]
    return report


def misses(report: FitReport) -> list[tuple[int, float, float]]:
    """(s, measured seconds, modelled seconds) of lengths that the model misses by more than `TOLERANCE`.

    The measured ones are without the context term. A model never falls with s; where the machine's times do, it is
    wrong on both sides.
    """
    points = [(int(s), float(time_s)) for s, time_s in report.model.provenance["points"]]
    fitted = [(s, time_s, float(report.model.verify_s(s))) for s, time_s in points]
    return [row for row in fitted if abs(row[2] / row[1] - 1.0) > TOLERANCE]


def calibrate(
    loaded: Loaded,
    drafter: Drafter,
    contexts: Sequence[torch.Tensor],
    *,
    max_draft_len: int,
    repeats: int = 15,
    seed: int = 0,
    cache: str = "dynamic",
    sample: bool = False,
    tick: Callable[[], None] = lambda: None,
) -> FitReport:
    """Measure and fit on this machine, in the dtype the model is loaded in.

    Args:
        loaded: the target.
        drafter: its drafter.
        contexts, max_draft_len, repeats, seed, sample, tick: as in `measure`.
        cache: of the target, as in `real.target`.

    Raises:
        ConfigError: drafts too short to tell what length costs, before anything is measured; or the measurements admit
            no latency model.
    """
    if len(lengths_up_to(max_draft_len)) < MIN_LENGTHS["affine"]:
        raise ConfigError(
            f"max_draft_len {max_draft_len}: drafts too short to measure what their length costs; allowed: 2 or more, "
            "or give a latency model"
        )
    samples = measure(
        Target(loaded.model, cache=cache),
        drafter,
        contexts,
        max_draft_len=max_draft_len,
        repeats=repeats,
        seed=seed,
        sample=sample,
        tick=tick,
    )
    more = {
        "sample": sample,
        "max_draft_len": max_draft_len,
        "repeats": repeats,
        "clock_s": clock_cost_s(loaded.device),
    }
    arms = drafter.arm_names if len(drafter.arm_costs) > 1 else None
    return fit(samples, machine(loaded, drafter) | more, arms=arms, draft_len=drafter.arm_draft_len)


def machine(loaded: Loaded, drafter: Drafter) -> dict[str, Any]:
    """What a calibration holds for: device, threads, dtype, models and versions."""
    return {
        "device": device_name(loaded.device),
        "threads": torch.get_num_threads(),
        "dtype": loaded.dtype,
        "target": loaded.name,
        "drafter": drafter.name,
        "torch": torch.__version__,
        "created": datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
    }


def check_machine(model: LatencyModel, loaded: Loaded, drafter: Drafter, *, where: str) -> None:
    """Refuse a calibration of another machine, precision or pair of models, or one of shorter drafts or fewer arms.

    Raises:
        ConfigError: the first key of the provenance that differs.
    """
    if drafter.reports_passes and PASSES_PER_BLOCK not in model.provenance:
        raise ConfigError(
            f"{where}: says nothing of {PASSES_PER_BLOCK}, so that its draft.pass_s is not a pass of {drafter.name}, "
            "which fills a block in several; calibrate again (python -m real.calibrate)"
        )
    longest = model.provenance.get("max_draft_len", 0)
    if longest < drafter.max_draft_len:
        raise ConfigError(
            f"{where}: was calibrated for drafts of up to {longest} tokens, this run drafts up to "
            f"{drafter.max_draft_len}; calibrate again with --max-draft-len {drafter.max_draft_len}"
        )
    here = machine(loaded, drafter)
    for key in ("device", "threads", "dtype", "target", "drafter"):
        if model.provenance.get(key) != here[key]:
            raise ConfigError(
                f"{where}: was calibrated with {key} {model.provenance.get(key)!r}, this run has {here[key]!r}; "
                "calibrate again on this machine with the same options (python -m real.calibrate)"
            )
    check_arms(model, drafter, where=where)


def clock_cost_s(device: str, rounds: int = 200) -> float:
    """Seconds that timing a round with one draft and one verification costs, median of `rounds`."""
    clock: Clock = clock_for(device)
    clock.start()
    spent = []
    for _ in range(rounds):
        started = time.perf_counter()
        for stage in (DRAFT, VERIFY):
            clock.enter()
            clock.leave(stage)
        clock.read()
        spent.append(time.perf_counter() - started)
    return float(np.median(spent))


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


if __name__ == "__main__":
    # Imported here and not above: the command imports this module.
    from real.calibrate_cli import main
    from specsim.errors import run_cli

    run_cli(main, prog_name="python -m real.calibrate")
