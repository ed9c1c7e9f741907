"""What lies in run folders and result files: `read_runs(paths)`.

Owns which kind a folder or file is of, told by its schema, and the names that runs are told apart by.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from analysis.folder_files import RESULTS, RUN
from analysis.live import REAL_SCHEMA, real_run, validation_run
from analysis.loaded import Loaded, Method, Paper, Run
from analysis.replayed import replay_runs
from analysis.results import SCHEMA as PAPER_SCHEMA
from analysis.results import read_paper
from analysis.rules import read_json
from specsim.errors import ConfigError

__all__ = ["Loaded", "Method", "Paper", "Run", "read_runs"]

REPLAY_SCHEMA, VALIDATION_SCHEMA = "specsim.replay/1", "specsim.validation/1"
FILES = {  # plain JSON files
    "specsim.theory/1": "theory",
    "specsim.theory_check/1": "theory",
    "specsim.regret/1": "regret",
    "specsim.latency_fit/1": "fits",
}
ALLOWED = (
    "the folder of python -m specsim.replay --out, real.run, real.validate or real.paper, or a JSON file of "
    "specsim.theory check, specsim.regret or specsim.latency fit"
)


def read_runs(paths: Sequence[Path]) -> Loaded:
    """Read run folders and result files.

    Args:
        paths: folders and JSON files, in the order they are to be shown.

    Raises:
        ConfigError: none was named; one cannot be used; two folders of one name.
    """
    if not paths:
        raise ConfigError(f"no folder was named; name {ALLOWED}")
    names = _names(paths)
    runs: list[Run] = []
    papers: list[Paper] = []
    found: dict[str, list[tuple[Path, Mapping[str, Any]]]] = {kind: [] for kind in FILES.values()}
    for path, name in zip(paths, names, strict=True):
        if path.is_file():
            kind, document = _read_file(path)
            found[kind].append((path, document))
            continue
        read = _read_folder(path, name)
        if isinstance(read, Paper):
            papers.append(read)
        else:
            runs += read
    return Loaded(
        runs=tuple(runs),
        papers=tuple(papers),
        theory=tuple(found["theory"]),
        regret=tuple(found["regret"]),
        fits=tuple(found["fits"]),
    )


def _names(paths: Sequence[Path]) -> list[str]:
    known: dict[str, Path] = {}
    names = []
    for path in paths:
        if not path.exists():
            raise ConfigError(f"{path}: no such folder or file; name {ALLOWED}")
        name = path.resolve().name
        if name in known and path.is_dir():
            raise ConfigError(
                f"{path}: {known[name]} has the same name, by which runs are told apart; name each folder once, or "
                "rename one"
            )
        known[name] = path
        names.append(name)
    return names


def _read_folder(folder: Path, name: str) -> list[Run] | Paper:
    if (folder / RESULTS).exists():
        document = _document(folder / RESULTS)
        schema = document.get("schema")
        if schema == REPLAY_SCHEMA:
            return replay_runs(folder, name, document)
        if schema == VALIDATION_SCHEMA:
            return [validation_run(folder, name, document)]
        if schema == PAPER_SCHEMA:
            document = read_paper(folder)
            tables = {file.stem: file for file in sorted(folder.glob("*.parquet"))}
            return Paper(folder=folder, name=name, experiment=document["experiment"], document=document, tables=tables)
        raise ConfigError(f"{folder / RESULTS}: schema is {schema!r:.60}; allowed: {ALLOWED}")
    if (folder / RUN).exists():
        document = _document(folder / RUN)
        if document.get("schema") != REAL_SCHEMA:
            raise ConfigError(
                f"{folder / RUN}: schema is {document.get('schema')!r:.60}, not {REAL_SCHEMA}; name {ALLOWED}"
            )
        return [real_run(folder, name, document)]
    inside = sorted(sub.name for sub in folder.iterdir() if any((sub / file).is_file() for file in (RESULTS, RUN)))
    said = f"; it holds folders of runs ({', '.join(inside[:3])}, ...): name these" if inside else f"; name {ALLOWED}"
    raise ConfigError(f"{folder}: neither {RESULTS} nor {RUN} is in it{said}")


def _read_file(file: Path) -> tuple[str, Mapping[str, Any]]:
    document = _document(file)
    schema = document.get("schema")
    kind = FILES.get(schema) if isinstance(schema, str) else None
    if kind is None:
        raise ConfigError(f"{file}: schema is {schema!r:.60}; name {ALLOWED}")
    return kind, document


def _document(file: Path) -> Mapping[str, Any]:
    document = read_json(file, "results", f"name {ALLOWED}")
    if not isinstance(document, dict):
        raise ConfigError(f"{file}: no JSON object there; name {ALLOWED}")
    return document
