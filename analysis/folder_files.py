"""What the readers of run folders share: the files of a folder, and what is refused in them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from analysis.rules import read_json
from specsim.errors import ConfigError, SpecsimError
from specsim.roundlog import stream_round_log

RESULTS, RUN, ROUNDS = "results.json", "run.json", "rounds.parquet"


def round_log(folder: Path, advice: str) -> Path:
    """The round log of a folder, of which the first piece can be read.

    Raises:
        ConfigError: there is none, or it cannot be read.
    """
    path = folder / ROUNDS
    if not path.is_file():
        raise ConfigError(f"{path}: the round log is missing; {advice}")
    with as_config():
        next(stream_round_log(path, ("run_id",)), None)
    return path


@contextmanager
def as_config() -> Iterator[None]:
    """What is wrong with a file inside a folder is a folder that cannot be used: its errors come out as ConfigError."""
    try:
        yield
    except SpecsimError as error:
        raise ConfigError(str(error)) from error


def json_object(file: Path, advice: str) -> dict[str, Any]:
    """A file that holds a JSON object.

    Raises:
        ConfigError: it does not.
    """
    document = read_json(file, "JSON object", advice)
    if not isinstance(document, dict):
        raise ConfigError(f"{file}: no JSON object there; {advice}")
    return document


def pair_of(interval: Sequence[float | None] | None) -> tuple[float, float] | None:
    """An interval as a pair; None where it is null, or both its ends are."""
    if interval is None or interval[0] is None or interval[1] is None:
        return None
    return (interval[0], interval[1])
