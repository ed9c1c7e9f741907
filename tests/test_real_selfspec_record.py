"""Traces of arms: recorded rows against live rounds and the reference, the file, its replays."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

torch = pytest.importorskip("torch", reason="real/ needs the extra 'real'")

from real import probe, recordings  # noqa: E402
from real.builders.arm import Arm, ArmFile  # noqa: E402
from real.calibrate import fit  # noqa: E402
from real.drafters.family import Family  # noqa: E402
from real.drafters.selfspec import SelfDrafter  # noqa: E402
from real.loop import Settings, decode  # noqa: E402
from real.measure import Sample  # noqa: E402
from real.record import RequestRows, decode_plain, proposer_of, record_request  # noqa: E402
from real.target import Target  # noqa: E402
from specsim.engine import replay as replayed  # noqa: E402
from specsim.errors import ConfigError, run_cli  # noqa: E402
from specsim.online import OnlineController  # noqa: E402
from specsim.regret.worlds import trace_case  # noqa: E402
from specsim.trace import TraceChunk, TraceMeta, read_trace  # noqa: E402
from tests.real_law import FixedClock, one_thread  # noqa: E402, F401 - one_thread is a fixture
from tests.real_lossless import plain_greedy  # noqa: E402
from tests.real_selfspec import ARMS, COSTS, Reference, blocks_of, controller_for, self_drafter  # noqa: E402
from tests.real_tiny import prompt_ids, tiny_loaded  # noqa: E402

NEW = 24
PROMPT = prompt_ids(6)


def recorded(name: str = "llama", *, stop_ids: tuple[int, ...] = (), sampled: tuple[int, int] | None = None) -> Any:
    blocks = blocks_of(name)
    return record_request(
        blocks.target,
        proposer_of(self_drafter(blocks)),
        PROMPT,
        max_new_tokens=NEW,
        max_draft_len=4,
        stop_ids=stop_ids,
        sampled=sampled,
        log=pytest.fail,
    )


def chunk_of(rows: RequestRows) -> tuple[TraceMeta, TraceChunk]:
    """A trace as `real.probe` writes it, at prices that tell the arms apart."""
    arms: Any = tuple({"name": str(arm), "budget": n, "draft_s": 0.1 * n} for n, arm in enumerate(reversed(ARMS)))
    return TraceMeta(kind="arm", max_draft_len=4, draft_len=4, arms=arms), next(recordings.to_chunks([rows]))


@pytest.fixture(scope="module")
def rows() -> RequestRows:
    return recorded()


def test_accepted_lengths_are_the_references(rows: RequestRows) -> None:
    model, prompt, output = blocks_of("llama").target, PROMPT.tolist(), rows.output.tolist()
    assert output == plain_greedy(model, PROMPT, NEW)
    reference = Reference(model)
    known = reference.read(prompt + output)
    for pos in range(NEW):
        for place, arm in enumerate(reversed(ARMS)):
            drafted, _ = reference.draft([*prompt, *output[:pos]], arm, 4, known)
            left = output[pos : NEW - 1]
            same = [one == two for one, two in zip(drafted, left, strict=False)] + [False]
            assert rows.arm_accept_len[pos, place] == same.index(False)
    assert rows.arm_accept_len[:, -1].tolist() == [min(4, NEW - 1 - pos) for pos in range(NEW)]  # the whole target
    assert len(set(rows.arm_accept_len.ravel().tolist())) == 5
    assert rows.mismatches == 0


@pytest.mark.parametrize("stopped", [False, True])
@pytest.mark.parametrize("name", ["llama", "qwen3", "mistral"])
def test_every_arms_live_run_is_the_replay_of_the_trace(name: str, stopped: bool) -> None:
    """The last of the live arms is the first of the trace; with a stop token the text ends inside a draft."""
    ends = (plain_greedy(blocks_of(name).target, PROMPT, NEW)[NEW // 2],) if stopped else ()
    rows = recorded(name, stop_ids=ends)
    meta, chunk = chunk_of(rows)
    lengths = set()
    for number in range(len(ARMS)):
        drafter = self_drafter(blocks_of(name))
        online = OnlineController(controller_for(f"arm:index={number}", drafter), compiled=False)
        asked = Settings(max_new_tokens=NEW, stop_ids=ends)
        found = decode(Target(blocks_of(name).target), drafter, online, PROMPT, asked, clock=FixedClock())
        spelling = f"arm:index={len(ARMS) - 1 - number}"
        [log] = replayed(meta, [chunk], COSTS, [spelling], keep_rounds=True, compiled=False).rounds
        assert found.output == rows.output.tolist()
        columns = ("pos", "ctx_len", "accepted_len", "emitted_len")
        live = [tuple(getattr(row, key) for key in columns) for row in found.rounds]
        assert live == [tuple(int(log[key][n]) for key in columns) for n in range(len(log["pos"]))]
        lengths.add(len(live))
    assert len(lengths) > 1


def test_a_sampled_text_is_plain_samplings_and_drafts_are_greedy() -> None:
    rows = recorded(sampled=(3, 1))
    model = blocks_of("llama").target
    assert (
        rows.output.tolist() == decode_plain(model, PROMPT, NEW, (), sampled=(3, 1)) != plain_greedy(model, PROMPT, NEW)
    )
    reference, text = Reference(model), PROMPT.tolist() + rows.output.tolist()
    known = reference.read(text)
    for pos in (0, 7, 15):
        drafted, _ = reference.draft(text[: len(PROMPT) + pos], ARMS[1], 4, known)
        same = [one == two for one, two in zip(drafted, rows.output[pos:-1].tolist(), strict=False)] + [False]
        assert rows.arm_accept_len[pos, len(ARMS) - 2] == same.index(False)


def test_seconds_are_those_of_whole_drafts_and_the_target_passes_between(rows: RequestRows, monkeypatch) -> None:
    """Drafts are timed alone, the target's pass over the draft before stands between two of them."""
    assert rows.arm_draft_s.shape == (NEW, len(ARMS))
    assert (rows.arm_draft_s > 0).all()
    seen: list[str] = []

    class Told(FixedClock):
        def enter(self) -> None:
            seen.append("enter")

        def leave(self, stage: str) -> None:
            seen.append(stage)

        def read(self) -> tuple[float, float, float]:
            return 0.5, 0.0, 9.0

    def passed(model: Any, tokens: torch.Tensor, *rest: Any, **how: Any) -> torch.Tensor:
        seen.append(f"{'target' if model is blocks_of('llama').target else 'arm'} {len(tokens)}")
        return forward(model, tokens, *rest, **how)

    from real.drafters import selfspec, selfspec_record

    forward = selfspec_record.forward
    monkeypatch.setattr(selfspec_record, "clock_for", lambda device: Told())
    for module in (selfspec, selfspec_record):
        monkeypatch.setattr(module, "forward", passed)
    arms = (Arm.parse("m1"), Arm.parse("1"))
    recorder = proposer_of(self_drafter(blocks_of("llama"), arms))
    assert isinstance(recorder, selfspec_record.ArmsRecorder)
    with torch.inference_mode():
        found = recorder.walk(PROMPT, torch.cat([PROMPT, PROMPT[:1]]))
    assert found.draft_s.tolist() == [[0.5, 0.5]]
    turn = ["enter", *["arm 1"] * 4, "draft", "target 5"]
    assert seen == [f"target {len(PROMPT) - 1}", *turn * 4, "target 1"]  # each arm twice: the first time is a warm-up


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"stop": 0.5}, "with stop their number varies; record it without stop"),
        ({"tree": True}, "record it without tree"),
        ({"arms": ARMS[:1]}, r"record a file of arms \(self:arms=FILE\)"),
    ],
)
def test_what_a_trace_of_arms_cannot_hold_is_refused(options: dict[str, Any], reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        proposer_of(self_drafter(blocks_of("llama"), **options))


def test_arms_made_on_the_way_are_refused() -> None:
    class Made(Family):
        size = 2

    drafter = SelfDrafter(blocks_of("llama"), Made(), name="made", max_draft_len=4)
    with pytest.raises(ConfigError, match="arms made while decoding are in no trace"):
        proposer_of(drafter)


# --- the file --------------------------------------------------------------------------------------------------------


def write_arms(folder: Path, *texts: str) -> Path:
    ArmFile("tiny", 3, "by hand", tuple(Arm.parse(text) for text in texts)).save(folder / "arms.json")
    return folder / "arms.json"


def left_with(command: Any, *words: str) -> int:
    with pytest.raises(SystemExit) as left:
        run_cli(command, list(words))
    return left.value.code


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "p.jsonl").write_text("\n".join(json.dumps({"prompt": text}) for text in ("abcabcabd", "xyzzy xy")))
    write_arms(tmp_path, "1", "", "m1", "a0+m1,2")
    monkeypatch.setattr(probe, "load_target", lambda *_, **__: tiny_loaded(layers=3, seed=3))
    return tmp_path


