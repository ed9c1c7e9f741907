"""P40 to P42 and `eval` of bandits: the shipped SP2ec and UCBSpec on scripted rewards."""

from __future__ import annotations

import json
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specsim.controllers import REGISTRY
from specsim.errors import ConfigError
from specsim.theory.bandit import bandit_arms, policies, reward_at
from specsim.theory.evaluate import evaluate
from tests.theory_props import found

ROUNDS = 60
REWARDS = st.lists(st.lists(st.integers(1, 5), min_size=1, max_size=4), min_size=1, max_size=6)


def costs(count: int) -> list[float]:
    return [2.0 + k / 2 for k in range(count)]


@given(REWARDS, st.sampled_from((0.0, 0.1, 0.3, 1.0)))
def test_p40_sp2ec_stays_beside_its_leader(rewards: list[list[int]], beta: float) -> None:
    """Initial pulls in order; then the leader in its 1st, 4th, .. lead and otherwise it or a neighbour.

    Rewards are whole and costs halves, so that the sums, and with them ties, are exact."""
    arms = bandit_arms("sp2ec", {"beta": beta, "L": 4}, rewards, costs(len(rewards)), ROUNDS)
    count = len(rewards)
    assert arms[:count] == list(range(count))
    pulls, gained, leads = [0] * count, [0.0] * count, [0] * count
    for number, arm in enumerate(arms):
        if number >= count:
            speed = [gained[k] / (pulls[k] * costs(count)[k]) for k in range(count)]
            leader = speed.index(max(speed))
            leads[leader] += 1
            assert abs(arm - leader) <= 1
            if leads[leader] % 3 == 1:
                assert arm == leader
        gained[arm] += reward_at(rewards[arm], pulls[arm])
        pulls[arm] += 1
    assert sum(leads) == max(ROUNDS - count, 0)


@given(REWARDS, st.integers(-12, 12))
def test_p41_sp2ec_does_not_know_the_unit_of_time(rewards: list[list[int]], power: int) -> None:
    scaled = [x * 2.0**power for x in costs(len(rewards))]
    params = {"beta": 0.3, "L": 4}
    assert bandit_arms("sp2ec", params, rewards, scaled, ROUNDS) == bandit_arms(
        "sp2ec", params, rewards, costs(len(rewards)), ROUNDS
    )


def test_p42_ucbspec_as_published_does() -> None:
    def differs(rewards: list[list[int]]) -> bool:
        small = [x / 1024 for x in costs(len(rewards))]
        params = {"L": 10, "delta": 0.1}
        plain = bandit_arms("ucbspec", params, rewards, costs(len(rewards)), ROUNDS)
        return bandit_arms("ucbspec", params, rewards, small, ROUNDS) != plain

    rewards = found(REWARDS, differs)
    assert len(rewards) == 2


@given(REWARDS, st.integers(1, 12))
def test_p42_as_the_paper_states_it_does_not(rewards: list[list[int]], power: int) -> None:
    params = {"variant": "paper", "L": 4}
    scaled = [x / 2.0**power for x in costs(len(rewards))]
    assert bandit_arms("ucbspec", params, rewards, scaled, ROUNDS) == bandit_arms(
        "ucbspec", params, rewards, costs(len(rewards)), ROUNDS
    )


@pytest.mark.parametrize("policy", policies())
def test_every_bandit_can_be_asked(policy: str) -> None:
    request = {"policy": policy, "params": {}, "rewards": [2, [3, 4], 3.5], "costs": [2, 2.5, "3"], "rounds": 30}
    first, again = (evaluate(json.dumps({"kind": "bandit", **request})) for _ in range(2))
    assert first == again
    assert set(first) == {"arms"}
    assert len(first["arms"]) == 30
    assert set(first["arms"]) <= {0, 1, 2}


def test_all_bandits_of_the_registry_are_policies() -> None:
    arm_controllers = {name for name, spec in REGISTRY.items() if spec.kinds == ("arm",)}
    assert arm_controllers - set(policies()) == {"arm", "best-arm", "sp2ec-2d"}


def test_a_list_is_read_at_the_arms_own_pulls() -> None:
    arms = bandit_arms("sp2ec", {"beta": 0}, [[1, 5], [2]], [1.0, 1.0], 8)
    # Arm 1 leads 2 : 1 and is played for ever with beta 0, although arm 0 would have paid 5 the second time.
    assert arms == [0, 1, 1, 1, 1, 1, 1, 1]


def test_reset_only_when_asked_for() -> None:
    rewards, rounds = [[1], [5], [1]], 1100
    without = bandit_arms("sp2ec", {"beta": 0.0}, rewards, [1.0] * 3, rounds)
    with_reset = bandit_arms("sp2ec", {"beta": 0.0, "reset": 512}, rewards, [1.0] * 3, rounds)
    assert without.count(1) == rounds - 2
    assert [n for n, (a, b) in enumerate(pairwise(with_reset), 1) if (a, b) == (0, 1)] == [1, 513, 1025]


@pytest.mark.parametrize(
    ("policy", "params", "text"),
    [
        ("sp3ec", {}, "did you mean 'sp2ec'"),
        ("oracle", {}, "allowed: sp2ec"),
        ("arm", {}, "allowed: sp2ec"),
        ("sp2ec", {"beta": -1}, "beta"),
        ("sp2ec", {"bta": 1}, "allowed: L, beta, reset"),
        ("sp2ec", {"L": 0}, "an integer in [1"),
        ("sp2ec", {"L": 2.5}, "L 2.5"),
        ("sp2ec", {"reset": 3, "track": "ewma"}, "not both"),
        ("ucbspec", {"variant": "x"}, "variant"),
    ],
)
def test_refusals_name_the_key(policy: str, params: dict[str, Any], text: str) -> None:
    with pytest.raises(ConfigError, match=r"^key '(policy|params)': ") as caught:
        bandit_arms(policy, params, [1], [1.0], 1)
    assert text in str(caught.value)
    assert "allowed" in str(caught.value)
