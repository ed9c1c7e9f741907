"""Figures into files: of runs, of the papers' folders, and of theory documents.

Owns the names of the files, and that each derived table and each round log is worked out once.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
from matplotlib.figure import Figure

from analysis import derive
from analysis.derive import Missing
from analysis.figures.registry import FIGURES, Kind
from analysis.figures.style import fit, save, styled
from analysis.loaded import Loaded, Paper, Run
from analysis.rounds import Scan, scan
from specsim.errors import ConfigError

_NOT_IN_NAMES = re.compile(r"[^\w.=-]+")
_LETTERS_PER_INCH = 17  # of a title


@dataclass(frozen=True, kw_only=True)
class Skipped:
    """A figure that a run cannot give.

    Args:
        figure, run: which, of what.
        reason: one line.
    """

    figure: str
    run: str
    reason: str


@dataclass(frozen=True, kw_only=True)
class Picture:
    """One picture to draw.

    Args:
        kind: of figure.
        stem: of its files' names.
        title: what it is of.
        table: what its function draws.
    """

    kind: Kind
    stem: str
    title: str
    table: pa.Table


@dataclass(kw_only=True)
class _Tables:
    """Derived tables of runs, each worked out once."""

    scans: dict[Path, Scan] = field(default_factory=dict)
    tables: dict[tuple[str, str], pa.Table | Missing] = field(default_factory=dict)

    def of(self, run: Run, name: str) -> pa.Table:
        """A run's derived table.

        Raises:
            Missing: it has none.
        """
        key = (run.name, name)
        if key not in self.tables:
            if run.rounds is not None and run.rounds not in self.scans:
                self.scans[run.rounds] = scan(run.rounds)
            try:
                self.tables[key] = derive.TABLES[name](run, self.scans[run.rounds] if run.rounds else None)
            except Missing as reason:
                self.tables[key] = reason
        found = self.tables[key]
        if isinstance(found, Missing):
            raise found
        return found


def pictures(loaded: Loaded, chosen: Sequence[str]) -> tuple[list[Picture], list[Skipped]]:
    """Everything that can be drawn of what was read, and what cannot.

    Args:
        loaded: runs, papers and documents.
        chosen: names of figures.

    Raises:
        ConfigError, TraceError: a data file that cannot be used.
    """
    tables, skipped = _Tables(), list[Skipped]()
    found = [
        Picture(kind=FIGURES[name], stem=stem, title=title, table=table)
        for name in chosen
        for stem, title, table in _pictures(name, FIGURES[name], loaded, tables, skipped)
    ]
    return found, skipped


def draw(kind: Kind, table: pa.Table, stem: Path, formats: Sequence[str], title: str | None) -> list[Path]:
    """Draw one picture into a file for each format, named after the stem; their paths."""
    made = []
    with styled():
        for form in formats:
            figure = Figure(figsize=kind.size(table), layout="constrained")
            ax = kind.draw(table, figure.subplots())
            if title:
                figure.suptitle(
                    textwrap.fill(title, int(figure.get_figwidth() * _LETTERS_PER_INCH), break_long_words=False)
                )
            path = stem.with_name(f"{stem.name}.{form}")
            fit(figure, ax)
            save(figure, path, form)
            made.append(path)
    return made


def draw_folder(folder: Path) -> list[Path]:
    """Draw every figure that a paper's folder holds the data of, as PNG files in it; their paths.

    Args:
        folder: OUT of `python -m real.paper`.

    Raises:
        ConfigError: a data file that cannot be used, or a picture that cannot be written.
    """
    made: list[Path] = []
    for name, kind in FIGURES.items():
        for number, part in enumerate(kind.paper.parts(folder) if kind.paper else ()):
            made += draw(kind, part.table, folder / f"{name}-{number}", ("png",), part.title)
    return made


def _pictures(
    name: str, kind: Kind, loaded: Loaded, tables: _Tables, skipped: list[Skipped]
) -> Iterator[tuple[str, str, pa.Table]]:
    """(file name without ending, title, table) of every picture of a figure."""
    if kind.derived is not None:
        found = []
        for run in loaded.runs:
            try:
                found.append((run.name, kind.adapt(tables.of(run, kind.derived))))
            except Missing as reason:
                skipped.append(Skipped(figure=name, run=run.name, reason=str(reason)))
        if kind.together and found:
            yield name, found[0][0] if len(found) == 1 else "", pa.concat_tables([table for _, table in found])
        else:
            yield from ((f"{_plain(run)}-{name}", run, table) for run, table in found)
    for paper in loaded.papers:
        yield from _of_paper(name, kind, paper)
    if name == "theory":
        for path, document in loaded.theory:
            yield from _of_document(path, document)


def _of_paper(name: str, kind: Kind, paper: Paper) -> Iterator[tuple[str, str, pa.Table]]:
    if kind.paper is not None:
        for number, part in enumerate(kind.paper.parts(paper.folder)):
            yield f"{_plain(paper.name)}-{name}-{number}", part.title, part.table


def _of_document(path: Path, document: Mapping[str, Any]) -> Iterator[tuple[str, str, pa.Table]]:
    traces = document.get("traces")
    if not isinstance(traces, list):
        raise ConfigError(f"{path}: holds no verdicts on traces; make it with python -m specsim.theory check --json")
    for number, trace in enumerate(traces):
        yield f"{_plain(path.stem)}-theory-{number}", str(trace["path"]), derive.verdicts([trace])


def _plain(name: str) -> str:
    """A run's name as part of a file's name."""
    return _NOT_IN_NAMES.sub("-", name).strip("-.") or "run"
