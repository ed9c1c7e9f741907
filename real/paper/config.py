"""What an experiment decodes: the YAML files of real/configs/paper/, read and checked. Loads nothing.

experiment: table1                    # one of EXPERIMENTS
temperatures: [0, 1]
max_new_tokens: 96
datasets:
  HumanEval: {data: humaneval, requests: 20}
pairs:
  - target: smollm2-135m
    methods:
      - name: FastdLLM
        drafter: "fastdllm:path=..."
        max_draft_len: 40
        static: 3..20                 # the swept baseline; or a list of lengths
        controllers: {LibraSpec: "libraspec:block=10", lambda: lambda}
        draft_sampling: greedy        # or sample: drawn drafts, at temperature 1 only
"""

from __future__ import annotations

import difflib
import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

import yaml

from real.drafters.model import DRAFT_SAMPLING
from real.models import DEVICES, DTYPES, MAX_THREADS
from specsim.controllers import parse_spec
from specsim.errors import ConfigError
from specsim.schema import MAX_DRAFT_LEN

EXPERIMENTS = (
    *("table1", "table2", "table3", "table4"),
    *("figure1", "figure2", "figure3", "figure4", "figure5"),
)
STATIC, LIBRASPEC, LAMBDA = "static", "LibraSpec", "lambda"
FIXED = "fixed block"  # a block drafter as published: one pass, all of it verified
TEMPERATURES = (0, 1)
GREEDY, SAMPLE = DRAFT_SAMPLING
RANGE = re.compile(r"(\d+)\.\.(\d+)")


@dataclass(frozen=True, kw_only=True)
class Dataset:
    """Prompts.

    Args:
        data: as for `real.data.load_prompts`.
        requests: how many, drawn by seed.
        context: lengthen every prompt by others' texts before it to about so many tokens, without a thinking switch;
            None: as they are.
    """

    data: str
    requests: int
    context: int | None = None


@dataclass(frozen=True, kw_only=True)
class Method:
    """A drafter and the controllers that decide its lengths.

    Args:
        name: row of a table. Methods of one name are variants of each other, of which the fastest is reported.
        drafter: as for `real.drafters.choose.parse_drafter`.
        max_draft_len: most tokens drafted in a round.
        static: lengths of the swept baseline.
        controllers: label of a row to spelling; one of the swept lengths may have a label of its own as well.
        draft_sampling: `greedy`, or `sample`: tokens are drawn from the drafter's law. At temperature 0 nothing is
            drawn, so that such a method has cells at temperature 1 only.
    """

    name: str
    drafter: str
    max_draft_len: int
    static: tuple[int, ...] = ()
    controllers: Mapping[str, str]
    draft_sampling: str = GREEDY

    def at(self, temperature: int) -> bool:
        """Whether it is measured at a temperature."""
        return self.draft_sampling == GREEDY or temperature > 0

    def labels(self) -> list[tuple[str, str]]:
        """(label, spelling) of every row, the swept lengths first."""
        return [*((STATIC, f"static:length={length}") for length in self.static), *self.controllers.items()]

    def spellings(self) -> list[str]:
        """What is decoded, each once."""
        return list(dict.fromkeys(spelling for _, spelling in self.labels()))


@dataclass(frozen=True, kw_only=True)
class Pair:
    """A target with its methods.

    Args:
        target: as for `real.models.load_target`.
        datasets: names of the datasets it is measured on.
        methods: in the order of the table.
        thinking: switch of its chat template (`real.data`); None: the template decides.
    """

    target: str
    datasets: tuple[str, ...]
    methods: tuple[Method, ...]
    thinking: bool | None = None


@dataclass(frozen=True, kw_only=True)
class PaperConfig:
    """One experiment. `repeats` are the calibration's; `threads` 0 leaves torch's own choice."""

    experiment: str
    datasets: Mapping[str, Dataset]
    pairs: tuple[Pair, ...]
    temperatures: tuple[int, ...] = (0,)
    max_new_tokens: int = 128
    dtype: str = "float32"
    device: str = "auto"
    threads: int = 0
    seed: int = 0
    repeats: int = 15

    def cells(self) -> list[Cell]:
        """Every cell, in the order they are measured."""
        return [
            Cell(pair=pair, dataset=name, temperature=temperature, method=method, config=self)
            for pair in self.pairs
            for name in pair.datasets
            for temperature in self.temperatures
            for method in pair.methods
            if method.at(temperature)
        ]


