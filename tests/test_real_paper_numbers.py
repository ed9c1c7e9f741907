"""The numbers of the paper's tables from known rounds, against values worked out by hand."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("torch", reason="real/ needs the extra 'real'")

from analysis.grid import markdown
from analysis.paper_tables import fastest, tables_of
from real.folder import Run
from real.paper import figures
from real.paper.loops import fresh_sums
from real.paper.paired import Times, compare
from real.paper.summary import Measured, comparisons, prediction_summary, rows_of, summarise
from real.paper.tables import verdict_lines
from specsim.trace import TraceChunk, TraceMeta, write_trace
from tests.real_paper import cell_of, decoded, plain

# Two prompts of 4 and 6 tokens. Plain: 0.1 s a token.
#   static:length=2: prompt 0 in 2 rounds of 0.12 s, prompt 1 in 2 rounds of 0.15 s       0.54 s: eta 1.0 / 0.54
#   static:length=3: prompt 0 in 1 round of 0.2 s,   prompt 1 in 2 rounds of 0.2 s        0.60 s: eta 1.0 / 0.60
#   libraspec:       1 round of 0.16 s, 2 rounds of 0.12 s                                0.40 s: eta 2.5
#   lambda:          1 round of 0.25 s, 1 round of 0.25 s                                 0.50 s: eta 2.0
A, B = [1, 2, 3, 4], [5, 6, 7, 8, 9, 10]
PROMPTS = [
    {
        "plain": plain(A, 0.1),
        "static:length=2": decoded(A, [(2, 1, 0.12), (2, 1, 0.12)]),
        "static:length=3": decoded(A, [(3, 3, 0.2)]),
        "libraspec": decoded(A, [(4, 3, 0.16)]),
        "lambda": decoded(A, [(3, 3, 0.25)]),
    },
    {
        "plain": plain(B, 0.1),
        "static:length=2": decoded(B, [(2, 2, 0.15), (2, 2, 0.15)]),
        "static:length=3": decoded(B, [(3, 3, 0.2), (3, 1, 0.2)]),
        "libraspec": decoded(B, [(3, 2, 0.12), (3, 2, 0.12)]),
        "lambda": decoded(B, [(6, 5, 0.25)]),
    },
]
PREDICTED = {"static:length=2": 1.0 / 0.54, "static:length=3": 1.0 / 0.60 * 1.1, "libraspec": 2.0, "lambda": None}


@pytest.fixture
def cell() -> Measured:
    return cell_of(
        PROMPTS, static=(2, 3), controllers={"LibraSpec": "libraspec", "lambda": "lambda"}, predicted=PREDICTED
    )


def test_rows_are_ratios_of_sums(cell: Measured) -> None:
    rows = {row["controller"]: row for row in rows_of(cell)}
    assert list(rows) == ["static:length=2", "static:length=3", "libraspec", "lambda"]
    assert [rows[name]["label"] for name in rows] == ["static", "static", "LibraSpec", "lambda"]
    etas = {"static:length=2": 1.0 / 0.54, "static:length=3": 1.0 / 0.60, "libraspec": 2.5, "lambda": 2.0}
    taus = {"static:length=2": 10 / 4, "static:length=3": 10 / 3, "libraspec": 10 / 3, "lambda": 5.0}
    for name, row in rows.items():
        assert row["eta"] == pytest.approx(etas[name])
        assert row["tau"] == pytest.approx(taus[name])
        assert row["loop_share"] == 0.0
        assert row["eta_fresh"] == pytest.approx(row["eta"])
        assert row["tau_fresh"] == pytest.approx(row["tau"])
        low, high = row["eta_ci95"]
        assert low <= row["eta"] <= high
    libra = rows["libraspec"]
    assert [libra["draft_ms"], libra["verify_ms"], libra["rest_ms"]] == pytest.approx([100 / 3, 200 / 3, 100 / 3])
    assert libra["mean_submitted_len"] == pytest.approx(10 / 3)
    assert libra["error"] == pytest.approx(-0.2)


def test_the_table_shows_the_fastest_length_and_which_it_is(cell: Measured) -> None:
    chosen = fastest(rows_of(cell))
    assert chosen[("Drafter", "static"), "A"]["controller"] == "static:length=2"
    assert chosen[("Drafter", "static"), "A"]["variants"] == 2
    text = markdown(tables_of("table1", rows_of(cell)))
    line = next(line for line in text.split("\n") if line.startswith("| Drafter static"))
    assert line.split("|")[2].strip().startswith("1.85 [")
    assert line.split("|")[2].strip().endswith("(length=2)")
    assert line.split("|")[3].strip() == "2.50"
    assert "| Drafter LibraSpec | 2.50 [" in text
    assert "Without looping text (0% of the tokens)" in text


def test_lambda_is_judged_against_both_and_explained_where_it_is_slower(cell: Measured) -> None:
    libra, static, published = comparisons([summarise(cell)])
    assert (libra["label"], libra["against"], libra["other_controller"]) == ("lambda", "LibraSpec", "libraspec")
    assert libra["ratio"] == pytest.approx(0.8)
    # Per prompt lambda takes 0.25 s where LibraSpec takes 0.16 and 0.24: no resample makes it faster.
    assert libra["ci95"][1] <= 0.24 / 0.25 + 1e-9
    assert not libra["at_least_as_fast"]
    # 500 ms against 400 ms for 10 tokens, of which a quarter drafts, half verifies.
    assert libra["explained"]["ms_per_token"] == pytest.approx(
        {"draft": 2.5, "verify": 5.0, "rest": 2.5, "total": 10.0}
    )
    assert libra["explained"]["tau"] == pytest.approx([5.0, 10 / 3])
    assert libra["explained"]["predicted_ratio"] is None
    assert (static["label"], static["against"], static["other_controller"]) == ("lambda", "static", "static:length=2")
    assert static["ratio"] == pytest.approx(1.08)
    assert static["at_least_as_fast"]
    assert (published["label"], published["against"]) == ("LibraSpec", "static")
    assert published["ratio"] == pytest.approx(1.35)
    lines = verdict_lines([libra, static], prediction_summary(rows_of(cell)))
    assert "SLOWER" in lines[0]
    assert "verify +5.00" in lines[1]
    assert "at least as fast" in lines[2]


def test_methods_of_one_name_are_variants_of_each_other() -> None:
    """Tree budgets are cells of their own; `lambda` may be in one, LibraSpec in another."""
    trees = [
        cell_of(
            [{"plain": prompt["plain"], spelling: prompt[spelling]} for prompt in PROMPTS],
            static=(),
            controllers={label: spelling},
            predicted={},
            name="DDTree",
        )
        for label, spelling in (("fixed block", "static:length=3"), ("LibraSpec", "libraspec"), ("lambda", "lambda"))
    ]
    found = {(one["label"], one["against"]): one["ratio"] for one in comparisons([summarise(one) for one in trees])}
    assert found == pytest.approx(
        {("lambda", "LibraSpec"): 0.8, ("lambda", "static"): 1.2, ("LibraSpec", "static"): 1.5}
    )


def test_the_median_error_is_over_rows_with_a_prediction(cell: Measured) -> None:
    found = prediction_summary(rows_of(cell))
    assert (found["rows"], found["predicted"]) == (4, 3)
    assert found["median_error"] == pytest.approx(0.1)
    half = [(row["eta_ci95"][1] - row["eta_ci95"][0]) / 2 / row["eta"] for row in rows_of(cell) if row["predicted"]]
    assert found["bound"] == pytest.approx(max(0.05, float(np.median(half))))
    none = prediction_summary([row | {"predicted": None, "error": None} for row in rows_of(cell)])
    assert none["holds"] is None
    assert verdict_lines([], none) == ["predictions: none of 4 rows has one"]


def test_the_paired_interval_sees_what_separate_ones_cannot() -> None:
    # Prompts differ by a factor of ten; the first method is 5 % faster on each of them.
    plain_s = np.linspace(1.0, 10.0, 12)
    one, other = Times(plain_s=plain_s, time_s=plain_s / 2.1), Times(plain_s=plain_s, time_s=plain_s / 2.0)
    found = compare(one, other, seed=0)
    assert found.ratio == pytest.approx(1.05)
    assert found.ci95 == pytest.approx((1.05, 1.05))
    assert found.at_least_as_fast
    assert not compare(other, one, seed=0).at_least_as_fast


def test_the_paired_interval_covers_the_resampled_ratios() -> None:
    """Two prompts: a resample holds the first twice, both, or the second twice, with chances 1/4, 1/2, 1/4."""
    one = Times(plain_s=np.array([1.0, 1.0]), time_s=np.array([0.5, 1.0]))
    other = Times(plain_s=np.array([1.0, 1.0]), time_s=np.array([1.0, 0.5]))
    found = compare(one, other, seed=1)
    assert found.ratio == pytest.approx(1.0)
    assert found.ci95 == pytest.approx((0.5, 2.0))
    first = [Times(plain_s=times.plain_s[:1], time_s=times.time_s[:1]) for times in (one, other)]
    assert compare(*first, seed=0).to_json() == {"ratio": 2.0, "ci95": None, "at_least_as_fast": True}


def test_rounds_are_shared_out_over_their_tokens() -> None:
    # 3 fresh tokens, then 15 that loop; rounds of 2 tokens (0.2 s) and one of 2 across the border.
    tokens = [1, 2, 3] * 6
    run = Run(controller="static:length=1", decoded=decoded(tokens, [(1, 1, 0.2)] * 9))
    assert fresh_sums(run) == pytest.approx((3.0, 1.5, 0.3))
    base = Run(controller="plain", decoded=plain(tokens, 0.15))
    assert fresh_sums(base) == pytest.approx((3.0, 3.0, 0.45))


def test_figures_without_loops_sum_over_fresh_tokens_only() -> None:
    tokens, other = [1, 2, 3] * 6, list(range(10))
    slow_then_fast = [(1, 1, 0.4), (1, 1, 0.4), *[(1, 1, 0.1)] * 7]
    prompts = [
        {"plain": plain(tokens, 0.1), "static:length=1": decoded(tokens, slow_then_fast)},
        {"plain": plain(other, 0.1), "static:length=1": decoded(other, [(1, 1, 0.1)] * 5)},
    ]
    (row,) = rows_of(cell_of(prompts, static=(1,), controllers={}, predicted={}))
    assert row["loop_share"] == pytest.approx(15 / 28)
    # Fresh: 3 tokens in 0.6 s and 10 in 0.5 s; plain decoding takes 0.3 s and 1.0 s for them.
    assert row["eta_fresh"] == pytest.approx(1.3 / 1.1)
    assert row["eta"] == pytest.approx(2.8 / 2.0)
    assert row["tau_fresh"] == pytest.approx(2.0)


def test_calibration_counts_tokens_whose_predecessors_were_accepted(tmp_path: Path) -> None:
    """Three positions with drafts of 2, 2 and 1 tokens, of which 2, 0 and 1 are accepted."""
    chunk = TraceChunk(
        request=np.zeros(3, np.int32),
        pos=np.arange(3, dtype=np.int32),
        offsets=np.array([0, 2, 4, 5]),
        accept_len=np.array([2, 0, 1], np.int16),
        q=np.array([0.95, 0.75, 0.91, 0.3, 0.55], np.float32),
    )
    write_trace(tmp_path / "trace.parquet", TraceMeta(max_draft_len=2), chunk)
    cell = cell_of(PROMPTS, static=(2,), controllers={}, predicted={}, folder=tmp_path)
    rows = [(row["depth"], row["bin"], row["n"], row["mean_q"], row["accepted"]) for row in figures.calibration(cell)]
    # The second token of the second draft is not judged: the first was refused.
    assert rows == [
        (1, 5, 1, pytest.approx(0.55), 1.0),
        (1, 9, 2, pytest.approx(0.93), 0.5),
        (2, 7, 1, pytest.approx(0.75), 1.0),
    ]
    eces = {row["depth"]: row["ece"] for row in figures.calibration(cell)}
    assert eces == pytest.approx({1: (0.45 + 2 * 0.43) / 3, 2: 0.25})


def test_gains_are_over_the_published_block_where_there_is_one(cell: Measured) -> None:
    (row,) = figures.gains(rows_of(cell)).to_pylist()
    assert (row["without"], row["libraspec"]) == pytest.approx((1.0 / 0.54, 2.5))
    assert row["baseline"] == "static:length=2"
    fixed = cell_of(
        PROMPTS,
        static=(2, 3),
        controllers={"LibraSpec": "libraspec", "lambda": "lambda", "fixed block": "static:length=3"},
        predicted={},
    )
    (row,) = figures.gains(rows_of(fixed)).to_pylist()
    assert row["gain"] == pytest.approx(2.5 - 1.0 / 0.60)
    assert row["baseline"] == "static:length=3"


def test_limits_stand_beside_the_static_length_of_the_same_number() -> None:
    controllers = {"max=3": "libraspec", "max=9": "lambda"}
    rows = rows_of(cell_of(PROMPTS, static=(2, 3), controllers=controllers, predicted={}))
    found = {row["max_len"]: row for row in figures.max_lengths(rows).to_pylist()}
    assert found[3]["static"] == pytest.approx(1.0 / 0.60)
    assert found[3]["best_static"] == pytest.approx(1.0 / 0.54)
    assert found[9]["static"] is None
    (parts, _) = figures.breakdown(rows).to_pylist()
    assert parts["controller"] == "static:length=2"
    assert [parts["draft_ms"], parts["verify_ms"], parts["rest_ms"]] == pytest.approx([33.75, 67.5, 33.75])
