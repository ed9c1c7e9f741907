"""DFlash changes nothing but speed: greedy output is plain greedy output, the law of sampled output is the target's.

The drafters are fitted to the plain output for a second and then disturbed, so that drafts are accepted whole, in part
and not at all; on the vocabulary of three tokens random ones are, too.
"""

from __future__ import annotations

import functools
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="real/ needs the extra 'real'")

from transformers.generation.logits_process import SuppressTokensLogitsProcessor  # noqa: E402

from real.drafters.base import NoDrafter  # noqa: E402
from real.drafters.dflash import DFlashDrafter  # noqa: E402
from real.draws import KeyedDraws  # noqa: E402
from real.loop import Decoded, Settings, decode  # noqa: E402
from real.target import Target  # noqa: E402
from real.verify import Draft, sampling_processors  # noqa: E402
from specsim.controllers import REGISTRY  # noqa: E402
from specsim.online import OnlineController  # noqa: E402
from tests.dflash_tiny import fitted_dflash, tiny_dflash  # noqa: E402
from tests.real_law import (  # noqa: E402
    FixedClock,
    Sampling,
    controller_of,
    decode_branches,
    gap,
    law_of,
    one_thread,  # noqa: F401 - a fixture
    plain_law,
)
from tests.real_lossless import CLASSES, RANDOM, TOKENS, random_lengths, subject  # noqa: E402
from tests.real_tiny import tiny_llama  # noqa: E402
from tests.worlds import ALL, SPELLINGS  # noqa: E402

# A transformer's logits differ in float32 with the number of tokens in a pass; a low temperature multiplies that.
EXACT = 5e-6
LONGEST = 7  # of blocks of 3: up to three passes
RULES = ("keep-first", "per-length")
# How much of their weights' spread disturbs the fitted drafters, so that they are wrong now and then.
NOISE = {"gemma3": 0.15}


def live(spelling: str) -> bool:
    controller = controller_of(spelling, NoDrafter())
    return controller.privilege == "none" and controller.plan is None


LIVE = [spelling for spelling in ALL if live(spelling)]
ONE_EACH = [RANDOM, "static:length=3", *(SPELLINGS[name][0] for name in REGISTRY if name != "static")]
ONE_EACH = [spelling for spelling in ONE_EACH if spelling == RANDOM or spelling in LIVE]


@functools.cache
def drafter(name: str, pass_rule: str) -> DFlashDrafter:
    tried = subject(name)
    text = torch.cat([tried.prompt, torch.tensor(tried.plain)])
    network = fitted_dflash(tried.model, text, noise=NOISE.get(name, 0.3), steps=80)
    return DFlashDrafter(network, tried.model, name="dflash", max_draft_len=LONGEST, pass_rule=pass_rule)


@functools.cache
def run(name: str, pass_rule: str, spelling: str, cache: str) -> Decoded:
    tried, made = subject(name), drafter(name, pass_rule)
    controller = random_lengths() if spelling == RANDOM else controller_of(spelling, made)
    online = OnlineController(controller, compiled=not controller.compiled, seed=3)
    asked = Settings(max_new_tokens=TOKENS)
    return decode(tried.targets[cache], made, online, tried.prompt, asked, clock=FixedClock())


@pytest.mark.parametrize("spelling", ONE_EACH)
def test_every_controller(spelling: str) -> None:
    for pass_rule in RULES:
        for cache in ("dynamic", "static"):
            assert run("llama", pass_rule, spelling, cache).output == subject("llama").plain, (pass_rule, cache)


PAIRS = ((RANDOM, "dynamic"), ("static:length=7", "static"))


@pytest.mark.parametrize("name", CLASSES)
def test_every_class(name: str) -> None:
    for spelling, cache in PAIRS:
        assert run(name, "keep-first", spelling, cache).output == subject(name).plain, spelling


@pytest.mark.slow
@pytest.mark.parametrize("name", CLASSES)
def test_the_full_product(name: str) -> None:
    wrong = [
        (spelling, pass_rule, cache)
        for spelling in [RANDOM, *LIVE]
        for pass_rule in RULES
        for cache in ("dynamic", "static")
        if run(name, pass_rule, spelling, cache).output != subject(name).plain
    ]
    assert wrong == []


