"""Every figure on a small table: what it draws, how it is written, and that it depends on nothing but its data."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("matplotlib", reason="analysis/ needs the extra 'analysis'")

import matplotlib as mpl
from matplotlib.figure import Figure
from matplotlib.text import Text

from analysis.figures import FIGURES
from analysis.figures.__main__ import main
from analysis.figures.style import WIDE, fit, names, styled
from analysis.figures.write import draw
from specsim.replay import main as replay
from tests.analysis_logs import status
from tests.conftest import ROOT
from tests.replay_tools import make_trace

LONG = "libraspec:alpha=2.0,block=10,max=24"
CI = {"low": 0.9, "high": 1.3}
NO_CI = {"low": None, "high": None}


def throughput(kind: str) -> list[dict[str, Any]]:
    fixed = "arm:index=" if kind == "arm" else "static:length="
    told = {"source": "replayed", "privileged": False}
    curve = [
        {"kind": kind, "controller": f"{fixed}{n}", "length": float(n), "tokens_per_s": 10.0 + n, "low": 9.0 + n}
        | {"high": 11.0 + n, **told}
        for n in range(4)
    ]
    place = {"kind": "controller", "length": None if kind == "arm" else 2.5, **told, "source": "measured"}
    marks = [place | {"controller": one, "tokens_per_s": 12.0, **NO_CI} for one in (LONG, f"{fixed}1", "lambda")]
    return [*curve, *marks, place | {"kind": "oracle", "controller": "oracle", "tokens_per_s": 20.0, **NO_CI}]


TABLES: dict[str, list[dict[str, Any]]] = {
    "gains": [{"dataset": "A", "method": "M", "without": 1.5, "libraspec": 1.75, "gain": 0.25}],
    "lengths": [
        {"series": series, "pos": pos, "length": pos % 3 + 1}
        for series in ("static:length=4", LONG, "best length")
        for pos in range(6)
    ],
    "breakdown": [
        {"label": label, "draft_ms": 1.0, "verify_ms": 2.0, "rest_ms": 0.1} for label in ("plain", LONG, "libraspec")
    ],
    "max-lengths": [{"max_len": n, "libraspec": 1.3, "static": None, "best_static": 1.2} for n in (4, 8)],
    "depths": [
        {"depth": depth, "bin": b, "n": 3, "mean_q": 0.1 * b, "accepted": 0.1 * b, "ece": 0.1}
        for depth in (None, 1, 2)
        for b in (3, 9)
    ],
    "survival": [
        {"source": source, "depth": d, "survival": 0.8**d, **CI, "hazard": 0.2, "n": 100 // d}
        for source in ("trace", "lambda")
        for d in (1, 2, 3, 4)
    ],
    "throughput": throughput("static"),
    "arms": throughput("arm"),
    "speedups": [{"label": label, "speedup": 1.1, **CI, "privileged": label == "oracle"} for label in (LONG, "oracle")],
    "acceptance": [
        {"method": method, "label": label, "tau": 2.0, "eta": 1.1}
        for method in ("SWIFT", "KnapSpec")
        for label in ("static", "SP2ec", "UCBSpec")
    ],
    "contexts": [
        {"method": "M", "label": label, "prompt_len": n, "eta": 1.0 + n / 1000}
        for label in ("static", "SP2ec")
        for n in (100.0, 200.0)
    ],
    "pulls": [
        {"label": label, "arm": arm, "rank": arm + 1 if arm else None, "share": 0.5}
        for label in ("SP2ec", "UCBSpec")
        for arm in (0, 1)
    ],
    "regret": [
        {"label": label, "against": "static:length=4", "prompt": n, "cumulative_s": float(n), "low": -1.0, "high": 9.0}
        for label in ("lambda", LONG)
        for n in range(5)
    ],
    "latency": [
        {"kind": kind, "controller": None, "s": s, "measured_s": None if kind == "fit" else 0.01 * s, "fitted_s": 0.01}
        | {"residual_s": None if kind == "fit" else 0.01 * s - 0.01, "low": 0.01, "high": 0.02}
        for kind in ("verify", "draft", "fit")
        for s in (1.0, 2.0)
    ],
    "predictions": [
        {"method": method, "predicted": 1.2, "measured": measured, **(CI if measured > 1 else NO_CI)}
        for method in ("DFlash", "DDTree")
        for measured in (0.9, 1.1)
    ],
    "theory": [
        {"property": name, "verdict": verdict, "evidence": "valley at length 1 " * 20}
        for name, verdict in (("hazard", "holds"), ("throughput-peak", "violated"), ("nu-peak", "not decidable"))
    ],
}
TABLES |= {"reliability": TABLES["depths"], "hazard": TABLES["survival"], "residuals": TABLES["latency"]}


def table(name: str) -> pa.Table:
    return pa.Table.from_pylist(TABLES[name])


def axes(name: str) -> Any:
    figure = Figure(figsize=FIGURES[name].size(table(name)), layout="constrained")
    return FIGURES[name].draw(table(name), figure.subplots())


def test_every_figure_is_tried() -> None:
    assert set(TABLES) == set(FIGURES)


@pytest.mark.parametrize("name", FIGURES)
def test_a_figure_can_be_read(name: str) -> None:
    """Axes are named, nothing is smaller than 6 points, the legend is beside the data, and all is inside the figure."""
    with styled():
        ax = axes(name)
        figure = ax.get_figure()
        fit(figure, ax)
        figure.draw_without_rendering()
        assert ax.get_xlabel() or name in ("gains", "theory")
        assert ax.get_ylabel() or ax.get_yticklabels()
        texts = [text for text in figure.findobj(Text) if text.get_text() and text.get_visible()]
        assert min(text.get_fontsize() for text in texts) >= 6
        legend = ax.get_legend()
        if legend is not None:
            assert legend.get_window_extent().y0 >= ax.get_window_extent().y1 - 1
            labels = [text.get_text() for text in legend.get_texts()]
            assert len(set(labels)) == len(labels) > 0
        drawn = figure.get_tightbbox()
        assert drawn.x0 >= -0.02
        assert drawn.y0 >= -0.02
        assert drawn.x1 <= figure.get_figwidth() + 0.02
        assert drawn.y1 <= figure.get_figheight() + 0.02
        assert figure.get_figwidth() <= WIDE


@pytest.mark.parametrize("name", FIGURES)
def test_equal_tables_give_equal_files_whatever_the_caller_has_set(name: str, tmp_path: Path) -> None:
    kind, data = FIGURES[name], table(name)
    first = draw(kind, data, tmp_path / "a", ("pdf", "svg"), "a title")
    with mpl.rc_context({"font.size": 30, "axes.facecolor": "yellow", "xtick.major.size": 9}):
        mine = dict(mpl.rcParams)
        second = draw(kind, data, tmp_path / "b", ("pdf", "svg"), "a title")
        assert dict(mpl.rcParams) == mine
    for one, other in zip(first, second, strict=True):
        assert one.read_bytes() == other.read_bytes()
    pdf, svg = (path.read_bytes() for path in first)
    assert b"/FontFile2" in pdf  # TrueType, embedded
    assert b"/Type3" not in pdf
    assert b"CreationDate" not in pdf
    assert b"<dc:date>" not in svg


def lines(ax: Any) -> dict[str, list[float]]:
    return {line.get_label(): np.asarray(line.get_ydata(), float).tolist() for line in ax.lines}


@pytest.mark.parametrize("name", FIGURES)
def test_a_title_of_many_lines_leaves_room_for_the_axes(name: str, tmp_path: Path) -> None:
    """Warnings are errors: matplotlib gives up its layout where nothing is left beside title and legend."""
    title = " ".join(["a-long-word-of-the-name-of-a-target"] * 12)
    (path,) = draw(FIGURES[name], table(name), tmp_path / "f", ["png"], title)
    assert path.read_bytes().startswith(b"\x89PNG")


def test_what_is_drawn_is_in_the_table() -> None:
    curve = lines(axes("throughput"))
    assert curve["static, replayed"] == [10.0, 11.0, 12.0, 13.0]
    assert curve["static, measured"] == [12.0]
    assert curve["oracle"] == [20.0]
    assert lines(axes("survival"))["trace"] == pytest.approx([1.0, 0.8, 0.64, 0.512, 0.4096])
    faint = lines(axes("hazard"))["trace"]
    assert faint[:3] == [0.2, 0.2, 0.2]
    assert np.isnan(faint[3])  # of 25 drafts
    assert lines(axes("regret"))["lambda"] == [0.0, 1.0, 2.0, 3.0, 4.0]
    assert lines(axes("latency"))["verification (token positions)"] == [10.0, 20.0]
    assert lines(axes("residuals"))["drafting (passes)"] == pytest.approx([0.0, 100.0])
    points = lines(axes("predictions"))
    assert points["DFlash"] == [0.9, 1.1]
    (diagonal,) = [line for line in axes("predictions").lines if line.get_linestyle() == ":"]
    assert np.array_equal(diagonal.get_xdata(), diagonal.get_ydata())
    assert [bar.get_width() for bar in axes("speedups").patches] == [1.1, 1.1]
    assert len({bar.get_facecolor() for bar in axes("speedups").patches}) == 2
    assert "calibration error 0.100" in axes("reliability").texts[0].get_text()


@given(st.lists(st.sampled_from(["plain", "g4", "g4:max=4", LONG, "static:length=3", "arm:index=2"]), max_size=6))
def test_short_names_tell_controllers_apart(controllers: list[str]) -> None:
    shown = names(controllers)
    assert set(shown) == set(controllers)
    assert len(set(shown.values())) == len(shown)


# --- the command ---------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def replayed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a replay of two small traces, of so few requests that no theorem takes long."""
    folder = tmp_path_factory.mktemp("figures")
    traces = [make_trace(folder / f"{name}.parquet", requests=3, positions=12) for name in ("one", "two")]
    words = ("-c", "plain", "-c", "static:length=3", "-c", "libraspec:max=4", "-c", "libraspec:max=8")
    assert status(replay, *traces, *words, "--out", folder / "run") == 0
    return folder / "run"


