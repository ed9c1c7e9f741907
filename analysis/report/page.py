"""Everything that was read as one page."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import specsim
from analysis.loaded import Loaded
from analysis.report import documents, paper, sections
from analysis.report.comparison import comparison, lead
from analysis.report.embed import render
from analysis.report.parts import Section
from analysis.rounds import Scan

TITLE = "Speculative decoding: which controller pays"
FOOTER = (
    "Ratios are sums over sums; intervals are 95 %, by bootstrap over requests. Numbers are rounded here only: columns "
    "sort by the full values.",
    "This file needs no network and asks for none.",
)


def page(
    loaded: Loaded, scans: Mapping[str, Scan | None], *, on_step: Callable[[str], None] = lambda name: None
) -> str:
    """The HTML text; the same input gives the same text.

    Args:
        loaded: runs, experiments and documents.
        scans: of the runs' round logs, by the run's name.
        on_step: is told the name of each run or folder before its section is made.

    Raises:
        SpecsimError: a trace, a log or a table that breaks its format.
    """
    found: list[Section] = []
    for number, run in enumerate(loaded.runs, 1):
        on_step(run.name)
        found.append(sections.section(run, scans[run.name], f"run-{number}"))
    for number, one in enumerate(loaded.papers, 1):
        on_step(one.name)
        found.append(paper.section(one, f"paper-{number}"))
    answers = [one for one in found if one.answer is not None]
    for number, (kind, file, document) in enumerate(_files(loaded), 1):
        on_step(file.name)
        found.append(documents.section(kind, file, document, f"file-{number}"))
    return render(
        title=TITLE,
        version=specsim.__version__,
        lead=lead([(one.title, one.answer) for one in answers if one.answer is not None]),
        answers=answers,
        comparison=comparison(loaded.runs) if len(loaded.runs) > 1 else None,
        sections=found,
        footer=FOOTER,
    )


def _files(loaded: Loaded) -> list[tuple[str, Path, Mapping[str, Any]]]:
    groups = (("theory", loaded.theory), ("regret", loaded.regret), ("fits", loaded.fits))
    return [(kind, file, document) for kind, files in groups for file, document in files]
