"""Tables: every number is that of the rounds, rounded at the end only; escaping; what cannot be made is refused."""

from __future__ import annotations

import csv
import io
import json
import re
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from analysis.arm_tables import sections_of
from analysis.grid import Column, Table, comma_separated, latex, latex_text, markdown
from analysis.paper_tables import tables_of
from analysis.runs import read_runs
from analysis.tables import FORMATS, choose, main
from specsim.errors import ConfigError
from specsim.replay import main as replay
from specsim.roundlog import read_round_log
from tests.analysis_logs import LENGTH, PLAIN, RULE, real_folder, status, validation_folder
from tests.conftest import ROOT
from tests.test_analysis_paper import ROWS, document

STATIC = "static:length=1"


def decodes(seed: int = 0, requests: int = 5) -> dict[tuple[int, str], list[tuple[int, int, float]]]:
    """Rounds at random; plain decoding first."""
    rng = np.random.default_rng(seed)
    found = {}
    for name in (PLAIN, STATIC, LENGTH, RULE):
        for request in range(requests):
            submitted = np.zeros(9, int) if name == PLAIN else rng.integers(0, 5, 4)
            accepted = np.minimum(rng.integers(0, 5, submitted.size), submitted)
            seconds = rng.uniform(0.05, 0.2, submitted.size)
            found[request, name] = list(zip(submitted.tolist(), accepted.tolist(), seconds.tolist(), strict=True))
    return found


def numbers(rounds: Path, plain: str, *, scaled: bool) -> dict[str, dict[str, float]]:
    """What a table should say of every run of a log, by numpy from its rounds.

    Args:
        rounds: the log.
        plain: the run that is plain decoding.
        scaled: whether plain decoding's seconds are for as many tokens, prompt by prompt, as in real runs.
    """
    _, log = read_round_log(rounds)
    log = {name: values[~log["warmup"].astype(bool)] for name, values in log.items()}
    sums: dict[str, dict[int, tuple[float, float]]] = defaultdict(dict)
    found: dict[str, dict[str, float]] = {}
    for run in dict.fromkeys(log["run_id"].tolist()):
        for request in np.unique(log["request"]):
            mine = (log["run_id"] == run) & (log["request"] == request)
            sums[run][int(request)] = (log["emitted_len"][mine].sum(), log["round_s"][mine].sum())
    for run in sums:
        mine = log["run_id"] == run
        tokens, seconds = (np.array([pair[place] for pair in sums[run].values()]) for place in (0, 1))
        base_tokens, base_s = (np.array([sums[plain][r][place] for r in sums[run]]) for place in (0, 1))
        plain_s = base_s * tokens / base_tokens if scaled else base_s
        submitted, accepted = log["submitted_len"][mine].sum(), log["accepted_len"][mine].sum()
        found[run] = {
            "tokens": tokens.sum(),
            "rounds": mine.sum(),
            "time_s": seconds.sum(),
            "plain_s": plain_s.sum(),
            "speedup": plain_s.sum() / seconds.sum(),
            "tau": tokens.sum() / mine.sum(),
            "tokens_per_s": tokens.sum() / seconds.sum(),
            "submitted_len": submitted / mine.sum(),
            "acceptance_rate": accepted / submitted if submitted else np.nan,
        }
        draws = np.random.default_rng(0).integers(0, tokens.size, (1000, tokens.size))
        ratios = plain_s[draws].sum(axis=1) / seconds[draws].sum(axis=1)
        found[run]["speedup_low"], found[run]["speedup_high"] = np.percentile(ratios, [2.5, 97.5])
    return found


def printed(capsys: pytest.CaptureFixture[str], *words: str | Path) -> str:
    capsys.readouterr()
    assert status(main, *words) == 0
    return capsys.readouterr().out


def check_csv(text: str, expected: dict[str, dict[str, float]], leave_out: tuple[str, ...] = ()) -> None:
    rows = list(csv.DictReader(io.StringIO(text)))
    assert [row["controller"] for row in rows] == list(expected)
    for row in rows:
        for key, value in expected[row["controller"]].items():
            if key in leave_out:
                continue
            if np.isnan(value):
                assert row[key] == ""
                continue
            assert float(row[key]) == pytest.approx(value, rel=1e-9), (row["controller"], key)
            assert row[key] in (repr(float(row[key])), str(int(float(row[key]))))


