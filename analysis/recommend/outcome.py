"""From traces to decisions: one trace, the same under shifted latency models, and one setting for several traces."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from analysis.recommend.crossfit import LEAST, canonical_order, deal
from analysis.recommend.decision import USE, Decision, Ratio, decide, elsewhere
from analysis.recommend.grid import Family, families_of
from analysis.recommend.scenarios import Scenario, scenarios_of
from analysis.recommend.seconds import Facts, Seconds, Source, look_through, measure
from specsim.errors import ConfigError
from specsim.metrics import bootstrap_ratios

Floats = NDArray[np.float64]
DEARER = 0.02
"""A setting that takes this share more of the time than another is told to cost something."""


@dataclass(frozen=True, kw_only=True)
class Stress:
    """The advice under a shifted latency model, unchanged: controllers go on believing the fitted one.

    Attributes:
        speedup: of the advice there.
        staying: seconds of the advice over those of the choice one would make there.
        there: the decision one would make there.
        holds: whether the advice stands. A controller to use: its interval is above 1, and it is not certainly slower
            than the choice there, by more than `DEARER`. None to use: there is none there either.
    """

    scenario: Scenario
    speedup: Ratio
    staying: Ratio
    there: Decision
    holds: bool


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """A trace and what follows from it. Requests of `seconds` stand in `canonical_order`."""

    source: Source
    facts: Facts
    families: tuple[Family, ...]
    seconds: Seconds
    decision: Decision
    stresses: tuple[Stress, ...]

    @property
    def spellings(self) -> list[str]:
        """Candidates as typed, in the order of the seconds."""
        return [text for family in self.families for text in family.spellings]


@dataclass(frozen=True, kw_only=True)
class Pooled:
    """One setting for several traces.

    Attributes:
        families: with what all traces have in common.
        costs: per trace, seconds of the pooled advice over those of the trace's own (`_cost`).
    """

    families: tuple[Family, ...]
    decision: Decision
    costs: tuple[Ratio, ...]

    @property
    def spellings(self) -> list[str]:
        """Candidates as typed, in the order of the decision."""
        return [text for family in self.families for text in family.spellings]


def slices_of(families: Sequence[Family]) -> list[slice]:
    """Which candidates each family has."""
    ends = np.cumsum([len(family.spellings) for family in families])
    return [slice(int(end) - len(family.spellings), int(end)) for family, end in zip(families, ends, strict=True)]


def passes_of(source: Source) -> int:
    """How often `study` goes over the rows of a trace: a look, a replay, and one replay per shifted model."""
    return 2 + len(scenarios_of(source.latency))


def study(source: Source, asked: Sequence[str] = (), *, on_progress: Callable[[int], None] | None = None) -> Outcome:
    """Replay a trace with every candidate, decide, and decide again under shifted latency models.

    Args:
        source: the trace.
        asked: controllers to try (`analysis.recommend.grid.families_of`).
        on_progress: called with the number of rows gone over, all passes together.

    Raises:
        ConfigError: too few requests, nothing to draft, or what `families_of` and `measure` refuse.
    """
    told = on_progress or (lambda rows: None)
    facts = look_through(source)
    told(facts.rows)
    if facts.requests < LEAST:
        raise ConfigError(
            f"{source.path}: {facts.requests} requests; allowed: at least {LEAST}, since parameters are chosen on one "
            "part of the requests and judged on the other. Record more prompts; `python -m specsim.replay` shows what "
            "these few gave"
        )
    families = families_of(source.meta, source.latency, asked=asked, confidences=facts.confidences, passes=facts.passes)
    if not families or not families[0].spellings or source.meta.max_draft_len == 0:
        raise ConfigError(f"{source.path}: max_draft_len is 0, so there is nothing to choose; record longer drafts")
    controllers = [controller for family in families for controller in family.controllers]
    seconds = measure(source, controllers, on_progress=lambda rows: told(facts.rows + rows))
    order = canonical_order(seconds.plain_s, seconds.time_s)
    seconds = replace(seconds, plain_s=seconds.plain_s[order], time_s=seconds.time_s[:, order])
    dealt = deal([order.size], source.seed)
    slices = slices_of(families)
    decision = decide(seconds.plain_s, seconds.time_s, slices, dealt, source.seed)
    stresses = []
    for number, scenario in enumerate(scenarios_of(source.latency), 2):
        done = number * facts.rows
        other = measure(source, controllers, scenario=scenario, on_progress=lambda rows, done=done: told(done + rows))
        plain_s, time_s = other.plain_s[order], other.time_s[:, order]
        there = decide(plain_s, time_s, slices, dealt, source.seed)
        speedup, staying = elsewhere(decision, seconds.time_s, plain_s, time_s, source.seed)
        holds = _holds(decision, there, speedup, staying)
        stresses.append(Stress(scenario=scenario, speedup=speedup, staying=staying, there=there, holds=holds))
    return Outcome(
        source=source,
        facts=facts,
        families=tuple(families),
        seconds=seconds,
        decision=decision,
        stresses=tuple(stresses),
    )


def _holds(decision: Decision, there: Decision, speedup: Ratio, staying: Ratio) -> bool:
    if decision.verdict != USE:
        return there.verdict != USE
    return speedup.low > 1 and not (staying.low > 1 and staying.value > 1 + DEARER)


def pool(outcomes: Sequence[Outcome], seed: int) -> Pooled | str:
    """One setting for all traces, by their summed seconds; or why there is none to speak of.

    Requests are dealt evenly trace by trace, and resampled all together.
    """
    if len({outcome.source.meta.kind for outcome in outcomes}) > 1:
        return "traces of different kinds share no controllers"
    common = set.intersection(*(set(outcome.spellings) for outcome in outcomes))
    families = tuple(
        replace(
            family,
            spellings=tuple(text for text in family.spellings if text in common),
            controllers=tuple(
                built for text, built in zip(family.spellings, family.controllers, strict=True) if text in common
            ),
        )
        for family in outcomes[0].families
        if common & set(family.spellings)
    )
    if families[0].name != outcomes[0].families[0].name:
        return "the traces share no static setting"
    wanted = [text for family in families for text in family.spellings]
    tables = [o.seconds.time_s[[o.spellings.index(text) for text in wanted]] for o in outcomes]
    plain_s = np.concatenate([o.seconds.plain_s for o in outcomes])
    dealt = deal([table.shape[1] for table in tables], seed)
    decision = decide(plain_s, np.concatenate(tables, axis=1), slices_of(families), dealt, seed)
    costs = [_cost(outcome, decision, table, seed) for outcome, table in zip(outcomes, tables, strict=True)]
    return Pooled(families=families, decision=decision, costs=tuple(costs))


def _cost(outcome: Outcome, common: Decision, table: Floats, seed: int) -> Ratio:
    """Seconds of a trace under the common advice over those under its own, both settings as they are advised.

    The trace's own was chosen by these very requests and is flattered by that, so the cost is rather overstated.
    """
    plain_s, own = outcome.seconds.plain_s, outcome.decision
    seconds = table[common.row.best] if common.verdict == USE else plain_s
    against = outcome.seconds.time_s[own.row.best] if own.verdict == USE else plain_s
    (low, high), *_ = bootstrap_ratios(seconds, [against], seed)
    assert low is not None, "so few requests are refused"
    assert high is not None, "so few requests are refused"
    return Ratio(value=float(seconds.sum() / against.sum()), low=low, high=high)
