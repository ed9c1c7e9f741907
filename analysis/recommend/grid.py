"""What is tried on a trace: every controller that could be deployed there, over a small grid of its parameters.

Controllers that know what a deployed one could not (a privilege, or the outcome of arms that were not played) are never
among them. A controller without an entry here, such as a new one, is tried with its defaults.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from specsim.controllers import REGISTRY, Controller, ControllerSpec, parse_spec
from specsim.engine import controllers_for
from specsim.errors import ConfigError
from specsim.latency import LatencyModel
from specsim.schema import TraceMeta

Values = tuple[str | None, ...]  # None leaves a parameter to its default
CAPS: Mapping[str, Values] = {"length": ("8", "16", None), "tree": ("16", "64", None)}
EVERY = 16  # static lengths up to here are all tried, then each an eighth longer than the one before
STATIC = {"length": "static", "tree": "static", "arm": "arm"}
"""Kind of trace -> the controller that does the same in every round, whose best is what others have to beat."""

_TAUS: Values = ("0.3", "0.45", "0.6")
_BETAS: Values = ("0.1", None, "1")
_RESETS: Values = (None, "0")
GRID: Mapping[str, Mapping[str, Values]] = {
    "g4": {"start": ("4", None), "max": ()},
    "hf-heuristic": {"start": ("5", None), "max": ()},
    "threshold": {"tau": ("0.2", "0.4", "0.6", "0.8"), "max": ()},
    "failfast": {"chunk": ("5", "10"), "tau": _TAUS},
    "failfast-repo": {"chunk": ("5", "10"), "tau": _TAUS},
    "specdecpp": {"h": ("0.3", "0.5", "0.7", "0.9")},
    "libraspec": {"alpha": ("1.5", "2", "2.5"), "block": (None, "2"), "max": ()},
    "goodput": {"max": ()},
    "caddtree": {"max": ()},
    "corrected": {"max": ()},
    "lambda": {"calibrate": (None, "none")},
    "sp2ec": {"beta": _BETAS, "reset": _RESETS},
    "sp2ec-2d": {"beta": _BETAS},
    "global-ucb": {"beta": _BETAS, "reset": _RESETS},
    "klucb-unimodal": {"reset": _RESETS},
    "ucbspec": {"variant": ("sp2ec-repo", "paper")},
}
"""Controller -> parameter -> values tried; () stands for `CAPS` of the kind of trace."""


@dataclass(frozen=True, kw_only=True)
class Family:
    """A controller with the settings tried.

    Attributes:
        name: the controller.
        spellings: its settings as typed on a command line, the simplest or shortest first.
        controllers: the same, built.
        tuned: parameters of which more than one value is tried.
    """

    name: str
    spellings: tuple[str, ...]
    controllers: tuple[Controller, ...]
    tuned: int


def families_of(
    meta: TraceMeta, latency: LatencyModel, *, asked: Sequence[str] = (), confidences: bool, passes: bool
) -> list[Family]:
    """The families that apply to a trace, simplest first; the first is the static one, which always takes part.

    Args:
        meta: of the trace.
        latency: what the controllers believe.
        asked: names or spellings to try in place of all; a name alone stands for its grid.
        confidences: whether the trace has `q` in every row.
        passes: whether it has what every denoising pass recorded.

    Raises:
        ConfigError: something asked for that is unknown, does not apply or could not be deployed.
    """
    static = STATIC[meta.kind]
    wanted: dict[str, list[str]] = {static: _static(meta)}
    for text in asked:
        name, given = parse_spec(text)
        if name == "plain":
            continue  # what all are compared with
        if name == static:
            wanted[static] = _with_asked(wanted[static], controllers_for(meta, latency, [text] if given else []), meta)
            continue
        wanted.setdefault(name, []).extend([text] if given else _spellings(REGISTRY[name], meta))
    if not asked:
        wanted |= {spec.name: _spellings(spec, meta) for spec in _applicable(meta.kind)}
    found = []
    for name, spellings in wanted.items():
        spellings = list(dict.fromkeys(spellings))
        built = controllers_for(meta, latency, spellings)
        reason = _unfit(built, confidences=confidences, passes=passes)
        if reason is None and built:
            found.append(
                Family(name=name, spellings=tuple(spellings), controllers=tuple(built), tuned=_tuned(spellings))
            )
        elif reason is not None and asked:
            raise ConfigError(f"controller {name!r} {reason}; choose among the controllers that could be deployed here")
    order = list(REGISTRY)
    return sorted(found, key=lambda f: (f.name != static, f.tuned, len(REGISTRY[f.name].params), order.index(f.name)))


def _applicable(kind: str) -> Iterable[ControllerSpec]:
    """Registered controllers that decide what this kind of trace leaves open and need no parameter."""
    for spec in REGISTRY.values():
        needs = any(p.default is None and p.from_setting is None for p in spec.params.values())
        if kind in spec.kinds and spec.name != "plain" and not needs:
            yield spec


def _unfit(built: Sequence[Controller], *, confidences: bool, passes: bool) -> str | None:
    """Why a family cannot take part, or None."""
    if any(c.privilege != "none" or c.full_information for c in built):
        return "knows what a deployed one could not"
    if any(c.needs_q for c in built) and not confidences:
        return "decides on confidences, but column 'q' has null rows"
    if any(c.plan is not None for c in built) and not passes:
        return "decides on denoising passes, which the trace does not hold in every row"
    return None


def _static(meta: TraceMeta) -> list[str]:
    if meta.kind == "arm":
        return [f"arm:index={k}" for k in range(meta.n_arms)]
    limit = _limit(meta)
    lengths = [1]
    while lengths[-1] < limit:
        step = 1 if lengths[-1] < EVERY else lengths[-1] // 8
        lengths.append(min(lengths[-1] + step, limit))
    return [f"static:length={length}" for length in lengths if length <= limit]


def _with_asked(spellings: Sequence[str], asked: Sequence[Controller], meta: TraceMeta) -> list[str]:
    """The static settings and those asked for, in order: the grid leaves gaps where drafts are long.

    Raises:
        ConfigError: the trace does not hold one of them.
    """
    key, low, high = ("index", 0, meta.n_arms - 1) if meta.kind == "arm" else ("length", 1, _limit(meta))
    numbers = {int(controller.config[key]) for controller in asked}
    for number in sorted(numbers):
        if not low <= number <= high:
            raise ConfigError(
                f"controller {STATIC[meta.kind]!r}: {key}={number}: the trace tells of {low} to {high}; choose one"
            )
    head = f"{STATIC[meta.kind]}:{key}="
    return [f"{head}{n}" for n in sorted(numbers | {int(one.removeprefix(head)) for one in spellings})]


def _limit(meta: TraceMeta) -> int:
    return meta.tree_nodes if meta.kind == "tree" else meta.max_draft_len


def _spellings(spec: ControllerSpec, meta: TraceMeta) -> list[str]:
    grid = GRID.get(spec.name, {})
    columns = [[(key, value) for value in _allowed(key, values, meta)] for key, values in grid.items()]
    texts = []
    for setting in itertools.product(*columns):
        given = ",".join(f"{key}={value}" for key, value in setting if value is not None)
        texts.append(f"{spec.name}:{given}" if given else spec.name)
    return texts


def _allowed(key: str, values: Values, meta: TraceMeta) -> list[str | None]:
    """Values of a grid that make a difference on this trace."""
    if key == "max":
        values = CAPS.get(meta.kind, (None,))
    if key in ("max", "start", "chunk"):
        return [v for v in values if v is None or int(v) < _limit(meta)] or [None]
    if key == "block" and (meta.kind == "tree" or meta.block_len > 1):
        return [None]  # a smaller block than the drafter's own decides nothing
    return list(values)


def _tuned(spellings: Sequence[str]) -> int:
    """Parameters whose value differs among the spellings (one that is missing is a value too)."""
    given = [parse_spec(text)[1] for text in spellings]
    return sum(len({one.get(key) for one in given}) > 1 for key in {key for one in given for key in one})
