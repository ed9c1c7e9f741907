"""Comparing controllers and runs: ratio and interval by hand, when requests are paired, and what is said."""

from __future__ import annotations

import dataclasses
import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from analysis import paired
from analysis.compare import Comparison, compare, main, sides_of
from analysis.paired import interval_of, ratio_of, requests_needed
from analysis.runs import read_runs
from specsim.errors import ConfigError
from specsim.replay import main as replay
from tests.analysis_logs import LENGTH, PLAIN, RULE, real_folder, status, validation_folder
from tests.conftest import ROOT
from tests.test_analysis_tables import decodes

CONFIG = {"target": "t", "drafter": "d", "dataset": "lab", "temperature": 0.0, "requests": 5, "prompts_sha256": "0a"}
sums = st.lists(st.tuples(st.integers(1, 50), st.floats(0.01, 10)), min_size=2, max_size=8)


def told(capsys: pytest.CaptureFixture[str], *words: str | Path) -> list[str]:
    capsys.readouterr()
    assert status(main, *words) == 0
    return capsys.readouterr().out.splitlines()


def as_json(capsys: pytest.CaptureFixture[str], *words: str | Path) -> list[dict[str, Any]]:
    document = json.loads("\n".join(told(capsys, *words, "--json")))
    assert document["schema"] == "specsim.compare/1"
    return document["comparisons"]


def by_hand(folder: Path, name: str) -> np.ndarray:
    """float64[B, 2] tokens and seconds of a controller, from the decodes a folder was made of."""
    rows = [
        (r, sum(one[1] + 1 for one in rounds), sum(one[2] for one in rounds))
        for (r, c), rounds in DECODES.items()
        if c == name
    ]
    return np.array(sorted(rows), float)[:, 1:]


DECODES = decodes(3)


def test_two_controllers_of_one_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = real_folder(tmp_path / "run", DECODES)
    (found,) = as_json(capsys, folder, "--controller", RULE, "--against", "static:length=3")
    one, other = by_hand(folder, RULE), by_hand(folder, LENGTH)
    throughput = [side[:, 0].sum() / side[:, 1].sum() for side in (one, other)]
    assert found["ratio"] == pytest.approx(throughput[0] / throughput[1])
    assert [found[who]["tokens_per_s"] for who in ("one", "other")] == pytest.approx(throughput)
    draws = np.random.default_rng(0).integers(0, 5, (2000, 5))
    drawn = [side[draws].sum(axis=1) for side in (one, other)]
    ratios = drawn[0][:, 0] / drawn[0][:, 1] / (drawn[1][:, 0] / drawn[1][:, 1])
    assert found["ci95"] == pytest.approx(np.percentile(ratios, [2.5, 97.5]).tolist())
    assert (found["paired"], found["how"], found["warnings"]) == (True, "both are of one run", [])


