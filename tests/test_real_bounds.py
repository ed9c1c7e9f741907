"""Where an output ends and what is counted: the pains P15, P16 and P17, and properties over all of it at once."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

torch = pytest.importorskip("torch", reason="real/ needs the extra 'real'")

import real  # noqa: E402
from real.loop import Settings  # noqa: E402
from specsim.errors import ConfigError  # noqa: E402
from tests.real_law import Scripted, one_thread  # noqa: E402, F401 - one is a fixture
from tests.real_scripted import LENGTH_CONTROLLERS, STOP, VOCABULARY, Pattern, choice, run, scripted  # noqa: E402
from tests.real_tiny import prompt_ids, tiny_llama  # noqa: E402


def plain(model: Scripted, prompt: Sequence[int], limit: int, stops: Sequence[int] = ()) -> tuple[list[int], str]:
    """Plain decoding written down once more, cut at the limits, and why it ended."""
    text, window = list(prompt), model.config.max_position_embeddings
    while True:
        text.append(choice(model, text))
        if text[-1] in stops:
            return text[len(prompt) :], "stop"
        if len(text) - len(prompt) == limit:
            return text[len(prompt) :], "length"
        if len(text) == window:
            return text[len(prompt) :], "context"


def always(pos: int) -> bool:
    return True


def never(pos: int) -> bool:
    return False


# --- all of it at once ------------------------------------------------------------------------------------------------


@settings(max_examples=4 * settings.default.max_examples)
@given(
    seed=st.integers(0, 40),
    prompt=st.lists(st.integers(0, VOCABULARY - 1), min_size=1, max_size=6),
    limit=st.integers(1, 14),
    room=st.none() | st.integers(1, 14),
    spelling=st.sampled_from(LENGTH_CONTROLLERS),
    max_draft_len=st.integers(1, 9),
    block_len=st.integers(1, 4),
    pattern=st.sampled_from([[True], [False]]) | st.lists(st.booleans(), min_size=2, max_size=7),
    q=st.lists(st.floats(0.05, 1.0), min_size=1, max_size=3),
    stops=st.sampled_from([(), (STOP,), (STOP, 2)]),
)
def test_output_is_plain_decodings_cut_at_the_limits(
    seed, prompt, limit, room, spelling, max_draft_len, block_len, pattern, q, stops
) -> None:
    window = None if room is None else len(prompt) + room
    model = scripted(seed, window=window)
    drafter = Pattern(
        model,
        lambda pos: pattern[pos % len(pattern)],
        q=lambda pos: q[pos % len(q)],
        max_draft_len=max_draft_len,
        block_len=min(block_len, max_draft_len),
    )
    asked = Settings(max_new_tokens=limit, stop_ids=stops)
    decoded, online, announced = run(model, drafter, spelling, prompt, asked)
    assert (decoded.output, decoded.reason) == plain(model, prompt, limit, stops)
    assert announced == decoded.output
    assert len(decoded.output) <= limit
    assert window is None or len(prompt) + len(decoded.output) <= window
    pos = 0
    for number, row in enumerate(decoded.rounds):
        assert (row.round, row.pos, row.ctx_len) == (number, pos, len(prompt) + pos)
        assert row.emitted_len == row.accepted_len + 1
        assert row.accepted_len <= row.submitted_len <= row.drafted_len <= row.available_len
        ends = [limit - pos, max_draft_len + 1] + ([] if window is None else [window - row.ctx_len])
        assert row.available_len <= min(ends) - 1
        assert len(row.q) == row.drafted_len
        pos += row.emitted_len
    assert pos == sum(row.emitted_len for row in decoded.rounds) == len(decoded.output)
    assert online.told == [row.accepted_len for row in decoded.rounds]


# --- P15: the end of the text inside an accepted block ----------------------------------------------------------------


@pytest.mark.parametrize("end", range(1, 10))
@pytest.mark.parametrize("length", [1, 3, 4, 8])
def test_p15_an_end_inside_an_accepted_block_ends_everything(end: int, length: int) -> None:
    """The end of text is output token number `end`, wherever in a block that is; all drafts are right."""
    model, prompt = scripted(5, stop=False), [0, 1]
    whole, _ = plain(model, prompt, 12)
    text = tuple(prompt + whole[: end - 1])
    model._known[text] = [9.0 if token == STOP else 0.0 for token in range(VOCABULARY)]
    decoded, online, announced = run(
        model,
        Pattern(model, always),
        f"static:length={length}",
        prompt,
        Settings(max_new_tokens=12, stop_ids=(STOP,)),
    )
    expected = [*whole[: end - 1], STOP]
    assert decoded.output == announced == expected
    assert decoded.reason == "stop"
    *full, last = decoded.rounds
    assert [row.accepted_len for row in full] == [length] * len(full)
    assert (
        last.accepted_len == online.told[-1] == (end - 1) % (length + 1)
    )  # of `submitted_len`, all of which were right
    assert last.submitted_len >= last.accepted_len
    assert sum(online.told) + len(decoded.rounds) == end


def test_p15_after_the_end_there_is_padding_only() -> None:
    """The same through `real.generate`: neither sequences nor streamer nor counts hold a token after the end."""
    model = tiny_llama()
    ids = prompt_ids(3)[None]
    mask = torch.ones_like(ids)
    whole = model.generate(ids, attention_mask=mask, max_new_tokens=16, do_sample=False, eos_token_id=None)[0, 12:]
    end = next(token for token in whole[5:].tolist() if token not in whole[:5])
    place = whole.tolist().index(end)
    received: list[int] = []

    class Streamer:
        def put(self, tokens: torch.Tensor) -> None:
            received.extend(tokens.flatten().tolist())

        def end(self) -> None:
            pass

    found = real.generate(
        model,
        {"input_ids": ids, "attention_mask": mask},
        drafter=tiny_llama(),  # the same weights: every draft is right
        controller="static:length=24",
        max_new_tokens=16,
        do_sample=False,
        eos_token_id=[end],
        streamer=Streamer(),
        return_dict_in_generate=True,
    )
    (row,) = found.decoded[0].rounds
    assert found.sequences[0, 12:].tolist() == received[12:] == whole[: place + 1].tolist()
    assert (row.accepted_len, row.emitted_len) == (place, place + 1)
    assert row.submitted_len == 15


@pytest.mark.parametrize("place", [0, 2, 5])
def test_p15_a_criterion_ends_inside_a_block_too(place: int) -> None:
    model, prompt = scripted(5, stop=False), [0, 1]
    whole, _ = plain(model, prompt, 12)
    asked = Settings(max_new_tokens=12, criteria=[lambda text: len(text) == len(prompt) + place + 1])
    decoded, online, announced = run(model, Pattern(model, always), "static:length=8", prompt, asked)
    assert decoded.output == announced == whole[: place + 1]
    assert decoded.reason == "criterion"
    assert online.told == [place]


# --- P16: the limit on new tokens -------------------------------------------------------------------------------------


@pytest.mark.parametrize("length", [1, 2, 3, 5, 8])
@pytest.mark.parametrize("right", [always, never], ids=["all right", "none right"])
def test_p16_every_limit_is_met_exactly_and_the_cut_draft_is_logged(length: int, right) -> None:
    model, prompt = scripted(2, stop=False), [3]
    whole, _ = plain(model, prompt, 20)
    for limit in range(1, 21):
        drafter = Pattern(model, right)
        decoded, _, announced = run(model, drafter, f"static:length={length}", prompt, Settings(max_new_tokens=limit))
        assert decoded.output == announced == whole[:limit]
        assert decoded.reason == "length"
        for row in decoded.rounds:
            clipped = min(length, limit - row.pos - 1)
            assert (row.drafted_len, row.submitted_len) == (clipped, clipped)
        step = length + 1 if right is always else 1
        assert len(decoded.rounds) == -(-limit // step)


def test_p16_whole_passes_are_cut_as_well() -> None:
    """A drafter that works in blocks of 4 is asked for less than a block when no more fits."""
    model, prompt = scripted(2, stop=False), [3]
    drafter = Pattern(model, always, block_len=4)
    decoded, _, _ = run(model, drafter, "static:length=8", prompt, Settings(max_new_tokens=11))
    assert [(row.drafted_len, row.draft_passes, row.emitted_len) for row in decoded.rounds] == [(8, 2, 9), (1, 1, 2)]


@pytest.mark.parametrize("drafter", ["prompt-lookup", "layer-skip:skip=1", "early-exit:layers=1"])
@pytest.mark.parametrize("limit", [1, 2, 5, 11])
def test_p16_generate_never_returns_more(drafter: str, limit: int) -> None:
    model, ids = tiny_llama(), prompt_ids(3)[None]
    found = real.generate(
        model,
        ids,
        drafter=drafter,
        controller="static:length=7",
        max_new_tokens=limit,
        min_new_tokens=limit,
        do_sample=False,
    )
    assert found.shape == (1, 12 + limit)


# --- P17: the context window ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("cache", ["dynamic", "static"])
@pytest.mark.parametrize("drafter", ["twin", "shorter window", "prompt-lookup", "layer-skip:skip=1", "none"])
def test_p17_the_window_clips_the_draft_and_ends_the_output(drafter: str, cache: str) -> None:
    window, prompt = 24, prompt_ids(3)
    model = tiny_llama(window=window)
    choices = {"twin": tiny_llama(window=window), "shorter window": tiny_llama(window=16)}
    arguments = {"do_sample": False, "eos_token_id": None, "return_dict_in_generate": True}
    with pytest.warns(UserWarning, match="1 of 1 outputs end at the model's context window of 24 tokens"):
        found = real.generate(
            model,
            prompt[None],
            drafter=choices.get(drafter, drafter),
            controller="static:length=5",
            cache_implementation=cache,
            max_new_tokens=40,
            **arguments,
        )
    assert found.sequences.shape == (1, window)
    assert found.decoded[0].reason == "context"
    plainly = tiny_llama(window=256)  # the same weights; positions are computed, so a longer window changes nothing
    mask = torch.ones(1, 12, dtype=torch.int64)
    expected = plainly.generate(prompt[None], attention_mask=mask, max_new_tokens=12, **arguments)
    assert found.sequences.tolist() == expected.sequences.tolist()
    for row in found.decoded[0].rounds:
        assert row.drafted_len <= window - row.ctx_len - 1
    if drafter == "twin":
        assert [row.drafted_len for row in found.decoded[0].rounds] == [5, 5]
    if drafter == "shorter window":
        assert all(row.drafted_len <= max(0, 16 - row.ctx_len) for row in found.decoded[0].rounds)
        assert found.decoded[0].rounds[0].drafted_len == 4


def test_p17_a_prompt_that_fills_the_window_is_refused() -> None:
    model = tiny_llama(window=12)
    with pytest.raises(ConfigError, match="a prompt has 12 tokens, the target's context window is 12; shorten it"):
        real.generate(model, prompt_ids(3)[None], drafter="none", controller="plain", max_new_tokens=3)
    with pytest.warns(UserWarning, match="context window of 12"):
        found = real.generate(
            model, prompt_ids(3, 11)[None], drafter="none", controller="plain", max_new_tokens=3, do_sample=False
        )
    assert found.shape == (1, 12)
