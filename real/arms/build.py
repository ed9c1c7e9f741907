"""Families of arms for a target: every published builder, and random layers for comparison.

Owns what each builder is told to do and which of its results become the family.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, NamedTuple

import numpy as np
import torch

from real.arms.families import StateArms, SwiftArms, TimedCossim
from real.arms.job import Built, Generation, Job
from real.arms.opened import Opened
from real.arms.spent import PASSES, SEARCH, Spent
from real.builders.arm import Arm, cost_order
from real.builders.cossim import layers_removed, removable
from real.builders.gp import BoundSearch
from real.builders.knapsack import Run, clasp
from real.builders.knapspec import (
    Candidate,
    Latency,
    Schedule,
    Weights,
    budget_of,
    candidates,
    choose,
    family,
    weights_of,
)
from real.builders.swift import Swift, SwiftSettings
from specsim.errors import ConfigError

CLASP: Final = "CLaSp"
CLASP_STEPS: Final = Schedule(interval=64, first=1, last=1)
CLASP_TOKENS: Final = 1  # the last one verified


def build_cossim(job: Job, *, arms: int | None, fraction: float | None, warmup: str) -> Built:
    """cosSim's arms of the last prompt on which its construction got as far as on any.

    Args:
        job: see there.
        arms, fraction: as for `real.builders.cossim.layers_removed`.
        warmup: as for `real.drafters.cossim.CossimArms`.

    Raises:
        ConfigError: too few layers, arms that cannot be made of them, or no output long enough for any.
    """
    run = Generation(job)
    made = TimedCossim(job.blocks, run.spent, arms=arms, share=fraction, zero_skip=job.zero_skip, warmup=warmup)
    kept: list[Arm] = []

    def after() -> str:
        if len(made.arms) >= len(kept):
            kept[:] = made.arms
        return f"{len(made.arms)} of {made.size} arms"

    run.play(made, after)
    if not any(arm.skipped() for arm in kept):
        raise ConfigError("cosSim: no output was long enough to remove a layer; raise --max-new-tokens")
    return Built(arms=kept, spent=run.spent, details={"wanted": made.size})


def build_swift(job: Job, searches: Sequence[SwiftSettings], *, first: bool) -> Built:
    """The arms that searches of SWIFT's hold after the last prompt: one search over all prompts for each setting.

    Args:
        job: see there.
        searches: of different ratios.
        first: as for `SwiftArms`.

    Raises:
        ConfigError: too few layers, two ratios that leave out as much, or no output long enough for a trial.
    """
    made = [_search(job, settings, number) for number, settings in enumerate(searches)]
    _check_counts("SWIFT", [one.ratio for one in searches], [search.count for search in made])
    for settings in searches:
        if job.asked.max_new_tokens <= settings.window + 1:
            raise ConfigError(_too_short(settings))
    run = Generation(job)
    scores: dict[Arm, float] = {}
    told: list[dict[str, Any]] = []
    for settings, search in zip(searches, made, strict=True):
        before = run.spent.trials
        run.play(
            SwiftArms(job.blocks, search, run.spent, first=first),
            lambda one=search: f"{one.count} left out, {one.trials} trials, matchness {one.best:.2f}",
        )
        trials = run.spent.trials - before
        if not trials:
            raise ConfigError(_too_short(settings))
        scores[search.arm] = search.best
        told.append({"ratio": settings.ratio, "trials": trials, "finished": not search.searching})
    return Built(arms=_ordered(job, scores), spent=run.spent, scores=scores, details={"searches": told})


def _too_short(settings: SwiftSettings) -> str:
    return (
        f"SWIFT: no output is longer than the {settings.window + 1} tokens that a trial needs; raise --max-new-tokens, "
        "lower --window or take other prompts"
    )


def _search(job: Job, settings: SwiftSettings, number: int) -> Swift:
    seed = [job.asked.seed, number]
    guided = settings.bayes_every > 0
    return Swift(
        job.blocks.n_layers,
        settings,
        np.random.default_rng(seed),
        optimiser=(lambda dim: BoundSearch(dim, np.random.default_rng(seed))) if guided else None,
    )


class KnapSpecSettings(NamedTuple):
    """What KnapSpec is told.

    Args:
        arms: how many, the zero-skip arm included.
        fraction: of all weight that may be left out; None: half.
        published: as for `real.builders.knapspec.choose`.
        latency: of the target's sub-blocks.
    """

    arms: int
    fraction: float | None
    published: bool
    latency: Latency


def build_knapspec(job: Job, settings: KnapSpecSettings) -> Built:
    """SP2ec's family of KnapSpec's networks, of the last prompt on which there was one.

    Args:
        job: see there.
        settings: see there.

    Raises:
        ConfigError: too few layers, times that are not positive, no network like the target, or no output long enough.
    """
    run, n_layers = Generation(job), job.blocks.n_layers
    kept: dict[str, Any] = {}
    scores: dict[Arm, float] = {}

    def build(opened: Opened, past: int) -> list[Arm]:
        times = settings.latency.at(past)
        weights = weights_of(times)
        found, seen = candidates(
            opened.states[1:],
            _timed(run.spent, opened.run),
            job.blocks.predict,
            weights=weights,
            budget=budget_of(n_layers, weights, settings.fraction),
        )
        how: dict[str, Any] = {"n_layers": n_layers, "times": times, "published": settings.published}
        listed = family(found, count=settings.arms, zero_skip=job.zero_skip, **how)
        arms = [entry.candidate.arm for entry in listed]
        if not any(arm.skipped() for arm in arms):
            raise ConfigError(
                "KnapSpec: no network that leaves anything out stays like the target; raise --fraction or --arms, or "
                "choose another builder"
            )
        scores.clear()
        scores.update((entry.candidate.arm, entry.score) for entry in listed)
        kept.update(_knapspec_details(found, weights, past, how), collisions=seen.collisions, exact=seen.exact)
        return arms

    made = StateArms(job.blocks, Schedule(), build, settings.arms, run.spent)
    run.play(made, lambda: "no arms yet" if made.arms is None else f"{len(made.arms)} arms")
    if not scores:
        raise ConfigError(f"KnapSpec: no output had {Schedule().last} rounds; raise --max-new-tokens")
    return Built(arms=_ordered(job, scores), spent=run.spent, scores=scores, details=kept)


def _knapspec_details(found: Sequence[Candidate], weights: Weights, past: int, how: dict[str, Any]) -> dict[str, Any]:
    choice = choose(found, **how)
    chosen = None if choice is None else {"arm": str(found[choice.place].arm), "draft_len": choice.draft_len}
    return {"weights": weights._asdict(), "past": past, "networks": len(found), "choice": chosen}


def build_clasp(job: Job, ratios: Sequence[float]) -> Built:
    """CLaSp's networks without so many whole layers, of the last prompt on which there were any.

    Args:
        job: see there.
        ratios: shares of the layers, each rounded down.

    Raises:
        ConfigError: a ratio that leaves out nothing or everything, or two that leave out as much.
    """
    n_layers = job.blocks.n_layers
    counts = [int(n_layers * ratio) for ratio in ratios]
    for ratio, count in zip(ratios, counts, strict=True):
        if not 1 <= count < n_layers:
            raise ConfigError(
                f"{CLASP}: ratio {ratio:g} leaves out {count} of {n_layers} layers; allowed: 1..{n_layers - 1}"
            )
    _check_counts(CLASP, ratios, counts)
    run = Generation(job)
    kept: list[Arm] = []

    def build(opened: Opened, past: int) -> list[Arm]:
        found = [Arm.blocks(clasp(opened.states[::2], _timed(run.spent, opened.run_layer), count)) for count in counts]
        kept[:] = _ordered(job, found)
        return kept

    size = len(counts) + job.zero_skip
    made = StateArms(job.blocks, CLASP_STEPS, build, size, run.spent, most=CLASP_TOKENS)
    run.play(made, lambda: f"{len(kept)} arms")
    return Built(arms=kept, spent=run.spent)


def build_random(job: Job, *, arms: int | None, fraction: float | None) -> Built:
    """Nested arms of layers removed in a random order: what any builder has to beat. Nothing is decoded.

    Args:
        job: see there.
        arms, fraction: as for `real.builders.cossim.layers_removed`, so that there are as many arms as cosSim's.

    Raises:
        ConfigError: too few layers, or arms that cannot be made of them.
    """
    n_layers, spent = job.blocks.n_layers, Spent(job.blocks.target.device)
    with spent.on(SEARCH):
        most = layers_removed(n_layers, arms=arms, fraction=fraction, zero_skip=job.zero_skip)
        order = np.random.default_rng(job.asked.seed).permutation(removable(n_layers)).tolist()
        made = [Arm.blocks(order[:count]) for count in range(1 - job.zero_skip, most + 1)]
    return Built(arms=made, spent=spent)


def _ordered(job: Job, arms: Sequence[Arm] | dict[Arm, float]) -> list[Arm]:
    """In the controllers' order, the zero-skip arm first where it is wanted."""
    wanted = [Arm()] if job.zero_skip and Arm() not in arms else []
    return cost_order([*wanted, *arms], attention=job.blocks.attention, mlp=job.blocks.mlp)


def _timed(spent: Spent, run: Run) -> Run:
    """The same, its seconds counted as passes and not as search."""

    def timed(part: int, states: torch.Tensor) -> torch.Tensor:
        with spent.on(PASSES):
            return run(part, states)

    return timed


def _check_counts(name: str, ratios: Sequence[float], counts: Sequence[int]) -> None:
    if not counts or len(set(counts)) < len(counts):
        raise ConfigError(
            f"{name}: ratios {', '.join(f'{ratio:g}' for ratio in ratios)} leave out {', '.join(map(str, counts))}; "
            "choose such that each leaves out another number"
        )
