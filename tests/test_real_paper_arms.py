"""The second paper's numbers from known rounds of known arms, against values worked out by hand."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("torch", reason="real/ needs the extra 'real'")

from analysis.arm_tables import sections_of
from analysis.grid import markdown
from real.paper.arms import acceptance, arm_order, contexts, pulls, ranks, spearman
from real.paper.regret import mean_interval, order, regrets
from real.paper.summary import Measured, comparisons, rows_of, summarise
from tests.real_paper import cell_of, decoded, plain

# Two prompts of 4 and 6 tokens, plain decoding 0.1 s a token. Seconds of each prompt:
#   arm 0  0.30 0.20    arm 1  0.16 0.24    arm 2  0.32 0.50    arm 3  0.40 0.60    SP2ec 0.24 0.28   UCBSpec 0.31 0.58
# so arm 1 is the best of both, 1 and 0 are the best of each; by speed the arms are 1, 0, 2, 3.
A, B = [1, 2, 3, 4], [5, 6, 7, 8, 9, 10]
PROMPTS = [
    {
        "plain": plain(A, 0.1),
        "arm:index=0": decoded(A, [(1, 1, 0.15, 0), (1, 1, 0.15, 0)]),
        "arm:index=1": decoded(A, [(3, 3, 0.16, 1)]),
        "arm:index=2": decoded(A, [(3, 3, 0.32, 2)]),
        "arm:index=3": decoded(A, [(1, 0, 0.1, 3)] * 4),
        "sp2ec": decoded(A, [(1, 1, 0.15, 0), (1, 1, 0.09, 1)]),
        "ucbspec": decoded(A, [(3, 3, 0.31, 2)]),
    },
    {
        "plain": plain(B, 0.1),
        "arm:index=0": decoded(B, [(2, 2, 0.1, 0), (2, 2, 0.1, 0)]),
        "arm:index=1": decoded(B, [(1, 1, 0.08, 1)] * 3),
        "arm:index=2": decoded(B, [(5, 5, 0.5, 2)]),
        "arm:index=3": decoded(B, [(1, 0, 0.1, 3)] * 6),
        "sp2ec": decoded(B, [(1, 1, 0.08, 1), (1, 1, 0.08, 1), (1, 1, 0.12, 2)]),
        "ucbspec": decoded(B, [(1, 0, 0.08, 3), (4, 4, 0.5, 2)]),
    },
]
PREDICTED = {"arm:index=0": 1.9, "arm:index=1": 2.5, "arm:index=2": 0.9, "arm:index=3": 1.0, "sp2ec": 2.6}


def measured(arms: tuple[int, ...] = (0, 1, 2, 3), **changes: Any) -> Measured:
    given: dict[str, Any] = {"controllers": {"SP2ec": "sp2ec", "UCBSpec": "ucbspec"}, "predicted": PREDICTED}
    return cell_of(PROMPTS, arms=arms, **{**given, **changes})


def test_swept_arms_are_the_static_baseline() -> None:
    cell = measured()
    rows = rows_of(cell)
    assert [row["label"] for row in rows] == ["static"] * 4 + ["SP2ec", "UCBSpec"]
    assert arm_order(rows) == [1, 0, 2, 3]
    found = {(one["label"], one["against"]): one for one in comparisons([summarise(cell)])}
    assert set(found) == {("SP2ec", "UCBSpec"), ("SP2ec", "static"), ("UCBSpec", "static")}
    assert found["SP2ec", "UCBSpec"]["ratio"] == pytest.approx(0.89 / 0.52)
    assert found["SP2ec", "static"]["other_controller"] == "arm:index=1"
    assert found["SP2ec", "static"]["ratio"] == pytest.approx(0.40 / 0.52)
    assert not found["SP2ec", "static"]["at_least_as_fast"]


def test_variants_of_sp2ec_are_compared_with_it() -> None:
    labels = {"SP2ec": "sp2ec", "SP2ec, kept": "ucbspec", "SP2ec again": "arm:index=3"}
    found = comparisons([summarise(measured(controllers=labels))])
    assert [(one["label"], one["against"]) for one in found] == [("SP2ec", "static"), ("SP2ec, kept", "SP2ec")]
    assert found[1]["ratio"] == pytest.approx(0.52 / 0.89)


def test_the_fastest_variants_stand_by_the_length_of_their_prompts() -> None:
    rows = contexts(rows_of(measured()) + rows_of(measured(dataset="B"))).to_pylist()
    assert [(row["dataset"], row["label"]) for row in rows] == [
        (dataset, label) for dataset in ("A", "B") for label in ("static", "SP2ec", "UCBSpec")
    ]
    assert {row["prompt_len"] for row in rows} == {5.0}
    assert rows[0]["controller"] == "arm:index=1"


def test_pulls_are_counted_over_rounds_that_drafted() -> None:
    by_arm, by_rule = pulls(measured())
    sp2ec, ucbspec = by_rule
    told = {key: sp2ec[key] for key in ("rounds", "best_arm", "best", "own_best", "outside_top3")}
    assert told == pytest.approx({"rounds": 5, "best_arm": 1, "best": 0.6, "own_best": 0.2, "outside_top3": 0.0})
    told = {key: ucbspec[key] for key in ("rounds", "best", "own_best", "outside_top3")}
    assert told == pytest.approx({"rounds": 3, "best": 0.0, "own_best": 0.0, "outside_top3": 1 / 3})
    found = {row["arm"]: row for row in by_arm if row["label"] == "SP2ec"}
    assert [found[arm]["rank"] for arm in range(4)] == [2, 1, 3, 4]
    assert [found[arm]["pulls"] for arm in range(4)] == [1, 3, 1, 0]
    assert sum(row["share"] for row in found.values()) == pytest.approx(1.0)
    assert found[1]["tokens"] == pytest.approx(2.0)
    assert found[1]["round_ms"] == pytest.approx(250 / 3)
    assert found[3]["tokens"] is found[3]["round_ms"] is None


def test_shares_of_arms_that_were_not_swept_are_not_made_up() -> None:
    by_arm, (sp2ec, ucbspec) = pulls(measured(arms=(0, 1, 2)))
    assert sp2ec["outside_top3"] == 0.0
    assert ucbspec["outside_top3"] is None
    assert [row["rank"] for row in by_arm if row["label"] == "UCBSpec"] == [2, 1, 3, None]
    lengths = cell_of(
        [{"plain": plain(A, 0.1), "static:length=2": decoded(A, [(2, 1, 0.12)] * 2), "g4": decoded(A, [(3, 3, 0.2)])}],
        static=(2,),
        controllers={"g4": "g4"},
        predicted={},
    )
    assert pulls(lengths) == regrets(summarise(lengths)) == ([], [])


def test_regret_is_over_the_best_arm_of_the_dataset_and_of_each_prompt() -> None:
    along, whole = regrets(summarise(measured()))
    found = {(row["label"], row["against"]): row for row in whole}
    one, own = found["SP2ec", "dataset"], found["SP2ec", "prompt"]
    assert (one["arm"], own["arm"]) == ("arm:index=1", None)
    assert (one["regret_s"], own["regret_s"]) == pytest.approx((0.06, 0.08))
    assert (one["relative"], own["relative"]) == pytest.approx((0.12 / 0.40, 0.16 / 0.36))
    # Of two prompts a resample holds one, the other or both: the ends of the interval are theirs.
    assert one["regret_s_ci95"] == pytest.approx((0.04, 0.08))
    assert one["relative_ci95"] == pytest.approx((0.04 / 0.24, 0.08 / 0.16))
    assert found["UCBSpec", "dataset"]["regret_s"] == pytest.approx((0.15 + 0.34) / 2)
    assert one["predicted"] is one["predicted_s"] is own["predicted_ci95"] is None
    curve = [row["cumulative_s"] for row in along if (row["label"], row["against"]) == ("SP2ec", "prompt")]
    assert curve == pytest.approx([0.08, 0.16])


def test_regret_is_for_as_many_tokens() -> None:
    """With sampling an arm may emit another number of tokens than the controller: 2 tokens in 0.1 s are 0.2 s for 4."""
    prompt = {
        "plain": plain(A, 0.1),
        "arm:index=0": decoded(A[:2], [(1, 1, 0.1, 0)]),
        "sp2ec": decoded(A, [(3, 3, 0.25, 0)]),
    }
    _, (row, own) = regrets(summarise(cell_of([prompt], arms=(0,), controllers={"SP2ec": "sp2ec"}, predicted={})))
    assert (row["regret_s"], row["relative"]) == pytest.approx((0.05, 0.25))
    assert (own["regret_s"], own["relative"]) == pytest.approx((0.05, 0.25))
    assert row["regret_s_ci95"] is row["relative_ci95"] is None


# Replayed seconds of both prompts: arm 0 is the best here (0.5 in all), and of each prompt arms 0 and 2.
REPLAYED = {
    "arm:index=0": np.array([0.2, 0.3]),
    "arm:index=1": np.array([0.3, 0.4]),
    "arm:index=2": np.array([0.5, 0.1]),
    "arm:index=3": np.array([0.6, 0.6]),
    "sp2ec": np.array([0.22, 0.36]),
}


def test_replayed_regret_is_over_the_arm_that_is_best_there_with_an_interval() -> None:
    along, whole = regrets(summarise(measured()), REPLAYED)
    found = {(row["label"], row["against"]): row for row in whole}
    one, own = found["SP2ec", "dataset"], found["SP2ec", "prompt"]
    assert (one["arm"], one["predicted_arm"], own["predicted_arm"]) == ("arm:index=1", "arm:index=0", None)
    assert (one["predicted_s"], own["predicted_s"]) == pytest.approx((0.04, 0.14))
    assert (one["predicted"], own["predicted"]) == pytest.approx((0.08 / 0.5, 0.28 / 0.3))
    # As above: the ends are those of the one prompt, and of the other.
    assert one["predicted_s_ci95"] == pytest.approx((0.02, 0.06))
    assert one["predicted_ci95"] == pytest.approx((0.02 / 0.2, 0.06 / 0.3))
    assert own["predicted_ci95"] == pytest.approx((0.02 / 0.2, 0.26 / 0.1))
    assert one["regret_s"] == pytest.approx(0.06)
    gaps = {
        against: [row["predicted_s"] for row in along if (row["label"], row["against"]) == ("SP2ec", against)]
        for against in ("dataset", "prompt")
    }
    assert gaps["dataset"] == pytest.approx([0.02, 0.06])
    assert gaps["prompt"] == pytest.approx([0.02, 0.26])
    assert found["UCBSpec", "dataset"]["predicted"] is found["UCBSpec", "prompt"]["predicted_arm"] is None


def test_no_regret_is_predicted_where_an_arm_is_not() -> None:
    some = {name: value for name, value in REPLAYED.items() if name != "arm:index=3"}
    along, whole = regrets(summarise(measured()), some)
    assert all(row["predicted"] is row["predicted_s_ci95"] is row["predicted_arm"] is None for row in whole)
    assert {row["predicted_s"] for row in along} == {None}


def test_the_replay_is_asked_where_intervals_separate() -> None:
    """Of the 15 pairs, arms 0 and 1, 0 and SP2ec, 2 and UCBSpec are faster on one prompt each; UCBSpec is not predicted
    (four pairs); the replay has SP2ec before arm 1, and arm 3 before arm 2."""
    found = order(summarise(measured()))
    counts = {key: found[key] for key in ("pairs", "separated", "foreseen", "agreed", "untold")}
    assert counts == {"pairs": 15, "separated": 12, "foreseen": 8, "agreed": 6, "untold": 0}
    (first, second) = found["against"]
    assert first == ["arm:index=1", "sp2ec", pytest.approx(0.52 / 0.40), pytest.approx(2.5 / 2.6)]
    assert second == ["arm:index=2", "arm:index=3", pytest.approx(1.0 / 0.82), pytest.approx(0.9)]
    swapped = {"arm:index=2": 1.0, "arm:index=3": 0.9, "sp2ec": 2.4}
    assert order(summarise(measured(predicted=PREDICTED | swapped)))["agreed"] == 8


def test_what_the_replays_noise_cannot_tell_apart_is_not_foreseen() -> None:
    """SP2ec's prediction, 2.6, is 0.038 of itself above arm 1's: two standard deviations of 0.06 tell no difference."""
    cell = measured()
    for one in cell.document["results"]:
        one["predicted_sd"] = 0.06 if one["controller"] == "sp2ec" else 0.0
    found = order(summarise(cell))
    assert (found["separated"], found["foreseen"], found["agreed"], found["untold"]) == (12, 7, 6, 1)
    assert [names[:2] for names in found["against"]] == [["arm:index=2", "arm:index=3"]]


def test_acceptance_is_ranked_against_speed_with_the_widest_exception() -> None:
    (row,) = acceptance([summarise(measured())])
    assert row["points"] == 6
    # Ranks of tau 3.5 3.5 6 1 2 5 and of eta 5 6 3 1 4 2.
    assert row["spearman"] == pytest.approx(2 / np.sqrt(17 * 17.5))
    assert (row["higher"]["controller"], row["lower"]["controller"]) == ("arm:index=2", "sp2ec")
    assert (row["higher"]["tau"], row["lower"]["tau"]) == pytest.approx((5.0, 2.0))
    assert row["ratio"] == pytest.approx(0.52 / 0.82)
    assert row["ci95"][1] < 1
    alone = cell_of(PROMPTS, arms=(1, 3), controllers={}, predicted={})
    (row,) = acceptance([summarise(alone)])
    assert (row["spearman"], row["higher"]) == (pytest.approx(1.0), None)


@given(st.lists(st.integers(-5, 5), min_size=2, max_size=12), st.randoms())
def test_rank_correlation_ignores_scales_and_orders(values: list[int], random: Any) -> None:
    other = [value + random.randint(0, 4) for value in values]
    found = spearman(values, other)
    assert float(ranks(values).sum()) == len(values) * (len(values) + 1) / 2
    if found is None:
        assert len(set(values)) == 1 or len(set(other)) == 1
        return
    assert -1 - 1e-9 <= found <= 1 + 1e-9
    assert spearman([3.0**value for value in values], other) == pytest.approx(found)
    assert spearman(values, [-value for value in other]) == pytest.approx(-found)
    assert spearman(values[::-1], other[::-1]) == pytest.approx(found)


def test_intervals_of_means_hold_their_mean() -> None:
    values = np.array([0.1, -0.2, 0.4, 0.3, 0.0])
    low, high = mean_interval(values, seed=0) or (1.0, 0.0)
    assert values.min() <= low <= values.mean() <= high <= values.max()
    assert mean_interval(values[:1], seed=0) is None


def test_the_sections_say_it_in_words() -> None:
    cell = measured()
    summary = summarise(cell)
    document = {
        "acceptance": acceptance([summary]),
        "shares": pulls(cell)[1],
        "regrets": regrets(summary, REPLAYED)[1],
        "orders": [order(summary)],
    }
    text = markdown(sections_of("sp2ec-regret", document))
    assert "| Drafter | SP2ec | sp2ec | 5 | 1: 60.0% | 20.0% | 0.0% |" in text
    measured_part = "all prompts (arm:index=1) | 60.0 [40.0, 80.0] | 30.0% [16.7%, 50.0%]"
    assert f"{measured_part} | arm:index=0 | 40.0 [20.0, 60.0] | 16.0% [10.0%, 20.0%] |" in text
    assert "each prompt | 265.0 [150.0, 380.0] | 147.2% [93.8%, 190.0%] | - | - | - |" in text
    assert "Drafter static (arm:index=2): tau 5.00, 1.22x; Drafter SP2ec (sp2ec): tau 2.00, 1.92x; ratio 0.634" in text
    assert "| 15 | 12 | 8 | 0 | 6 | arm:index=1 is faster than sp2ec (1.300; predicted 0.962)<br>arm:index=2" in text
    assert sections_of("sp2ec-regret", {"acceptance": [], "shares": []}) == []
