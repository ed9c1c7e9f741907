"""`lambda` where drafting does not pay: what it loses to plain rounds, whatever it was told to expect."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from specsim.controllers import Setting, build
from specsim.controllers.lambda_core import LEAD, LONGEST_WAIT, TRIAL_SHARE
from specsim.engine import controllers_for, replay
from specsim.latency import LatencyModel
from specsim.online import OnlineController
from specsim.synth import synthesize

TREE = pytest.mark.parametrize("tree", [False, True], ids=["chain", "tree"])


def seconds_of(tree: bool, distort: str, alpha: float, block_s: float, passes: float, seed: int) -> dict[str, float]:
    """Seconds of `lambda` and of the best fixed length of 8 requests of 250 tokens; a plain round takes about one.

    Args:
        tree: whether drafts are trees.
        distort: of the confidences.
        alpha: acceptance.
        block_s: seconds of drafting a block, as the rule is told.
        passes: times that, as it is charged.
        seed: of the world.
    """
    meta, chunk = synthesize(
        kind="iid",
        requests=8,
        positions=250,
        max_draft_len=8,
        block_len=8,
        alpha=alpha,
        distort=distort,
        top_k=4 if tree else 0,
        seed=seed,
    )
    if tree:
        meta = dataclasses.replace(meta, max_nodes=16)
    told = LatencyModel.affine(c_s=0.05, b_s=0.95, draft_pass_s=block_s, overhead_s=0.01)
    charged = dataclasses.replace(told, draft_pass_s=block_s * passes)
    outcome = replay(meta, [chunk], charged, controllers_for(meta, told, ["lambda", "static:length=0"]))
    ours, plain = (row["time_s"] for row in outcome.results)
    assert outcome.static_s is not None
    return {"lambda": ours, "plain": plain, "best": float(outcome.static_s.min())}


@TREE
@settings(max_examples=25)
@example(distort="under", alpha=0.02, block_s=3.0, passes=3.0, seed=1)
@given(
    distort=st.sampled_from(["calibrated", "over", "under", "drift"]),
    alpha=st.floats(0.02, 0.6),
    block_s=st.floats(0.1, 3.0),
    passes=st.floats(0.5, 3.0),
    seed=st.integers(0, 1000),
)
def test_it_loses_little_to_plain_rounds(
    tree: bool, distort: str, alpha: float, block_s: float, passes: float, seed: int
) -> None:
    """Trials, and unlearning the prior, cost little of 2000 tokens in every stationary world.

    The most is 5.5 %, where nothing is accepted and a single draft takes as long as nine plain rounds.
    """
    found = seconds_of(tree, distort, alpha, block_s, passes, seed)
    assert found["lambda"] <= 1.06 * found["plain"]


@pytest.mark.parametrize(("alpha", "block_s", "passes"), [(0.1, 0.6, 1.0), (0.5, 0.6, 2.0), (0.3, 0.3, 2.0)])
def test_what_is_told_of_costs_and_first_tokens_may_mislead(alpha: float, block_s: float, passes: float) -> None:
    """Worlds in which the chance of first tokens among submitted drafts, or the price told, promise too much."""
    found = seconds_of(False, "calibrated", alpha, block_s, passes, 3)
    assert found["best"] == pytest.approx(found["plain"])
    assert found["lambda"] <= 1.03 * found["plain"]


class Rounds:
    """`lambda` in a scripted world: a draft of 4 tokens is accepted whole or not at all; a plain round takes 1 s."""

    def __init__(self, tree: bool, draft_s: float = 1.0) -> None:
        self.draft_s = draft_s
        latency = LatencyModel.affine(c_s=0.0, b_s=1.0, draft_pass_s=draft_s)
        setting = Setting(block_len=4, max_draft_len=4, latency=latency, tree=tree)
        self.online = OnlineController(build("lambda", setting), compiled=False)
        self.online.start_request(0)

    def play(self, good: bool, rounds: int, stall_s: float = 0.0, slower: float = 1.0) -> float:
        """The share of rounds that drafted; they took `stall_s` longer, and `slower` times as long."""
        drafted = 0
        for pos in range(rounds):
            _, want = self.online.begin(pos, 0)
            submit = 0
            if want:
                submit, _ = self.online.revise(np.full(4, 0.9, np.float32), False)
                drafted += 1
            seconds = 1.0 + self.draft_s * (want > 0) + stall_s
            self.online.update(submit if good else 0, slower * seconds)
        return drafted / rounds


@TREE
def test_a_stall_does_not_end_drafting(tree: bool) -> None:
    """One round that takes a thousand times as long."""
    rounds = Rounds(tree)
    assert rounds.play(good=True, rounds=50) == 1.0
    rounds.play(good=True, rounds=1, stall_s=2000.0)
    assert rounds.play(good=True, rounds=50) == 1.0


@TREE
def test_it_stops_soon_however_long_drafts_paid_and_comes_back(tree: bool) -> None:
    rounds = Rounds(tree)
    assert rounds.play(good=True, rounds=2000) == 1.0
    assert rounds.play(good=False, rounds=200) < 0.8
    # What was ahead counts for no more than LEAD tokens, each of which a wrong draft uses up in one round.
    assert rounds.play(good=False, rounds=1000) <= LEAD / 1000 + 0.05
    assert rounds.play(good=True, rounds=int(2 * LONGEST_WAIT)) > 0
    assert rounds.play(good=True, rounds=100) == 1.0


@TREE
@pytest.mark.parametrize("draft_s", [0.2, 1.0])
def test_trials_cost_their_share(tree: bool, draft_s: float) -> None:
    """Where every draft is wrong; up to twice as much while the prior still makes a draft look better than it is."""
    rounds = Rounds(tree, draft_s)
    rounds.play(good=False, rounds=1000)
    share = rounds.play(good=False, rounds=4000)
    assert 0 < share * draft_s <= max(TRIAL_SHARE, draft_s / LONGEST_WAIT) * 2


@TREE
def test_a_slow_spell_of_the_machine_misleads_for_no_longer_than_it_is_remembered(tree: bool) -> None:
    """Plain rounds of a spell make drafts look cheap after it; drafts of a spell look dear until plain rounds tell."""
    wrong = Rounds(tree, draft_s=6.0)  # 5 tokens in 7 s
    wrong.play(good=True, rounds=300)
    wrong.play(good=True, rounds=300, slower=3.0)
    wrong.play(good=True, rounds=300)
    assert wrong.play(good=True, rounds=1000) < 0.05
    right = Rounds(tree)
    assert right.play(good=True, rounds=300) == 1.0
    assert right.play(good=True, rounds=1000, slower=3.0) > 0.85
