"""Families of arms for a target: every published builder, and random layers for comparison.

Owns what each builder is told to do and which of its results become the family.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from real.arms.families import TimedCossim
from real.arms.job import Built, Generation, Job
from real.builders.arm import Arm
from real.builders.cossim import layers_removed, removable
from real.builders.knapspec import Schedule, choose
from real.builders.swift import SwiftSettings
from real.drafters.knapspec import (
    CLASP_STEPS,
    CLASP_TOKENS,
    KnapSpecSettings,
    Networks,
    check_counts,
    clasp_arms,
    clasp_counts,
    knapspec_networks,
    ordered,
)
from real.drafters.opened import Opened
from real.drafters.spent import SEARCH, Spent
from real.drafters.states import StateArms
from real.drafters.swift import SwiftArms, swift_search
from specsim.errors import ConfigError


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
    n_layers, seed = job.blocks.n_layers, job.asked.seed
    made = [swift_search(n_layers, settings, [seed, number]) for number, settings in enumerate(searches)]
    check_counts("SWIFT", [one.ratio for one in searches], [search.count for search in made])
    for settings in searches:
        if job.asked.max_new_tokens <= settings.window + 1:
            raise ConfigError(_too_short(settings))
    run = Generation(job)
    scores: dict[Arm, float] = {}
    told: list[dict[str, Any]] = []
    for settings, search in zip(searches, made, strict=True):
        before = run.spent.trials
        run.play(
            SwiftArms(job.blocks, lambda one=search: [one], run.spent, first=first),
            lambda one=search: f"{one.count} left out, {one.trials} trials, matchness {one.best:.2f}",
        )
        trials = run.spent.trials - before
        if not trials:
            raise ConfigError(_too_short(settings))
        scores[search.arm] = search.best
        told.append({"ratio": settings.ratio, "trials": trials, "finished": not search.searching})
    arms = ordered(job.blocks, list(scores), zero_skip=job.zero_skip)
    return Built(arms=arms, spent=run.spent, scores=scores, details={"searches": told})


def _too_short(settings: SwiftSettings) -> str:
    return (
        f"SWIFT: no output is longer than the {settings.window + 1} tokens that a trial needs; raise --max-new-tokens, "
        "lower --window or take other prompts"
    )


def build_knapspec(job: Job, settings: KnapSpecSettings) -> Built:
    """SP2ec's family of KnapSpec's networks, of the last prompt on which there was one.

    Args:
        job: see there.
        settings: see there.

    Raises:
        ConfigError: too few layers, times that are not positive, no network like the target, or no output long enough.
    """
    run = Generation(job)
    kept: list[tuple[Networks, int]] = []

    def find(opened: Opened, past: int) -> list[Arm]:
        made = knapspec_networks(opened, past, settings, run.spent, zero_skip=job.zero_skip)
        if not any(arm.skipped() for arm in made.arms):
            raise ConfigError(
                "KnapSpec: no network that leaves anything out stays like the target; raise --fraction or --arms, or "
                "choose another builder"
            )
        kept[:] = [(made, past)]
        return made.arms

    made = StateArms(job.blocks, Schedule(), find, settings.arms, run.spent)
    run.play(made, lambda: "no arms yet" if made.arms is None else f"{len(made.arms)} arms")
    if not kept:
        raise ConfigError(f"KnapSpec: no output had {Schedule().last} rounds; raise --max-new-tokens")
    networks, past = kept[0]
    details = _knapspec_details(networks, past, job.blocks.n_layers, published=settings.published)
    return Built(arms=networks.arms, spent=run.spent, scores=networks.scores, details=details)


def _knapspec_details(made: Networks, past: int, n_layers: int, *, published: bool) -> dict[str, Any]:
    choice = choose(made.found, n_layers=n_layers, times=made.times, published=published)
    chosen = None if choice is None else {"arm": str(made.found[choice.place].arm), "draft_len": choice.draft_len}
    told = {"weights": made.weights._asdict(), "past": past, "networks": len(made.found), "choice": chosen}
    return {**told, "collisions": made.seen.collisions, "exact": made.seen.exact}


def build_clasp(job: Job, ratios: Sequence[float]) -> Built:
    """CLaSp's networks without so many whole layers, of the last prompt on which there were any.

    Args:
        job: see there.
        ratios: shares of the layers, each rounded down.

    Raises:
        ConfigError: a ratio that leaves out nothing or everything, or two that leave out as much.
    """
    counts = clasp_counts(job.blocks.n_layers, ratios)
    run = Generation(job)
    kept: list[Arm] = []

    def find(opened: Opened, past: int) -> list[Arm]:
        kept[:] = clasp_arms(opened, counts, run.spent, zero_skip=job.zero_skip)
        return kept

    size = len(counts) + job.zero_skip
    made = StateArms(job.blocks, CLASP_STEPS, find, size, run.spent, most=CLASP_TOKENS)
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
