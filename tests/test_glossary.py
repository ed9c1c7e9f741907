"""The glossary's names are the files' names, and other words for the same numbers stand nowhere else."""

from __future__ import annotations

import re

import numpy as np
import pytest

from specsim.metrics import Totals
from specsim.schema import ROUND_LOG_SCHEMA
from tests.readme import ROOT, pages

GLOSSARY = (ROOT / "docs" / "glossary.md").read_text(encoding="utf-8")
TERMS = re.findall(r"^### (.+)$", GLOSSARY, re.MULTILINE)
ELSEWHERE = (  # words of other projects, by what they are called here
    "speed-up",
    "acceptance length",
    "acceptance ratio",
    "accept length",
    "speculative length",
    "speculation length",
    "lookahead",
    "look-ahead",
    "hit rate",
    "block efficiency",
    "vanilla decoding",
    "baseline decoding",
    "wall-clock regret",
    "superarm",
)


def test_names_are_columns_or_keys() -> None:
    totals = Totals(rounds=1, time_s=[np.ones(1)], plain_s=[np.ones(1)])
    known = {*ROUND_LOG_SCHEMA.names, *totals.summary([None, None], None, None)}
    named = {name for term in TERMS for name in re.findall(r"`(\w+)`", term)}
    assert len(named) >= 6
    assert named <= known


def test_every_term_of_the_design_is_explained() -> None:
    text = " ".join(TERMS).lower()
    words = ("draft length", "survival", "hazard", "speedup", "throughput", "arm", "leader", "oracle", "regret", "tau")
    for word in (*words, "best static length", "acceptance rate", "plain decoding", "warm-up", "shadow replay"):
        assert word in text, word
    assert len(TERMS) == len(set(TERMS))


@pytest.mark.parametrize("word", ELSEWHERE)
def test_other_words_stand_nowhere_else(word: str) -> None:
    for page in pages():
        if page.name != "glossary.md":
            assert word not in page.read_text(encoding="utf-8").lower(), f"{page.name} says {word!r}; see the glossary"
