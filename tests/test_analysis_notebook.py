"""What the notebooks call: commands shown as they print, and the figures of bandits."""

from __future__ import annotations

from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import pyarrow as pa
import pytest
from matplotlib.figure import Figure

from analysis.bandit_figures import arm_throughput, mean_pulls, regret_curves
from analysis.derive import Missing
from analysis.figures import FIGURES
from analysis.notebook import Printed, command, figure
from analysis.runs import read_runs
from specsim.errors import ConfigError
from specsim.regret.compare import compare
from specsim.regret.family import make_family
from specsim.regret.worlds import family_case
from tests.conftest import ROOT

POLICIES = ["sp2ec:reset=0", "thompson"]


def test_a_command_shows_what_it_prints(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(ROOT)
    shown = command("specsim.controllers")
    assert "| `lambda` |" in shown.text
    assert repr(shown) == shown.text
    assert not any(line.endswith(" ") for line in shown.text.splitlines())
    assert ">a &lt; b</pre>" in Printed("a < b")._repr_html_()


def test_no_escape_sequences_where_a_kernel_asks_for_colours(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    monkeypatch.setenv("FORCE_COLOR", "1")
    assert "\x1b" not in command("specsim.trace info traces/open-ended-prompt-lookup.parquet").text


def test_a_command_that_fails_says_why() -> None:
    with pytest.raises(ConfigError, match=r"python -m specsim\.replay 'no such'\.parquet: exit status 2\n.*no such"):
        command("specsim.replay 'no such'.parquet")


def test_a_figure_of_a_run_is_that_of_the_command(tmp_path: Path) -> None:
    plt.switch_backend("agg")
    command(f"specsim.replay {ROOT}/traces/humaneval-prompt-lookup.parquet -c static:length=2 --out {tmp_path}/run")
    run = read_runs([tmp_path / "run"]).runs[0]
    ax = figure("throughput", run)
    assert ax.get_ylabel() == "tokens per second"
    assert ax.figure.get_size_inches().tolist() == list(FIGURES["throughput"].size(pa.table({})))
    with pytest.raises(Missing, match="arm"):
        figure("pulls", run)
    with pytest.raises(ConfigError, match=r"'nonsense' of a run; allowed: .*throughput"):
        figure("nonsense", run)
    plt.close("all")


@pytest.fixture(scope="module")
def case() -> dict:
    return compare(family_case(make_family("sharp", arms=5), rounds=300, quota=None, runs=3, seed=0), POLICIES)


def test_regret_curves_are_the_runs(case: dict) -> None:
    ax = regret_curves(case, Figure().subplots())
    assert [line.get_label() for line in ax.lines] == POLICIES
    for line, row in zip(ax.lines, case["results"], strict=True):
        assert np.allclose(line.get_ydata(), row["curve"]["pseudo_s"])
        assert line.get_xdata()[-1] <= 300
    for band, row in zip(ax.collections, case["results"], strict=True):
        heights = band.get_paths()[0].vertices[:, 1]
        assert heights.min() == pytest.approx(min(low for low, _ in row["curve"]["pseudo_band95_s"]))
        assert heights.max() == pytest.approx(max(high for _, high in row["curve"]["pseudo_band95_s"]))


def test_a_policy_without_a_curve_is_left_out(case: dict) -> None:
    bare = {**case["results"][0], "curve": {"rounds": []}}
    ax = regret_curves({**case, "results": [bare, case["results"][1]]}, Figure().subplots())
    assert len(ax.lines) == 1


def test_the_best_arm_is_the_highest(case: dict) -> None:
    ax = arm_throughput(case, Figure().subplots())
    rates, best = ax.lines[0].get_ydata(), ax.lines[1]
    assert len(rates) == 5
    assert int(np.argmax(rates)) == best.get_xdata()[0]


def test_pulls_add_up_to_the_rounds(case: dict) -> None:
    ax = mean_pulls(case, Figure().subplots())
    assert [sum(line.get_ydata()) for line in ax.lines[:2]] == pytest.approx([300, 300])
    assert ax.lines[2].get_xdata()[0] == case["best_arm"]