@dataclass(frozen=True, kw_only=True)
class Cell:
    """What is measured and kept as one: a method of a pair on a dataset at a temperature."""

    pair: Pair
    dataset: str
    temperature: int
    method: Method
    config: PaperConfig

    @property
    def target(self) -> str:
        """The pair's."""
        return self.pair.target

    def prompts(self) -> Dataset:
        """The dataset, with the pair's thinking mode."""
        found, thinking = self.config.datasets[self.dataset], self.pair.thinking
        return (
            found if thinking is None else replace(found, data=f"{found.data}:thinking={'on' if thinking else 'off'}")
        )

    def settings(self) -> dict[str, Any]:
        """JSON values that decide what is measured."""
        config = self.config
        # Greedy drafts go unsaid: cells measured before there was a choice keep their names.
        drawn = {} if self.method.draft_sampling == GREEDY else {"draft_sampling": self.method.draft_sampling}
        return {
            "target": self.target,
            "dataset": asdict(self.prompts()),
            "temperature": self.temperature,
            "drafter": self.method.drafter,
            "max_draft_len": self.method.max_draft_len,
            "spellings": self.method.spellings(),
            **drawn,
            **{
                key: getattr(config, key) for key in ("max_new_tokens", "dtype", "device", "threads", "seed", "repeats")
            },
        }

    def folder(self) -> str:
        """Its name on disk: readable, and another one for other settings."""
        digest = hashlib.sha256(json.dumps(self.settings(), sort_keys=True).encode()).hexdigest()[:8]
        words = (Path(self.target).name, self.dataset, f"T{self.temperature}", self.method.name, digest)
        return "-".join(re.sub(r"[^\w.]+", "-", word) for word in words)


def read_config(path: Path) -> PaperConfig:
    """Read and check a file.

    Raises:
        ConfigError: what is wrong in it, and what is allowed.
    """
    try:
        document = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise ConfigError(f"--config {path}: cannot be read ({error})") from None
    try:
        return parse_config(document)
    except ConfigError as error:
        raise ConfigError(f"--config {path}: {error}") from None


def parse_config(document: Any) -> PaperConfig:
    """A configuration from YAML's values; ConfigError as in `read_config`."""
    given = _mapping(document, PaperConfig, "the file")
    if given.get("experiment") not in EXPERIMENTS:
        raise ConfigError(f"experiment {given.get('experiment')!r}: allowed: {', '.join(EXPERIMENTS)}")
    datasets = {str(name): _dataset(name, value) for name, value in _entries(given, "datasets", dict).items()}
    pairs = tuple(_pair(value, datasets) for value in _entries(given, "pairs", list))
    temperatures = tuple(given.get("temperatures", (0,)))
    if not temperatures or any(value not in TEMPERATURES for value in temperatures):
        raise ConfigError(f"temperatures {list(temperatures)}: allowed: 0 and 1, the paper's")
    config = PaperConfig(**{**given, "datasets": datasets, "pairs": pairs, "temperatures": temperatures})
    _check_numbers(config)
    _check_measured(config)
    twice = [cell.folder() for cell in config.cells()]
    if len(set(twice)) < len(twice):
        raise ConfigError("pairs: a target has the same method twice on a dataset; name each once")
    return config


def _check_measured(config: PaperConfig) -> None:
    for pair in config.pairs:
        for method in pair.methods:
            if not any(method.at(temperature) for temperature in config.temperatures):
                raise ConfigError(
                    f"pairs, {pair.target}, methods, {method.name}: draft_sampling is {method.draft_sampling!r}, which "
                    f"is measured at temperature 1, but temperatures is {list(config.temperatures)}; add 1 to it, or "
                    "leave draft_sampling out"
                )


def _dataset(name: Any, value: Any) -> Dataset:
    given = _mapping(value, Dataset, f"datasets.{name}")
    _require(given, ("data", "requests"), f"datasets.{name}")
    _whole(given["requests"], f"datasets.{name}.requests", 1)
    if given.get("context") is not None:
        _whole(given["context"], f"datasets.{name}.context", 2)
    return Dataset(**given)


