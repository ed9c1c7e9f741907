"""Texts a target writes: resumable shards, greedy rows as transformers writes them, and where beginnings come from."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

torch = pytest.importorskip("torch", reason="real/ needs the extra 'real'")

from transformers import GenerationConfig  # noqa: E402

import real.continuations  # noqa: E402
from real.continuations import main, write_texts  # noqa: E402
from real.data import load_prompts  # noqa: E402
from real.models import load_target  # noqa: E402
from real.training.corpus import Document, stdlib_documents  # noqa: E402
from real.training.drafter_data import WrittenTexts  # noqa: E402
from real.training.prompt_sources import functions_of, prompt_source  # noqa: E402
from real.training.texts import Text, read_texts, shard_path, write_shard  # noqa: E402
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


def test_a_signal_interrupts_and_the_call_goes_on(tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    done = real.continuations.write_shard

    def interrupted(*args: Any) -> None:
        done(*args)
        os.kill(os.getpid(), signal.SIGINT)

    with monkeypatch.context() as patch:
        patch.setattr(real.continuations, "write_shard", interrupted)
        assert write(tiny, tmp_path) == 130
    assert sorted(path.name for path in tmp_path.iterdir()) == ["settings.json", "shard-00000.parquet"]
    assert write(tiny, tmp_path) == 0
    assert len(read_texts(tmp_path)) == 9


def test_other_settings_do_not_go_on(tiny: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert write(tiny, tmp_path / "out") == 0
    assert write(tiny, tmp_path / "out", "--temperature=0.5") == 2
    assert "temperature was 0.8" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (["--texts=0"], "--texts=0: allowed is an integer >= 1"),
        (["--batch=-2"], "--batch=-2: allowed is an integer >= 1"),
        (["--held-out-texts=-1"], "--held-out-texts=-1"),
        (["--threads=0"], "--threads=0"),
        (["--threads=99999"], "--threads=99999"),
        (["--seed=-1"], "--seed=-1"),
        (["--temperature=0"], "--temperature=0.0: allowed is a finite number >= 0.001"),
        (["--temperature=1e-40"], "--temperature=1e-40: allowed is a finite number >= 0.001"),
        (["--temperature=nan"], "--temperature=nan"),
        (["--length=1"], "--length=1"),
        (["--length=8"], "--prompt-tokens 4 8: allowed are a shortest and a longest, 1 or more and below --length 8"),
        (["--prompt-tokens", "8", "4"], "--prompt-tokens 8 4"),
        (["--prompt-tokens", "0", "4"], "--prompt-tokens 0 4"),
        (["--prompt-tokens", "-3", "4"], "--prompt-tokens -3 4"),
        (["--texts=999999"], "up to 90000 shards"),
        (["--prompts=songs"], "--prompts=songs: allowed is auto or spans or instructions"),
    ],
    ids=" ".join,
)
def test_settings_out_of_range_are_refused_before_anything_is_done(
    tiny: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    more: list[str],
    message: str,
) -> None:
    monkeypatch.setattr(real.continuations, "load_text_target", None)  # would be called
    assert write(tiny, tmp_path / "out", *more) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1
    assert not (tmp_path / "out").exists()


def test_a_length_beyond_the_window_is_refused(tiny: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert write(tiny, tmp_path / "out", "--length=100000") == 2
    assert "context window" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_a_folder_that_is_a_file_is_refused(tiny: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").write_text("mine")
    for out in (tmp_path / "file", tmp_path / "file" / "below"):
        assert write(tiny, out) == 2
        assert "file" in capsys.readouterr().err
    assert (tmp_path / "file").read_text() == "mine"


DAMAGE: dict[str, tuple[Any, str]] = {
    "truncated": (lambda path: path.write_bytes(path.read_bytes()[:200]), "cannot be read"),
    "empty": (lambda path: path.write_bytes(b""), "cannot be read"),
    "foreign": (lambda path: pq.write_table(pa.table({"a": [1]}), path), "column 'tokens': is missing"),
    "text": (lambda path: _rewrite(path, greedy=pa.array(["yes", "no", "no"])), "column 'greedy': is string"),
    "nulls": (
        lambda path: _rewrite(path, prompt_len=pa.array([4, None, 4], pa.int32())),
        "column 'prompt_len': has null",
    ),
    "no prompt": (lambda path: _rewrite(path, prompt_len=pa.array([4, 0, 4], pa.int32())), "'prompt_len', row 1: 0"),
    "long prompt": (lambda path: _rewrite(path, prompt_len=pa.array([4, 99, 4], pa.int32())), "row 1: 99"),
    "no token": (
        lambda path: _rewrite(path, tokens=pa.array([[5] * 9, [-1] * 9, [5] * 9], pa.list_(pa.int32()))),
        "row 1",
    ),
}


def _rewrite(path: Path, **columns: pa.Array) -> None:
    table = pq.read_table(path)
    for name, values in columns.items():
        table = table.set_column(table.column_names.index(name), name, values)
    pq.write_table(table, path)


@pytest.mark.parametrize("kind", sorted(DAMAGE))
def test_a_damaged_shard_is_found(
    tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], kind: str
) -> None:
    texts = [Text(tokens=np.arange(5, 15, dtype=np.int32), prompt_len=4, greedy=True, held_out=False)] * 3
    write_shard(tmp_path, 1, texts)
    assert same_texts(read_texts(tmp_path), texts)
    damage, message = DAMAGE[kind]
    damage(shard_path(tmp_path, 1))
    with pytest.raises(ConfigError, match=r"shard-00001\.parquet.*delete it") as refused:
        read_texts(tmp_path)
    assert message in str(refused.value)
    monkeypatch.setattr(real.continuations, "load_text_target", None)  # would be called
    assert write(tiny, tmp_path) == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize("content", ["[]", '"x"', "3", "{", "", "\udc80", "[" * 100_000, '{"length": "24"}'])
def test_a_damaged_settings_file_is_refused(
    tiny: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], content: str
) -> None:
    file = tmp_path / "settings.json"
    file.write_bytes(content.encode("utf-8", "surrogateescape"))
    before = file.read_bytes()
    assert write(tiny, tmp_path) == 2
    error = capsys.readouterr().err
    assert str(tmp_path) in error
    assert "choose another folder, or delete this one" in error
    assert [path.name for path in tmp_path.iterdir()] == ["settings.json"]
    assert file.read_bytes() == before


def test_texts_without_their_settings_are_not_gone_on_with(
    tiny: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert write(tiny, tmp_path) == 0
    (tmp_path / "settings.json").unlink()
    assert write(tiny, tmp_path) == 2
    assert "texts without their settings.json" in capsys.readouterr().err


def test_a_checkpoints_own_generation_settings_change_nothing(tiny: Path) -> None:
    """Neither its penalties nor its limits; and it has them again afterwards."""
    loaded = load_target(str(tiny), device="cpu")
    greedy = np.arange(6) % 2 == 0

    def written() -> list[Text]:
        return write_texts(loaded, [[5, 6, 7]] * 6, length=40, temperature=0.8, greedy=greedy, seed=3)

    plain = written()
    own = GenerationConfig(
        repetition_penalty=50.0, no_repeat_ngram_size=1, top_k=1, min_length=39, num_beams=1, suppress_tokens=[9, 10]
    )
    loaded.model.generation_config = own
    assert same_texts(written(), plain)
    assert loaded.model.generation_config is own
    assert any(len(set(text.tokens.tolist())) < len(text.tokens) for text in plain)  # a penalty would show


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
