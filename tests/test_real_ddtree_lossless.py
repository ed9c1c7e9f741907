"""DDTree changes nothing but speed, in both readings of a length and with every controller that can run live.

Greedy output is plain greedy output, sampled output is plain sampling's token for token under the same seed, and its
law is the target's. The drafters are fitted to the plain output for a second and then disturbed.
"""

from __future__ import annotations

import functools

import pytest

torch = pytest.importorskip("torch", reason="real/ needs the extra 'real'")

from real.drafters.base import NoDrafter  # noqa: E402
from real.drafters.ddtree import DepthTrees, NodeTrees  # noqa: E402
from real.loop import Decoded, Settings, decode  # noqa: E402
from real.target import Target  # noqa: E402
from real.verify import sampling_processors  # noqa: E402
from specsim.controllers import REGISTRY  # noqa: E402
from specsim.online import OnlineController  # noqa: E402
from tests.dflash_tiny import fitted_dflash, tiny_dflash  # noqa: E402
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
from tests.real_lossless import CLASSES, RANDOM, TOKENS, Checked, random_lengths, subject  # noqa: E402
from tests.real_tiny import tiny_llama  # noqa: E402
from tests.worlds import ALL, SPELLINGS  # noqa: E402

LIMITS = ("nodes", "depth")
BUDGET, DEPTH = 9, 7  # of blocks of 3: up to three passes where the depth is chosen
# How much of their weights' spread disturbs the fitted drafters, so that they are wrong now and then.
NOISE = {"gemma3": 0.15}


def live(spelling: str) -> bool:
    controller = controller_of(spelling, NoDrafter())
    return controller.privilege == "none" and controller.plan is None


LIVE = [spelling for spelling in ALL if live(spelling)]
ONE_EACH = [RANDOM, "static:length=9", *(s for name in REGISTRY if name != "static" for s in SPELLINGS[name][:1])]
ONE_EACH = [spelling for spelling in ONE_EACH if spelling in (RANDOM, "static:length=9") or spelling in LIVE]


@functools.cache
def drafter(name: str, limit: str) -> NodeTrees | DepthTrees:
    tried = subject(name)
    text = torch.cat([tried.prompt, torch.tensor(tried.plain)])
    network = fitted_dflash(tried.model, text, noise=NOISE.get(name, 0.3), steps=60)
    if limit == "nodes":
        return NodeTrees(network, tried.model, name=limit, budget=BUDGET)
    return DepthTrees(network, tried.model, name=limit, budget=BUDGET, depth=DEPTH)


def run(name: str, limit: str, spelling: str, target: Target, asked: Settings | None = None) -> Decoded:
    tried, made = subject(name), drafter(name, limit)
    controller = random_lengths(made.max_draft_len) if spelling == RANDOM else controller_of(spelling, made)
    online = OnlineController(controller, compiled=not controller.compiled, seed=3)
    asked = Settings(max_new_tokens=TOKENS) if asked is None else asked
    return decode(target, made, online, tried.prompt, asked, clock=FixedClock())


@pytest.mark.parametrize("limit", LIMITS)
@pytest.mark.parametrize("spelling", ONE_EACH)
def test_greedy_output_is_plain_decodings(spelling: str, limit: str) -> None:
    for cache in ("dynamic", "static"):
        assert run("llama", limit, spelling, subject("llama").targets[cache]).output == subject("llama").plain, cache


@pytest.mark.parametrize("limit", LIMITS)
def test_nodes_of_every_depth_are_accepted_and_rejected(limit: str) -> None:
    rows = [
        row
        for spelling in (RANDOM, "static:length=9", "static:length=3", "static:length=1")
        for row in run("llama", limit, spelling, subject("llama").targets["dynamic"]).rounds
    ]
    assert {row.accepted_len for row in rows} >= {0, 1, 2, 3}
    # A rule that chooses the depth has as many nodes verified as one that does not.
    assert {row.scored_len for row in rows} >= ({0, 9} if limit == "depth" else set())
    assert {row.forward_passes for row in rows} == ({0, 1} if limit == "nodes" else {0, 1, 2, 3})


@pytest.mark.parametrize("limit", LIMITS)
@pytest.mark.parametrize("name", CLASSES)
def test_every_class_every_row_compared_with_a_fresh_pass(name: str, limit: str) -> None:
    target = Checked(subject(name).model, merge_prompt=limit == "depth")
    assert run(name, limit, RANDOM, target).output == subject(name).plain


@pytest.mark.slow
@pytest.mark.parametrize("limit", LIMITS)
@pytest.mark.parametrize("name", CLASSES)
def test_the_full_product(name: str, limit: str) -> None:
    wrong = [
        (spelling, cache)
        for spelling in [RANDOM, *LIVE]
        for cache in ("dynamic", "static")
        if run(name, limit, spelling, subject(name).targets[cache]).output != subject(name).plain
    ]
    assert wrong == []


# --- sampling ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("limit", LIMITS)
@pytest.mark.parametrize("spelling", ONE_EACH)
def test_sampled_output_is_plain_samplings_token_for_token(spelling: str, limit: str) -> None:
    """At a temperature at which drafts are accepted now and then; other processors in test_real_tree.py."""
    tried, accepted = subject("llama"), 0
    for seed in range(2):
        asked = Settings(
            max_new_tokens=TOKENS, sample=True, seed=seed, processors=sampling_processors(temperature=0.5, top_k=8)
        )
        plain = OnlineController(controller_of("plain", NoDrafter()), compiled=False)
        target = tried.targets["dynamic"]
        wanted = decode(target, NoDrafter(), plain, tried.prompt, asked, clock=FixedClock()).output
        found = run("llama", limit, spelling, target, asked)
        assert found.output == wanted, seed
        accepted += sum(row.accepted_len for row in found.rounds)
    assert accepted or spelling == "plain"


@pytest.mark.parametrize(
    ("limit", "spelling"), [("nodes", "lambda"), ("nodes", "static:length=3"), ("depth", "libraspec:alpha=1,block=2")]
)
@pytest.mark.parametrize("sampling", [Sampling(), Sampling(0.7, top_k=3)])
def test_the_law_of_sampled_output_is_the_targets(sampling: Sampling, spelling: str, limit: str) -> None:
    """Exactly, by every course of events; rules that read q are allowed, since trees carry no luck."""
    model, prompt, tokens = tiny_llama(vocabulary=4, spread=0.4), [1, 3], 3
    network = tiny_dflash(model, block_size=3)
    kind = {"nodes": NodeTrees, "depth": DepthTrees}[limit]
    made = kind(network, model, name=limit, budget=5, depth=3)
    pairs = decode_branches(Target(model), made, controller_of(spelling, made), prompt, sampling.settings(tokens))
    assert gap(law_of(pairs), plain_law(model, prompt, tokens, sampling)) < EXACT
