"""Handlers for sp2ec.json (the selectors) and banditspec.json: shipped controllers through `specsim.online`.

Those files number arms by ascending skip, and their first index wins ties; ours go by the file's order, which is
ascending budget. The vectors' arms are therefore given in their own order, as if a file listed them so.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from specsim.controllers import REGISTRY, Setting
from specsim.controllers.bandit_core import COSTS, LEADS, PULLS, RATES, REWARDS, at, spread_radius
from specsim.controllers.bandits import sp2ec_bound
from specsim.controllers.weights import arm_probability, update_exp3
from specsim.jit import uncompiled, with_globals
from specsim.online import OnlineController
from tests.vectors_tools import Case, Checks, NotCovered, affine, controller


def arm_bandit(name: str, arms: int, draft_len: int, **params: Any) -> OnlineController:
    setting = Setting(
        block_len=1, max_draft_len=draft_len, latency=affine(), arm_draft_s=(1.0,) * arms, draft_len=draft_len
    )
    return OnlineController(REGISTRY[name].resolve(params, setting))


def pull(online: OnlineController, number: int) -> int:
    """A round up to verification: the arm that drafted."""
    arm, want = online.begin(number, number)
    online.revise(np.zeros(want, np.float32), False)
    return arm


class Table:
    """Entries of a cycled list per arm, read by the arm's own pull number."""

    def __init__(self, lists: Mapping[Any, Sequence[float]]) -> None:
        self.lists, self.read = lists, dict.fromkeys(lists, 0)

    def next(self, key: Any) -> float:
        values = self.lists[key]
        self.read[key] += 1
        return values[(self.read[key] - 1) % len(values)]


def block(online: OnlineController, which: int) -> list[float]:
    """One block of a bandit's state row."""
    params = online.controller.params
    return [float(online._state[0, at(params, which, k)]) for k in range(params.arms)]


def played(online: OnlineController, number: int, rewards: Table, costs: Table, keys: Sequence[Any]) -> int:
    """One round: the arm pulled."""
    arm = pull(online, number)
    online.update(int(rewards.next(keys[arm])) - 1, costs.next(keys[arm]))
    return arm


def close(got: Sequence[float], want: Sequence[float], tolerance: float) -> tuple[bool, str]:
    """Whether all numbers agree to a relative tolerance, and what differs."""
    wrong = [(g, w) for g, w in zip(got, want, strict=True) if not math.isclose(g, w, rel_tol=tolerance, abs_tol=1e-12)]
    return not wrong, str(wrong[:3])


def agrees(what: str, got: Sequence[float], want: Sequence[float], tolerance: float) -> tuple[str, Any, Any]:
    fine, wrong = close(got, want, tolerance)
    return what, "agrees" if fine else wrong, "agrees"


def sp2ec_selection(case: Case) -> Checks:
    """Pulls, leaders, leader counts, upper bounds and radii, round by round."""
    parameters, inputs, expected = case["parameters"], case["inputs"], case["expected"]
    count = parameters["number_of_arms"]
    # Lists come in the given order of arms, expected indices are by increasing budget (skip).
    order = sorted(range(count), key=lambda k: inputs["arm_budgets"][k])
    rewards = Table({k: inputs["committed_tokens_cycled_per_arm"][order[k]] for k in range(count)})
    costs = Table({k: [inputs["cost_per_arm"][order[k]]] for k in range(count)})
    length, beta = parameters["max_draft_length"], parameters["beta"]
    online = arm_bandit("sp2ec", count, length, beta=beta, reset=0)
    tolerance = case["tolerance"]["upper_bounds"]
    wanted = {row["round"]: row for row in expected["selected_rounds"]}
    pulls, leaders, leads = [], [], []
    for number in range(parameters["rounds"]):
        before = block(online, LEADS)
        arm = pull(online, number)
        after = block(online, LEADS)
        changed = [k for k in range(count) if after[k] != before[k]]
        leaders.append(changed[0] if changed else None)
        leads.append(int(after[changed[0]]) if changed else None)
        if number + 1 in wanted:
            row = wanted[number + 1]
            lead = float(row["leader_count"])
            bounds = [sp2ec_bound(online.controller.params, online._state, 0, k, lead) for k in range(count)]
            radii = [length / 2 * spread_radius(n, 3 * lead**2) for n in block(online, PULLS)]
            yield agrees(f"round {number + 1} bounds", bounds, row["upper_bounds_of_all_arms"], tolerance)
            yield agrees(f"round {number + 1} radii", radii, row["confidence_radius_before_beta"], tolerance)
            yield f"round {number + 1} pulls", block(online, PULLS), row["pulls"]
            yield f"round {number + 1} pulled", arm, row["pulled"]
        online.update(int(rewards.next(arm)) - 1, costs.next(arm))
        pulls.append(arm)
    yield "pulled_arm_per_round", pulls, expected["pulled_arm_per_round"]
    yield "leader_per_round", leaders, expected["leader_per_round"]
    yield "leader_count_per_round", leads, expected["leader_count_per_round"]
    yield "final_pulls", block(online, PULLS), expected["final_pulls"]
    yield "final_leader_counts", block(online, LEADS), expected["final_leader_counts"]
    rates = [r / c for r, c in zip(block(online, REWARDS), block(online, COSTS), strict=True)]
    yield agrees("final_throughput", rates, expected["final_throughput"], case["tolerance"]["throughput"])
    yield agrees("total_reward", [sum(block(online, REWARDS))], [expected["total_reward"]], 1e-9)
    yield agrees("total_cost", [sum(block(online, COSTS))], [expected["total_cost"]], 1e-9)


