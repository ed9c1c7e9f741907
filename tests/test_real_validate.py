"""Validation: measured against predicted, in one folder that survives interruption; P31, P33 and P39."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

torch = pytest.importorskip("torch", reason="real/ needs the extra 'real'")

from real import calibrate, evaluation, validate  # noqa: E402
from real.compare import (  # noqa: E402
    FORMULA,
    Measured,
    Row,
    counted,
    in_sample_model,
    measured,
    predicted,
    verdict,
)
from real.data import encode, load_prompts  # noqa: E402
from real.folder import Request, Run  # noqa: E402
from real.interleave import PLAIN, Comparison  # noqa: E402
from real.loop import Decoded, Round, Settings  # noqa: E402
from real.measure import measure  # noqa: E402
from real.models import load_target  # noqa: E402
from real.neartie import Difference  # noqa: E402
from real.record import proposer_of, record_request  # noqa: E402
from real.results import warmup_rounds  # noqa: E402
from real.session import open_session  # noqa: E402
from real.verify import verify_greedy  # noqa: E402
from specsim.controllers import REGISTRY, Controller, ControllerSpec, NoParams  # noqa: E402
from specsim.errors import run_cli  # noqa: E402
from specsim.latency import LatencyModel, Table  # noqa: E402
from specsim.roundlog import read_round_log  # noqa: E402
from specsim.trace import TraceMeta, write_trace  # noqa: E402
from tests.real_tiny import save_tiny  # noqa: E402

TEXTS = ("abcabcabd", "hello hello", "xyzzy xy")
SPELLINGS = ("static:length=2", "lambda")
NEW, MAX_DRAFT = 14, 4
COSTS = LatencyModel(
    verify=Table(s=(1.0, 2.0, 3.0, 5.0), times_s=(0.05, 0.08, 0.09, 0.12)),
    ctx_s=1e-4,
    draft_pass_s=0.02,
    overhead_s=0.003,
)


@pytest.fixture(scope="module")
def tiny(tmp_path_factory) -> Path:
    """A folder with a model that transformers loads, and prompts."""
    folder = tmp_path_factory.mktemp("tiny")
    save_tiny(folder / "model", seed=3, spread=0.08)
    (folder / "p.jsonl").write_text("\n".join(json.dumps({"prompt": text}) for text in TEXTS))
    return folder


def steadied(*args, **options):
    """Measures for real, then says what `COSTS` does: times of a tiny model on a busy machine are noise."""
    return [
        replace(
            one,
            verify_s=float(COSTS.verify_s(one.s, one.ctx_len)),
            draft_s=COSTS.draft_pass_s * one.passes,
            overhead_s=COSTS.overhead_s,
        )
        for one in measure(*args, **options)
    ]


def run(tiny: Path, out: Path, *changes: str, controllers=SPELLINGS) -> int:
    """Exit status of the command."""
    arguments = {
        "--target": str(tiny / "model"),
        "--drafter": "layer-skip:skip=1",
        "--dataset": str(tiny / "p.jsonl"),
        "--requests": "3",
        "--max-new-tokens": str(NEW),
        "--max-draft-len": str(MAX_DRAFT),
        "--repeats": "2",
        "--device": "cpu",
        "--out": str(out),
    }
    flags = [change for change in changes if "=" not in change]
    arguments |= dict(change.split("=", 1) for change in changes if "=" in change)
    words = [*(f"{key}={value}" for key, value in arguments.items()), *flags]
    words += [f"--controllers={name}" for name in controllers]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(calibrate, "measure", steadied)
        with pytest.raises(SystemExit) as left:
            run_cli(validate.main, words)
    return left.value.code


def results(out: Path) -> dict:
    return json.loads((out / "results.json").read_text())


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


def decode_of(tokens: int, *seconds: float) -> Decoded:
    rows = [
        Round(
            arm=-1,
            drafted_len=0,
            submitted_len=0,
            draft_passes=0,
            available_len=0,
            q=np.zeros(0, np.float32),
            round=number,
            round_s=value,
        )
        for number, value in enumerate(seconds)
    ]
    return Decoded(prompt_len=5, output=list(range(tokens)), rounds=rows)


def request_of(number: int, *, warmup: Decoded | None = None, **decoded: Decoded) -> Request:
    runs = [Run(controller=name, decoded=value) for name, value in decoded.items()]
    if warmup is not None:
        runs = [Run(controller=name, decoded=warmup, warmup=True) for name in decoded] + runs
    return Request(number=number, id=str(number), runs=tuple(runs))


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


def price(name: str, row: Round) -> None:
    """Gives a round exactly its price, before the controller is told."""
    row.draft_s = float(COSTS.draft_s(row.draft_passes if row.drafted_len else 0, row.drafted_len))
    row.verify_s = float(COSTS.verify_s(row.submitted_len + 1, row.ctx_len))
    row.round_s = row.draft_s + row.verify_s + (0.0 if name == PLAIN else COSTS.overhead_s)


@pytest.fixture(scope="module", params=["layer-skip:skip=1", "prompt-lookup"])
def world(request, tiny, tmp_path_factory):
    """(session, controllers by spelling, requests of a run at known prices, trace of the same prompts)."""
    session = open_session(str(tiny / "model"), request.param, device="cpu", max_draft_len=MAX_DRAFT)
    spellings = [PLAIN, "static:length=1", "static:length=4", "g4", "threshold", "libraspec", "lambda"]
    controllers = session.controllers(spellings, COSTS)
    comparison = Comparison(
        session, list(zip(spellings, controllers, strict=True)), Settings(max_new_tokens=24, seed=7)
    )
    prompts = [encode(session.loaded.tokenizer, prompt) for prompt in load_prompts(str(tiny / "p.jsonl"))]
    requests = [comparison.run(number, str(number), prompt, price) for number, prompt in enumerate(prompts)]
    rows = [
        record_request(
            session.loaded.model,
            proposer_of(session.drafter),
            prompt,
            max_new_tokens=24,
            max_draft_len=MAX_DRAFT,
            stop_ids=(),
        )
        for prompt in prompts
    ]
    from real.probe import to_chunks

    trace = tmp_path_factory.mktemp("world") / "trace.parquet"
    meta = TraceMeta(block_len=session.drafter.block_len, max_draft_len=MAX_DRAFT, exact=True)
    write_trace(trace, meta, to_chunks(rows))
    return session, dict(zip(spellings, controllers, strict=True)), requests, trace


def test_the_prediction_is_exact_where_costs_are(world):
    # Recorder, replay, loop and formulas agree: no error is left when every round costs what the model says.
    _, controllers, requests, trace = world
    seen = measured(requests, list(controllers), seed=7)
    ahead = predicted(trace, COSTS, list(controllers.values()), seed=7)
    for name, was, now in zip(controllers, seen, ahead, strict=True):
        assert now["speedup"] == pytest.approx(was.speedup, rel=1e-9), name
        assert (now["tokens"], now["rounds"]) == (was.tokens, was.rounds), name
    assert len({round(was.speedup, 3) for was in seen}) > 4


def test_costs_fitted_to_the_run_are_those_it_had(world):
    session, controllers, requests, trace = world
    model = in_sample_model(requests, block_len=session.drafter.block_len)
    assert model is not None
    for s in (1, 2, 5):
        assert float(model.verify_s(s, 20)) == pytest.approx(float(COSTS.verify_s(s, 20)), rel=0.02)
    assert model.draft_pass_s == pytest.approx(COSTS.draft_pass_s)
    seen = measured(requests, list(controllers), seed=7)
    own = predicted(trace, model, list(controllers.values()), seed=7)
    assert max(abs(now["speedup"] / was.speedup - 1) for was, now in zip(seen, own, strict=True)) < 0.07
    assert in_sample_model([request_of(0, plain=decode_of(2, 1.0, 1.0))], block_len=1) is None


def row_of(name: str, speedup: float, now: float, *, half: float = 0.0, own: float | None = None) -> Row:
    seen = Measured(
        tokens=10,
        rounds=5,
        tau=2.0,
        decode_s=1.0,
        speedup=speedup,
        mean_of_ratios=speedup,
        ci95=(speedup * (1 - half), speedup * (1 + half)),
    )
    return Row(controller=name, measured=seen, predicted=now, in_sample=own, shadow=None)


def test_the_verdict_by_hand():
    plain = row_of(PLAIN, 1.0, 9.0)
    rows = [plain, row_of("a", 1.0, 1.04), row_of("b", 2.0, 1.8, own=1.9), row_of("c", 1.0, 1.2, half=0.02)]
    judged = verdict(rows)
    assert judged is not None
    assert judged.median_error == pytest.approx(0.1)
    assert judged.bound == 0.05
    assert not judged.holds
    assert judged.in_sample_error == pytest.approx(0.05)
    wide = verdict([plain, row_of("a", 1.0, 1.1, half=0.11), row_of("b", 1.0, 0.9, half=0.13)])
    assert wide is not None
    assert (wide.bound, wide.holds, wide.in_sample_error) == (pytest.approx(0.12), True, None)
    assert verdict([plain]) is None


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
