"""The law of the output is the target's: every branch of real decodes on tiny vocabularies, probabilities added up.

Tolerance 1e-6: the loop's probabilities are float32. What they are compared with is written down apart, in
`real_law.plain_law`.
"""

from __future__ import annotations

import functools
from collections.abc import Callable

import pytest

torch = pytest.importorskip("torch", reason="real/ needs the extra 'real'")

from real.drafters.base import NoDrafter  # noqa: E402
from real.drafters.layer_skip import skip_layers  # noqa: E402
from real.drafters.model import ModelDrafter  # noqa: E402
from real.drafters.prompt_lookup import PromptLookupDrafter  # noqa: E402
from real.draws import KeyedDraws  # noqa: E402
from real.loop import check_pair, decode  # noqa: E402
from real.target import Target  # noqa: E402
from specsim.errors import ConfigError  # noqa: E402
from specsim.online import OnlineController  # noqa: E402
from specsim.rng import uniform_stream  # noqa: E402
from tests.real_law import (  # noqa: E402
    EXACT,
    InBlocks,
    Law,
    Sampling,
    branches,
    controller_of,
    decode_branches,
    fixed_model,
    gap,
    law_of,
    one_thread,  # noqa: F401 - a fixture
    plain_law,
    random_model,
)
from tests.real_tiny import tiny_llama  # noqa: E402
from tests.worlds import ALL  # noqa: E402


def second_model(kind: type[ModelDrafter], sampling: str) -> Callable[[Target, int], ModelDrafter]:
    def make(target: Target, seed: int) -> ModelDrafter:
        model = random_model(target.model.config.vocab_size, seed + 100, spread=0.9, like=target.model)
        return kind(model, name="second", max_draft_len=4, sampling=sampling)

    return make


DRAFTERS: dict[str, Callable[[Target, int], object]] = {
    "none": lambda target, seed: NoDrafter(),
    "prompt-lookup": lambda target, seed: PromptLookupDrafter(max_draft_len=3),
    "greedy model": second_model(ModelDrafter, "greedy"),
    "sampled model": second_model(ModelDrafter, "sample"),
    "greedy blocks": second_model(InBlocks, "greedy"),
    "sampled blocks": second_model(InBlocks, "sample"),
}
GREEDY = [name for name in DRAFTERS if not name.startswith("sampled")]
SAMPLINGS = [
    Sampling(0.3),
    Sampling(1.0),
    Sampling(2.0),
    Sampling(1.0, top_k=2),
    Sampling(1.0, top_p=0.7),
    Sampling(0.7, top_k=2, top_p=0.8),
]


@pytest.mark.parametrize("drafter", DRAFTERS)
@pytest.mark.parametrize("sampling", SAMPLINGS, ids=str)
def test_every_drafter_keeps_the_law(drafter: str, sampling: Sampling) -> None:
    target, prompt, stop = Target(random_model(3, 3)), [0, 1, 2, 0, 1], (2,)
    made = DRAFTERS[drafter](target, 3)
    static = controller_of("static:length=2" if "blocks" not in drafter else "static:length=1", made)
    pairs = list(decode_branches(target, made, static, prompt, sampling.settings(3, stop)))
    want = plain_law(target.model, prompt, 3, sampling, stop)
    assert sum(draws.probability for draws, _ in pairs) == pytest.approx(1.0, abs=1e-9)
    assert gap(law_of(iter(pairs)), want) < EXACT
    assert any(row.drafted_len for _, decoded in pairs for row in decoded.rounds) == (drafter != "none")


def live(spelling: str) -> bool:
    controller = controller_of(spelling, NoDrafter())
    return controller.privilege == "none" and controller.plan is None


LIVE = [spelling for spelling in ALL if live(spelling)]
BLIND = [spelling for spelling in LIVE if not controller_of(spelling, NoDrafter()).needs_q]
READERS = [spelling for spelling in LIVE if spelling not in BLIND]


CASES = [(spelling, drafter) for spelling in BLIND for drafter in ("sampled model", "sampled blocks")]
CASES += [(spelling, "greedy blocks") for spelling in LIVE]
CASES += [("static:length=1", "sampled blocks"), ("libraspec:alpha=0.8,block=2,shrink_at_cap=1", "greedy blocks")]


