"""`real.generate` and `custom_generate=real.Speculative(...)` against `model.generate`; P7, P8, P13, P14, P18, P19."""

from __future__ import annotations

import logging
import re
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

torch = pytest.importorskip("torch", reason="real/ needs the extra 'real'")

from transformers import AutoTokenizer, DynamicCache, T5Config, T5ForConditionalGeneration  # noqa: E402
from transformers.generation.stopping_criteria import MaxLengthCriteria  # noqa: E402

import real  # noqa: E402
from real.drafters.prompt_lookup import PromptLookupDrafter  # noqa: E402
from specsim.controllers import Setting, build  # noqa: E402
from specsim.errors import ConfigError  # noqa: E402
from specsim.latency import LatencyModel, save_latency  # noqa: E402
from specsim.online import OnlineController  # noqa: E402
from tests.conftest import ROOT  # noqa: E402
from tests.real_law import one_thread  # noqa: E402, F401 - a fixture
from tests.real_tiny import FAMILIES, STOP, prompt_ids, save_tiny, tiny_family, tiny_llama  # noqa: E402

LATENCY = LatencyModel.affine(c_s=0.001, b_s=0.02, draft_pass_s=0.001)
SETTING = Setting(block_len=1, max_draft_len=24, latency=LATENCY)


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


def padded_batch() -> tuple[torch.Tensor, torch.Tensor]:
    """Three prompts of 12, 8 and 11 tokens, padded on the left, and their mask."""
    ids = torch.stack([prompt_ids(seed) for seed in (3, 4, 5)])
    mask = torch.ones_like(ids)
    for row, pads in enumerate((0, 4, 1)):
        ids[row, :pads], mask[row, :pads] = 0, 0
    return ids, mask


def one(seed: int = 3, n: int = 12) -> dict[str, torch.Tensor]:
    ids = prompt_ids(seed, n)[None]
    return {"input_ids": ids, "attention_mask": torch.ones_like(ids)}


def both(model, drafter, controller: str, inputs: dict, **arguments) -> tuple[torch.Tensor, torch.Tensor]:
    """The library's output and ours."""
    expected = model.generate(**inputs, **arguments)
    return expected, real.generate(model, inputs, drafter=drafter, controller=controller, **arguments)


class Collect:
    """A streamer that keeps what it is given."""

    def __init__(self) -> None:
        self.pieces: list[list[int]] = []
        self.ended = 0

    def put(self, tokens: torch.Tensor) -> None:
        self.pieces.append(tokens.flatten().tolist())

    def end(self) -> None:
        self.ended += 1


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


# --- sampling ---------------------------------------------------------------------------------------------------------


def test_torch_manual_seed_decides_and_seed_overrides(model, other) -> None:
    def sample(**more) -> list[int]:
        return real.generate(
            model, one(), drafter=other, controller="static:length=3", do_sample=True, max_new_tokens=12, **more
        )[0].tolist()

    with torch.random.fork_rng():
        torch.manual_seed(1)
        first, second = sample(), sample()
        torch.manual_seed(1)
        assert [sample(), sample()] == [first, second]
        assert first != second
        assert sample(seed=5) == sample(seed=5) != sample(seed=6)


def test_greedy_decoding_and_a_given_seed_leave_torchs_generator_alone(model, other) -> None:
    with torch.random.fork_rng():
        torch.manual_seed(1)
        before = torch.random.get_rng_state()
        real.generate(model, one(), drafter=other, controller="g4", do_sample=False, max_new_tokens=4)
        real.generate(model, one(), drafter=other, controller="g4", do_sample=True, seed=3, max_new_tokens=4)
        assert torch.equal(torch.random.get_rng_state(), before)


def test_several_samples_of_a_prompt_differ(model, other) -> None:
    found = real.generate(
        model,
        one(),
        drafter=other,
        controller="static:length=3",
        do_sample=True,
        num_return_sequences=3,
        max_new_tokens=10,
        seed=1,
    )
    assert found.shape[0] == 3
    assert len({tuple(row) for row in found.tolist()}) == 3


def test_samples_follow_the_targets_law_under_the_settings(model, other) -> None:
    """First tokens of 250 samples against softmax(logits / T): near it, and far from what other settings would give."""
    arguments = {"do_sample": True, "temperature": 0.5, "top_k": 0, "max_new_tokens": 1, "num_return_sequences": 250}
    found = real.generate(model, one(), drafter=other, controller="static:length=2", seed=11, **arguments)
    shares = torch.bincount(found[:, -1], minlength=64) / 250
    with torch.no_grad():
        logits = model(**one()).logits[0, -1]

    def distance(temperature: float) -> float:
        return float((shares - (logits / temperature).softmax(-1)).abs().sum() / 2)

    assert distance(0.5) < 0.15
    assert min(distance(1.0), distance(0.25)) > 0.2


