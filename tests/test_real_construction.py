"""What making arms costs: counted by forward passes, in the seconds of the decode, and told apart from them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="real/ needs the extra 'real'")

import real.loop  # noqa: E402
from real import clock as clocks  # noqa: E402
from real import generate  # noqa: E402
from real.builders.arm import nested  # noqa: E402
from real.clock import HostClock  # noqa: E402
from real.drafters.base import Built  # noqa: E402
from real.drafters.cossim import CossimArms  # noqa: E402
from real.drafters.selfspec import SelfDrafter  # noqa: E402
from real.drafters.subblocks import SubBlocks  # noqa: E402
from real.folder import read_run  # noqa: E402
from real.loop import Decoded, Round, Settings, decode  # noqa: E402
from real.shadow import shadow  # noqa: E402
from real.target import Target  # noqa: E402
from specsim.online import OnlineController  # noqa: E402
from tests.real_law import one_thread  # noqa: E402, F401 - one_thread is a fixture
from tests.real_runs import THIRD_PARTY_WARNINGS, make_place, run  # noqa: E402
from tests.real_selfspec import controller_for  # noqa: E402
from tests.real_tiny import prompt_ids, save_tiny, tiny_llama  # noqa: E402

LAYERS, SPREAD, ARMS = 9, 0.15, 4
PUBLISHED: Any = {"arms": ARMS, "warmup": "tokens", "probe": "1"}

pytestmark = [pytest.mark.filterwarnings(text) for text in THIRD_PARTY_WARNINGS]


class Told(OnlineController):
    """Keeps what rounds are said to cost."""

    def start_request(self, request: int) -> None:
        super().start_request(request)
        self.costs: list[float] = []

    def update(self, accepted: int, round_s: float) -> None:
        self.costs.append(round_s)
        super().update(accepted, round_s)


@pytest.fixture
def blocks(monkeypatch: pytest.MonkeyPatch) -> Iterator[SubBlocks]:
    """A target by whose forward passes time goes on: one second each, whatever the pass."""
    pieces, now = SubBlocks(tiny_llama(layers=LAYERS, spread=SPREAD, seed=4)), [0.0]

    def count(*_: object) -> None:
        now[0] += 1.0

    handle = pieces.target.get_input_embeddings().register_forward_hook(count)
    monkeypatch.setattr(clocks.time, "perf_counter", lambda: now[0])
    monkeypatch.setattr(real.loop, "perf_counter", lambda: now[0])
    yield pieces
    handle.remove()


def decoded(
    blocks: SubBlocks, *, prompt: int = 1, length: int = 4, **options: Any
) -> tuple[Decoded, Told, SelfDrafter]:
    family = CossimArms(blocks, arms=ARMS, **options)
    drafter = SelfDrafter(blocks, family, name="cossim", max_draft_len=length, arm_draft_len=length)
    online = Told(controller_for("sp2ec", drafter), seed=3, compiled=False)
    ids, asked = prompt_ids(prompt), Settings(max_new_tokens=24)
    return decode(Target(blocks.target), drafter, online, ids, asked, clock=HostClock()), online, drafter


@pytest.mark.parametrize(("warmup", "early"), [("tokens", 4.0), ("prompt", 0.0)])
def test_passes_of_a_construction_are_seconds_of_the_decode_and_told_apart(
    blocks: SubBlocks, warmup: str, early: float
) -> None:
    found, online, drafter = decoded(blocks, warmup=warmup, probe="1")
    assert (found.prefill_s, found.early_build_s) == (1.0, early)
    for row in found.rounds:
        probe = 1.0 if row.round < ARMS - 1 else 0.0  # the last arm's round makes no other
        assert (row.draft_s, row.verify_s, row.build_s) == (row.drafted_len, 1.0, probe)
        assert row.overhead_s == row.build_s
        assert row.round_s == row.draft_s + row.verify_s + row.build_s
    assert found.build_s == early + ARMS - 1
    assert found.decode_s == early + sum(row.round_s for row in found.rounds)
    assert (found.built.arms, found.built.families, found.built.preparatory) == (ARMS, 1, 0)
    # What an arm costs is what it will cost when nothing is to be built; replayed, too.
    assert online.costs == [row.draft_s + row.verify_s for row in found.rounds]
    options = {"block_len": 1, "max_draft_len": 4, "seed": 3, "compiled": False}
    assert shadow(online.controller, [(0, found.rounds)], **options) is None
    # The next request counts from nothing.
    again = decode(Target(blocks.target), drafter, online, prompt_ids(1), Settings(max_new_tokens=1), clock=HostClock())
    assert again.build_s == early


@pytest.mark.parametrize("rebuild", [6, None])
def test_arms_are_made_anew_when_the_controller_begins_anew(blocks: SubBlocks, rebuild: int | None) -> None:
    """After the same number of rounds, from the text as it is then: what a request would begin with that has it as its
    prompt. Without the option they stay, and the controller alone begins anew."""
    drafter = SelfDrafter(blocks, family := CossimArms(blocks, rebuild=rebuild, **PUBLISHED), name="c", max_draft_len=4)
    online = Told(controller_for("sp2ec:reset=6", drafter), seed=3, compiled=False)
    made, texts = [], []

    def look(row: Round, tokens: list[int]) -> None:
        texts.append((texts[-1] if texts else prompt_ids(1).tolist()) + tokens)
        made.append(list(family.arms))

    asked = Settings(max_new_tokens=40)
    found = decode(Target(blocks.target), drafter, online, prompt_ids(1), asked, clock=HostClock(), on_round=look)
    assert [row.arm for row in found.rounds[6:10]] == [row.arm for row in found.rounds[:4]] == [0, 1, 2, 3]
    assert found.built.preparatory == 0
    if rebuild is None:
        assert found.built == Built(build_s=4.0 + ARMS - 1, arms=ARMS, families=1)
        return
    assert found.built.families == 1 + len(found.rounds) // 6
    assert [len(arms) for arms in made[:12]] == [2, 3, 4, 4, 4, 1] * 2
    # The passes of the warm-up are in the last round of the old arms, whose cost they are not.
    assert (found.rounds[5].build_s, found.rounds[5].cost_s) == (4.0, found.rounds[5].draft_s + 1.0)
    fresh = SelfDrafter(blocks, other := CossimArms(blocks, **PUBLISHED), name="c", max_draft_len=4)
    short = Settings(max_new_tokens=1)
    decode(Target(blocks.target), fresh, online, torch.tensor(texts[5]), short, clock=HostClock())
    assert made[5] == other.arms[:1]


def test_a_probe_is_made_only_where_the_round_has_no_row_otherwise(blocks: SubBlocks) -> None:
    """Drafts of one token: of longer ones passes have read the first rejected token, or accepted ones."""
    for length in (1, 4):
        seen = set()
        for prompt in range(1, 6):
            found, _, drafter = decoded(blocks, prompt=prompt, probe="needed", length=length)
            for row in found.rounds[: ARMS - 1]:
                assert row.build_s == float(length == 1)
                seen.add(row.accepted_len)
            assert nested(drafter.family.arms)
            assert len(drafter.family.arms) == ARMS
        assert len(seen) > 1


def test_a_run_reports_construction_per_prompt_and_in_all(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WANDB_MODE", "disabled")
    place = make_place(tmp_path)
    save_tiny(tmp_path / "tiny", layers=LAYERS)
    args = ["--model.drafter", "self:build=cossim,arms=4", "--model.controllers", "[arm:index=3,sp2ec]"]
    assert run("test", "--config", str(place), *args, "--data.requests", "2") == 0
    shown = capsys.readouterr().out
    assert "building" in shown
    results = {result["controller"]: result for result in read_run(tmp_path / "out")["results"]}
    lines = [json.loads(line) for line in (tmp_path / "out" / "outputs.jsonl").read_text().splitlines()]
    for name, result in results.items():
        mine = [line for line in lines if line["controller"] == name]
        build_s, decode_s = (sum(line[key] for line in mine) for key in ("build_s", "decode_s"))
        assert (result["build_s"], result["build_share"]) == pytest.approx((build_s, build_s / decode_s))
        assert result["controller_share"] == pytest.approx(sum(line["controller_s"] for line in mine) / decode_s)
        assert 0 < result["controller_share"] < 1
        assert {line["families"] for line in mine} == {int(name != "plain")}
        assert (build_s > 0) == (name != "plain")
    assert {line["preparatory"] for line in lines if line["controller"] == "arm:index=3"} == {3}
    assert f"{results['sp2ec']['build_share']:.2%}" in shown


def test_generate_tells_what_was_built() -> None:
    model = tiny_llama(layers=LAYERS, spread=SPREAD, seed=4)
    inputs = torch.stack([prompt_ids(1), prompt_ids(2)])
    options = {"max_new_tokens": 16, "return_dict_in_generate": True, "pad_token_id": 0, "do_sample": False}
    found = generate(model, inputs, drafter="self:build=cossim,arms=4", controller="sp2ec", **options)
    rows, times = found.decoded, found.times
    assert [row.built.arms for row in rows] == [4, 4]
    assert times["build_s"] == pytest.approx(sum(row.build_s for row in rows))
    assert times["build_share"] == pytest.approx(times["build_s"] / sum(row.decode_s for row in rows))
    assert 0 < times["controller_share"] < 1
