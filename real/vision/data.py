"""Questions about images and video frames: a JSONL file beside its pictures, or the second paper's four benchmarks.

Owns the lines of such files and the benchmarks' places on the hub. Videos are folders of frames: no video is decoded
here, so that the frames a run has seen can be looked at. Pictures are opened by `real.vision.pictures`.
"""

from __future__ import annotations

import difflib
import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from real.hub import HubDataset, hub_rows
from specsim.errors import ConfigError

FPS = 2.0
"""Frames per second of video that frames stand for where nothing else is said: what Qwen's processors sample."""
PICTURES = (".bmp", ".gif", ".jpeg", ".jpg", ".png", ".webp")


@dataclass(frozen=True, kw_only=True)
class Question:
    """One request.

    Args:
        id: in its dataset.
        question: what is asked, options included.
        images: files of images, in the order shown.
        frames: files of one video's frames, in order; not both.
        fps: frames per second of video that `frames` stand for.
    """

    id: str
    question: str
    images: tuple[Path, ...] = ()
    frames: tuple[Path, ...] = ()
    fps: float = FPS


@dataclass(frozen=True, kw_only=True)
class Benchmark:
    """Where a benchmark's questions are, and what their columns are called.

    Args:
        sets: hub datasets, one after the other.
        question, id, options: columns; options are listed below the question, one a line. None: there is none.
        video: column that names the video, and so the folder of its frames; None: text only.
        only: (column, value) of the rows that belong to it.
    """

    sets: tuple[HubDataset, ...]
    question: str = "question"
    id: str | None = None
    options: str | None = None
    video: str | None = None
    only: tuple[str, str] | None = None


BENCHMARKS: dict[str, Benchmark] = {
    "video-mme": Benchmark(
        sets=(HubDataset("lmms-lab/Video-MME", "videomme"),), id="question_id", options="options", video="videoID"
    ),
    "mmbench-video": Benchmark(sets=(HubDataset("opencompass/MMBench-Video"),), id="index", video="video"),
    "arkitscenes": Benchmark(
        sets=(HubDataset("nyu-visionx/VSI-Bench"),),
        id="id",
        options="options",
        video="scene_name",
        only=("dataset", "arkitscenes"),
    ),
    "aime25": Benchmark(
        sets=(
            HubDataset("opencompass/AIME2025", "AIME2025-I"),
            HubDataset("opencompass/AIME2025", "AIME2025-II"),
        )
    ),
}


def load_questions(dataset: str) -> list[Question]:
    """Every question of a dataset, in its order.

    Args:
        dataset: a JSONL file, or a folder with `questions.jsonl`, each line with `question` and at most one of `images`
            (list of files) and `frames` (list of files, or a folder, of which all pictures are taken by name),
            optionally `id` and `fps`; files are looked for from the JSONL file on. Or `video-mme`, `mmbench-video` or
            `arkitscenes`, each with `:frames=FOLDER`, which has a folder of frames for each video, or `aime25`, which
            is text.

    Raises:
        ConfigError: an unknown name, an unreadable file, or a line without a question or with pictures that are not
            there; file and line are named.
    """
    name, _, rest = dataset.partition(":")
    if name in BENCHMARKS:
        return list(_benchmark(dataset, BENCHMARKS[name], rest))
    path = Path(dataset)
    path = path / "questions.jsonl" if path.is_dir() else path
    if not path.is_file():
        close = difflib.get_close_matches(name, BENCHMARKS, n=1)
        hint = f"did you mean {close[0]!r}?" if close else f"use a JSONL file or {', '.join(BENCHMARKS)}"
        raise ConfigError(f"questions {dataset!r}: no such dataset, file or folder with questions.jsonl; {hint}")
    try:
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: cannot be read as UTF-8 text ({error})") from None
    # Not splitlines: JSON texts may hold separators of other kinds.
    lines = [(number, line) for number, line in enumerate(text.split("\n"), start=1) if line.strip()]
    if not lines:
        raise ConfigError(f"{path}: no questions; every line needs a JSON object with `question`")
    return [_question(_parsed(line, path, number), path.parent, f"{path}, line {number}") for number, line in lines]


