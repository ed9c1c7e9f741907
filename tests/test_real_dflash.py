"""The DFlash drafter in the loop: what it proposes is what a pass without any cache would, under either pass rule."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

torch = pytest.importorskip("torch", reason="real/ needs the extra 'real'")

from real.drafters.dflash import DFlashDrafter, first_choice, pass_len  # noqa: E402
from real.drafters.dflash_net import embedding_of, head_of  # noqa: E402
from real.draws import KeyedDraws  # noqa: E402
from real.loop import Settings, decode  # noqa: E402
from real.record import proposer_of, record_request  # noqa: E402
from real.target import Target  # noqa: E402
from real.verify import Draft  # noqa: E402
from specsim.errors import ConfigError  # noqa: E402
from specsim.online import OnlineController  # noqa: E402
from tests.dflash_tiny import features_of, fitted_dflash, tiny_dflash  # noqa: E402
from tests.real_law import controller_of, one_thread  # noqa: E402, F401 - one_thread is a fixture
from tests.real_lossless import random_lengths, subject  # noqa: E402
from tests.real_tiny import prompt_ids, tiny_llama  # noqa: E402

BLOCK, LONGEST = 3, 8
SLIDING = {"layer_types": ("sliding_attention", "full_attention"), "sliding_window": 5}


@functools.cache
def fitted(**options: Any) -> Any:
    """For the llama of `real_lossless`: right about half the time on its plain text."""
    tried = subject("llama")
    return fitted_dflash(tried.model, torch.cat([tried.prompt, torch.tensor(tried.plain)]), noise=0.3, **options)


def drafter_of(network: Any, model: Any, **options: Any) -> DFlashDrafter:
    return DFlashDrafter(network, model, name="dflash", **({"max_draft_len": LONGEST} | options))


@torch.inference_mode()
def block(drafter: DFlashDrafter, text: list[int], masks: int) -> tuple[list[int], torch.Tensor]:
    """(tokens, their probabilities) of one pass with so many masks after a text, nothing cached."""
    network, model, ids = drafter.network, drafter.model, torch.tensor(text)
    features = features_of(model, ids, network.config.target_layer_ids)[:, :-1]
    hidden = network(
        network.noise(ids[-1:], 1 + masks, embedding_of(network, model)),
        network.context(features),
        context_positions=torch.arange(len(ids) - 1),
        block_positions=torch.arange(len(ids) - 1, len(ids) + masks),
    )
    tokens, q = first_choice(network, network.logits(hidden[0, 1:], *head_of(network, model)))
    return tokens.tolist(), q


def expected(drafter: DFlashDrafter, text: list[int], count: int) -> tuple[list[int], torch.Tensor, int]:
    """(tokens, q, passes) of a draft of `count` tokens asked for at once, by the rule as the module states it."""
    passes = -(-count // drafter.block_len)
    tokens, q = block(drafter, text, pass_len(1, drafter.block_len, drafter.max_draft_len))
    for number in range(2, passes + 1):
        more, probabilities = block(drafter, text, pass_len(number, drafter.block_len, drafter.max_draft_len))
        if drafter.pass_rule == "keep-first":
            more, probabilities = tokens + more[len(tokens) :], torch.cat([q, probabilities[len(tokens) :]])
        tokens, q = more, probabilities
    return tokens[:count], q[:count], passes if drafter.pass_rule == "keep-first" else min(passes, 1)


class Compared(DFlashDrafter):
    """Every proposal is compared with passes without any cache."""

    compared = 0

    def start(self, prompt: torch.Tensor, *rest: Any) -> None:
        super().start(prompt, *rest)
        self.seen = prompt.tolist()

    def commit(self, tokens: Sequence[int]) -> None:
        super().commit(tokens)
        self.seen += tokens

    def propose(self, count: int, arm: int) -> Draft:
        draft = super().propose(count, arm)
        tokens, q, passes = expected(self, self.seen, len(draft.tokens))
        assert draft.tokens.tolist() == tokens
        torch.testing.assert_close(draft.q, q, atol=1e-5, rtol=1e-4)
        # Asked for bit by bit, as some rules do, per-length makes one pass each time.
        assert draft.passes == passes if self.pass_rule == "keep-first" else draft.passes >= passes
        self.compared += 1
        return draft


@pytest.mark.parametrize("pass_rule", ["keep-first", "per-length"])
@pytest.mark.parametrize("kind", ["full", "sliding", "kept"])
def test_after_every_rejection_drafts_are_those_of_fresh_passes(pass_rule: str, kind: str) -> None:
    """Random lengths, so that rounds without a draft, and several passes in one round, come up too."""
    tried = subject("llama")
    options = {"full": {}, "sliding": SLIDING, "kept": {"kept_vocab": 60}}[kind]
    network = tiny_dflash(tried.model, **options) if kind == "kept" else fitted(**options)
    drafter = Compared(network, tried.model, name="c", max_draft_len=LONGEST, pass_rule=pass_rule)
    found = decode(
        tried.targets["dynamic"],
        drafter,
        OnlineController(random_lengths(), seed=2),
        tried.prompt,
        Settings(max_new_tokens=14),
    )
    assert found.output == tried.plain
    assert drafter.compared >= 4
    assert any(row.accepted_len < row.submitted_len for row in found.rounds)


@settings(max_examples=15)
@given(
    st.lists(st.integers(1, LONGEST), min_size=1, max_size=4), st.sampled_from(["keep-first", "per-length"]), st.data()
)
def test_what_is_asked_for_first_does_not_matter(counts: list[int], pass_rule: str, data: st.DataObject) -> None:
    """A round's draft depends on the longest request only; a shorter one is its beginning under keep-first."""
    model = subject("llama").model
    drafter, text = drafter_of(fitted(), model, pass_rule=pass_rule), prompt_ids(data.draw(st.integers(0, 5)), 9)
    target = Target(model)
    with torch.inference_mode():
        target.start(text, 64, drafter.tap)
        drafter.start(text, 64, KeyedDraws(0, 0), ())
        for number, count in enumerate(counts):
            draft = drafter.propose(count, -1)
            tokens, q, _ = expected(drafter, text.tolist(), count)
            longest = max(counts[: number + 1])
            if pass_rule == "per-length" and longest > count:
                tokens, q = (part[:count] for part in expected(drafter, text.tolist(), longest)[:2])
            assert draft.tokens.tolist() == tokens
            torch.testing.assert_close(draft.q, q, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("pass_rule", ["keep-first", "per-length"])
def test_passes_for_a_long_draft_at_once(pass_rule: str) -> None:
    """Blocks of 3 tokens, 8 at most: passes of 3, 6 and 8 masks, of which per-length makes the last one only."""
    assert [pass_len(number, 3, 8) for number in (1, 2, 3)] == [3, 6, 8]
    assert pass_len(1, 15, 4) == 15  # the first block is as trained, however little may be drafted
    tried = subject("llama")
    drafter = drafter_of(fitted(), tried.model, pass_rule=pass_rule)
    for spelling, drafted, passes in (("static:length=2", 3, 1), ("static:length=4", 6, 2), ("static:length=8", 8, 3)):
        online = OnlineController(controller_of(spelling, drafter))
        found = decode(tried.targets["dynamic"], drafter, online, tried.prompt, Settings(max_new_tokens=14))
        row = found.rounds[0]
        made = passes if pass_rule == "keep-first" else 1
        assert (row.drafted_len, row.draft_passes, row.forward_passes) == (drafted, passes, made)


def test_another_block_size_than_trained() -> None:
    tried = subject("llama")
    drafter = drafter_of(fitted(), tried.model, block_size=6)
    assert drafter.block_len == 5
    online = OnlineController(controller_of("static:length=5", drafter))
    found = decode(tried.targets["dynamic"], drafter, online, tried.prompt, Settings(max_new_tokens=14))
    assert (found.rounds[0].drafted_len, found.rounds[0].forward_passes) == (5, 1)
    assert found.output == tried.plain


@pytest.mark.parametrize("pass_rule", ["keep-first", "per-length"])
@pytest.mark.parametrize("prompt_len", [1, 2, 18])
def test_the_recorder_proposes_what_the_drafter_does(pass_rule: str, prompt_len: int) -> None:
    """At every position of a response; a prompt of one token leaves the first position without a draft."""
    tried = subject("llama")
    drafter = drafter_of(fitted(), tried.model, max_draft_len=7, pass_rule=pass_rule)
    prompt = tried.prompt[:prompt_len]
    rows = record_request(
        tried.model, proposer_of(drafter), prompt, max_new_tokens=16, max_draft_len=7, stop_ids=(), log=pytest.fail
    )
    text = prompt.tolist() + rows.output.tolist()
    assert len(rows.output) == 16
    for pos in range(16):
        begin, end = rows.offsets[pos : pos + 2].tolist()
        want = min(7, 16 - pos - 1) if prompt_len + pos > 1 else 0
        assert end - begin == want
        tokens, q, _ = expected(drafter, text[: prompt_len + pos], want) if want else ([], torch.zeros(0), 0)
        assert rows.tokens[begin:end].tolist() == tokens
        torch.testing.assert_close(torch.from_numpy(rows.q[begin:end]), q, atol=1e-5, rtol=1e-4)
    assert prompt_len < 18 or rows.accept_len.max() >= 2


def test_sampled_drafts_are_not_recorded() -> None:
    drafter = drafter_of(tiny_dflash(subject("llama").model), subject("llama").model, sampling="sample")
    with pytest.raises(ConfigError, match="nothing to record"):
        proposer_of(drafter)


def test_a_prompt_read_in_the_first_round_is_drafted_after_in_the_second() -> None:
    """The target's first pass takes the prompt in, so the first round has no hidden states to draft from."""
    tried = subject("llama")
    drafter = drafter_of(fitted(), tried.model)
    target, online = Target(tried.model, merge_prompt=True), OnlineController(controller_of("static:length=3", drafter))
    found = decode(target, drafter, online, tried.prompt, Settings(max_new_tokens=14))
    assert found.output == tried.plain
    assert found.rounds[0].drafted_len == found.rounds[0].forward_passes == 0
    assert all(row.drafted_len for row in found.rounds[1:-1])


def test_no_draft_beyond_the_drafters_window() -> None:
    tried = subject("llama")
    network = tiny_dflash(tried.model, max_position_embeddings=len(tried.prompt) + 4)
    drafter = drafter_of(network, tried.model)
    online = OnlineController(controller_of("static:length=8", drafter))
    found = decode(tried.targets["dynamic"], drafter, online, tried.prompt, Settings(max_new_tokens=14))
    assert found.output == tried.plain
    assert all(row.drafted_len <= max(0, len(tried.prompt) + 4 - row.ctx_len) for row in found.rounds)
    assert found.rounds[0].drafted_len == 4
    assert found.rounds[-1].drafted_len == 0


def test_two_requests_one_after_another() -> None:
    """Nothing of the first is left when the second begins."""
    tried = subject("llama")
    drafter = drafter_of(fitted(), tried.model)
    outputs = []
    for prompt in (tried.prompt, tried.prompt[:7], tried.prompt):
        online = OnlineController(controller_of("static:length=4", drafter))
        found = decode(tried.targets["dynamic"], drafter, online, prompt, Settings(max_new_tokens=14))
        outputs.append((found.output, [row.accepted_len for row in found.rounds]))
    assert outputs[0] == outputs[2]
    assert outputs[0][0] == tried.plain


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"sampling": "beam"}, "draft sampling 'beam': allowed: greedy, sample"),
        ({"pass_rule": "x"}, "pass_rule 'x': allowed: keep-first, per-length"),
        ({"max_draft_len": 0}, "max_draft_len 0: allowed: 1 or more"),
        ({"block_size": 1}, "block size 1: allowed: 2 or more"),
    ],
)
def test_options_that_are_refused(options: dict[str, Any], message: str) -> None:
    model = tiny_llama()
    with pytest.raises(ConfigError, match=message):
        drafter_of(tiny_dflash(model), model, **options)


def test_layers_the_target_does_not_have_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"features of layers \[0, 2\]: the target has layers 0\.\.1"):
        drafter_of(tiny_dflash(tiny_llama()), tiny_llama(layers=2))
