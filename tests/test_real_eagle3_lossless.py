"""Whatever an EAGLE-3 head drafts, the output is the target's: its tokens at T = 0, its law at T = 1."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch", reason="real/ needs the extra 'real'")

from real.drafters.base import Drafter, NoDrafter  # noqa: E402
from real.drafters.eagle3 import Eagle3Chain, Eagle3Tree  # noqa: E402
from real.loop import Settings, check_pair, decode  # noqa: E402
from real.target import Target  # noqa: E402
from real.verify import sampling_processors  # noqa: E402
from specsim.errors import ConfigError  # noqa: E402
from specsim.online import OnlineController  # noqa: E402
from tests.real_eagle3 import pair, random_head, tiny_config  # noqa: E402
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
from tests.real_lossless import Checked, random_lengths  # noqa: E402
from tests.real_tiny import tiny_llama  # noqa: E402
from tests.worlds import ALL  # noqa: E402

TOKENS = 14


def live(spelling: str) -> bool:
    controller = controller_of(spelling, NoDrafter())
    return controller.privilege == "none" and controller.plan is None


LIVE = [spelling for spelling in ALL if live(spelling)]


def made(kind: str, sampling: str = "greedy") -> Drafter:
    found = pair()
    if kind == "chain":
        return Eagle3Chain(found.net, found.model, name=kind, max_draft_len=6, sampling=sampling)
    return Eagle3Tree(found.net, found.model, name=kind, size=12, depth=4, top_k=3)


@pytest.mark.parametrize("kind", ["chain", "tree"])
@pytest.mark.parametrize("spelling", LIVE)
def test_greedy_output_is_plain_decodings_with_every_controller(kind: str, spelling: str) -> None:
    found, drafter = pair(), made(kind)
    rule = controller_of(spelling, drafter)
    controller = OnlineController(rule, seed=3, compiled=not rule.compiled)  # plain Python in either case
    decoded = decode(
        Target(found.model), drafter, controller, found.prompt, Settings(max_new_tokens=TOKENS), clock=FixedClock()
    )
    assert decoded.output == found.plain[:TOKENS]


@pytest.mark.parametrize("kind", ["chain", "tree"])
@pytest.mark.parametrize("cache", ["dynamic", "static"])
def test_the_targets_cache_is_that_of_a_fresh_pass_after_every_round(kind: str, cache: str) -> None:
    found, target = pair(), Checked(pair().model, tolerance=1e-4, cache=cache)
    drafter, accepted, rejections = made(kind), 0, 0
    for seed in range(3):
        controller = OnlineController(random_lengths(12), seed=seed)
        decoded = decode(target, drafter, controller, found.prompt, Settings(max_new_tokens=24))
        assert decoded.output == found.plain
        accepted += sum(row.accepted_len for row in decoded.rounds)
        rejections += target.rejections
    assert accepted > 15
    assert rejections > 2


def test_a_budget_of_nodes_is_what_the_target_scores() -> None:
    found, drafter = pair(), made("tree")
    rows = {}
    for spelling in ("static:length=3", "static:length=12"):
        controller = OnlineController(controller_of(spelling, drafter))
        decoded = decode(Target(found.model), drafter, controller, found.prompt, Settings(max_new_tokens=20))
        rows[spelling] = decoded.rounds
        assert all(row.drafted_len == 12 and row.forward_passes == 4 for row in decoded.rounds[:-1] if row.drafted_len)
    assert {row.scored_len for row in rows["static:length=3"][:-4]} == {3}
    assert {row.scored_len for row in rows["static:length=12"][:-4]} == {12}
    assert len(rows["static:length=12"]) < len(rows["static:length=3"])


def small(draft_vocabulary: int = 2):
    """A target of three tokens and a head that knows some of them."""
    model = tiny_llama(layers=8, vocabulary=3, seed=4, spread=0.2)
    return model, random_head(tiny_config(vocabulary=3, draft_vocabulary=draft_vocabulary), seed=1)


@pytest.mark.parametrize(
    "sampling", [Sampling(), Sampling(0.6), Sampling(1.0, top_k=2), Sampling(1.0, top_p=0.9)], ids=str
)
@pytest.mark.parametrize(
    ("spelling", "how"), [("static:length=2", "sample"), ("libraspec:alpha=0.8,block=2", "greedy")]
)
def test_the_law_of_a_chain(sampling: Sampling, spelling: str, how: str) -> None:
    model, net = small()
    prompt, target = [0, 1, 2, 1], Target(model)
    drafter = Eagle3Chain(net, model, name="chain", max_draft_len=3, sampling=how)
    pairs = list(decode_branches(target, drafter, controller_of(spelling, drafter), prompt, sampling.settings(3)))
    assert sum(draws.probability for draws, _ in pairs) == pytest.approx(1.0, abs=1e-9)
    assert gap(law_of(iter(pairs)), plain_law(model, prompt, 3, sampling)) < EXACT
    assert any(row.drafted_len > 1 for _, decoded in pairs for row in decoded.rounds)
    assert any(row.accepted_len for _, decoded in pairs for row in decoded.rounds)


def test_the_law_of_a_tree() -> None:
    model, net = small()
    prompt, target = [0, 1, 2, 1], Target(model)
    drafter = Eagle3Tree(net, model, name="tree", size=5, depth=3, top_k=2)
    static = controller_of("static:length=5", drafter)
    pairs = list(decode_branches(target, drafter, static, prompt, Sampling().settings(3)))
    assert gap(law_of(iter(pairs)), plain_law(model, prompt, 3, Sampling())) < EXACT
    assert any(row.accepted_len > 1 for _, decoded in pairs for row in decoded.rounds)


def test_processors_that_forbid_all_the_head_knows_cost_acceptance_only() -> None:
    model, net = small()
    unknown = int(torch.nonzero(~net.t2d)[0, 0])

    def only(ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        forbidden = torch.ones(3, dtype=torch.bool)
        forbidden[unknown] = False
        return scores.masked_fill(forbidden, -torch.inf)

    drafter = Eagle3Chain(net, model, name="chain", max_draft_len=3, sampling="sample")
    settings = Settings(max_new_tokens=4, sample=True, processors=[only])
    controller = OnlineController(controller_of("static:length=2", drafter))
    decoded = decode(Target(model), drafter, controller, torch.tensor([0, 1, 2]), settings)
    assert decoded.output == [unknown] * 4
    assert decoded.rounds[0].drafted_len == 2


@pytest.mark.parametrize("options", [{}, {"temperature": 0.5}, {"temperature": 1.5, "top_k": 8}], ids=str)
def test_a_sampled_tree_is_plain_decoding_token_for_token(options) -> None:
    found, drafter, accepted = pair(), made("tree"), 0
    for seed in range(4):
        settings = Settings(max_new_tokens=20, sample=True, processors=sampling_processors(**options), seed=seed)
        outputs = []
        for tried, controller in ((NoDrafter(), controller_of("plain", NoDrafter())), (drafter, random_lengths(12))):
            decoded = decode(
                Target(found.model), tried, OnlineController(controller, seed=seed), found.prompt, settings
            )
            outputs.append(decoded.output)
            accepted += sum(row.accepted_len for row in decoded.rounds)
        assert outputs[0] == outputs[1]
    assert accepted > 0


def test_sampled_chains_go_with_rules_that_do_not_read_q() -> None:
    drafter = made("chain", "sample")
    check_pair(controller_of("static:length=3", drafter), drafter)
    with pytest.raises(ConfigError, match="drops drafted tokens by their probability"):
        check_pair(controller_of("threshold", drafter), drafter)
