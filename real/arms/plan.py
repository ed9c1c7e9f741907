"""What a builder is asked to do, from the options of a command line.

Owns which options are whose, their defaults, and their checks, which need no model.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any, Final

from rich.console import Console

from real.arms.build import build_clasp, build_cossim, build_knapspec, build_random, build_swift
from real.arms.job import Built, Job
from real.builders.knapspec import ARMS
from real.builders.swift import SwiftSettings
from real.calibrate_cli import calibration_texts
from real.drafters.cossim import TOKENS
from real.drafters.knapspec import KnapSpecSettings
from real.drafters.subblock_times import CONTEXTS, REPEATS, measure, read_latency
from real.drafters.swift import FIRST, LAST
from real.models import Loaded
from real.progress import Steps
from specsim.errors import ConfigError

COSSIM, SWIFT, KNAPSPEC, CLASP, RANDOM = "cossim", "swift", "knapspec", "clasp", "random"
RATIOS: Final = {SWIFT: (0.15, 0.3, 0.45, 0.6), CLASP: (0.125, 0.25, 0.375, 0.5)}

_OWNERS: Final[dict[str, tuple[str, ...]]] = {
    **dict.fromkeys(("arms", "fraction"), (COSSIM, KNAPSPEC, RANDOM)),
    "warmup": (COSSIM,),
    "ratio": (SWIFT, CLASP),
    **dict.fromkeys(("max_score", "tolerance", "trials", "bayes_every", "window", "every"), (SWIFT,)),
    **dict.fromkeys(("per_prompt", "judged"), (SWIFT,)),
    **dict.fromkeys(("context", "repeats", "latency", "published_choice"), (KNAPSPEC,)),
}


@dataclass(frozen=True, kw_only=True)
class Plan:
    """A builder with its options.

    Args:
        settings: for `arms.json`.
        decodes: how often it has every prompt decoded.
        build: with a job, the target's tokenizer at hand.
    """

    settings: dict[str, Any]
    decodes: int = 1
    build: Callable[[Job, Loaded], Built]


def plan_of(builder: str, given: Mapping[str, Any], dataset: str) -> Plan:
    """The plan that options mean.

    Args:
        builder: one of `BUILDERS`.
        given: options by name; None, False or empty: not given.
        dataset: where the texts are from behind which sub-blocks are timed.

    Raises:
        ConfigError: an option of another builder, or a value out of range.
    """
    told = {name: value for name, value in given.items() if value is not None and value is not False and value != ()}
    for name in told:
        if builder not in _OWNERS[name]:
            raise ConfigError(
                f"--{name.replace('_', '-')} belongs to --builder {' or '.join(_OWNERS[name])}; {builder} does not "
                "know it, leave it out"
            )
    return _PLANS[builder](told, dataset)


def _cossim(told: dict[str, Any], dataset: str) -> Plan:
    how = {"arms": told.get("arms"), "fraction": told.get("fraction"), "warmup": told.get("warmup", TOKENS)}
    return Plan(settings=how, build=lambda job, loaded: build_cossim(job, **how))


def _random(told: dict[str, Any], dataset: str) -> Plan:
    how = {"arms": told.get("arms"), "fraction": told.get("fraction")}
    return Plan(settings=how, decodes=0, build=lambda job, loaded: build_random(job, **how))


def _swift(told: dict[str, Any], dataset: str) -> Plan:
    ratios, judged = told.pop("ratio", RATIOS[SWIFT]), told.pop("judged", LAST)
    searches = [SwiftSettings(ratio=ratio, **told) for ratio in ratios]
    common = {field.name: getattr(searches[0], field.name) for field in fields(SwiftSettings)}
    return Plan(
        settings={**common, "ratio": list(ratios), "judged": judged},
        decodes=len(searches),
        build=lambda job, loaded: build_swift(job, searches, first=judged == FIRST),
    )


def _clasp(told: dict[str, Any], dataset: str) -> Plan:
    ratios = told.get("ratio", RATIOS[CLASP])
    for ratio in ratios:
        if not 0 < ratio <= 1:
            raise ConfigError(f"--ratio {ratio:g}; allowed: above 0, at most 1")
    return Plan(settings={"ratio": list(ratios)}, build=lambda job, loaded: build_clasp(job, ratios))


def _knapspec(told: dict[str, Any], dataset: str) -> Plan:
    known = read_latency("--latency", told["latency"]) if "latency" in told else None
    contexts, repeats = told.get("context", CONTEXTS), told.get("repeats", REPEATS)
    if known is not None and ("context" in told or "repeats" in told):
        raise ConfigError("--latency takes the place of measuring; leave --context and --repeats out")
    if len(set(contexts)) < 2:
        raise ConfigError(
            f"--context {contexts[0]} alone; allowed: at least two lengths, since a line is laid through them"
        )
    how = {
        "arms": told.get("arms", ARMS),
        "fraction": told.get("fraction"),
        "published": told.get("published_choice", False),
    }

    def build(job: Job, loaded: Loaded) -> Built:
        if known is not None:
            return build_knapspec(job, KnapSpecSettings(latency=known, **how))
        texts = calibration_texts(loaded, dataset, contexts, seed=job.asked.seed, max_draft_len=1)
        with Steps(Console(stderr=True), "sub-blocks", repeats + 1) as steps:
            measured = measure(job.blocks, texts, repeats=repeats, seed=job.asked.seed, done=steps.done)
        built = build_knapspec(job, KnapSpecSettings(latency=measured.latency, **how))
        built.details["measured"] = {**measured.to_json(), "repeats": repeats}
        return built

    return Plan(settings={**how, "latency": None if known is None else asdict(known)}, build=build)


_PLANS: Final = {COSSIM: _cossim, SWIFT: _swift, KNAPSPEC: _knapspec, CLASP: _clasp, RANDOM: _random}
BUILDERS: Final = tuple(_PLANS)
