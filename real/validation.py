"""The work of a validation: its frozen inputs and its run, in one folder that can be continued.

Owns what is made once and kept (trace, calibration) and the interleaved run. What comes of them is `real.compare`, the
command is `real.validate`.
"""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from rich.console import Console

from real import recordings
from real.arm_shape import warnings_of
from real.calibrate import check_machine
from real.calibrate_cli import calibration_texts
from real.compare import counted
from real.data import Prompt
from real.drafters.base import Drafter
from real.folder import Request, RunFolder
from real.interleave import PLAIN, Comparison
from real.loop import Settings
from real.measure import arms_to_measure
from real.probe_summary import line_of
from real.progress import Steps
from real.recall import recall
from real.session import Session
from real.trace_latency import measure_latency
from real.vision.prompt import VisionPrompt
from specsim.controllers import Controller
from specsim.errors import ConfigError
from specsim.latency import LatencyModel, load_latency, save_latency
from specsim.paths import replace_file
from specsim.reader import open_trace

TRACE, CALIBRATION = "trace.parquet", "calibration.json"
CALIBRATION_TEXT = "open-ended"


@dataclass(frozen=True, kw_only=True)
class Work:
    """What is validated, loaded.

    Args:
        session: target and drafter.
        settings: of every decode.
        recording: what a trace of this run is a recording of.
        prompts, encoded: as chosen, and as the target takes them.
        spellings: controllers, plain decoding first.
        folder: of the run.
        console: for progress.
    """

    session: Session
    settings: Settings
    recording: recordings.Settings
    prompts: list[Prompt]
    encoded: Sequence[torch.Tensor | VisionPrompt]
    spellings: list[str]
    folder: RunFolder
    console: Console

    @property
    def max_draft_len(self) -> int:
        """Longest draft, of a tree its nodes."""
        return self.session.drafter.max_draft_len


def frozen_trace(work: Work, given: Path | None) -> Path:
    """The trace the prediction is made from: the given one, one recorded earlier into the folder, or a new one.

    Raises:
        ConfigError: the given one is of other prompts, models or limits.
    """
    path = work.folder.path / TRACE
    if given is not None and not path.exists():
        with replace_file(path) as temporary:
            shutil.copyfile(given, temporary)
    if not path.exists():
        rows = recordings.record(work.recording, work.session.loaded, work.session.drafter, path, console=work.console)
        summary = recordings.save(path, work.recording, work.session.loaded, work.session.drafter, rows, None)
        for line in (line_of(summary), *warnings_of(summary["arms"])):
            work.console.print(line, markup=False, highlight=False, soft_wrap=True)
    check_trace(path, work.session, work.recording, work.prompts)
    return path


def check_predictable(controllers: Sequence[Controller], drafter: Drafter) -> None:
    """Refuse rules that read confidences where further passes of a round replace those: no trace or log holds them all.

    Raises:
        ConfigError: the first such controller.
    """
    reading = [controller.name for controller in controllers if controller.needs_q]
    if drafter.pass_rule == "per-length" and reading:
        raise ConfigError(
            f"controller {reading[0]!r} reads confidences, which pass_rule=per-length replaces with every pass; "
            "neither trace nor log holds them all. Validate with pass_rule=keep-first, or compare live (real.run)"
        )


def check_costs(drafter: Drafter) -> None:
    """Refuse a drafter whose arms cost what the prompt's pictures make of them: a calibration is made on text.

    Raises:
        ConfigError: it is one.
    """
    if len(drafter.arm_costs) > 1 and not drafter.arm_names:
        raise ConfigError(
            f"drafter {drafter.name!r}: what its arms cost depends on the prompt, and a calibration is made on others; "
            "record the arms (real.probe) and replay them at their recorded seconds (specsim.replay), or compare live "
            "(real.run)"
        )


