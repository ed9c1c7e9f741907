"""`real.generate` and `custom_generate=real.Speculative(...)` against `model.generate`; the README's examples."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

torch = pytest.importorskip("torch", reason="real/ needs the extra 'real'")

from transformers import AutoTokenizer  # noqa: E402
from transformers.generation.stopping_criteria import MaxLengthCriteria  # noqa: E402

import real  # noqa: E402
from tests.conftest import ROOT  # noqa: E402
from tests.real_generate import Collect, both, one, padded_batch  # noqa: E402
from tests.real_law import one_thread  # noqa: E402, F401 - a fixture
from tests.real_tiny import FAMILIES, STOP, prompt_ids, save_tiny, tiny_family  # noqa: E402


@pytest.fixture(scope="module")
def model():
    return tiny_family("llama")


@pytest.fixture(scope="module")
def other():
    """A drafter that agrees now and then: the target with its weights disturbed."""
    drafter = tiny_family("llama")
    with torch.no_grad():
        noise = torch.Generator().manual_seed(1)
        for weight in drafter.parameters():
            weight += 0.02 * torch.randn(weight.shape, generator=noise)
    return drafter


# --- equality with the library ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("family", FAMILIES)
def test_greedy_equals_generate_for_every_class(family: str) -> None:
    target = tiny_family(family, seed=1)
    ids, mask = padded_batch()
    inputs = {"input_ids": ids, "attention_mask": mask}
    for drafter, controller in (("layer-skip:skip=1", "hf-heuristic"), ("prompt-lookup", "static:length=5")):
        expected, found = both(target, drafter, controller, inputs, max_new_tokens=20, do_sample=False)
        assert torch.equal(found, expected), drafter


PREPARED = {
    "several ends": {"eos_token_id": [STOP, 15, 61]},
    "min_new_tokens": {"min_new_tokens": 15},
    "min_length": {"min_length": 25},
    "repetition_penalty": {"repetition_penalty": 1.3},
    "no_repeat_ngram": {"no_repeat_ngram_size": 2},
    "encoder penalty": {"encoder_repetition_penalty": 1.5},
    "encoder ngrams": {"encoder_no_repeat_ngram_size": 1},
    "bad words": {"bad_words_ids": [[8], [36, 14]]},
    "bias": {"sequence_bias": {(5,): 3.0, (50, 15): -8.0}},
    "suppress": {"suppress_tokens": [18], "begin_suppress_tokens": [59]},
    "forced end": {"forced_eos_token_id": STOP},
    "length penalty": {"exponential_decay_length_penalty": (3, 1.2)},
    "max_length": {"max_length": 17, "max_new_tokens": None},
    "own limit": {"stopping_criteria": [MaxLengthCriteria(16)]},
    "own criterion": {"stopping_criteria": [lambda ids, scores: (ids[:, -1] > 61) | torch.tensor(ids.shape[1] > 17)]},
    "static cache": {"cache_implementation": "static"},
    "default length": {"max_new_tokens": None},
    "invalid values": {"remove_invalid_values": True, "renormalize_logits": True},
}


@pytest.mark.filterwarnings("ignore:Using the model-agnostic default `max_length`")
@pytest.mark.parametrize("name", PREPARED)
def test_what_the_library_prepares_is_obeyed(name: str, model, other) -> None:
    ids, mask = padded_batch()
    arguments = {"max_new_tokens": 18, "do_sample": False, **PREPARED[name]}
    arguments = {key: value for key, value in arguments.items() if value is not None}
    expected, found = both(model, other, "static:length=4", {"input_ids": ids, "attention_mask": mask}, **arguments)
    assert torch.equal(found, expected)


@pytest.mark.filterwarnings("ignore:Using the model-agnostic default `max_length`")
def test_the_settings_above_all_change_something(model) -> None:
    """So that the test above says something about each: without its setting, the output would be another."""
    ids, mask = padded_batch()
    plain = model.generate(ids, attention_mask=mask, max_new_tokens=18, do_sample=False).tolist()
    for name, arguments in PREPARED.items():
        if name in ("static cache", "invalid values"):
            continue
        given = {"max_new_tokens": 18, "do_sample": False, **arguments}
        given = {key: value for key, value in given.items() if value is not None}
        assert model.generate(ids, attention_mask=mask, **given).tolist() != plain, name


def test_stop_strings_need_only_the_tokenizer(model, other, tmp_path: Path) -> None:
    tokenizer = AutoTokenizer.from_pretrained(save_tiny(tmp_path))
    arguments = {"max_new_tokens": 20, "do_sample": False}
    text = tokenizer.decode(model.generate(**one(), **arguments)[0, 12:])
    stop = text[3:5]
    expected = model.generate(**one(), **arguments, stop_strings=[stop], tokenizer=tokenizer)
    assert expected.shape[1] < 12 + len(text)
    found = real.generate(
        model, one(), drafter=other, controller="static:length=6", tokenizer=tokenizer, stop_strings=[stop], **arguments
    )
    assert torch.equal(found, expected)
    config = model.generation_config.__class__(stop_strings=[stop], eos_token_id=STOP, pad_token_id=0, **arguments)
    found = real.generate(
        model, one(), drafter=other, controller="plain", tokenizer=tokenizer, generation_config=config
    )
    assert torch.equal(found, expected)
    assert config.stop_strings == [stop]  # the caller's own object stays as it was


def test_prefix_allowed_tokens_is_asked_about_legal_texts_only(model, other) -> None:
    """Even tokens first, then odd ones, by turns; the rule is a lookup that knows no other texts."""
    rules: list[Callable] = []
    for _ in range(2):
        seen: list[tuple[int, ...]] = []

        def allowed(batch: int, text: torch.Tensor, seen: list = seen) -> list[int]:
            made = text.tolist()[12:]
            assert all(token % 2 == place % 2 for place, token in enumerate(made)), made
            seen.append((batch, *made))
            return list(range(len(made) % 2 + 4, 64, 2))

        rules.append((allowed, seen))
    ids = torch.stack([prompt_ids(3), prompt_ids(6)])
    arguments = {"input_ids": ids, "attention_mask": torch.ones_like(ids), "max_new_tokens": 12, "do_sample": False}
    expected = model.generate(**arguments, prefix_allowed_tokens_fn=rules[0][0])
    inputs = {key: arguments.pop(key) for key in ("input_ids", "attention_mask")}
    found = real.generate(
        model,
        inputs,
        drafter=other,
        controller="static:length=4",
        prefix_allowed_tokens_fn=rules[1][0],
        **arguments,
    )
    assert torch.equal(found, expected)
    assert {batch for batch, *_ in rules[1][1]} == {0, 1}


def test_scores_and_logits_are_the_librarys(model, other) -> None:
    ids, mask = padded_batch()
    arguments = {"max_new_tokens": 10, "do_sample": False, "min_new_tokens": 10, "repetition_penalty": 1.2}
    arguments |= {"return_dict_in_generate": True, "output_scores": True, "output_logits": True}
    expected, found = both(model, other, "g4", {"input_ids": ids, "attention_mask": mask}, **arguments)
    assert torch.equal(found.sequences, expected.sequences)
    for kind in ("scores", "logits"):
        assert len(found[kind]) == len(expected[kind]) == 10
        for ours, theirs in zip(found[kind], expected[kind], strict=True):
            torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-4)


def test_as_custom_generate_it_is_the_same(model, other) -> None:
    speculative = real.Speculative(drafter=other, controller="static:length=3")
    arguments = {"max_new_tokens": 15, "do_sample": False}
    found = model.generate(**one(), custom_generate=speculative, **arguments)
    assert torch.equal(found, model.generate(**one(), **arguments))
    assert torch.equal(found, real.generate(model, one(), drafter=other, controller="static:length=3", **arguments))
    assert torch.equal(found, model.generate(**one(), custom_generate=speculative, **arguments))  # and again
    ids = one()["input_ids"]
    assert torch.equal(found, real.generate(model, ids, drafter=other, controller="plain", **arguments))


@pytest.mark.parametrize("form", ["generate", "custom_generate"])
def test_a_streamer_gets_every_token_once_and_the_end(form: str, model, other) -> None:
    streamer = Collect()
    arguments = {**one(), "max_new_tokens": 15, "do_sample": False, "streamer": streamer}
    if form == "generate":
        inputs = {key: arguments.pop(key) for key in ("input_ids", "attention_mask")}
        found = real.generate(model, inputs, drafter=other, controller="static:length=4", **arguments)
    else:
        found = model.generate(
            custom_generate=real.Speculative(drafter=other, controller="static:length=4"), **arguments
        )
    prompt, *rounds = streamer.pieces
    assert prompt == found[0, :12].tolist()
    assert [token for tokens in rounds for token in tokens] == found[0, 12:].tolist()
    assert 1 < len(rounds) < 15
    assert streamer.ended == 1


# --- the package and the README ---------------------------------------------------------------------------------------


def test_importing_real_loads_nothing() -> None:
    script = "import sys, real; print(sorted({'torch', 'numpy', 'specsim', 'real.generation'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True)
    assert done.stdout.strip() == "[]", done.stdout + done.stderr
    assert real.Speculative is sys.modules["real.generation"].Speculative
    assert not hasattr(real, "degenerate")


def test_readme_examples(tmp_path: Path) -> None:
    """Both forms as the README shows them, each under ten lines, with a tiny model in place of the named one."""
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    sources = re.findall(r"^```py\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    (first,) = [source for source in sources if "real.generate(" in source]
    (second,) = [source for source in sources if "custom_generate=" in source]
    assert len(first.splitlines()) < 10
    assert len(second.splitlines()) < 10
    folder = save_tiny(tmp_path)
    made: dict = {}
    exec(re.sub(r'"HuggingFaceTB/[\w.-]+"', repr(str(folder)), first), made)
    exec(second, made)
    assert made["output"].tolist() == made["same"].tolist()
    plain = made["model"].generate(
        **made["inputs"], max_new_tokens=made["output"].shape[1] - made["inputs"]["input_ids"].shape[1]
    )
    assert made["output"].tolist() == plain.tolist()
