"""How many tokens and seconds a round of each arm takes, and whether sp2ec can be trapped among them.

Owns the means over requests, with their errors; the judgement is `real.builders.shape`'s. The request is the unit, as
positions of one text are not independent.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from real.builders.shape import concavity_warning
from real.drafters.base import Drafter
from real.folder import Request
from specsim.chunk import TraceChunk
from specsim.errors import ConfigError
from specsim.theory.check_noise import MIN_REQUESTS

Floats = npt.NDArray[np.float64]


class ArmSums(NamedTuple):
    """Per request and arm, float64[requests, K] each: rounds, their tokens, and seconds, of whole drafts alone."""

    rounds: Floats
    tokens: Floats
    seconds: Floats


def sums_of_trace(chunk: TraceChunk, draft_len: int) -> ArmSums:
    """A round of every arm started at every position where a whole draft and one token more are left; draft seconds.

    Args:
        chunk: all of an arm trace with its seconds; the sums keep its order of arms.
        draft_len: tokens of a draft.
    """
    assert chunk.arm_accept_len is not None
    assert chunk.arm_draft_s is not None
    edges, found = np.flatnonzero(np.diff(chunk.request)) + 1, []
    for accepted, seconds in zip(
        np.split(chunk.arm_accept_len, edges), np.split(chunk.arm_draft_s, edges), strict=True
    ):
        rows = max(0, len(accepted) - draft_len)
        tokens = (accepted[:rows] + 1.0).sum(axis=0)
        found.append((np.full(len(tokens), float(rows)), tokens, seconds[:rows].astype(np.float64).sum(axis=0)))
    return ArmSums(*(np.stack(part) for part in zip(*found, strict=True)))


def sums_of_run(requests: Sequence[Request], arms: int, draft_len: int) -> ArmSums:
    """The rounds that a run's controllers played with each arm, likewise; seconds of whole rounds."""
    sums = np.zeros((3, len(requests), arms))
    for place, request in enumerate(requests):
        for run in request.runs:
            for row in run.decoded.rounds:
                if not run.warmup and row.drafted_len and row.pos + draft_len < len(run.decoded.output):
                    sums[:, place, row.arm] += (1.0, row.emitted_len, row.round_s)
    return ArmSums(*sums)


def arms_of_run(requests: Sequence[Request], drafter: Drafter) -> dict[str, Any] | None:
    """`shape_of` a run's rounds, of a drafter of several arms that were known beforehand; else None."""
    names = drafter.arm_names
    if len(names) < 2:
        return None
    return {"seconds_of": "round", **shape_of(names, sums_of_run(requests, len(names), drafter.arm_draft_len))}


def shape_of(names: Sequence[str], sums: ArmSums) -> dict[str, Any]:
    """JSON values: each arm's mean tokens and seconds per round, and whether tokens are concave in seconds.

    `not_concave` is the warning, or None; `not_judged` says why there can be none. Arms are judged by
    `real.builders.shape`, with standard errors over requests, where each was played in `MIN_REQUESTS` requests or more.

    Args:
        names: of the arms, in the controllers' order.
        sums: of the arms in this order.
    """
    played = sums.rounds.sum(axis=0)
    (tokens, tokens_error), (seconds, seconds_error) = (
        _mean(part, sums.rounds) for part in (sums.tokens, sums.seconds)
    )
    document: dict[str, Any] = {
        "each": [
            {"index": k, "name": name, "rounds": int(played[k])}
            | {"tokens": _known(tokens[k]), "tokens_error": _known(tokens_error[k]), "seconds": _known(seconds[k])}
            for k, name in enumerate(names)
        ],
        "not_concave": None,
        "not_judged": None,
    }
    fewest = int((sums.rounds > 0).sum(axis=0).min(initial=len(sums.rounds)))
    if len(names) < 3:
        document["not_judged"] = "fewer than 3 arms, which are always concave"
    elif fewest < MIN_REQUESTS:
        document["not_judged"] = f"an arm was played in {fewest} requests; needed: {MIN_REQUESTS}"
    else:
        try:
            document["not_concave"] = concavity_warning(
                names, tokens.tolist(), seconds.tolist(), error=tokens_error.tolist(), cost_error=seconds_error.tolist()
            )
        except ConfigError as error:  # two arms that take as long
            document["not_judged"] = str(error)
    return document


def _mean(sums: Floats, rounds: Floats) -> tuple[Floats, Floats]:
    """(float64[K] ratios of sums, their standard errors over requests); NaN where there is nothing, or one request."""
    requests, played = len(rounds), rounds.sum(axis=0)
    with np.errstate(divide="ignore", invalid="ignore"):
        mean = sums.sum(axis=0) / played
        spread = np.sqrt(((sums - mean * rounds) ** 2).sum(axis=0) * requests / np.float64(requests - 1))
        return mean, spread / played


def _known(value: float) -> float | None:
    return float(value) if np.isfinite(value) else None


def warnings_of(shape: dict[str, Any] | None) -> list[str]:
    """What a user should be told of arms; nothing where there are none to choose among."""
    return [] if shape is None or shape["not_concave"] is None else [f"warning: {shape['not_concave']}"]


def best_by_tokens(shape: dict[str, Any]) -> dict[str, Any] | None:
    """The arm with the most tokens per round, the first of equals; None where none was played."""
    known = [one for one in shape["each"] if one["tokens"] is not None]
    return max(known, key=lambda one: one["tokens"], default=None)
