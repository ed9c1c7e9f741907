"""Texts a target writes: resumable shards, greedy rows as transformers writes them, and where beginnings come from."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="real/ needs the extra 'real'")

import real.continuations  # noqa: E402
from real.continuations import main, write_texts  # noqa: E402
from real.data import load_prompts  # noqa: E402
from real.models import load_target  # noqa: E402
from real.training.corpus import Document, stdlib_documents  # noqa: E402
from real.training.drafter_data import WrittenTexts  # noqa: E402
from real.training.prompt_sources import functions_of, prompt_source  # noqa: E402
from real.training.texts import read_texts, shard_path  # noqa: E402
from specsim.errors import ConfigError, run_cli  # noqa: E402
from tests.real_tiny import LetterTokenizer, save_tiny  # noqa: E402
from tests.real_training import same_texts  # noqa: E402

DOCUMENTS = [
    Document("argparse.py", "abcdefghij klmnopqrst. " * 8),
    next(Document(name, "0123456789 " * 9) for name in (f"f{n}.py" for n in range(99)) if Document(name, "").held_out),
]


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny(tmp_path_factory.mktemp("tiny") / "target")


@pytest.fixture(autouse=True)
def few_documents(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(real.continuations, "stdlib_documents", lambda: DOCUMENTS)


def write(tiny: Path, out: Path, *more: str) -> int:
    sizes = ("--texts=6", "--held-out-texts=2", "--batch=3", "--length=24", "--prompt-tokens", "4", "8")
    with pytest.raises(SystemExit) as leaving:
        run_cli(main, ["--target", str(tiny), "--out", str(out), "--device=cpu", *sizes, *more])
    return int(leaving.value.code or 0)


def test_an_interrupted_call_goes_on_and_ends_the_same(
    tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    assert write(tiny, whole) == 0
    done = real.continuations.write_shard

    def interrupted(*args: Any) -> None:
        done(*args)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(real.continuations, "write_shard", interrupted)
        assert write(tiny, parts) == 130
    first = shard_path(parts, 0).read_bytes()
    assert len(list(parts.glob("shard-*"))) == 1
    assert write(tiny, parts) == 0
    assert shard_path(parts, 0).read_bytes() == first
    texts = read_texts(whole)
    assert same_texts(texts, read_texts(parts))
    assert [text.held_out for text in texts] == [False] * 6 + [True] * 3
    assert {text.greedy for text in texts if text.held_out} == {True}
    assert all(4 <= text.prompt_len <= 8 and len(text.tokens) <= 24 for text in texts)
    held_out = set("0123456789 ")
    decode = load_target(str(tiny), device="cpu").tokenizer.decode
    assert all((set(decode(text.tokens[: text.prompt_len])) <= held_out) == text.held_out for text in texts)


def test_more_texts_are_added(tiny: Path, tmp_path: Path) -> None:
    assert write(tiny, tmp_path / "out") == 0
    before = read_texts(tmp_path / "out")
    assert write(tiny, tmp_path / "out", "--texts=9") == 0
    after = read_texts(tmp_path / "out")
    assert len(after) == len(before) + 3
    assert same_texts(after[:6], before[:6])


def test_settings_are_checked(tiny: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert write(tiny, tmp_path / "out") == 0
    for more, advice in (
        ("--temperature=0.5", "temperature was 0.8"),
        ("--length=8", "above the longest prompt"),
        ("--batch=0", "above 0"),
        ("--prompts=songs", "spans"),
    ):
        assert write(tiny, tmp_path / "out" if "temperature" in more else tmp_path / "other", more) == 2
        assert advice in capsys.readouterr().err


def test_no_texts_or_too_few_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"python -m real\.continuations"):
        WrittenTexts(str(tmp_path)).setup("fit")


def test_greedy_rows_are_what_transformers_writes_alone(tiny: Path) -> None:
    loaded = load_target(str(tiny), device="cpu")
    beginnings = [[5, 6, 7, 8], [9, 10], [20, 21, 22]]
    greedy = np.array([True, False, True])
    texts = write_texts(loaded, beginnings, length=24, temperature=0.8, greedy=greedy, seed=1)
    other = write_texts(loaded, beginnings, length=24, temperature=0.8, greedy=greedy, seed=2)
    for row, (text, beginning) in enumerate(zip(texts, beginnings, strict=True)):
        assert text.tokens[: text.prompt_len].tolist() == beginning
        alone = loaded.model.generate(torch.tensor([beginning]), max_new_tokens=20, do_sample=False, pad_token_id=2)
        expected = alone[0].tolist()[: len(text.tokens)]
        assert (text.tokens.tolist() == expected) == bool(greedy[row])
    assert not np.array_equal(texts[1].tokens, other[1].tokens)
    assert np.array_equal(texts[0].tokens, other[0].tokens)


def test_a_text_ends_with_its_end(tiny: Path) -> None:
    loaded = load_target(str(tiny), device="cpu")
    texts = write_texts(loaded, [[5, 6]] * 40, length=60, temperature=3.0, greedy=np.zeros(40, dtype=bool), seed=0)
    ended = [text for text in texts if len(text.tokens) < 60]
    assert ended
    assert all(text.tokens[-1] == 2 and 2 not in text.tokens[:-1] for text in ended)


class ChatTokenizer(LetterTokenizer):
    """With a chat template: the user's text between two marks."""

    chat_template = "{{ messages }}"

    def apply_chat_template(self, turns: list[dict[str, str]], **_: Any) -> dict[str, list[int]]:
        return {"input_ids": [1, *self(turns[0]["content"])["input_ids"], 1]}


def test_instructions_are_about_functions_of_the_library() -> None:
    source = prompt_source("auto", ChatTokenizer(), stdlib_documents()[:20], 1, 400)
    rng = np.random.default_rng(0)
    drawn = [source.draw(rng, 0.5) for _ in range(5)]
    assert all(ids[0] == ids[-1] == 1 and len(ids) <= 400 for ids in drawn)
    assert len({tuple(ids) for ids in drawn}) > 1
    with pytest.raises(ConfigError, match="allow longer prompts"):
        prompt_source("instructions", ChatTokenizer(), stdlib_documents()[:20], 1, 5).draw(rng, 0.5)


def test_functions_are_found_with_their_docstrings() -> None:
    source = 'class A:\n    @x\n    def f(self, a):\n        "Doc."\n        return a\n\ndef bare(): return 1\n'
    ((head, whole),) = functions_of(source)
    assert head == 'def f(self, a):\n    """Doc."""'
    assert whole.splitlines()[-1] == "    return a"
    assert functions_of("def broken(:") == []


def test_no_benchmark_is_trained_on() -> None:
    """No task of HumanEval stands in the corpus."""
    corpus = "\n".join(document.text for document in stdlib_documents())
    tasks = [prompt.text.split("```python\n")[1].split("\n")[0] for prompt in load_prompts("humaneval")]
    heads = [head for head in tasks if head.startswith("def ")]
    assert len(heads) > 50
    assert not [head for head in heads if head in corpus]
