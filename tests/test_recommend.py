"""`python -m analysis.recommend`: advice on worlds whose best choice is known, the document, the words."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from analysis.recommend.decision import LOSES, UNDECIDED, USE
from analysis.recommend.live import drafter_spelling, live_command
from analysis.recommend.outcome import Outcome, pool, study
from analysis.recommend.scenarios import UNKNOWN, scenarios_of, shifted
from analysis.recommend.seconds import Source
from analysis.recommend.words import interval, percent
from specsim.engine import replay
from specsim.latency import LatencyModel, load_latency
from specsim.schema import TraceMeta
from specsim.trace import open_trace, read_trace, write_trace
from tests.check_worlds import ARM_LATENCY, arm_trace
from tests.conftest import ROOT
from tests.recommend_tools import FEW, advise, affine, asked, cheap_trace, recommend, regimes_trace
from tests.replay_tools import assert_refused, make_trace
from tests.worlds import make_latency


def outcome_of(path: Path, names: tuple[str, ...] = FEW, latency: LatencyModel | None = None) -> Outcome:
    with open_trace(path) as reader:
        meta = reader.meta
    model = latency or LatencyModel.from_dict(meta.latency or {}, where="test")
    return study(
        Source(path=path, meta=meta, latency=model, measured_draft=True, max_requests=None, skip=frozenset(), seed=0),
        names,
    )


def speed(path: Path, spelling: str) -> float:
    """Speedup of one controller on a whole trace, by the engine alone."""
    meta, chunk = read_trace(path)
    result = replay(meta, [chunk], LatencyModel.from_dict(meta.latency or {}, where="test"), [spelling])
    return result.results[0]["speedup"]


# What to use, where it is known


def test_independent_acceptance_takes_the_best_static_length(tmp_path: Path) -> None:
    """Rows say nothing that the mean does not, so the simplest wins; its length and speedup follow from the formula."""
    found = advise(cheap_trace(tmp_path / "t.parquet"))
    d = np.arange(1, 9)
    expected = (1 - 0.8 ** (d + 1)) / 0.2 * 1.06 / (1.0 + 0.06 * (d + 1) + 0.04 * d)
    assert found["verdict"] == USE
    assert found["recommended"] == found["best_static"]
    length = int(found["recommended"].removeprefix("static:length="))
    assert expected[length - 1] > 0.97 * expected.max()
    low, high = found["speedup"]["ci95"]
    assert low < expected[length - 1] < high
    assert found["gain_over_best_static"]["value"] == 0.0
    assert found["robustness"]["holds"]


def test_expensive_drafts_are_not_made(tmp_path: Path) -> None:
    found = advise(cheap_trace(tmp_path / "t.parquet", latency=affine(c_s=0.06, b_s=1.0, draft_pass_s=1.5)))
    assert (found["verdict"], found["recommended"]) == (LOSES, "plain")
    assert found["robustness"]["holds"]
    assert all(row["speedup"]["ci95"][1] < 1.005 for row in found["table"])


def test_two_regimes_pay_adapting(tmp_path: Path) -> None:
    """Confidences tell regimes apart; the gain told is also found on fresh requests that took no part."""
    found = advise(regimes_trace(tmp_path / "t.parquet"))
    assert found["verdict"] == USE
    assert found["recommended"] != found["best_static"]
    low, high = found["gain_over_best_static"]["ci95"]
    assert low > 5
    fresh = regimes_trace(tmp_path / "fresh.parquet", seed=1, requests=400)
    gain = 100 * (speed(fresh, found["recommended"]) / speed(fresh, found["best_static"]) - 1)
    assert low - 1 < gain < high + 1


def test_too_close_to_call(tmp_path: Path) -> None:
    """Drafts that break even on average, few requests: not a loss, and how many requests would tell."""
    costs = affine(c_s=0.06, b_s=1.0, draft_pass_s=0.24)
    path = make_trace(
        tmp_path / "t.parquet",
        "markov",
        latency=costs,
        alpha=0.25,
        spread=2.5,
        persistence=0.99,
        requests=8,
        positions=60,
    )
    found = advise(path, "static")
    assert found["verdict"] == UNDECIDED
    assert "do not speculate yet" in recommend(path, *asked("static")).out
    wish = found["measure"][0]
    assert wish["what"] == "more requests"
    low, high = found["speedup"]["ci95"]
    half = (high - low) / 2 / found["speedup"]["value"]
    assert wish["requests"] == pytest.approx(8 * (half / abs(found["speedup"]["value"] - 1)) ** 2, abs=1)


def test_best_arm_is_found(tmp_path: Path) -> None:
    """One arm of three gives most tokens per second; the ends of the list would be advised to be extended."""
    path = tmp_path / "arms.parquet"
    meta, chunk = arm_trace(0, [1.0, 4.0, 4.2], [0.0015, 0.002, 0.004], requests=30)
    write_trace(path, meta, chunk)
    latency = tmp_path / "latency.json"
    latency.write_text(json.dumps(ARM_LATENCY.to_dict()))
    found = recommend(path, "--json", "--latency", latency, *asked("sp2ec", "ucb1")).document()["traces"][0]
    assert (found["verdict"], found["best_static"]) == (USE, "arm:index=1")
    assert found["recommended"] == "arm:index=1"
    up = next(row for row in found["robustness"]["scenarios"] if row["scenario"] == "drafting +10 %")
    seconds = 0.001 + 1.1 * 0.001  # the best arm's draft takes 1 ms, verification too
    assert up["speedup"]["value"] == pytest.approx(found["speedup"]["value"] * 0.002 / seconds, rel=1e-3)


def test_trees_are_advised_by_nodes(tmp_path: Path) -> None:
    path = make_trace(
        tmp_path / "t.parquet", latency=affine(c_s=0.01, b_s=1.0, draft_pass_s=0.2), alpha=0.5, top_k=4, block_len=8
    )
    found = advise(path, "static", "goodput")
    assert found["kind"] == "tree"
    assert found["verdict"] == USE


def test_unit_of_time_does_not_matter(tmp_path: Path) -> None:
    path, twice = regimes_trace(tmp_path / "t.parquet", requests=12), tmp_path / "twice.parquet"
    meta, chunk = read_trace(path)
    costs = affine(c_s=0.1, b_s=2.0, draft_pass_s=0.2)
    write_trace(twice, TraceMeta(**{**vars(meta), "latency": costs}), chunk)
    one, two = advise(path), advise(twice)
    for key in ("verdict", "recommended", "speedup", "gain_over_best_static", "table", "optimism"):
        assert one[key] == two[key], key


# The document and the words


def test_words_are_the_documents(tmp_path: Path) -> None:
    """Every number of the table and of the sentences stands in the document, rounded."""
    path = regimes_trace(tmp_path / "t.parquet", requests=12)
    found, out = advise(path), recommend(path, *asked(*FEW)).out
    flat = " ".join(out.split())
    speedup = found["speedup"]
    assert f"use {found['recommended']}: {speedup['value']:.2f}x plain decoding {interval(speedup)}" in flat
    assert f"{percent(found['gain_over_best_static'])} faster than the best static setting" in flat
    for row in found["table"]:
        line = next(line for line in out.splitlines() if line.startswith(f" {row['controller']} "))
        ends = [f"{end:z.1f}" for end in row["gain_over_best_static"]["ci95"]]
        for text in (f"{row['speedup']['value']:.3f}", interval(row["speedup"]), f"[{ends[0]}, {ends[1]}]"):
            assert text in line
        assert f"{row['speedup_same_requests']:.3f}" in line
    for row in found["robustness"]["scenarios"]:
        assert f"{row['scenario']}: {row['speedup']['value']:.2f}x {interval(row['speedup'])}" in flat
    for wish in found["measure"]:
        assert " ".join(wish["why"].split()) in flat
        assert wish["requests"] is None or f"about {wish['requests']} in all" in flat
    assert f"clairvoyant path {found['hindsight']['clairvoyant_speedup']:.3f}x" in flat
    optimism = found["optimism"]
    assert optimism["speedup_same_requests"] - speedup["value"] == pytest.approx(optimism["speedup_removed"])


def test_controllers_that_do_the_same_share_a_row(tmp_path: Path) -> None:
    """Without confidences to tell drafts apart, rules that differ in nothing are named once, below the table."""
    path = make_trace(tmp_path / "t.parquet", latency=affine(c_s=0.0, b_s=1.0), alpha=1.0, positions=81)
    out = recommend(path, *asked("threshold:tau=0.1", "threshold:tau=0", "goodput")).out
    assert "the same as static:length=8 here: " in out
    assert len([line for line in out.splitlines() if line.startswith((" static", " threshold", " goodput"))]) == 1


def test_keys_are_documented(tmp_path: Path) -> None:
    """Every key of the document stands in docs/recommend.md."""
    paths = [cheap_trace(tmp_path / f"{n}.parquet", seed=n, requests=8, positions=40) for n in range(2)]
    document = recommend(*paths, "--json", *asked("static")).document()
    page = (ROOT / "docs" / "recommend.md").read_text(encoding="utf-8")

    def keys(value: Any) -> set[str]:
        if isinstance(value, dict):
            return set(value) | {key for name, v in value.items() if name != "latency" for key in keys(v)}
        return {key for one in value for key in keys(one)} if isinstance(value, list) else set()

    assert document["schema"] == "specsim.recommendation/1"
    assert {key for key in keys(document) if f"`{key}`" not in page} == set()


def test_seed_decides(tmp_path: Path) -> None:
    path = regimes_trace(tmp_path / "t.parquet", requests=12)
    runs = [recommend(path, "--json", *asked(*FEW), "--seed", seed).out for seed in (3, 3, 4)]
    assert runs[0] == runs[1] != runs[2]


def test_hindsight_is_the_engines(tmp_path: Path) -> None:
    path = cheap_trace(tmp_path / "t.parquet")
    meta, chunk = read_trace(path)
    result = replay(meta, [chunk], LatencyModel.from_dict(meta.latency or {}, where="test"), ["plain"])
    assert result.static_s is not None
    best = 1 + int(result.static_s[1:].argmin())
    found = advise(path, "static")["hindsight"]
    assert found["best_static"] == f"static:length={best}"
    plain_s = result.results[0]["time_s"]
    assert found["best_static_speedup"] == pytest.approx(plain_s / result.static_s[best])


def test_live_command_names_what_was_recorded() -> None:
    """Read back by the drafters' own parser: the spelling says what the metadata say."""
    choose = pytest.importorskip("real.drafters.choose")
    for path in sorted((ROOT / "traces").glob("*.parquet")):
        with open_trace(path) as reader:
            meta = reader.meta
        command = live_command(meta, ["lambda", "static:length=3"])
        assert command is not None
        spec = choose.parse_drafter(drafter_spelling(meta), target=meta.extra["target_spec"], n_layers=30)
        assert spec.name == meta.drafter
        assert list(spec.skip_layers or []) == (meta.extra["skip_layers"] or [])
        assert spec.max_ngram_len == meta.extra["max_ngram_len"]
        assert f"--max-draft-len {meta.max_draft_len} " in command
        assert "--controllers lambda --controllers static:length=3" in command


