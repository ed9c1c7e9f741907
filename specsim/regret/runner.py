"""The compiled runner: one policy over many runs of a world, calling the functions the replay calls.

`bandit_loop` is a template like `specsim.kernel.round_loop`; it restates no rule. A world is either synthetic (outcomes
drawn from survival tables, keyed by run, round and arm, so that all policies meet the same outcomes) or the rows of an
arm trace (requests in a given order per run).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from specsim.controllers import Controller
from specsim.errors import ConfigError
from specsim.jit import jit
from specsim.kernel import CONTROLLER_STREAM, specialise
from specsim.rng import uniform_stream

REWARD_STREAM = 3

# Replaced by the controller's own functions, see specsim.kernel.specialise.
begin: Any = None
update: Any = None


class World(NamedTuple):
    """What the loop reads. Trace columns are empty in a synthetic world, and the other way round.

    `survive` float64[P, K, L] (P phases of `phase_len` rounds each), `gap` float64[P, K, L + 1] pseudo-regret in
    seconds of a round by phase, arm and length; `draft_s` float64[rows or 1, K] seconds of a whole draft, `verify_s`
    float64[L + 2], `ctx_s` float64[rows or 1], `accept` int16[rows, K], `starts` int64[B + 1], `request` and `pos`
    int32[rows], `order` int64[runs, B]; `every_round`: a row per round; `clear`: state is cleared per request.
    """

    survive: NDArray[np.float64]
    phase_len: int
    gap: NDArray[np.float64]
    draft_s: NDArray[np.float64]
    verify_s: NDArray[np.float64]
    ctx_s: NDArray[np.float64]
    overhead_s: float
    accept: NDArray[np.int16]
    starts: NDArray[np.int64]
    request: NDArray[np.int32]
    pos: NDArray[np.int32]
    order: NDArray[np.int64]
    every_round: bool
    clear: bool

    @property
    def arms(self) -> int:
        return self.gap.shape[1]

    @property
    def draft_len(self) -> int:
        return self.gap.shape[2] - 1

    @property
    def is_trace(self) -> bool:
        return self.pos.size > 0


class Output(NamedTuple):
    """Per run: the curve at the rounds of the grid, counts over the first `rounds` rounds, and the state at the quota.

    `quota` float64[runs, 4]: seconds, tokens, pseudo-regret and rounds when the tokens reached the quota.
    """

    seconds: NDArray[np.float64]  # [runs, G]
    tokens: NDArray[np.float64]
    pseudo: NDArray[np.float64]
    pulls: NDArray[np.int64]  # [runs, K]
    switches: NDArray[np.int64]  # [runs]
    rounds: NDArray[np.int64]
    first_s: NDArray[np.float64]  # pseudo-regret of first pulls
    again_s: NDArray[np.float64]  # the same, after resets
    quota: NDArray[np.float64]


@jit
def outcome(world, seed, run, number, row, arm):
    """Tokens of an arm's whole draft that are accepted in a round."""
    if row >= 0:
        return int(world.accept[row, arm])
    phase = number // world.phase_len % world.survive.shape[0] if world.phase_len > 0 else 0
    u = uniform_stream(seed, REWARD_STREAM, run, number, arm)
    length = world.survive.shape[2]
    accepted = 0
    while accepted < length and u < world.survive[phase, arm, accepted]:
        accepted += 1
    return accepted


@jit
def cost(world, row, arm, length, overhead):
    """Seconds of a round."""
    at = max(row, 0)
    draft_s = world.draft_s[at, arm] * length / (world.verify_s.size - 2) if length > 0 else 0.0
    return draft_s + world.verify_s[length + 1] + world.ctx_s[at] + overhead