def check_markdown(text: str, expected: dict[str, dict[str, float]]) -> None:
    lines = {
        cells[0]: cells for cells in (line.strip("| ").split(" | ") for line in text.splitlines() if " | " in line)
    }
    for name, numbers_ in expected.items():
        cells = lines[name]
        assert cells[1] == "{speedup:.3f} [{speedup_low:.3f}, {speedup_high:.3f}]".format(**numbers_)
        rate = numbers_["acceptance_rate"]
        shown = ["{tau:.2f}", "{tokens_per_s:.1f}", "{submitted_len:.2f}"]
        assert cells[2:5] == [form.format(**numbers_) for form in shown]
        assert cells[5] == ("-" if np.isnan(rate) else f"{rate:.1%}")


def test_real_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = real_folder(tmp_path / "run", decodes())
    expected = numbers(folder / "rounds.parquet", PLAIN, scaled=True)
    text = printed(capsys, folder, "--format", "csv")
    check_csv(text, expected)
    best = max(expected[name]["speedup"] for name in (STATIC, LENGTH))
    for row in csv.DictReader(io.StringIO(text)):
        assert float(row["vs_best_static"]) == pytest.approx(expected[row["controller"]]["speedup"] / best)
        assert row["privileged"] == "false"
    check_markdown(printed(capsys, folder), expected)