def test_all_figures_of_a_replay(replayed: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    capsys.readouterr()
    chosen = [word for name in FIGURES if name != "theory" for word in ("--figure", name)]
    assert status(main, replayed, "--out", tmp_path / "a" / "b", "--format", "png,svg", *chosen) == 0
    said = capsys.readouterr()
    files = sorted(path.name for path in (tmp_path / "a" / "b").iterdir())
    assert sorted(Path(line).name for line in said.out.splitlines()) == files
    drawn = {name.partition(".")[0] for name in files}
    one = {"lengths", "breakdown", "depths", "reliability", "survival", "hazard", "throughput", "speedups"}
    one |= {"acceptance", "regret", "max-lengths"}
    assert drawn == {"gains"} | {f"run-{trace}-{name}" for trace in ("one", "two") for name in one}
    assert files == sorted(f"{name}.{form}" for name in drawn for form in ("png", "svg"))
    assert "no pulls of run/one: none of its controllers chose among arms" in said.err
    assert "no latency of run/two: its latency model does not say what it was fitted to" in said.err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--format", "gif"), "'gif' is no format; allowed: pdf, svg, png"),
        (("--figure", "nothing"), "'nothing' is not one of"),
        (("--figure", "pulls"), "nothing to draw"),
    ],
)
def test_what_cannot_be_drawn_is_told(
    replayed: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], words: tuple[str, ...], said: str
) -> None:
    assert status(main, replayed, "--out", tmp_path / "out", *words) == 2
    assert said in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_a_theory_document_beside_runs(replayed: Path, tmp_path: Path) -> None:
    document = tmp_path / "checked.json"
    command = [sys.executable, "-m", "specsim.theory", "check", str(replayed.parent / "one.parquet"), "--json"]
    done = subprocess.run([*command, "--bootstrap", "100"], cwd=ROOT, capture_output=True, text=True, check=True)
    document.write_text(done.stdout)
    assert status(main, document, "--out", tmp_path / "out", "--figure", "theory") == 0
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["checked-theory-0.pdf"]


