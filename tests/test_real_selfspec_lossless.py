"""Self-speculation changes nothing but speed: every controller of arms, any arms, chains and trees, T = 0 and 1."""

from __future__ import annotations

import functools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

torch = pytest.importorskip("torch", reason="real/ needs the extra 'real'")

from real.builders.arm import Arm, cost_order  # noqa: E402
from real.drafters.base import NoDrafter  # noqa: E402
from real.drafters.selfspec import SelfDrafter  # noqa: E402
from real.drafters.subblocks import SubBlocks  # noqa: E402
from real.loop import Decoded, Settings, check_pair, decode  # noqa: E402
from real.shadow import shadow  # noqa: E402
from real.target import Target  # noqa: E402
from specsim.errors import ConfigError  # noqa: E402
from specsim.online import OnlineController  # noqa: E402
from tests.real_law import (  # noqa: E402
    EXACT,
    FixedClock,
    Sampling,
    controller_of,
    decode_branches,
    gap,
    law_of,
    one_thread,  # noqa: F401 - a fixture
    plain_law,
)
from tests.real_lossless import RANDOM, Checked, plain_greedy, random_lengths  # noqa: E402
from tests.real_selfspec import ARMS, HALVED, LIVE, SPELLED, blocks_of, controller_for, self_drafter  # noqa: E402
from tests.real_tiny import prompt_ids, tiny_llama  # noqa: E402

TOKENS = 16
PROMPT = prompt_ids(1)
LENGTHS = (RANDOM, "static:length=3", "libraspec", "lambda", "threshold", "g4")


@functools.cache
def plain(name: str) -> list[int]:
    return plain_greedy(blocks_of(name).target, PROMPT, TOKENS)


@functools.cache
def target(name: str, cache: str) -> Target:
    return Target(blocks_of(name).target, cache=cache)


def run(name: str, drafter: SelfDrafter, spelling: str, cache: str, asked: Settings | None = None) -> Decoded:
    controller = random_lengths() if spelling == RANDOM else controller_for(spelling, drafter)
    online = OnlineController(controller, seed=5, compiled=not controller.compiled)
    asked = Settings(max_new_tokens=TOKENS) if asked is None else asked
    return decode(target(name, cache), drafter, online, PROMPT, asked, clock=FixedClock())


@pytest.mark.parametrize("spelling", LIVE)
def test_greedy_output_is_plain_decodings_with_every_controller_of_arms(spelling: str) -> None:
    """And the simulator's loop, told the same, makes the same decisions."""
    for cache, options in (("dynamic", {}), ("static", {"stop": 0.6}), ("dynamic", {"tree": True})):
        drafter = self_drafter(blocks_of("llama"), **options)
        found = run("llama", drafter, spelling, cache)
        assert found.output == plain("llama"), options
        again = shadow(
            controller_for(spelling, drafter), [(0, found.rounds)], block_len=1, max_draft_len=4, seed=5, compiled=False
        )
        assert again is None


@pytest.mark.parametrize("name", [*HALVED, "mixtral"])
def test_greedy_output_is_plain_decodings_of_every_class(name: str) -> None:
    kinds, arms = set(), set()
    for spelling, cache, tree in (("exp3spec", "dynamic", False), ("sp2ec", "static", True), ("ucb1", "static", False)):
        found = run(name, self_drafter(blocks_of(name), tree=tree), spelling, cache)
        assert found.output == plain(name), (spelling, cache)
        arms |= {row.arm for row in found.rounds}
        kinds |= {(row.accepted_len > 0) + (row.accepted_len == row.submitted_len > 0) for row in found.rounds}
    assert len(arms) == len(ARMS)
    assert kinds == {0, 1, 2}


@pytest.mark.parametrize("spelling", LENGTHS)
def test_controllers_of_lengths_work_on_a_single_arm(spelling: str) -> None:
    lengths = set()
    for options in ({}, {"stop": 0.5}, {"tree": True}):
        drafter = self_drafter(blocks_of("qwen3"), (Arm.parse("m1"),), max_draft_len=6, **options)
        found = run("qwen3", drafter, spelling, "dynamic")
        assert found.output == plain("qwen3"), options
        assert {row.arm for row in found.rounds} == {-1}
        lengths |= {row.submitted_len for row in found.rounds}
    assert len(lengths) > 1


ANY_ARM = st.lists(st.booleans(), min_size=6, max_size=6).filter(lambda mask: not all(mask)).map(Arm.from_mask)


