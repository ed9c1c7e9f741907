"""What a recommendation rests on, what is doubtful about it, and what to measure to be surer."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from analysis.recommend.decision import LOSES, SMALL, USE, Decision, Ratio
from analysis.recommend.live import live_command
from analysis.recommend.outcome import Outcome
from specsim.latency import LatencyModel

FEW = 20
PRECISION = 0.02  # half-width of the interval of the speedup that is asked for
OFTEN = 0.05  # share of rounds from which on a length matters
RARE = 0.01
OFF = 0.05  # relative distance of a measured point from the model
MOST = 100_000


@dataclass(frozen=True, kw_only=True)
class Wish:
    """Something to measure: what, why, how many requests (None: not a matter of requests), and the command."""

    what: str
    why: str
    requests: int | None = None
    command: str | None = None

    def to_json(self) -> dict[str, Any]:
        """JSON values."""
        return {"what": self.what, "why": self.why, "requests": self.requests, "command": self.command}


def requests_for(ratio: Ratio, requests: int, half_width: float) -> int | None:
    """Requests for which the interval would be +- `half_width`, as it narrows with 1 / sqrt(n); None: far too many."""
    needed = requests * (ratio.half_width / half_width) ** 2 if half_width > 0 else math.inf
    return math.ceil(needed) if needed <= MOST else None


def notes_of(outcome: Outcome) -> list[str]:
    """What should be known about the trace, the model and the advice, one sentence each."""
    return [*_trace_notes(outcome), *_latency_notes(outcome)]


def _trace_notes(outcome: Outcome) -> Iterator[str]:
    meta, facts = outcome.source.meta, outcome.facts
    if facts.requests < FEW:
        yield (
            f"few requests: all intervals rest on {facts.requests} of them and tend to be too short; read them as a "
            "first look"
        )
    if outcome.source.skip:
        yield (
            f"{len(outcome.source.skip)} requests were set aside as faulty (--quarantine): the advice is for texts "
            "like the others; find out first whether what broke them also makes them special"
        )
    if meta.temperature > 0:
        yield (
            f"recorded at temperature {meta.temperature:g}: each prompt is judged by one sampled text, and another "
            "draw gives other seconds; only the spread between requests is in the intervals"
        )
    elif not meta.exact:
        yield (
            "the recorded text was not checked against plain decoding, or differs from it (exact is false): a live run "
            "may accept other tokens at near ties"
        )
    if not facts.confidences and meta.kind == "length":
        yield "column 'q' has null rows: rules that read confidences took no part; record q to let them"
    if meta.kind != "tree" and outcome.seconds.result.results[_advised(outcome)]["inexact_rounds"]:
        yield "this drafter redraws a longer block, so lengths short of the recorded pass are approximate"
    built = [controller for family in outcome.families for controller in family.controllers]
    if outcome.decision.verdict == USE and not built[_advised(outcome)].per_request:
        yield (
            "what it learns goes on from request to request, in the order of the file: a server that starts anew with "
            "each request gains less"
        )


def _latency_notes(outcome: Outcome) -> Iterator[str]:
    latency, facts = outcome.source.latency, outcome.source.latency.provenance
    if latency.draft_pass_s == latency.draft_token_s == 0 and outcome.source.meta.kind != "arm":
        yield "drafting costs nothing in this latency model: long drafts are flattered unless your drafter is free"
    if facts.get("slope_significant") is False:
        yield "the fitted slope of verification is not significant: how long drafts should be is not settled by it"
    yield from _of_another(outcome)
    valid = _valid(latency)
    if valid is not None:
        shares = {
            outcome.spellings[row.best]: share_above(outcome, row.best, valid[1] - 1) for row in outcome.decision.rows
        }
        beyond = [f"{name} in {100 * share:.0f} %" for name, share in shares.items() if share > RARE]
        if beyond:
            yield (
                f"costs beyond the {valid[1]} positions the latency was measured for are extrapolated; rounds that "
                f"verify more: {', '.join(beyond)}"
            )
    for s, measured, modelled in _residuals(outcome):
        yield (
            f"at {s} positions, which {_name(outcome)} often verifies, {1e3 * measured:.3g} ms were measured and "
            f"{1e3 * modelled:.3g} ms are modelled"
        )


def _of_another(outcome: Outcome) -> Iterator[str]:
    """Whether the model names another target or drafter than the trace."""
    meta, facts = outcome.source.meta, outcome.source.latency.provenance
    for what, recorded in (("target", meta.target), ("drafter", meta.drafter)):
        measured = facts.get(what)
        # A calibration names the drafter with its options.
        if isinstance(measured, str) and recorded is not None and measured.partition(":")[0] != recorded:
            yield f"the latency model is of the {what} {measured}, the trace of {recorded}"


def share_above(outcome: Outcome, candidate: int, length: int) -> float:
    """Share of a candidate's rounds that verify more than `length` draft tokens."""
    rounds = outcome.seconds.lengths[candidate]
    return float(rounds[length + 1 :].sum() / rounds.sum())


def _advised(outcome: Outcome) -> int:
    return outcome.decision.row.best


def _name(outcome: Outcome) -> str:
    return outcome.spellings[_advised(outcome)]


def _valid(latency: LatencyModel) -> tuple[int, int] | None:
    found = latency.provenance.get("valid_s")
    if isinstance(found, list) and len(found) == 2 and all(isinstance(end, int) for end in found):
        return found[0], found[1]
    return None


