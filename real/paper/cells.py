"""Measuring an experiment's cells: traces and calibrations first, then all methods of a place, prompt by prompt.

Owns the order of work and what is kept. A cell's folder is that of a validation (`real.validate`) of its drafter's
controllers: trace.parquet, calibration.json, the run, results.json. Cells of one target, dataset and temperature run
interleaved, one prompt of each in turn, in an order drawn anew for each prompt; within a cell so do its controllers,
plain decoding among them (`real.interleave`).
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from rich.console import Console

from real import recordings
from real.builders.arm import read_arms
from real.calibrate import machine
from real.compare import counted
from real.data import Prompt, choose, load_prompts
from real.drafters.base import NoDrafter
from real.drafters.choose import DrafterSpec, parse_drafter
from real.evaluation import evaluate
from real.folder import Request, RunFolder
from real.interleave import PLAIN
from real.loop import Settings
from real.models import Loaded, check_target, load_target
from real.paper.config import GREEDY, SAMPLE, Cell, PaperConfig
from real.paper.long_prompts import long_prompts
from real.paper.reading import ANY_LAYERS
from real.places import check_checkpoint
from real.progress import Steps
from real.record import proposer_of
from real.session import ANY_LATENCY, Session, build_for, make_drafter
from real.target import Target
from real.validation import PromptRun, Work, check_costs, check_predictable, frozen_calibration, frozen_trace
from real.vision.load import prompt_for, within
from specsim.controllers import Controller
from specsim.errors import ConfigError
from specsim.latency import LatencyModel
from specsim.paths import replace_file

RESULTS = "results.json"
ATTEMPTS = 3


@dataclass(frozen=True, kw_only=True)
class Open:
    """A cell with everything loaded.

    Args:
        cell: what is measured.
        work: as of a validation.
    """

    cell: Cell
    work: Work


@dataclass(frozen=True, kw_only=True)
class Ready:
    """A cell whose frozen inputs are there.

    Args:
        work: as of a validation.
        controllers: built with the calibration.
        trace: of the same prompts; None where none can be recorded.
        why: no trace.
        latency: the calibration, or any where `calibrated` says that there is none.
        calibrated: a calibration serves predictions and rules that look at costs; without either, none is made.
    """

    work: Work
    controllers: Sequence[Controller]
    trace: Path | None
    why: str | None
    latency: LatencyModel
    calibrated: bool


def is_finished(folder: Path) -> bool:
    """Whether a cell's folder holds its results, which are written last."""
    return (folder / RESULTS).is_file()


def unfinished(config: PaperConfig, place: Path) -> list[Cell]:
    """The cells that `place` does not hold yet, in the order they are measured; looks at their prompts, loads no model.

    Raises:
        ConfigError: a dataset that cannot be read, or has too few prompts; a target or drafter that is not where it is
            said to be.
    """
    cells = [cell for cell in config.cells() if not is_finished(place / cell.folder())]
    for dataset in dict.fromkeys(cell.prompts() for cell in cells):
        choose(load_prompts(dataset.data), dataset.requests, config.seed)
    for cell in cells:
        _check_places(cell)
    return cells


def _check_places(cell: Cell) -> None:
    """Else those of a later pair would be looked for when hours of the earlier ones are done."""
    check_target(cell.target)
    spec = parse_drafter(cell.method.drafter, target=cell.target, n_layers=ANY_LAYERS)
    if spec.path is not None:
        check_target(spec.path)
    if "path" in spec.options:
        check_checkpoint(spec.options["path"], "drafter")
    if "arms" in spec.options and "build" not in spec.options:  # else it is their number
        read_arms(spec.options["arms"])