def ucbspec_selection(case: Case) -> Checks:
    """UCBSpec as the SP2ec repository runs it: pulls, means, bounds and radii."""
    parameters, inputs, expected = case["parameters"], case["inputs"], case["expected"]
    count = parameters["number_of_arms"]
    scale, delta = parameters["reward_bound"], parameters["delta"]
    online = arm_bandit("ucbspec", count, 4, variant="sp2ec-repo", scale=scale, delta=delta)
    rewards = Table(dict(enumerate(inputs["committed_tokens_cycled_per_arm"])))
    costs = Table({k: [cost] for k, cost in enumerate(inputs["cost_per_arm"])})
    tolerance = case["tolerance"]["upper_bounds"]
    wanted = {row["round"]: row for row in expected["selected_rounds"]}
    pulls = []
    for number in range(parameters["rounds"]):
        if number + 1 in wanted:
            row, n = wanted[number + 1], block(online, PULLS)
            means = [rate / pulled for rate, pulled in zip(block(online, RATES), n, strict=True)]
            inside = count * float(row["rounds_done"]) ** 2 / delta
            radii = [scale / 2 * spread_radius(pulled, inside) for pulled in n]
            yield agrees(f"round {number + 1} means", means, row["mean_tokens_per_second"], tolerance)
            yield agrees(f"round {number + 1} radii", radii, row["radii"], tolerance)
            bounds = [mean + radius for mean, radius in zip(means, radii, strict=True)]
            yield agrees(f"round {number + 1} bounds", bounds, row["upper_bounds"], tolerance)
            yield f"round {number + 1} pulls", n, row["pulls"]
        pulls.append(played(online, number, rewards, costs, range(count)))
        if number + 1 in wanted:
            yield f"round {number + 1} pulled", pulls[-1], wanted[number + 1]["pulled"]
    yield "pulled_arm_per_round", pulls, expected["pulled_arm_per_round"]
    yield "final_pulls", block(online, PULLS), expected["final_pulls"]
    means = [rate / pulled for rate, pulled in zip(block(online, RATES), block(online, PULLS), strict=True)]
    yield agrees("final_mean_tokens_per_second", means, expected["final_mean_tokens_per_second"], tolerance)


def sp2ec_loop(case: Case) -> Checks:
    """The selector across rebuilds, which clear it and pull every arm anew: our `reset`. Which blocks an arm skips is
    the arm builder's choice and no part of this; the number skipped names the arm."""
    parameters, inputs = case["parameters"], case["inputs"]
    epochs = case["expected"]["epochs"]
    rewards = Table(inputs["committed_tokens_cycled_by_blocks_removed"])
    costs = Table(inputs["cost_by_blocks_removed"])
    keys = [str(n) for n in epochs[0]["construction_blocks_removed_per_round"]]
    interval = parameters["rebuild_interval"]
    online = arm_bandit("sp2ec", len(keys), parameters["max_draft_length"], beta=parameters["beta"], reset=interval)
    number = 0
    for index, epoch in enumerate(epochs):
        got = []
        for _ in range(epoch["rounds_in_epoch"]):
            got.append(int(keys[played(online, number, rewards, costs, keys)]))
            number += 1
        want = [*epoch["construction_blocks_removed_per_round"], *epoch["selection_blocks_removed_per_round"]]
        yield f"epoch {index} blocks removed per round", got, want
    yield "rounds", number, parameters["rounds"]


