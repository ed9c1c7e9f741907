"""Golden vectors of speculative sampling, answered by `real.verify` over every branch of its luck (`tests.real_law`).

torch is imported by the handlers, so that all other vectors run without it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from fractions import Fraction
from typing import TYPE_CHECKING, Any

from specsim import theory
from tests.vectors_tools import Case, Checks

if TYPE_CHECKING:
    import torch

    from real.draws import Draws

Verdict = tuple[int, int]  # draft tokens accepted, the token after them
FLOAT32 = 1e-6  # the loop's probabilities are float32
EXAMPLES = 200  # decodes with the project's own random numbers, besides the exact law


def near(got: Any, want: Any, tolerance: float) -> Any:
    """`want` where `got` is as near as that (lists: everywhere), else `got`."""
    if isinstance(want, list) and isinstance(got, list) and len(got) == len(want):
        return [near(g, w, tolerance) for g, w in zip(got, want, strict=True)]
    numbers = all(isinstance(x, (int, float)) for x in (got, want))
    return want if numbers and abs(got - want) <= tolerance else got


def rational(value: float, bound: int) -> Fraction:
    """The fraction with a denominator up to `bound` that a float64 is the rounding of."""
    found = Fraction(value).limit_denominator(bound)
    if abs(found - Fraction(value)) > Fraction(1, 10**14):
        raise ValueError(f"{value!r} is no fraction with a denominator up to {bound}")
    return found


def decimals(law: list[Fraction] | None) -> list[float] | None:
    return None if law is None else [float(x) for x in law]


def text(value: Fraction) -> str:
    return f"{value.numerator}/{value.denominator}"


# --- speculative_sampling_identity.json -------------------------------------------------------------------------------


def identity(case: Case) -> Checks:
    """Acceptance and residual in float64, read back as the fractions they round; the rest follows from them exactly."""
    import torch

    from real.verify import Draft, acceptance, residual

    p, q = ([Fraction(x) for x in case["inputs"][key]] for key in ("p", "q"))
    target, drafter = (torch.tensor([float(x) for x in law], dtype=torch.float64) for law in (p, q))
    shares = math.lcm(*(x.denominator for x in q))
    bound = math.lcm(*(x.denominator for x in p)) * shares  # of p / q, with q's numerators below `shares`, and of p - q
    accepted: list[Fraction | None] = []
    for x in range(len(q)):
        chance = float(acceptance(Draft(torch.tensor([x]), drafter[x : x + 1], drafter[None]), target[None]))
        accepted.append(None if math.isnan(chance) else rational(chance, bound))
    total = sum((q[x] * chance for x, chance in enumerate(accepted) if chance is not None), Fraction(0))
    left = None
    if total < 1:
        drafted = next(x for x, chance in enumerate(accepted) if chance is not None and chance < 1)
        found = residual(target, torch.tensor(drafted), drafter).tolist()
        weights = [rational(weight, bound) for weight in found]
        left = [weight / sum(weights) for weight in weights]
    output = [q[x] * (accepted[x] or 0) + ((1 - total) * left[x] if left is not None else 0) for x in range(len(q))]
    want = case["expected"]
    lengths = want["expected_tokens_for_draft_length"]
    tokens = theory.expected_tokens([total] * max(map(int, lengths)), 1)
    exact = {
        "acceptance_probability": text(total),
        "total_variation_distance": text(1 - total),
        "acceptance_probability_of_each_draft_token": [None if x is None else text(x) for x in accepted],
        "residual_distribution": None if left is None else [text(x) for x in left],
        "output_distribution": [text(x) for x in output],
        "expected_tokens_for_draft_length": {n: text(tokens[int(n)]) for n in lengths},
    }
    for key, value in exact.items():
        yield key, value, want[key]
    for key, value in (("acceptance_probability_float", float(total)), ("residual_distribution_float", decimals(left))):
        yield key, near(value, want[key], case["tolerance"]["floats"]), want[key]
    law = output_law(target, drafter)
    yield "output law of verify_sampling", near(law, target.tolist(), FLOAT32), target.tolist()


def output_law(p: torch.Tensor, q: torch.Tensor) -> list[float]:
    """The law of the first token of a round: one token drafted from q, verified against p."""
    found = [0.0] * len(p)
    for (drafted, accepted, token), chance in law_of_round([q.tolist()], [p.tolist()] * 2, None).items():
        found[drafted[0] if accepted else token] += chance
    return found


# --- transformers_assisted.json ---------------------------------------------------------------------------------------


def one_round(
    draws: Draws, q: Sequence[Sequence[float]], p: Sequence[Sequence[float]], fixed: Sequence[int] | None
) -> tuple[tuple[int, ...], int, int]:
    """(draft tokens, how many were accepted, the token after them)."""
    import torch

    from real.verify import Draft, verify_sampling

    law = torch.tensor(q, dtype=torch.float32)
    tokens = list(fixed) if fixed is not None else draws.drafted(law, 0).tolist()
    ids = torch.tensor(tokens)
    draft = Draft(ids, law.gather(1, ids[:, None])[:, 0], law)
    accepted, token, unsound = verify_sampling(draft, torch.tensor(p, dtype=torch.float64).log(), draws, 0).tolist()
    if unsound:
        raise ValueError("the verdict says that a number was not finite")
    return tuple(tokens), accepted, token


def law_of_round(
    q: Sequence[Sequence[float]], p: Sequence[Sequence[float]], fixed: Sequence[int] | None
) -> dict[tuple[tuple[int, ...], int, int], float]:
    """Probability of everything `one_round` can do."""
    from tests.real_law import branches

    found: dict[tuple[tuple[int, ...], int, int], float] = {}
    for draws, outcome in branches(lambda draws: one_round(draws, q, p, fixed)):
        found[outcome] = found.get(outcome, 0.0) + draws.probability
    return found


def hf_sampling(case: Case) -> Checks:
    """The exact law against the analytic one; the reference's and our own histograms against it."""
    import torch

    from real.draws import KeyedDraws
    from real.verify import residual

    inputs, want = case["inputs"], case["expected"]
    q, p = inputs["draft_distribution"], inputs["target_distribution"]
    fixed = inputs["drafted_tokens"] if isinstance(inputs["drafted_tokens"], list) else None
    length, width, tolerance = len(q), len(p[0]), case["tolerance"]["analytic"]
    joint = [[0.0] * width for _ in range(length + 1)]
    for (_, accepted, token), chance in law_of_round(q, p, fixed).items():
        joint[accepted][token] += chance
    counts = [sum(row) for row in joint]
    analytic = want["analytic_probability_of_match_count"]
    yield "probability of each match count", near(counts, analytic, tolerance), analytic

    after = want["analytic_next_token_distribution_after_full_acceptance"]
    expected_rows = [*want["analytic_next_token_distribution_after_rejection_at"], after]
    for count, expected in enumerate(expected_rows):
        if expected is None or not sum(expected) > 0:
            continue
        if counts[count] > FLOAT32:
            got = [chance / counts[count] for chance in joint[count]]
        else:  # never happens; the residual is there all the same
            rows = (torch.tensor(x[count], dtype=torch.float64) for x in (p, q))
            left = residual(next(rows), torch.tensor(0), next(rows))
            got = (left / left.sum()).tolist()
        yield f"next token after {count} matches", near(got, expected, tolerance), expected

    trials = sum(want["reference_match_count_histogram"])
    limit = deviations(case["tolerance"]["match_count_histogram"])
    yield "reference match counts", outside(want["reference_match_count_histogram"], counts, trials, limit), []
    flat = [number for row in want["reference_next_token_histogram_by_match_count"] for number in row]
    chances = [chance for row in joint for chance in row]
    yield "reference next tokens", outside(flat, chances, trials, limit), []
    ours = [0] * len(chances)
    for seed in range(EXAMPLES):
        _, accepted, token = one_round(KeyedDraws(seed, 0), q, p, fixed)
        ours[accepted * width + token] += 1
    yield "keyed draws", outside(ours, chances, EXAMPLES, limit), []


def deviations(said: str) -> float:
    """4.5 from "within 4.5 standard deviations ..."."""
    return float(said.split()[1])


def outside(histogram: Sequence[int], chances: Sequence[float], trials: int, limit: float) -> list[str]:
    """Entries further than `limit` standard deviations from what their probability lets expect."""
    return [
        f"entry {place}: {count} of {trials}, probability {chance:.6g}"
        for place, (count, chance) in enumerate(zip(histogram, chances, strict=True))
        if abs(count - trials * chance) > limit * math.sqrt(trials * chance * (1 - min(chance, 1.0))) + 1e-3
    ]


HANDLERS: dict[tuple[str, str], Callable[[Case], Checks]] = {
    ("speculative_sampling_identity", "acceptance_and_residual"): identity,
    ("transformers_assisted", "speculative_sampling"): hf_sampling,
}
