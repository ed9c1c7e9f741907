"""`python -m specsim.study lambda`: how much throughput each length rule loses to full information, on known p.

A grid of synthetic worlds: five families of acceptance probabilities, two block sizes, four verification slopes, three
block costs, five distortions of the confidences. Every controller decides on the same rows, one round per row; its
tokens are expectations under the true p, so the figures carry no noise from acceptance draws. The reference knows p of
every token, drafted or not, and picks (blocks, d) by the Lagrangian rule at its own optimal rate (Dinkelbach).
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import click
import numpy as np
from numpy.typing import NDArray
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from specsim.chunk import TraceChunk
from specsim.engine import as_chain, replay
from specsim.errors import ConfigError, run_cli
from specsim.latency import LatencyModel
from specsim.paths import expand_paths
from specsim.schema import TraceMeta
from specsim.synth import synthesize
from specsim.trace import open_trace

FAMILIES: dict[str, dict[str, Any]] = {
    "iid": {"kind": "iid", "alpha": 0.85},
    "geometric": {"kind": "geometric", "alpha": 0.95, "decay": 0.97},
    "two-regime": {"kind": "two-regime", "alpha": 0.95, "alpha_hard": 0.3, "stay_easy": 0.95, "stay_hard": 0.9},
    "beta": {"kind": "beta", "alpha": 0.8, "concentration": 5.0},
    "markov": {"kind": "markov", "alpha": 0.85, "persistence": 0.9, "spread": 1.5},
}
BLOCKS = ((16, 24), (10, 60))  # (block_len, max_draft_len), those of DFlash and Fast-dLLM in the LibraSpec paper
SLOPES = (0.003, 0.01, 0.03, 0.1)  # c / verify(1)
BLOCK_COSTS = (0.0, 0.1, 0.3)  # seconds per block / verify(1)
DISTORTIONS = ("calibrated", "over", "under", "noisy", "drift")
RULES = {
    "lambda, beta": "lambda:calibrate=beta",
    "lambda, none": "lambda:calibrate=none",
    "lambda, platt": "lambda:calibrate=platt",
    "lambda, isotonic": "lambda:calibrate=isotonic",
    "libraspec 2.0": "libraspec:alpha=2.0",
    "libraspec 2.2": "libraspec:alpha=2.2",
    "g4": "g4",
    "goodput": "goodput",
}
BEST_STATIC = "best static"


@dataclass(frozen=True, kw_only=True)
class World:
    """Rows of one synthetic world, all of full length D, and what is known about them."""

    meta: TraceMeta
    chunk: TraceChunk
    expected: NDArray[np.float64]
    """float64[R, D + 1]: expected tokens of a round that verifies d."""


def make_world(family: str, block_len: int, max_draft_len: int, distort: str, rounds: int, seed: int) -> World:
    """Synthesize `rounds` rows whose q is a distorted p; p itself is the same for every distortion."""
    requests = 4
    positions = rounds // requests + max_draft_len + 1
    settings = {**FAMILIES[family], "requests": requests, "positions": positions, "max_draft_len": max_draft_len}
    meta, chunk = synthesize(block_len=block_len, distort=distort, seed=seed, **settings)
    full = np.flatnonzero(chunk.lengths == max_draft_len)[:rounds]
    where = (chunk.offsets[full][:, None] + np.arange(max_draft_len)).ravel()
    assert chunk.q is not None
    assert chunk.accept_prob is not None
    kept = TraceChunk(
        request=chunk.request[full],
        pos=chunk.pos[full],
        offsets=np.arange(full.size + 1, dtype=np.int64) * max_draft_len,
        accept_len=chunk.accept_len[full],
        q=chunk.q[where],
    )
    p = chunk.accept_prob[where].reshape(full.size, max_draft_len).astype(np.float64)
    expected = np.ones((full.size, max_draft_len + 1))
    expected[:, 1:] += np.cumsum(np.cumprod(p, axis=1), axis=1)
    return World(meta=replace(meta, coverage="every-round"), chunk=kept, expected=expected)


def costs_of(latency: LatencyModel, block_len: int, max_draft_len: int) -> NDArray[np.float64]:
    """float64[D + 1]: seconds of a round that drafts only the blocks its d needs."""
    d = np.arange(max_draft_len + 1)
    passes = -(-d // block_len)
    return latency.verify_table(max_draft_len + 1)[1:] + latency.draft_s(
        passes, np.minimum(passes * block_len, max_draft_len)
    )


def best_rate(expected: NDArray[np.float64], costs: NDArray[np.float64]) -> float:
    """lambda*: tokens per second of the best policy that knows every row's p (Dinkelbach; R8)."""
    rate = float(expected[:, 0].sum() / (costs[0] * len(expected)))
    while True:
        choice = np.argmax(expected - rate * costs, axis=1)
        better = float(expected[np.arange(len(choice)), choice].sum() / costs[choice].sum())
        if better <= rate * (1 + 1e-12):
            return rate
        rate = better


def losses(world: World, latency: LatencyModel) -> dict[str, float]:
    """Share of the full-information throughput that each rule, and the best static length, loses."""
    costs = costs_of(latency, world.meta.block_len, world.meta.max_draft_len)
    best = best_rate(world.expected, costs)
    outcome = replay(world.meta, [world.chunk], latency, list(RULES.values()), keep_rounds=True)
    result = {}
    for name, log in zip(RULES, outcome.rounds, strict=True):
        tokens = world.expected[np.arange(len(world.expected)), log["submitted_len"]].sum()
        result[name] = 1.0 - float(tokens / log["round_s"].sum()) / best
    result[BEST_STATIC] = 1.0 - float((world.expected.mean(axis=0) / costs).max()) / best
    return result