def record_file(folder: Path, *words: str) -> int:
    fixed = ("--target=tiny", f"--dataset={folder / 'p.jsonl'}", "--requests=2", "--max-new-tokens=14")
    drafter = f"--drafter=self:arms={folder / 'arms.json'},length=3"
    return left_with(probe.main, *fixed, drafter, f"--out={folder / 't.parquet'}", "--latency-repeats=0", *words)


def test_the_file_is_a_valid_trace_of_arms(folder: Path) -> None:
    assert record_file(folder) == 0
    meta, chunk = read_trace(folder / "t.parquet")
    assert (meta.kind, meta.draft_len, meta.max_draft_len, meta.exact, meta.coverage) == (
        *("arm", 3, 3, True),
        "every-position",
    )
    assert meta.arms is not None
    assert [arm["name"] for arm in meta.arms] == ["a0+m1,2", "1", "m1", ""]
    assert [arm["budget"] for arm in meta.arms] == sorted(arm["budget"] for arm in meta.arms)
    assert meta.arms[-1]["budget"] == 1.0
    assert chunk.arm_accept_len is not None
    assert chunk.arm_draft_s is not None
    for place, arm in enumerate(meta.arms):
        assert arm["draft_s"] == pytest.approx(float(np.median(chunk.arm_draft_s[:, place])) / 3, rel=1e-5)
    assert len(pq.read_table(folder / "t.parquet")["token"]) == chunk.rows
    assert chunk.ctx_len is not None


