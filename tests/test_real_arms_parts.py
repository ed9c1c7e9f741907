"""The pieces of `real.arms`: sub-blocks run by themselves, what builders are shown in a decode, the stopwatch."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

torch = pytest.importorskip("torch", reason="real/ needs the extra 'real'")

from real.arms.build import build_random  # noqa: E402
from real.arms.job import Job  # noqa: E402
from real.builders.arm import Arm, nested  # noqa: E402
from real.builders.cossim import max_removed  # noqa: E402
from real.builders.knapspec import Schedule  # noqa: E402
from real.builders.swift import Swift, SwiftSettings  # noqa: E402
from real.cache import KVCache, forward  # noqa: E402
from real.drafters.opened import Opened  # noqa: E402
from real.drafters.selfspec import SelfDrafter  # noqa: E402
from real.drafters.spent import BOOKKEEPING, PASSES, SEARCH, Spent  # noqa: E402
from real.drafters.states import StateArms  # noqa: E402
from real.drafters.subblock_times import measure  # noqa: E402
from real.drafters.subblocks import SubBlocks  # noqa: E402
from real.drafters.swift import SwiftArms  # noqa: E402
from real.loop import Decoded, Settings, decode  # noqa: E402
from real.target import Target  # noqa: E402
from specsim.online import OnlineController  # noqa: E402
from tests.arm_masks import mask_of  # noqa: E402
from tests.real_law import FixedClock, one_thread  # noqa: E402, F401 - one_thread is a fixture
from tests.real_lossless import plain_greedy  # noqa: E402
from tests.real_selfspec import ARMS, HALVED, Reference, blocks_of, controller_for  # noqa: E402
from tests.real_tiny import prompt_ids, tiny_llama  # noqa: E402

TOKENS = 30


def held(cache: KVCache) -> list[Any]:
    return [found[layer][:, :, : cache.length].clone() for found in (cache._keys, cache._values) for layer in found]


@pytest.mark.parametrize("name", HALVED)
@torch.inference_mode()
def test_sub_blocks_run_one_by_one_are_the_models_of_arms(name: str) -> None:
    """Every arm, as one branch of a batch, predicts what its shortened model does in a pass over the same tokens."""
    blocks, text, start = blocks_of(name), prompt_ids(3, 16), 9
    cache = KVCache(40)
    forward(blocks.target, text[:14], cache)  # beyond the tokens looked at, as in a decode
    before = held(cache)
    opened = Opened(blocks, text[start:], cache, start)
    assert cache.length == 14
    assert all(torch.equal(one, two) for one, two in zip(before, held(cache), strict=True))
    assert not any(layer._forward_hooks or layer._forward_pre_hooks for layer in blocks.target.model.modules())
    assert len(opened.states) == 2 * blocks.n_layers + 1
    states = torch.stack([opened.states[0]] * len(ARMS))
    for part in range(2 * blocks.n_layers):
        ran = opened.run(part, states)
        out = torch.tensor([mask_of(arm, blocks.n_layers)[part] for arm in ARMS], dtype=torch.bool)
        states = torch.where(out[:, None, None], states, ran)
        assert torch.allclose(states[0], opened.states[part + 1], atol=1e-5)
    assert ARMS[0] == Arm()
    predicted = blocks.predict(states)
    for number, arm in enumerate(ARMS):
        with cache.aside(start):
            logits = forward(blocks.model(arm), text[start:], cache)
        assert predicted[number].tolist() == logits.argmax(dim=-1).tolist()
        assert torch.allclose(blocks.target.lm_head(blocks.target.model.norm(states[number])), logits, atol=1e-3)
    layer = opened.run_layer(1, opened.states[2][None])[0]
    assert torch.allclose(layer, opened.states[4], atol=1e-5)
    assert all(torch.equal(one, two) for one, two in zip(before, held(cache), strict=True))


@torch.inference_mode()
def test_sub_blocks_behind_nothing() -> None:
    """The text's own first token has nothing cached before it."""
    blocks, text = blocks_of("llama"), prompt_ids(1, 4)
    opened = Opened(blocks, text, KVCache(8), 0)
    states = opened.states[0][None]
    for part in range(2 * blocks.n_layers):
        states = opened.run(part, states)
    assert torch.allclose(states[0], opened.states[-1], atol=1e-5)