def test_live_arms_are_numbered_the_other_way_round() -> None:
    meta, _ = arm_trace(0, [1.0, 2.0, 3.0], [0.0015, 0.002, 0.004], requests=4)
    extra = {"target_spec": "lab", "drafter_options": {"arms": "a.json"}}
    named = TraceMeta(**{**vars(meta), "drafter": "self", "dataset": "lab", "temperature": 0.7, "extra": extra})
    command = live_command(named, ["arm:index=0"])
    assert command is not None
    assert command.startswith("python -m real.run test --model.target lab --model.drafter self:arms=a.json")
    assert '["plain", "arm:index=2"]' in command
    assert "--data.seed 1 --model.temperature 0.7" in command
    assert "None" not in command


# What it rests on


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"requests": 8}, "few requests: all intervals rest on 8"),
        ({}, "recorded at temperature 1"),
        ({"latency": affine(c_s=0.06, b_s=1.0)}, "drafting costs nothing"),
    ],
)
def test_notes(tmp_path: Path, settings: dict[str, Any], words: str) -> None:
    found = advise(cheap_trace(tmp_path / "t.parquet", **settings), "static")
    assert any(words in note for note in found["notes"])


def test_notes_and_wishes_about_latency(tmp_path: Path) -> None:
    """Lengths beyond those measured, points the model misses, lengths between the points, drafts at the border."""
    costs = affine(c_s=0.001, b_s=1.0, draft_pass_s=0.001)
    costs["provenance"] = {"points": [[1, 1.001], [4, 1.2], [5, 1.005]], "valid_s": [1, 5], "slope_significant": False}
    costs["provenance"] |= {"target": "other", "drafter": "synthetic-iid:x=1"}
    found = advise(cheap_trace(tmp_path / "t.parquet", latency=costs), "static")
    assert found["recommended"] == "static:length=8"
    text = " ".join(found["notes"])
    assert "beyond the 5 positions the latency was measured for" in text
    assert "static:length=8 in 100 %" in text or "static:length=8 in 9" in text
    assert "the latency model is of the target other, the trace of synthetic" in text
    assert "the trace of synthetic-iid" not in text
    assert "slope of verification is not significant" in text
    wishes = {wish["what"]: wish for wish in found["measure"]}
    assert "latency at 9 positions" in wishes
    assert wishes["drafts of more than 8 tokens"]["why"] == "the best static length is the longest recorded"
    costs["provenance"] = {"points": [[1, 1.001], [9, 1.3]]}
    found = advise(cheap_trace(tmp_path / "u.parquet", latency=costs), "static")
    assert any("at 9 positions" in note and "1.3e+03 ms were measured" in note for note in found["notes"])
    assert "latency at 9 positions again" in {wish["what"] for wish in found["measure"]}


