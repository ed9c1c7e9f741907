"""Files on the command line and files on disk: resolving arguments, and replacing a file in one step.

Owns the messages for paths that cannot be read. Knows nothing about what is inside.
"""

from __future__ import annotations

import contextlib
import glob
import os
import secrets
from collections.abc import Iterable, Iterator
from pathlib import Path

from specsim.errors import ConfigError, TraceError

_PATTERN_CHARS = frozenset("*?[")


def expand_paths(args: Iterable[str | Path]) -> list[Path]:
    """Resolve the file arguments of a command.

    A pattern that the shell passed on unexpanded is expanded here; a file named twice is kept once, at its first place.

    Args:
        args: file names as typed.

    Raises:
        TraceError: no argument at all, a file that does not exist, a directory, or a pattern without a match.
    """
    paths: list[Path] = []
    for arg in args:
        text = str(arg)
        if _PATTERN_CHARS & set(text) and not Path(text).exists():
            found = sorted(glob.glob(text))  # not Path.glob: that needs the fixed and the variable part apart
            if not found:
                raise missing_file(text)
            paths.extend(Path(name) for name in found)
        else:
            paths.append(Path(text))
    if not paths:
        raise TraceError("<arguments>", "no file was named", allowed="one or more trace files", advice="Name a file")
    for path in paths:
        check_readable(path)
    first: dict[Path, Path] = {}
    for path in paths:
        first.setdefault(path.resolve(), path)
    return list(first.values())


def check_readable(path: str | Path) -> None:
    """Raise a TraceError unless the path is an existing, non-empty, readable regular file."""
    path = Path(path)
    if path.is_dir():
        raise TraceError(path, "this is a directory", allowed="a file", advice=f"Name files: {path}/*.parquet")
    if not path.exists():
        raise missing_file(path)
    try:
        size = path.stat().st_size
        with path.open("rb"):
            pass
    except OSError as error:
        raise TraceError(path, f"the file cannot be read ({error.strerror})", advice="Check its permissions") from error
    if size == 0 and path.is_file():
        raise TraceError(path, "the file is empty (0 bytes)", allowed="a parquet file", advice="Record it again")


def missing_file(path: str | Path) -> TraceError:
    """The TraceError for a path that does not exist; an unexpanded shell pattern gets its own advice."""
    if _PATTERN_CHARS & set(str(path)):
        return TraceError(
            path,
            "the pattern matches no file",
            allowed="a pattern that matches at least one file",
            advice="Check folder and extension; `python -m specsim.synth iid demo.parquet` makes a trace to try",
        )
    return TraceError(path, "the file does not exist", allowed="an existing file", advice="Check the path for typos")


@contextlib.contextmanager
def replace_file(path: str | Path) -> Iterator[Path]:
    """Yield a temporary path in the same folder; it takes the place of `path` when the block ends without an exception.

    A reader therefore never sees half a file, and an interrupted writer leaves nothing behind.

    Raises:
        ConfigError: the folder does not exist or cannot be written, `path` is a directory, or writing fails.
    """
    temporary = temporary_beside(path)
    try:
        yield temporary
        commit_file(temporary, path)
    except OSError as error:
        raise ConfigError(f"{path}: writing failed ({error}); free some space or choose another place") from error
    finally:
        temporary.unlink(missing_ok=True)


def temporary_beside(path: str | Path) -> Path:
    """A new empty file in the folder of `path`, for `commit_file`.

    Raises:
        ConfigError: the folder does not exist or cannot be written, or `path` is a directory, a device or a pipe.
    """
    path = Path(path)
    if path.is_dir():
        raise ConfigError(f"{path}: the output is a directory; name a file inside it")
    if path.exists() and not path.is_file():  # renaming a file over /dev/null would take it away from everybody
        raise ConfigError(f"{path}: the output is a device or a pipe, not a file; name a file")
    # Not tempfile: its files are private to the user (mode 0600) and would stay so after the rename.
    temporary = path.parent / f".{path.name}.{os.getpid()}.{secrets.token_hex(4)}.tmp"
    try:
        temporary.touch(exist_ok=False)
    except FileNotFoundError as error:
        raise ConfigError(f"{path}: the folder {path.parent} does not exist; create it first") from error
    except OSError as error:
        raise ConfigError(f"{path}: cannot be written ({error.strerror}); choose another place") from error
    return temporary


def commit_file(temporary: Path, path: str | Path) -> None:
    """Make the temporary file durable and give it its final name."""
    with temporary.open("rb+") as handle:
        os.fsync(handle.fileno())
    os.replace(temporary, path)
    folder = os.open(Path(path).parent, os.O_RDONLY)
    try:
        os.fsync(folder)  # otherwise the new name may be lost in a crash although the contents are not
    finally:
        os.close(folder)
