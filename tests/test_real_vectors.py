"""Golden vectors of speculative sampling: all agree, others of the same kind too, and a changed number is seen."""

from __future__ import annotations

import copy
import subprocess
import sys
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("torch", reason="real/ needs the extra 'real'")

from tests.real_law import one_thread  # noqa: F401 - a fixture
from tests.vectors import cases_of, run_case
from tests.vectors_sampling import HANDLERS


def cases(shared: Path) -> list[tuple[str, str, str, dict[str, Any]]]:
    files = {file for file, _ in HANDLERS}
    found = [case for file in sorted(files) for case in cases_of(shared / "vectors" / f"{file}.json")]
    return [case for case in found if (case[0], case[1]) in HANDLERS]


def test_all_cases_agree(shared: Path) -> None:
    assert {(file, component) for file, component, _, _ in cases(shared)} == set(HANDLERS)
    results = [(name, run_case(file, component, case)) for file, component, name, case in cases(shared)]
    assert [result for result in results if result[1][0] != "ok"] == []


def moved(value: Any) -> Any:
    """The expectation with its first number somewhat higher."""
    if isinstance(value, list):
        return [moved(value[0]), *value[1:]]
    if isinstance(value, dict):
        first = next(iter(value))
        return {**value, first: moved(value[first])}
    return "1/7" if isinstance(value, str) else value + 900 if isinstance(value, int) else value + 1e-5


def test_every_changed_number_fails(shared: Path) -> None:
    """Of one case each: every expectation but the reference's own random draws, changed one at a time."""
    for wanted in HANDLERS:
        file, component, _, case = next(x for x in cases(shared) if (x[0], x[1]) == wanted)
        unread = ("reference_first", "largest_reference", "expected_tokens_for_draft_length_float")
        for key in case["expected"]:
            if not key.startswith(unread):
                wrong = copy.deepcopy(case)
                wrong["expected"][key] = moved(wrong["expected"][key])
                assert run_case(file, component, wrong)[0] == "FAIL", key


parts = st.lists(st.integers(0, 12), min_size=2, max_size=5).filter(lambda x: sum(x) > 0)


def written(value: Fraction) -> str:
    return f"{value.numerator}/{value.denominator}"


@given(st.data(), parts)
@settings(max_examples=30)
def test_identities_of_any_two_laws(data: st.DataObject, target: list[int]) -> None:
    drafter = data.draw(st.lists(st.integers(0, 12), min_size=len(target), max_size=len(target)).filter(sum))
    p, q = ([Fraction(x, sum(law)) for x in law] for law in (target, drafter))
    short = [max(a - b, Fraction(0)) for a, b in zip(p, q, strict=True)]
    left = [x / sum(short) for x in short] if sum(short) else None
    total = 1 - sum(short)
    lengths = {n: sum(total**k for k in range(n + 1)) for n in (1, 3)}
    expected = {
        "acceptance_probability": written(total),
        "acceptance_probability_float": float(total),
        "total_variation_distance": written(sum(short, Fraction(0))),
        "acceptance_probability_of_each_draft_token": [
            written(min(a / b, Fraction(1))) if b else None for a, b in zip(p, q, strict=True)
        ],
        "residual_distribution": left and [written(x) for x in left],
        "residual_distribution_float": left and [float(x) for x in left],
        "output_distribution": [written(x) for x in p],
        "expected_tokens_for_draft_length": {str(n): written(Fraction(x)) for n, x in lengths.items()},
    }
    case = {
        "inputs": {"p": [written(x) for x in p], "q": [written(x) for x in q]},
        "expected": expected,
        "tolerance": {"floats": 1e-12},
    }
    status, details = run_case("speculative_sampling_identity", "acceptance_and_residual", case)
    assert (status, details) == ("ok", "9 checks")


@pytest.mark.parametrize("seed", range(6))
def test_rounds_of_any_laws(seed: int) -> None:
    """Fixed and sampled drafts of one to three tokens; one place in three has equal laws, so that nothing is left."""
    rng = np.random.default_rng(seed)
    length, width = int(rng.integers(1, 4)), int(rng.integers(2, 5))
    q, p = rng.dirichlet(np.ones(width), length), rng.dirichlet(np.ones(width), length + 1)
    if seed % 3 == 0:
        p[0] = q[0]
    fixed = rng.integers(width, size=length).tolist() if seed % 2 else None
    keep = np.minimum(p[:length], q).sum(axis=1)
    if fixed is not None:
        places = np.arange(length)
        keep = np.minimum(1.0, p[places, fixed] / q[places, fixed])
    survival = np.concatenate([[1.0], np.cumprod(keep)])
    counts = survival * np.append(1 - keep, 1.0)
    short = np.maximum(p[:length] - q, 0.0)
    left = [(row / row.sum()).tolist() if row.sum() > 0 else None for row in short]
    rows = [row if row is not None else p[place].tolist() for place, row in enumerate([*left, p[length].tolist()])]
    histogram = rng.multinomial(3000, counts / counts.sum())
    case = {
        "inputs": {
            "draft_distribution": q.tolist(),
            "target_distribution": p.tolist(),
            "drafted_tokens": fixed if fixed is not None else "sampled from the draft distribution",
        },
        "expected": {
            "analytic_probability_of_match_count": counts.tolist(),
            "analytic_next_token_distribution_after_rejection_at": left,
            "analytic_next_token_distribution_after_full_acceptance": p[length].tolist(),
            "reference_match_count_histogram": histogram.tolist(),
            "reference_next_token_histogram_by_match_count": [
                rng.multinomial(number, np.array(row) / np.sum(row)).tolist()
                for number, row in zip(histogram, rows, strict=True)
            ],
        },
        "tolerance": {"match_count_histogram": "within 4.5 standard deviations", "analytic": 1e-6},
    }
    status, details = run_case("transformers_assisted", "speculative_sampling", case)
    assert status == "ok", details


def test_other_vectors_do_not_load_torch() -> None:
    code = "import sys, tests.vectors; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False, cwd=Path(__file__).parent.parent).returncode == 0