def test_p7_drafter_and_target_see_the_same_processors(model, caplog) -> None:
    """A drafter with the target's weights is accepted whole only if its law passes through the same processors."""
    twin = tiny_family("llama")
    arguments = {"do_sample": True, "temperature": 0.7, "top_k": 6, "top_p": 0.9, "repetition_penalty": 1.3}
    arguments |= {"max_new_tokens": 30, "min_new_tokens": 30, "return_dict_in_generate": True, "seed": 4}
    arguments |= {"controller": "static:length=4", "draft_sampling": "sample"}
    found = real.generate(model, one(), drafter=twin, **arguments)
    assert [row.accepted_len for row in found.decoded[0].rounds] == [4] * 6
    # Settings of the drafter's own change nothing, and are named in the log, once.
    twin.generation_config.temperature, twin.generation_config.top_k = 5.0, 2
    with caplog.at_level(logging.WARNING, logger="specsim.real"):
        again = [real.generate(model, one(), drafter=twin, **arguments) for _ in range(2)]
    assert all(torch.equal(each.sequences, found.sequences) for each in again)
    (record,) = caplog.records
    assert "temperature 5.0 (here 0.7)" in record.message
    assert "top_k 2 (here 6)" in record.message


def test_p7_greedy_drafts_keep_whatever_the_target_samples(model, other) -> None:
    """With the luck of each position fixed, what is drafted cannot change which law a token comes from: no token
    outside the target's top-k appears, though the drafter proposes such tokens."""
    found = real.generate(
        model,
        one(),
        drafter=other,
        controller="static:length=4",
        do_sample=True,
        top_k=2,
        max_new_tokens=40,
        seed=2,
        eos_token_id=[],
        pad_token_id=0,
    )[0]
    with torch.no_grad():
        logits = model(found[None]).logits[0]
    for place in range(12, len(found)):
        assert found[place] in logits[place - 1].topk(2).indices


def test_p8_settings_in_force_are_recorded(model, other) -> None:
    found = real.generate(
        model,
        one(),
        drafter=other,
        controller="g4",
        do_sample=True,
        temperature=0.7,
        top_k=3,
        seed=8,
        max_new_tokens=4,
        return_dict_in_generate=True,
    )
    assert found.settings["do_sample"] is True
    assert found.settings["seed"] == 8
    assert found.settings["draft_sampling"] == "greedy"
    temperature, top_k = found.settings["processors"]
    assert temperature == "TemperatureLogitsWarper(temperature=0.7)"
    assert top_k.startswith("TopKLogitsWarper(top_k=3")


def test_p8_sampling_that_is_greedy_in_effect_is_said(model, other) -> None:
    arguments = {"drafter": other, "controller": "g4", "do_sample": True, "max_new_tokens": 6, "seed": 1}
    greedy = model.generate(**one(), do_sample=False, max_new_tokens=6)
    with pytest.warns(UserWarning, match="top_k=1 leaves one token"):
        assert torch.equal(real.generate(model, one(), top_k=1, **arguments), greedy)
    with pytest.warns(
        UserWarning, match=r"3 samples of one prompt are all the same; in force: .*TopPLogitsWarper\(top_p=1e-06"
    ):
        real.generate(model, one(), top_p=1e-6, num_return_sequences=3, **arguments)
    real.generate(model, one(), num_return_sequences=3, **arguments)  # these differ: no warning


# --- vocabularies -----------------------------------------------------------------------------------------------------


class Words:
    """A tokenizer of the tokens it is given, one per word."""

    def __init__(self, tokens: dict[str, int], *, lower: bool = False) -> None:
        self._tokens, self._lower = tokens, lower

    def get_vocab(self) -> dict[str, int]:
        return self._tokens

    def __call__(self, text: str) -> dict[str, list[int]]:
        text = text.lower() if self._lower else text
        return {"input_ids": [3 + ord(letter) % 61 for letter in text]}


TOKENS = {f"t{number}": number for number in range(64)}


