"""Prompts of the paper's experiments: beginnings of held-out files, and the thinking switch of chat templates."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest

pytest.importorskip("torch", reason="real/ needs the extra 'real'")

from real import lab_prompts
from real.data import Prompt, encode, load_prompts
from real.lab_prompts import LONGEST, SHORTEST, beginnings, prompts_of
from real.training.corpus import Document, stdlib_documents
from real.training.tokenizer import train_tokenizer
from specsim.errors import ConfigError


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    kept = [document for document in stdlib_documents() if not document.held_out][:6]
    return train_tokenizer((document.text for document in kept), 600, 256)


def test_lab_prompts_are_token_prefixes_of_held_out_files(tokenizer: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lab_prompts, "_tokenizer", lambda: tokenizer)
    prompts = load_prompts("lab")
    assert len(prompts) >= 40
    assert len({prompt.id for prompt in prompts}) == len(prompts)
    texts = {document.name: document for document in stdlib_documents()}
    lengths = set()
    for prompt in prompts:
        name, _, line = prompt.id.rpartition(":")
        assert texts[name].held_out
        start = sum(len(text) + 1 for text in texts[name].text.split("\n")[: int(line) - 1])
        assert texts[name].text.startswith(prompt.text, start)
        ids = encode(tokenizer, prompt).tolist()
        lengths.add(len(ids))
        whole = tokenizer(texts[name].text[start : start + 4000])["input_ids"]
        assert ids == whole[: len(ids)]
    assert min(lengths) >= SHORTEST
    assert max(lengths) <= LONGEST
    assert len(lengths) > 10
    assert load_prompts("lab") == prompts


def test_a_file_gives_a_few_prompts_that_begin_at_lines_of_the_top_level(tokenizer: Any) -> None:
    body = "".join(f"def f{n}(x):\n    return x + {n}\n\n" for n in range(500))
    starts = beginnings(body)
    assert starts[0] == 0
    assert len(starts) == lab_prompts.PER_FILE
    assert all(body.startswith("def f", start) for start in starts)
    assert all(b - a >= lab_prompts.SPACING for a, b in pairwise(starts))
    assert list(prompts_of(Document("short.py", "x = 1\n"), tokenizer)) == []


class Chat:
    """A tokenizer whose template says what it was given."""

    def __init__(self, template: str | None) -> None:
        self.chat_template = template

    def __call__(self, text: str) -> dict[str, list[int]]:
        return {"input_ids": [len(text)]}

    def apply_chat_template(self, turns: Any, **given: Any) -> Any:
        mode = {None: 0, True: 1, False: 2}[given.get("enable_thinking")]
        return {"input_ids": [7, mode]}


KNOWS = "{% if enable_thinking is defined and enable_thinking is false %}<think></think>{% endif %}"


def test_the_thinking_switch_reaches_templates_that_have_one() -> None:
    prompts = {name: load_prompts(f"open-ended{name}")[0] for name in ("", ":thinking=on", ":thinking=off")}
    assert [prompt.thinking for prompt in prompts.values()] == [None, True, False]
    assert len({prompt.text for prompt in prompts.values()}) == 1
    assert [encode(Chat(KNOWS), prompt)[1].item() for prompt in prompts.values()] == [0, 1, 2]


@pytest.mark.parametrize(
    ("template", "message"),
    [(None, "has no chat template"), ("{{ messages }}", "chat template without enable_thinking")],
)
def test_the_thinking_switch_is_refused_where_there_is_none(template: str | None, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        encode(Chat(template), Prompt("a", "b", thinking=True))
    assert len(encode(Chat(template), Prompt("a", "b")))


def test_a_misspelt_switch_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"allowed: thinking=on or thinking=off"):
        load_prompts("humaneval:thinking=yes")
