"""What a replay of a trace can be trusted for: coverage, censoring, staircase rate, logged lengths."""

from __future__ import annotations

from typing import Any

import numpy as np

from specsim.theory.check_data import Facts
from specsim.theory.check_record import HOLDS, UNDECIDED, VIOLATED, Verdict

_STATEMENT = "other lengths than the recorded ones can be replayed without bias"


def replay_validity(facts: Facts, info: dict[str, Any]) -> Verdict:
    """Coverage decides; the other numbers say how much of it rests on what was recorded.

    Args:
        facts: sums over the trace.
        info: as `specsim.trace_info.trace_info` gives it.
    """
    rows = int(info["rows"])
    clipped = facts.full_accept / rows
    details: dict[str, Any] = {
        "coverage": facts.meta.coverage,
        "exact": facts.meta.exact,
        "censored_share": info["censored_share"],
        "staircase_rate": info["staircase_rate"],
        "clipped_share": clipped,
    }
    if facts.meta.coverage == "every-position":
        stairs = info["staircase_rate"]
        text = (
            f"every position recorded; staircase rate {'-' if stairs is None else f'{stairs:.3f}'}, "
            f"{100 * info['censored_share']:.1f} % of the rows ended before the drafter was wrong, "
            f"{100 * clipped:.1f} % accepted the longest draft whole (a longer one might pay)"
        )
        if facts.meta.kind == "arm":
            text = f"every arm recorded at every position; staircase rate {'-' if stairs is None else f'{stairs:.3f}'}"
        return Verdict(id="replay-validity", statement=_STATEMENT, verdict=HOLDS, text=text, details=details)
    return _log_of_rounds(facts, details)


def _log_of_rounds(facts: Facts, details: dict[str, Any]) -> Verdict:
    if facts.meta.kind == "arm":
        advice = (
            "an arm that was not played where the log moved on sees a biased sample of starts; record every position"
        )
        verdict = UNDECIDED if facts.steps.size == 0 else VIOLATED
        text = f"log of rounds; {advice}"
        return Verdict(id="replay-validity", statement=_STATEMENT, verdict=verdict, text=text, details=details)
    lengths = facts.logged
    known = np.flatnonzero(lengths)
    shares = {str(int(m)): round(float(lengths[m] / lengths.sum()), 4) for m in known}
    whole = bool(
        (facts.steps < 0).any()
    )  # some row accepted more than the log moved on: drafts go beyond what was sent
    details |= {"logged_lengths": shares, "whole_drafts": whole}
    low, high = int(known[0]), int(known[-1])
    most = int(np.argmax(lengths))
    what = f"log of rounds; {'drafts recorded' if whole else 'logged lengths'} {low} to {high}, mostly {most}"
    advice = (
        "any other length sees a biased sample of starts where difficulty persists, and lengths "
        f"{'above ' + str(high) if whole else f'below {low} or above {high}'} were never submitted: "
        "use stratified_speedup of the replay, or record every position"
    )
    verdict = UNDECIDED if facts.steps.size == 0 else VIOLATED
    return Verdict(
        id="replay-validity", statement=_STATEMENT, verdict=verdict, text=f"{what}; {advice}", details=details
    )
