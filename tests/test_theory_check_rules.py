"""The compiled rules do what the exact ones do, and what is summed over a trace is what the trace holds."""

from __future__ import annotations

import itertools
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from specsim import theory
from specsim.chunk import TraceChunk
from specsim.latency import LatencyModel
from specsim.oracle import static_times
from specsim.rows import make_costs, make_rows
from specsim.synth import synthesize
from specsim.theory.check_data import DEPTH_BINS, MAX_GROUPS, Q_EDGES, gather, static_lengths
from specsim.theory.check_kernels import COUNTS, RULES, row_counts
from specsim.theory.check_record import HOLDS, UNDECIDED, VIOLATED
from specsim.theory.check_rules import convergence, estimated_p, straight_line
from tests.check_worlds import facts_of, noise_of, table_latency, text_trace
from tests.worlds import World, worlds

# Eighths: their products up to depth 6 and all cross products stay exact in float64.
EIGHTHS = st.lists(st.integers(0, 8).map(lambda k: Fraction(k, 8)), min_size=1, max_size=6)
COSTS = st.tuples(st.integers(1, 8).map(lambda k: Fraction(k, 4)), st.integers(1, 40).map(lambda k: Fraction(k, 4)))


def distance(top: list[int], d: int) -> int:
    return min(abs(d - x) for x in top)


def exact_counts(
    p: list[Fraction], times: list[Fraction], line: theory.Affine, alpha: int
) -> dict[str, list[Fraction]]:
    """The counts of every rule by the exact functions; `times` judges, `line` is what the rules are told."""
    m = len(p)
    by_line, judged = theory.eta(p, line, 1), theory.eta(p, times, 1)
    tops = theory.argmax_set(judged), theory.argmax_set(by_line)
    best = max(x for x in judged if x is not None)
    printed = theory.printed_step(p, line, 1)
    exact_alpha = theory.exact_alpha(p, line, 1)

    def from_orbit(step, start: int) -> list[int]:
        orbit = theory.iterate(step, start)
        return [*orbit.lengths, orbit.cycle[0]] if len(orbit.cycle) > 1 else list(orbit.lengths)

    def from_run(constant, start: int) -> list[int]:
        steps = list(theory.algorithm1_steps(p, constant, start, m))
        return [start, *(s.decision for s in steps)]

    paths = {
        "theorem-3.4": [from_orbit(printed, s) for s in range(1, m + 1)],
        "algorithm-1": [from_run(alpha, s) for s in range(1, m + 1)],
        "algorithm-1-exact-alpha": [from_run(exact_alpha, s) for s in range(1, m + 1)],
        "repaired-R4": [from_orbit(theory.repaired_step(p, line, 1), s) for s in range(m + 1)],
        "repaired-R4-table": [from_orbit(theory.repaired_step(p, times, 1), s) for s in range(m + 1)],
    }
    found = {}
    for rule, sequences in paths.items():
        total = dict.fromkeys(COUNTS, Fraction(0))
        for sequence in sequences:
            moves = [(a, b) for a, b in itertools.pairwise(sequence) if a != b]
            end = sequence[-1]
            total["starts"] += 1
            total["moves"] += len(moves)
            total["steps"] += len(moves)
            total["lowering"] += sum(judged[b] < judged[a] for a, b in moves)
            total["lowering_line"] += sum(by_line[b] < by_line[a] for a, b in moves)
            total["cycles"] += len(moves) > 0 and end in sequence[:-1] and sequence[-2] != end
            total["back_and_forth"] += any(b > a for a, b in moves) and any(b < a for a, b in moves)
            total["distance"] += distance(tops[0], end)
            total["distance_line"] += distance(tops[1], end)
            total["loss"] += 1 - judged[end] / best
        found[rule] = list(total.values())
    return found


