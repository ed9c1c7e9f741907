"""Regret: identities, Wald's equation, parts of the cost, determinism, the fit of its growth."""

from __future__ import annotations

import dataclasses
import json
import math
from fractions import Fraction

import numpy as np
import pytest
from scipy.optimize import minimize_scalar

from specsim import theory
from specsim.engine import replay
from specsim.errors import ConfigError
from specsim.regret.compare import compare, paired
from specsim.regret.family import FAMILIES, acceptance_for, bound_slope, make_family
from specsim.regret.measures import fit_growth, measure
from specsim.regret.runner import Output, log_grid, run_policy
from specsim.regret.worlds import Case, chunk_case, family_case
from tests.worlds import make_arm_world

BANDITS = (
    "sp2ec:reset=0",
    "sp2ec:reset=64",
    "sp2ec:track=ewma,halflife=32",
    "klucb-unimodal:reset=0",
    "global-ucb:reset=0",
    "ucbspec",
    "ucbspec:variant=paper",
    "ucb1",
    "thompson",
    "exp3spec",
    "hedge",
    "sp2ec-2d",
)


def case_of(name: str = "sharp", *, rounds: int = 300, runs: int = 5, seed: int = 0, **kwargs: object) -> Case:
    return family_case(make_family(name, **kwargs), rounds=rounds, quota=None, runs=runs, seed=seed)  # pyright: ignore[reportArgumentType]


def runs_of(case: Case, spelling: str, **kwargs: bool) -> Output:
    return run_policy(case.build(spelling), case.job, **kwargs)


@pytest.mark.parametrize("spelling", [s for s in BANDITS if s != "sp2ec-2d"])
def test_pseudo_regret_is_pulls_times_gaps_and_time_regret_is_token_regret(spelling: str) -> None:
    family = make_family("sharp")
    case = family_case(family, rounds=300, quota=1, runs=5, seed=1)  # quota 1: nothing is played past `rounds`
    out = runs_of(case, spelling)
    mu = theory.tokens_of(family.acceptance[0], family.draft_len)
    rho = max(theory.throughputs(mu, family.steps))
    for run in range(5):
        pulls = [int(n) for n in out.pulls[run]]
        assert sum(pulls) == out.rounds[run] == 300
        exact = theory.pseudo_regret(mu, family.steps, pulls)
        assert out.pseudo[run, -1] == pytest.approx(float(exact) * family.unit_s, rel=1e-9, abs=1e-12)
        steps = sum((n * c for n, c in zip(pulls, family.steps, strict=True)), Fraction(0))
        assert out.seconds[run, -1] == pytest.approx(float(steps) * family.unit_s, rel=1e-9)
        # P43, exact: rho* sum T - sum N = rho* (sum T - sum N / rho*).
        tokens = int(out.tokens[run, -1])
        assert rho * steps - tokens == rho * (steps - tokens / rho)
        expected = sum((n * m for n, m in zip(pulls, mu, strict=True)), Fraction(0))
        assert rho * steps - expected == rho * exact


@pytest.mark.parametrize("spelling", BANDITS)
def test_wald(spelling: str) -> None:
    """Wall-time regret over a quota is on average the pseudo-regret plus the difference of overshoots / nu*."""
    case = family_case(make_family("sharp"), rounds=1, quota=400, runs=300, seed=5)
    out, best = runs_of(case, spelling), runs_of(case, "best-arm")
    rate = case.throughput[case.job.best]
    over = (out.quota[:, 1] - best.quota[:, 1]) / rate
    if spelling == "sp2ec-2d":
        assert (out.quota[:, 1] >= 400).all()
    left = out.quota[:, 0] - best.quota[:, 0] - out.quota[:, 2] - over
    assert abs(left.mean()) < 4 * left.std(ddof=1) / math.sqrt(left.size)
    assert (np.abs(out.quota[:, 1] - 400) <= case.job.world.draft_len).all()