def _parsed(line: str, path: Path, number: int) -> dict[str, Any]:
    try:
        entry = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{path}, line {number}: not JSON ({error}); allowed: one JSON object per line") from None
    if not isinstance(entry, dict):
        raise ConfigError(f"{path}, line {number}: a {type(entry).__name__}; allowed: a JSON object with `question`")
    return {"id": f"line-{number}", **entry}


def _question(entry: Mapping[str, Any], folder: Path, where: str) -> Question:
    asked, fps = entry.get("question"), entry.get("fps", FPS)
    if not isinstance(asked, str) or not asked.strip():
        raise ConfigError(f"{where}: question is {asked!r}; allowed: a text")
    if isinstance(fps, bool) or not isinstance(fps, int | float) or not (math.isfinite(fps) and fps > 0):
        raise ConfigError(f"{where}: fps is {fps!r}; allowed: a number above 0, frames per second of video")
    if "images" in entry and "frames" in entry:
        raise ConfigError(f"{where}: images and frames; allowed: one of them")
    frames = entry.get("frames")
    return Question(
        id=str(entry["id"]),
        question=asked,
        images=_files(entry["images"], folder, f"{where}: images") if "images" in entry else (),
        frames=_folder(folder / frames, f"{where}: frames")
        if isinstance(frames, str)
        else _files(frames, folder, f"{where}: frames")
        if "frames" in entry
        else (),
        fps=float(fps),
    )


def _files(names: Any, folder: Path, where: str) -> tuple[Path, ...]:
    if not isinstance(names, list) or not names or not all(isinstance(name, str) and name for name in names):
        raise ConfigError(f"{where} is {names!r}; allowed: a list of file names, at least one")
    found = tuple(folder / name for name in names)
    missing = [path for path in found if not path.is_file()]
    if missing:
        raise ConfigError(f"{where}: {missing[0]} is not there; names are looked for from the JSONL file on")
    return found


def _folder(folder: Path, where: str) -> tuple[Path, ...]:
    if not folder.is_dir():
        raise ConfigError(f"{where}: {folder} is no folder; put a video's frames there, named in their order")
    found = tuple(sorted(path for path in folder.iterdir() if path.suffix.lower() in PICTURES))
    if not found:
        raise ConfigError(f"{where}: {folder} has no pictures; allowed: files that end in {', '.join(PICTURES)}")
    return found


def _benchmark(dataset: str, source: Benchmark, rest: str) -> Iterator[Question]:
    key, _, value = rest.partition("=")
    if source.video is None and rest:
        raise ConfigError(f"questions {dataset!r}: these are text only; allowed: no options")
    if source.video is not None and (key != "frames" or not value):
        raise ConfigError(
            f"questions {dataset!r}: allowed: {dataset.partition(':')[0]}:frames=FOLDER, a folder that has one folder "
            f"of frames for each video, named as in the column {source.video}"
        )
    for part in source.sets:
        for number, row in enumerate(hub_rows(part)):
            if source.only is None or str(row.get(source.only[0])).lower() == source.only[1]:
                yield _asked(source, row, f"{part.name}, row {number}", f"{part.config or 'row'}-{number}", value)


def _asked(source: Benchmark, row: Mapping[str, Any], where: str, default_id: str, frames: str) -> Question:
    missing = [name for name in (source.question, source.video) if name is not None and name not in row]
    if missing:
        raise ConfigError(f"{where}: no column {missing[0]}, only {', '.join(row)}; the dataset has changed")
    options = row.get(source.options) if source.options else None
    listed = options.values() if isinstance(options, dict) else options or []
    return Question(
        id=str(row.get(source.id, default_id) if source.id else default_id),
        question="\n".join([str(row[source.question]), *map(str, listed)]),
        frames=() if source.video is None else _folder(Path(frames) / str(row[source.video]), where),
    )
