"""`python -m tests.vectors FILE...`: run every case of golden-vector files that the project covers.

Two layouts are read: files with a `cases` list (`case_id`, `component`, `parameters`, `inputs`, `expected`), handled by
(file name, component), and theory.json, handled by its top-level keys. One line per case: `ok`, `FAIL` with got and
want, or `not covered` with the reason. Exit status 1 on any FAIL, 2 when a file cannot be read.

Every handler drives the shipped controllers (through `specsim.online`), engine functions, builders or
`specsim.theory`; none restates a rule. Those of theory.json are in `tests/vectors_theory.py`, those of
bandits in `tests/vectors_bandits.py`, those of FailFast's diffusion form in `tests/vectors_failfast.py`, those of
speculative sampling, DFlash and DDTree, which need torch when they run, in `tests/vectors_sampling.py`,
`tests/vectors_dflash.py` and `tests/vectors_ddtree.py`; those of draft configurations in `tests/vectors_builders.py`,
`tests/vectors_knapspec.py` and `tests/vectors_specvlm.py`.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np

from specsim.online import OnlineController
from tests.vectors_bandits import HANDLERS as BANDITS
from tests.vectors_builders import HANDLERS as BUILDERS
from tests.vectors_ddtree import HANDLERS as DDTREE
from tests.vectors_dflash import HANDLERS as DFLASH
from tests.vectors_failfast import HANDLERS as FAILFAST
from tests.vectors_knapspec import HANDLERS as KNAPSPEC
from tests.vectors_sampling import HANDLERS as SAMPLING
from tests.vectors_specvlm import HANDLERS as SPECVLM
from tests.vectors_theory import HANDLERS as THEORY
from tests.vectors_tools import Case, Checks, NotCovered, controller, draft
from tests.vectors_tools import affine as affine  # tests/test_rules.py takes it from here


def schedule(name: str, start: int) -> OnlineController:
    if name == "constant":
        return OnlineController(controller("static", max_draft_len=32_766, length=start))
    return OnlineController(controller("hf-heuristic", max_draft_len=32_766, start=start))


# --- transformers_assisted.json --------------------------------------------------------------------------------------


def hf_schedule(case: Case) -> Checks:
    online = schedule(case["parameters"]["schedule"], case["parameters"]["initial_num_assistant_tokens"])
    lengths = []
    for pos, row in enumerate(case["inputs"]["rounds"]):
        # A drafter that stopped early offers fewer tokens than the schedule asked for.
        submit, _ = draft(online, np.ones(row["candidates_proposed"]), pos)
        yield f"round {pos} proposes", submit, row["candidates_proposed"]
        online.update(row["candidates_kept"], 1.0)
        lengths.append(online.begin(pos + 1, pos + 1)[1])
    yield "length after each round", lengths, case["expected"]["num_assistant_tokens_after_each_round"]


def hf_requested(case: Case) -> Checks:
    length = case["parameters"]["num_assistant_tokens"]
    if length != int(length):
        raise NotCovered("fractional lengths: `start` is a whole number here")
    room = case["parameters"]["max_length"] - case["inputs"]["current_length"] - 1
    submit, _ = draft(schedule("heuristic", int(length)), np.ones(room))
    yield "max_new_tokens", submit, case["expected"]["max_new_tokens"]


def hf_confidence(case: Case) -> Checks:
    logits = np.array(case["inputs"]["draft_logits"], np.float32)
    probs = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    q = probs[np.arange(len(logits)), case["inputs"]["drafted_tokens"]]
    np.testing.assert_allclose(q, case["expected"]["drafted_probabilities"], atol=1e-6)
    tau = case["parameters"]["threshold"]
    online = OnlineController(controller("threshold", max_draft_len=len(q), tau=tau))
    yield "draft_length_kept", draft(online, q)[0], case["expected"]["draft_length_kept"]


def hf_persistence(case: Case) -> Checks:
    kind, start = case["parameters"]["schedule"], case["parameters"]["initial_num_assistant_tokens"]
    if kind == "heuristic":
        raise NotCovered("a schedule that carries over to the next request: state is cleared per request here")
    online = schedule(kind, start)
    for number, (call, want) in enumerate(
        zip(case["inputs"]["calls"], case["expected"]["per_call_rounds"], strict=True)
    ):
        online.start_request(number)
        for index, (row, step) in enumerate(zip(call, want, strict=True)):
            yield f"call {number} round {index} length", online.begin(index, index)[1], step["length_before"]
            draft(online, np.ones(row["candidates_proposed"]), index)
            online.update(row["candidates_kept"], 1.0)
            yield f"call {number} round {index} length after", online.begin(index, index)[1], step["length_after"]


# --- failfast.json ---------------------------------------------------------------------------------------------------


def _failfast(parameters: Case, available: int) -> OnlineController:
    limit = parameters["maximum_length"] or parameters["fallback_maximum_when_none"]
    rule = controller(
        "failfast",
        max_draft_len=available,
        chunk=parameters["increment"],
        tau=parameters["confidence_limit"],
        max=limit,
    )
    return OnlineController(rule)


def ff_length(case: Case) -> Checks:
    q = np.array(case["inputs"]["drafted_token_probability_by_position"], np.float32)
    submit, sizes = draft(_failfast(case["parameters"], len(q)), q)
    yield "draft_length", submit, case["expected"]["draft_length"]
    if "chunk_sizes" in case["expected"]:
        yield "chunk_sizes", sizes, case["expected"]["chunk_sizes"]


def ff_rounds(case: Case) -> Checks:
    parameters, inputs = case["parameters"], case["inputs"]
    tokens, right = inputs["target_tokens"], inputs["drafter_token_is_correct_at_position"]
    # The reference drafter goes on past the scripted positions; what lies there is never verified as correct.
    pad = parameters["maximum_length"] + parameters["fixed_length_of_comparison_run"]
    right = [*right, *[0] * pad]
    q = np.array([*inputs["drafted_token_probability_at_position"], *[0.0] * pad], np.float32)
    fixed = controller("static", max_draft_len=len(q), length=parameters["fixed_length_of_comparison_run"])
    for name, online in (
        ("fixed_length_run", OnlineController(fixed)),
        ("dynamic_length_run", _failfast(parameters, len(q))),
    ):
        want = case["expected"][name]
        rows, pos = [], 0
        while pos < parameters["max_new_tokens"] and parameters["end_token"] not in tokens[:pos] and pos < len(tokens):
            submit, sizes = draft(online, q[pos:], pos)
            accepted = 0
            while accepted < submit and right[pos + accepted]:
                accepted += 1
            online.update(accepted, 1.0)
            rows.append([pos, submit, accepted, sum(sizes)])
            pos += accepted + 1
        keys = ("prefix_length", "draft_length", "accepted", "forward_passes")
        yield f"{name} rounds", rows, [[row[k] for k in keys] for row in want["rounds"]]
        yield f"{name} accepted_tokens", sum(r[2] for r in rows), want["accepted_tokens"]
        yield f"{name} drafted_tokens", sum(r[1] for r in rows), want["drafted_tokens"]


HANDLERS: dict[tuple[str, str], Callable[[Case], Checks]] = {
    **THEORY,
    **BANDITS,
    **BUILDERS,  # after BANDITS: its handler of the loop with rebuilds checks the arms too
    **DDTREE,
    **DFLASH,
    **FAILFAST,
    **SAMPLING,
    **KNAPSPEC,
    **SPECVLM,
    ("transformers_assisted", "draft_length_schedule"): hf_schedule,
    ("transformers_assisted", "draft_length_requested"): hf_requested,
    ("transformers_assisted", "confidence_stop"): hf_confidence,
    ("transformers_assisted", "length_persistence"): hf_persistence,
    ("failfast", "dynamic_length"): ff_length,
    ("failfast", "greedy_rounds"): ff_rounds,
}


def cases_of(path: Path) -> Iterator[tuple[str, str, str, Case]]:
    """(file name, component, case name, case) of either layout."""
    document = json.loads(path.read_text(encoding="utf-8"))
    if "cases" in document:
        for case in document["cases"]:
            yield document.get("name", path.stem), case["component"], case["case_id"], case
        return
    for key, cases in document.items():
        for index, case in enumerate(cases if isinstance(cases, list) else []):
            yield "theory", key, str(case.get("name", case.get("T", index))), case


def run_case(name: str, component: str, case: Case) -> tuple[str, str]:
    """(`ok` | `FAIL` | `not covered`, details)."""
    handler = HANDLERS.get((name, component))
    if handler is None:
        return "not covered", "no part of this project yet"
    try:
        checks = list(handler(case))
    except NotCovered as reason:
        return "not covered", str(reason)
    except Exception as error:  # noqa: BLE001 - a crash on a vector is a failed case, and the others still run
        return "FAIL", f"{type(error).__name__}: {error}"
    wrong = [f"{what}: got {got}, want {want}" for what, got, want in checks if got != want]
    return ("FAIL", "; ".join(wrong)) if wrong else ("ok", f"{len(checks)} checks")


def main(paths: list[str]) -> int:
    if "--help" in paths or "-h" in paths:
        print(__doc__)
        return 0
    if not paths:
        print("usage: python -m tests.vectors FILE...", file=sys.stderr)
        return 2
    counts = {"ok": 0, "FAIL": 0, "not covered": 0}
    for path in map(Path, paths):
        try:
            cases = list(cases_of(path))
        except (OSError, ValueError, KeyError, AttributeError, TypeError) as error:
            print(
                f"error: {path}: {type(error).__name__}: {error}; allowed: JSON with `cases`, or theory.json's layout",
                file=sys.stderr,
            )
            return 2
        for name, component, case_id, case in cases:
            status, details = run_case(name, component, case)
            counts[status] += 1
            print(f"{status:<11} {path.name} {component} {case_id}: {details}")
    print(", ".join(f"{count} {status}" for status, count in counts.items()))
    return 1 if counts["FAIL"] else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
