"""Golden-vector handlers of KnapSpec (`real.builders.knapspec`): knapspec.json, and what sp2ec.json makes of it.

torch is imported when a handler runs that needs it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from real.builders.arm import Arm
from tests.arm_masks import mask_of
from tests.vectors_builders import near
from tests.vectors_tools import Case, Checks


def searched(case: Case, fraction: float | None = None) -> tuple[Any, ...]:
    """(candidates, what the search saw, weights, budget, times) of a case of linear residual blocks."""
    import torch

    from real.builders import knapspec

    parameters, inputs = case["parameters"], case["inputs"]
    matrices = torch.tensor(inputs["block_matrices"], dtype=torch.float32)
    head = torch.tensor(inputs["output_head"], dtype=torch.float32)

    def run(block: int, states: torch.Tensor) -> torch.Tensor:
        return states + states @ matrices[block].T

    teacher, state = [], torch.tensor(inputs["initial_states"], dtype=torch.float32)
    for block in range(len(matrices)):
        state = run(block, state)
        teacher.append(state)
    times = knapspec.Latency(*parameters["time_coefficients"]).at(parameters["context_length"])
    weights = knapspec.weights_of(times)
    budget = knapspec.budget_of(parameters["layers"], weights, fraction)
    found, seen = knapspec.candidates(
        teacher,
        run,
        lambda states: (states @ head.T).argmax(dim=-1),
        weights=weights,
        budget=budget,
        theta=parameters["similarity_limit"],
    )
    return found, seen, weights, budget, times


def knapsack_selection(case: Case) -> Checks:
    from real.builders import knapspec

    layers, expected, tolerance = case["parameters"]["layers"], case["expected"], case["tolerance"]
    found, seen, weights, budget, times = searched(case)
    yield "weights", list(weights), [expected["weight_attention"], expected["weight_mlp"]]
    yield near("times", list(times), [expected["time_attention"], expected["time_mlp"]], 1e-9)
    yield "weight_budget", budget, expected["weight_budget"]
    yield "surviving_total_weights", [c.weight for c in found], expected["surviving_total_weights"]
    entering = expected["number_of_states_entering_each_block"]
    yield "number_of_states_entering_each_block", list(seen.entering), entering
    yield "number_of_table_collisions", seen.collisions, expected["number_of_table_collisions"]
    want = expected["candidates"]
    yield "masks", [list(mask_of(c.arm, layers)) for c in found], [c["mask"] for c in want]
    yield near("match rates", [c.match for c in found], [c["match_rate"] for c in want], 1e-6)
    yield near("similarities", [c.similarity for c in found], [c["similarity"] for c in want], tolerance["similarity"])
    yield from chosen(knapspec.choose(found, n_layers=layers, times=times, published=True), expected, case)
    best = knapspec.choose(found, n_layers=layers, times=times, published=True)
    mask = mask_of(found[best.place if best else 0].arm, layers)
    yield "chosen_mask", list(mask), expected["chosen_mask"]


def chosen(choice: Any, expected: Case, case: Case) -> Checks:
    place, length, score = choice or (-1, -1, -1.0)
    yield "chosen_candidate_position", place, expected["chosen_candidate_position"]
    ties = expected.get("draft_lengths_equal_up_to_rounding", [expected["chosen_draft_length"]])
    yield "chosen_draft_length", length, length if length in ties else ties
    yield near("chosen_score", score, expected["chosen_score"], case["tolerance"]["score"])


def throughput_score(case: Case) -> Checks:
    from real.builders import knapspec

    parameters, inputs, expected = case["parameters"], case["inputs"], case["expected"]
    times = knapspec.Times(parameters["time_attention"], parameters["time_mlp"])
    found = [
        knapspec.Candidate(k, Arm.from_mask(mask), match)
        for k, (mask, match) in enumerate(zip(inputs["masks"], inputs["match_rates"], strict=True))
    ]
    layers = len(inputs["masks"][0]) // 2
    scores = [
        [knapspec.tokens_per_time(c.arm, c.match, d, n_layers=layers, times=times) for d in knapspec.DRAFT_LENS]
        for c in found
    ]
    yield near("scores", scores, expected["score_by_candidate_and_draft_length"], case["tolerance"]["score"])
    yield from chosen(knapspec.choose(found, n_layers=layers, times=times, published=True), expected, case)


def weights_table(case: Case) -> Checks:
    from real.builders import knapspec

    expected = case["expected"]
    weights = [knapspec.weights_of(knapspec.Times(*pair)) for pair in case["inputs"]["times_attention_and_mlp"]]
    yield "weights", [list(pair) for pair in weights], expected["weights_attention_and_mlp"]
    layers = case["parameters"]["layers"]
    yield "weight_budget", [knapspec.budget_of(layers, pair) for pair in weights], expected["weight_budget"]


def arm_shortlist(case: Case) -> Checks:
    from real.builders import knapspec

    rows = case["inputs"]["candidates"]
    scored = [(knapspec.Candidate(c["budget"], Arm.from_mask(c["mask"]), 1.0), c["score"]) for c in rows]
    parameters, layers = case["parameters"], len(rows[0]["mask"]) // 2
    listed = knapspec.shortlist(scored, parameters["arms_wanted"], zero=parameters["zero_skip_score"])
    got = [
        {"budget": c.weight, "mask": list(mask_of(c.arm, layers)), "score": score, "score_rank": rank}
        for c, score, rank in listed
    ]
    yield "selected", got, case["expected"]["selected"]


def knapsack_arms(case: Case) -> Checks:
    from real.builders import knapspec

    parameters, expected, tolerance = case["parameters"], case["expected"], case["tolerance"]
    layers = parameters["layers"]
    found, _, weights, budget, times = searched(case, parameters["budget_fraction"])
    yield "weights", list(weights), [expected["weight_attention"], expected["weight_mlp"]]
    yield "weight_budget", budget, expected["weight_budget"]
    yield "surviving_total_weights", [c.weight for c in found], expected["surviving_total_weights"]
    listed = knapspec.family(
        found,
        n_layers=layers,
        times=times,
        count=parameters["arms_wanted"],
        zero_skip=parameters["include_zero_skip_arm"],
        published=True,
    )
    want = expected["arms"]
    yield "budgets", [entry.candidate.weight for entry in listed], [arm["budget"] for arm in want]
    yield "masks", [list(mask_of(entry.candidate.arm, layers)) for entry in listed], [arm["mask"] for arm in want]
    yield "ranks", [entry.rank for entry in listed], [arm["score_rank"] for arm in want]
    yield near("scores", [entry.score for entry in listed], [arm["score"] for arm in want], tolerance["score"])
    rates = [entry.candidate.match for entry in listed]
    yield near("match rates", rates, [arm["match_rate"] for arm in want], tolerance["match_rate"])
    for entry, arm in zip(listed, want, strict=True):
        length = knapspec.best_length(0, entry.candidate, n_layers=layers, times=times).draft_len
        ties = arm["draft_lengths_equal_up_to_rounding"]
        yield f"draft length at budget {arm['budget']}", length, length if length in ties else ties


def rebuild_schedule(case: Case) -> Checks:
    from real.builders import knapspec

    schedule = knapspec.Schedule(case["parameters"]["rebuild_interval"])
    steps, expected = range(case["parameters"]["steps"]), case["expected"]
    yield "rebuild_after_steps", [s for s in steps if schedule.builds(s)], expected["rebuild_after_steps"]
    first = expected["first_collection_steps"]
    yield "first_collection_steps", [s for s in steps if schedule.collects(s)][: len(first)], first


HANDLERS: dict[tuple[str, str], Callable[[Case], Checks]] = {
    ("sp2ec", "arm_shortlist"): arm_shortlist,
    ("sp2ec", "knapsack_arms"): knapsack_arms,
    ("sp2ec", "knapsack_rebuild_schedule"): rebuild_schedule,
    ("knapspec", "knapsack_selection"): knapsack_selection,
    ("knapspec", "throughput_score"): throughput_score,
    ("knapspec", "weights"): weights_table,
}