@pytest.fixture
def no_decoding(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever is refused is refused before the first token."""

    def decode(*_, **__):
        raise AssertionError("a token was decoded")

    monkeypatch.setattr("real.generation.decode", decode)


@pytest.mark.parametrize("widths", [(72, 64), (64, 72)], ids=["target wider", "drafter wider"])
@pytest.mark.parametrize("draft_sampling", ["greedy", "sample"])
def test_p13_padded_vocabularies_of_different_size(widths: tuple[int, int], draft_sampling: str) -> None:
    target, drafter = (tiny_llama(seed=seed, vocabulary=width) for seed, width in zip((1, 2), widths, strict=True))
    inputs = one()
    inputs["input_ids"][0, 3] = widths[0] - 1  # perhaps an id that only the target has
    arguments = {"max_new_tokens": 25, "do_sample": False, "bad_words_ids": [[7], [8, 9]], "eos_token_id": None}
    expected = target.generate(**inputs, **arguments)
    found = real.generate(
        target,
        inputs,
        drafter=drafter,
        controller="static:length=3",
        draft_sampling=draft_sampling,
        tokenizer=Words(TOKENS),
        drafter_tokenizer=Words(TOKENS),
        **arguments,
    )
    assert torch.equal(found, expected)
    if widths[0] > widths[1]:
        assert (expected >= widths[1]).sum() > 1  # the drafter was fed ids it does not have


@pytest.mark.usefixtures("no_decoding")
def test_p13_different_sizes_without_tokenizers_are_refused(model) -> None:
    wider = tiny_llama(vocabulary=72)
    with pytest.raises(ConfigError, match="64 token ids and the drafter 72; if only padding differs"):
        real.generate(model, one(), drafter=wider, controller="g4", max_new_tokens=3)


@pytest.mark.usefixtures("no_decoding")
def test_p14_other_tokenizers_are_refused_with_the_difference(model, other) -> None:
    arguments = {"drafter": other, "controller": "g4", "max_new_tokens": 3, "tokenizer": Words(TOKENS)}
    moved = {**TOKENS, "t5": 6, "t6": 5}
    with pytest.raises(ConfigError, match=r"2 tokens differ, e\.g\. 't5' is 5 in the target and 6 in the drafter"):
        real.generate(model, one(), drafter_tokenizer=Words(moved), **arguments)
    with pytest.raises(ConfigError, match="knows the target's tokens but splits text differently"):
        real.generate(model, one(), drafter_tokenizer=Words(TOKENS, lower=True), **arguments)
    with pytest.raises(ConfigError, match="pass the target's too"):
        real.generate(model, one(), **{**arguments, "tokenizer": None}, drafter_tokenizer=Words(TOKENS))


# --- batches and state ------------------------------------------------------------------------------------------------


def rounds_of(decoded) -> list[tuple[int, int, int]]:
    return [(row.drafted_len, row.submitted_len, row.accepted_len) for row in decoded.rounds]


@pytest.mark.parametrize("controller", ["static:length=4", "g4", "threshold", "lambda"])
def test_p18_rows_of_a_batch_equal_single_calls(controller: str, model, other) -> None:
    """Tokens, rounds and reasons per request, greedy; the state of a controller does not pass from row to row."""
    ids, mask = padded_batch()
    arguments = {"drafter": other, "controller": controller, "latency": LATENCY, "do_sample": False}
    arguments |= {"max_new_tokens": 16, "return_dict_in_generate": True}
    found = real.generate(model, {"input_ids": ids, "attention_mask": mask}, **arguments)
    assert torch.equal(found.sequences, model.generate(ids, attention_mask=mask, max_new_tokens=16, do_sample=False))
    for row, decoded in enumerate(found.decoded):
        alone = ids[row, mask[row] == 1][None]
        inputs = {"input_ids": alone, "attention_mask": torch.ones_like(alone)}
        single = real.generate(model, inputs, **arguments).decoded[0]
        assert (single.output, single.reason, single.prompt_len) == (decoded.output, decoded.reason, decoded.prompt_len)
        if controller != "lambda":  # it learns from measured times, which no two calls share
            assert rounds_of(single) == rounds_of(decoded)
        plain = model.generate(**inputs, max_new_tokens=16, do_sample=False)[0, alone.shape[1] :].tolist()
        assert decoded.output == plain
        after = found.sequences[row, ids.shape[1] + len(plain) :].tolist()
        assert after == [0] * len(after)


def test_p18_the_first_row_of_a_sampled_batch_is_the_single_call(model, other) -> None:
    ids = torch.stack([prompt_ids(3), prompt_ids(4)])
    arguments = {"drafter": other, "controller": "static:length=4", "do_sample": True, "max_new_tokens": 9, "seed": 7}
    batch = real.generate(model, ids, **arguments)
    single = real.generate(model, ids[:1], **arguments)
    assert batch[0, : single.shape[1]].tolist() == single[0].tolist()


def test_p19_every_call_begins_anew(model, other) -> None:
    """g4 moves its length from round to round; a second call, and another row, begin where the first began."""
    speculative = real.Speculative(drafter=other, controller="g4:start=6")
    arguments = {"max_new_tokens": 14, "do_sample": False, "return_dict_in_generate": True}
    first = model.generate(**one(), custom_generate=speculative, **arguments).decoded[0]
    second = model.generate(**one(), custom_generate=speculative, **arguments).decoded[0]
    assert rounds_of(first) == rounds_of(second)
    assert first.rounds[0].drafted_len == 6
    assert len({row.drafted_len for row in first.rounds}) > 1
    twice = {key: value.repeat(2, 1) for key, value in one().items()}
    for decoded in model.generate(**twice, custom_generate=speculative, **arguments).decoded:
        assert rounds_of(decoded) == rounds_of(first)


def test_p19_state_is_carried_only_by_a_controller_that_is_handed_over(model, other) -> None:
    carries = build("lambda:carry=1", SETTING)
    arguments = {"max_new_tokens": 14, "do_sample": False, "drafter": other}

    def learnt(online: OnlineController) -> list[float]:
        return online._state[0, : carries.initial.size].tolist()

    online = OnlineController(carries)
    fresh = learnt(online)
    real.generate(model, one(), controller=online, **arguments)
    once = learnt(online)
    real.generate(model, one(), controller=online, **arguments)
    assert fresh != once != learnt(online)
    real.generate(model, one(), controller=carries, **arguments)  # a recipe: nothing it could be kept in
    assert learnt(OnlineController(carries)) == fresh
    # A rule that keeps nothing between requests keeps nothing here either.
    forgets = OnlineController(build("g4:start=6", SETTING))
    found = [
        real.generate(model, one(), controller=forgets, return_dict_in_generate=True, **arguments).decoded[0]
        for _ in range(2)
    ]
    assert rounds_of(found[0]) == rounds_of(found[1])


# --- refusals ---------------------------------------------------------------------------------------------------------

REFUSED = {
    "beams": ({"num_beams": 2}, "generation mode beam_search"),
    "contrastive": ({"penalty_alpha": 0.5, "top_k": 4}, "generation mode contrastive_search"),
    "own lookup": ({"prompt_lookup_num_tokens": 3}, "generation mode assisted_generation"),
    "attentions": ({"output_attentions": True, "return_dict_in_generate": True}, "output_attentions"),
    "hidden states": ({"output_hidden_states": True, "return_dict_in_generate": True}, "output_hidden_states"),
    "cache": ({"past_key_values": DynamicCache()}, "past_key_values"),
    "quantized cache": ({"cache_implementation": "quantized"}, "cache_implementation 'quantized'"),
    "paged cache": ({"cache_implementation": "paged"}, "cache_implementation 'paged'"),
    "guidance": ({"guidance_scale": 1.5}, "guidance_scale"),
    "positions": ({"position_ids": torch.arange(5, 17)[None]}, "position_ids"),
    "embeddings": ({"inputs_embeds": torch.zeros(1, 12, 32)}, "inputs_embeds"),
    "right padding": ({"attention_mask": torch.tensor([[1] * 10 + [0] * 2])}, "padding_side='left'"),
    "nothing but padding": ({"attention_mask": torch.zeros(1, 12, dtype=torch.int64)}, "padding_side='left'"),
}


@pytest.mark.usefixtures("no_decoding")
@pytest.mark.parametrize("name", REFUSED)
@pytest.mark.filterwarnings("ignore:.*past_key_values.*deprecated:FutureWarning")
def test_what_cannot_be_done_is_refused_before_the_first_token(name: str, model) -> None:
    arguments, message = REFUSED[name]
    arguments = {**one(), "max_new_tokens": 3, "do_sample": False, **arguments}
    with pytest.raises(ConfigError, match=message):
        real.generate(model, None, drafter="prompt-lookup", controller="g4", **arguments)


@pytest.mark.usefixtures("no_decoding")
@pytest.mark.parametrize("form", ["generate", "custom_generate"])
def test_an_assistant_belongs_into_drafter(form: str, model, other) -> None:
    choices = {"drafter": "none", "controller": "plain"}
    if form == "generate":
        call = partial(real.generate, model, one(), **choices)
    else:
        call = partial(model.generate, **one(), custom_generate=real.Speculative(**choices))
    with pytest.raises(ConfigError, match="pass that model as drafter="):
        call(assistant_model=other, max_new_tokens=3, do_sample=False)


@pytest.mark.usefixtures("no_decoding")
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"controller": "libraspec:charge_draft=1"}, "decides by what rounds cost; pass latency="),
        ({"controller": "goodput"}, "decides by what rounds cost; pass latency="),
        ({"controller": "lambda"}, "decides by what rounds cost; pass latency="),
        ({"controller": "corrected"}, "decides by what rounds cost; pass latency="),
        ({"controller": "oracle"}, "exists in replay only"),
        ({"controller": "sp2ec"}, "chooses an arm"),
        ({"controller": "statik"}, "did you mean 'static'"),
        ({"controller": 4}, "controller of type int"),
        ({"drafter": "prompt-lockup"}, "did you mean 'prompt-lookup'"),
        ({"drafter": "layer-skip:skip=1,7"}, "the target has layers 0..2"),
        ({"drafter": 4}, "drafter of type int"),
        ({"drafter": "layer-skip:skip=1", "draft_sampling": "sample", "controller": "threshold"}, "changes the output"),
        ({"draft_sampling": "beam"}, "allowed: greedy, sample"),
        ({"max_draft_len": 0}, "max_draft_len 0"),
        ({"max_draft_len": 2.5}, "max_draft_len 2.5: allowed: a whole number"),
        ({"max_draft_len": None}, "max_draft_len None: allowed: a whole number"),
        ({"seed": -1}, "seed -1"),
        ({"seed": "a"}, "seed 'a': allowed"),
        ({"stop_strings": ["a"]}, "pass the model's tokenizer"),
    ],
)
def test_choices_that_cannot_be_are_refused(arguments: dict, message: str, model) -> None:
    given = {"drafter": "prompt-lookup", "controller": "g4", "max_new_tokens": 3, **arguments}
    with pytest.raises(ConfigError, match=message):
        real.generate(model, one(), **given)


@pytest.mark.usefixtures("no_decoding")
def test_batches_that_cannot_be_are_refused(model) -> None:
    ids, mask = padded_batch()
    arguments = {"drafter": "prompt-lookup", "controller": "g4", "max_new_tokens": 3, "do_sample": False}
    inputs = {"input_ids": ids, "attention_mask": mask}
    with pytest.raises(ConfigError, match="streamer: one row at a time"):
        real.generate(model, inputs, streamer=Collect(), **arguments)
    with pytest.raises(ConfigError, match="at least one prompt of at least one token"):
        real.generate(model, ids[:0], **arguments)
    nameless = tiny_family("llama")
    nameless.generation_config.eos_token_id = nameless.generation_config.pad_token_id = None
    with pytest.raises(ConfigError, match="pad_token_id: needed for a batch of 3 rows"):
        real.generate(nameless, inputs, **arguments)
    with pytest.raises(ConfigError, match="encoder-decoder"):
        real.generate(
            T5ForConditionalGeneration(
                T5Config(vocab_size=64, d_model=8, d_kv=4, d_ff=8, num_layers=1, num_heads=2, decoder_start_token_id=0)
            ),
            ids,
            **arguments,
        )


def test_controllers_that_look_at_costs_take_a_latency(model, other, tmp_path: Path) -> None:
    save_latency(tmp_path / "latency.json", LATENCY)
    expected = model.generate(**one(), max_new_tokens=12, do_sample=False)
    for latency in (LATENCY, tmp_path / "latency.json", str(tmp_path / "latency.json")):
        found = real.generate(
            model, one(), drafter=other, controller="goodput", latency=latency, max_new_tokens=12, do_sample=False
        )
        assert torch.equal(found, expected)


def test_drafters_are_spellings_models_folders_and_objects(model, tmp_path: Path) -> None:
    folder = save_tiny(tmp_path)
    objects = (
        "none",
        "prompt-lookup:ngram=3",
        "layer-skip:keep=0-1",
        "early-exit:layers=1",
        f"model:path={folder}",
        PromptLookupDrafter(max_draft_len=3),
    )
    arguments = {"max_new_tokens": 10, "do_sample": False}
    expected = model.generate(**one(), **arguments)
    for drafter in objects:
        speculative = real.Speculative(drafter=drafter, controller="static:length=4", max_draft_len=6)
        for _ in range(2):
            found = model.generate(**one(), custom_generate=speculative, return_dict_in_generate=True, **arguments)
            assert torch.equal(found.sequences, expected)
        assert any(row.drafted_len for row in found.decoded[0].rounds) == (drafter != "none") or "lookup" in str(
            drafter
        )


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