def test_quarantined_requests_are_told(tmp_path: Path) -> None:
    path = cheap_trace(tmp_path / "t.parquet", requests=10, positions=20)
    broken = read_trace(path)[1].accept_len.copy()
    broken[3] = 99
    table = pq.read_table(path)
    where = table.schema.get_field_index("accept_len")
    pq.write_table(table.set_column(where, table.schema.field(where), pa.array(broken)), path)
    aside = tmp_path / "aside"
    for refused in (asked("static"), [*asked("oracle"), "--quarantine", aside]):
        assert_refused(recommend(path, *refused), tmp_path, ["t.parquet"])
    found = advise(path, "static", quarantine=aside)
    assert sorted(side.name for side in aside.iterdir()) == ["t.quarantine.json", "t.quarantined.parquet"]
    assert (found["quarantined_requests"], found["requests"]) == (1, 9)
    assert any("set aside as faulty" in note for note in found["notes"])


def test_missing_confidences_leave_rules_out(tmp_path: Path) -> None:
    path = cheap_trace(tmp_path / "t.parquet", requests=8, positions=40, drop=("q",))
    outcome = outcome_of(path, ())
    names = {family.name for family in outcome.families}
    assert "static" in names
    assert "g4" in names
    assert not names & {"threshold", "libraspec", "lambda", "goodput"}


