"""YAML files of experiments, read and checked. Loads no model and writes nothing.

Owns what is refused, before hours of work begin, and the words. Places are spelled `pairs[0].methods[1].static`.
"""

from __future__ import annotations

import difflib
import re
import reprlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import yaml

from real.data import THINKING
from real.drafters.choose import parse_drafter
from real.drafters.model import DRAFT_SAMPLING
from real.loop import MAX_SEED
from real.models import DEVICES, DTYPES, MAX_THREADS
from real.paper.config import EXPERIMENTS, STATIC, TEMPERATURES, Cell, Dataset, Method, Pair, PaperConfig
from real.session import ANY_LATENCY
from specsim.controllers import REGISTRY, Setting, build, parse_spec
from specsim.errors import ConfigError
from specsim.schema import MAX_DRAFT_LEN

LARGEST_FILE = 1 << 18  # bytes
MOST_VALUES = 10_000  # of a file, with what its aliases stand for
MOST_REPEATS = 10_000
LONGEST_FOLDER = 200  # bytes; file systems allow 255
ANY_LAYERS = 10_000  # of a target that is not loaded yet; layers it does not have are refused when it is
MOST_ARMS = 1024
RANGE = re.compile(r"([0-9]{1,9})\.\.([0-9]{1,9})")


def read_config(path: Path) -> PaperConfig:
    """Read and check a file.

    Raises:
        ConfigError: the file, the place in it, what is wrong, and what is allowed.
    """
    try:
        return parse_config(_load(path))
    except ConfigError as error:
        raise ConfigError(f"--config {path}: {error}") from None


def parse_config(document: Any) -> PaperConfig:
    """A configuration from YAML's values; ConfigError as in `read_config`."""
    _check_size(document)
    given = _mapping(document, PaperConfig, "", needed=("experiment", "datasets", "pairs"))
    _one_of(given["experiment"], EXPERIMENTS, "experiment")
    datasets = {name: _dataset(one, f"datasets.{name}") for name, one in _named(given["datasets"], "datasets").items()}
    pairs = tuple(
        _pair(one, datasets, f"pairs[{number}]") for number, one in enumerate(_several(given["pairs"], "pairs"))
    )
    temperatures = _several(given.get("temperatures", [0]), "temperatures")
    for number, value in enumerate(temperatures):
        _one_of(value, TEMPERATURES, f"temperatures[{number}]")
    _all_different(temperatures, "temperatures")
    config = PaperConfig(**{**given, "datasets": datasets, "pairs": pairs, "temperatures": tuple(temperatures)})
    _whole(config.max_new_tokens, "max_new_tokens", 1)
    _whole(config.threads, "threads", 0, MAX_THREADS)
    _whole(config.seed, "seed", 0, MAX_SEED)
    _whole(config.repeats, "repeats", 2, MOST_REPEATS)
    _one_of(config.dtype, DTYPES, "dtype")
    _one_of(config.device, DEVICES, "device")
    _check_cells(config)
    return config


def _dataset(value: Any, where: str) -> Dataset:
    given = _mapping(value, Dataset, where, needed=("data", "requests"))
    _text(given["data"], f"{where}.data")
    _whole(given["requests"], f"{where}.requests", 1)
    if given.get("context") is not None:
        _whole(given["context"], f"{where}.context", 2)
    if given.get("visual_tokens") is not None:
        _whole(given["visual_tokens"], f"{where}.visual_tokens", 1)
        if given.get("context") is not None:
            raise ConfigError(f"{where}: context lengthens texts, visual_tokens bounds pictures; give one of them")
    return Dataset(**given)


def _pair(value: Any, datasets: Mapping[str, Dataset], where: str) -> Pair:
    given = _mapping(value, Pair, where, needed=("target", "methods"))
    target = _text(given["target"], f"{where}.target")
    names = _several(given.get("datasets", list(datasets)), f"{where}.datasets")
    for number, name in enumerate(names):
        _one_of(name, tuple(datasets), f"{where}.datasets[{number}]")
    _all_different(names, f"{where}.datasets")
    thinking = given.get("thinking")
    if thinking is not None:
        if not isinstance(thinking, bool):
            raise ConfigError(f"{where}.thinking is {_shown(thinking)}; allowed: on, off, or left out")
        for name in names:
            if THINKING.search(datasets[name].data):
                raise ConfigError(
                    f"{where}.thinking: datasets.{name}.data says {_shown(datasets[name].data)}; say it in one place"
                )
    methods = tuple(
        _method(one, target, f"{where}.methods[{number}]")
        for number, one in enumerate(_several(given["methods"], f"{where}.methods"))
    )
    return Pair(target=target, datasets=tuple(names), methods=methods, thinking=thinking)


