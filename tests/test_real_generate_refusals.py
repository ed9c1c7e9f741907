"""What `real.generate` refuses before the first token, and what it takes; vocabularies and tokenizers; P13, P14."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest

torch = pytest.importorskip("torch", reason="real/ needs the extra 'real'")

from transformers import DynamicCache, T5Config, T5ForConditionalGeneration  # noqa: E402

import real  # noqa: E402
from real.drafters.prompt_lookup import PromptLookupDrafter  # noqa: E402
from specsim.errors import ConfigError  # noqa: E402
from specsim.latency import save_latency  # noqa: E402
from tests.real_generate import LATENCY, TOKENS, Collect, Words, one, padded_batch  # noqa: E402
from tests.real_law import one_thread  # noqa: E402, F401 - a fixture
from tests.real_tiny import save_tiny, tiny_family, tiny_llama  # noqa: E402


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


# --- vocabularies -----------------------------------------------------------------------------------------------------


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
