"""Runs of Weights & Biases: how they are opened, where their files go, and what they are closed as.

The only file of this package that imports wandb, and `real.tracking` opens its runs here: runs are offline unless more
is asked for (`mode`, or the variable WANDB_MODE), need no account, and note neither code nor the machine's load.
"""

from __future__ import annotations

import os
import secrets
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import wandb

from analysis.keys import AXES, PROJECT
from specsim.errors import ConfigError
from specsim.paths import temporary_beside

DISABLED, OFFLINE = "disabled", "offline"
MODES = ("online", OFFLINE, "shared", DISABLED)
AGENT = "WANDB_SWEEP_ID"
ROOM_BYTES = 16 << 20
ONLINE_TIMEOUT_S = 20.0  # wandb waits 90 s for a server that does not answer


@dataclass(frozen=True, kw_only=True)
class Tracking:
    """How to track.

    Args:
        mode: online, offline or disabled; None: what WANDB_MODE says, else offline, but online under a sweep's agent.
        project, entity, tags: as in `wandb.init`.

    Raises:
        ConfigError: an unknown mode.
    """

    mode: str | None = None
    project: str = PROJECT
    entity: str | None = None
    tags: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.mode is not None and self.mode not in MODES:
            raise ConfigError(f"tracking mode {self.mode!r}: allowed: {', '.join(MODES)}")

    @property
    def effective_mode(self) -> str:
        # A sweep's agent waits for what its runs report; whoever starts one wants them online.
        return self.mode or os.environ.get("WANDB_MODE") or ("online" if AGENT in os.environ else OFFLINE)


def wandb_folder(folder: Path) -> Path:
    """Where wandb's files go: `folder`, unless WANDB_DIR says otherwise."""
    return Path(os.environ.get("WANDB_DIR") or folder)


def check_folder(folder: Path) -> None:
    """Raise for a folder that wandb could not write: it would take a temporary one, or go on without a word.

    Raises:
        OSError: it cannot be made, or is full.
        ConfigError: it cannot be written.
    """
    place = folder / "wandb"
    place.mkdir(parents=True, exist_ok=True)
    temporary_beside(place / "writable").unlink()
    if shutil.disk_usage(place).free < ROOM_BYTES:
        raise OSError(f"{place}: less than {ROOM_BYTES >> 20} MiB are free")


def open_run(
    tracking: Tracking,
    folder: Path,
    *,
    group: str,
    job_type: str,
    name: str,
    config: Mapping[str, Any],
    id: str | None = None,
) -> wandb.Run:
    """A new run whose files lie in `folder/wandb`."""
    return wandb.init(
        id=id or secrets.token_hex(4),
        project=tracking.project,
        entity=tracking.entity,
        tags=tracking.tags,
        mode=tracking.effective_mode,  # pyright: ignore[reportArgumentType] - wandb checks it
        dir=str(folder),
        group=group,
        job_type=job_type,
        name=name,
        config=dict(config),
        reinit="create_new",
        # Provenance is in the config; measuring beside a comparison of times would disturb it.
        settings=wandb.Settings(
            console="off",
            silent=True,
            disable_git=True,
            save_code=False,
            x_disable_stats=True,
            init_timeout=ONLINE_TIMEOUT_S,
        ),
    )


@contextmanager
def closing(run: wandb.Run, *, failed: bool = False) -> Iterator[wandb.Run]:
    """The run, finished when the block ends; failed when it ends with an exception, an interruption among them.

    Args:
        run: an open one.
        failed: close it as failed in any case.
    """
    try:
        yield run
    except BaseException:
        with suppress(Exception):  # what failed is being said
            run.finish(exit_code=1)
        raise
    run.finish(exit_code=int(failed))


def define_axes(run: wandb.Run) -> None:
    """Give a controller's curves their x-axis, `analysis.keys.AXES`."""
    for name, axis in AXES.items():
        run.define_metric(name, step_metric=axis)


def log_table(run: wandb.Run, key: str, columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
    """Log a table under its key."""
    run.log({key: wandb.Table(columns=list(columns), data=[list(row) for row in rows])})


def log_files(run: wandb.Run, name: str, kind: str, paths: Sequence[Path]) -> None:
    """Keep files as an artifact of the run."""
    artifact = wandb.Artifact(name, type=kind)
    for path in paths:  # not add_dir: it writes to the terminal
        artifact.add_file(str(path))
    run.log_artifact(artifact)


def log_picture(run: wandb.Run, key: str, path: Path) -> None:
    """Log a picture under its key."""
    run.log({key: wandb.Image(str(path))})