@functools.cache
def pieces() -> SubBlocks:
    return SubBlocks(tiny_llama(layers=6, spread=0.15, seed=4))


def played(made: SwiftArms | StateArms, spelling: str, seed: int = 1) -> Decoded:
    drafter = SelfDrafter(pieces(), made, name="self", max_draft_len=4, arm_draft_len=4)
    lane = OnlineController(controller_for(spelling, drafter), seed=3, compiled=False)
    asked = Settings(max_new_tokens=TOKENS)
    found = decode(Target(pieces().target), drafter, lane, prompt_ids(seed), asked, clock=FixedClock())
    assert found.output == plain_greedy(pieces().target, prompt_ids(seed), TOKENS)
    return found


class Watched(Swift):
    """Keeps its trials."""

    def start_prompt(self) -> None:
        super().start_prompt()
        self.tried: list[tuple[Arm, float]] = []

    def judge(self, score: float) -> bool:
        assert self._trial is not None
        self.tried.append((self._trial[0], score))
        return super().judge(score)


@pytest.mark.parametrize("first", [False, True])
def test_trials_are_scored_by_what_the_arm_would_have_predicted(first: bool) -> None:
    """Against a second writing of the model: the target's keys and values before the window, the arm's own in it."""
    window = 5
    search = Watched(6, SwiftSettings(ratio=0.5, window=window, every=2, max_score=1.0), np.random.default_rng(1))
    spent = Spent("cpu")
    found = played(SwiftArms(pieces(), lambda: [search], spent, first=first), "arm:index=0")
    prompt = prompt_ids(1).tolist()
    due = [
        row.pos + row.emitted_len
        for row in found.rounds
        if row.pos + row.emitted_len > window + 1 and row.round % 2 == 0
    ]
    assert len(search.tried) == len(due) == spent.trials > 2
    assert len({score for _, score in search.tried}) > 1
    reference = Reference(pieces().target)
    known = reference.read(prompt + found.output)
    for output_len, (arm, score) in zip(due, search.tried, strict=True):
        text = prompt + found.output[:output_len]
        start = len(prompt) if first else len(text) - window - 1
        entries, hits = [one[:start] for one in known], 0
        for place in range(start, start + window):
            hits += int(reference._token(text[place], place, entries, arm).argmax()) == text[place + 1]
        assert score == hits / window
    assert search.best == max(score for _, score in search.tried)
    drafted = {row.arm for row in found.rounds}
    assert drafted == {0}
    assert spent.rounds == len(found.rounds)
    assert spent.tokens == TOKENS


def test_a_search_that_is_over_makes_no_trial() -> None:
    search = Watched(6, SwiftSettings(ratio=0.5, window=5, trials=0), np.random.default_rng(1))
    spent = Spent("cpu")
    played(SwiftArms(pieces(), lambda: [search], spent), "arm:index=0")
    assert spent.trials == len(search.tried) == 1
    assert spent.rounds < TOKENS / 5 + 3
    played(SwiftArms(pieces(), lambda: [search], spent), "arm:index=0", seed=2)
    assert spent.trials == 1