def _points(latency: LatencyModel) -> dict[int, float]:
    """Measured seconds by positions; empty where the model does not tell."""
    found = latency.provenance.get("points")
    pairs = found if isinstance(found, list) else []
    return {
        int(pair[0]): float(pair[1])
        for pair in pairs
        if isinstance(pair, list) and len(pair) == 2 and all(isinstance(v, int | float) for v in pair)
    }


def _often(outcome: Outcome) -> list[int]:
    """Positions of the passes that the advised candidate often verifies drafts with, the most frequent first."""
    rounds = outcome.seconds.lengths[_advised(outcome)]
    often = [d + 1 for d in range(1, rounds.size) if rounds[d] >= OFTEN * rounds.sum()]
    return sorted(often, key=lambda s: (-rounds[s - 1], s))


def _residuals(outcome: Outcome) -> Iterator[tuple[int, float, float]]:
    latency, points = outcome.source.latency, _points(outcome.source.latency)
    for s in sorted(_often(outcome)):
        if s in points and abs(float(latency.verify_s(s)) / points[s] - 1) > OFF:
            yield s, points[s], float(latency.verify_s(s))


def wishes_of(outcome: Outcome) -> list[Wish]:
    """What to measure to be surer, the most telling first."""
    return [
        *_more_requests(outcome.decision, outcome.facts.requests),
        *_costs(outcome),
        *_longer(outcome),
        *_check(outcome),
    ]


def _more_requests(decision: Decision, requests: int) -> Iterator[Wish]:
    if decision.verdict not in (USE, LOSES):
        yield Wish(
            what="more requests",
            why=f"to tell {decision.speedup.value:.3f}x from plain decoding, if it is that",
            requests=requests_for(decision.speedup, requests, abs(decision.speedup.value - 1)),
        )
    behind = decision.row.behind
    if decision.verdict == USE and decision.row.family != decision.winner and behind.value >= 1 + SMALL:
        yield Wish(
            what="more requests",
            why=f"to tell whether the fastest is faster than the advice, if it is by {100 * (behind.value - 1):.1f} %",
            requests=requests_for(behind, requests, behind.value - 1),
        )
    if decision.verdict == USE and decision.speedup.half_width > PRECISION:
        yield Wish(
            what="more requests",
            why=f"for a speedup to within +-{100 * PRECISION:.0f} %",
            requests=requests_for(decision.speedup, requests, PRECISION),
        )


def _costs(outcome: Outcome) -> Iterator[Wish]:
    meta, points = outcome.source.meta, _points(outcome.source.latency)
    again = "python -m specsim.latency fit points.csv --out my.json"
    if "target_spec" in meta.extra and outcome.source.measured_draft:
        again = f"python -m real.probe --latency-only {outcome.source.path}"
    if not points:
        yield Wish(
            what="latency of your own machine",
            why="the model does not say at which lengths it was measured",
            command=again,
        )
    else:
        missing = [s for s in _often(outcome) if s not in points][:6]
        doubtful = [s for s, _, _ in _residuals(outcome)]
        if missing:
            yield Wish(
                what=f"latency at {', '.join(map(str, sorted(missing)))} positions",
                why=f"{_name(outcome)} often verifies so many, and none was measured there",
                command="python -m specsim.latency fit points.csv --out my.json",
            )
        if doubtful:
            yield Wish(
                what=f"latency at {', '.join(map(str, doubtful))} positions again",
                why=f"model and measurement differ by more than {100 * OFF:.0f} % there",
                command=again,
            )
    fragile = [stress.scenario.name for stress in outcome.stresses if not stress.holds]
    if fragile and points:
        yield Wish(
            what="latency with more repeats, on a quiet machine",
            why=f"the advice changes with {', '.join(fragile)}",
            command=again,
        )


def _longer(outcome: Outcome) -> Iterator[Wish]:
    decision, meta = outcome.decision, outcome.source.meta
    if decision.verdict == LOSES:
        return
    static = outcome.families[0].spellings
    best = outcome.spellings[decision.rows[0].best]
    if meta.kind == "arm":
        if len(static) > 1 and best in (static[0], static[-1]):
            side = "cheapest" if best == static[0] else "dearest"
            yield Wish(what=f"arms beyond the {side} one", why=f"the best single arm, {best}, is the {side} recorded")
        return
    limit = meta.tree_nodes if meta.kind == "tree" else meta.max_draft_len
    unit = "nodes" if meta.kind == "tree" else "tokens"
    at_end = share_above(outcome, _advised(outcome), limit - 1)
    clamped = outcome.seconds.result.results[_advised(outcome)]
    wanted = clamped["clamped_rounds"] / clamped["rounds"]
    if best == static[-1]:
        yield Wish(what=f"drafts of more than {limit} {unit}", why="the best static length is the longest recorded")
    elif at_end >= OFTEN or wanted > RARE:
        share = 100 * max(at_end, wanted)
        yield Wish(
            what=f"drafts of more than {limit} {unit}",
            why=f"{_name(outcome)} verifies the longest recorded, or would go beyond, in {share:.0f} % of rounds",
        )


def _check(outcome: Outcome) -> Iterator[Wish]:
    decision = outcome.decision
    names = dict.fromkeys(
        [
            outcome.spellings[decision.rows[0].best],
            _name(outcome),
            outcome.spellings[decision.rows[decision.winner].best],
        ]
    )
    command = live_command(outcome.source.meta, list(names))
    yield Wish(
        what="a live run on other prompts",
        why="a replay models times; a run measures them"
        + (
            ""
            if command
            else ". The trace does not name target and drafter as real.probe would, so no command is shown"
        ),
        command=command,
    )
