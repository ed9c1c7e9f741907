"""Sweeps over LibraSpec's alpha and maximum length: the cells of a grid, compared request by request.

Owns which controllers are cells of one grid, and what each is compared with: the best. A cell's speedup is its run's;
the best one's over another's is the ratio of the two, by the rules of `analysis.compare`: sums over sums, a 95 %
interval by bootstrap over requests (`analysis.paired`), which have to be the same for both (`analysis.same`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from analysis.loaded import PLAIN
from analysis.paired import interval_of, ratio_of
from analysis.perrequest import Requests, per_request, with_early_builds
from analysis.rounds import scan
from analysis.runs import Method, Run
from analysis.same import same_requests
from specsim.controllers import REGISTRY, parse_spec
from specsim.errors import ConfigError

NAME, ALPHA, MAX = "libraspec", "alpha", "max"
DEFAULT_MAX = 60  # of LibraSpec, where drafts may be longer
SEED = 0
Interval = tuple[float, float]


@dataclass(frozen=True, kw_only=True)
class Cell:
    """LibraSpec with one alpha and one maximum length.

    Args:
        alpha, max: of the rule.
        controller: its spelling.
        run: it was measured in.
        speedup, ci95: over plain decoding.
        rows: of each request.
        seconds: float64[B, 2] of each request, plain decoding's for its tokens, and its own.
    """

    alpha: float
    max: int
    controller: str
    run: Run
    speedup: float
    ci95: Interval | None
    rows: Requests
    seconds: npt.NDArray[np.float64]

    @property
    def place(self) -> str:
        """In words."""
        return f"alpha={self.alpha:g}, max={self.max}"


@dataclass(frozen=True, kw_only=True)
class Sweep:
    """The cells of one grid.

    Args:
        name: what was decoded with what.
        cells: by alpha and maximum length.
        leads: per cell, the best one's speedup over its own; 1 of the best itself.
        intervals: of these ratios, 95 %; None with one request.
    """

    name: str
    cells: Sequence[Cell]
    leads: Sequence[float]
    intervals: Sequence[Interval | None]

    @property
    def best(self) -> int:
        """The cell with the highest speedup."""
        return max(range(len(self.cells)), key=lambda place: self.cells[place].speedup)

    @property
    def alphas(self) -> list[float]:
        """Ascending."""
        return sorted({cell.alpha for cell in self.cells})

    @property
    def maxima(self) -> list[int]:
        """Ascending."""
        return sorted({cell.max for cell in self.cells})

    def differs(self, place: int) -> bool:
        """Whether the best cell is faster than this one beyond chance."""
        interval = self.intervals[place]
        return place != self.best and interval is not None and interval[0] > 1

    def neighbours(self) -> list[int]:
        """Cells one step from the best along one axis, where the grid has them."""
        best = self.cells[self.best]
        row, column = self.alphas.index(best.alpha), self.maxima.index(best.max)

        def steps(cell: Cell) -> int:
            return abs(self.alphas.index(cell.alpha) - row) + abs(self.maxima.index(cell.max) - column)

        return [place for place, cell in enumerate(self.cells) if steps(cell) == 1]


def sweeps_of(runs: Iterable[Run]) -> list[Sweep]:
    """The sweeps that the runs make up: a trace each of a replay; folders of real runs of the same things together.

    Raises:
        ConfigError: no sweep among them; a cell twice; a run without plain decoding; runs over other requests.
        TraceError: a round log cannot be used.
    """
    grids: dict[str, list[Cell]] = {}
    known = list(runs)
    for run in known:
        for name, cell in _cells_of(run):
            for other in grids.get(name, []):
                _check(cell, other)
            grids.setdefault(name, []).append(cell)
    found = [_sweep(name, cells) for name, cells in grids.items() if len(cells) > 1]
    if not found:
        names = ", ".join(sorted({method.controller for run in known for method in run.methods})) or "no controller"
        raise ConfigError(
            f"no sweep there: two or more {NAME} controllers that differ in {ALPHA} or {MAX} are needed, on the same "
            f"target, drafter and data; found {names:.200}"
        )
    return found


def _check(cell: Cell, other: Cell) -> None:
    if (cell.alpha, cell.max) == (other.alpha, other.max):
        if cell.run is other.run:
            raise ConfigError(
                f"{cell.run.folder}: {cell.place} is twice in {cell.run.name}; make the run with every controller once"
            )
        raise ConfigError(f"{cell.run.folder}: {cell.place} is in {other.run.folder}, too; name one of the two folders")
    same = same_requests(cell.run, cell.rows, other.run, other.rows)
    if not same.paired:
        raise ConfigError(
            f"{cell.run.folder} and {other.run.folder} cannot be paired request by request: {same.how}; make the "
            "trials of a sweep with the same data"
        )


def _cells_of(run: Run) -> list[tuple[str, Cell]]:
    mine = [(method, found) for method in run.methods if (found := _parameters(run, method.controller)) is not None]
    if not mine or run.rounds is None:
        return []
    rows = per_request(scan(run.rounds), run.run_ids)
    if run.kind == "real":
        rows, _ = with_early_builds(run.folder, rows, {method.controller: method.time_s for method in run.methods})
    if PLAIN not in rows:
        raise ConfigError(f"{run.folder}: no plain decoding in {run.name}; a sweep needs it, add the controller plain")
    return [(_name(run, others), _cell(run, method, alpha, most, rows)) for method, (alpha, most, others) in mine]


def _parameters(run: Run, controller: str) -> tuple[float, int, Mapping[str, str]] | None:
    """alpha, maximum and all else of a spelling; None for other controllers."""
    if controller.partition(":")[0] != NAME:
        return None
    longest = (run.document.get("config") or {}).get("max_draft_len", DEFAULT_MAX)
    try:
        given = dict(parse_spec(controller.partition("#")[0])[1])
        alpha = float(given.pop(ALPHA, REGISTRY[NAME].params[ALPHA].default))
        return alpha, int(given.pop(MAX, min(DEFAULT_MAX, longest))), given
    except (ConfigError, ValueError, TypeError) as error:
        raise ConfigError(
            f"{run.folder}: {controller:.100}: {ALPHA} and {MAX} cannot be told ({error}); make the folder again"
        ) from None


def _cell(run: Run, method: Method, alpha: float, most: int, rows: Mapping[str, Requests]) -> Cell:
    if method.speedup is None or method.controller not in rows:
        lacks = "speedup in the results" if method.speedup is None else "rounds in the log"
        raise ConfigError(f"{run.folder}: {method.controller} has no {lacks} of {run.name}; make the folder again")
    mine = rows[method.controller]
    return Cell(
        alpha=alpha,
        max=most,
        controller=method.controller,
        run=run,
        speedup=method.speedup,
        ci95=method.ci95,
        rows=mine,
        seconds=np.stack([mine.plain_seconds(rows[PLAIN]), mine.time_s], axis=1),
    )


def _name(run: Run, others: Mapping[str, str]) -> str:
    rest = [f"{key}={value}" for key, value in others.items()]
    heat = None if run.temperature is None else f"T={run.temperature:g}"
    about: list[Any] = [run.trace_name if run.kind == "replay" else None, run.target, run.drafter, run.dataset, heat]
    return ", ".join([*(str(part) for part in about if part), *rest])


def _sweep(name: str, cells: Sequence[Cell]) -> Sweep:
    cells = sorted(cells, key=lambda cell: (cell.alpha, cell.max))
    best = max(cells, key=lambda cell: cell.speedup)
    return Sweep(
        name=name,
        cells=cells,
        leads=[ratio_of(best.seconds, cell.seconds) for cell in cells],
        intervals=[interval_of(best.seconds, cell.seconds, seed=SEED) for cell in cells],
    )