def measure_cells(cells: Sequence[Cell], place: Path, console: Console) -> None:
    """Measure cells of one experiment.

    Args:
        cells: as from `unfinished`.
        place: folder of the cells' folders.
        console: for progress.

    Raises:
        ConfigError: anything unknown, missing or incompatible; of one target, before anything of it is measured.
    """
    for target, mine in groupby(cells, key=lambda cell: cell.target):
        opened = _open_target(target, list(mine), place, console)
        for (dataset, temperature), group in groupby(opened, key=lambda one: (one.cell.dataset, one.cell.temperature)):
            console.print(f"{target}, {dataset}, T = {temperature}", markup=False, highlight=False)
            _measure_group(list(group), cells[0].config.repeats)


def _open_target(target: str, cells: Sequence[Cell], place: Path, console: Console) -> list[Open]:
    config = cells[0].config
    if config.threads:
        torch.set_num_threads(config.threads)
    loaded = load_target(target, dtype=config.dtype, device=config.device)
    sessions: dict[tuple[str, int, str, int | None], tuple[Session, DrafterSpec]] = {}
    opened = []
    for cell in cells:
        drafting, most = (
            (cell.method.drafter, cell.method.max_draft_len, cell.method.draft_sampling),
            cell.visual_tokens,
        )
        if (*drafting, most) not in sessions:
            sessions[*drafting, most] = _session(within(loaded, most), target, *drafting)
        opened.append(Open(cell=cell, work=_open_cell(cell, *sessions[*drafting, most], place, console)))
    return opened


def _session(
    loaded: Loaded, target: str, drafter: str, max_draft_len: int, draft_sampling: str
) -> tuple[Session, DrafterSpec]:
    spec = parse_drafter(drafter, target=target, n_layers=loaded.model.config.num_hidden_layers)
    made = make_drafter(spec, loaded, max_draft_len=max_draft_len, draft_sampling=draft_sampling)
    if made.samples != (draft_sampling == SAMPLE):
        raise ConfigError(
            f"drafter {drafter!r}: draft_sampling is {draft_sampling!r}, but it draws no tokens; allowed: {GREEDY}"
        )
    return Session(loaded=loaded, target=Target(loaded.model), drafter=made, plain=NoDrafter()), spec


def _open_cell(cell: Cell, session: Session, spec: DrafterSpec, place: Path, console: Console) -> Work:
    config, loaded = cell.config, session.loaded
    prompts, dataset = _prompts(cell, loaded, place)
    encoded = [prompt_for(loaded, prompt) for prompt in prompts]
    spellings = [PLAIN, *(name for name in cell.method.spellings() if name != PLAIN)]
    check_predictable(session.controllers(spellings, ANY_LATENCY), session.drafter)
    recordings.check_prompts(loaded, session.drafter, prompts, encoded, config.max_new_tokens)
    sample = cell.temperature > 0
    recording = recordings.Settings(
        target=cell.target,
        drafter=spec,
        dataset=dataset,
        requests=len(prompts),
        max_new_tokens=config.max_new_tokens,
        max_draft_len=cell.method.max_draft_len,
        dtype=config.dtype,
        device=loaded.device,
        seed=config.seed,
        sample=sample,
        visual_tokens=cell.visual_tokens,
    )
    settings = Settings(max_new_tokens=config.max_new_tokens, stop_ids=loaded.stop_ids, sample=sample, seed=config.seed)
    kept = {**cell.settings(), "controllers": spellings, "prompts": [prompt.id for prompt in prompts]}
    return Work(
        session=session,
        settings=settings,
        recording=recording,
        prompts=prompts,
        encoded=encoded,
        spellings=spellings,
        folder=RunFolder(place / cell.folder(), kept, reopen=True),
        console=console,
    )


def _prompts(cell: Cell, loaded: Loaded, place: Path) -> tuple[list[Prompt], str]:
    """The cell's prompts, and the dataset they are all of."""
    dataset, seed = cell.prompts(), cell.config.seed
    if dataset.context is None:
        return choose(load_prompts(dataset.data), dataset.requests, seed), dataset.data
    file = long_prompts(dataset.data, dataset.requests, dataset.context, loaded, place, seed=seed)
    return choose(load_prompts(str(file)), dataset.requests, seed), str(file)


