"""Pictures of prompts, as datasets name them: files beside a JSONL file, or the second paper's four benchmarks.

Owns the keys of such lines and the benchmarks' places on the hub; the lines' texts are `real.data`'s matter. Videos are
folders of frames: no video is decoded here, so that the frames a run has seen can be looked at. Pictures are opened by
`real.vision.pictures`.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from real.hub import HubDataset, hub_rows
from specsim.errors import ConfigError

FPS = 2.0
"""Frames per second of video that frames stand for where nothing else is said: what Qwen's processors sample."""
QUESTIONS = "questions.jsonl"  # looked for in a folder that is named as a dataset
PICTURES = (".bmp", ".gif", ".jpeg", ".jpg", ".png", ".webp")


@dataclass(frozen=True, kw_only=True)
class PictureFiles:
    """What a prompt shows: images, or one video.

    Args:
        images: files of images, in the order shown.
        frames: files of one video's frames, in order; not both.
        fps: frames per second of video that `frames` stand for.
    """

    images: tuple[Path, ...] = ()
    frames: tuple[Path, ...] = ()
    fps: float = FPS

    def digest(self) -> str:
        """sha256 of what the files hold, in their order, and of the rate; names do not matter.

        Raises:
            ConfigError: a file that cannot be read.
        """
        found = hashlib.sha256(repr((len(self.images), len(self.frames), self.fps)).encode())
        for path in (*self.images, *self.frames):
            try:
                with path.open("rb") as file:
                    found.update(hashlib.file_digest(file, "sha256").digest())
            except OSError as error:
                raise ConfigError(f"{path}: cannot be read ({error.strerror}); put it back or leave it out") from None
        return found.hexdigest()


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


def pictures_of(entry: Mapping[str, Any], folder: Path, where: str) -> PictureFiles | None:
    """The pictures of a line of a dataset: `images` (a list of files) or `frames` (a list of files, or a folder, of
    which all pictures are taken by name) with `fps`; None where it has neither.

    Args:
        entry: the line's keys and values; other keys are ignored.
        folder: names are looked for from here on.
        where: file and line, for messages.

    Raises:
        ConfigError: both, values of other kinds, or files that are not there.
    """
    if "images" not in entry and "frames" not in entry:
        return None
    if "images" in entry and "frames" in entry:
        raise ConfigError(f"{where}: images and frames; allowed: one of them")
    if "images" in entry:
        return PictureFiles(images=_files(entry["images"], folder, f"{where}: images"))
    frames, fps = entry["frames"], entry.get("fps", FPS)
    if isinstance(fps, bool) or not isinstance(fps, int | float) or not (math.isfinite(fps) and fps > 0):
        raise ConfigError(f"{where}: fps is {fps!r}; allowed: a number above 0, frames per second of video")
    named = f"{where}: frames"
    found = _folder(folder / frames, named) if isinstance(frames, str) else _files(frames, folder, named)
    return PictureFiles(frames=found, fps=float(fps))


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


def benchmark_questions(dataset: str) -> Iterator[tuple[str, str, PictureFiles | None]]:
    """(id, text, frames) of every question of a benchmark, in its order.

    Args:
        dataset: `video-mme`, `mmbench-video` or `arkitscenes`, each with `:frames=FOLDER`, which has a folder of frames
            for each video, or `aime25`, which is text.

    Raises:
        ConfigError: frames not named or not there, or columns that are not.
    """
    name, _, rest = dataset.partition(":")
    source, (key, _, frames) = BENCHMARKS[name], rest.partition("=")
    if source.video is None and rest:
        raise ConfigError(f"dataset {dataset!r}: these are text only; allowed: no options")
    if source.video is not None and (key != "frames" or not frames):
        raise ConfigError(
            f"dataset {dataset!r}: allowed: {name}:frames=FOLDER, a folder that has one folder of frames for each "
            f"video, named as in the column {source.video}"
        )
    for part in source.sets:
        for number, row in enumerate(hub_rows(part)):
            if source.only is None or str(row.get(source.only[0])).lower() == source.only[1]:
                yield _asked(source, row, f"{part.name}, row {number}", f"{part.config or 'row'}-{number}", frames)


def _asked(
    source: Benchmark, row: Mapping[str, Any], where: str, default_id: str, frames: str
) -> tuple[str, str, PictureFiles | None]:
    missing = [name for name in (source.question, source.video) if name is not None and name not in row]
    if missing:
        raise ConfigError(f"{where}: no column {missing[0]}, only {', '.join(row)}; the dataset has changed")
    options = row.get(source.options) if source.options else None
    listed = options.values() if isinstance(options, dict) else options or []
    text = "\n".join([str(row[source.question]), *map(str, listed)])
    video = None if source.video is None else _folder(Path(frames) / str(row[source.video]), where)
    shown = None if video is None else PictureFiles(frames=video)
    return str(row.get(source.id, default_id) if source.id else default_id), text, shown
