"""Self-speculation: what an arm drafts on the target's cache, and that the cache is the target's again afterwards."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

torch = pytest.importorskip("torch", reason="real/ needs the extra 'real'")

from real.builders.arm import Arm  # noqa: E402
from real.drafters.base import Drafter  # noqa: E402
from real.drafters.selfspec import SelfDrafter  # noqa: E402
from real.drafters.subblocks import SubBlocks  # noqa: E402
from real.loop import Settings, decode  # noqa: E402
from real.target import Target  # noqa: E402
from real.verify import Draft  # noqa: E402
from specsim.errors import ConfigError  # noqa: E402
from specsim.online import OnlineController  # noqa: E402
from tests.real_law import one_thread  # noqa: E402, F401 - one_thread is a fixture
from tests.real_lossless import plain_greedy, random_lengths, tiny_class  # noqa: E402
from tests.real_selfspec import (  # noqa: E402
    ARMS,
    HALVED,
    LooksAtCache,
    Reference,
    blocks_of,
    buffers,
    controller_for,
    self_drafter,
)
from tests.real_tiny import prompt_ids, tiny_family, tiny_llama  # noqa: E402

CACHES = ("dynamic", "static")


class Overheard(SelfDrafter):
    """Keeps (text, arm, tokens and probabilities drafted) of every round."""

    def start(self, prompt: torch.Tensor, *rest: Any) -> None:
        self.text, self.heard = prompt.tolist(), getattr(self, "heard", [])
        super().start(prompt, *rest)

    def propose(self, count: int, arm: int) -> Draft:
        found = super().propose(count, arm)
        self.now = (list(self.text), self._chosen, found.tokens.tolist(), found.q.tolist())
        return found

    def commit(self, tokens: list[int]) -> None:
        if self._tokens:
            self.heard.append(self.now)
        super().commit(tokens)
        self.text += tokens


def overheard(name: str, arms: tuple[Arm, ...] = ARMS) -> Overheard:
    drafter = self_drafter(blocks_of(name), arms)
    drafter.__class__ = Overheard
    return drafter


@pytest.mark.parametrize("name", HALVED)
def test_a_round_drafts_what_the_reference_does_on_the_targets_keys_and_values(name: str) -> None:
    """In decodes with rejections and an arm drawn for each round; Mistral's window of 8 leaves the prompt behind."""
    model = blocks_of(name).target
    reference, drafter = Reference(model), overheard(name)
    for cache in CACHES:
        online = OnlineController(controller_for("exp3spec", drafter), seed=3)
        found = decode(Target(model, cache=cache), drafter, online, prompt_ids(1), Settings(max_new_tokens=20))
        assert sum(row.accepted_len < row.submitted_len for row in found.rounds) >= 2
    assert len({arm for _, arm, *_ in drafter.heard}) >= 4
    for text, arm, tokens, q in drafter.heard[:: max(1, len(drafter.heard) // 8)]:
        want = reference.draft(text, arm, len(tokens))
        assert tokens == want[0], str(arm)
        assert q == pytest.approx(want[1], abs=2e-5), str(arm)


@settings(max_examples=25)
@given(st.lists(st.booleans(), min_size=6, max_size=6), st.sampled_from(HALVED), st.integers(0, 50))
def test_any_arm_drafts_what_the_reference_does(left_out: list[bool], name: str, seed: int) -> None:
    if all(left_out):
        left_out[0] = False
    arm = Arm.from_mask(left_out)
    drafter, prompt = overheard(name, (arm,)), prompt_ids(seed, 9)
    decode(
        Target(blocks_of(name).target),
        drafter,
        OnlineController(controller_for("arm:index=0", drafter)),
        prompt,
        Settings(max_new_tokens=5),
    )
    text, _, tokens, _ = drafter.heard[0]
    assert (text, tokens) == (prompt.tolist(), Reference(blocks_of(name).target).draft(text, arm, len(tokens))[0])


@pytest.mark.parametrize("cache", CACHES)
@pytest.mark.parametrize("name", HALVED)
def test_after_every_round_the_cache_is_that_of_a_fresh_prefill(name: str, cache: str) -> None:
    """In float64, where rounding is far below any mistake; any part of a draft is submitted, none of it too."""
    blocks = SubBlocks(tiny_family(name).double())
    target = LooksAtCache(blocks.target, cache=cache)
    for number, arm in enumerate(ARMS[1:]):
        drafter, online = self_drafter(blocks, (arm,), tree=number % 2 == 0), OnlineController(random_lengths(), seed=2)
        decode(target, drafter, online, prompt_ids(2), Settings(max_new_tokens=14))
        assert target.compared >= 3
        assert target.gap <= 1e-13 * target.scale, str(arm)


def test_the_check_above_sees_a_drafted_key_left_behind() -> None:
    class Forgetful(LooksAtCache):
        def score(self, tokens: torch.Tensor, parents: torch.Tensor | None = None) -> torch.Tensor:
            self._lent = False
            return super().score(tokens, parents)

    drafter = self_drafter(blocks_of("llama"), (Arm.parse("m1"),))
    static = OnlineController(controller_for("arm:index=0", drafter))
    with pytest.raises(AssertionError):
        decode(Forgetful(blocks_of("llama").target), drafter, static, prompt_ids(2), Settings(max_new_tokens=14))


class Repeats(Drafter):
    """Proposes what another drafter proposed, and touches no cache."""

    name, block_len, max_draft_len = "repeats", 1, 4

    def __init__(self, drafts: dict[tuple[int, ...], list[int]]) -> None:
        self.drafts = drafts

    def start(self, prompt: torch.Tensor, *rest: Any) -> None:
        self.text = prompt.tolist()

    def propose(self, count: int, arm: int) -> Draft:
        tokens = torch.tensor(self.drafts[tuple(self.text)])
        return Draft(tokens, torch.ones(len(tokens)))

    def commit(self, tokens: list[int]) -> None:
        self.text += tokens


@pytest.mark.parametrize("cache", CACHES)
@pytest.mark.parametrize("arm", ARMS, ids=str)
def test_the_cache_is_bit_for_bit_that_of_a_drafter_with_none_of_its_own(arm: Arm, cache: str) -> None:
    drafter, target = overheard("llama", (arm,)), Target(blocks_of("llama").target, cache=cache)
    for seed in range(3):
        drafter.heard = []
        static, asked = controller_for("arm:index=0", drafter), Settings(max_new_tokens=16)
        found = decode(target, drafter, OnlineController(static), prompt_ids(seed), asked)
        ours = buffers(target)
        other = Repeats({tuple(text): tokens for text, _, tokens, _ in drafter.heard})
        again = decode(target, other, OnlineController(static), prompt_ids(seed), asked)
        assert [row.accepted_len for row in again.rounds] == [row.accepted_len for row in found.rounds]
        assert all(torch.equal(one, two) for one, two in zip(ours, buffers(target), strict=True))


def test_the_whole_target_as_an_arm_is_always_accepted() -> None:
    drafter = self_drafter(blocks_of("qwen3"), (Arm(),))
    found = decode(
        Target(blocks_of("qwen3").target),
        drafter,
        OnlineController(controller_for("arm:index=0", drafter)),
        prompt_ids(3),
        Settings(max_new_tokens=16),
    )
    assert [row.accepted_len for row in found.rounds] == [row.submitted_len for row in found.rounds]
    assert drafter.arm_costs == (1.0,)


# --- confidence stop -------------------------------------------------------------------------------------------------


def test_a_draft_ends_with_its_first_doubtful_token_or_the_end_of_text() -> None:
    blocks, prompt = blocks_of("llama"), prompt_ids(4)
    whole = overheard("llama", (Arm.parse("m1"),))
    asked = Settings(max_new_tokens=20)
    decode(Target(blocks.target), whole, OnlineController(controller_for("arm:index=0", whole)), prompt, asked)
    q = sorted(q for *_, numbers in whole.heard for q in numbers)
    stop, end = q[len(q) // 3], whole.heard[0][2][1]
    drafter = self_drafter(blocks, (Arm.parse("m1"),), stop=stop, stop_ids=(end,))
    drafter.__class__ = Overheard
    found = decode(
        Target(blocks.target), drafter, OnlineController(controller_for("arm:index=0", drafter)), prompt, asked
    )
    assert found.output == plain_greedy(blocks.target, prompt, 20)
    assert drafter.heard[0][2] == whole.heard[0][2][:2]  # the end of text is drafted, nothing after it
    for row, (_, _, tokens, q) in zip([row for row in found.rounds if row.drafted_len], drafter.heard, strict=True):
        ends = [token == end or value < stop for token, value in zip(tokens, q, strict=True)]
        assert not any(ends[:-1])
        room = min(drafter.max_draft_len, 20 - row.pos - 1)
        assert ends[-1] or len(tokens) == room
        assert row.submitted_len == row.drafted_len == row.available_len == len(tokens)


def test_nothing_stops_a_draft_without_stop() -> None:
    drafter = self_drafter(blocks_of("llama"), stop_ids=tuple(range(64)))
    found = decode(
        Target(blocks_of("llama").target),
        drafter,
        OnlineController(controller_for("sp2ec", drafter)),
        prompt_ids(4),
        Settings(max_new_tokens=12),
    )
    assert all(row.drafted_len == min(4, 12 - row.pos - 1) for row in found.rounds)


# --- structure -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [*HALVED, "mixtral", "qwen3-moe"])
def test_layers_that_are_their_two_halves_are_taken(name: str) -> None:
    SubBlocks(tiny_family(name))


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("gemma2", "more than its attention and its MLP"),
        ("gemma3", "more than its attention and its MLP"),
        ("gpt2", "layers in model.model.layers"),
    ],
)
def test_other_layers_are_refused(name: str, reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        SubBlocks(tiny_class(name))


def test_layers_that_cannot_be_halved_are_refused_by_name() -> None:
    model = tiny_llama()
    model.model.layers[1].register_forward_hook(lambda module, inputs, output: output * 1.01)
    with pytest.raises(ConfigError, match="logits differ by"):
        SubBlocks(model)
    del model.model.layers[1].mlp
    with pytest.raises(ConfigError, match="decoder layer 1 has no mlp"):
        SubBlocks(model)
    model = tiny_llama()
    layer = model.model.layers[0]
    mlp = layer.mlp.forward

    def whole(states: torch.Tensor, **how: Any) -> torch.Tensor:
        states = states + layer.self_attn(hidden_states=layer.input_layernorm(states), **how)[0]
        return states + layer.mlp(layer.post_attention_layernorm(states))[0]

    layer.forward, layer.mlp.forward = whole, lambda states: (mlp(states), None)
    with pytest.raises(ConfigError, match="cannot be run in halves"):
        SubBlocks(model)


def test_a_target_is_checked_once_and_left_as_it_was() -> None:
    model, calls = tiny_llama(), []
    model.lm_head.register_forward_hook(lambda *_: calls.append(1))
    before = dict(model.named_modules())
    blocks, first = SubBlocks(model), len(calls)
    assert SubBlocks(model).n_layers == 3
    assert len(calls) == first > 0
    for arm in ARMS[1:]:
        shorter = blocks.model(arm)
        assert {id(p) for p in shorter.parameters()} < {id(p) for p in model.parameters()}
    assert blocks.model(Arm()) is model
    assert dict(model.named_modules()) == before


def test_what_an_arm_costs_is_the_share_of_numbers_it_reads() -> None:
    model = tiny_llama()
    blocks = SubBlocks(model)
    whole = sum(p.numel() for p in model.model.layers.parameters()) + model.lm_head.weight.numel()
    mlp = sum(p.numel() for p in model.model.layers[1].mlp.parameters()) + 32
    attention = sum(p.numel() for p in model.model.layers[0].self_attn.parameters()) + 32
    assert blocks.cost(Arm()) == 1.0
    assert blocks.cost(Arm.parse("m1")) == pytest.approx(1 - mlp / whole)
    assert blocks.cost(Arm.parse("a0-1+m2")) == pytest.approx(1 - (2 * attention + mlp) / whole)
