"""Optimistic bandits over draft configurations: SP2ec, its rivals and its ablations."""

from __future__ import annotations

import math
from typing import Any

from specsim.controllers.bandit_core import (
    BETA,
    COSTS,
    DELTA,
    PULLS,
    RATES,
    RESET,
    REWARDS,
    TRACKING,
    at,
    bandit,
    count_lead,
    horizon,
    leading_arm,
    one_of_reset_and_track,
    rounds_since_reset,
    simple,
    spread_radius,
    unpulled,
)
from specsim.controllers.base import Controller, ControllerSpec, Param, Setting
from specsim.jit import jit
from specsim.rng import uniform_stream

ARM_STREAM = 2  # stream of further uniforms drawn from a round's own u


@jit
def sp2ec_bound(params, state, lane, arm, leads):
    """(mean reward + beta * cr) / mean cost; cr has the leader's own count in place of time (SP2ec)."""
    pulls = state[lane, at(params, PULLS, arm)]
    count = horizon(params, leads)
    radius = params.draft_len / 2.0 * spread_radius(pulls, 3.0 * count**2)
    return (state[lane, at(params, REWARDS, arm)] / pulls + params.beta * radius) / (
        state[lane, at(params, COSTS, arm)] / pulls
    )


@jit
def begin_sp2ec(params, state, lane, pos, ctx_len, u, hint):
    """Initial pulls; then the leader in its 1st, 4th, 7th ... lead, else the best bound among it and its neighbours."""
    arm = unpulled(params, state, lane)
    if arm >= 0:
        return arm, params.draft_len
    leader = leading_arm(params, state, lane)
    leads = count_lead(params, state, lane, leader)
    if leads % 3 == 1:
        return leader, params.draft_len
    best = max(leader - 1, 0)
    for arm in range(best + 1, min(leader + 2, params.arms)):
        if sp2ec_bound(params, state, lane, arm, leads) > sp2ec_bound(params, state, lane, best, leads):
            best = arm
    return best, params.draft_len


@jit
def begin_global(params, state, lane, pos, ctx_len, u, hint):
    """SP2ec without its neighbourhood: the same radius and the same turns of the leader, but every arm competes."""
    arm = unpulled(params, state, lane)
    if arm >= 0:
        return arm, params.draft_len
    leader = leading_arm(params, state, lane)
    leads = count_lead(params, state, lane, leader)
    if leads % 3 == 1:
        return leader, params.draft_len
    best = 0
    for arm in range(1, params.arms):
        if sp2ec_bound(params, state, lane, arm, leads) > sp2ec_bound(params, state, lane, best, leads):
            best = arm
    return best, params.draft_len


@jit
def bernoulli_kl(p, q):
    """KL divergence of Bernoulli(p) from Bernoulli(q), 0 < q < 1."""
    left = p * math.log(p / q) if p > 0.0 else 0.0
    right = (1.0 - p) * math.log((1.0 - p) / (1.0 - q)) if p < 1.0 else 0.0
    return left + right


@jit
def kl_upper(mean, pulls, level):
    """Largest q in [mean, 1] with pulls * kl(mean, q) <= level, by bisection (Garivier and Cappe 2011)."""
    low, high = mean, 1.0
    for _ in range(50):
        middle = 0.5 * (low + high)
        if middle >= 1.0 or pulls * bernoulli_kl(mean, middle) > level:
            high = middle
        else:
            low = middle
    return low


@jit
def kl_bound(params, state, lane, arm, leads):
    pulls = state[lane, at(params, PULLS, arm)]
    mean = min(max((state[lane, at(params, REWARDS, arm)] / pulls - 1.0) / params.draft_len, 0.0), 1.0)
    upper = kl_upper(mean, pulls, math.log(horizon(params, leads)))
    return (1.0 + params.draft_len * upper) / (state[lane, at(params, COSTS, arm)] / pulls)


@jit
def begin_klucb(params, state, lane, pos, ctx_len, u, hint):
    """SP2ec's skeleton with a KL-UCB index of the reward (scaled to [0, 1]) in the neighbourhood."""
    arm = unpulled(params, state, lane)
    if arm >= 0:
        return arm, params.draft_len
    leader = leading_arm(params, state, lane)
    leads = count_lead(params, state, lane, leader)
    if leads % 3 == 1:
        return leader, params.draft_len
    best = max(leader - 1, 0)
    for arm in range(best + 1, min(leader + 2, params.arms)):
        if kl_bound(params, state, lane, arm, leads) > kl_bound(params, state, lane, best, leads):
            best = arm
    return best, params.draft_len


@jit
def begin_ucbspec_rate(params, state, lane, pos, ctx_len, u, hint):
    """UCBSpec as the SP2ec repository runs it: mean of per-round tokens per second plus a radius in plain units."""
    best, best_index = unpulled(params, state, lane), 0.0
    if best >= 0:
        return best, params.draft_len
    inside = params.arms * float(max(rounds_since_reset(params, state, lane), 1)) ** 2 / params.delta
    for arm in range(params.arms):
        pulls = state[lane, at(params, PULLS, arm)]
        index = state[lane, at(params, RATES, arm)] / pulls + params.scale / 2.0 * spread_radius(pulls, inside)
        if arm == 0 or index > best_index:
            best, best_index = arm, index
    return best, params.draft_len


