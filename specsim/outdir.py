"""The `--out DIR` folder of a replay: all of it or none of it."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from numpy.typing import NDArray

from specsim.engine import RoundSink
from specsim.errors import ConfigError
from specsim.provenance import provenance
from specsim.report import SCHEMA, to_json
from specsim.roundlog import RoundLogWriter

RESULTS, ROUNDS, CONFIG, PROVENANCE = "results.json", "rounds.parquet", "config.json", "provenance.json"


class OutDir:
    """Collects files in a hidden sibling folder and moves it into place in one step when the replay is complete.

    Args:
        path: the folder to make.
        force: replace a finished one; files in it that a replay did not write are kept.

    Attributes:
        path: the folder with links resolved.

    Raises:
        ConfigError: a finished folder without `force`, a file, or a folder that holds something else.
    """

    def __init__(self, path: Path, *, force: bool) -> None:
        self._shown, self._force = path, force
        with self._reporting():
            self.path = Path(os.path.realpath(path))  # a link cannot be replaced, what it means can
        self._check_free()
        self._staging: Path | None = None
        self._made: list[Path] = []
        self._writer: RoundLogWriter | None = None

    def __enter__(self) -> Self:
        parent = self.path.parent
        self._made = [folder for folder in (parent, *parent.parents) if not os.path.lexists(folder)]
        try:
            parent.mkdir(parents=True, exist_ok=True)
            self._staging = Path(tempfile.mkdtemp(prefix=f".{self.path.name}.", suffix=".partial", dir=parent))
        except OSError as error:
            self._remove_made()
            raise self._refusal(f"cannot be made ({error.strerror}); choose a folder you can write to") from error
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._writer is not None:
            with suppress(OSError):  # of a full disk, say: the error under way tells more
                self._writer.abort()
        if self._staging is not None:
            shutil.rmtree(self._staging, ignore_errors=True)
            self._remove_made()

    def round_log(self, trace: Path, controllers: Sequence[str]) -> RoundSink:
        """A sink that appends the rounds of `trace`."""
        assert self._staging is not None
        if self._writer is None:
            with self._reporting():
                self._writer = RoundLogWriter(self._staging / ROUNDS, {"source": "specsim.replay"})
        writer = self._writer
        ids = run_ids_of(trace, controllers)

        def write(index: int, columns: dict[str, NDArray[Any]]) -> None:
            constant = {"run_id": ids[index], "lane": 0, "warmup": False, "ctx_len": None}
            with self._reporting():
                writer.write({**constant, **columns})

        return write

    def finish(self, result: dict[str, Any], config: dict[str, Any]) -> None:
        """Write the documents, close the round log and move the folder into place.

        Raises:
            ConfigError: the folder cannot be written, or became somebody else's meanwhile.
        """
        assert self._staging is not None
        documents = {RESULTS: to_json(result), CONFIG: _dump(config), PROVENANCE: _dump(provenance())}
        with self._reporting():
            if self._writer is not None:
                self._writer.close()
                self._writer = None
            for name, text in documents.items():
                (self._staging / name).write_text(text, encoding="utf-8")
            self._staging.chmod(0o777 & ~_umask())
            self._check_free()  # another replay may have finished here meanwhile
            self._move(self._staging)
        self._staging = None

    def _move(self, staging: Path) -> None:
        old = staging.with_suffix(".old")
        try:
            if self.path.exists():
                os.replace(self.path, old)
            os.replace(staging, self.path)
        finally:
            # Also when interrupted in between: never without the one or the other.
            if old.exists() and not self.path.exists():
                os.replace(old, self.path)
            elif old.exists():
                for kept in _foreign(old):
                    os.replace(kept, self.path / kept.name)
                shutil.rmtree(old, ignore_errors=True)

    def _check_free(self) -> None:
        with self._reporting():
            if not self.path.exists():
                return
            if not self.path.is_dir():
                raise self._refusal("is a file; name a folder that does not exist yet")
            if Path.cwd().is_relative_to(self.path):
                raise self._refusal("is the folder you are in, which cannot be replaced; name a folder inside it")
            finished, empty = _is_finished(self.path), not any(self.path.iterdir())
        if finished and not self._force:
            raise self._refusal("holds a finished replay; choose another folder or add --force to replace it")
        if not finished and not empty:
            raise self._refusal(
                "is not empty and holds no finished replay, so it is not replaced; choose another folder"
            )

    @contextmanager
    def _reporting(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            reason = error.strerror or error
            raise self._refusal(f"cannot be used ({reason}); choose a folder you can write to") from error

    def _refusal(self, text: str) -> ConfigError:
        return ConfigError(f"--out {self._shown}: {text}")

    def _remove_made(self) -> None:
        for folder in self._made:
            with suppress(OSError):  # never made, or in use by somebody else by now
                folder.rmdir()


def run_ids_of(trace: str | Path, controllers: Sequence[str]) -> list[str]:
    """run_id of each controller in the round log: "trace#controller"; a spelling given again gets "#2", "#3" and so on
    after it."""
    repeats = [controllers[: i + 1].count(text) for i, text in enumerate(controllers)]
    return [f"{trace}#{c}" + (f"#{n}" if n > 1 else "") for c, n in zip(controllers, repeats, strict=True)]


def _is_finished(folder: Path) -> bool:
    """Whether the folder holds the results of a replay; "results.json" alone is a common name."""
    try:
        document = json.loads((folder / RESULTS).read_text(encoding="utf-8"))
    except (FileNotFoundError, IsADirectoryError, ValueError):
        return False
    return isinstance(document, dict) and document.get("schema") == SCHEMA


def _foreign(folder: Path) -> list[Path]:
    """Entries that no replay wrote."""
    return [entry for entry in folder.iterdir() if entry.name not in (RESULTS, ROUNDS, CONFIG, PROVENANCE)]


def _umask() -> int:
    current = os.umask(0)
    os.umask(current)
    return current


def _dump(value: dict[str, Any]) -> str:
    return json.dumps(value, indent=1, allow_nan=False) + "\n"
