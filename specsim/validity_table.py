"""`python -m specsim.validity_table`: how wrong a replayed log of rounds is, and how wrong the stratified estimate is.

A synthetic every-position trace with persistent regimes is the truth. A static controller logs its rounds on it; the
log is replayed with other controllers, and throughput is compared with theirs on every position.
"""

from __future__ import annotations

import click
import numpy as np

from specsim.chunk import TraceChunk
from specsim.engine import controllers_for, replay
from specsim.errors import run_cli
from specsim.latency import LatencyModel
from specsim.rows import make_costs, make_rows
from specsim.schema import TraceMeta
from specsim.synth import synthesize
from specsim.validity import rounds_to_trace, stratified, stratified_sums

CONTROLLERS = ("static:length=2", "static:length=4", "static:length=8", "static:length=16", "static:length=32")
LATENCY = LatencyModel.affine(c_s=0.03, b_s=1.0)


def errors(
    meta: TraceMeta,
    chunk: TraceChunk,
    logged_with: int,
    controllers: tuple[str, ...],
    latency: LatencyModel = LATENCY,
    *,
    segment: int = 5,
    whole_drafts: bool = True,
) -> dict[str, tuple[float, float]]:
    """Relative error of throughput, naive and stratified, of every controller on a log of static rounds.

    Args:
        meta, chunk: every-position trace.
        logged_with: length of the static controller that logs.
        controllers: replayed on the log.
        latency: latency model.
        segment: rounds per segment of the stratified estimate.
        whole_drafts: the log holds the acceptance of whole drafts.
    """
    logged = replay(meta, [chunk], latency, [f"static:length={logged_with}"], keep_rounds=True)
    log_meta, log = rounds_to_trace(meta, chunk, logged.rounds[0], whole_drafts=whole_drafts)
    built = controllers_for(meta, latency, controllers)
    truth = replay(meta, [chunk], latency, built)
    naive = replay(log_meta, [log], latency, built, keep_rounds=True)
    rows, costs = make_rows(log), make_costs(latency, log_meta.max_draft_len)
    found = {}
    for name, true, guess, rounds in zip(controllers, truth.results, naive.results, naive.rounds, strict=True):
        estimate = stratified([stratified_sums(rows, costs, rounds["emitted_len"], rounds["round_s"], segment)])
        speed = estimate["stratified_tokens"] / estimate["stratified_time_s"]
        found[name] = (guess["throughput"] / true["throughput"] - 1, speed / true["throughput"] - 1)
    return found


def regimes(stay: float, *, requests: int, seed: int = 0) -> tuple[TraceMeta, TraceChunk]:
    """Two regimes of equal share, acceptance 0.97 and 0.45, that last 1 / (1 - stay) tokens on average."""
    return synthesize(
        "two-regime",
        requests=requests,
        positions=512,
        max_draft_len=60,
        alpha=0.97,
        alpha_hard=0.45,
        stay_easy=stay,
        stay_hard=stay,
        seed=seed,
    )


@click.command()
@click.option("--requests", type=click.IntRange(2), default=48, show_default=True, help="Of 512 tokens each.")
@click.option("--seed", type=click.IntRange(0), default=0, show_default=True)
@click.option("--segment", type=click.IntRange(1), default=5, show_default=True, help="Rounds per segment.")
def main(requests: int, seed: int, segment: int) -> int:
    """Error of replayed throughput against the truth on every position: naive, then segment-stratified, in percent."""
    names = (*CONTROLLERS, "libraspec:max=60", "goodput:max=60")
    heads = [name.removeprefix("static:length=").partition(":")[0] for name in names]
    click.echo("| regime stays | logged with | " + " | ".join(heads) + " |")
    click.echo("|---" * (len(names) + 2) + "|")
    for stay in (0.5, 0.95, 0.99):
        meta, chunk = regimes(stay, requests=requests, seed=seed)
        for length in (4, 16, 60):
            found = errors(meta, chunk, length, names, segment=segment)
            cells = [f"{100 * np.round(a, 3):+.1f} / {100 * np.round(b, 3):+.1f}" for a, b in found.values()]
            click.echo(f"| {stay} | {length} | " + " | ".join(cells) + " |")
    return 0


if __name__ == "__main__":
    run_cli(main, prog_name="python -m specsim.validity_table")
