"""`python -m tests.recommend_cover`: how often the intervals of `analysis.recommend` hold what they are for.

Of 1,500 synthetic requests so many are drawn, again and again, advice is made from those alone, and what it tells is
compared with what the advised setting does on all 1,500. The table stands in docs/recommend.md.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from analysis.recommend.crossfit import canonical_order, deal
from analysis.recommend.decision import decide
from analysis.recommend.grid import families_of
from analysis.recommend.outcome import slices_of
from analysis.recommend.seconds import Source, measure
from specsim.latency import LatencyModel
from specsim.synth import synthesize
from specsim.trace import write_trace

WORLDS: dict[str, dict[str, Any]] = {
    "iid": {"kind": "iid", "alpha": 0.8},
    "markov": {"kind": "markov", "alpha": 0.8, "spread": 2.0, "persistence": 0.98},
    "two-regime": {"kind": "two-regime", "alpha": 0.98, "alpha_hard": 0.05, "stay_easy": 0.99, "stay_hard": 0.98},
}
REQUESTS = (8, 12, 24, 48)
LATENCY = LatencyModel.affine(c_s=0.05, b_s=1.0, draft_pass_s=0.1)


@dataclass(frozen=True, kw_only=True)
class Cover:
    """Shares of draws whose interval held the truth, and mean relative errors of the speedup told: held out, and judged
    by the requests that chose."""

    speedup: float
    gain: float
    held_out: float
    same: float


@dataclass(frozen=True, kw_only=True)
class Population:
    """Seconds of many requests, and the candidates they are of."""

    plain_s: np.ndarray
    time_s: np.ndarray
    slices: list[slice]


def population(world: str, folder: Path, names: Sequence[str] = (), requests: int = 1500) -> Population:
    """Replay a world once with every candidate."""
    settings = {"requests": requests, "positions": 100, "max_draft_len": 12, **WORLDS[world]}
    meta, chunk = synthesize(latency=LATENCY.to_dict(), **settings)
    path = folder / f"{world}.parquet"
    write_trace(path, meta, chunk)
    source = Source(
        path=path, meta=meta, latency=LATENCY, measured_draft=True, max_requests=None, skip=frozenset(), seed=0
    )
    families = families_of(meta, LATENCY, asked=names, confidences=True, passes=False)
    seconds = measure(source, [controller for family in families for controller in family.controllers])
    return Population(plain_s=seconds.plain_s, time_s=seconds.time_s, slices=slices_of(families))


def cover(people: Population, requests: int, draws: int) -> Cover:
    """Advice from `requests` drawn requests, `draws` times, against all of them."""
    truth = people.plain_s.sum() / people.time_s.sum(axis=1)
    rng = np.random.default_rng(requests)
    found = []
    for draw in range(draws):
        some = rng.choice(people.plain_s.size, requests, replace=False)
        some = some[canonical_order(people.plain_s[some], people.time_s[:, some])]
        plain_s, time_s = people.plain_s[some], people.time_s[:, some]
        decision = decide(plain_s, time_s, people.slices, deal([requests], draw), draw)
        told, real = decision.speedup, truth[decision.row.best]
        gain = real / truth[decision.rows[0].best]
        held = decision.gain.low <= gain * (1 + 1e-12) and gain <= decision.gain.high * (1 + 1e-12)
        found.append((told.low <= real <= told.high, held, told.value / real - 1, decision.same_speedup / real - 1))
    speedup, gain, held_out, same = np.mean(np.array(found, float), axis=0).tolist()
    return Cover(speedup=speedup, gain=gain, held_out=held_out, same=same)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--draws", type=int, default=200)
    draws = parser.parse_args().draws
    print("| world | requests | speedup in interval | gain in interval | error held out | error, same requests |")
    print("|---|---|---|---|---|---|")
    with tempfile.TemporaryDirectory() as folder:
        for world in WORLDS:
            people = population(world, Path(folder))
            for requests in REQUESTS:
                c = cover(people, requests, draws)
                shares = f"{100 * c.speedup:.0f} % | {100 * c.gain:.0f} %"
                print(
                    f"| {world} | {requests} | {shares} | {100 * c.held_out:z.1f} % | {100 * c.same:z.1f} % |",
                    flush=True,
                )


if __name__ == "__main__":
    main()
