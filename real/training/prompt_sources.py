"""Beginnings for texts that a target writes itself: spans of the standard library, or instructions made from it.

No benchmark's prompts are used, so that every benchmark stays held out. Beginnings for checking come from held-out
files (`real.training.corpus`).
"""

from __future__ import annotations

import ast
from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np

from real.data import HUMANEVAL_INSTRUCTION, Prompt, encode, prompt_format
from real.training.corpus import Document
from specsim.errors import ConfigError

INSTRUCTIONS = (
    HUMANEVAL_INSTRUCTION,
    "Explain what this Python function does.\n\n```python\n{}\n```",
    "Write a short test for this Python function.\n\n```python\n{}\n```",
    "Rewrite this Python function in a clearer way.\n\n```python\n{}\n```",
)
SOURCES = ("auto", "spans", "instructions")


class PromptSource(Protocol):
    """Draws beginnings."""

    def draw(self, rng: np.random.Generator, place: float) -> list[int]:
        """Token ids of one beginning; `place` in [0, 1) sets its length between the shortest and the longest."""
        ...


def prompt_source(name: str, tokenizer: Any, documents: Sequence[Document], low: int, high: int) -> PromptSource:
    """A source of beginnings.

    Args:
        name: `spans` of text, `instructions` about functions in it, or `auto`: instructions for a tokenizer with a chat
            template.
        tokenizer: the target's.
        documents: to take them from.
        low, high: tokens of a beginning; instructions may not be longer than `high`.

    Raises:
        ConfigError: an unknown name, or no document that yields one.
    """
    if name not in SOURCES:
        raise ConfigError(f"prompt source {name!r}: allowed: {', '.join(SOURCES)}")
    if not 1 <= low <= high:
        raise ConfigError(f"prompts of {low} to {high} tokens: allowed: 1 or more, the first not above the second")
    if name == "auto":
        name = "instructions" if prompt_format(tokenizer) == "chat-template" else "spans"
    if name == "spans":
        return Spans(tokenizer, documents, low, high)
    return Instructions(tokenizer, documents, high)


class Spans:
    """Pieces of the documents, from a random place on; long documents are met more often."""

    def __init__(self, tokenizer: Any, documents: Sequence[Document], low: int, high: int) -> None:
        ids = tokenizer([document.text for document in documents], verbose=False)["input_ids"]
        self._texts = [np.array(one) for one in ids if len(one) > high]
        if not self._texts:
            raise ConfigError(f"no text is longer than {high} tokens; use shorter prompts")
        lengths = np.array([len(text) - high for text in self._texts], dtype=np.float64)
        self._weights, self._low, self._high = lengths / lengths.sum(), low, high

    def draw(self, rng: np.random.Generator, place: float) -> list[int]:
        text = self._texts[rng.choice(len(self._texts), p=self._weights)]
        start = int(rng.integers(len(text) - self._high + 1))
        return text[start : start + self._low + int(place * (self._high + 1 - self._low))].tolist()


class Instructions:
    """Requests about functions of the documents, as a user's turn of a chat, as long as they happen to be."""

    def __init__(self, tokenizer: Any, documents: Sequence[Document], high: int) -> None:
        self._tokenizer, self._high = tokenizer, high
        self._functions = [pair for document in documents for pair in functions_of(document.text)]
        if not self._functions:
            raise ConfigError("no function with a docstring in the documents; use --prompts spans")

    def draw(self, rng: np.random.Generator, place: float) -> list[int]:
        for _ in range(1000):
            head, whole = self._functions[int(rng.integers(len(self._functions)))]
            kind = int(rng.integers(len(INSTRUCTIONS)))
            text = INSTRUCTIONS[kind].format(head if kind == 0 else whole)
            ids = encode(self._tokenizer, Prompt("instruction", text)).tolist()
            if len(ids) <= self._high:
                return ids
        raise ConfigError(f"hardly any instruction fits in {self._high} tokens; allow longer prompts")


def functions_of(source: str) -> list[tuple[str, str]]:
    """(signature with docstring, whole text) of every function with a docstring, without its indentation."""
    try:
        tree = ast.parse(source)
    except SyntaxError:
        return []
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef) and ast.get_docstring(node) and len(node.body) > 1:
            whole = ast.unparse(node)
            node.body, node.decorator_list = node.body[:1], []
            found.append((ast.unparse(node), whole))
    return found