def test_figures_are_drawn_from_data_files_alone(replayed: Path, tmp_path: Path) -> None:
    """Neither torch nor `real` is loaded, by the command itself."""
    code = (
        "import runpy, sys\n"
        "sys.argv = ['figures', sys.argv[1], '--out', sys.argv[2], '--figure=gains', '--figure=throughput']\n"
        "try:\n"
        "    runpy.run_module('analysis.figures', run_name='__main__')\n"
        "except SystemExit as left:\n"
        "    assert not left.code, left.code\n"
        "found = {name.partition('.')[0] for name in sys.modules} & {'torch', 'transformers', 'lightning', 'real'}\n"
        "assert 'matplotlib' in sys.modules and 'specsim.engine' in sys.modules\n"
        "sys.exit(f'loaded: {found}' if found else 0)\n"
    )
    command = [sys.executable, "-W", "error", "-c", code, str(replayed), str(tmp_path / "out")]
    done = subprocess.run(command, cwd=ROOT, env={**os.environ}, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "out" / "gains.pdf").is_file()


def test_long_names_are_cut_and_stay_apart() -> None:
    one, two, short = "n" * 300, "n" * 301, "static:length=3"
    shown = names([one, two, short, one])
    assert len(set(shown.values())) == 3
    assert max(map(len, shown.values())) < 50
    assert shown[short] == "static 3"


def test_equal_controllers_are_both_drawn(tmp_path: Path) -> None:
    rows = [row for row in throughput("static") if row["kind"] == "static"]
    marks = [{**rows[0], "kind": "controller", "controller": f"static:length=3{end}"} for end in ("", "#2")]
    table = pa.Table.from_pylist([*rows, *marks])
    assert draw(FIGURES["throughput"], table, tmp_path / "t", ("pdf",), None) == [tmp_path / "t.pdf"]
