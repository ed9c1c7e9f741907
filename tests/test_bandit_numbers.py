"""Published numbers of the shipped bandits: radii, SP2ec's arms, EXP3Spec's weights, golden vectors."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from specsim.controllers.bandit_core import LEADS, at, spread_radius
from specsim.controllers.weights import arm_probability, exp3_rate
from tests.vectors import cases_of, run_case
from tests.vectors_bandits import HANDLERS, arm_bandit, block, pull

TOKENS, SECONDS = (4.6, 4.3, 3.8, 2.6, 1.4), (1.0, 0.9, 0.8, 0.7, 0.6)


@pytest.mark.parametrize(
    ("length", "pulls", "leads", "want"),
    [(4, 1, 1, 5.578797), (4, 1, 2, 7.300937), (4, 5, 4, 3.180062), (4, 20, 30, 2.041512), (4, 100, 300, 1.112362)],
)
def test_sp2ec_radius(length: int, pulls: int, leads: int, want: float) -> None:
    assert length / 2 * spread_radius(float(pulls), 3.0 * leads**2) == pytest.approx(want, abs=1e-6)


@pytest.mark.parametrize(
    ("length", "pulls", "t", "arms", "delta", "want"),
    [
        (10, 1, 17, 17, 0.1, 34.130337),
        (10, 5, 100, 17, 0.1, 13.744243),
        (10, 30, 512, 17, 0.1, 5.843860),
        (256, 1, 17, 17, 0.1, 873.736615),
        (8, 3, 20, 4, 0.05, 12.825884),
    ],
)
def test_ucbspec_radius(length: int, pulls: int, t: int, arms: int, delta: float, want: float) -> None:
    assert length / 2 * spread_radius(float(pulls), arms * t**2 / delta) == pytest.approx(want, abs=1e-6)


def arms_of(name: str, **params: object) -> list[int]:
    online, pulled = arm_bandit(name, 5, 4, **params), []
    for number in range(25):
        arm = pull(online, number)
        online.update(TOKENS[arm] - 1, SECONDS[arm])  # pyright: ignore[reportArgumentType]
        pulled.append(arm)
    return pulled


@pytest.mark.parametrize(
    ("beta", "want"),
    [
        (0.1, "0 1 2 3 4 1 2 0 1 2 2 1 2 1 1 0 2 1 2 2 1 2 0 1 2"),
        (0.3, "0 1 2 3 4 1 2 0 1 2 2 1 0 2 1 2 0 1 2 2 1 0 2 1 2"),
    ],
)
def test_sp2ec_arms(beta: float, want: str) -> None:
    assert arms_of("sp2ec", beta=beta, reset=0) == [int(k) for k in want.split()]


def test_ucbspec_is_round_robin_on_these_arms() -> None:
    pulled = arms_of("ucbspec", scale=10.0, delta=0.1)
    assert [pulled.count(k) for k in range(5)] == [5, 6, 5, 5, 4]


def test_exp3spec_weights() -> None:
    online = arm_bandit("exp3spec", 3, 8)
    params, state = online.controller.params, online._state
    rates, chances = [], []
    for arm, tokens in ((0, 5), (1, 2), (2, 8), (0, 4)):
        rate = exp3_rate(params, state, 0)
        rates.append(rate)
        chances.append([arm_probability(params, state, 0, LEADS, k, rate) for k in range(3)])
        online._round = (arm, 8, 8)
        online.update(tokens - 1, 1.0)
    assert rates == pytest.approx([0.605148, 0.427904, 0.349382, 0.302574], abs=1e-6)
    want = [[1 / 3] * 3, [0.208333, 0.395834, 0.395834], [0.288262, 0.224893, 0.486844], [0.306443, 0.247162, 0.446395]]
    for got, row in zip(chances, want, strict=True):
        assert got == pytest.approx(row, abs=2e-6)
    losses = block(online, LEADS)
    assert losses == pytest.approx([1.5 + 2.039533, 2.210525, 0.256756], abs=2e-6)
    assert math.isclose(state[0, at(params, LEADS, 0)], losses[0])


@pytest.mark.parametrize(("file", "component"), HANDLERS)
def test_vectors(file: str, component: str, shared: Path) -> None:
    cases = [c for c in cases_of(shared / "vectors" / f"{file}.json") if c[1] == component]
    assert cases
    for name, _, case_id, case in cases:
        status, details = run_case(name, component, case)
        assert status == "ok", f"{case_id}: {details}"


def test_a_changed_vector_fails(shared: Path) -> None:
    for file, component, key in (
        ("sp2ec", "single_peak_selection", "pulled_arm_per_round"),
        ("sp2ec", "global_ucb", "pulled_arm_per_round"),
        ("banditspec", "exp3_definition", "cumulative_estimated_loss"),
    ):
        name, _, _, case = next(c for c in cases_of(shared / "vectors" / f"{file}.json") if c[1] == component)
        case["expected"][key][-1] += 1
        assert run_case(name, component, case)[0] == "FAIL"