def test_the_drafters_above_agree_sometimes() -> None:
    """Over the classes: drafts rejected at once, accepted in part, accepted whole; rounds of one, two, three passes."""
    rows = [row for name in CLASSES for pair in PAIRS for row in run(name, "keep-first", *pair).rounds]
    shares = [row.accepted_len / row.submitted_len for row in rows if row.submitted_len]
    assert {"none" if x == 0 else "all" if x == 1 else "some" for x in shares} == {"none", "all", "some"}
    assert {row.forward_passes for row in rows} == {0, 1, 2, 3}


# --- the law of sampled output ----------------------------------------------------------------------------------------


def three_tokens(sampling: str, *, pass_rule: str = "keep-first", **options: Any) -> tuple[Target, DFlashDrafter]:
    """A target with three tokens, and a random drafter of blocks of two tokens unless told otherwise."""
    model = tiny_llama(vocabulary=3, spread=0.4)
    network = tiny_dflash(model, **({"block_size": 3} | options))
    made = DFlashDrafter(network, model, name="d", max_draft_len=3, sampling=sampling, pass_rule=pass_rule)
    return Target(model), made


def laws(pairs: Any, target: Target, prompt: list[int], tokens: int, warped: Sampling) -> tuple[float, set[Any]]:
    """(largest difference between the law of decodes and the target's, (submitted, accepted) that occurred)."""
    pairs = list(pairs)
    assert sum(draws.probability for draws, _ in pairs) == pytest.approx(1.0, abs=1e-9)
    rows = [row for _, decoded in pairs for row in decoded.rounds]
    found = gap(law_of(iter(pairs)), plain_law(target.model, prompt, tokens, warped))
    return found, {(row.submitted_len, row.accepted_len) for row in rows}


SETTINGS = [
    ("greedy", Sampling(1.0)),
    ("greedy", Sampling(0.5)),
    ("greedy", Sampling(0.7, top_k=2)),
    ("greedy", Sampling(1.5, top_p=0.8)),
    ("sample", Sampling(1.0)),
    ("sample", Sampling(0.7, top_k=2)),
]


@pytest.mark.parametrize(("sampling", "warped"), SETTINGS, ids=str)
def test_every_setting_keeps_the_law(sampling: str, warped: Sampling) -> None:
    """Drafts of two tokens, verified whole, and the first of two only."""
    target, made = three_tokens(sampling)
    for spelling, seen in (("static:length=2", (2, 2)), ("static:length=1", (1, 1))):
        pairs = decode_branches(target, made, controller_of(spelling, made), [0, 1], warped.settings(3))
        found, lengths = laws(pairs, target, [0, 1], 3, warped)
        assert found < EXACT
        assert warped != Sampling() or {seen, (seen[0], 0)} <= lengths


@pytest.mark.parametrize("pass_rule", RULES)
@pytest.mark.parametrize("sampling", ["greedy", "sample"])
def test_more_passes_keep_the_law(sampling: str, pass_rule: str) -> None:
    """Blocks of one token: the second one comes from a second pass, under per-length from a longer one."""
    target, made = three_tokens(sampling, pass_rule=pass_rule, block_size=2)
    pairs = list(decode_branches(target, made, controller_of("static:length=2", made), [0, 1], Sampling().settings(3)))
    assert laws(pairs, target, [0, 1], 3, Sampling())[0] < EXACT
    rows = [row for _, decoded in pairs for row in decoded.rounds]
    assert {row.draft_passes for row in rows} >= {1, 2}
    assert {row.forward_passes for row in rows if row.drafted_len} == ({1, 2} if pass_rule == "keep-first" else {1})


@pytest.mark.parametrize("sampling", ["greedy", "sample"])
def test_a_reduced_vocabulary_keeps_the_law(sampling: str) -> None:
    """Tokens that are never drafted come from the residual. The kept ids can be set before a drafter is made only."""
    target, _ = three_tokens(sampling)
    network = tiny_dflash(target.model, block_size=3, kept_vocab=2)
    network.kept_ids = torch.tensor([2, 1])
    made = DFlashDrafter(network, target.model, name="d", max_draft_len=3, sampling=sampling)
    pairs = decode_branches(target, made, controller_of("static:length=2", made), [0, 1], Sampling().settings(3))
    found, lengths = laws(pairs, target, [0, 1], 3, Sampling())
    assert found < EXACT
    assert (2, 2) in lengths


