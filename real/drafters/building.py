"""`self:build=...`: drafters whose arms a published builder makes while a prompt is decoded.

Owns which builders there are, which options are whose, and their values. What the builders do is in
`real.drafters.cossim`, `real.drafters.swift`, `real.drafters.knapspec` and `real.drafters.states`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final

import numpy as np
import torch

from real.builders.arm import Arm
from real.builders.knapspec import ARMS, Schedule
from real.builders.swift import Swift, SwiftSettings
from real.drafters.cossim import KEYS as COSSIM_KEYS
from real.drafters.cossim import NAME as COSSIM
from real.drafters.cossim import PROMPT, cossim_arms
from real.drafters.family import Family
from real.drafters.knapspec import (
    CLASP_TOKENS,
    KnapSpecSettings,
    check_counts,
    clasp_arms,
    clasp_counts,
    knapspec_networks,
)
from real.drafters.opened import Opened
from real.drafters.options import MOST_COUNT, fraction, switch, whole
from real.drafters.spent import Spent
from real.drafters.states import StateArms
from real.drafters.subblock_times import CONTEXTS, Timed, read_latency, session_times
from real.drafters.subblocks import SubBlocks
from real.drafters.swift import JUDGED, LAST, SwiftArms, swift_search
from specsim.errors import ConfigError

SWIFT, KNAPSPEC, CLASP = "swift", "knapspec", "clasp"
KEYS: Final[dict[str, tuple[str, ...]]] = {
    COSSIM: COSSIM_KEYS,
    SWIFT: (
        *("arms", "ratio", "zero", "trials", "tolerance", "score", "window", "judged", "every", "bayes"),
        *("seed", "rebuild"),
    ),
    KNAPSPEC: ("arms", "fraction", "zero", "warmup", "window", "latency", "context", "rebuild"),
    CLASP: ("arms", "ratio", "zero", "rebuild"),
}
ROUNDS: Final = "rounds"
WINDOW: Final = 16  # of KnapSpec's, where it looks at the prompt; five published rounds yield about as many
USUAL: Final = 4  # arms besides the zero-skip one
RATIOS: Final = {SWIFT: (0.15, 0.6), CLASP: (0.125, 0.5)}  # least and most that families leave out
ALONE: Final = {SWIFT: 0.45, CLASP: 0.25}  # as published: SWIFT's default, 8 layers of 32
TextFrom = Callable[[torch.Tensor], int]


def check_builder(options: Mapping[str, str]) -> None:
    """Refuse an unknown builder, and options that are another's or have none.

    Raises:
        ConfigError: the first of them.
    """
    builder = options.get("build")
    if builder is not None and builder not in KEYS:
        raise ConfigError(
            f"self: build is {builder!r}; allowed: {', '.join(KEYS)}. Arms made by other means come from a file, "
            "self:arms=FILE (python -m real.arms makes one)"
        )
    for key in sorted(options):
        owners = [name for name, keys in KEYS.items() if key in keys]
        if not owners or builder in owners or (builder is None and key == "arms"):
            continue
        named = " or ".join(f"build={name}" for name in owners)
        advice = "name that too, or leave it out" if builder is None else f"build={builder} does not know it"
        raise ConfigError(f"self: {key} belongs to {named}; {advice}")


def built_arms(options: Mapping[str, str], blocks: SubBlocks, text_from: TextFrom) -> Family:
    """The family of `self:build=...`; docs/drafters.md has the options.

    Args:
        options: as spelled, checked by `check_builder`.
        blocks: the target in pieces.
        text_from: as for `StateArms`.

    Raises:
        ConfigError: a value that is not allowed, or that the target has too few layers for.
    """
    builder = options["build"]
    if builder == COSSIM:
        return cossim_arms(options, blocks)
    if builder == SWIFT:
        return _swift(options, blocks)
    return (_knapspec if builder == KNAPSPEC else _clasp)(options, blocks, text_from)


def _swift(options: Mapping[str, str], blocks: SubBlocks) -> SwiftArms:
    zero = switch("self", "zero", options.get("zero", "0"))
    judged = options.get("judged", LAST)
    if judged not in JUDGED:
        raise ConfigError(f"self: judged is {judged!r}; allowed: {', '.join(JUDGED)}")
    released = SwiftSettings()
    common = {
        "max_score": fraction("self", "score", options["score"]) if "score" in options else released.max_score,
        "tolerance": _count(options, "tolerance", released.tolerance, low=0),
        "trials": _count(options, "trials", released.trials, low=0),
        "bayes_every": _count(options, "bayes", released.bayes_every, low=0),
        "window": _count(options, "window", released.window),
        "every": _count(options, "every", released.every),
    }
    seed = _count(options, "seed", 0, low=0)
    told = [SwiftSettings(ratio=ratio, per_prompt=True, **common) for ratio in _ratios(options, SWIFT, blocks, zero)]

    def searches() -> list[Swift]:
        # The same ones for every prompt, so that a prompt's arms do not depend on those before it.
        return [swift_search(blocks.n_layers, one, [seed, number]) for number, one in enumerate(told)]

    check_counts("SWIFT", [one.ratio for one in told], [search.count for search in searches()])
    return SwiftArms(
        blocks,
        searches,
        Spent(blocks.target.device),
        first=judged != LAST,
        zero_skip=zero,
        rebuild=_rebuild(options, len(told) + zero),
    )


def _knapspec(options: Mapping[str, str], blocks: SubBlocks, text_from: TextFrom) -> StateArms:
    zero, warmup = switch("self", "zero", options.get("zero", "1")), options.get("warmup", PROMPT)
    if warmup not in (PROMPT, ROUNDS):
        raise ConfigError(f"self: warmup is {warmup!r}; allowed: {PROMPT}, {ROUNDS}")
    if warmup == ROUNDS and "window" in options:
        raise ConfigError(f"self: window belongs to warmup={PROMPT}; with {ROUNDS} those of five rounds are looked at")
    if blocks.n_layers < 2:
        raise ConfigError(f"self: build={KNAPSPEC}: the target has {blocks.n_layers} layers; allowed: at least 2")
    most = 2 * blocks.n_layers
    size = whole("self", "arms", options.get("arms", str(min(ARMS, most))), low=1 + zero, high=most)
    share = fraction("self", "fraction", options["fraction"]) if "fraction" in options else None
    window = None if warmup == ROUNDS else _count(options, "window", WINDOW)
    rebuild, published = _rebuild(options, size + Schedule().last * (warmup == ROUNDS)), None
    if warmup == ROUNDS:
        published, rebuild = Schedule(interval=rebuild or MOST_COUNT), None
    times = _times(options, blocks)  # what takes seconds comes after what can be refused
    settings = KnapSpecSettings(size, share, False, times.latency, times.least)
    spent = Spent(blocks.target.device)

    def find(opened: Opened, past: int) -> Sequence[Arm]:
        return knapspec_networks(opened, past, settings, spent, zero_skip=zero).arms

    return StateArms(
        blocks,
        published,
        find,
        size,
        spent,
        most=window,
        rebuild=rebuild,
        zero_skip=zero,
        text_from=text_from,
        timing_s=times.timing_s,
    )


def _times(options: Mapping[str, str], blocks: SubBlocks) -> Timed:
    if "latency" not in options:
        contexts = options.get("context", ",".join(map(str, CONTEXTS)))
        return session_times(blocks, [whole("self", "context", part, high=MOST_COUNT) for part in contexts.split(",")])
    if "context" in options:
        raise ConfigError("self: latency takes the place of measuring at each context; give one of them")
    known = read_latency("self: latency is", options["latency"])
    for past in (1, MOST_COUNT):  # here, not in the midst of a run
        known.at(past)
    return Timed(known, 1, 0.0)


def _clasp(options: Mapping[str, str], blocks: SubBlocks, text_from: TextFrom) -> StateArms:
    zero = switch("self", "zero", options.get("zero", "0"))
    counts = clasp_counts(blocks.n_layers, _ratios(options, CLASP, blocks, zero))
    spent = Spent(blocks.target.device)

    def find(opened: Opened, past: int) -> Sequence[Arm]:
        return clasp_arms(opened, counts, spent, zero_skip=zero)

    return StateArms(
        blocks,
        None,
        find,
        len(counts) + zero,
        spent,
        most=CLASP_TOKENS,
        rebuild=_rebuild(options, len(counts) + zero),
        zero_skip=zero,
        like=[Arm.blocks(range(count)) for count in sorted([0] * zero + counts)],
        text_from=text_from,
    )


def _ratios(options: Mapping[str, str], builder: str, blocks: SubBlocks, zero: bool) -> list[float]:
    """Shares left out by the arms but the zero-skip one, ascending."""
    if "ratio" in options:
        if "arms" in options:
            raise ConfigError("self: arms and ratio both say how many arms there are; give one of them")
        return sorted(fraction("self", "ratio", part) for part in options["ratio"].split(","))
    # More than there are sub-blocks cannot all leave out another number, so they are refused before they are listed.
    most = max(2 * blocks.n_layers, USUAL) + zero
    count = whole("self", "arms", options.get("arms", str(USUAL + zero)), low=1 + zero, high=most) - zero
    return np.linspace(*RATIOS[builder], count).tolist() if count > 1 else [ALONE[builder]]


def _rebuild(options: Mapping[str, str], needed: int) -> int | None:
    if "rebuild" not in options:
        return None
    rebuild = _count(options, "rebuild", 0)
    if rebuild <= needed:
        raise ConfigError(
            f"self: rebuild after {rebuild} rounds; allowed: more than the {needed} in which every arm can be tried"
        )
    return rebuild


def _count(options: Mapping[str, str], key: str, default: int, *, low: int = 1) -> int:
    return whole("self", key, options[key], low=low, high=MOST_COUNT) if key in options else default