def _measure_group(opened: Sequence[Open], repeats: int) -> None:
    """Cells of one place, interleaved."""
    works = [one.work for one in opened]
    ready = [_prepare(one.work, repeats, predict=one.cell.method.predict) for one in opened]
    runs = [PromptRun(one.work, one.controllers) for one in ready]
    if not runs:
        return
    total, kept = len(works[0].prompts) * len(runs), sum(len(run.requests) for run in runs)
    with Steps(works[0].console, "prompt x method", total, before=kept) as steps:
        for run in _turns(runs, works[0].settings.seed):
            name = run.work.session.drafter.name
            steps.done(f"{name}, {run.advance()}")
    for one, run in zip(ready, runs, strict=True):
        _finish(one, run.requests)


def _turns(runs: Sequence[PromptRun], seed: int) -> Iterator[PromptRun]:
    """Whose next prompt is decoded; cells that were further when an interruption came wait for the others."""
    for number in range(len(runs[0].work.prompts)):
        for place in np.random.default_rng([seed, number]).permutation(len(runs)).tolist():
            if len(runs[place].requests) == number:
                yield runs[place]


def _prepare(work: Work, repeats: int, *, predict: bool) -> Ready:
    """Trace and calibration, as in `real.validate`: made once, before the run, and kept."""
    trace, why = None, None
    try:
        if not predict:
            raise ConfigError("no prediction was asked for (predict: off)")
        proposer_of(work.session.drafter)
        check_costs(work.session.drafter)
    except ConfigError as error:
        why = str(error)
    else:
        trace = frozen_trace(work, None)
    needed = trace is not None or any(looks_at_costs(spelling, work.session) for spelling in work.spellings)
    latency = _calibrated(work, repeats) if needed else ANY_LATENCY
    controllers = work.session.controllers(work.spellings, latency)
    return Ready(work=work, controllers=controllers, trace=trace, why=why, latency=latency, calibrated=needed)


def _calibrated(work: Work, repeats: int) -> LatencyModel:
    """The calibration; one that a busy machine spoilt is repeated, twice as long: hours of work should go on."""
    for more in range(ATTEMPTS - 1):
        try:
            return frozen_calibration(work, None, repeats << more)
        except ConfigError as error:
            if isinstance(error.__context__, OSError):  # could not be written; measuring is not at fault
                raise
            work.console.print(f"{error} Trying again with more repeats.", markup=False, highlight=False)
    return frozen_calibration(work, None, repeats << (ATTEMPTS - 1))


class _AskedError(Exception):
    pass


class _Unmeasured:
    """In place of a latency model: refuses to be asked anything."""

    def __getattr__(self, name: str) -> Any:
        raise _AskedError(name)


def looks_at_costs(spelling: str, session: Session) -> bool:
    """Whether a controller decides by the latency model: whether it asks for anything of it when it is built."""
    try:
        build_for(spelling, session.drafter, cast("LatencyModel", _Unmeasured()))
    except _AskedError:
        return True
    return False


def _finish(ready: Ready, requests: Sequence[Request]) -> None:
    work, why = ready.work, ready.why
    try:
        document = evaluate(work, ready.controllers, requests, ready.trace, ready.latency)
    except ConfigError as error:  # a trace that these controllers cannot be replayed on
        document, why = evaluate(work, ready.controllers, requests, None, ready.latency), str(error)
    document |= {"not_predicted": why, "machine": machine(work.session.loaded, work.session.drafter)}
    if not ready.calibrated:
        document["plain_pass"] = None
    decode = work.session.loaded.tokenizer.decode
    texts = {(r.number, name): decode(counted(r, name).decoded.output) for r in requests for name in work.spellings}
    work.folder.finish(requests, texts=texts)
    write_json(work.folder.path / RESULTS, document)


def write_json(path: Path, document: Any) -> None:
    """Write a document whole or not at all."""
    with replace_file(path) as temporary:
        temporary.write_text(json.dumps(document, indent=1, allow_nan=False) + "\n", encoding="utf-8")