def test_best_arm_has_no_regret() -> None:
    for name in FAMILIES:
        case = case_of(name)
        row = compare(case, ["best-arm", f"arm:index={case.job.best}"])["results"]
        for result in row:
            assert result["regret_s"]["mean"] == result["regret_s"]["max"] == 0.0
            if not case.job.world.phase_len:
                assert result["pseudo_regret_s"]["mean"] == pytest.approx(0.0, abs=1e-9)
            assert result["switches"] == 0.0


@pytest.mark.parametrize("spelling", ["sp2ec", "klucb-unimodal", "global-ucb", "ucbspec", "ucb1", "thompson"])
def test_initial_pulls_cost_the_sum_of_gaps(spelling: str) -> None:
    family = make_family("flat")
    once = (
        float(theory.initial_cost(theory.tokens_of(family.acceptance[0], family.draft_len), family.steps))
        * family.unit_s
    )
    case = family_case(family, rounds=200, quota=1, runs=4, seed=2)
    out = runs_of(case, f"{spelling}:reset=50")
    np.testing.assert_allclose(out.first_s, once, rtol=1e-9)
    np.testing.assert_allclose(out.again_s, 3 * once, rtol=1e-9)  # resets after rounds 50, 100, 150
    assert compare(case, [spelling])["initial_cost_s"] == pytest.approx(once)


@pytest.mark.parametrize("spelling", BANDITS)
def test_compiled_and_interpreted_agree(spelling: str) -> None:
    case = case_of("drift", rounds=60, runs=2, phase_len=20)
    fast, slow = runs_of(case, spelling), runs_of(case, spelling, compiled=False)
    for name, column in fast._asdict().items():
        np.testing.assert_array_equal(column, getattr(slow, name), err_msg=name)


def test_results_do_not_depend_on_order_company_or_number_of_runs() -> None:
    case = case_of(rounds=200, runs=6)
    forward = compare(case, BANDITS)
    again = compare(case, BANDITS)
    assert json.dumps(forward, allow_nan=False) == json.dumps(again, allow_nan=False)
    backward = compare(case, BANDITS[::-1])
    assert forward["results"] == backward["results"][::-1]
    assert compare(case, [BANDITS[4]])["results"] == [forward["results"][4]]
    fewer = runs_of(case_of(rounds=200, runs=3), "thompson")
    whole = runs_of(case, "thompson")
    np.testing.assert_array_equal(fewer.quota, whole.quota[:3])
    longer = runs_of(case_of(rounds=400, runs=6), "exp3spec")
    shared = np.isin(log_grid(400), log_grid(200))
    np.testing.assert_array_equal(
        longer.pseudo[:, shared], runs_of(case, "exp3spec").pseudo[:, np.isin(log_grid(200), log_grid(400))]
    )


def test_policies_meet_the_same_outcomes() -> None:
    """An arm's tokens in a round are the same for whoever plays it."""
    case = case_of(rounds=100, runs=3)
    alone = runs_of(case, "arm:index=4")
    assert case.job.best == 4
    np.testing.assert_array_equal(alone.tokens, runs_of(case, "best-arm").tokens)
    other = runs_of(dataclasses.replace(case, job=dataclasses.replace(case.job, seed=1)), "arm:index=4")
    assert (alone.tokens[:, -1] != other.tokens[:, -1]).any()


def test_sp2ec_ignores_the_unit_of_time_and_ucbspec_does_not() -> None:
    near, far = case_of(unit_s=0.0625), case_of(unit_s=0.25)  # powers of two: no rounding in between
    np.testing.assert_array_equal(runs_of(near, "sp2ec").pulls, runs_of(far, "sp2ec").pulls)
    assert (runs_of(near, "ucbspec").pulls != runs_of(far, "ucbspec").pulls).any()


def test_resets_grow_linearly_and_none_do_not() -> None:
    case = case_of("steep", rounds=16_000, runs=40)
    grid = np.array([2000, 4000, 8000, 16_000])
    case = dataclasses.replace(case, job=dataclasses.replace(case.job, grid=grid))
    steps = np.diff(runs_of(case, "sp2ec:reset=512").pseudo.mean(axis=0))
    assert (np.abs(steps[1:] / steps[:-1] - 2) < 0.3).all()
    for spelling in ("sp2ec:beta=0.3,reset=0", "ucb1:scale=1"):
        steps = np.diff(runs_of(case, spelling).pseudo.mean(axis=0))
        assert steps[-1] < 2.5 * steps[0]  # linear growth gives 4


