"""Results and data files that are not sound: refused by name, and nothing is half-written."""

from __future__ import annotations

import errno
import json
import os
import re
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("matplotlib", reason="analysis/ needs the extra 'analysis'")

from analysis import claims
from analysis.figures.__main__ import main as draw
from analysis.results import read_results
from specsim.errors import ConfigError, run_cli
from tests.test_analysis_paper import DEPTHS, LENGTHS, ROWS, document, row


def status(main: Any, *words: str) -> int:
    with pytest.raises(SystemExit) as left:
        run_cli(main, list(words))
    return int(left.value.code or 0)


def saved(folder: Path, content: Any) -> Path:
    """A folder with these results."""
    folder.mkdir(parents=True)
    text = content if isinstance(content, bytes) else json.dumps(content).encode()
    (folder / "results.json").write_bytes(text)
    return folder


GOOD = document("table1", ROWS)
FIRST, SECOND = claims.PAPERS
PAGE = "".join(f"{paper.begin}\nold\n{paper.end}\n" for paper in claims.PAPERS)
DEVIATION = {**dict.fromkeys(("target", "dataset", "method", "drafter", "series"), "t"), "request": None, "mad": 1.0}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "no results there"),
        (b"\xff\xfe", "no results there"),
        (b"[" * 100_000, "no results there"),
        ([], "not the results of python -m real.paper"),
        ({"schema": "specsim.validation/1"}, "not the results of python -m real.paper"),
        ({key: value for key, value in GOOD.items() if key != "experiment"}, "experiment is missing"),
        (GOOD | {"experiment": ["table1"]}, "experiment is missing or no text"),
        *(
            ({key: value for key, value in GOOD.items() if key != name}, f"{name} is missing")
            for name in ("rows", "depths")
        ),
        (GOOD | {"rows": {}}, "rows is missing or no list"),
        (GOOD | {"rows": ["x"]}, r"rows\[0\] is no JSON object"),
        (GOOD | {"rows": [*ROWS, {}]}, r"rows\[5\]\.target is missing"),
        *(
            (GOOD | {"rows": [ROWS[0] | {"eta": value}]}, r"rows\[0\]\.eta is")
            for value in ("x", None, True, 0, -1, [])
        ),
        (GOOD | {"rows": [ROWS[0] | {"eta": float("nan")}]}, r"rows\[0\]\.eta is nan; allowed: a number above 0"),
        (GOOD | {"rows": [ROWS[0] | {"label": 3}]}, r"rows\[0\]\.label is 3; allowed: text"),
        (GOOD | {"rows": [ROWS[0] | {"temperature": 0.5}]}, r"rows\[0\]\.temperature is 0\.5"),
        (GOOD | {"deviations": [DEVIATION | {"request": "x"}]}, r"deviations\[0\]\.request is 'x'"),
        (GOOD | {"depths": [{"method": "M"}]}, r"depths\[0\]\.temperature is missing"),
    ],
)
def test_broken_results_are_named_and_nothing_is_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], content: Any, message: str
) -> None:
    page = tmp_path / "claims.md"
    page.write_text(PAGE)
    folders = [str(saved(tmp_path / "good", GOOD)), str(saved(tmp_path / "bad", content))]
    assert status(claims.main, *folders, f"--write={page}") == 2
    said = capsys.readouterr().err
    assert re.search(rf"^error: .*bad/results\.json: .*{message}", said)
    assert said.count("\n") == 1
    assert page.read_text() == PAGE


def test_folders_are_told_apart_by_name(tmp_path: Path) -> None:
    folders = [saved(tmp_path / place / "table1_lab", GOOD) for place in ("a", "b")]
    with pytest.raises(ConfigError, match=r"b/table1_lab: .*a/table1_lab has the same name"):
        read_results(folders)
    with pytest.raises(ConfigError, match="has the same name"):
        read_results([folders[0], tmp_path / "a" / "." / "table1_lab"])
    with pytest.raises(ConfigError, match=r"none/results\.json: no results there"):
        read_results([tmp_path / "none"])


@pytest.mark.parametrize(
    "content",
    [
        b"nothing",
        f"{FIRST.begin} only".encode(),
        f"{FIRST.end}{FIRST.begin}".encode(),
        f"{FIRST.begin}\nold\n{FIRST.end}\n{SECOND.begin}".encode(),
        b"\xff",
    ],
)
def test_a_page_without_a_place_for_the_table_stays_as_it_is(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], content: bytes
) -> None:
    page = tmp_path / "claims.md"
    page.write_bytes(content)
    assert status(claims.main, str(saved(tmp_path / "good", GOOD)), f"--write={page}") == 2
    assert f"{page}: " in capsys.readouterr().err
    assert page.read_bytes() == content