@jit
def begin_ucbspec_tokens(params, state, lane, pos, ctx_len, u, hint):
    """UCBSpec as the BanditSpec paper states it: mean tokens per round plus the radius; time plays no part."""
    best, best_index = unpulled(params, state, lane), 0.0
    if best >= 0:
        return best, params.draft_len
    inside = params.arms * float(max(rounds_since_reset(params, state, lane), 1)) ** 2 / params.delta
    for arm in range(params.arms):
        pulls = state[lane, at(params, PULLS, arm)]
        index = state[lane, at(params, REWARDS, arm)] / pulls + params.scale / 2.0 * spread_radius(pulls, inside)
        if arm == 0 or index > best_index:
            best, best_index = arm, index
    return best, params.draft_len


@jit
def begin_ucb1(params, state, lane, pos, ctx_len, u, hint):
    """UCB1 on tokens per second: (mean reward + scale * sqrt(2 ln t / n)) / mean cost over all arms."""
    best, best_index = unpulled(params, state, lane), 0.0
    if best >= 0:
        return best, params.draft_len
    log_t = math.log(float(max(rounds_since_reset(params, state, lane), 1)))
    for arm in range(params.arms):
        pulls = state[lane, at(params, PULLS, arm)]
        mean = state[lane, at(params, REWARDS, arm)] / pulls + params.scale * math.sqrt(2.0 * log_t / pulls)
        index = mean / (state[lane, at(params, COSTS, arm)] / pulls)
        if arm == 0 or index > best_index:
            best, best_index = arm, index
    return best, params.draft_len


@jit
def begin_thompson(params, state, lane, pos, ctx_len, u, hint):
    """Gaussian Thompson sampling: reward ~ N(mean, (draft_len / 2)^2 / n) per arm, over the mean cost."""
    best, best_index = unpulled(params, state, lane), 0.0
    if best >= 0:
        return best, params.draft_len
    seed = int(u * 9007199254740992.0)  # 2^53: all bits of u
    for arm in range(params.arms):
        pulls = state[lane, at(params, PULLS, arm)]
        radius = math.sqrt(-2.0 * math.log(1.0 - uniform_stream(seed, ARM_STREAM, arm, 0, 0)))
        normal = radius * math.cos(2.0 * math.pi * uniform_stream(seed, ARM_STREAM, arm, 0, 1))
        reward = state[lane, at(params, REWARDS, arm)] / pulls + params.draft_len / 2.0 * normal / math.sqrt(pulls)
        index = reward / (state[lane, at(params, COSTS, arm)] / pulls)
        if arm == 0 or index > best_index:
            best, best_index = arm, index
    return best, params.draft_len


def _build_ucbspec(values: dict[str, Any], setting: Setting) -> Controller:
    repo = values["variant"] == "sp2ec-repo"
    scale = values["scale"] or (10.0 if repo else float(setting.draft_len))
    # Adding a number to tokens per second makes the repository's rule depend on the unit of time.
    return bandit(
        "ucbspec",
        begin_ucbspec_rate if repo else begin_ucbspec_tokens,
        setting,
        {**values, "scale": scale},
        scale_free=not repo,
    )


def _build_ucb1(values: dict[str, Any], setting: Setting) -> Controller:
    return bandit("ucb1", begin_ucb1, setting, {**values, "scale": values["scale"] or float(setting.draft_len)})


_SCALE = Param(
    kind=float, default=0.0, low=0.0, doc="width of the reward range; 0: the variant's own (10, or draft_len)"
)
ARM = ("arm",)

SPECS = (
    ControllerSpec(
        name="sp2ec",
        params={"beta": BETA, **TRACKING},
        build=simple("sp2ec", begin_sp2ec),
        kinds=ARM,
        check=one_of_reset_and_track,
        doc="SP2ec: single-peak bandit, the leader and its neighbours (arXiv 2610.18735)",
    ),
    ControllerSpec(
        name="global-ucb",
        params={"beta": BETA, **TRACKING},
        build=simple("global-ucb", begin_global),
        kinds=ARM,
        check=one_of_reset_and_track,
        doc="SP2ec's radius without its neighbourhood (ablation)",
    ),
    ControllerSpec(
        name="klucb-unimodal",
        params=dict(TRACKING),
        build=simple("klucb-unimodal", begin_klucb),
        kinds=ARM,
        check=one_of_reset_and_track,
        doc="SP2ec's skeleton with a KL-UCB index",
    ),
    ControllerSpec(
        name="ucbspec",
        params={
            "variant": Param(
                kind=str, default="sp2ec-repo", choices=("sp2ec-repo", "paper"), doc="which published form"
            ),
            "scale": _SCALE,
            "delta": DELTA,
            "reset": RESET,
        },
        build=_build_ucbspec,
        kinds=ARM,
        doc="UCBSpec: as the SP2ec repository runs it, or as the BanditSpec paper states it",
    ),
    ControllerSpec(
        name="ucb1",
        params={"scale": _SCALE, "reset": RESET},
        build=_build_ucb1,
        kinds=ARM,
        doc="UCB1 on tokens per second",
    ),
    ControllerSpec(
        name="thompson",
        params={"reset": RESET},
        build=simple("thompson", begin_thompson, random=True),
        kinds=ARM,
        doc="Gaussian Thompson sampling on tokens per second",
    ),
)
