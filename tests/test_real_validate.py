"""Validation: measured against predicted, in one folder that survives interruption; P31, P33 and P39."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

torch = pytest.importorskip("torch", reason="real/ needs the extra 'real'")

from real import evaluation  # noqa: E402
from real.compare import (  # noqa: E402
    FORMULA,
    counted,
    measured,
)
from real.interleave import PLAIN, Comparison  # noqa: E402
from real.models import load_target  # noqa: E402
from real.neartie import Difference  # noqa: E402
from real.results import warmup_rounds  # noqa: E402
from real.verify import verify_greedy  # noqa: E402
from specsim.controllers import REGISTRY, Controller, ControllerSpec, NoParams  # noqa: E402
from specsim.roundlog import read_round_log  # noqa: E402
from tests.real_tiny import save_tiny  # noqa: E402
from tests.real_validate import NEW, SPELLINGS, TEXTS, decode_of, request_of, results, run  # noqa: E402


@pytest.fixture(scope="module")
def tiny(tmp_path_factory) -> Path:
    """A folder with a model that transformers loads, and prompts."""
    folder = tmp_path_factory.mktemp("tiny")
    save_tiny(folder / "model", seed=3, spread=0.08)
    (folder / "p.jsonl").write_text("\n".join(json.dumps({"prompt": text}) for text in TEXTS))
    return folder


@pytest.fixture(scope="module")
def finished(tiny, tmp_path_factory) -> Path:
    """A finished validation."""
    out = tmp_path_factory.mktemp("finished") / "run"
    assert run(tiny, out) == 0
    return out


def test_the_folder_holds_everything(finished):
    names = {path.name for path in finished.iterdir()}
    assert names == {
        *("trace.parquet", "calibration.json", "run.json", "requests", "rounds.parquet", "outputs.jsonl"),
        "results.json",
    }
    document = results(finished)
    assert [row["controller"] for row in document["results"]] == [PLAIN, *SPELLINGS]
    assert document["results"][0]["measured"]["speedup"] == 1.0
    assert document["results"][0]["predicted"] == 1.0
    assert all(row["shadow"] is None for row in document["results"])
    assert document["differences"] == []
    assert document["other_texts_in_trace"] == 0
    assert document["verdict"]["holds"] == (document["verdict"]["median_error"] <= document["verdict"]["bound"])


def test_p31_the_same_counter_for_baseline_and_speculation(finished):
    # Output ids, counted by one loop: in the results, in the outputs and in the round log.
    _, log = read_round_log(finished / "rounds.parquet")
    lines = [json.loads(line) for line in (finished / "outputs.jsonl").read_text().splitlines()]
    for row in results(finished)["results"]:
        name, seen = row["controller"], row["measured"]
        mine = (log["run_id"] == name) & ~log["warmup"]
        assert seen["tokens"] == log["emitted_len"][mine].sum()
        assert seen["tokens"] == sum(len(line["tokens"]) for line in lines if line["controller"] == name)
        assert seen["rounds"] == mine.sum()
        assert seen["decode_s"] == pytest.approx(log["round_s"][mine].sum(), rel=1e-12)
    assert len({row["measured"]["tokens"] for row in results(finished)["results"]}) == 1


def test_p31_both_the_ratio_of_sums_and_the_mean_of_ratios(finished):
    requests = [
        request_of(0, plain=decode_of(4, 1.0, 1.0, 1.0, 1.0), c=decode_of(4, 1.5, 0.5)),
        request_of(1, plain=decode_of(10, *[1.0] * 10), c=decode_of(10, 4.0, 4.0)),
    ]
    plain, seen = measured(requests, [PLAIN, "c"], seed=0)
    assert (plain.speedup, plain.mean_of_ratios, plain.ci95) == (1.0, 1.0, (1.0, 1.0))
    assert seen.speedup == 14.0 / 10.0
    assert seen.mean_of_ratios == (4.0 / 2.0 + 10.0 / 8.0) / 2
    assert seen.ci95 is not None
    assert (seen.tokens, seen.rounds, seen.tau) == (14, 4, 3.5)
    assert seen.ci95 == (1.25, 2.0)
    assert seen.half_interval == pytest.approx(0.375 / 1.4)
    # An output of another length is compared per token of ids, whatever its text.
    longer = measured([request_of(0, plain=decode_of(4, 4.0), c=decode_of(8, 4.0))], ["c"], seed=0)[0]
    assert (longer.speedup, longer.ci95, longer.half_interval) == (2.0, None, 0.0)


def test_p33_warm_up_is_flagged_counted_and_left_out(finished):
    _, log = read_round_log(finished / "rounds.parquet")
    document = results(finished)
    assert document["warmup_rounds"] == log["warmup"].sum() > 0
    assert {name for name, warm in zip(log["run_id"], log["warmup"], strict=True) if warm} == {PLAIN, *SPELLINGS}
    cold = [
        request_of(0, plain=decode_of(2, 1.0, 1.0), c=decode_of(2, 1.0)),
        request_of(1, plain=decode_of(2, 1.0, 1.0), c=decode_of(2, 1.0)),
    ]
    warm = [replace(cold[0], runs=request_of(0, warmup=decode_of(9, 50.0), plain=decode_of(2, 1.0, 1.0),
                                             c=decode_of(2, 1.0)).runs), cold[1]]  # fmt: skip
    assert measured(warm, [PLAIN, "c"], seed=0) == measured(cold, [PLAIN, "c"], seed=0)
    assert (warmup_rounds(warm), warmup_rounds(cold)) == (2, 0)
    assert counted(warm[0], "c").decoded.decode_s == 1.0


def test_p33_p39_the_report_says_what_is_left_out_and_how_speedup_is_defined(tiny, tmp_path, capsys):
    assert run(tiny, tmp_path / "run", "--requests=1") == 0
    out, err = capsys.readouterr()
    assert FORMULA in out
    assert f"{results(tmp_path / 'run')['warmup_rounds']} warm-up rounds are in the log and in no result" in out
    assert "mean of ratios" in out
    assert "all 2 outputs are plain decoding's, token for token (float32)" in out
    assert "prompt 1/1: line-" in err
    last = json.loads(out.strip().splitlines()[-1])
    assert last["verdict"] == results(tmp_path / "run")["verdict"]


def test_an_interrupted_run_goes_on_without_repeating_or_losing_a_prompt(tiny, tmp_path, monkeypatch, capsys):
    out, decoded = tmp_path / "run", []
    original = Comparison.run

    def counted_run(self, number, *args, **options):
        decoded.append(number)
        if len(decoded) == 3:
            raise KeyboardInterrupt
        return original(self, number, *args, **options)

    monkeypatch.setattr(Comparison, "run", counted_run)
    assert run(tiny, out) == 130
    assert "same command continues" in capsys.readouterr().err
    frozen = {name: (out / name).read_bytes() for name in ("trace.parquet", "calibration.json")}
    assert run(tiny, out, "--max-new-tokens=9") == 2
    assert "--force" in capsys.readouterr().err
    assert run(tiny, out) == 0
    assert decoded == [0, 1, 2, 2]
    assert {name: (out / name).read_bytes() for name in frozen} == frozen
    document = results(out)
    assert document["results"][0]["measured"]["tokens"] == 3 * NEW
    # Over the interruption too, lambda went on with what it had learned.
    assert all(row["shadow"] is None for row in document["results"])
    assert run(tiny, out) == 2
    assert "finished" in capsys.readouterr().err
    assert run(tiny, out, "--force") == 0
    assert decoded[4:] == [0, 1, 2]


def test_prompts_that_were_changed_are_not_continued(tiny, tmp_path, monkeypatch, capsys):
    out, original = tmp_path / "run", Comparison.run

    def interrupted(self, number, *args, **options):
        if number == 2:
            raise KeyboardInterrupt
        return original(self, number, *args, **options)

    monkeypatch.setattr(Comparison, "run", interrupted)
    assert run(tiny, out) == 130
    file = out / "requests" / "00001.json"
    document = json.loads(file.read_text())
    changed = next(one for one in document["runs"] if one["controller"] == "lambda")
    changed["rounds"]["submitted_len"][0] += 1
    file.write_text(json.dumps(document))
    capsys.readouterr()
    assert run(tiny, out) == 2
    assert "lambda cannot go on where it stopped (request 1, round 0: submitted_len" in capsys.readouterr().err
    # Without the first prompt, the ones after it are decoded again as well: lambda learned in that order.
    monkeypatch.setattr(Comparison, "run", original)
    (out / "requests" / "00000.json").unlink()
    assert run(tiny, out) == 0
    assert all(row["shadow"] is None for row in results(out)["results"])


def test_frozen_inputs_can_be_given(tiny, finished, tmp_path, capsys):
    given = [f"--trace={finished / 'trace.parquet'}", f"--calibration={finished / 'calibration.json'}"]
    assert run(tiny, tmp_path / "again", *given) == 0
    err = capsys.readouterr().err
    assert "calibration, repeat" not in err
    assert "trace.parquet, request" not in err
    first, second = results(finished), results(tmp_path / "again")
    assert [row["predicted"] for row in first["results"]] == [row["predicted"] for row in second["results"]]
    document = json.loads((finished / "calibration.json").read_text())
    document["provenance"]["threads"] = 999
    (tmp_path / "other.json").write_text(json.dumps(document))
    refusals = {
        f"--calibration={tmp_path / 'other.json'}": "calibrated with threads 999",
        f"--trace={tmp_path / 'none.parquet'}": "cannot be read",
    }
    for number, (option, message) in enumerate(refusals.items()):
        assert run(tiny, tmp_path / f"r{number}", given[0] if "cal" in option else given[1], option) == 2
        assert message in capsys.readouterr().err
        assert not (tmp_path / f"r{number}").exists()
    for option, key in (("--max-new-tokens=9", "max_new_tokens"), ("--requests=2", "prompts"), ("--seed=5", None)):
        status = run(tiny, tmp_path / f"t{option}", *given, option)
        assert status == (0 if key is None else 2)
        assert key is None or f"its {key} is" in capsys.readouterr().err


HIDDEN = {"rounds": 0}


def wavering_begin(params, state, lane, pos, ctx_len, u, hint):
    """Drafts 1 to 3 tokens by a count that is not in its state."""
    HIDDEN["rounds"] += 1
    return -1, int(np.random.default_rng(HIDDEN["rounds"]).integers(1, 4))


def whole_revise(params, state, lane, q, drafted, more):
    return drafted, drafted


def no_update(params, state, lane, arm, drafted, submitted, accepted, round_s):
    pass


def test_a_rule_that_is_not_what_it_says_is_found_out(tiny, tmp_path, monkeypatch, capsys):
    def made(values, setting):
        functions = {"begin": wavering_begin, "revise": whole_revise, "update": no_update}
        return Controller(name="wavering", config={}, params=NoParams(), **functions)

    monkeypatch.setitem(REGISTRY, "wavering", ControllerSpec(name="wavering", params={}, build=made, doc=""))
    assert run(tiny, tmp_path / "run", controllers=("wavering",)) == 1
    row = results(tmp_path / "run")["results"][1]
    assert "drafted_len is" in row["shadow"]
    assert "shadow replay differs" in capsys.readouterr().out


@pytest.fixture
def lossy(monkeypatch):
    """A verifier that accepts one draft token too many."""

    def verify(draft, scores):
        accepted, token, unsound = verify_greedy(draft, scores)
        if accepted < len(draft.tokens):
            accepted = accepted + 1
            token = scores.argmax(-1)[accepted]
        return torch.stack([accepted, token, unsound])

    monkeypatch.setattr("real.loop.verify_greedy", verify)


@pytest.mark.usefixtures("lossy")
def test_a_difference_in_float32_is_an_error_after_everything_is_written(tiny, finished, tmp_path, capsys):
    out = tmp_path / "run"
    assert run(tiny, out, f"--trace={finished / 'trace.parquet'}", controllers=("static:length=2",)) == 1
    document = results(out)
    assert 0 < len(document["differences"]) <= 3
    for difference in document["differences"]:
        assert (difference["controller"], difference["near_tie"]) == ("static:length=2", False)
        lines = [json.loads(line) for line in (out / "outputs.jsonl").read_text().splitlines()]
        plain, other = (
            next(line["tokens"] for line in lines if line["id"] == difference["id"] and line["controller"] == name)
            for name in (PLAIN, "static:length=2")
        )
        place = difference["place"]
        assert plain[:place] == other[:place]
        assert plain[place] != other[place]
    assert (out / "rounds.parquet").exists()
    assert "NOT a near tie" in capsys.readouterr().out


@pytest.mark.usefixtures("lossy")
@pytest.mark.parametrize("near", [True, False])
def test_below_float32_near_ties_are_counted_and_anything_else_is_an_error(tiny, tmp_path, monkeypatch, capsys, near):
    def explain(model, exact, prompt, expected, found):
        gap = 0.001 if near else 1.0
        return Difference(place=3, expected=1, found=2, gap=0.0, exact_gap=gap, noise=0.01)

    monkeypatch.setattr(evaluation, "explain", explain)
    status = run(tiny, tmp_path / "run", "--dtype=bfloat16", controllers=("static:length=2",))
    assert status == (0 if near else 1)
    found = results(tmp_path / "run")["differences"]
    assert found
    assert f"{len(found)} of 3 outputs differ from plain decoding's (bfloat16), {len(found) * near} by a near tie" in (
        capsys.readouterr().out
    )


@pytest.mark.parametrize(
    ("changes", "controllers", "message"),
    [
        ((), ("g4", "g4"), "given twice"),
        ((), ("libraspek",), "did you mean 'libraspec'"),
        ((), ("oracle",), "exists in replay only"),
        (("--drafter=layer-skip:skip=9",), ("g4",), "0..2"),
        (("--dataset=nothing",), ("g4",), "path of a JSONL file"),
        (("--requests=9",), ("g4",), "has 3 prompts"),
        (("--calibration=nothing.json",), ("g4",), "--calibration nothing.json: cannot be read"),
        (("--drafter=none",), ("plain",), "nothing to record"),
        (("--max-new-tokens=250",), ("g4",), "context window of 256"),
    ],
)
def test_bad_arguments_leave_nothing_behind(tiny, tmp_path, changes, controllers, message, capsys):
    assert run(tiny, tmp_path / "run", *changes, controllers=controllers) == 2
    assert message in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_recorded_texts_are_compared_with_the_runs(tiny, finished):
    loaded = load_target(str(tiny / "model"), device="cpu")
    recorded = pq.read_table(finished / "trace.parquet")["token"].to_pylist()
    lines = [json.loads(line) for line in (finished / "outputs.jsonl").read_text().splitlines()]
    plain = [token for line in lines if line["controller"] == PLAIN for token in line["tokens"]]
    assert recorded == plain
    assert all(isinstance(line["text"], str) and line["text"] for line in lines)
    assert loaded.tokenizer.decode(plain[:NEW]) == lines[0]["text"] or lines[0]["controller"] != PLAIN