def test_sp2ec_is_trapped_in_a_valley_and_a_global_search_is_not() -> None:
    case = case_of("valley", rounds=2000, runs=100)
    for spelling, low, high in (("sp2ec:reset=0", 0.08, 0.35), ("global-ucb:reset=0", 0.0, 0.0)):
        good = runs_of(case, spelling).pulls[:, 5:].sum(axis=1)
        assert low <= (good < 200).mean() <= high


@pytest.mark.parametrize("name", FAMILIES)
@pytest.mark.parametrize("arms", [None, 5, 30])
def test_families_have_the_gaps_they_promise(name: str, arms: int | None) -> None:
    if name == "valley" and arms is not None:
        with pytest.raises(ConfigError, match="given arms"):
            make_family(name, arms=arms)
        return
    family = make_family(name, arms=arms)
    for phase, law in zip(family.acceptance, [family.laws()], strict=False):
        assert all(sum(row) == 1 for row in law)
        nu = [float(x) for x in theory.throughputs(theory.tokens_of(phase, family.draft_len), family.steps)]
        best = int(np.argmax(nu))
        if name not in ("valley", "short"):
            assert theory.is_single_peaked([Fraction(x) for x in nu])
    if arms is None and name in ("sharp", "flat", "steep"):
        below, above = {"sharp": (0.02, 0.05), "flat": (0.007, 0.012), "steep": (0.05, 0.10)}[name]
        assert 1 - nu[best - 1] / nu[best] == pytest.approx(below, rel=0.06)
        assert 1 - nu[best + 1] / nu[best] == pytest.approx(above, rel=0.06)
    if name == "valley":
        np.testing.assert_allclose(nu, [0.85, 0.64, 0.51, 0.43, 0.36, 1.12, 1.09], rtol=1e-5)


def test_sharp_neighbours_and_bound() -> None:
    """The lower bound by another road: KL_inf as a one-dimensional maximisation left to scipy."""
    family = make_family("sharp", unit_s=0.2)
    mu = np.array([float(m) for m in theory.tokens_of(family.acceptance[0], 4)])
    cost = np.array([float(c) for c in family.steps])
    nu, total = mu / cost, 0.0
    for k in (3, 5):
        law, values = np.array(family.laws()[k], float), np.arange(1, 6)
        target = nu[4] * cost[k]

        def negative(t: float, law: np.ndarray = law, x: np.ndarray = values - target) -> float:
            return -float(law @ np.log(1 - t * x))

        found = minimize_scalar(
            negative, bounds=(0, 1 / (5 - target) - 1e-9), method="bounded", options={"xatol": 1e-12}
        )
        total += cost[k] * (1 - nu[k] / nu[4]) / -found.fun
    assert bound_slope(family) == pytest.approx(total * 0.2, rel=1e-5)
    assert bound_slope(make_family("drift")) is None


def test_acceptance_is_solved_to_six_decimals() -> None:
    for tokens in (1.0, 1.5, 3.3, 4.9):
        a = float(acceptance_for(tokens, 4))
        assert sum(a**j for j in range(5)) == pytest.approx(tokens, abs=2e-5)


def test_fits_find_planted_growth_and_decline_when_they_cannot() -> None:
    n = log_grid(100_000)
    log = fit_growth(n, 30 * np.log(n) - 200.0, None)
    assert log["verdict"] == "log"
    assert log["log"]["a"] == pytest.approx(30)
    power = fit_growth(n, 2 * n**0.8, None)
    assert power["verdict"] == "power"
    assert power["power"]["g"] == pytest.approx(0.8)
    assert power["range"] == [int(n[n >= 2000][0]), 100_000]
    small = fit_growth(n, 30 * np.log(n) - 200.0, 2000.0)
    assert small["verdict"] == "undecided"
    assert small["better_fit"] == "log"
    assert "too small" in small["why"]
    short = fit_growth(log_grid(5000), np.log(log_grid(5000)), None)
    assert short["verdict"] == "undecided"
    assert "too short" in short["why"]
    assert fit_growth(n, np.zeros(n.size), None)["verdict"] == "none"