@settings(max_examples=40)
@given(
    arms=st.lists(ANY_ARM, min_size=1, max_size=4, unique=True),
    spelling=st.sampled_from(LIVE),
    length=st.integers(1, 5),
    stop=st.none() | st.floats(0, 1),
    tree=st.booleans(),
    cache=st.sampled_from(("dynamic", "static")),
    tokens=st.integers(1, TOKENS),
    end=st.none() | st.integers(0, TOKENS - 1),
)
def test_any_arms_lengths_stops_and_limits(arms, spelling, length, stop, tree, cache, tokens, end) -> None:
    stops = () if end is None else (plain("llama")[end],)
    drafter = self_drafter(
        blocks_of("llama"),
        cost_order(arms),
        max_draft_len=length,
        arm_draft_len=length,
        stop=stop,
        stop_ids=stops,
        tree=tree,
    )
    found = run("llama", drafter, spelling, cache, Settings(max_new_tokens=tokens, stop_ids=stops))
    whole = plain("llama")[:tokens]
    ends = [place for place, token in enumerate(whole) if token in stops]
    assert found.output == (whole[: ends[0] + 1] if ends else whole)


@pytest.mark.parametrize("tree", [False, True])
def test_every_score_is_that_of_a_pass_without_cache(tree: bool) -> None:
    checked = Checked(blocks_of("mistral").target)
    online = OnlineController(controller_for("exp3spec", self_drafter(blocks_of("mistral"))), seed=2)
    decode(checked, self_drafter(blocks_of("mistral"), tree=tree), online, PROMPT, Settings(max_new_tokens=TOKENS))
    assert checked.rejections >= 2


# --- sampling --------------------------------------------------------------------------------------------------------


@functools.cache
def small() -> SubBlocks:
    return SubBlocks(tiny_llama(vocabulary=4, spread=0.4))


@pytest.mark.parametrize(
    ("spelling", "options"),
    [
        ("sp2ec", {}),
        ("ucbspec", {"stop": 0.6}),
        ("exp3spec", {"tree": True}),
        ("klucb-unimodal", {"stop": 0.5, "tree": True}),
        ("sp2ec-2d", {}),
        ("ucb1", {}),
        ("thompson", {}),
        ("global-ucb", {}),
        ("arm:index=0", {"stop_ids": (1,), "stop": 0.3}),
        ("libraspec", {}),
        ("threshold", {"tree": True}),
    ],
)
def test_the_law_is_the_targets(spelling: str, options: dict) -> None:
    """Every branch of real decodes, probabilities added up; drafts are greedy whatever the temperature."""
    warped, prompt = Sampling(0.8, top_k=2), [0, 1, 3]
    arms = [Arm.parse(text) for text in ("m1", "a0-1+m2")]  # few, so that they are chosen among and not only begun with
    length_rule = spelling in ("libraspec", "threshold")
    drafter = self_drafter(small(), arms[:1] if length_rule else arms, max_draft_len=2, arm_draft_len=2, **options)
    controller, asked = controller_for(spelling, drafter), warped.settings(5, (1,))
    pairs = list(decode_branches(Target(small().target), drafter, controller, prompt, asked))
    assert gap(law_of(iter(pairs)), plain_law(small().target, prompt, 5, warped, (1,))) < EXACT
    assert len({row.accepted_len for _, decoded in pairs for row in decoded.rounds}) > 1


def test_sampled_output_of_a_tree_is_plain_samplings_token_for_token() -> None:
    asked = Settings(max_new_tokens=TOKENS, sample=True, seed=11)
    static = OnlineController(controller_of("plain", NoDrafter()))
    want = decode(target("qwen2", "dynamic"), NoDrafter(), static, PROMPT, asked).output
    found = run("qwen2", self_drafter(blocks_of("qwen2"), tree=True), "exp3spec", "dynamic", asked)
    assert found.output == want


# --- what cannot run live --------------------------------------------------------------------------------------------


def test_controllers_of_arms_are_all_here_or_refused() -> None:
    drafter = self_drafter(blocks_of("llama"))
    refused = {spelling for spelling in SPELLED if spelling not in LIVE}
    assert refused == {"best-arm", "hedge"}
    for spelling in refused:
        with pytest.raises(ConfigError, match="exists in replay only"):
            check_pair(controller_for(spelling, drafter), drafter)
    with pytest.raises(ConfigError, match=r"has 7 arms to choose from; choose a controller of arms"):
        controller_for("lambda", drafter)
    with pytest.raises(ConfigError, match=r"index=7.*arms 0\.\.6"):
        controller_for("arm:index=7", drafter)
    alone = self_drafter(blocks_of("llama"), ARMS[1:2])
    assert controller_for("sp2ec", alone).params.arms == 1
    wrong = OnlineController(controller_for("arm:index=5", drafter))
    with pytest.raises(ConfigError, match=r"chose arm 5; there are 0\.\.0"):
        decode(target("llama", "dynamic"), alone, wrong, PROMPT, Settings(max_new_tokens=4))