def compiled_counts(p: list[Fraction], times: list[Fraction], line: theory.Affine, alpha: int) -> np.ndarray:
    counts = np.zeros((len(RULES), len(COUNTS)))
    row_counts(np.array(p, float), np.array(times, float), float(line.c), float(line.b), float(alpha), counts)
    return counts


@given(p=EIGHTHS, cost=COSTS, tile=st.integers(1, 4), alpha=st.sampled_from([1, 2, 3]))
def test_compiled_rules_equal_the_exact_ones(p: list, cost: tuple, tile: int, alpha: int) -> None:
    line = theory.Affine(*cost)
    times = [cost[1] + cost[0] * tile * -(-d // tile) for d in range(len(p) + 1)]  # the line itself when tile is 1
    exact, found = exact_counts(p, times, line, alpha), compiled_counts(p, times, line, alpha)
    for k, rule in enumerate(RULES):
        assert found[k] == pytest.approx([float(x) for x in exact[rule]]), rule


def test_printed_rule_cycles_and_algorithm_1_over_verifies() -> None:
    """(1, 0, 0), b = 2: 1, 2, 1, 2 and so on; the repaired rule stops at the best length."""
    line = theory.Affine(1, 2)
    found = compiled_counts([Fraction(1), Fraction(0), Fraction(0)], [Fraction(d + 2) for d in range(4)], line, 2)
    assert found[0][COUNTS.index("cycles")] > 0
    assert found[RULES.index("repaired-R4")][COUNTS.index("distance")] == 0
    assert found[RULES.index("algorithm-1-exact-alpha")][COUNTS.index("distance")] > 0


def test_repaired_rule_holds_on_a_line_and_printed_ones_do_not() -> None:
    meta, chunk = synthesize("beta", requests=16, positions=64, max_draft_len=8)
    facts = facts_of(meta, chunk, LatencyModel.affine(c_s=0.2, b_s=1.0, draft_pass_s=0.1))
    assert facts.fractional
    found = {v.id.partition(":")[2]: v for v in convergence(facts, noise_of(facts))}
    assert found["repaired-R4"].verdict == found["repaired-R4-table"].verdict == HOLDS
    assert found["theorem-3.4"].verdict == found["algorithm-1-exact-alpha"].verdict == VIOLATED
    details = found["repaired-R4"].details
    assert details["mean_distance"] == details["lowering_share"] == details["cycle_share"] == 0
    assert details["mean_steps"] <= 2
    assert details["p"] == "accept_prob"
    assert details["line_largest_error"] == 0
    assert found["theorem-3.4"].details["mean_distance"] > 0


def test_printed_rule_is_not_accused_where_it_is_right() -> None:
    """p = 1: longer is better all the way, and Theorem 3.4 goes there."""
    meta, chunk = synthesize("iid", alpha=1.0, requests=10, positions=40, max_draft_len=6)
    facts = facts_of(meta, chunk, LatencyModel.affine(c_s=0.1, b_s=1.0))
    found = convergence(facts, noise_of(facts))
    assert [v.verdict for v in found if "exact" not in v.id] == [HOLDS] * 4


def test_estimated_p_finds_the_rates_and_stays_out_of_fold() -> None:
    levels = (0.3, 0.85)
    facts = facts_of(*text_trace(2, requests=40, longest=6, levels=levels), LatencyModel.affine(c_s=0.1, b_s=1.0))
    ones = np.ones(facts.units)
    p = estimated_p(facts.any_cells, facts.sample, ones)
    q_bin = facts.sample.cell // DEPTH_BINS
    shallow = facts.sample.cell % DEPTH_BINS <= 1
    for level in levels:
        own = p[(q_bin == np.searchsorted(Q_EDGES, np.float32(level), side="right")) & shallow]
        assert own.size
        assert np.abs(own - level).max() < 0.08
    changed = facts.any_cells.copy()
    changed[0::5, ..., 1] = 0.0  # outcomes of the first fold
    other = estimated_p(changed, facts.sample, ones)
    row = np.repeat(np.arange(facts.sample.rows), np.diff(facts.sample.offsets))
    first = facts.sample.unit[row] % 5 == 0
    assert (other[first] == p[first]).all()
    assert (other[~first] < p[~first]).any()


def test_binary_acceptance_is_estimated_and_says_so() -> None:
    meta, chunk = text_trace(4, requests=12, longest=6)
    binary = (np.arange(6) < chunk.accept_len[:, None]).ravel().astype(np.float32)
    facts = facts_of(meta, replace(chunk, accept_prob=binary), LatencyModel.affine(c_s=0.1, b_s=1.0))
    assert facts.sample.p is None
    found = convergence(facts, noise_of(facts))
    assert found[0].details["p"].startswith("estimated out of fold")
    assert found[RULES.index("repaired-R4")].verdict == HOLDS


def test_free_tokens_leave_nothing_to_decide() -> None:
    meta, chunk = text_trace(4, requests=12, longest=6)
    facts = facts_of(meta, chunk, LatencyModel.affine(c_s=0.0, b_s=1.0))
    found = convergence(facts, noise_of(facts))
    assert {v.verdict for v in found} == {UNDECIDED}


def test_line_through_a_table_states_its_error() -> None:
    facts = facts_of(*text_trace(4, longest=3), table_latency([1.0, 3.0, 3.0, 3.0]))
    c, b, error = straight_line(facts)
    assert (c, b) == pytest.approx((0.6, 1.6))
    assert error == pytest.approx(0.6)


@given(worlds(coverage="every-position"))
def test_static_replays_are_those_of_the_engine(world: World) -> None:
    facts = facts_of(world.meta, world.chunk, world.latency)
    rows, costs = make_rows(world.chunk), make_costs(world.latency, world.meta.max_draft_len)
    expected = static_times(rows, costs, world.meta.block_len, world.meta.max_draft_len)
    assert facts.times.sum(axis=0) == pytest.approx(expected[facts.lengths])
    assert facts.rounds[:, 0].sum() == world.chunk.rows


@given(worlds())
def test_examined_tokens_are_those_before_and_at_the_first_rejection(world: World) -> None:
    facts, chunk = facts_of(world.meta, world.chunk, world.latency), world.chunk
    examined = np.minimum(chunk.accept_len + 1, chunk.lengths)
    assert facts.risk.sum() == examined.sum() == facts.any_cells[..., 0].sum() == facts.cells[..., 0].sum()
    assert facts.passed.sum() == chunk.accept_len.sum() == facts.any_cells[..., 1].sum()
    assert facts.held.sum() == chunk.lengths.sum()


def test_many_requests_are_pooled_and_rows_sampled_alike_in_any_chunking() -> None:
    meta, chunk = synthesize("iid", requests=1000, positions=30, max_draft_len=4)
    latency = LatencyModel.affine(c_s=0.1, b_s=1.0)
    cut = int(np.searchsorted(chunk.request, 500))
    whole = gather(meta, [chunk], latency, rows=chunk.rows)
    parts: list[TraceChunk] = [chunk.slice(0, cut), chunk.slice(cut, chunk.rows)]
    halves = gather(meta, parts, latency, rows=chunk.rows)
    assert whole.units == MAX_GROUPS < whole.requests == halves.requests == 1000
    assert whole.sampled_share < 1
    assert 0.9 * 20_000 < whole.sample.rows < 20_000
    assert (whole.sample.cell == halves.sample.cell).all()
    assert whole.risk.sum() == halves.risk.sum()


def test_static_lengths_are_thinned_but_keep_both_ends() -> None:
    assert static_lengths(24).tolist() == list(range(25))
    long = static_lengths(500)
    assert (long[:5].tolist(), long[-1]) == ([0, 1, 2, 3, 4], 500)
    assert len(long) <= 34
    assert (np.diff(long) > 0).all()