def _method(value: Any, target: str, where: str) -> Method:
    given = _mapping(value, Method, where, needed=("name", "drafter", "max_draft_len"))
    _text(given["name"], f"{where}.name")
    _text(given["drafter"], f"{where}.drafter")
    with _placed(f"{where}.drafter"):
        parse_drafter(given["drafter"], target=target, n_layers=ANY_LAYERS)
    longest = given["max_draft_len"]
    _whole(longest, f"{where}.max_draft_len", 2, MAX_DRAFT_LEN)
    limit = f"max_draft_len, {longest}"
    static = _numbers(given["static"], 1, longest, limit, f"{where}.static") if "static" in given else ()
    last = MOST_ARMS - 1
    arms = _numbers(given["arms"], 0, last, str(last), f"{where}.arms") if "arms" in given else ()
    controllers = _controllers(given["controllers"], longest, f"{where}.controllers") if "controllers" in given else {}
    if not static and not arms and not controllers:
        raise ConfigError(f"{where}: nothing to decode; name lengths (static), arms or controllers")
    method = Method(**{**given, "static": static, "arms": arms, "controllers": controllers})
    _one_of(method.draft_sampling, DRAFT_SAMPLING, f"{where}.draft_sampling")
    if not isinstance(method.predict, bool):
        raise ConfigError(f"{where}.predict is {_shown(method.predict)}; allowed: on, off")
    return method


def _controllers(value: Any, longest: int, where: str) -> dict[str, str]:
    """Label to spelling; none of them twice, whichever way it is spelled."""
    found = _named(value, where, some=False)
    lengths = Setting(block_len=1, max_draft_len=longest, latency=ANY_LATENCY)
    # How many arms there are only the loaded drafter knows.
    arms = replace(lengths, arm_draft_s=(1.0,) * MOST_ARMS, draft_len=1)
    known: dict[str, str] = {}
    for label, spelling in found.items():
        if label == STATIC:
            raise ConfigError(f"{where}.{label}: {label!r} is the label of the swept lengths; choose another one")
        _text(spelling, f"{where}.{label}")
        with _placed(f"{where}.{label}"):
            name, _ = parse_spec(spelling)
            built = build(spelling, lengths if "length" in REGISTRY[name].kinds else arms)
        same = known.setdefault(f"{built.name}, {built.config}", label)
        if same != label:
            raise ConfigError(f"{where}.{label}: {spelling!r} is the controller of {same!r}; name each once")
    return found


def _numbers(value: Any, low: int, high: int, highest: str, where: str) -> tuple[int, ...]:
    """Lengths or arms: `3..20` with both ends, or a list; `highest` is `high` in words."""
    found = RANGE.fullmatch(value) if isinstance(value, str) else None
    if found is not None:
        first, last = int(found[1]), int(found[2])
        if not low <= first <= last <= high:
            raise ConfigError(f"{where} is {value!r}; allowed: from {low} on, upwards, to {highest}")
        return tuple(range(first, last + 1))
    if not isinstance(value, list):
        raise ConfigError(f"{where} is {_shown(value)}; allowed: a range such as 3..20, or a list of whole numbers")
    for number, one in enumerate(value):
        _whole(one, f"{where}[{number}]", low, high)
    _all_different(value, where)
    return tuple(value)


def _check_cells(config: PaperConfig) -> None:
    """Every method is measured somewhere, and no two cells are the same."""
    known: dict[str, str] = {}
    for i, pair in enumerate(config.pairs):
        for j, method in enumerate(pair.methods):
            where = f"pairs[{i}].methods[{j}]"
            measured = [temperature for temperature in config.temperatures if method.at(temperature)]
            if not measured:
                raise ConfigError(
                    f"{where}.draft_sampling is {method.draft_sampling!r}, which is measured at temperature 1, but "
                    f"temperatures is {list(config.temperatures)}; add 1 to it, or leave draft_sampling out"
                )
            for dataset in pair.datasets:
                cell = Cell(pair=pair, dataset=dataset, temperature=measured[0], method=method, config=config)
                if len(cell.folder().encode()) > LONGEST_FOLDER:
                    raise ConfigError(
                        f"{where}.name: with target and dataset a folder's name of more than {LONGEST_FOLDER} bytes; "
                        "shorten one of them"
                    )
                same = known.setdefault(cell.folder(), where)
                if same != where:
                    raise ConfigError(f"{where}: measures the same as {same} on {dataset!r}; remove one of them")


class _Loader(yaml.SafeLoader):
    """Takes nothing silently: of a key given twice YAML keeps the last."""

    def compose_mapping_node(self, anchor: Any) -> Any:
        node = super().compose_mapping_node(anchor)
        known = set()
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode) and (key.tag, key.value) in known:
                raise yaml.MarkedYAMLError(problem=f"key {key.value!r} is given twice", problem_mark=key.start_mark)
            known.add((key.tag, str(key.value)))
        return node


