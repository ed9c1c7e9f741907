"""The folder beside an output in which a recording keeps its finished requests, so that it can be continued.

Owns that folder: its configuration file and one file per request, each written atomically. Knows nothing about models.
"""

from __future__ import annotations

import json
import shutil
from dataclasses import fields
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np

from real.record import RequestRows
from specsim.errors import ConfigError
from specsim.paths import replace_file

CONFIG = "config.json"


class WorkDir:
    """`OUT.work/`: the configuration of one recording and its finished requests.

    Args:
        out: the trace file the recording is for.
        config: JSON values that decide the recorded rows.
        restart: throw away what an earlier recording left.

    Raises:
        ConfigError: the folder belongs to a recording with another configuration, or cannot be made.
    """

    def __init__(self, out: Path, config: dict[str, Any], *, restart: bool = False) -> None:
        self.path = out.with_name(out.name + ".work")
        if restart:
            self.remove()
        try:
            self.path.mkdir(exist_ok=True)
            self._check_config(config)
        except OSError as error:
            raise ConfigError(f"{self.path}: cannot be used ({error.strerror}); choose another --out") from error

    def _check_config(self, config: dict[str, Any]) -> None:
        file = self.path / CONFIG
        wanted = json.loads(json.dumps(config))
        if not file.exists():
            with replace_file(file) as temporary:
                temporary.write_text(json.dumps(wanted, indent=1), encoding="utf-8")
            return
        try:
            found = json.loads(file.read_text(encoding="utf-8"))
            if not isinstance(found, dict):
                raise ValueError("not an object")
        except ValueError as error:
            raise ConfigError(f"{file}: not JSON ({error}); add --restart to record again from the start") from None
        different = sorted(key for key in {*wanted, *found} if wanted.get(key) != found.get(key))
        if different:
            key = different[0]
            raise ConfigError(
                f"{self.path} holds an interrupted recording with other settings ({', '.join(different)}; {key} was "
                f"{found.get(key)!r}, now {wanted.get(key)!r}); repeat its command to continue it, choose another "
                "--out, or add --restart to throw it away"
            )

    def load(self, request: int) -> RequestRows | None:
        """Rows of a finished request, or None."""
        file = self._file(request)
        if not file.exists():
            return None
        try:
            # np.load by itself leaves a damaged file open.
            with file.open("rb") as stream, np.load(stream, allow_pickle=False) as stored:
                return RequestRows(**{field.name: _value(stored[field.name]) for field in fields(RequestRows)})
        except (ValueError, KeyError, OSError, EOFError, NotImplementedError, BadZipFile) as error:
            raise ConfigError(
                f"{file}: cannot be read ({error}); delete it, and the request is recorded again"
            ) from error

    def save(self, request: int, rows: RequestRows) -> None:
        """Keep the rows of a finished request."""
        with replace_file(self._file(request)) as temporary, temporary.open("wb") as file:
            arrays: dict[str, Any] = {field.name: getattr(rows, field.name) for field in fields(rows)}
            np.savez(file, **arrays)

    def remove(self) -> None:
        """Delete the folder and everything in it."""
        shutil.rmtree(self.path, ignore_errors=True)

    def _file(self, request: int) -> Path:
        return self.path / f"request-{request:05d}.npz"


def _value(array: np.ndarray) -> Any:
    return int(array) if array.ndim == 0 else array
