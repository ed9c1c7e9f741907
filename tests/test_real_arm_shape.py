"""Means of arms over requests, by hand, the warning where they are not concave, and who says it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch", reason="real/ needs the extra 'real'")

from real import probe
from real.arm_shape import ArmSums, shape_of, sums_of_run, sums_of_trace, warnings_of
from real.builders.arm import Arm, ArmFile
from real.folder import Request, Run, read_run
from real.loop import Decoded, Round
from specsim.chunk import TraceChunk
from specsim.errors import run_cli
from tests import real_runs
from tests.real_tiny import tiny_loaded

NAMES = ("dear", "middle", "cheap")


def sums(tokens: list[float], seconds: list[float], *, requests: int = 8, noise: float = 0.0) -> ArmSums:
    """Requests of 10 rounds of each arm; `noise` is added to the tokens of every second one, taken from the others."""
    sign = np.where(np.arange(requests) % 2 == 0, 1.0, -1.0)[:, None]
    rounds = np.full((requests, len(tokens)), 10.0)
    return ArmSums(rounds, 10 * (np.array(tokens) + noise * sign), 10 * np.tile(seconds, (requests, 1)))


def test_means_and_errors_are_ratios_over_requests() -> None:
    """Arm 0: 2 of 1 round and 9 of 3 rounds, so 11/4; residuals -0.75 and 0.75, error sqrt(2 * 1.125) / 4."""
    rounds = np.array([[1.0, 0.0], [3.0, 0.0]])
    shape = shape_of(("a", "b"), ArmSums(rounds, np.array([[2.0, 0.0], [9.0, 0.0]]), rounds * 0.5))
    assert shape["each"] == [
        {"index": 0, "name": "a", "rounds": 4, "tokens": 2.75, "tokens_error": 0.375, "seconds": 0.5},
        {"index": 1, "name": "b", "rounds": 0, "tokens": None, "tokens_error": None, "seconds": None},
    ]
    assert "fewer than 3 arms" in shape["not_judged"]
    json.dumps(shape, allow_nan=False)


def test_a_valley_is_told_unless_noise_explains_it() -> None:
    """'middle' lies 0.5 tokens below the chord from 1 to 3."""
    shape = shape_of(NAMES, sums([3.0, 1.5, 1.0], [3.0, 2.0, 1.0]))
    assert "'middle' lies 0.5 tokens below the chord from 'cheap' to 'dear'" in shape["not_concave"]
    assert warnings_of(shape) == [f"warning: {shape['not_concave']}"]
    for quiet in (
        sums([3.0, 2.5, 1.0], [3.0, 2.0, 1.0]),  # concave
        sums([3.0, 1.5, 1.0], [3.0, 2.0, 1.0], noise=1.0),
    ):
        shape = shape_of(NAMES, quiet)
        assert shape["not_concave"] is shape["not_judged"] is None
        assert warnings_of(shape) == []
    assert warnings_of(None) == []


def test_what_cannot_be_judged_says_why() -> None:
    few = shape_of(NAMES, sums([3.0, 1.5, 1.0], [3.0, 2.0, 1.0], requests=7))
    assert few["not_judged"] == "an arm was played in 7 requests; needed: 8"
    some = sums([3.0, 1.5, 1.0], [3.0, 2.0, 1.0])
    some.rounds[3, 1] = 0.0
    assert "played in 7 requests" in shape_of(NAMES, some)["not_judged"]
    assert "two cost the same" in shape_of(NAMES, sums([3.0, 1.5, 1.0], [3.0, 3.0, 1.0]))["not_judged"]


def test_positions_with_room_for_a_whole_draft_count() -> None:
    """Two requests of 4 and 2 positions, drafts of 2: only the first two of the first one have three tokens left."""
    accepted = np.array([[2, 0], [1, 1], [1, 0], [0, 0], [1, 0], [0, 0]], np.int16)
    chunk = TraceChunk(
        request=np.array([0, 0, 0, 0, 1, 1], np.int32),
        pos=np.array([0, 1, 2, 3, 0, 1], np.int32),
        offsets=np.arange(7, dtype=np.int64) * 2,
        accept_len=accepted.max(axis=1),
        arm_accept_len=accepted,
        arm_draft_s=np.arange(12, dtype=np.float32).reshape(6, 2),
    )
    found = sums_of_trace(chunk, 2)
    assert [part.tolist() for part in found] == [[[2, 2], [0, 0]], [[5, 3], [0, 0]], [[2, 4], [0, 0]]]


def row(arm: int, pos: int, emitted: int, seconds: float, *, drafted: int = 2) -> Round:
    blank: Any = {"submitted_len": drafted, "draft_passes": drafted, "available_len": drafted}
    return Round(
        arm=arm, drafted_len=drafted, q=np.zeros(0, np.float32), pos=pos, emitted_len=emitted, round_s=seconds, **blank
    )


def test_a_runs_rounds_count_once_warm_up_and_ends_aside() -> None:
    """Ten tokens, drafts of 2: rounds from place 8 on may be cut, one without a draft is nobody's."""
    rounds = [row(0, 0, 3, 1.0), row(1, 3, 1, 2.0), row(1, 4, 3, 2.5), row(0, 7, 1, 1.5), row(0, 8, 2, 9.0)]
    done = Decoded(prompt_len=5, output=list(range(10)), rounds=[*rounds, row(0, 9, 1, 4.0, drafted=0)])
    runs = (Run(controller="a", decoded=done, warmup=True), Run(controller="a", decoded=done))
    found = sums_of_run([Request(number=0, id="0", runs=runs)], 3, 2)
    assert [part.tolist() for part in found] == [[[2, 2, 0]], [[4, 4, 0]], [[2.5, 4.5, 0]]]