def test_what_is_said_of_a_clear_difference(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    fast = {
        (r, c): [(s, a, t / (1.25 if c == RULE else 1)) for s, a, t in rounds] for (r, c), rounds in DECODES.items()
    }
    fast |= {(r, LENGTH): DECODES[r, RULE] for r in range(5)}
    folder = real_folder(tmp_path / "run", fast)
    expected = f"{RULE} is faster than {LENGTH} by 25.0 % [25.0, 25.0]"
    for words in ((RULE, LENGTH), (LENGTH, RULE)):
        lines = told(capsys, folder, "--controller", words[0], "--against", words[1])
        assert lines == [expected, "    paired: both are of one run"]
    (found,) = as_json(capsys, folder, "--controller", LENGTH, "--against", RULE)
    assert (found["verdict"], found["requests_needed"]) == ("slower", None)
    assert found["ratio"] == pytest.approx(0.8)
    lines = told(capsys, folder, "--controller", RULE, "--against", RULE)
    assert "the first has 0.0 % [0.0, 0.0] more throughput" in lines[0]
    assert "more requests than can be had" in lines[0]


def test_no_difference_names_the_requests_it_would_take(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rng = np.random.default_rng(1)
    noise = {
        (request, name): [(3, 2, float(seconds)) for seconds in rng.uniform(0.05, 0.3, 3)]
        for name in (PLAIN, LENGTH, RULE)
        for request in range(12)
    }
    folder = real_folder(tmp_path / "run", noise)
    (found,) = as_json(capsys, folder, "--controller", RULE, "--against", LENGTH)
    assert found["verdict"] == "no difference"
    assert found["statement"].startswith(f"no difference can be told between {RULE} and {LENGTH}: the first has ")
    assert "over 12 requests; about " in found["statement"]
    assert found["requests_needed"] > 12


def test_requests_needed_are_those_at_which_four_of_five_intervals_leave_out_one() -> None:
    rng = np.random.default_rng(5)

    def sample(requests: int) -> tuple[np.ndarray, np.ndarray]:
        seconds = rng.lognormal(0, 0.3, (2, requests))
        return np.stack([np.full(requests, 1.05), seconds[0]], axis=1), np.stack(
            [np.ones(requests), seconds[1]], axis=1
        )

    one, other = sample(4000)
    ci95 = interval_of(one, other, seed=0)
    assert ci95 is not None
    # Of the true ratio, so that only the interval's width is what was measured.
    needed = requests_needed(1.05, (1.05 * ci95[0] / ratio_of(one, other), 1.05 * ci95[1] / ratio_of(one, other)), 4000)
    assert needed is not None
    seen = 0
    for _ in range(200):
        interval = interval_of(*sample(needed), seed=0)
        assert interval is not None
        seen += interval[0] > 1
    assert 0.7 < seen / 200 < 0.9


@given(sums, sums, st.integers(0, 5))
def test_either_may_be_the_first(a: list, b: list, seed: int) -> None:
    size = min(len(a), len(b))
    one, other = np.array(a[:size], float), np.array(b[:size], float)
    assert ratio_of(one, other) * ratio_of(other, one) == pytest.approx(1.0)
    same = interval_of(one, one, seed=seed)
    assert same == pytest.approx((1.0, 1.0))


@given(sums)
def test_a_factor_on_every_request_is_the_ratio(a: list) -> None:
    one = np.array(a, float)
    faster = one / np.array([1.0, 1.5])
    assert ratio_of(faster, one) == pytest.approx(1.5)
    assert interval_of(faster, one, seed=0) == pytest.approx((1.5, 1.5))


def test_blocks_of_resamples_are_the_same_draws(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(0)
    one, other = rng.uniform(1, 2, (2, 30, 2))
    whole = [interval_of(one, other, seed=1, paired=pair) for pair in (True, False)]
    monkeypatch.setattr(paired, "BLOCK", 100)
    assert [interval_of(one, other, seed=1, paired=pair) for pair in (True, False)] == whole
    assert interval_of(one[:1], other[:1], seed=1) is None
    assert interval_of(one[:1], other, seed=1, paired=False) is None


def two_runs(tmp_path: Path, first: dict[str, Any], second: dict[str, Any]) -> tuple[Path, Path]:
    return (
        real_folder(tmp_path / "a", DECODES, config=CONFIG | first),
        real_folder(tmp_path / "b", decodes(4), config=CONFIG | second),
    )


@pytest.mark.parametrize(
    ("first", "second", "pair", "how"),
    [
        ({}, {}, True, "the prompts' digests are the same"),
        ({}, {"prompts_sha256": "0b"}, False, "the prompts' digests differ"),
        ({}, {"target": "u"}, False, "the targets differ (t and u)"),
        ({"prompts_sha256": None}, {}, False, "neither a digest nor the ids"),
        ({"prompts_sha256": None, "dataset": "x"}, {}, False, "the datasets differ (x and lab)"),
        (
            {"prompts_sha256": None, "prompts": ["p", "q"]},
            {"prompts_sha256": None, "prompts": ["p", "q"], "dataset": {"data": "lab", "requests": 5, "context": None}},
            True,
            "the prompts' ids, of dataset lab, are the same",
        ),
        (
            {"prompts_sha256": None, "prompts": ["p"], "dataset": {"data": "lab", "context": 100}},
            {"prompts_sha256": None, "prompts": ["p"], "dataset": {"data": "lab", "context": None}},
            False,
            "the datasets differ",
        ),
        ({"prompts_sha256": None, "prompts": ["p"]}, {"prompts": ["q"]}, False, "ids, of dataset lab, differ"),
    ],
)
def test_prompts_of_two_runs(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    first: dict[str, Any],
    second: dict[str, Any],
    pair: bool,
    how: str,
) -> None:
    found = as_json(capsys, *two_runs(tmp_path, first, second))
    assert [one["one"]["controller"] for one in found] == list(dict.fromkeys(name for _, name in DECODES))
    for one in found:
        assert one["paired"] is pair
        assert how in one["how"]
        assert any("measured one after the other" in warning for warning in one["warnings"])
        assert any(warning.startswith("not paired: ") for warning in one["warnings"]) is not pair


def test_unpaired_draws_are_of_each_side(tmp_path: Path) -> None:
    one, other = (
        sides_of(run)[RULE] for run in read_runs(two_runs(tmp_path, {}, {"prompts_sha256": "0b", "dtype": "x"})).runs
    )
    found = compare(one, other)
    rng = np.random.default_rng(0)
    drawn = [side.sums[rng.integers(0, 5, (2000, 5))].sum(axis=1) for side in (one, other)]
    ratios = drawn[0][:, 0] / drawn[0][:, 1] / (drawn[1][:, 0] / drawn[1][:, 1])
    assert found.ci95 == pytest.approx(tuple(np.percentile(ratios, [2.5, 97.5])))


def test_conditions_that_differ_are_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folders = two_runs(tmp_path, {"dtype": "float32"}, {"dtype": "bfloat16", "temperature": 1.0})
    found = as_json(capsys, *folders, "--controller", RULE)
    assert found[0]["warnings"][1:] == ["temperature differs (0.0 and 1.0)", "dtype differs (float32 and bfloat16)"]


def test_other_numbers_of_requests_are_no_pairs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    one = real_folder(tmp_path / "a", DECODES, config=CONFIG)
    other = real_folder(tmp_path / "b", decodes(3, requests=4), config=CONFIG)
    (found,) = as_json(capsys, one, other, "--controller", RULE)
    assert not found["paired"]
    assert "different requests in the log" in found["how"]


def test_arms_made_before_the_first_round_are_counted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = real_folder(tmp_path / "run", DECODES)
    document = json.loads((folder / "run.json").read_text())
    row = next(row for row in document["results"] if row["controller"] == RULE)
    row["decode_s"] += 5.0
    (folder / "run.json").write_text(json.dumps(document))
    lines = []
    for (request, name), rounds in DECODES.items():
        seconds = sum(one[2] for one in rounds) + (1.0 if name == RULE else 0.0)
        lines.append(json.dumps({"request": request, "controller": name, "decode_s": seconds}))
    (folder / "outputs.jsonl").write_text("\n".join(lines))
    (found,) = as_json(capsys, folder, "--controller", RULE, "--against", LENGTH)
    assert found["one"]["time_s"] == pytest.approx(by_hand(folder, RULE)[:, 1].sum() + 5.0)


def test_one_request(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = real_folder(tmp_path / "run", decodes(3, requests=1))
    lines = told(capsys, folder, "--controller", RULE, "--against", LENGTH)
    assert "one request only, on which the ratio is " in lines[0]


def test_replays_of_one_trace(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    traces = [ROOT / "traces" / f"humaneval-{name}.parquet" for name in ("layer-skip", "prompt-lookup")]
    copies = [shutil.copy(trace, tmp_path / trace.name) for trace in traces]
    words = ["-c", "plain", "-c", "libraspec", "-c", "oracle"]
    assert status(replay, *traces, *words, "--out", tmp_path / "a") == 0
    assert status(replay, *copies, *words, "--out", tmp_path / "b") == 0
    lines = told(capsys, tmp_path / "a", tmp_path / "b", "--controller", "libraspec", "--against", "oracle")
    assert len([line for line in lines if line.startswith("oracle (b/humaneval-")]) == 2
    assert sum("are the same, byte for byte" in line for line in lines) == 2
    assert sum("caution: oracle knows what no deployed controller could" in line for line in lines) == 2
    lines = told(capsys, tmp_path / "a", "--controller", "libraspec", "--against", "plain")
    assert lines[0].startswith("a/humaneval-layer-skip: plain is faster than libraspec:alpha=2.0,block=10,max=24 by ")
    copies[0].unlink() if isinstance(copies[0], Path) else Path(copies[0]).unlink()
    lines = told(capsys, tmp_path / "a", tmp_path / "b", "--controller", "plain")
    assert "NOT paired: the trace of b/humaneval-layer-skip is not there any more" in lines[1]
    real = real_folder(tmp_path / "real", DECODES)
    assert status(replay, traces[0], "-c", "plain", "--out", tmp_path / "c") == 0
    lines = told(capsys, tmp_path / "c", real)
    assert "caution: one is modelled, the other measured" in lines[-1]


def test_the_page_shows_what_the_command_says(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trace = ROOT / "traces" / "humaneval-prompt-lookup.parquet"
    assert status(replay, trace, "--out", tmp_path / "prompt-lookup") == 0
    page = (ROOT / "docs" / "tables.md").read_text(encoding="utf-8")
    shown = page.partition("```text\n")[2].partition("```")[0]
    said = [
        line
        for name in ("g4", "libraspec")
        for line in told(capsys, tmp_path / "prompt-lookup", "--controller", name, "--against", "plain")
    ]
    assert " ".join(shown.split()) == " ".join(" ".join(said).split())


def test_validations(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    one, other = (validation_folder(tmp_path / name, DECODES) for name in "ab")
    found = as_json(capsys, one, other, "--controller", RULE)
    assert found[0]["ratio"] == 1.0
    assert "neither a digest nor the ids" in found[0]["how"]
    for folder in (one, other):
        (folder / "outputs.jsonl").write_text("\n".join(json.dumps({"request": r, "id": f"p{r}"}) for r in range(5)))
    assert as_json(capsys, one, other, "--controller", RULE)[0]["paired"] is True


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ((), "name two of its controllers with --controller and --against, or a second run; allowed: plain, static"),
        (("--controller", RULE), "name two of its controllers"),
        (("--controller", "lambda", "--against", PLAIN), "--controller lambda: no such controller in run; allowed: "),
        (("--controller", RULE, "--against", "static"), "--against static: several are meant in run"),
    ],
)
def test_who_is_meant(tmp_path: Path, capsys: pytest.CaptureFixture[str], words: tuple[str, ...], message: str) -> None:
    folder = real_folder(tmp_path / "run", DECODES)
    assert status(main, folder, *words) == 2
    assert message in capsys.readouterr().err


def test_folders_that_cannot_be_compared(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    one = real_folder(tmp_path / "a", DECODES)
    other = real_folder(
        tmp_path / "b", {(r, "x" if c == RULE else c): v for (r, c), v in DECODES.items() if c != LENGTH}
    )
    third = real_folder(tmp_path / "c", DECODES)
    changed = json.loads((third / "run.json").read_text()) | {"finished": False}
    (third / "run.json").write_text(json.dumps(changed))
    (tmp_path / "f.json").write_text('{"schema": "specsim.regret/1"}')
    for words, message in (
        ((one, other, third), "3 folders were named"),
        ((one, third), "c has no rounds to compare (not finished"),
        ((one, other, "--against", RULE), "--against: say which controller"),
        ((one, other, "--controller", RULE), "--against libraspec: no such controller in b"),
        ((tmp_path / "f.json",), "name one or two folders of runs"),
    ):
        assert status(main, *words) == 2
        assert message in capsys.readouterr().err


def test_a_comparison_is_its_numbers(tmp_path: Path) -> None:
    sides = sides_of(read_runs([real_folder(tmp_path / "run", DECODES)]).runs[0])
    found = compare(sides[RULE], sides[LENGTH])
    assert isinstance(found, Comparison)
    assert json.loads(json.dumps(found.to_json()))["statement"] == found.statement()


def test_a_log_of_another_run_is_named(tmp_path: Path) -> None:
    (run,) = read_runs([real_folder(tmp_path / "a", DECODES, config=CONFIG)]).runs
    other = dataclasses.replace(run, run_ids={name: f"other#{name}" for name in run.run_ids})
    with pytest.raises(ConfigError, match=r"rounds\.parquet: no round of plain, which the results of a have"):
        sides_of(other)