def test_validation(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = validation_folder(tmp_path / "run", decodes(1))
    expected = numbers(folder / "rounds.parquet", PLAIN, scaled=True)
    for values in expected.values():
        values |= {"speedup_low": 0.9, "speedup_high": 1.4, "predicted": 1.1 * values["speedup"], "error": 0.1}
    text = printed(capsys, folder, "--format", "csv")
    check_csv(text, expected)
    shown = printed(capsys, folder)
    check_markdown(shown, expected)
    assert all(line.endswith("| +10.0% |") for line in shown.splitlines() if line.startswith(("| plain", "| static")))


def test_replay(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trace = ROOT / "traces" / "humaneval-prompt-lookup.parquet"
    lengths = [f"static:length={length}" for length in range(25)]
    words = [word for name in (PLAIN, *lengths, "libraspec", "oracle") for word in ("-c", name)]
    assert status(replay, trace, *words, "--out", tmp_path / "out") == 0
    text = printed(capsys, tmp_path / "out", "--format", "csv")
    (run,) = read_runs([tmp_path / "out"]).runs
    found = numbers(tmp_path / "out" / "rounds.parquet", run.run_ids[PLAIN], scaled=False)
    expected = {name: found[run.run_ids[name]] for name in run.run_ids}
    check_csv(text, expected)
    best = max(expected[name]["speedup"] for name in lengths)  # all there are: the trace holds 24 tokens
    for row in csv.DictReader(io.StringIO(text)):
        assert float(row["vs_best_static"]) == pytest.approx(expected[row["controller"]]["speedup"] / best)
    shown = printed(capsys, tmp_path / "out")
    check_markdown(shown, {name + " *" * (name == "oracle"): values for name, values in expected.items()})
    assert "Rows with * know" in shown


def cells_of(row: str) -> list[str]:
    return [cell.strip() for cell in row.replace("\\\\", "").split(" & ")]


def test_latex_has_the_cells_of_markdown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = real_folder(tmp_path / "a_b&c", decodes())
    shown, text = printed(capsys, folder), printed(capsys, folder, "--format", "latex")
    rows = [line.strip("| ").split(" | ") for line in shown.splitlines() if line.startswith("| ")]
    body = text.partition("\\toprule\n")[2].partition("\n\\bottomrule")[0].split("\n")
    assert body.pop(1) == "\\midrule"
    del rows[1]
    assert [[cell.replace("\\", "") for cell in cells_of(line)] for line in body] == rows
    assert r"\caption{a\_b\&c; t; d; lab; T = 0}" in text
    assert text.count("\\begin{tabular}{lrrrrrr}") == text.count("\\end{tabular}") == 1


@given(st.text(max_size=30))
def test_latex_text_leaves_nothing_special(text: str) -> None:
    escaped = latex_text(text)
    plain = re.sub(r"\\(text[a-z]+\{\}|[&%$#_{}])", "", escaped).removeprefix("{}")
    assert not set(plain) & set("\\&%$#_{}~^<>|\n")


@pytest.mark.parametrize("text", ["* best", "[1.0, 2.0]"])
def test_no_cell_is_an_option_of_the_line_break_before_it(text: str) -> None:
    assert latex_text(text) == "{}" + text


@given(st.text(st.characters(exclude_categories=["Cs", "Cc"]), max_size=20), st.floats(allow_nan=False, width=64))
def test_csv_gives_back_what_went_in(text: str, value: float) -> None:
    columns = [
        Column(name="text", shown=str, values={"text": lambda row: row["text"]}),
        Column(name="value", shown=str, values={"value": lambda row: row["value"], "none": lambda row: None}),
    ]
    table = Table(title="t", place={"of": text}, columns=columns, rows=[{"text": text, "value": np.float64(value)}])
    (row,) = csv.DictReader(io.StringIO(comma_separated([table]), newline=""))
    assert (row["of"], row["text"], float(row["value"]), row["none"]) == (text, text, value, "")


def test_markdown_cells_keep_to_their_column() -> None:
    column = Column(name="a|b", shown=lambda row: row["x"], values={}, left=True)
    table = Table(title="t", place={}, columns=[column], rows=[{"x": "one|two\nthree"}])
    assert markdown([table]) == "| a\\|b |\n| --- |\n| one\\|two<br>three |\n"


def paper_folder(folder: Path, experiment: str, rows: list[dict[str, Any]]) -> Path:
    folder.mkdir()
    (folder / "results.json").write_text(json.dumps(document(experiment, rows)))
    return folder


def full(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Rows with all that a table shows, whose numbers are all different."""
    found = []
    for place, row in enumerate(rows):
        eta = row["eta"] + place / 64
        fresh = {"eta_fresh": eta - 0.3, "eta_fresh_ci95": [eta - 0.4, eta - 0.2], "tau_fresh": row["tau"] / 2}
        more = {"eta": eta, "eta_ci95": [eta - 0.1, eta + 0.1], "tokens": 100 + place, "loop_share": 0.25}
        found.append(row | more | fresh | {"predicted": eta * 1.25, "error": 0.25})
    return found


def test_tables_of_a_paper(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = full(ROWS)
    folder = paper_folder(tmp_path / "t", "table1", rows)
    shown = printed(capsys, folder, "--table", "table1")
    assert shown.startswith("# table1\n\n## ")
    records = list(csv.DictReader(io.StringIO(printed(capsys, folder, "--format", "csv"))))
    for part, key in (("measured", "eta"), ("without looping text", "eta_fresh"), ("predicted", "predicted")):
        for record in (one for one in records if one["part"] == part):
            places = ("target", "temperature", "method", "label")
            mine = [row for row in rows if all(str(row[name]) == record[name] for name in places)]
            assert mine
            etas = []
            for dataset in dict.fromkeys(row["dataset"] for row in mine):
                best = max((row for row in mine if row["dataset"] == dataset), key=lambda row: row["eta"])
                name = f"{dataset} predicted" if part == "predicted" else f"{dataset} eta"
                assert record[name] == repr(best[key])
                etas.append(best[key])
                assert f"{best[key]:.2f}" in shown
            if record.get(f"mean {key}"):
                assert float(record[f"mean {key}"]) == pytest.approx(sum(etas) / len(etas))


def test_latex_groups_the_columns_of_a_dataset() -> None:
    text = latex(tables_of("table1", full(ROWS)))
    datasets = list(dict.fromkeys(row["dataset"] for row in ROWS))
    assert rf"\multicolumn{{2}}{{c}}{{{latex_text(datasets[0])}}}" in text
    assert r"\cmidrule(lr){2-3}" in text


def test_a_latex_table_has_a_section_for_every_target_and_temperature() -> None:
    other = [row | {"target": "small", "temperature": 1} for row in full(ROWS)]
    text = latex(tables_of("table1", [*full(ROWS), *other]))
    places = dict.fromkeys((row["target"], row["temperature"]) for row in [*ROWS, *other])
    assert text.count(r"\begin{table}") == 3
    for target, temperature in places:
        assert text.count(rf"\textit{{{target}, T = {temperature}}}") == 3
    captions = re.findall(r"\\caption\{(.*)\}", text)
    assert captions == ["table1", "table1, without looping text", "table1, predicted"]


def test_variants_of_sp2ec_side_by_side() -> None:
    base = full(ROWS)[0] | {"target": "t", "dataset": "d", "temperature": 0}
    etas = {("A", "SP2ec"): 1.25, ("A", "SP2ec, kept"): 1.5, ("B", "SP2ec"): 1.0, ("B", "UCBSpec"): 2.0}
    rows = [base | {"method": method, "label": label, "eta": eta} for (method, label), eta in etas.items()]
    (table,) = sections_of("sp2ec-reset", {"rows": rows})
    text = markdown([table])
    assert "| place | method | SP2ec | SP2ec, kept |" in text
    assert "| t, d, T = 0 | A | 1.25 | 1.50 (+0.25) |" in text
    assert "| t, d, T = 0 | B | 1.00 |  |" in text
    records = list(csv.DictReader(io.StringIO(comma_separated([table]))))
    assert [record["SP2ec, kept gain"] for record in records] == ["0.25", ""]
    assert sections_of("sp2ec-reset", {"rows": rows[2:]}) == []
    assert sections_of("table1", {"rows": ROWS}) == []


def test_comparisons_on_the_same_prompts() -> None:
    row = {
        **{"target": "t", "dataset": "d", "temperature": 0, "method": "m", "label": "lambda", "against": "static"},
        **{"own_controller": "lambda", "other_controller": "static:length=3", "ratio": 1.0666666, "ci95": [1.0, 1.1]},
        "at_least_as_fast": True,
    }
    (table,) = sections_of("table1", {"comparisons": [row]})
    cells = "| m | lambda | lambda | static | static:length=3 | 1.067 [1.000, 1.100] | yes |"
    assert cells in markdown([table])
    (record,) = csv.DictReader(io.StringIO(comma_separated([table])))
    assert (record["ratio"], record["ratio_high"], record["at_least_as_fast"]) == ("1.0666666", "1.1", "true")


def test_sections_keep_their_numbers() -> None:
    regret = {
        **{"target": "t", "dataset": "d", "temperature": 0, "method": "m", "label": "SP2ec", "controller": "sp2ec"},
        **{"arm": None, "against": "prompt", "regret_s": 0.123456789, "regret_s_ci95": [0.1, 0.2]},
        **{"relative": 0.05, "relative_ci95": None, "predicted_arm": None, "predicted_s": None},
        **{"predicted_s_ci95": None, "predicted": None, "predicted_ci95": None},
    }
    tables = sections_of("sp2ec-regret", {"regrets": [regret], "orders": []})
    (row,) = csv.DictReader(io.StringIO(comma_separated(tables)))
    assert (row["regret_s"], row["regret_s_low"], row["relative_low"]) == ("0.123456789", "0.1", "")
    assert "| each prompt | 123.5 [100.0, 200.0] | 5.0% | - | - | - |" in markdown(tables)


def test_which_tables(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = real_folder(tmp_path / "run", decodes())
    paper = paper_folder(tmp_path / "paper", "table2", full(ROWS))
    both = printed(capsys, run, paper)
    assert both.startswith("# run; t; d; lab; T = 0\n")
    assert "# table2" in both
    assert "# table2" not in printed(capsys, run, paper, "--table", "results")
    assert "run" not in printed(capsys, run, paper, "--table", "table2").splitlines()[0]
    assert status(main, run, paper, "--table", "table3") == 2
    assert "--table table3: not among what was read; allowed: results, table2" in capsys.readouterr().err
    out = tmp_path / "t.tex"
    printed(capsys, run, "--format", "latex", "--out", out)
    assert out.read_text() == FORMATS["latex"](choose(read_runs([run]), None))
    assert status(main, run, "--out", tmp_path / "none" / "t.md") == 2


def test_runs_without_results_are_told_and_leave_no_table(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = real_folder(tmp_path / "run", decodes())
    about = json.loads((folder / "run.json").read_text())
    (folder / "run.json").write_text(json.dumps(about | {"finished": False}))
    other = real_folder(tmp_path / "other", decodes())
    assert status(main, folder, other) == 0
    found = capsys.readouterr()
    assert "not finished: 0 of 3 prompts are kept" in found.err
    assert found.out.count("| plain |") == 1
    assert status(main, folder) == 2
    assert "no results yet" in capsys.readouterr().err


def test_what_a_paper_table_lacks_is_named(tmp_path: Path) -> None:
    rows = full(ROWS)
    del rows[1]["loop_share"]
    loaded = read_runs([paper_folder(tmp_path / "t", "table1", rows)])
    with pytest.raises(ConfigError, match=r"results\.json: its tables need what it lacks \(KeyError\('loop_share'\)\)"):
        choose(loaded, None)
    (tmp_path / "regret.json").write_text('{"schema": "specsim.regret/1"}')
    with pytest.raises(ConfigError, match="none of these files has a table"):
        choose(read_runs([tmp_path / "regret.json"]), None)