# --- who says it ------------------------------------------------------------------------------------------------------


def test_a_recording_names_its_best_arm_and_warns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "p.jsonl").write_text("\n".join(json.dumps({"prompt": f"abcabcab {n}"}) for n in range(8)))
    arms = tuple(Arm.parse(text) for text in ("1", "", "m1"))
    ArmFile("tiny", 3, "by hand", arms).save(tmp_path / "arms.json")
    monkeypatch.setattr(probe, "load_target", lambda *_, **__: tiny_loaded(layers=3, seed=3))

    def seconds(self: Any, arm: int, *rest: Any) -> Any:
        return original(self, arm, *rest)[0], (3.0, 2.75, 1.0)[arm]

    from real.drafters.selfspec_record import ArmsRecorder

    original = ArmsRecorder._try
    monkeypatch.setattr(ArmsRecorder, "_try", seconds)
    words = [f"--dataset={tmp_path / 'p.jsonl'}", "--requests=8", "--max-new-tokens=10", "--latency-repeats=0"]
    words += [f"--drafter=self:arms={tmp_path / 'arms.json'},length=2", f"--out={tmp_path / 't.parquet'}"]
    with pytest.raises(SystemExit) as left:
        run_cli(probe.main, words)
    assert left.value.code == 0
    out, err = capsys.readouterr()
    line, last = out.strip().splitlines()
    summary = json.loads(last)
    # The whole target drafts what it would say itself: 2 of 2.
    assert "mean accept_len 2.00 with the arm that leaves nothing out, the most of 3" in line
    assert summary["mean_accept_len"] == 2.0
    each = summary["arms"]["each"]
    assert [one["name"] for one in each] == ["", "m1", "1"]
    assert [one["seconds"] for one in each] == [3.0, 2.75, 1.0]
    assert {one["rounds"] for one in each} == {8 * 8}
    assert "'m1' lies" in summary["arms"]["not_concave"]
    assert f"warning: {summary['arms']['not_concave']}" in err


@pytest.mark.filterwarnings(*real_runs.THIRD_PARTY_WARNINGS)
def test_a_run_tells_what_its_arms_gave(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = real_runs.make_place(tmp_path)
    (tmp_path / "prompts.jsonl").write_text("\n".join(json.dumps({"prompt": f"abcabcab {n}"}) for n in range(8)))
    ArmFile("tiny", 3, "by hand", tuple(Arm.parse(text) for text in ("1", "", "m1"))).save(tmp_path / "arms.json")
    drafter = f"--model.drafter=self:arms={tmp_path / 'arms.json'},length=2"
    rules = "--model.controllers=[arm:index=0,arm:index=1,arm:index=2]"
    assert real_runs.run("test", f"--config={config}", drafter, rules) == 0
    arms = read_run(tmp_path / "out")["arms"]
    assert (arms["seconds_of"], arms["not_judged"]) == ("round", None)
    assert [one["name"] for one in arms["each"]] == ["", "m1", "1"]
    assert arms["each"][0]["tokens"] == 3.0  # the whole target's drafts are what it would say
    assert all(one["rounds"] >= 8 and one["seconds"] > 0 for one in arms["each"])
    assert ("warning: mean tokens are not concave" in capsys.readouterr().err) == (arms["not_concave"] is not None)