@functools.cache
def decodes(spelling: str, drafter: str) -> tuple[Law, Law, set[tuple[int, int]]]:
    """(the output's law, the target's, pairs of drafted and submitted lengths that occurred)."""
    vocabulary, tokens = (2, 4) if drafter.startswith("sampled") else (3, 3)
    target, prompt, sampling = Target(random_model(vocabulary, 5, spread=1.0)), [0, 1], Sampling()
    made = DRAFTERS[drafter](target, 5)
    controller = controller_of(spelling, made, c_s=0.4, pass_s=0.05)
    pairs = list(decode_branches(target, made, controller, prompt, sampling.settings(tokens)))
    lengths = {(row.drafted_len, row.submitted_len) for _, decoded in pairs for row in decoded.rounds}
    return law_of(iter(pairs)), plain_law(target.model, prompt, tokens, sampling), lengths


@pytest.mark.parametrize(("spelling", "drafter"), CASES)
def test_every_controller_keeps_the_law(spelling: str, drafter: str) -> None:
    law, want, _ = decodes(spelling, drafter)
    assert gap(law, want) < EXACT


def test_the_cases_above_do_submit_less_than_was_drafted() -> None:
    short = {
        (spelling.partition(":")[0], drafter)
        for spelling, drafter in CASES
        if any(0 < submitted < drafted for drafted, submitted in decodes(spelling, drafter)[2])
    }
    assert {("static", "sampled blocks"), ("banditspec-ucb", "sampled blocks"), ("threshold", "greedy blocks")} <= short
    assert {(rule, "greedy blocks") for rule in ("libraspec", "goodput", "corrected", "lambda")} <= short


@pytest.mark.parametrize("sampling", ["greedy", "sample"])
def test_a_transformer_with_skipped_layers_keeps_the_law(sampling: str) -> None:
    model = tiny_llama(vocabulary=4, spread=0.4)
    target, prompt, warped = Target(model), [0, 1, 3], Sampling(0.7, top_k=3)
    drafter = ModelDrafter(skip_layers(model, (1,)), name="layer-skip", max_draft_len=3, sampling=sampling)
    pairs = list(
        decode_branches(target, drafter, controller_of("static:length=2", drafter), prompt, warped.settings(3))
    )
    assert gap(law_of(iter(pairs)), plain_law(model, prompt, 3, warped)) < EXACT
    assert len({row.accepted_len for _, decoded in pairs for row in decoded.rounds}) > 1


def test_what_was_enumerated_is_what_keyed_draws_do() -> None:
    """The uniforms of a seed lie in the intervals of one branch only, and its output is that seed's."""
    target = Target(random_model(3, 8))
    drafter = DRAFTERS["sampled blocks"](target, 8)
    static, text, asked = controller_of("static:length=1", drafter), torch.tensor([0, 1]), Sampling().settings(3)
    pairs = list(decode_branches(target, drafter, static, [0, 1], asked))
    for seed in range(20):
        found = [
            decoded.output
            for draws, decoded in pairs
            if all(
                low <= uniform_stream(seed, key[0], 7, key[1], 0) < high for key, (low, high) in draws.intervals.items()
            )
        ]
        online = OnlineController(static, compiled=False)
        assert found == [decode(target, drafter, online, text, asked, draws=KeyedDraws(seed, 7)).output]


def test_pairs_that_are_refused() -> None:
    greedy, sampled = (
        ModelDrafter(fixed_model((0.2, 0.8)), name="q", sampling=sampling) for sampling in ("greedy", "sample")
    )
    for spelling in READERS:
        check_pair(controller_of(spelling, greedy), greedy)
        with pytest.raises(ConfigError, match="Draft greedily"):
            check_pair(controller_of(spelling, sampled), sampled)
    for spelling in BLIND:
        check_pair(controller_of(spelling, sampled), sampled)
    with pytest.raises(ConfigError, match="exists in replay only"):
        check_pair(controller_of("oracle", greedy), greedy)
    with pytest.raises(ConfigError, match="confidences of all drafter passes"):
        check_pair(controller_of("failfast-repo", greedy), greedy)


def test_branches_are_all_there_once() -> None:
    """Two dependent choices: a token of three, and a number of acceptances that depends on it."""

    def run(draws) -> tuple[int, int]:
        token = int(draws.drafted(torch.tensor([[0.5, 0.0, 0.5]]), 0))
        return token, int(draws.leading(torch.tensor([0.25, 1.0] if token else [1.0], dtype=torch.float64), 0))

    found = [(outcome, draws.probability) for draws, outcome in branches(run)]
    assert found == [((0, 1), 0.5), ((2, 2), 0.125), ((2, 0), 0.375)]
