"""The second paper's figures and claims from files alone."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

pytest.importorskip("matplotlib", reason="analysis/ needs the extra 'analysis'")

from matplotlib.figure import Figure

from analysis import arm_judges as judges
from analysis import claims, figures
from analysis.results import ARM_ROWS, read_results
from analysis.sp2ec_claims import SP2EC_CLAIMS
from specsim.errors import ConfigError
from tests.test_analysis_paper import document, row

EMPTY: dict[str, Any] = {key: [] for key in ARM_ROWS}


def second(experiment: str, rows: list[dict[str, Any]], **more: Any) -> dict[str, Any]:
    return document(experiment, rows, **{**EMPTY, **more})


def axes() -> Any:
    return Figure().subplots()


# --- figures -----------------------------------------------------------------------------------------------------


def test_points_are_drawn_by_method_and_rules_are_named() -> None:
    data = [
        {"method": "A", "label": "static", "tau": 3.0, "eta": 1.5},
        {"method": "A", "label": "SP2ec", "tau": 2.5, "eta": 1.4},
        {"method": "B", "label": "UCBSpec", "tau": 4.0, "eta": 1.1},
    ]
    ax = figures.speed_by_acceptance(pa.Table.from_pylist(data), axes())
    drawn = [(np.asarray(one.get_offsets()).tolist(), one.get_sizes()[0]) for one in ax.collections]
    assert [one for one in drawn if one[0]] == [([[3.0, 1.5]], 7), ([[2.5, 1.4]], 26), ([[4.0, 1.1]], 26)]
    assert [text.get_text() for text in ax.get_legend().get_texts()] == ["A", "B", "SP2ec", "UCBSpec"]


def test_lines_are_in_the_order_of_arms_prompts_and_lengths() -> None:
    pulls = [
        {"label": "SP2ec", "arm": 1, "rank": 1, "share": 0.8},
        {"label": "SP2ec", "arm": 0, "rank": None, "share": 0.2},
    ]
    ax = figures.pull_shares(pa.Table.from_pylist(pulls), axes())
    line, best = ax.lines
    assert (np.asarray(line.get_xdata()).tolist(), np.asarray(line.get_ydata()).tolist()) == ([0, 1], [0.2, 0.8])
    assert best.get_xdata() == [1, 1]
    place = {"label": "SP2ec", "against": "dataset"}
    regret = [{**place, "prompt": prompt, "cumulative_s": s} for prompt, s in ((1, 0.5), (0, 0.2))]
    line, _ = figures.regret_along(pa.Table.from_pylist(regret), axes()).lines
    assert (np.asarray(line.get_xdata()).tolist(), np.asarray(line.get_ydata()).tolist()) == ([1, 2], [0.2, 0.5])
    found = [{"method": "M", "label": "SP2ec", "prompt_len": n, "eta": eta} for n, eta in ((200.0, 1.2), (100.0, 1.1))]
    line, _ = figures.speed_by_context(pa.Table.from_pylist(found), axes()).lines
    assert (np.asarray(line.get_xdata()).tolist(), np.asarray(line.get_ydata()).tolist()) == ([100, 200], [1.1, 1.2])


def test_a_column_that_is_missing_is_named(tmp_path: Path) -> None:
    place = {"target": "t", "dataset": "A", "temperature": 0, "method": "M", "drafter": "d", "label": "SP2ec"}
    pq.write_table(pa.Table.from_pylist([{**place, "arm": 0, "rank": None}]), tmp_path / "pulls.parquet")
    with pytest.raises(ConfigError, match=r"pulls\.parquet: column share is missing"):
        figures.draw_folder(tmp_path)
    pq.write_table(pa.Table.from_pylist([{**place, "arm": 0, "rank": None, "share": 1.0}]), tmp_path / "pulls.parquet")
    (path,) = figures.draw_folder(tmp_path)
    assert path.read_bytes().startswith(b"\x89PNG")


# --- claims ------------------------------------------------------------------------------------------------------


def arm(number: int, eta: float, **more: Any) -> dict[str, Any]:
    return row("static", eta, controller=f"arm:index={number}", method="KnapSpec", **more)


def rule(label: str, eta: float, **more: Any) -> dict[str, Any]:
    return row(label, eta, **{"method": "KnapSpec", **more})


def against(label: str, other: str, ratio: float, ci95: list[float] | None, **more: Any) -> dict[str, Any]:
    place = {"target": "t", "dataset": "A", "temperature": 0, "method": "KnapSpec"}
    return {**place, "label": label, "against": other, "ratio": ratio, "ci95": ci95, **more}


ROWS = [arm(0, 1.0), arm(1, 1.3, tau=3.0), arm(2, 1.1), rule("UCBSpec", 1.1, tau=3.5), rule("SP2ec", 1.25, tau=2.5)]
EAGLE = row("static", 1.2, method="EAGLE-3", tau=1.9)


def test_the_main_tables_line_is_of_means_of_the_fastest() -> None:
    other = [one | {"dataset": "B"} for one in (arm(0, 1.5), rule("UCBSpec", 1.3), rule("SP2ec", 1.75))]
    one = second("sp2ec-main", [*ROWS, *other])
    said = "best fixed arm 2.50 / 1.40x, UCBSpec 2.75 / 1.20x, SP2ec 2.25 / 1.50x"
    assert judges.averages("KnapSpec")(one) == (said, True)
    assert judges.averages("KnapSpec")(second("sp2ec-main", ROWS)) == (
        "best fixed arm 3.00 / 1.30x, UCBSpec 3.50 / 1.10x, SP2ec 2.50 / 1.25x",
        False,
    )
    assert judges.averages("SWIFT")(one) is None
    assert judges.averages("KnapSpec")(second("sp2ec-main", [rule("SP2ec", 1.2)])) is None
    assert judges.highest(one) == ("at most 1.75x", None)
    assert judges.accepts_more_and_is_slower(second("sp2ec-main", ROWS)) == (
        "KnapSpec: tau 3.50 against 2.50, 1.10x against 1.25x",
        True,
    )


def test_comparisons_are_counted_with_their_intervals() -> None:
    rows = [
        against("SP2ec", "UCBSpec", 1.14, [1.05, 1.2]),
        against("SP2ec", "UCBSpec", 0.97, [0.9, 1.1], method="SWIFT"),
        against("UCBSpec", "static", 0.85, [0.8, 0.9]),
    ]
    one = second("sp2ec-main", [], comparisons=rows)
    said = "0.97 to 1.14 of it in 2 places; intervals clear of 1: 1 above, 0 below"
    assert judges.ahead("SP2ec", "UCBSpec")(one) == (said, False)
    assert judges.ahead("SP2ec", "static")(one) is None
    assert judges.behind("UCBSpec", "static", "KnapSpec")(one) == (
        "0.85 to 0.85 of it in 1 places; intervals clear of 1: 0 above, 1 below",
        True,
    )
    assert judges.behind("UCBSpec", "static", "SWIFT")(one) is None
    ablation = [
        against("SP2ec, reset every 512 rounds", "SP2ec", 1.02, None),
        against("SP2ec, kept", "SP2ec", 0.99, [0.9, 1.1]),
    ]
    said = "reset every 512 rounds 1.020; kept 0.990; intervals clear of 1: 0 above, 0 below"
    assert judges.resets(second("sp2ec-reset", [], comparisons=ablation)) == (said, True)
    assert judges.resets(second("sp2ec-reset", [], comparisons=ablation[1:])) == (
        "kept 0.990; intervals clear of 1: 0 above, 0 below",
        None,
    )


def test_a_peak_may_dip_by_chance_but_not_by_more() -> None:
    def peak(*etas: float, half: float | None = 0.03) -> bool | None:
        rows = [
            {**arm(number, eta), "eta_ci95": None if half is None else [eta - half, eta + half]}
            for number, eta in enumerate(etas)
        ]
        found = judges.single_peak(second("sp2ec-main", rows[::-1]))
        return None if found is None else found[1]

    assert peak(1.0, 1.3, 1.1)
    assert peak(1.3, 1.2, 1.1)
    assert peak(1.0, 1.2, 1.195, 1.3, 1.1, 1.105)
    assert not peak(1.0, 1.2, 1.1, 1.3)
    assert not peak(1.3, 1.0, 1.1)
    assert peak(1.3, 1.0, 1.1, half=0.06)
    assert not peak(1.3, 1.0, 1.1, half=None)
    assert peak(1.3, 1.0) is None


def test_shares_regrets_and_lengths_are_judged() -> None:
    place = {"target": "t", "dataset": "A", "temperature": 0, "method": "KnapSpec", "controller": "c"}
    shares = [
        {**place, "label": label, "best": 0.5, "outside_top3": share}
        for label, share in (("UCBSpec", 0.4), ("UCBSpec", 0.6), ("SP2ec", 0.1), ("SP2ec", None))
    ]
    one = second("sp2ec-pulls", [], shares=shares)
    assert judges.outside(one) == ("KnapSpec: 50% of UCBSpec's, 10% of SP2ec's", True)
    assert judges.outside(second("sp2ec-pulls", [], shares=shares[2:])) is None
    regrets = [
        {**place, "label": label, "against": best, "relative": share, "relative_ci95": interval, "predicted": None}
        for label, best, share, interval in (
            ("SP2ec", "prompt", 0.05, [0.04, 0.06]),
            ("UCBSpec", "prompt", 0.10, None),
            ("UCBSpec (paper)", "prompt", 0.04, None),
            ("SP2ec", "dataset", 0.9, None),
        )
    ]
    said = "KnapSpec: SP2ec 5.0% [4.0%, 6.0%], UCBSpec 10.0%, UCBSpec (paper) 4.0%"
    assert judges.regret(second("sp2ec-regret", [], regrets=regrets)) == (said, False)
    assert judges.regret(second("sp2ec-regret", [], regrets=regrets[:2])) == (said.rpartition(",")[0], True)
    regrets[0] |= {"predicted": 0.02, "predicted_ci95": [-0.01, 0.03]}
    told = "KnapSpec: SP2ec 5.0% [4.0%, 6.0%] (replayed 2.0% [-1.0%, 3.0%]), UCBSpec 10.0%"
    assert judges.regret(second("sp2ec-regret", [], regrets=regrets[:2])) == (told, True)
    contexts = [
        {**place, "method": method, "label": "SP2ec", "prompt_len": n, "eta": eta}
        for method, n, eta in (("SpecVLM", 9000.0, 1.6), ("SpecVLM", 500.0, 1.0), ("cosSim", 500.0, 1.2))
    ]
    one = second("sp2ec-context", [], contexts=contexts)
    assert judges.by_length("SpecVLM")(one) == ("SpecVLM: 1.00x at 500 tokens, 1.60x at 9000 tokens", True)
    assert judges.by_length(None)(one) is None
    longer = [*contexts, {**contexts[2], "prompt_len": 9000.0, "eta": 1.4}]
    said = "cosSim: 1.20x at 500 tokens, 1.40x at 9000 tokens"
    assert judges.by_length(None)(second("sp2ec-context", [], contexts=longer)) == (said, False)


def test_construction_acceptance_and_eagle_are_judged() -> None:
    place = {"target": "t", "dataset": "A", "temperature": 0, "method": "cosSim", "label": "SP2ec"}
    built = [{**place, "build_s": 0.1, "share": share, "tokens": n} for share, n in ((0.008, 6000), (0.02, 1200))]
    one = second("sp2ec-build", [], construction=built)
    assert judges.overhead("cosSim", 0.01)(one) == ("0.80% to 2.00%, 1200 to 6000 tokens in all", False)
    assert judges.overhead("cosSim", 0.02)(one) == ("0.80% to 2.00%, 1200 to 6000 tokens in all", True)
    assert judges.overhead("SWIFT", 0.02)(one) is None
    point = {"tau": 4.5, "eta": 1.1}
    found = {"target": "t", "dataset": "A", "spearman": -0.25, "higher": point, "lower": {"tau": 3.6, "eta": 1.3}}
    said = "A: rank correlation -0.25; tau 4.50 at 1.10x, tau 3.60 at 1.30x"
    assert judges.acceptance(second("sp2ec-mat", [], acceptance=[found])) == (said, True)
    none = found | {"spearman": None, "higher": None, "lower": None}
    assert judges.acceptance(second("sp2ec-mat", [], acceptance=[none])) == ("A: rank correlation none", False)
    assert judges.beats_eagle(second("sp2ec-main", [*ROWS, EAGLE])) == (
        "EAGLE-3 1.90 / 1.20x; KnapSpec 2.50 / 1.25x",
        True,
    )
    assert judges.beats_eagle(second("sp2ec-main", [*ROWS, EAGLE | {"eta": 1.3}])) == (
        "EAGLE-3 1.90 / 1.30x; KnapSpec 2.50 / 1.25x",
        False,
    )
    assert judges.beats_eagle(second("sp2ec-main", ROWS)) is None


def test_every_judge_is_silent_about_what_was_not_measured() -> None:
    for claim in SP2EC_CLAIMS:
        assert all(claim.judge(second(experiment, [])) is None for experiment in claim.experiments)


def test_results_of_arms_are_checked_and_those_of_the_first_paper_need_none(tmp_path: Path) -> None:
    def read(name: str, content: dict[str, Any]) -> dict[str, Any]:
        folder = tmp_path / name
        folder.mkdir()
        (folder / "results.json").write_text(json.dumps(content))
        return dict(read_results([folder]))

    assert read("table1_lab", document("table1", []))
    found = read("sp2ec-main_lab", second("sp2ec-main", ROWS))
    assert "sp2ec-main_lab: at most 1.25x" in claims.table(found, SP2EC_CLAIMS)
    assert "sp2ec-main_lab" not in claims.table(found)
    with pytest.raises(ConfigError, match=r"comparisons is missing or no list"):
        read("a", document("sp2ec-main", ROWS))
    with pytest.raises(ConfigError, match=r"comparisons\[0\]\.ci95 is \[1\.0\]; allowed: two numbers, or null"):
        read("b", second("sp2ec-main", ROWS, comparisons=[against("SP2ec", "UCBSpec", 1.1, [1.0])]))
    broken = {"target": "t", "dataset": "A", "spearman": None, "higher": {"tau": 1.0}, "lower": None}
    with pytest.raises(ConfigError, match=r"acceptance\[0\]\.higher is .* with tau and eta, or null"):
        read("c", second("sp2ec-mat", ROWS, acceptance=[broken]))
