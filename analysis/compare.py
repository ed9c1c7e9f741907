"""`python -m analysis.compare A [B]`: is a controller faster than another, in one run or in two?

Owns which controllers are compared, the words, and the JSON document. Whether requests are the same is
`analysis.same`'s to say, the interval is `analysis.paired`'s.

    ratio = (tokens / seconds of the one) / (tokens / seconds of the other), each summed over requests
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import click
import numpy as np

from analysis.paired import Float64Array, interval_of, ratio_of, requests_needed
from analysis.perrequest import Requests, per_request, with_early_builds
from analysis.progress import reading
from analysis.rounds import Scan, scan
from analysis.runs import Method, Run, read_runs
from analysis.same import cautions, same_requests
from specsim.errors import ConfigError, run_cli

SCHEMA = "specsim.compare/1"
MANY = 1_000_000  # requests: more are not worth a number


@dataclass(frozen=True, kw_only=True)
class Side:
    """A controller of a run.

    Args:
        run: the run.
        method: the controller.
        requests: its tokens and seconds on each request.
    """

    run: Run
    method: Method
    requests: Requests

    @property
    def sums(self) -> Float64Array:
        """float64[B, 2] tokens and seconds."""
        return np.stack([self.requests.tokens, self.requests.time_s], axis=1)

    def to_json(self) -> dict[str, Any]:
        """JSON values."""
        tokens, seconds = self.sums.sum(axis=0).tolist()
        return {
            "run": self.run.name,
            "controller": self.method.controller,
            "requests": len(self.requests.request),
            "tokens": tokens,
            "time_s": seconds,
            "tokens_per_s": tokens / seconds,
        }


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """What came of two sides.

    Args:
        one, other: who was compared.
        ratio: throughput of the one over the other's.
        ci95: its interval; None with one request.
        paired: whether both decoded the same requests.
        how: how that was found, or why not.
        warnings: what else one should know.
    """

    one: Side
    other: Side
    ratio: float
    ci95: tuple[float, float] | None
    paired: bool
    how: str
    warnings: tuple[str, ...]

    @property
    def verdict(self) -> str:
        """`faster`, `slower` or `no difference`, of the one."""
        if self.ci95 is None or self.ci95[0] <= 1.0 <= self.ci95[1]:
            return "no difference"
        return "faster" if self.ci95[0] > 1.0 else "slower"

    @property
    def needed(self) -> int | None:
        """Requests that a difference of this size would need; None where one is told, or there is none."""
        if self.ci95 is None or self.verdict != "no difference":
            return None
        return requests_needed(self.ratio, self.ci95, self._requests)

    @property
    def _requests(self) -> int:
        return min(len(side.requests.request) for side in (self.one, self.other))

    def statement(self) -> str:
        """In one sentence."""
        named = self.one.run is not self.other.run
        one, other = (f"{s.method.name} ({s.run.name})" if named else s.method.name for s in (self.one, self.other))
        if self.ci95 is None:
            return (
                f"no difference can be told between {one} and {other}: one request only, on which the ratio is "
                f"{self.ratio:.3f}"
            )
        if self.verdict == "slower":  # told from the faster one's side, which has the inverse ratio
            low, high = 1 / self.ci95[1], 1 / self.ci95[0]
            return f"{other} is faster than {one} by {_percent(1 / self.ratio, low, high)}"
        if self.verdict == "faster":
            return f"{one} is faster than {other} by {_percent(self.ratio, *self.ci95)}"
        return (
            f"no difference can be told between {one} and {other}: the first has {_percent(self.ratio, *self.ci95)} "
            f"more throughput, over {self._requests} requests; {self._more()}"
        )

    def _more(self) -> str:
        needed = self.needed
        if needed is None or needed > MANY:
            return "a difference of this size would need more requests than can be had"
        return f"about {_rounded(needed)} requests would be needed to see one of this size"

    def to_json(self) -> dict[str, Any]:
        """JSON values."""
        return {
            "one": self.one.to_json(),
            "other": self.other.to_json(),
            "ratio": self.ratio,
            "ci95": self.ci95,
            "verdict": self.verdict,
            "paired": self.paired,
            "how": self.how,
            "warnings": self.warnings,
            "requests_needed": self.needed,
            "statement": self.statement(),
        }


def _percent(ratio: float, low: float, high: float) -> str:
    value, least, most = (f"{100 * (end - 1):z.1f}" for end in (ratio, low, high))
    return f"{value} % [{least}, {most}]"


def _rounded(needed: int) -> int:
    """Two digits are as good as such a number gets; never less than was said."""
    unit = 10 ** max(0, len(str(needed)) - 2)
    return -(-needed // unit) * unit


def compare(one: Side, other: Side, *, seed: int = 0) -> Comparison:
    """Compare two controllers.

    Args:
        one, other: who.
        seed: of the resampling.
    """
    same = same_requests(one.run, one.requests, other.run, other.requests)
    warnings = cautions(one.run, other.run)
    for side in (one, other):
        if side.method.privileged:
            warnings = (f"{side.method.name} knows what no deployed controller could", *warnings)
    if not same.paired:
        warnings = (f"not paired: {same.how}; separate draws make the interval wider", *warnings)
    return Comparison(
        one=one,
        other=other,
        ratio=ratio_of(one.sums, other.sums),
        ci95=interval_of(one.sums, other.sums, seed=seed, paired=same.paired),
        paired=same.paired,
        how=same.how,
        warnings=warnings,
    )


def sides_of(run: Run, scanned: Scan | None = None) -> dict[str, Side]:
    """Every controller of a run, by its spelling.

    Args:
        run: the run.
        scanned: what its round log adds up to; None reads it.

    Raises:
        ConfigError: a run without rounds or results.
    """
    if run.rounds is None or not run.methods:
        raise ConfigError(f"{run.folder}: {run.name} has no rounds to compare ({'; '.join(run.notes)})")
    found = per_request(_scanned(run.rounds) if scanned is None else scanned, run.run_ids)
    lacking = [method.controller for method in run.methods if method.controller not in found]
    if lacking:
        raise ConfigError(f"{run.rounds}: no round of {lacking[0]}, which the results of {run.name} have")
    if run.kind != "replay":
        found, _ = with_early_builds(run.folder, found, {method.controller: method.time_s for method in run.methods})
    return {m.controller: Side(run=run, method=m, requests=found[m.controller]) for m in run.methods}


@lru_cache(maxsize=2)
def _scanned(rounds: Path) -> Scan:
    """Runs of one replay share a log."""
    with reading(rounds) as told:
        return scan(rounds, on_progress=told)


def find(sides: dict[str, Side], spelling: str, option: str) -> Side:
    """A controller by its spelling, as typed or in full, or by its name where one controller has that name.

    Raises:
        ConfigError: none is meant, or several.
    """
    run = next(iter(sides.values())).run
    typed = [name for name in sides if run.run_ids[name].rpartition("#")[2] == spelling]
    named = [name for name in sides if name.partition(":")[0] == spelling]
    for found in ([name for name in sides if name == spelling], typed, named):
        if len(found) == 1:
            return sides[found[0]]
    said = "several are meant" if named else "no such controller"
    raise ConfigError(f"{option} {spelling}: {said} in {run.name}; allowed: {', '.join(sides)}")


def pairs_of(runs: Sequence[Run], controller: str | None, against: str | None) -> list[tuple[Side, Side]]:
    """Who is compared with whom: two controllers of every run, or of one run and another.

    Args:
        runs: of the first folder and of the second; one of each.
        controller, against: spellings.

    Raises:
        ConfigError: a controller is not there, or who is meant is not clear.
    """
    sides = [sides_of(run) for run in runs]
    if len(runs) == 1:
        mine = sides[0]
        if controller is None or against is None:
            raise ConfigError(
                f"{runs[0].name}: name two of its controllers with --controller and --against, or a second run; "
                f"allowed: {', '.join(mine)}"
            )
        return [(find(mine, controller, "--controller"), find(mine, against, "--against"))]
    if controller is not None:
        one = find(sides[0], controller, "--controller")
        return [(one, find(sides[1], against or controller, "--against"))]
    if against is not None:
        raise ConfigError("--against: say which controller of the first run is compared with it, with --controller")
    both = [name for name in sides[0] if name in sides[1]]
    if not both:
        raise ConfigError(
            f"{runs[0].name} and {runs[1].name} have no controller in common; name one of each with --controller and "
            f"--against; allowed: {', '.join(sides[0])}; and: {', '.join(sides[1])}"
        )
    return [(sides[0][name], sides[1][name]) for name in both]


def matched(folders: Sequence[Path]) -> list[list[Run]]:
    """The runs of one folder, each for itself, or those of two folders by trace.

    Raises:
        ConfigError: not run folders, or two replays of different traces.
    """
    loaded = read_runs(folders)
    if loaded.papers or not loaded.runs:
        raise ConfigError(f"{folders[0]}: name one or two folders of runs: of a replay, a real run or a validation")
    by_folder = [[run for run in loaded.runs if run.folder == folder] for folder in folders]
    if len(by_folder) == 1:
        return [[run] for run in by_folder[0]]
    first, second = by_folder
    if len(first) == len(second) == 1:
        return [[first[0], second[0]]]
    traces = {Path(run.trace_name or "").name: run for run in second}
    found = [[run, traces[name]] for run in first if (name := Path(run.trace_name or "").name) in traces]
    if not found:
        raise ConfigError(f"{folders[0]} and {folders[1]} are of different traces; compare runs of the same ones")
    return found


@click.command()
@click.argument("folders", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option("--controller", help="Of the first run; default with two runs: each that both have.")
@click.option("--against", help="The other, of the second run if there is one; default there: the same.")
@click.option("--seed", type=click.IntRange(0), default=0, show_default=True, help="Of the bootstrap.")
@click.option("--json", "as_json", is_flag=True, help="Print a JSON document instead of sentences.")
def main(folders: tuple[Path, ...], controller: str | None, against: str | None, seed: int, as_json: bool) -> None:
    """Say whether a controller is faster than another, in one run (A) or in two (A B), with a 95 % interval."""
    if len(folders) > 2:
        raise ConfigError(f"{len(folders)} folders were named; name one run or two")
    found = [
        compare(one, other, seed=seed)
        for runs in matched(folders)
        for one, other in pairs_of(runs, controller, against)
    ]
    if as_json:
        document = {"schema": SCHEMA, "seed": seed, "comparisons": [one.to_json() for one in found]}
        click.echo(json.dumps(document, indent=1, allow_nan=False))
        return
    for one in found:
        where = f"{one.one.run.name}: " if len(found) > 1 and one.one.run is one.other.run else ""
        click.echo(where + one.statement())
        click.echo(f"    {'paired' if one.paired else 'NOT paired'}: {one.how}")
        for warning in one.warnings:
            click.echo(f"    caution: {warning}")


if __name__ == "__main__":
    run_cli(main, prog_name="python -m analysis.compare")