def test_processors_may_forbid_all_that_could_be_drafted() -> None:
    """What is drawn then is always rejected."""
    target, _ = three_tokens("sample")
    network = tiny_dflash(target.model, block_size=3, kept_vocab=1)
    made = DFlashDrafter(network, target.model, name="d", max_draft_len=3, sampling="sample")
    asked = Settings(max_new_tokens=6, sample=True, processors=(SuppressTokensLogitsProcessor([0]),))
    found = decode(target, made, OnlineController(controller_of("static:length=3", made)), torch.tensor([0, 1]), asked)
    assert len(found.output) == 6
    assert 0 not in found.output
    assert [row.accepted_len for row in found.rounds] == [0] * 6
    assert [row.drafted_len for row in found.rounds] == [3, 3, 3, 2, 1, 0]


CASES = [(spelling, "greedy", 3) for spelling in LIVE] + [(spelling, "sample", 2) for spelling in LIVE]


@pytest.mark.parametrize(("spelling", "sampling", "tokens"), CASES)
def test_every_controller_keeps_the_law(spelling: str, sampling: str, tokens: int) -> None:
    target, made = three_tokens(sampling)
    controller = controller_of(spelling, made, c_s=0.4, pass_s=0.05)
    pairs = decode_branches(target, made, controller, [0, 2], Sampling().settings(tokens))
    assert laws(pairs, target, [0, 2], tokens, Sampling())[0] < EXACT


def test_processors_asked_row_by_row_draw_the_same() -> None:
    """A processor the library does not know is asked with every row's own text; here it does what temperature does."""
    target, made = three_tokens("sample")
    seen = []

    def halved(ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        seen.append(tuple(ids[0].tolist()))
        return scores / 0.5

    found = []
    for processors in (sampling_processors(temperature=0.5), [halved]):
        asked = Settings(max_new_tokens=12, sample=True, seed=3, processors=processors)
        online = OnlineController(controller_of("static:length=2", made))
        found.append(decode(target, made, online, torch.tensor([0, 1]), asked))
    assert found[0].output == found[1].output
    assert [row.accepted_len for row in found[0].rounds] == [row.accepted_len for row in found[1].rounds]
    assert {len(ids) for ids in seen} >= {2, 3, 4}


def test_confidences_do_not_tell_what_was_drawn() -> None:
    """With the same text, other luck gives other tokens and the same confidences, those of a greedy draft."""
    target, made = three_tokens("sample")
    assert made.blind
    greedy = DFlashDrafter(made.network, made.model, name="d", max_draft_len=3)

    def draft(drafter: DFlashDrafter, seed: int) -> Draft:
        prompt = torch.tensor([0, 1, 2])
        with torch.inference_mode():
            target.start(prompt, 16, drafter.tap)
            drafter.start(prompt, 16, KeyedDraws(seed, 0), ())
            return drafter.propose(2, -1)

    drafts = [draft(made, seed) for seed in range(12)]
    assert len({tuple(one.tokens.tolist()) for one in drafts}) > 1
    assert {tuple(one.q.tolist()) for one in drafts} == {tuple(draft(greedy, 0).q.tolist())}


def test_confidences_of_drawn_tokens_move_the_law() -> None:
    """Why they are the likeliest tokens': reporting the drawn ones' instead, a rule that drops by q is not lossless."""

    class Telling(DFlashDrafter):
        def propose(self, count: int, arm: int) -> Draft:
            draft = super().propose(count, arm)
            assert draft.law is not None
            return draft._replace(q=draft.law.gather(1, draft.tokens[:, None])[:, 0])

    target, made = three_tokens("sample")
    telling = Telling(made.network, made.model, name="d", max_draft_len=3, sampling="sample")
    controller = controller_of("lambda", made, c_s=0.4, pass_s=0.05)
    found = [
        laws(decode_branches(target, one, controller, [0, 2], Sampling().settings(2)), target, [0, 2], 2, Sampling())[0]
        for one in (made, telling)
    ]
    assert found[0] < EXACT
    assert found[1] > 100 * EXACT
