"""The Python standard library's sources as a corpus: text that every installation has.

Owns which files belong to it and which of them are held out. A file is held out by the hash of its name, not by chance
or by order, so that another Python version, with some files more or fewer, holds out the same names.
"""

from __future__ import annotations

import hashlib
import sysconfig
from dataclasses import dataclass
from pathlib import Path

from specsim.errors import ConfigError

# Tests; tables and generated texts, which are no program text; third-party or removed parts; one machine's settings.
LEFT_OUT = frozenset(
    [
        *("test", "tests", "idle_test", "idlelib", "lib2to3", "turtledemo", "distutils", "ensurepip"),
        *("site-packages", "dist-packages", "encodings", "pydoc_data", "__phello__", "__pycache__"),
    ]
)
LEFT_OUT_PREFIXES = ("_sysconfigdata", "config-")
HELD_OUT_BYTES = 16  # of 256 values of the hash's first byte: one file in sixteen


@dataclass(frozen=True)
class Document:
    """One file: its name (relative path with slashes) and its text."""

    name: str
    text: str

    @property
    def held_out(self) -> bool:
        return is_held_out(self.name)


def is_held_out(name: str) -> bool:
    """Whether a file of this name is kept from training."""
    return hashlib.sha256(name.encode()).digest()[0] < HELD_OUT_BYTES


def stdlib_documents(root: Path | None = None) -> list[Document]:
    """Every file of the corpus, by name.

    Args:
        root: the library's folder; default: the running interpreter's.

    Raises:
        ConfigError: no sources there (some installations keep only compiled files).
    """
    root = root or Path(sysconfig.get_path("stdlib"))
    documents = []
    for path in sorted(root.rglob("*.py")):
        relative = path.relative_to(root)
        if not any(part in LEFT_OUT or part.startswith(LEFT_OUT_PREFIXES) for part in relative.parts):
            text = path.read_text(encoding="utf-8", errors="replace")
            if text.strip():
                documents.append(Document(relative.as_posix(), text))
    if not any(document.held_out for document in documents) or all(document.held_out for document in documents):
        raise ConfigError(
            f"{root}: holds no Python sources to train on ({len(documents)} files); use a Python that comes with the "
            "sources of its standard library"
        )
    return documents
