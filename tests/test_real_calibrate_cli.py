"""`python -m real.calibrate`: what it writes, says and refuses, and the texts it measures in."""

from __future__ import annotations

import io
import json
from dataclasses import replace

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="real/ needs the extra 'real'")

from rich.console import Console  # noqa: E402

from real import calibrate_cli  # noqa: E402
from real.drafters.base import NoDrafter  # noqa: E402
from real.drafters.choose import DrafterSpec  # noqa: E402
from real.drafters.prompt_lookup import PromptLookupDrafter  # noqa: E402
from real.measure import measure, most_new_tokens  # noqa: E402
from real.progress import Steps  # noqa: E402
from real.session import Session  # noqa: E402
from real.target import Target  # noqa: E402
from specsim.errors import run_cli  # noqa: E402
from specsim.latency import LatencyModel, load_latency  # noqa: E402
from tests.real_tiny import tiny_loaded  # noqa: E402


@pytest.fixture
def steady(tmp_path, monkeypatch):
    """The command on a tiny model, its measured times replaced: those of a tiny model on a busy machine are noise."""
    (tmp_path / "p.jsonl").write_text('{"prompt": "abcabcabd"}\n{"prompt": "hello hello"}\n')

    def session(target, drafter, **options):
        loaded = tiny_loaded(seed=3, spread=0.08)
        made = PromptLookupDrafter(max_draft_len=options["max_draft_len"])
        assert DrafterSpec(name=drafter).name == "prompt-lookup"
        return Session(loaded=loaded, target=Target(loaded.model), drafter=made, plain=NoDrafter())

    monkeypatch.setattr(calibrate_cli, "open_session", session)
    measured = []

    def steadied(*args, **options):
        found = measure(*args, **options)
        measured.append({len(context) for context in args[2]})
        return [replace(one, verify_s=1e-3 + 1e-5 * one.s) for one in found]

    monkeypatch.setattr("real.calibrate.measure", steadied)
    return tmp_path, measured


def command(folder, *more: str) -> int:
    arguments = ["--drafter=prompt-lookup", "--max-draft-len=4", f"--dataset={folder / 'p.jsonl'}", "--repeats=2"]
    with pytest.raises(SystemExit) as left:
        run_cli(calibrate_cli.main, [*arguments, f"--out={folder / 'cal.json'}", *more])
    return left.value.code


def test_the_command_writes_a_latency_file(steady, capsys):
    folder, measured = steady
    threads = torch.get_num_threads()
    assert command(folder, "--context=20", "--context=100", f"--threads={threads}") == 0
    out, err = capsys.readouterr()
    model = load_latency(folder / "cal.json")
    assert model == LatencyModel.from_dict(json.loads(out.strip().splitlines()[-1]), where="output")
    assert measured == [{20, 100}]
    assert {"device", "threads", "dtype", "target", "drafter", "torch", "created"} <= set(model.provenance)
    assert float(model.verify_s(3)) == pytest.approx(1.03e-3)
    assert "calibration, repeat 1/3, about" in err
    assert "timing it" in err
    assert command(folder) == 2
    assert "--force" in capsys.readouterr().err
    assert command(folder, "--force", "--context=9999") == 0
    assert measured[-1] == {256 - most_new_tokens(4)}


def test_progress_is_a_bar_on_a_terminal_and_lines_elsewhere():
    for terminal in (True, False):
        text = io.StringIO()
        with Steps(Console(file=text, force_terminal=terminal, width=90), "prompt", 4, before=1) as steps:
            steps.done("first [b]one[/b]")
            steps.done()
            steps.done()
        lines = text.getvalue()
        if terminal:
            assert "4/4" in lines
            assert "first" not in lines
        else:
            assert [line.partition(",")[0] for line in lines.splitlines()] == [
                "prompt 2/4: first [b]one[/b]",
                "prompt 3/4",
                "prompt 4/4",
            ]
            assert lines.count("about 0 s left") == 2


def test_bad_arguments_of_the_command(steady, capsys):
    folder, _ = steady
    for more, message in (
        (("--context=1",), "2 or more"),
        (("--max-draft-len=80",), "too short to measure"),
        (("--max-draft-len=1",), "not in the range 2<=x"),
        (("--threads=99999999999",), "not in the range 1<=x<=1024"),
        ((f"--out={folder / 'nowhere' / 'cal.json'}", "--target=none"), "does not exist; create it first"),
    ):
        assert command(folder, *more) == 2
        assert message in capsys.readouterr().err
    assert not (folder / "cal.json").exists()


def test_texts_end_as_a_prompt_does(steady):
    folder, _ = steady
    loaded = tiny_loaded()
    texts = calibrate_cli.calibration_texts(loaded, str(folder / "p.jsonl"), (12, 40), seed=1, max_draft_len=4)
    assert [len(text) for text in texts] == [12, 40]
    np.testing.assert_array_equal(texts[0], texts[1][-12:])
    endings = [loaded.tokenizer(text)["input_ids"] for text in ("abcabcabd", "hello hello")]
    assert any(texts[1].tolist()[-len(ending) :] == ending for ending in endings)
