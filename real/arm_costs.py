"""Seconds of a drafter's arms: fitted to measured rounds, kept in a latency model, put into a trace that is replayed.

Owns the entries `arms` and `round_noise` of a latency model's provenance (docs/real.md) and the way from an arm trace
to what a live run of its drafter goes through. Measures nothing.

The format of latency models has one draft cost, so the arms' stand in the provenance, as `passes_per_block` does. They
take the place of the seconds that the recording measured: those are single measurements of another hour, while a
speedup is a ratio to plain decoding's pass and needs both to share the machine's drifts.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from real.drafters.base import Drafter
from real.measure import Sample, similar_contexts
from specsim.chunk import TraceChunk, offsets_of
from specsim.errors import ConfigError
from specsim.latency import LatencyModel
from specsim.latency.estimators import fit_table
from specsim.latency.fit import context_term
from specsim.latency.measurements import Measurements, medians
from specsim.schema import TraceMeta

ARMS, NOISE = "arms", "round_noise"
QUANTILES = 101
MOST_NOISE = 1e9  # times its median: no round
LEAST = 3  # rounds of one arm and length, below which their median says little of their spread


class ArmSeconds(NamedTuple):
    """What an arm's draft takes per token: `draft_s` seconds, and `ctx_s` more for every token of context."""

    draft_s: float
    ctx_s: float

    def whole(self, draft_len: int, ctx_len: Any) -> Any:
        """Seconds of a draft of `draft_len` tokens at a context, or at each of several."""
        return draft_len * (self.draft_s + self.ctx_s * ctx_len)


def fit_arms(samples: Sequence[Sample], names: Sequence[str], draft_len: int) -> list[dict[str, Any]]:
    """The entry `arms` of a provenance: per arm with a whole draft among the rounds its name, `draft_s` and `ctx_s`.

    Medians, and a context term where longer contexts are surely not faster; drafts that an end cut short do not count.

    Args:
        samples: measured rounds.
        names: of the arms, in the order in which `Sample.arm` numbers them.
        draft_len: tokens of a whole draft.
    """
    found = []
    for number, name in enumerate(names):
        mine = [one for one in samples if one.arm == number and one.own == draft_len]
        if not mine:
            continue
        seconds = np.array([one.draft_s for one in mine]) / draft_len
        ctx_len = similar_contexts([one.ctx_len for one in mine])
        ctx_s = _context_s(np.ones(len(mine)), seconds, ctx_len)
        draft_s = float(np.median(seconds - ctx_s * ctx_len))
        if draft_s <= 0.0:  # a context term that explains more than there is
            draft_s, ctx_s = float(np.median(seconds)), 0.0
        found.append({"name": name, **ArmSeconds(draft_s, ctx_s)._asdict()})
    return found


