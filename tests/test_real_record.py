"""The recorder: lock-step drafting and scoring equal the one-position-at-a-time definition."""

from __future__ import annotations

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="real/ needs the extra 'real'")

from real import branches  # noqa: E402
from real.drafters.base import NoDrafter  # noqa: E402
from real.drafters.layer_skip import skip_layers  # noqa: E402
from real.drafters.model import ModelDrafter  # noqa: E402
from real.drafters.prompt_lookup import PromptLookupDrafter, lookup  # noqa: E402
from real.draws import KeyedDraws  # noqa: E402
from real.record import (  # noqa: E402
    ModelProposer,
    PromptLookupProposer,
    decode_plain,
    proposer_of,
    record_request,
)
from real.verify import Draft  # noqa: E402
from specsim.errors import ConfigError  # noqa: E402
from tests.real_tiny import STOP, naive_rows, prompt_ids, tiny_llama  # noqa: E402

LIMITS = {"max_new_tokens": 28, "max_draft_len": 6}


def assert_same_rows(fast, slow):
    for name in ("output", "offsets", "tokens", "accept_len", "accept_prob"):
        np.testing.assert_array_equal(getattr(fast, name), getattr(slow, name), err_msg=name)
    for name in ("q", "p", "entropy"):
        np.testing.assert_allclose(getattr(fast, name), getattr(slow, name), atol=1e-4, rtol=1e-4, err_msg=name)


@pytest.mark.parametrize(("skip", "slots"), [((1,), 768), ((0, 2), 13), ((3,), 6)])
def test_lock_step_equals_one_position_at_a_time(skip, slots, monkeypatch):
    # Small slot limits cut the branches into many groups; the groups must not see each other.
    monkeypatch.setattr(branches, "SLOT_LIMIT", slots)
    target, prompt = tiny_llama(layers=4, seed=3, spread=0.08), prompt_ids(5)
    fast = record_request(target, ModelProposer(skip_layers(target, skip)), prompt, stop_ids=(STOP,), **LIMITS)
    slow = naive_rows(target, skip_layers(target, skip), prompt, **LIMITS)
    assert_same_rows(fast, slow)
    assert fast.mismatches == 0
    assert 0 < fast.accept_len.mean() < 6


def test_the_target_as_its_own_drafter_is_always_accepted():
    target, prompt = tiny_llama(seed=3, spread=0.08), prompt_ids(5)
    rows = record_request(target, ModelProposer(skip_layers(target, ())), prompt, stop_ids=(STOP,), **LIMITS)
    m = np.diff(rows.offsets)
    np.testing.assert_array_equal(rows.accept_len, m)
    np.testing.assert_array_equal(rows.accept_prob, 1.0)
    np.testing.assert_allclose(rows.q, rows.p, atol=1e-5)


def test_draft_length_is_cut_at_the_tokens_left():
    target, prompt = tiny_llama(seed=3, spread=0.08), prompt_ids(5)
    rows = record_request(target, ModelProposer(skip_layers(target, (1,))), prompt, stop_ids=(STOP,), **LIMITS)
    n = len(rows.output)
    np.testing.assert_array_equal(np.diff(rows.offsets), [min(6, n - pos - 1) for pos in range(n)])


def test_a_response_of_one_token_has_one_empty_row():
    target, prompt = tiny_llama(seed=3), prompt_ids(5)
    rows = record_request(
        target, ModelProposer(skip_layers(target, (1,))), prompt, stop_ids=(STOP,), max_new_tokens=1, max_draft_len=6
    )
    assert rows.offsets.tolist() == [0, 0]
    assert rows.accept_len.tolist() == [0]
    assert len(rows.q) == 0


def test_decoding_stops_at_the_end_token_and_keeps_it():
    target, prompt = tiny_llama(seed=3, spread=0.08), prompt_ids(5)
    free = decode_plain(target, prompt, 20, ())
    stop = free[7]
    stopped = decode_plain(target, prompt, 20, (stop,))
    assert stopped == free[: free.index(stop) + 1]


