"""What a user names as a folder or hub id, and what libraries make of the files in it.

Owns the look at a name before any library sees it, and the way from a library's complaint to a one-line ConfigError.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterator
from pathlib import Path

from specsim.errors import ConfigError

_HUB_ID = re.compile(r"\w[\w.-]*(/\w[\w.-]*)?", re.ASCII)


def local_folder(name: str, what: str) -> Path | None:
    """The folder of a name, or None where there is nothing of that name, so that it can only be a hub id.

    Args:
        name: as the user spelled it.
        what: whose it is, for messages.

    Raises:
        ConfigError: a file, a folder that cannot be read, or a name that no folder or hub id can have.
    """
    if not name.isprintable() or not name.strip():
        raise ConfigError(f"{what} {name!r}: allowed: a folder or a hub id, in printable characters")
    path = Path(name)
    try:
        os.stat(path)
        if path.is_dir():
            os.scandir(path).close()
            return path
    except FileNotFoundError:
        return None
    except OSError as error:
        raise ConfigError(f"{what} {name!r}: cannot be read ({error.strerror}); name a folder or a hub id") from error
    raise ConfigError(f"{what} {name!r}: is a file; name the folder that holds it")


def check_checkpoint(name: str, what: str) -> None:
    """Refuse what is no checkpoint as far as can be told without loading it or asking the hub.

    Args:
        name, what: as for `local_folder`.

    Raises:
        ConfigError: as from `local_folder`, a folder without a config.json, or no folder where no hub id is spelled so.
    """
    folder = local_folder(name, what)
    if folder is None and not _HUB_ID.fullmatch(name):
        raise ConfigError(f"{what} {name!r}: there is no such folder; name one that is there, or a hub id (OWNER/NAME)")
    if folder is not None and not (folder / "config.json").is_file():
        raise ConfigError(f"{what} {name!r}: there is no config.json in it; name the folder of a checkpoint")


def reason_of(error: BaseException) -> str:
    """The first line of what an exception says, or its kind where it says nothing."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0]


@contextlib.contextmanager
def complaints(what: str, advice: str) -> Iterator[None]:
    """Turn whatever a library raises over a user's files into a ConfigError of one line.

    Args:
        what: was being done, the beginning of the message.
        advice: what to do about it, its end.
    """
    try:
        yield
    except ConfigError:
        raise
    except Exception as error:
        # Files of any content get here, and libraries check little of it: tokenizers even raise plain Exceptions.
        raise ConfigError(f"{what}: {reason_of(error)}; {advice}") from error
