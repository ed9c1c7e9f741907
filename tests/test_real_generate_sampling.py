"""`real.generate`: seeds and laws of samples, settings in force, batches and state; P7, P8, P18, P19."""

from __future__ import annotations

import logging

import pytest

torch = pytest.importorskip("torch", reason="real/ needs the extra 'real'")


import real  # noqa: E402
from specsim.controllers import build  # noqa: E402
from specsim.online import OnlineController  # noqa: E402
from tests.real_generate import LATENCY, SETTING, one, padded_batch, rounds_of  # noqa: E402
from tests.real_law import one_thread  # noqa: E402, F401 - a fixture
from tests.real_tiny import prompt_ids, tiny_family  # noqa: E402


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


# --- batches and state ------------------------------------------------------------------------------------------------


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