def _pair(value: Any, datasets: Mapping[str, Dataset]) -> Pair:
    given = _mapping(value, Pair, "pairs")
    _require(given, ("target", "methods"), "pairs")
    names = tuple(given.get("datasets", tuple(datasets)))
    for name in names:
        if name not in datasets:
            raise ConfigError(f"pairs, {given['target']}: dataset {name!r}; allowed: {', '.join(datasets)}")
    where = f"pairs, {given['target']}, methods"
    methods = tuple(_method(one, where) for one in _entries(given, "methods", list))
    thinking = given.get("thinking")
    if thinking not in (None, True, False):
        raise ConfigError(f"pairs, {given['target']}: thinking is {thinking!r}; allowed: on, off, or left out")
    return Pair(target=str(given["target"]), datasets=names, methods=methods, thinking=thinking)


def _method(value: Any, where: str) -> Method:
    given = _mapping(value, Method, where)
    _require(given, ("name", "drafter", "max_draft_len"), where)
    where = f"{where}, {given['name']}"
    _whole(given["max_draft_len"], f"{where}: max_draft_len", 2, MAX_DRAFT_LEN)
    controllers = {str(label): str(spelling) for label, spelling in _entries(given, "controllers", dict).items()}
    for spelling in controllers.values():
        parse_spec(spelling)
    method = Method(**{**given, "static": _lengths(given.get("static", ()), where), "controllers": controllers})
    if max(method.static, default=0) > method.max_draft_len:
        raise ConfigError(f"{where}: static length {max(method.static)}: allowed: up to max_draft_len")
    if STATIC in controllers or len(set(controllers.values())) < len(controllers):
        raise ConfigError(f"{where}: a controller is named twice, or labelled {STATIC!r}, which the swept lengths are")
    if method.draft_sampling not in DRAFT_SAMPLING:
        allowed = ", ".join(DRAFT_SAMPLING)
        raise ConfigError(f"{where}: draft_sampling is {method.draft_sampling!r}; allowed: {allowed}")
    if not method.spellings():
        raise ConfigError(f"{where}: name lengths (static) or controllers")
    return method


def _lengths(value: Any, where: str) -> tuple[int, ...]:
    """`3..20` with both ends, or a list."""
    found = RANGE.fullmatch(value) if isinstance(value, str) else None
    lengths = range(int(found[1]), int(found[2]) + 1) if found else value
    if isinstance(lengths, str) or not all(isinstance(one, int) and one >= 1 for one in lengths):
        raise ConfigError(f"{where}: static is {value!r}; allowed: a range such as 3..20, or a list of whole numbers")
    return tuple(lengths)


def _check_numbers(config: PaperConfig) -> None:
    _whole(config.max_new_tokens, "max_new_tokens", 1)
    _whole(config.threads, "threads", 0, MAX_THREADS)
    _whole(config.seed, "seed", 0)
    _whole(config.repeats, "repeats", 2)
    for key, allowed in (("dtype", DTYPES), ("device", DEVICES)):
        if getattr(config, key) not in allowed:
            raise ConfigError(f"{key} {getattr(config, key)!r}: allowed: {', '.join(allowed)}")


def _whole(value: Any, where: str, low: int, high: int | None = None) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or value < low or (high is not None and value > high):
        limit = f"{low} or more" if high is None else f"{low} to {high}"
        raise ConfigError(f"{where} is {value!r}; allowed: a whole number, {limit}")


def _mapping(value: Any, kind: type, where: str) -> dict[str, Any]:
    """A mapping with keys of a dataclass."""
    known = [one.name for one in fields(kind)]
    if not isinstance(value, dict):
        raise ConfigError(f"{where}: is {value!r}; allowed: a mapping with {', '.join(known)}")
    for key in value:
        if key not in known:
            close = difflib.get_close_matches(str(key), known, n=1)
            hint = f"did you mean {close[0]!r}?" if close else f"allowed: {', '.join(known)}"
            raise ConfigError(f"{where}: key {key!r}; {hint}")
    return value


def _entries(given: Mapping[str, Any], key: str, kind: type) -> Any:
    value = given.get(key, kind() if key == "controllers" else None)
    if not isinstance(value, kind) or (not value and key != "controllers"):
        shape = "a list" if kind is list else "a mapping"
        raise ConfigError(f"{key} is {value!r}; allowed: {shape} with at least one entry (docs/paper.md)")
    return value


def _require(given: Mapping[str, Any], keys: tuple[str, ...], where: str) -> None:
    for key in keys:
        if key not in given:
            raise ConfigError(f"{where}: {key} is missing")