def test_prompt_lookup_rows():
    target = tiny_llama(seed=3, spread=0.08)
    prompt = torch.cat([prompt_ids(5), prompt_ids(5)])
    proposer = PromptLookupProposer(stop_ids=(STOP,))
    rows = record_request(target, proposer, prompt, stop_ids=(STOP,), **LIMITS)
    text = prompt.tolist() + rows.output.tolist()
    n = len(rows.output)
    for pos in range(n):
        a, b = rows.offsets[pos : pos + 2]
        draft = rows.tokens[a:b].tolist()
        assert draft == lookup(text[: len(prompt) + pos], min(6, n - pos - 1), stop_ids=(STOP,))
        ones = rows.accept_prob[a:b].tolist()
        assert rows.accept_len[pos] == (ones.index(0.0) if 0.0 in ones else len(ones))
        context = text[: len(prompt) + pos]
        for place, token in enumerate(draft):
            with torch.inference_mode():
                log_probs = target(input_ids=torch.tensor([context + draft[:place]])).logits[0, -1].log_softmax(-1)
            assert rows.p[a + place] == pytest.approx(float(log_probs[token].exp()), abs=1e-4)
            assert rows.accept_prob[a + place] == float(int(log_probs.argmax()) == token)
    assert (rows.q == 1.0).all()
    assert (rows.entropy == 0.0).all()
    assert 0 < len(rows.q) < 6 * n


@pytest.mark.parametrize("kind", ["early-exit", "other", "fewer ids", "more ids", "lookup"])
def test_recorded_drafts_are_the_live_drafters(kind):
    target = tiny_llama(seed=3, spread=0.08)
    drafter = {
        "early-exit": lambda: ModelDrafter(skip_layers(target, (1, 2)), name="e", max_draft_len=6),
        "other": lambda: ModelDrafter(tiny_llama(layers=2, seed=8, spread=0.08), name="o", max_draft_len=6, width=64),
        "fewer ids": lambda: ModelDrafter(tiny_llama(seed=8, vocabulary=50), name="f", max_draft_len=6, width=64),
        "more ids": lambda: ModelDrafter(tiny_llama(seed=8, vocabulary=90), name="m", max_draft_len=6, width=64),
        "lookup": lambda: PromptLookupDrafter(max_draft_len=6, stop_ids=(STOP,)),
    }[kind]()
    prompt = torch.cat([prompt_ids(5), prompt_ids(5)])
    rows = record_request(target, proposer_of(drafter), prompt, stop_ids=(STOP,), **LIMITS)
    text = torch.cat([prompt, torch.from_numpy(rows.output)])
    assert len(rows.tokens) > 20
    for pos in range(len(rows.output)):
        a, b = rows.offsets[pos : pos + 2]
        most = min(6, len(rows.output) - pos - 1)
        with torch.inference_mode():
            drafter.start(text[: len(prompt) + pos], len(text) + 7, KeyedDraws(0, 0), ())
            draft = drafter.propose(most, -1) if most else Draft.nothing("cpu")
        assert rows.tokens[a:b].tolist() == draft.tokens.tolist()
        np.testing.assert_allclose(rows.q[a:b], draft.q, atol=1e-4)


def test_what_cannot_be_recorded_is_refused():
    sampled = ModelDrafter(tiny_llama(), name="sampled", sampling="sample")
    for drafter in (NoDrafter(), sampled):
        with pytest.raises(ConfigError, match=f"{drafter.name}.*nothing to record"):
            proposer_of(drafter)


def test_a_text_that_one_pass_disagrees_with_is_counted_and_located():
    class Forgetful(type(tiny_llama())):
        """Decodes another token than its argmax when it is asked for one token at a time."""

        def forward(self, *args, **kwargs):
            output = super().forward(*args, **kwargs)
            if kwargs["input_ids"].shape[1] == 1:
                output.logits[..., 7] += 1000.0
            return output

    target = tiny_llama(seed=3, spread=0.08)
    target.__class__ = Forgetful
    lines: list[str] = []
    rows = record_request(
        target,
        PromptLookupProposer(),
        prompt_ids(5),
        stop_ids=(),
        max_new_tokens=5,
        max_draft_len=2,
        log=lines.append,
    )
    assert rows.mismatches == len(lines) == 5
    assert lines[0].startswith("output position 0: decoded 7")
    assert "logit gap" in lines[0]