# Scenarios


@settings(deadline=None, max_examples=40)
@given(st.integers(0, 2**32))
def test_shifted_models(seed: int) -> None:
    """Plain decoding costs what it did, verification never falls with s, and factors are factors."""
    model = make_latency(np.random.default_rng(seed), ctx=True)
    before = model.verify_table(13)[1:]
    for scenario in scenarios_of(model):
        other = shifted(model, scenario, 12)
        after = other.verify_table(13)[1:]
        assert after[0] == before[0]
        assert (np.diff(after) >= 0).all()
        if scenario.verify > 1:
            np.testing.assert_allclose(after[1:], before[1:] * (1 + UNKNOWN))
        assert other.draft_pass_s == model.draft_pass_s * scenario.draft
        assert (other.ctx_s, other.overhead_s) == (model.ctx_s, model.overhead_s)


def test_scenarios_come_from_the_fit() -> None:
    model = load_latency("preset:h100-llama-2-7b")
    facts = model.provenance
    scenarios = {scenario.name: scenario for scenario in scenarios_of(model)}
    assert scenarios["verification +0.9 %"].verify == 1 + facts["heldout_rel_err"]
    assert scenarios["verification's slope high"].slope_s == facts["c_ci95_s"][1] - facts["line"]["c_s"]
    assert scenarios["drafting -10 %"].draft == 0.9


def test_advice_that_rests_on_a_price(tmp_path: Path) -> None:
    """Drafts that pay by little: 10 % more for drafting, and they do not; said so, with what to do about it."""
    costs = affine(c_s=0.0, b_s=1.0, draft_pass_s=0.76)
    costs["provenance"] = {"points": [[1, 1.0], [2, 1.0], [3, 1.0]]}
    found = advise(cheap_trace(tmp_path / "t.parquet", latency=costs, requests=60), "static")
    assert found["verdict"] == USE
    rows = {row["scenario"]: row for row in found["robustness"]["scenarios"]}
    assert not rows["drafting +10 %"]["holds"]
    assert rows["drafting -10 %"]["holds"]
    assert not found["robustness"]["holds"]
    assert any("the advice changes with" in wish["why"] for wish in found["measure"])


# Several traces


def test_one_setting_for_several_traces(tmp_path: Path) -> None:
    """Summed seconds decide; the trace that wants something else is told what the common setting costs it."""
    long = cheap_trace(tmp_path / "long.parquet", alpha=0.9, requests=80)
    short = cheap_trace(tmp_path / "short.parquet", alpha=0.3, requests=8)
    outcomes = [outcome_of(path, ("static",)) for path in (long, short)]
    pooled = pool(outcomes, 0)
    assert not isinstance(pooled, str)
    totals = sum(outcome.seconds.time_s.sum(axis=1) for outcome in outcomes)
    assert pooled.decision.row.best == int(np.argmin(totals))
    document = recommend(long, short, "--json", *asked("static")).document()
    rows = {row["path"]: row for row in document["pooled"]["costs"]}
    assert rows[str(long)]["cost"] == {"value": 0.0, "ci95": [0.0, 0.0]}
    assert rows[str(short)]["dearer"]
    own, common = (outcomes[1].seconds.time_s[o.decision.row.best].sum() for o in (outcomes[1], pooled))
    assert rows[str(short)]["cost"]["value"] == pytest.approx(100 * (common / own - 1))
    assert "a single setting costs more than 2 % on 1 of 2 traces" in recommend(long, short, *asked("static")).out


def test_kinds_are_not_pooled(tmp_path: Path) -> None:
    length, tree = cheap_trace(tmp_path / "l.parquet", requests=6), cheap_trace(tmp_path / "t.parquet", top_k=3)
    document = recommend(length, tree, "--json", "--max-requests", 6, *asked("static")).document()
    assert document["pooled"] is None
    assert "different kinds" in document["pooled_note"]


# The grid
