"""Handlers for theory.json: the exact functions, as `eval` requests where a kind exists, and shipped controllers."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from fractions import Fraction
from typing import Any

import numpy as np

from specsim import theory
from specsim.controllers import REGISTRY
from specsim.controllers.libraspec import judge
from specsim.jit import uncompiled, with_globals
from specsim.latency import LatencyModel
from specsim.online import OnlineController
from specsim.oracle import NO_PASSES, best_round_length
from specsim.rows import make_costs
from specsim.theory.evaluate import evaluate
from tests.vectors_tools import Case, Checks, NotCovered, controller, draft


def asked(kind: str, case: Mapping[str, Any], *keys: str) -> dict[str, Any]:
    """The answer of `eval` to the case's own numbers."""
    return evaluate(json.dumps({"kind": kind, **{key: case[key] for key in keys if key in case}}))


def theory_eta(case: Case) -> Checks:
    answer = asked("eta", case, "p", "c", "b", "T", "sigma")
    for key in ("M", "eta", "dstar"):
        yield key, answer[key], case[key]


def theory_eps(case: Case) -> Checks:
    answer = asked("eps", case, "p", "c", "b", "sigma")
    yield "cap", len(case["p"]), case["cap"]
    for key, name in (("alpha", "alpha"), ("eps_printed", "eps_printed"), ("eps_corrected_m0", "eps_corrected")):
        shown = len(case[key]) if case["first_entries_only"] else None
        yield key, answer[name][:shown], case[key]
    yield "dstar", answer["dstar"], case["dstar"]


def theory_lambda(case: Case) -> Checks:
    answer = asked("lambda", case, "contexts", "c", "b")
    for key, name in (
        ("lambda_star", "lambda"),
        ("d", "d"),
        ("ratio_throughput", "ratio_throughput"),
        ("best_fixed", "best_fixed"),
    ):
        yield key, answer[name], case[key]
    cost = theory.Affine(case["c"], case["b"])
    yield "ratio_d", theory.ratio_lengths(case["contexts"], cost), case["ratio_d"]
    yield "iterates", [str(x) for x in theory.dinkelbach(case["contexts"], cost).iterates], case["iterates"]


def theory_sp2ec(case: Case) -> Checks:
    """SP2ec and UCBSpec; the case's name holds the parameters, a table is read by an arm's own pull number."""
    policy, _, rest = case["name"].partition(" ")
    given = dict(item.split("=") for item in rest.split() if "=" in item)
    if policy.lower() not in REGISTRY:
        raise NotCovered(f"controller {policy.lower()!r} is not there yet")
    if policy == "SP2ec":
        params: dict[str, Any] = {"beta": float(given["beta"]), "L": int(given.get("L", 4))}
    else:
        params = {"variant": "sp2ec-repo", "scale": float(given["L"]), "delta": float(given["delta"])}
    rewards = case.get("rewards", case.get("table"))
    request = {
        "policy": policy.lower(),
        "params": params,
        "rewards": rewards,
        "costs": case["costs"],
        "rounds": len(case["first60"]),
    }
    arms = asked("bandit", request, *request)["arms"]
    yield "first60", arms, case["first60"]
    yield "counts", [arms.count(k) for k in range(len(case["costs"]))], case["counts"]


def exact_alg1(case: Case) -> Checks:
    """The exact function: clipped through `eval`, and as printed, where the last step may pass dmax."""
    answer = asked("alg1", case, "q", "alpha", "n", "dmax")
    for key, want in case["clip"].items():
        yield f"exact {key}", answer[key], want
    run = theory.algorithm1(case["q"], case["alpha"], case["n"], case["dmax"], clip=False)
    for key, want in case["noclip"].items():
        got = getattr(run, key)
        yield f"exact, no clip: {key}", [list(x) for x in got] if key == "trace" else got, want


def theory_alg1(case: Case) -> Checks:
    """The exact function, the compiled rule, and the steps its interpreted twin takes, recorded at its own `judge`."""
    yield from exact_alg1(case)
    q = np.array([float(Fraction(x)) for x in case["q"]])
    alpha, n, dmax, want = float(Fraction(case["alpha"])), case["n"], case["dmax"], case["clip"]
    rule = controller("libraspec", max_draft_len=dmax, alpha=alpha, block=n, max=dmax)
    d, sizes = draft(OnlineController(rule), q)
    yield "d", d, want["d"]
    yield "blocks", math.ceil(sum(sizes) / n), want["blocks"]
    steps: list[list[int]] = []
    plain_judge = uncompiled(judge)

    def recording(*args: Any) -> tuple[int, bool]:
        bound, grows = plain_judge(*args)
        length = args[-3]
        if [length, bound] not in steps:  # a step that asked for a block is judged once, taken after the block came
            steps.append([length, bound])
        return bound, grows

    online = OnlineController(rule, compiled=False)
    online._revise = with_globals(uncompiled(rule.revise), "revise", {"judge": recording})
    yield "d, interpreted", draft(online, q)[0], want["d"]
    yield "trace", steps, want["trace"]
    yield "iterations", len(steps), want["iterations"]


def theory_g4(case: Case) -> Checks:
    online = OnlineController(controller("g4", max_draft_len=case["dmax"], start=case["d0"], max=case["dmax"]))
    lengths = []
    for pos, free in enumerate(case["accepted_unbounded"]):
        submit, _ = draft(online, np.ones(case["dmax"]), pos)
        lengths.append(submit)
        online.update(min(free, submit), 1.0)
    yield "d", lengths, case["d"]
    yield "final", online.begin(99, 99)[1], case["final"]


_SHAPES = {
    "b=3,c=1": lambda d: 3 + d,
    "tile 4+ceil(d/4)": lambda d: 4 + math.ceil(d / 4),
    "tile 1+ceil(d/4)": lambda d: 1 + math.ceil(d / 4),
}


def theory_clair(case: Case) -> Checks:
    if case["T"] not in _SHAPES:
        raise NotCovered(f"round time {case['T']!r}")
    want = case["d_for_A_0_to_8"]
    s = list(range(1, len(want) + 1))
    times = [float(_SHAPES[case["T"]](x - 1)) for x in s]
    model = LatencyModel.from_dict(
        {"schema": "specsim.latency/1", "verify": {"form": "table", "s": s, "times_s": times}}, where="clair"
    )
    costs = make_costs(model, len(want) - 1)
    yield "d", [best_round_length(a, len(want) - 1, 0, NO_PASSES, 0, 1, costs) for a in range(len(want))], want
    table = [_SHAPES[case["T"]](x - 1) for x in s]
    yield "d, exact", [theory.clairvoyant_length(a, table, len(want) - 1) for a in range(len(want))], want


HANDLERS: dict[tuple[str, str], Callable[[Case], Checks]] = {
    ("theory", "eta"): theory_eta,
    ("theory", "eps"): theory_eps,
    ("theory", "alg1"): theory_alg1,
    ("theory", "lambda"): theory_lambda,
    ("theory", "sp2ec"): theory_sp2ec,
    ("theory", "g4"): theory_g4,
    ("theory", "clair"): theory_clair,
}
