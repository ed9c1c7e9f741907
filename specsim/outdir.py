"""The `--out DIR` folder of a replay: all of it or none of it."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from numpy.typing import NDArray

from specsim.engine import RoundSink
from specsim.errors import ConfigError
from specsim.provenance import provenance
from specsim.report import to_json
from specsim.roundlog import RoundLogWriter

RESULTS = "results.json"


class OutDir:
    """Collects files in a hidden sibling folder and moves it into place in one step when the replay is complete.

    Args:
        path: the folder to make.
        force: replace a finished one.

    Raises:
        ConfigError: a finished folder without `force`, a file, or a folder that holds something else.
    """

    def __init__(self, path: Path, *, force: bool) -> None:
        self.path = path
        _check_free(path, force=force)
        self._staging: Path | None = None
        self._writer: RoundLogWriter | None = None

    def __enter__(self) -> Self:
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._staging = Path(tempfile.mkdtemp(prefix=f".{self.path.name}.", suffix=".partial", dir=self.path.parent))
        except OSError as error:
            raise ConfigError(f"--out {self.path}: cannot be made ({error.strerror}); choose a folder you can write to") from error
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._writer is not None:
            self._writer.abort()
        if self._staging is not None:
            shutil.rmtree(self._staging, ignore_errors=True)

    def round_log(self, trace: Path, controllers: Sequence[str]) -> RoundSink:
        """A sink that appends the rounds of `trace`; run_id is "trace#controller"."""
        assert self._staging is not None
        if self._writer is None:
            self._writer = RoundLogWriter(self._staging / "rounds.parquet", {"source": "specsim.replay"})
        writer = self._writer

        def write(index: int, columns: dict[str, NDArray[Any]]) -> None:
            constant = {"run_id": f"{trace}#{controllers[index]}", "lane": 0, "warmup": False, "ctx_len": None}
            writer.write({**constant, **columns})

        return write

    def finish(self, result: dict[str, Any], config: dict[str, Any]) -> None:
        """Write the documents, close the round log and move the folder into place."""
        assert self._staging is not None
        if self._writer is not None:
            self._writer.close()
            self._writer = None
        documents = {RESULTS: to_json(result), "config.json": _dump(config), "provenance.json": _dump(provenance())}
        for name, text in documents.items():
            (self._staging / name).write_text(text, encoding="utf-8")
        self._staging.chmod(0o777 & ~_umask())
        old = None
        if self.path.exists():
            old = Path(tempfile.mkdtemp(prefix=f".{self.path.name}.", suffix=".old", dir=self.path.parent))
            os.replace(self.path, old)
        os.replace(self._staging, self.path)
        self._staging = None
        if old is not None:
            shutil.rmtree(old, ignore_errors=True)


def _check_free(path: Path, *, force: bool) -> None:
    if not path.exists():
        return
    if not path.is_dir():
        raise ConfigError(f"--out {path}: is a file; name a folder that does not exist yet")
    finished = (path / RESULTS).is_file()
    if finished and not force:
        raise ConfigError(f"--out {path}: holds a finished replay; choose another folder or add --force to replace it")
    if not finished and any(path.iterdir()):
        raise ConfigError(f"--out {path}: is not empty and holds no {RESULTS}, so it is not replaced; choose another folder")


def _umask() -> int:
    current = os.umask(0)
    os.umask(current)
    return current


def _dump(value: dict[str, Any]) -> str:
    return json.dumps(value, indent=1, allow_nan=False) + "\n"
