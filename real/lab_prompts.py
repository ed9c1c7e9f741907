"""The lab pair's prompts: beginnings of held-out files of the standard library, 64 to 96 tokens each.

Owns where a prompt begins and how long it is. Texts of the same Python version give the same prompts; no file that they
come from was trained on (`real.training.corpus`).
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from functools import cache
from typing import Any

from real.training.corpus import Document, stdlib_documents
from specsim.errors import ConfigError

SHORTEST, LONGEST = 64, 96
SPACING = 3000  # characters from one beginning in a file to the next, at least
PER_FILE = 4


def lab_prompts() -> list[tuple[str, str]]:
    """(name, text) of every prompt, by file.

    Raises:
        ConfigError: the lab pair's tokenizer or the library's sources are missing.
    """
    documents = [document for document in stdlib_documents() if document.held_out]
    found = [prompt for document in documents for prompt in prompts_of(document, _tokenizer())]
    if not found:
        raise ConfigError(f"dataset 'lab': no held-out file of the standard library is {LONGEST} tokens long")
    return found


def prompts_of(document: Document, tokenizer: Any) -> Iterator[tuple[str, str]]:
    """(name, text) of a document's prompts: `name:line` and its first tokens from there on, as text.

    A prompt is as long as the hash of its name says, or the next shorter length (after the shortest: the longest) whose
    text comes apart into the same tokens; places where none does are left out.
    """
    for start in beginnings(document.text):
        name = f"{document.name}:{document.text.count(chr(10), 0, start) + 1}"
        # Enough text for the longest prompt: a token is a character at least.
        ids = tokenizer(document.text[start : start + 40 * LONGEST], verbose=False)["input_ids"]
        if len(ids) <= LONGEST:
            continue
        first = int.from_bytes(hashlib.sha256(name.encode()).digest()[:4], "big") % (LONGEST + 1 - SHORTEST)
        for less in range(LONGEST + 1 - SHORTEST):
            length = SHORTEST + (first - less) % (LONGEST + 1 - SHORTEST)
            text = tokenizer.decode(ids[:length])
            if list(tokenizer(text)["input_ids"]) == list(ids[:length]):
                yield name, text
                break


def beginnings(text: str) -> Sequence[int]:
    """Where prompts of a file begin: at 0, then at lines that are not indented, `SPACING` characters apart."""
    found = [0]
    for line in _lines(text):
        if len(found) == PER_FILE:
            break
        if line - found[-1] >= SPACING and text[line : line + 1].strip():
            found.append(line)
    return found


def _lines(text: str) -> Iterator[int]:
    at = 0
    for line in text.split("\n"):
        yield at
        at += len(line) + 1


@cache
def _tokenizer() -> Any:
    from real.models import load_tokenizer

    return load_tokenizer("lab")