def bandit_loop(  # noqa: C901, PLR0915 - one loop, kept in one piece
    params,
    state,
    initial,
    scratch,
    pays_overhead,
    full_information,
    random,
    reset,
    world,
    hint,
    seed,
    rounds,
    quota,
    grid,
    out,
):
    """Run one policy; returns 0, or -1 when it chose an arm or a length out of range.

    Args:
        params, state, initial, scratch, pays_overhead, full_information, random: the controller.
        reset: its reset interval, to know first pulls after a reset from those before; 0 none.
        world: `World`.
        hint: the arm told to `best-arm`.
        seed: key of outcomes and of the policy's own randomness.
        rounds: counts stop here; a synthetic run goes on until the quota is reached too, a trace ends with it.
        quota: tokens.
        grid: int64[G] ascending numbers of rounds after which the curve is recorded.
        out: `Output`.
    """
    arms = world.gap.shape[1]
    draft_len = world.gap.shape[2] - 1
    overhead = world.overhead_s if pays_overhead else 0.0
    trace = world.pos.size > 0
    persistent = initial.size
    seen = np.zeros(arms, np.bool_)
    for run in range(out.switches.size):
        for k in range(persistent):
            state[0, k] = initial[k]
        seen[:] = False
        number = 0
        since = 0
        was_reset = False
        last = -1
        item = -1
        row = -1
        end = -1
        phase = 0
        left = 0
        seconds = 0.0
        tokens = 0.0
        pseudo = 0.0
        at = 0
        while tokens < quota or (not trace and number < rounds):
            if trace and row == end:
                item += 1
                if item == world.order.shape[1]:
                    break
                row = world.starts[world.order[run, item]]
                end = world.starts[world.order[run, item] + 1]
                if world.clear:
                    for k in range(persistent):
                        state[0, k] = initial[k]
                    seen[:] = False
                    since = 0
                    was_reset = False
            for k in range(persistent, persistent + scratch):
                state[0, k] = 0.0
            u = 0.0
            pos = number
            if trace:
                pos = world.pos[row]
                left = end - row
            if random:
                # Run 0 of a trace draws what the replay draws.
                u = (
                    uniform_stream(seed, CONTROLLER_STREAM, world.request[row], pos, run)
                    if trace
                    else uniform_stream(seed, CONTROLLER_STREAM, run, number, 0)
                )
            arm, want = begin(params, state, 0, pos, pos, u, hint)
            if want < 0 or want > draft_len or (want > 0 and (arm < 0 or arm >= arms)):
                return -1
            k = max(arm, 0)
            accepted = min(outcome(world, seed, run, number, row, k), want)
            round_s = cost(world, row, k, want, overhead)
            if full_information:
                for j in range(arms):
                    got = outcome(world, seed, run, number, row, j)
                    update(
                        params, state, 0, j, draft_len, draft_len, got, cost(world, row, j, draft_len, world.overhead_s)
                    )
            else:
                update(params, state, 0, arm, want, want, accepted, round_s)
            if world.phase_len > 0:
                phase = number // world.phase_len % world.survive.shape[0]
            lost = world.gap[phase, k, want]
            if number < rounds:
                out.rounds[run] += 1
                if want > 0:
                    out.pulls[run, arm] += 1
                    if not seen[arm]:
                        seen[arm] = True
                        if was_reset:
                            out.again_s[run] += lost
                        else:
                            out.first_s[run] += lost
                    if last >= 0 and arm != last:
                        out.switches[run] += 1
                    last = arm
            since += 1
            if reset > 0 and since == reset:
                seen[:] = False
                since = 0
                was_reset = True
            emitted = accepted + 1
            if trace:
                if world.every_round:
                    row += 1
                else:
                    emitted = min(emitted, left)
                    row += emitted
            seconds += round_s
            tokens += emitted
            pseudo += lost
            number += 1
            if at < grid.size and number == grid[at]:
                out.seconds[run, at] = seconds
                out.tokens[run, at] = tokens
                out.pseudo[run, at] = pseudo
                at += 1
            if tokens >= quota and out.quota[run, 3] == 0.0:
                out.quota[run, 0] = seconds
                out.quota[run, 1] = tokens
                out.quota[run, 2] = pseudo
                out.quota[run, 3] = number
    return 0


@jit
def fixed_totals(world):
    """float64[K, L + 1, 3]: rounds, tokens and seconds of a trace when one arm drafts one length throughout."""
    arms, draft_len = world.gap.shape[1], world.gap.shape[2] - 1
    totals = np.zeros((arms, draft_len + 1, 3))
    for arm in range(arms):
        for length in range(draft_len + 1):
            for b in range(world.starts.size - 1):
                row, end = world.starts[b], world.starts[b + 1]
                while row < end:
                    step = min(int(world.accept[row, arm]), length) + 1
                    totals[arm, length, 0] += 1
                    totals[arm, length, 1] += step if world.every_round else min(step, end - row)
                    totals[arm, length, 2] += cost(world, row, arm, length, world.overhead_s)
                    row += 1 if world.every_round else step
    return totals


@dataclass(frozen=True, kw_only=True)
class Job:
    """What all policies of a comparison share.

    Attributes:
        world: `World`.
        best: the best single arm.
        seed: key of every draw.
        runs: independent runs, or orders of the requests.
        rounds: rounds counted.
        quota: tokens.
        grid: int64[G], rounds at which curves are recorded.
    """

    world: World
    best: int
    seed: int
    runs: int
    rounds: int
    quota: float
    grid: NDArray[np.int64]


def log_grid(rounds: int, per_decade: int = 12) -> NDArray[np.int64]:
    """About evenly spaced logarithms of round numbers from 1 to `rounds`, both included."""
    points = int(per_decade * np.log10(max(rounds, 2))) + 2
    return np.unique(np.round(np.logspace(0, np.log10(max(rounds, 1)), points)).astype(np.int64))


def run_policy(controller: Controller, job: Job, *, compiled: bool | None = None) -> Output:
    """Run one policy on every run of a job.

    Raises:
        ConfigError: a policy that knows more than the best arm, or that chose an arm or length out of range.
    """
    if controller.privilege not in ("none", "file"):
        raise ConfigError(
            f"controller {controller.name!r} knows the outcome of each round; allowed are bandits, arm and best-arm"
        )
    runs, points = job.runs, job.grid.size
    out = Output(
        seconds=np.full((runs, points), np.nan),
        tokens=np.full((runs, points), np.nan),
        pseudo=np.full((runs, points), np.nan),
        pulls=np.zeros((runs, job.world.arms), np.int64),
        switches=np.zeros(runs, np.int64),
        rounds=np.zeros(runs, np.int64),
        first_s=np.zeros(runs),
        again_s=np.zeros(runs),
        quota=np.zeros((runs, 4)),
    )
    loop = specialise(
        bandit_loop,
        controller.begin,
        controller.revise,
        controller.update,
        controller.compiled if compiled is None else compiled,
    )
    status = loop(
        controller.params,
        controller.fresh_state(),
        np.ascontiguousarray(controller.initial, dtype=np.float64),
        controller.scratch,
        controller.pays_overhead,
        controller.full_information,
        controller.random,
        int(controller.config.get("reset", 0)),
        job.world,
        job.best,
        job.seed,
        job.rounds,
        float(job.quota),
        job.grid,
        out,
    )
    if status < 0:
        raise ConfigError(f"controller {controller.name!r} chose an arm or a length out of range")
    return out