def _load(path: Path) -> Any:
    try:
        with path.open("rb") as file:
            content = file.read(LARGEST_FILE + 1)
    except OSError as error:
        raise ConfigError(f"cannot be read ({error.strerror})") from None
    if len(content) > LARGEST_FILE:
        raise ConfigError(f"has more than {LARGEST_FILE} bytes; name an experiment's YAML file")
    try:
        return yaml.load(content.decode("utf-8-sig"), _Loader)
    except UnicodeDecodeError as error:
        raise ConfigError(f"is not UTF-8 text (byte {error.start}); save it as UTF-8") from None
    except yaml.YAMLError as error:
        raise ConfigError(f"is not YAML ({_said(error)})") from None
    except (ValueError, LookupError, TypeError, AttributeError, OverflowError, RecursionError) as error:
        # What PyYAML lets out for values that only begin like a number or a date, and for endless nesting.
        raise ConfigError(f"is not YAML ({_said(error)})") from None


def _said(error: Exception) -> str:
    """One line of what an exception says, with the line of the file where it knows that."""
    mark = getattr(error, "problem_mark", None)
    parts = [part for part in (getattr(error, name, None) for name in ("context", "problem")) if part]
    text = " ".join((", ".join(parts) or str(error)).split()) or type(error).__name__
    return text if mark is None else f"{text}, line {mark.line + 1}"


def _check_size(document: Any) -> None:
    """Refuse what no experiment holds, before anything goes over it: aliases can be nested, even in themselves."""
    left, count = [document], 0
    while left:
        value, count = left.pop(), count + 1
        if count > MOST_VALUES:
            raise ConfigError(f"holds more than {MOST_VALUES} values, aliases included; make it smaller")
        if isinstance(value, dict):
            left += [*value, *value.values()]
        elif isinstance(value, list | tuple | set):
            left += value
        elif isinstance(value, int) and value.bit_length() > 64:
            raise ConfigError("holds a whole number beyond 64 bits; no key allows one")


def _mapping(value: Any, kind: type, where: str, *, needed: Sequence[str]) -> dict[str, Any]:
    """A mapping with keys of a dataclass."""
    known = [one.name for one in fields(kind)]
    if not isinstance(value, dict):
        raise ConfigError(f"{where or 'the file'} is {_shown(value)}; allowed: a mapping with {', '.join(known)}")
    for key in value:
        if key not in known:
            close = difflib.get_close_matches(str(key), known, n=1)
            hint = f"did you mean {close[0]!r}?" if close else f"allowed: {', '.join(known)}"
            raise ConfigError(f"{where or 'the file'}: key {_shown(key)}; {hint}")
    for key in needed:
        if key not in value:
            raise ConfigError(f"{where or 'the file'}: {key} is missing (docs/paper.md)")
    return value


def _named(value: Any, where: str, *, some: bool = True) -> dict[str, Any]:
    """A mapping with names the user chose, `some`: at least one."""
    if not isinstance(value, dict) or (some and not value):
        amount = "a mapping with at least one entry" if some else "a mapping"
        raise ConfigError(f"{where} is {_shown(value)}; allowed: {amount} (docs/paper.md)")
    for key in value:
        _text(key, f"{where}: a name")
    return value


def _several(value: Any, where: str) -> list[Any]:
    if not isinstance(value, list) or not value:
        raise ConfigError(f"{where} is {_shown(value)}; allowed: a list with at least one entry (docs/paper.md)")
    return value


def _all_different(values: Sequence[Any], where: str) -> None:
    for number, value in enumerate(values):
        if value in values[:number]:
            raise ConfigError(f"{where}[{number}]: {_shown(value)} is there already; name each once")


def _text(value: Any, where: str) -> str:
    if not isinstance(value, str):
        raise ConfigError(f"{where} is {_shown(value)}; allowed: text (in quotes, where YAML reads something else)")
    if not value.strip() or not value.isprintable():
        raise ConfigError(f"{where} is {_shown(value)}; allowed: text in printable characters")
    return value


def _one_of(value: Any, allowed: Sequence[Any], where: str) -> None:
    # By type too: to Python True is 1.
    if not any(type(value) is type(one) and value == one for one in allowed):
        raise ConfigError(f"{where} is {_shown(value)}; allowed: {', '.join(map(str, allowed))}")


def _whole(value: Any, where: str, low: int, high: int | None = None) -> None:
    if type(value) is not int or value < low or (high is not None and value > high):
        limit = f"{low} or more" if high is None else f"{low} to {high}"
        raise ConfigError(f"{where} is {_shown(value)}; allowed: a whole number, {limit}")


@contextmanager
def _placed(where: str) -> Iterator[None]:
    try:
        yield
    except ConfigError as error:
        raise ConfigError(f"{where}: {error}") from None


def _shown(value: Any) -> str:
    """A value in short, for messages."""
    return _SHORT.repr(value)


_SHORT = reprlib.Repr()
_SHORT.maxstring = _SHORT.maxother = 80