def check_trace(path: Path, session: Session, recording: recordings.Settings, prompts: Sequence[Prompt]) -> None:
    """Refuse a trace of anything else than this run's prompts, models and limits.

    Args:
        path: the trace.
        session: target and drafter.
        recording: what the trace has to be a recording of.
        prompts: of the run.

    Raises:
        ConfigError: the first setting that differs.
        TraceError: not a trace.
    """
    with open_trace(path) as reader:
        meta = reader.meta
    spec, shape = recording.drafter, recordings.trace_shape(session.drafter, recording.max_draft_len)
    arms = session.drafter.arm_names
    here = {
        "target": (meta.target, session.loaded.name),
        "drafter": (meta.drafter, spec.name),
        "skip_layers": (_list(meta.extra.get("skip_layers")), _list(spec.skip_layers)),
        "max_ngram_len": (meta.extra.get("max_ngram_len"), spec.max_ngram_len),
        "drafter_path": (meta.extra.get("drafter_path"), spec.path),
        # Arms are told by their spellings: the file they were named by may have changed or moved.
        "drafter_options": tuple(
            {key: value for key, value in options.items() if key != "arms"}
            for options in (meta.extra.get("drafter_options") or {}, spec.options)
        ),
        "arms": ([arm["name"] for arm in meta.arms or ()], list(reversed(arms))),
        "temperature": (meta.temperature, float(recording.sample)),
        "dtype": (meta.dtype, recording.dtype),
        **{key: (getattr(meta, key), wanted) for key, wanted in shape.items()},
        "max_new_tokens": (meta.extra.get("max_new_tokens"), recording.max_new_tokens),
        "prompts": (meta.extra.get("prompt_ids"), [prompt.id for prompt in prompts]),
    }
    for key, (found, wanted) in here.items():
        if found != wanted:
            raise ConfigError(
                f"{path}: its {key} is {found!r}, this run's {wanted!r}; record one with python -m real.probe "
                "and the same options, or leave --trace out"
            )


def _list(layers: Sequence[int] | None) -> list[int] | None:
    return None if layers is None else list(layers)


def frozen_calibration(work: Work, given: Path | None, repeats: int) -> LatencyModel:
    """The latency model the prediction is made with, made like the trace; given or old ones must be of this machine.

    Raises:
        ConfigError: of another machine, precision or pair of models; or measurements that admit no model.
    """
    path = work.folder.path / CALIBRATION
    if not path.exists():
        if given is not None:
            model = load_latency(given)
            check_machine(model, work.session.loaded, work.session.drafter, where=str(given))
        else:
            model = _calibrate(work, repeats)
        save_latency(path, model)
    model = load_latency(path)
    check_machine(model, work.session.loaded, work.session.drafter, where=str(path))
    return model


def _calibrate(work: Work, repeats: int) -> LatencyModel:
    # As long as the run's contexts; the text is another one unless those prompts themselves are validated.
    lengths = [len(ids) for ids in work.encoded]
    new = work.settings.max_new_tokens
    contexts = (min(lengths), int(np.median(lengths)) + new // 2, max(lengths) + new)
    texts = calibration_texts(
        work.session.loaded,
        CALIBRATION_TEXT,
        [max(2, length) for length in contexts],
        seed=work.settings.seed,
        max_draft_len=work.max_draft_len,
        depth=work.session.drafter.depth,
        arms=arms_to_measure(work.session.drafter),
    )
    return measure_latency(
        work.session.loaded,
        work.session.drafter,
        texts,
        max_draft_len=work.max_draft_len,
        repeats=repeats,
        console=work.console,
        seed=work.settings.seed,
        sample=work.settings.sample,
    ).model


class PromptRun:
    """The run of a work, prompt by prompt: those its folder does not hold yet are decoded by every controller.

    Args:
        work: what runs.
        controllers: as built, in the order of its spellings.

    Raises:
        ConfigError: a kept prompt that cannot be read, or one whose decisions the controllers do not repeat.
    """

    def __init__(self, work: Work, controllers: Sequence[Controller]) -> None:
        self.work = work
        self._comparison = Comparison(work.session, list(zip(work.spellings, controllers, strict=True)), work.settings)
        kept = {request.number: request for request in work.folder.load()}
        # Controllers learn from prompt to prompt: whatever followed one that is gone is decoded again, too.
        self.first = next((number for number in range(len(work.prompts)) if number not in kept), len(work.prompts))
        self.requests = [kept[number] for number in range(self.first)]
        for request in self.requests:
            recall(self._comparison, request)

    def advance(self) -> str:
        """Decode the next prompt and keep it; says what was done."""
        work, number = self.work, len(self.requests)
        prompt, ids = work.prompts[number], work.encoded[number]
        warmup = self._comparison.warm_up(work.encoded[0]) if number == self.first else ()
        done = self._comparison.run(number, prompt.id, ids)
        seconds = sum(run.decoded.decode_s for run in done.runs)
        tokens = len(counted(done, PLAIN).decoded.output)
        self.requests.append(replace(done, runs=(*warmup, *done.runs)))
        work.folder.save(self.requests[-1])
        return f"{prompt.id}, {tokens} tokens, {len(work.spellings)} controllers in {seconds:.1f} s"


def run_prompts(work: Work, controllers: Sequence[Controller]) -> list[Request]:
    """Decode every prompt that the folder does not hold yet with every controller; all of them in order."""
    run = PromptRun(work, controllers)
    with Steps(work.console, "prompt", len(work.prompts), before=run.first) as steps:
        for _ in range(run.first, len(work.prompts)):
            steps.done(run.advance())
    return run.requests