def grid(rounds: int, seed: int) -> Iterator[dict[str, Any]]:
    """One record per cell: its coordinates and the losses of every rule."""
    for (block_len, max_draft_len), family, distort in itertools.product(BLOCKS, FAMILIES, DISTORTIONS):
        world = make_world(family, block_len, max_draft_len, distort, rounds, seed)
        for slope, block_cost in itertools.product(SLOPES, BLOCK_COSTS):
            # verify(1) is one second, so costs are in units of a plain decoding step.
            latency = LatencyModel.affine(c_s=slope, b_s=1.0 - slope, draft_pass_s=block_cost)
            cell = {"block": f"{block_len}/{max_draft_len}", "family": family, "distortion": distort}
            yield {**cell, "slope": slope, "block_cost": block_cost, "loss": losses(world, latency)}


def means(cells: list[dict[str, Any]], key: str) -> dict[str, dict[str, float]]:
    """Mean loss of every rule over the cells that share a coordinate."""
    groups: dict[str, list[dict[str, float]]] = {}
    for cell in cells:
        groups.setdefault(str(cell[key]), []).append(cell["loss"])
    return {
        group: {rule: float(np.mean([x[rule] for x in rows])) for rule in rows[0]} for group, rows in groups.items()
    }


def print_means(cells: list[dict[str, Any]], console: Console) -> None:
    """Tables of mean losses in percent, by each coordinate."""
    for key in ("distortion", "block", "slope", "block_cost", "family"):
        table = Table(
            box=SIMPLE_HEAD, padding=(0, 1, 0, 0), title=f"mean loss of throughput, %, by {key}", title_justify="left"
        )
        rows = means(cells, key)
        table.add_column(key)
        for rule in next(iter(rows.values())):
            table.add_column(rule.replace(" ", "\n", 1), justify="right")
        for group, values in rows.items():
            table.add_row(group, *(f"{100 * v:.2f}" for v in values.values()))
        console.print(table)


@click.group()
def main() -> None:
    """Studies whose tables stand in the documentation."""


@main.command("lambda")
@click.option("--rounds", type=click.IntRange(100), default=12_000, show_default=True, help="Rounds per world.")
@click.option("--seed", type=click.IntRange(0, 2**31), default=0, show_default=True)
@click.option("--json", "as_json", is_flag=True, help="Print every cell as JSON.")
def lambda_study(rounds: int, seed: int, as_json: bool) -> None:
    """Losses of the lambda rule and its rivals to full information, on 600 synthetic worlds."""
    total = len(BLOCKS) * len(FAMILIES) * len(DISTORTIONS) * len(SLOPES) * len(BLOCK_COSTS)
    console = Console(stderr=True)
    with Progress(console=console, transient=True, disable=not console.is_terminal) as progress:
        cells = list(progress.track(grid(rounds, seed), total=total, description="worlds"))
    if as_json:
        click.echo(
            json.dumps({"schema": "specsim.study/1", "rounds": rounds, "seed": seed, "cells": cells}, allow_nan=False)
        )
        return
    out = Console()
    out.width = max(out.width, 120)
    print_means(cells, out)


@main.command("traces")
@click.argument("traces", nargs=-1, required=True)
@click.option("--seed", type=click.IntRange(0, 2**31), default=0, show_default=True)
def traces_study(traces: tuple[str, ...], seed: int) -> None:
    """The same rules on recorded traces, against the hindsight best static length: speedups with 95 % intervals."""
    for path in expand_paths(traces):
        print_trace(path, seed)


def print_trace(path: Path, seed: int) -> None:
    """One table: speedup of every rule over plain decoding, and of the best static length."""
    with open_trace(path) as reader:
        if reader.meta.latency is None:
            raise ConfigError(f"{path}: holds no latency model; record one with `python -m real.probe --latency-only`")
        if reader.meta.kind == "arm":
            raise ConfigError(
                f"{path}: an arm trace; these rules choose lengths, `python -m specsim.regret` compares arms"
            )
        latency = LatencyModel.from_dict(reader.meta.latency, where=str(path))
        chunks = list(reader.chunks(["q", "ctx_len"]))
        meta = as_chain(reader.meta)  # most of these rules read chains only
        static = replay(meta, chunks, latency, ["plain"]).static_s
        rules = dict(RULES)
        if static is not None:
            rules[BEST_STATIC] = f"static:length={int(static.argmin())}"
        outcome = replay(meta, chunks, latency, list(rules.values()), seed=seed)
    table = Table(box=SIMPLE_HEAD, padding=(0, 1, 0, 0), title=str(path), title_justify="left")
    for column in ("rule", "speedup", "95 %"):
        table.add_column(column, justify="left" if column == "rule" else "right")
    for name, row in zip(rules, outcome.results, strict=True):
        low, high = row["speedup_ci95"]
        label = rules[name] if name == BEST_STATIC else name
        table.add_row(label, f"{row['speedup']:.3f}", "-" if low is None else f"[{low:.2f}, {high:.2f}]")
    Console().print(table)
    for name, row in zip(rules, outcome.results, strict=True):
        if row.get("off_policy"):
            click.echo(f"{name}: {row['off_policy']} ({row['stratified_speedup']:.3f})")


if __name__ == "__main__":
    run_cli(main, prog_name="python -m specsim.study")
