"""Reference-assisted verification: the rounds of a live decode where both agree, the reference's text in any case."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

torch = pytest.importorskip("torch", reason="real/ needs the extra 'real'")

from real.drafters.base import Drafter  # noqa: E402
from real.folder import read_run  # noqa: E402
from real.loop import Decoded, Settings, decode  # noqa: E402
from real.reference import Reference  # noqa: E402
from real.target import Target  # noqa: E402
from specsim.controllers import Setting, build  # noqa: E402
from specsim.errors import ConfigError  # noqa: E402
from specsim.online import OnlineController  # noqa: E402
from specsim.roundlog import read_round_log  # noqa: E402
from tests.real_law import FixedClock, Scripted, one_thread  # noqa: E402, F401 - one_thread is a fixture
from tests.real_lossless import plain_greedy  # noqa: E402
from tests.real_runs import PROMPTS, THIRD_PARTY_WARNINGS, make_place, run  # noqa: E402
from tests.real_scripted import LATENCY, STOP, Pattern, choice, scripted  # noqa: E402
from tests.real_tiny import prompt_ids, tiny_llama  # noqa: E402
from tests.real_trees import RandomTrees  # noqa: E402
from tests.wandb_file import read_all  # noqa: E402

PROMPT = [1, 2, 3]
LABEL = "static:length=3 (reference-assisted)"

pytestmark = [pytest.mark.filterwarnings(text) for text in THIRD_PARTY_WARNINGS]


def decoded(
    target: Target, drafter: Drafter, prompt: torch.Tensor, asked: Settings, reference: list[int] | None
) -> Decoded:
    setting = Setting(block_len=drafter.block_len, max_draft_len=drafter.max_draft_len, latency=LATENCY)
    online = OnlineController(build("static:length=4", setting), compiled=False)
    assisted = None if reference is None else Reference(reference)
    return decode(target, drafter, online, prompt, asked, clock=FixedClock(), reference=assisted)


def rounds(found: Decoded) -> list[tuple[int, ...]]:
    return [(row.pos, row.drafted_len, row.submitted_len, row.accepted_len, row.emitted_len) for row in found.rounds]


def plain(model: Scripted, tokens: int) -> list[int]:
    output: list[int] = []
    while len(output) < tokens and STOP not in output:
        output.append(choice(model, [*PROMPT, *output]))
    return output


@given(seed=st.integers(0, 99), tokens=st.integers(1, 30), right=st.integers(0, 2**12 - 1))
@settings(max_examples=25)
def test_the_rounds_are_those_of_a_live_decode(seed: int, tokens: int, right: int) -> None:
    """Whether the text ends by itself, with an end-of-text token that was drafted or was not, or by length."""
    model = scripted(seed)
    drafter = Pattern(model, lambda pos: bool(right >> pos % 12 & 1))
    asked = Settings(max_new_tokens=tokens, stop_ids=(STOP,))
    live, assisted = (
        decoded(Target(model), drafter, torch.tensor(PROMPT), asked, text) for text in (None, plain(model, tokens))
    )
    assert (assisted.output, assisted.reason, rounds(assisted)) == (live.output, live.reason, rounds(live))
    assert (live.verification, live.mismatches) == ("live", None)
    assert (assisted.verification, assisted.mismatches) == ("reference-assisted", 0)


@given(seed=st.integers(0, 99), changed=st.sets(st.integers(0, 19), min_size=1, max_size=4))
@settings(max_examples=25)
def test_another_text_is_followed_and_what_the_target_says_to_it_is_counted(seed: int, changed: set[int]) -> None:
    model, text = scripted(seed, stop=False), []
    for pos in range(20):
        text.append((choice(model, [*PROMPT, *text]) + (pos in changed)) % STOP)
    drafter = Pattern(model, lambda pos: True)
    found = decoded(Target(model), drafter, torch.tensor(PROMPT), Settings(max_new_tokens=20), text)
    assert found.output == text
    assert found.mismatches == len(changed)
    # The drafter says what the target would: drafts are rejected where the text is another, and nowhere else.
    ends = {row.pos + row.accepted_len: row.accepted_len < row.submitted_len for row in found.rounds}
    assert {pos for pos, rejected in ends.items() if rejected} <= changed <= set(ends)


def test_trees_are_walked_along_the_reference() -> None:
    model, prompt = tiny_llama(seed=3, spread=0.08), prompt_ids(5)
    text = plain_greedy(model, prompt, 20)
    asked = Settings(max_new_tokens=20)
    live = decoded(Target(model), RandomTrees(model), prompt, asked, None)
    assisted = decoded(Target(model), RandomTrees(model), prompt, asked, text)
    assert (assisted.output, rounds(assisted), assisted.mismatches) == (text, rounds(live), 0)
    assert max(row.accepted_len for row in assisted.rounds) > 0
    other = [*text[:7], (text[7] + 1) % 60, *text[8:]]
    found = decoded(Target(model), RandomTrees(model), prompt, asked, other)
    assert found.output == other
    assert found.mismatches > 0


def test_a_reference_decides_in_greedy_decoding_only_and_has_to_be_whole() -> None:
    model = scripted(1, stop=False)
    drafter, prompt = Pattern(model, lambda pos: True), torch.tensor(PROMPT)
    with pytest.raises(ConfigError, match="greedy decoding only"):
        decoded(Target(model), drafter, prompt, Settings(max_new_tokens=8, sample=True), plain(model, 8))
    with pytest.raises(ConfigError, match="ends after 5 tokens, where decoding goes on"):
        decoded(Target(model), drafter, prompt, Settings(max_new_tokens=8), plain(model, 5))


def test_everything_that_a_run_writes_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WANDB_MODE", "offline")
    place, out = make_place(tmp_path), tmp_path / "out"
    args = ["test", "--config", str(place), "--model.controllers", "[static:length=3]"]
    mode = ["--model.verification", "reference-assisted"]
    assert run(*args, *mode) == 0
    shown = capsys.readouterr()
    assert shown.out.count("(reference-assisted)") == 2  # in both tables
    assert "mismatch" in shown.out
    assert LABEL in shown.err  # the fastest of each prompt
    one, other = read_run(out)["results"]
    assert (one["verification"], one["different"], one["mismatches"]) == ("live", 0, None)
    assert (other["verification"], other["different"], other["mismatches"]) == ("reference-assisted", None, 0)
    metadata, columns = read_round_log(out / "rounds.parquet")
    assert metadata["config"]["verification"] == "reference-assisted"
    assert set(columns["run_id"]) == {"plain", LABEL}
    lines = [json.loads(line) for line in (out / "outputs.jsonl").read_text().splitlines()]
    assert {(line["controller"], line["verification"]) for line in lines} == {
        ("plain", "live"),
        ("static:length=3", "reference-assisted"),
    }
    kept = [json.loads(path.read_text())["runs"] for path in sorted(out.glob("requests/*.json"))]
    assert len(kept) == len(PROMPTS)
    # The reference is made first.
    assert {tuple(one["controller"] for one in runs if not one["warmup"]) for runs in kept} == {
        ("plain", "static:length=3")
    }
    tracked = {found.info["name"]: found for found in read_all(out)}
    assert set(tracked) == {"comparison", "plain", LABEL}
    assert tracked["comparison"].summary[f"{LABEL}/tau"] == pytest.approx(other["tau"])
    assert not any(key.startswith("static:length=3/") for key in tracked["comparison"].summary)
    assert tracked["comparison"].summary["best_controller"] == LABEL
    assert tracked[LABEL].config["verification"] == "reference-assisted"
    # A live run does not go on in its folder, nor sampling with a reference at all.
    assert run(*args) == 2
    assert "verification was 'reference-assisted', now None" in capsys.readouterr().err
    assert run(*args, *mode, "--model.temperature", "1.0", "--record.out", str(tmp_path / "no")) == 2
    assert "no one text to expect" in capsys.readouterr().err
    assert run(*args, "--model.verification", "quick", "--record.out", str(tmp_path / "no")) == 2
    assert "model.verification 'quick': allowed: live, reference-assisted" in capsys.readouterr().err
