"""The document `specsim.recommendation/1` (docs/recommend.md). Computes no seconds; every printed number is in it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from analysis.recommend.advice import notes_of, wishes_of
from analysis.recommend.crossfit import REPEATS
from analysis.recommend.decision import USE, Decision, Row
from analysis.recommend.outcome import DEARER, Outcome, Pooled

SCHEMA = "specsim.recommendation/1"


def document(outcomes: Sequence[Outcome], pooled: Pooled | str | None, seed: int) -> dict[str, Any]:
    """The whole result.

    Args:
        outcomes: one per trace.
        pooled: one setting for all of them, why there is none, or None for a single trace.
        seed: of folds, resampling and controllers.
    """
    return {
        "schema": SCHEMA,
        "seed": seed,
        "repeats": REPEATS,
        "traces": [_trace(outcome) for outcome in outcomes],
        "pooled": _pooled(pooled, outcomes) if isinstance(pooled, Pooled) else None,
        "pooled_note": pooled if isinstance(pooled, str) else None,
    }


def _trace(outcome: Outcome) -> dict[str, Any]:
    meta, decision = outcome.source.meta, outcome.decision
    return {
        "path": str(outcome.source.path),
        "kind": meta.kind,
        "target": meta.target,
        "drafter": meta.drafter,
        "rows": outcome.facts.rows,
        "requests": outcome.facts.requests,
        "quarantined_requests": len(outcome.source.skip),
        "exact": meta.exact,
        "temperature": meta.temperature,
        "latency": outcome.source.latency.to_dict(),
        **_decided(decision, outcome.spellings),
        "hindsight": _hindsight(outcome),
        "robustness": _robustness(outcome),
        "notes": notes_of(outcome),
        "measure": [wish.to_json() for wish in wishes_of(outcome)],
    }


def _decided(decision: Decision, spellings: Sequence[str]) -> dict[str, Any]:
    """The keys that a single trace and the pooled traces share."""
    row, use = decision.row, decision.verdict == USE
    return {
        "verdict": decision.verdict,
        "recommended": spellings[row.best] if use else "plain",
        "closest": None if use else spellings[row.best],
        "speedup": decision.speedup.to_json(),
        "best_static": spellings[decision.rows[0].best],
        "gain_over_best_static": _percent(decision.gain.value, decision.gain.low, decision.gain.high),
        "fastest": {
            "controller": spellings[decision.rows[decision.winner].best],
            "speedup": decision.chosen[0].to_json(),
            "gain_over_best_static": _percent(*_three(decision.chosen[1])),
            "gain_over_recommended": _percent(*_three(row.behind)) if use and row.family != decision.winner else None,
        },
        "optimism": {
            "speedup_same_requests": decision.same_speedup,
            "speedup_removed": decision.same_speedup - decision.speedup.value,
            "gain_same_requests": 100 * (decision.same_gain - 1),
            "gain_removed": 100 * (decision.same_gain - decision.chosen[1].value),
        },
        "folds": decision.dealt.folds,
        "table": [_row(one, spellings) for one in sorted(decision.rows, key=lambda one: -one.speedup.value)],
    }


def _row(row: Row, spellings: Sequence[str]) -> dict[str, Any]:
    return {
        "controller": spellings[row.best],
        "speedup": row.speedup.to_json(),
        "gain_over_best_static": _percent(*_three(row.gain)),
        "speedup_same_requests": row.same,
        "share_fastest": row.share,
    }


def _three(ratio: Any) -> tuple[float, float, float]:
    return ratio.value, ratio.low, ratio.high


def _percent(value: float, low: float, high: float) -> dict[str, Any]:
    """A ratio of speeds as percent faster."""
    return {"value": 100 * (value - 1), "ci95": [100 * (low - 1), 100 * (high - 1)]}


def _hindsight(outcome: Outcome) -> dict[str, Any]:
    """What knowing these very requests would give: for comparison, nothing to expect of others."""
    result, decision = outcome.seconds.result, outcome.decision
    plain_s = float(outcome.seconds.plain_s.sum())
    assert result.static_s is not None, "logs of rounds are refused"
    assert result.oracle_s is not None, "logs of rounds are refused"
    first = 0 if outcome.source.meta.kind == "arm" else 1  # length 0 is no draft
    static = first + int(result.static_s[first:].argmin())
    static_s = float(result.static_s[static])
    return {
        "best_static": f"{'arm:index' if outcome.source.meta.kind == 'arm' else 'static:length'}={static}",
        "best_static_speedup": plain_s / static_s,
        "gain_over_it": 100 * (static_s / float(decision.held_s.sum()) - 1),
        "clairvoyant_speedup": plain_s / result.oracle_s,
    }


def _robustness(outcome: Outcome) -> dict[str, Any]:
    rows = [
        {
            "scenario": stress.scenario.name,
            "origin": stress.scenario.origin,
            "speedup": stress.speedup.to_json(),
            "staying_costs": _percent(*_three(stress.staying)),
            "verdict_there": stress.there.verdict,
            "recommended_there": (outcome.spellings[stress.there.row.best] if stress.there.verdict == USE else "plain"),
            "holds": stress.holds,
        }
        for stress in outcome.stresses
    ]
    return {"holds": all(stress.holds for stress in outcome.stresses), "scenarios": rows}


def _pooled(pooled: Pooled, outcomes: Sequence[Outcome]) -> dict[str, Any]:
    return {
        **_decided(pooled.decision, pooled.spellings),
        "dearer_percent": 100 * DEARER,
        "costs": [
            {
                "path": str(outcome.source.path),
                "against": outcome.spellings[outcome.decision.row.best] if outcome.decision.verdict == USE else "plain",
                "cost": _percent(*_three(cost)),
                "dearer": cost.value > 1 + DEARER and cost.low > 1,
            }
            for outcome, cost in zip(outcomes, pooled.costs, strict=True)
        ],
    }