@pytest.mark.parametrize("most", [None, 1])
def test_states_are_those_of_the_tokens_of_some_rounds(most: int | None) -> None:
    """Rounds 2 to 4 of 6 (the prompt is step 0), as often as there are; until then the whole target drafts."""
    seen: list[tuple[int, Opened]] = []
    arms = [Arm(), Arm.parse("2"), Arm.parse("2-3")]

    def build(opened: Opened, past: int) -> Sequence[Arm]:
        seen.append((past, opened))
        return arms

    spent = Spent("cpu")
    made = StateArms(pieces(), Schedule(6, 2, 4), build, 4, spent, most=most)
    found = played(made, "sp2ec")
    text = torch.tensor([*prompt_ids(1).tolist(), *found.output])
    blocks = [found.rounds[start : start + 3] for start in range(1, len(found.rounds) - 2, 6)]
    assert len(seen) == len(blocks) > 0
    states = pieces().target(text[None], output_hidden_states=True).hidden_states
    for (past, opened), rows in zip(seen, blocks, strict=True):
        last = rows[-1].ctx_len + rows[-1].emitted_len - 1
        start = rows[0].ctx_len - 1 if most is None else last - 1
        assert (past, len(opened.states[0])) == (start, last - start)
        for layer in range(5):  # the library normalises the last one
            assert torch.allclose(opened.states[2 * layer], states[layer][0, start:last], atol=1e-4)
    assert spent.rounds == 4
    assert spent.tokens == sum(row.emitted_len for row in found.rounds[:4])
    assert [made.arm(number) for number in range(4)] == [*arms, arms[-1]]
    made.start(prompt_ids(2))
    assert made.arm(2) == Arm()


def test_seconds_go_to_the_innermost_part(monkeypatch: pytest.MonkeyPatch) -> None:
    now = iter([1.0, 2.0, 5.0, 9.0, 10.0, 16.0, 100.0, 132.0])
    monkeypatch.setattr("real.drafters.spent.perf_counter", lambda: next(now))
    spent = Spent("cpu")
    with spent.on(BOOKKEEPING), spent.on(SEARCH), spent.on(PASSES):
        pass
    with pytest.raises(KeyError), spent.on(SEARCH):
        raise KeyError
    assert spent.seconds == {BOOKKEEPING: 1 + 6, SEARCH: 3 + 1 + 32, PASSES: 4}
    assert spent.construction_s == 47
    assert spent.share is None
    spent.generation_s = 94
    assert spent.share == 0.5


def test_sub_blocks_are_timed_in_whole_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    """A clock that an attention moves by its cached tokens and an MLP by a constant."""
    now, blocks = [0.0], blocks_of("llama")
    monkeypatch.setattr("real.drafters.spent.perf_counter", lambda: now[0])

    original = KVCache.update

    def update(self: KVCache, *args: Any, **how: Any) -> Any:
        now[0] += 3.0 + 2.0 * self._lengths.get(args[2], 0)
        return original(self, *args, **how)

    def mlp(module: Any, inputs: Any) -> None:
        now[0] += 7.0

    monkeypatch.setattr(KVCache, "update", update)
    handles = [layer.mlp.register_forward_pre_hook(mlp) for layer in blocks.target.model.layers]
    rounds: list[int] = []
    try:
        found = measure(
            blocks, [prompt_ids(1, n) for n in (6, 11, 41)], repeats=2, seed=0, done=lambda: rounds.append(1)
        )
    finally:
        for handle in handles:
            handle.remove()
    assert found.past == (5, 10, 40)
    assert found.mlp == (7.0, 7.0, 7.0)
    assert found.attention == pytest.approx([3.0 + 2.0 * n for n in found.past])
    assert (found.latency.mlp, found.latency.slope, found.latency.attention) == pytest.approx((7.0, 2.0, 3.0))
    assert len(rounds) == 3


@settings(max_examples=30)
@given(st.integers(0, 2**63 - 1), st.floats(0.2, 1), st.booleans())
def test_random_layers_are_nested_and_as_many_as_cossims(seed: int, fraction: float, zero_skip: bool) -> None:
    asked = Settings(max_new_tokens=1, seed=seed)
    job = Job(blocks=pieces(), prompts=[], asked=asked, draft_len=4, zero_skip=zero_skip)
    arms = build_random(job, arms=None, fraction=fraction).arms
    assert nested(arms)
    assert [arm.skipped() / 2 for arm in arms] == [*range(1 - zero_skip, max_removed(6, fraction) + 1)]
    assert arms[-1].attention == arms[-1].mlp <= {2, 3}