def test_controllers_of_arms_replay_the_file_and_regret_reads_it(folder: Path) -> None:
    assert record_file(folder) == 0
    meta, chunk = read_trace(folder / "t.parquet")
    rules = ["sp2ec", "ucbspec", "exp3spec", "klucb-unimodal", "best-arm"]
    results = replayed(meta, [chunk], COSTS, rules, compiled=False).results
    assert [row["tokens"] for row in results] == [chunk.rows] * 5
    assert all(sum(row["arm_pulls"]) == row["rounds"] for row in results)
    case = trace_case(folder / "t.parquet", COSTS, quota=None, runs=1, seed=0, carry=True)
    assert case.throughput.shape == (4,)


def test_verifying_is_not_charged_with_drafts_of_arms() -> None:
    """A draft's own first cost belongs to the recorded seconds of the draft."""
    blank = Sample(s=1, ctx_len=9, passes=0, reads=1, own=0, accepted=0, draft_s=0.0, verify_s=1.0, overhead_s=0.0)
    drafts = [
        replace(blank, s=n + 1, passes=n, own=n, draft_s=0.5 + 0.1 * n, verify_s=1.0 + 0.1 * n) for n in range(1, 6)
    ]
    samples = [blank, *drafts] * 4
    charged = [float(fit(samples, {}, arms=arms).model.verify_s(4)) for arms in (None, ("a", "b"))]
    assert charged == pytest.approx([1.8, 1.3])


def test_recording_goes_on_only_with_the_same_arms(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def stopped(*args: Any, **options: Any) -> None:
        raise KeyboardInterrupt

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(recordings.Steps, "done", stopped)
        assert record_file(folder) == 130
    write_arms(folder, "1", "")
    assert record_file(folder) == 2
    assert "other settings (arms;" in capsys.readouterr().err
    write_arms(folder, "1", "", "m1", "a0+m1,2")
    assert record_file(folder) == 0