@pytest.mark.parametrize("seed", range(12))
def test_a_trace_in_file_order_is_what_the_replay_does(seed: int) -> None:
    world = make_arm_world(seed)
    case = chunk_case(world.meta, world.chunk, world.latency, name="w", quota=None, runs=3, seed=9, carry=False)
    everything = dataclasses.replace(case.job, quota=1e18)
    for spelling in ("sp2ec", "exp3spec", "hedge", "thompson", "best-arm", "sp2ec-2d", "plain"):
        row = replay(world.meta, [world.chunk], world.latency, [spelling], seed=9).results[0]
        out = run_policy(case.build(spelling), everything)
        assert out.rounds[0] == row["rounds"]
        if spelling != "plain":
            assert out.pulls[0].tolist() == row["arm_pulls"]
        assert out.pulls.sum(axis=1).tolist() == (out.rounds if spelling != "plain" else 0 * out.rounds).tolist()
    best = replay(world.meta, [world.chunk], world.latency, ["best-arm"]).results[0]
    run = run_policy(case.build("best-arm"), dataclasses.replace(case.job, quota=float(best["tokens"])))
    assert run.quota[0, 0] == pytest.approx(best["time_s"], rel=1e-9)
    assert run.quota[:, 2] == pytest.approx(0.0, abs=1e-9)


def test_orders_of_requests_differ_and_state_may_be_carried() -> None:
    world = make_arm_world(4, coverage="every-position", requests=30, positions=60, arms=4)
    cases = [
        chunk_case(world.meta, world.chunk, world.latency, name="w", quota=None, runs=20, seed=0, carry=carry)
        for carry in (False, True)
    ]
    orders = cases[0].job.world.order
    assert orders[0].tolist() == list(range(orders.shape[1]))
    assert all(sorted(row) == list(range(orders.shape[1])) for row in orders.tolist())
    cleared, carried = (runs_of(case, "sp2ec") for case in cases)
    assert cleared.quota[:, 0].std() > 0
    assert (cleared.pulls != carried.pulls).any()
    with pytest.raises(ConfigError, match="at most that"):
        chunk_case(world.meta, world.chunk, world.latency, name="w", quota=10**9, runs=1, seed=0, carry=False)


def test_policies_that_know_the_outcome_are_refused() -> None:
    case = case_of(rounds=10, runs=1)
    with pytest.raises(ConfigError, match="knows the outcome"):
        runs_of(case, "oracle")
    with pytest.raises(ConfigError, match="chooses a length"):
        case.build("static:length=3")


def test_paired_differences() -> None:
    case = case_of(rounds=500, runs=20)
    same = paired(runs_of(case, "sp2ec"), runs_of(case, "sp2ec"))
    assert same == {"mean": 0.0, "low": 0.0, "high": 0.0}
    worse = paired(runs_of(case, "best-arm"), runs_of(case, "arm:index=9"))
    assert worse["low"] > 1.0


def test_a_quota_that_a_policy_cannot_reach_is_refused() -> None:
    """On a log of rounds plain decoding emits one token a row, so it ends before what the arms reach."""
    from specsim.errors import ConfigError

    world = make_arm_world(8, coverage="every-round", requests=3, positions=24, arms=3)
    assert world.chunk.arm_accept_len.sum() > 0
    case = chunk_case(world.meta, world.chunk, world.latency, name="w", quota=None, runs=2, seed=0, carry=False)
    case = dataclasses.replace(case, job=dataclasses.replace(case.job, quota=float(world.chunk.rows + 1)))
    best = run_policy(case.build("best-arm"), case.job)
    plain = case.build("plain")
    with pytest.raises(ConfigError, match="lower --quota"):
        measure("plain", plain, case, run_policy(plain, case.job), best)
