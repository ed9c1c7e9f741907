"""Tokens, rounds and seconds of each controller on each request, from the round log: what intervals are resampled from.

Owns how seconds that no round holds, of arms made before the first, are put to their request.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow.compute as pc

from analysis.rounds import Scan
from specsim.errors import ConfigError

OUTPUTS = "outputs.jsonl"
SAME = 1e-9  # relative: sums of the same seconds in another order
Float64Array = npt.NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class Requests:
    """One controller on B requests, warm-up left out.

    Args:
        request: int64[B], ascending.
        tokens, rounds, submitted, accepted: float64[B] counts.
        time_s: float64[B] seconds.
    """

    request: npt.NDArray[np.int64]
    tokens: Float64Array
    rounds: Float64Array
    submitted: Float64Array
    accepted: Float64Array
    time_s: Float64Array

    def plain_seconds(self, plain: Requests) -> Float64Array:
        """float64[B]: plain decoding's seconds, for as many tokens as the controller emitted (`real.results`)."""
        return plain.time_s * self.tokens / plain.tokens


def per_request(requests: Scan, run_ids: Mapping[str, str]) -> dict[str, Requests]:
    """By controller, those of the rounds alone.

    Args:
        requests: of the round log.
        run_ids: each controller's name in it; one that the log does not have is left out.
    """
    found = {}
    for controller, run_id in run_ids.items():
        mine = requests.requests.filter(pc.field("run_id") == run_id)
        if mine.num_rows:
            counts = {n: np.asarray(mine[n]).astype(np.float64) for n in ("tokens", "rounds", "submitted", "accepted")}
            found[controller] = Requests(
                request=np.asarray(mine["request"]).astype(np.int64), time_s=np.asarray(mine["round_s"]), **counts
            )
    return found


def with_early_builds(
    folder: Path, found: Mapping[str, Requests], time_s: Mapping[str, float]
) -> tuple[dict[str, Requests], str | None]:
    """Real runs: with what was built before the first round, which belongs to the results and to no round.

    Args:
        folder: of the run.
        found: by controller, of the rounds.
        time_s: each controller's seconds, as the run's document has them.

    Returns:
        By controller, and a note where these seconds cannot be told by request.

    Raises:
        ConfigError: the file that has them cannot be read.
    """
    short = [name for name in found if not math.isclose(found[name].time_s.sum(), time_s[name], rel_tol=SAME)]
    if not short:
        return dict(found), None
    outputs = folder / OUTPUTS
    if not outputs.is_file():
        return dict(found), f"{OUTPUTS} is missing: seconds of arms made before the first round are in no interval"
    seconds: dict[tuple[str, int], float] = {}
    try:
        with outputs.open(encoding="utf-8") as lines:
            for line in lines:
                one = json.loads(line)
                seconds[one["controller"], one["request"]] = float(one["decode_s"])
        whole = {
            name: replace(rows, time_s=np.array([seconds[name, number] for number in rows.request.tolist()]))
            for name, rows in found.items()
        }
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ConfigError(f"{outputs}: cannot be read ({error!r}); make it again with the command of the run") from None
    return whole, None