def banditspec_ucb(case: Case) -> Checks:
    """The released length bandit, over rounds that draft 1 to 4 tokens."""
    if "banditspec-ucb" not in REGISTRY:
        raise NotCovered("controller 'banditspec-ucb' is not there yet")
    inputs, expected = case["inputs"], case["expected"]
    lengths = case["parameters"]["draft_lengths"]
    online = OnlineController(controller("banditspec-ucb", max_draft_len=max(lengths)))
    accepted = Table({n: inputs["accepted_counts_cycled_per_draft_length"][str(n)] for n in lengths})
    seconds = Table({n: inputs["seconds_cycled_per_draft_length"][str(n)] for n in lengths})
    drafted, kept = [], []
    means: dict[int, list[float]] = {n: [] for n in lengths}
    for number in range(case["parameters"]["rounds"]):
        _, want = online.begin(number, number)
        submit, _ = online.revise(np.ones(want, np.float32), True)
        got, time_s = int(accepted.next(submit)), seconds.next(submit)
        online.update(got, time_s)
        drafted.append(submit)
        kept.append(got)
        means[submit].append((got + 1) / time_s)
    yield "draft_length_per_round", drafted, expected["draft_length_per_round"]
    yield "accepted_per_round", kept, expected["accepted_per_round"]
    yield "final_pulls", [drafted.count(n) for n in lengths], expected["final_pulls"]
    rates = [float(np.mean(means[n])) for n in lengths]
    yield agrees("final_mean_reward", rates, expected["final_mean_reward"], case["tolerance"]["mean_reward"])


def exp3_definition(case: Case) -> Checks:
    """EXP3Spec's probabilities and losses along a forced sequence, the learning rate put in place of its schedule."""
    parameters, inputs, expected = case["parameters"], case["inputs"], case["expected"]
    count, largest = parameters["number_of_arms"], parameters["largest_tokens_per_round"]
    # The vectors' loss is (largest - tokens) / largest, ours (draft_len - accepted) / draft_len.
    online = arm_bandit("exp3spec", count, largest)
    params, state = online.controller.params, online.controller.fresh_state()
    update = uncompiled(update_exp3)
    chances, losses = [], []
    for rate, arm, tokens in zip(
        parameters["learning_rate_per_round"], inputs["arm_pulled_per_round"], inputs["tokens_per_round"], strict=True
    ):
        chances.append([arm_probability(params, state, 0, LEADS, k, rate) for k in range(count)])
        before = state[0, at(params, LEADS, arm)]
        step = with_globals(update, "update_at_rate", {"exp3_rate": lambda *_, rate=rate: rate})
        step(params, state, 0, arm, largest, largest, tokens, 1.0)
        losses.append(state[0, at(params, LEADS, arm)] - before)
    tolerance = case["tolerance"]
    want = expected["probabilities_before_each_round"]
    for number, (got, row) in enumerate(zip(chances, want, strict=True)):
        yield agrees(f"round {number} probabilities", got, row, tolerance["probabilities"])
    yield agrees("losses", losses, expected["estimated_loss_of_pulled_arm"], tolerance["losses"])
    total = [state[0, at(params, LEADS, k)] for k in range(count)]
    yield agrees("cumulative_estimated_loss", total, expected["cumulative_estimated_loss"], tolerance["losses"])


HANDLERS: dict[tuple[str, str], Callable[[Case], Checks]] = {
    ("sp2ec", "single_peak_selection"): sp2ec_selection,
    ("sp2ec", "global_ucb"): ucbspec_selection,
    ("sp2ec", "loop_with_periodic_rebuild"): sp2ec_loop,
    ("banditspec", "ucb_released_code"): banditspec_ucb,
    ("banditspec", "exp3_definition"): exp3_definition,
}
