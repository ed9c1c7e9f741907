"""Where a result came from, as a table: command, machine, versions, latency model, trace."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from analysis.loaded import Run
from analysis.report.parts import Cell, Column, Grid, Row
from analysis.report.wording import joined, short

NOT_SAID = "not recorded"
_OF_LATENCY = ("device", "dtype", "created", "measurements", "r2", "heldout_rel_err", "fallback")


def of_run(run: Run) -> Grid:
    """Everything that is known of a run's origin; what is not known says so."""
    facts = [("folder", str(run.folder)), ("kind", run.kind)]
    facts += [(name, told(getattr(run, name))) for name in ("target", "drafter", "dataset", "temperature")]
    facts += [("trace", str(run.trace) if run.trace is not None else told(run.trace_name))]
    return _grid(run.name, [*facts, *_general(run.provenance), *latency(run.latency)])


def of_folder(name: str, folder: Path, provenance: Mapping[str, Any]) -> Grid:
    """The same of a paper's experiment."""
    return _grid(name, [("folder", str(folder)), *_general(provenance)])


def _general(found: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    argv = found.get("argv")
    yield "command", shlex.join(map(str, argv)) if isinstance(argv, list) and argv else NOT_SAID
    for name in ("created", "git", "specsim", "python"):
        yield name, told(found.get(name))
    packages = found.get("packages")
    if isinstance(packages, Mapping) and packages:
        yield "packages", joined([f"{name} {version}" for name, version in packages.items()])
    machine = [told(found[name]) for name in ("platform", "machine", "device") if found.get(name)]
    yield "machine", joined(machine) or NOT_SAID


def latency(model: Mapping[str, Any] | None) -> Iterator[tuple[str, str]]:
    """The latency model that priced or steered the run."""
    if model is None:
        yield "latency", NOT_SAID
        return
    verify = model.get("verify", {})
    values = [
        f"{name} {told(value)}" for name, value in verify.items() if name != "form" and not isinstance(value, list)
    ]
    tables = [f"{len(value)} values of {name}" for name, value in verify.items() if isinstance(value, list)]
    yield "latency: verification", joined([f"{verify.get('form', 'unknown')} form", *values, *tables])
    draft = model.get("draft")
    if isinstance(draft, Mapping):
        yield "latency: draft", joined([f"{name} {told(value)}" for name, value in draft.items()])
    yield "latency: overhead_s", told(model.get("overhead_s"))
    source = model.get("provenance")
    if isinstance(source, Mapping):
        for name in _OF_LATENCY:
            if source.get(name) is not None:
                yield f"latency: {name}", told(source[name])


def told(value: Any) -> str:
    """A value of a document as text."""
    if value is None or value == "":
        return NOT_SAID
    return short(value, 6) if isinstance(value, int | float) and not isinstance(value, bool) else str(value)


def _grid(name: str, facts: list[tuple[str, str]]) -> Grid:
    return Grid(
        caption=f"Origin of {name}.",
        columns=[Column("what", number=False), Column("value", number=False)],
        rows=[Row([Cell(key), Cell(value)]) for key, value in facts],
    )