def residuals(samples: Sequence[Sample]) -> list[float]:
    """The entry `round_noise` of a provenance: how rounds of one arm and length differ in their seconds.

    Whole rounds over the median of those of the same arm, length and number of context tokens, pooled; quantiles at
    (i + 1/2) / `QUANTILES`, scaled to a mean of 1. Empty where no arm and length was measured `LEAST` times.

    Args:
        samples: measured rounds.
    """
    groups: dict[tuple[int, int, int], list[float]] = {}
    for one in samples:
        groups.setdefault((one.arm, one.s, one.ctx_len // 64), []).append(one.draft_s + one.verify_s + one.overhead_s)
    # A clock that stood still says nothing of what a round takes.
    sound = ([one for one in seconds if one > 0] for seconds in groups.values())
    found = [np.array(seconds) / np.median(seconds) for seconds in sound if len(seconds) >= LEAST]
    if not found:
        return []
    quantiles = np.quantile(np.concatenate(found), (np.arange(QUANTILES) + 0.5) / QUANTILES)
    return (quantiles / quantiles.mean()).tolist()


def noise_of(model: LatencyModel) -> np.ndarray | None:
    """float64[n] residuals of a latency model, ascending, with mean 1; None where it says nothing of them.

    Raises:
        ConfigError: an entry that is no list of positive numbers up to `MOST_NOISE`.
    """
    given = model.provenance.get(NOISE, [])
    if not (isinstance(given, list) and all(type(one) in (int, float) and 0 < one <= MOST_NOISE for one in given)):
        raise ConfigError(
            f"the latency model: provenance.{NOISE} is {given!r:.60}; allowed: a list of positive numbers up to "
            f"{MOST_NOISE:g}, what rounds took over their median. Calibrate again (python -m real.calibrate)"
        )
    found = np.sort(np.array(given, np.float64))
    return found / found.mean() if len(found) else None


def _context_s(s: np.ndarray, time_s: np.ndarray, ctx_len: np.ndarray) -> float:
    """Seconds per context token; 0 where it comes out negative, which is noise, or nothing tells."""
    try:
        return context_term(Measurements(s=s, time_s=time_s, ctx_len=ctx_len))[0]
    except ConfigError:
        return 0.0


def run_costs(samples: Sequence[Sample], names: Sequence[str], draft_len: int) -> LatencyModel | None:
    """Costs fitted to the rounds of a run of several arms; None where all of them verified as many positions.

    Such a run verifies few different lengths, so they are a table of medians, made non-decreasing.

    Args:
        samples: of the run.
        names, draft_len: as for `fit_arms`. Of an arm that was never played nothing is said.
    """
    s, verify_s = (np.array([getattr(one, key) for one in samples], np.float64) for key in ("s", "verify_s"))
    if len(np.unique(s)) < 2:
        return None
    ctx_len = similar_contexts([one.ctx_len for one in samples])
    ctx_s = _context_s(s, verify_s, ctx_len)
    lengths, median_s, _ = medians(s, verify_s - ctx_s * ctx_len)
    return LatencyModel(
        verify=fit_table(lengths, median_s),
        ctx_s=ctx_s,
        overhead_s=float(np.median([one.overhead_s for one in samples])),
        provenance={ARMS: fit_arms(samples, names, draft_len), NOISE: residuals(samples)},
    )


def arm_seconds(model: LatencyModel, *, where: str) -> dict[str, ArmSeconds]:
    """The arms whose seconds a latency model knows, by name; none in models of drafters without arms.

    Raises:
        ConfigError: an entry that is not a name with seconds.
    """
    entries = model.provenance.get(ARMS, [])
    found = {}
    for entry in entries if isinstance(entries, list) else [entries]:
        try:
            name, seconds = str(entry["name"]), ArmSeconds(float(entry["draft_s"]), float(entry["ctx_s"]))
        except (KeyError, TypeError, ValueError):
            name, seconds = "", ArmSeconds(math.nan, math.nan)
        if not all(math.isfinite(one) and one >= 0 for one in seconds):
            raise ConfigError(
                f"{where}: provenance.{ARMS} has the entry {entry!r}; allowed: a name, and draft_s and ctx_s in "
                "seconds, 0 or more. Calibrate again (python -m real.calibrate)"
            )
        found[name] = seconds
    return found


def check_arms(model: LatencyModel, drafter: Drafter, *, where: str) -> None:
    """Refuse a calibration that does not know what every arm of a drafter of several costs.

    Raises:
        ConfigError: the first arm it says nothing of.
    """
    known = arm_seconds(model, where=where)
    missing = [name for name in drafter.arm_names if name not in known]
    if len(drafter.arm_names) > 1 and missing:
        raise ConfigError(
            f"{where}: says nothing of the seconds of arm {missing[0]!r} of {drafter.name}; calibrate again "
            "(python -m real.calibrate)"
        )


def live_view(meta: TraceMeta, chunk: TraceChunk, latency: LatencyModel) -> tuple[TraceMeta, TraceChunk]:
    """A trace of arms as a live run of its drafter goes through it; other traces as they are.

    Args:
        meta, chunk: recorded by `real.probe`.
        latency: its seconds of arms replace the recorded ones; an arm it says nothing of keeps those.
    """
    if meta.kind != "arm":
        return meta, chunk
    return _within_limit(*_priced(*reversed_arms(meta, chunk), latency))


def reversed_arms(meta: TraceMeta, chunk: TraceChunk) -> tuple[TraceMeta, TraceChunk]:
    """An arm trace with its arms in the order of live controllers, by ascending amount left out; and back again.

    First pulls and ties go by number, so the same controller on the trace's own order decides otherwise.
    """
    assert meta.arms is not None
    assert chunk.arm_accept_len is not None
    seconds = chunk.arm_draft_s
    return replace(meta, arms=meta.arms[::-1]), replace(
        chunk,
        arm_accept_len=chunk.arm_accept_len[:, ::-1],
        arm_draft_s=None if seconds is None else seconds[:, ::-1],
    )


def _priced(meta: TraceMeta, chunk: TraceChunk, latency: LatencyModel) -> tuple[TraceMeta, TraceChunk]:
    known, draft_len = arm_seconds(latency, where="the latency model"), meta.draft_len or 0
    recorded, ctx_len = chunk.arm_draft_s, chunk.ctx_len
    columns = []
    for number, arm in enumerate(meta.arms or ()):
        if arm["name"] in known:
            columns.append(known[arm["name"]].whole(draft_len, np.zeros(chunk.rows) if ctx_len is None else ctx_len))
        else:
            columns.append(np.full(chunk.rows, np.nan) if recorded is None else recorded[:, number])
    return meta, replace(chunk, arm_draft_s=np.stack(columns, axis=1).astype(np.float32))


def _within_limit(meta: TraceMeta, chunk: TraceChunk) -> tuple[TraceMeta, TraceChunk]:
    """Drafts no longer than what could still become output: recorded ones are whole even at the end."""
    most = meta.extra.get("max_new_tokens")
    if most is None:
        return meta, chunk
    room = np.clip(most - 1 - chunk.pos, 0, meta.draft_len or 0)
    return meta, replace(chunk, offsets=offsets_of(room))