def test_a_page_that_cannot_be_written_stays_as_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = tmp_path / "claims.md"
    page.write_text(PAGE)
    folder = str(saved(tmp_path / "good", GOOD))

    def full(*_: Any) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", full)
        assert status(claims.main, folder, f"--write={page}") == 2
    assert page.read_text() == PAGE
    assert sorted(path.name for path in tmp_path.iterdir()) == ["claims.md", "good"]
    assert status(claims.main, folder, f"--write={tmp_path / 'none.md'}") == 2
    assert status(claims.main, f"--write={page}") == 2
    assert "old" in page.read_text()
    assert status(claims.main, folder, f"--write={page}") == 0
    assert "good: at most 1.75x" in page.read_text()


def test_names_do_not_break_the_table() -> None:
    rows = [row("static", 1.0, method="A|B"), row("static", 1.0, method="AR", drafter="eagle3:path=x")]
    lines = claims.table({"a|b": document("figure3", rows)}).split("\n")
    assert all(line.replace("\\|", "").count("|") == 6 for line in lines)


texts = st.sampled_from(["static", "LibraSpec", "fixed block", "lambda", "alpha=2.0", "alpha=x", "max=8", "max=", "M"])
numbers = st.floats(0.01, 100)
drawn_rows = st.lists(
    st.fixed_dictionaries(
        {
            **dict.fromkeys(("target", "dataset"), st.just("t")),
            "method": st.sampled_from(["FastdLLM", "DFlash"]),
            "drafter": st.sampled_from(["fastdllm:path=x", "eagle3:path=x"]),
            "label": texts,
            "controller": st.sampled_from(["static:length=8", "lambda"]),
            "temperature": st.integers(0, 1),
            **dict.fromkeys(("eta", "tau"), numbers),
            **dict.fromkeys(("draft_ms", "verify_ms", "rest_ms"), st.floats(0, 10)),
        }
    ),
    max_size=6,
)
drawn_deviations = st.lists(
    st.fixed_dictionaries(
        {
            **dict.fromkeys(("target", "dataset", "drafter"), st.just("t")),
            "method": st.sampled_from(["M", "N"]),
            "series": st.sampled_from(["static", "LibraSpec"]),
            "request": st.sampled_from([None, 0]),
            "mad": st.floats(0, 10),
        }
    ),
    max_size=4,
)
drawn_depths = st.lists(
    st.fixed_dictionaries(
        {"method": st.just("M"), "temperature": st.integers(0, 1), "depth": st.integers(1, 3), "ece": st.floats(0, 1)}
    ),
    max_size=4,
)


@given(rows=drawn_rows, deviations=drawn_deviations, depths=drawn_depths)
def test_every_judge_has_a_finding_or_none_for_any_sound_results(rows: Any, deviations: Any, depths: Any) -> None:
    one = {"rows": rows, "deviations": deviations, "depths": depths}
    for claim in claims.CLAIMS:
        found = claim.judge(one)
        assert found is None or (isinstance(found[0], str) and (found[1] is None or found[1] in (True, False)))


DRAWN = [{**dict.fromkeys(("target", "dataset", "method"), "t"), "temperature": 0, **one} for one in DEPTHS]


@pytest.mark.parametrize(
    ("table", "message"),
    [
        (b"", "cannot be read"),
        (b"PAR1 no parquet", "cannot be read"),
        ([], "column target is missing"),
        ([{key: value for key, value in one.items() if key != "ece"} for one in DRAWN], "column ece is missing"),
        ([one | {"ece": "x"} for one in DRAWN], "column ece is string; allowed: numbers"),
        ([one | {"method": 3} for one in DRAWN], "column method is int64; allowed: text"),
        ([DRAWN[0] | {"n": None}, *DRAWN[1:]], "column n has nulls"),
        ("empty", "has no rows"),
    ],
)
def test_broken_data_of_a_figure_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], table: Any, message: str
) -> None:
    file = saved(tmp_path / "figure4_lab", document("figure4", ROWS)) / "calibration.parquet"
    if isinstance(table, bytes):
        file.write_bytes(table)
    else:
        pq.write_table(pa.Table.from_pylist(DRAWN)[:0] if table == "empty" else pa.Table.from_pylist(table), file)
    assert status(draw, str(file.parent), f"--out={tmp_path / 'out'}") == 2
    said = capsys.readouterr().err
    assert said.startswith(f"error: {file}: {message}")
    assert said.count("\n") == 1
    assert [path.name for path in tmp_path.iterdir()] == ["figure4_lab"]


def test_lengths_need_their_deviations(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    place = dict.fromkeys(("target", "dataset", "method", "drafter"), "t")
    folder = saved(tmp_path / "figure2_lab", document("figure2", ROWS))
    pq.write_table(pa.Table.from_pylist([place | one for one in LENGTHS]), folder / "lengths.parquet")
    words = [str(folder), f"--out={tmp_path / 'out'}", "--format=png"]
    assert status(draw, *words) == 2
    assert "deviations.parquet: cannot be read" in capsys.readouterr().err
    other = [place | {"request": 0, "series": "static", "mad": 1.0}]
    pq.write_table(pa.Table.from_pylist(other), folder / "deviations.parquet")
    assert status(draw, *words) == 2
    assert "none of LibraSpec's" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()
    assert status(draw, *words, "--figure=gains") == 2
    assert "nothing to draw" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()
