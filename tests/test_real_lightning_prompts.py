"""Which prompts a process decodes, what controllers had learned of earlier ones, and the formulas of the results."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

torch = pytest.importorskip("torch", reason="real/ needs the extra 'real'")


from real.data import Prompt, load_prompts  # noqa: E402
from real.drafters.base import Built, NoDrafter  # noqa: E402
from real.drafters.choose import parse_drafter  # noqa: E402
from real.folder import Request, Run, RunFolder  # noqa: E402
from real.interleave import Comparison  # noqa: E402
from real.lightning.data import Batches, PromptData  # noqa: E402
from real.lightning.record import without_gaps  # noqa: E402
from real.loop import Decoded, Round, Settings  # noqa: E402
from real.recall import recall  # noqa: E402
from real.results import results_of, sums_of  # noqa: E402
from real.session import Session, make_drafter  # noqa: E402
from real.target import Target  # noqa: E402
from specsim.errors import ConfigError  # noqa: E402
from specsim.latency import LatencyModel  # noqa: E402
from tests.real_runs import (  # noqa: E402
    THIRD_PARTY_WARNINGS,
)
from tests.real_tiny import prompt_ids, tiny_loaded  # noqa: E402

pytestmark = [pytest.mark.filterwarnings(text) for text in THIRD_PARTY_WARNINGS]


# --- which prompts -----------------------------------------------------------------------------------------------


@given(st.integers(1, 40), st.integers(1, 5), st.sets(st.integers(0, 39)))
def test_shares_hold_every_prompt_once(prompts: int, world: int, kept: set[int]) -> None:
    shares = []
    for rank in range(world):
        data = PromptData()
        data.prompts, data.kept = [Prompt(str(n), "x") for n in range(prompts)], kept
        data.trainer = SimpleNamespace(global_rank=rank, world_size=world)  # type: ignore[assignment]
        batches = data.test_dataloader()
        assert len(batches) == len(list(batches)) >= 1  # a Trainer without batches calls no hooks
        shares.append([task.number for batch in batches for task in batch])
        assert all(number % world == rank for number in shares[-1])
    assert sorted(number for share in shares for number in share) == sorted(set(range(prompts)) - kept)


def test_an_empty_share_is_one_empty_batch() -> None:
    assert list(Batches([])) == [()]


def test_data_modules(tmp_path: Path, shared: Path) -> None:
    for dataset, requests, count in (("humaneval", None, 164), ("open-ended", 3, 3)):
        data = PromptData(dataset, requests)
        data.setup("test")
        assert len(data.prompts) == count
    data = PromptData(str(shared / "data" / "prompts" / "Spec-Bench" / "question.jsonl"))
    data.setup("test")
    assert len(data.prompts) == 480
    assert data.prompts[0].id == "81"
    assert data.prompts[0].text.startswith("Compose an engaging travel blog post")
    other = PromptData("open-ended", 3, seed=1)
    other.setup("test")
    again = PromptData("open-ended", 3, seed=1)
    again.setup("test")
    assert other.digest() == again.digest() != data.digest()
    with pytest.raises(ConfigError, match=r"data\.requests 165: humaneval has 164"):
        PromptData("humaneval", 165).setup("test")


def fake_datasets(rows: list[dict], calls: list) -> ModuleType:
    module = ModuleType("datasets")

    def load_dataset(name: str, config: str | None, *, split: str) -> list[dict]:
        calls.append((name, config, split))
        if split == "missing":
            raise ValueError('Unknown split "missing".')
        if name == "far/away":
            raise ConnectionError("Couldn't reach 'far/away' on the Hub")
        return rows

    module.load_dataset = load_dataset  # type: ignore[attr-defined]
    return module


def test_hub_datasets(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list = []
    rows = [{"q": "one", "task_id": "a"}, {"q": "two", "task_id": "b"}]
    monkeypatch.setitem(sys.modules, "datasets", fake_datasets(rows, calls))
    assert load_prompts("hub:org/set:config=main,split=train,column=q") == [Prompt("a", "one"), Prompt("b", "two")]
    assert calls == [("org/set", "main", "train")]
    for dataset, message in (
        ("hub:org/set", "no text in prompt or turns; name one of q, task_id with column="),
        ("hub:org/set:split=missing,column=q", "cannot be loaded .*Unknown split"),
        ("hub:far/away:column=q", "Couldn't reach .*reaches the hub"),
        ("hub:org/set:colum=q", "cannot read 'colum=q'"),
        ("hub:", "name one"),
    ):
        with pytest.raises(ConfigError, match=message):
            load_prompts(dataset)
    monkeypatch.setitem(sys.modules, "datasets", fake_datasets([{"turns": ["first", "second"]}], []))
    assert load_prompts("hub:org/set") == [Prompt("row-0", "first")]
    messages = [{"conversation": [{"role": "user", "content": "hello"}]}]
    monkeypatch.setitem(sys.modules, "datasets", fake_datasets(messages, []))
    assert load_prompts("hub:org/set:column=conversation") == [Prompt("row-0", "hello")]


def test_hub_without_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(ConfigError, match="pip install datasets"):
        load_prompts("hub:org/set")


# --- what controllers had learned ------------------------------------------------------------------------------------


def tiny_session(drafter: str) -> Session:
    loaded = tiny_loaded()
    spec = parse_drafter(drafter, target="tiny", n_layers=3)
    made = make_drafter(spec, loaded, max_draft_len=8)
    return Session(loaded=loaded, target=Target(loaded.model), drafter=made, plain=NoDrafter())


@pytest.mark.parametrize("drafter", ["early-exit:layers=2", "prompt-lookup"])
def test_recall_gives_controllers_back_what_they_had_learned(tmp_path: Path, drafter: str) -> None:
    latency = LatencyModel.affine(c_s=0.0005, b_s=0.002, draft_pass_s=0.0005)
    spellings = ["plain", "lambda", "lambda:calibrate=platt", "libraspec"]

    def fresh() -> Comparison:
        session = tiny_session(drafter)
        pairs = list(zip(spellings, session.controllers(spellings, latency), strict=True))
        return Comparison(session, pairs, Settings(max_new_tokens=24))

    comparison, folder = fresh(), RunFolder(tmp_path / "run", {})
    for number in range(4):
        prompt = prompt_ids(number, 16).repeat(2)
        request = comparison.run(number, str(number), prompt)
        folder.save(request)
    restored = fresh()
    for request in folder.load():
        recall(restored, request)
    learned = 0
    for spelling, lane in comparison.lanes.items():
        if lane.controller.per_request:
            continue
        width = lane.controller.initial.size
        before, after = lane._state[:, :width], restored.lanes[spelling]._state[:, :width]
        np.testing.assert_array_equal(after, before)
        learned += not np.array_equal(before, lane.controller.fresh_state()[:, :width])
    assert learned == 2


# --- formulas --------------------------------------------------------------------------------------------------------


def made_run(controller: str, tokens: int, rounds: int, seconds: float, *, token: int) -> Run:
    """Rounds of equal time that submit 3 tokens each (none when plain) and accept what makes `tokens` in all."""
    submitted = 0 if controller == "plain" else 3
    rows = [
        Round(
            arm=-1,
            drafted_len=submitted,
            submitted_len=submitted,
            draft_passes=0,
            available_len=submitted,
            q=np.zeros(submitted, np.float32),
            round=number,
            accepted_len=(tokens - rounds) // rounds,
            emitted_len=tokens // rounds,
            round_s=seconds / rounds,
            controller_s=0.125 / rounds,
            build_s=0.25 / rounds,
        )
        for number in range(rounds)
    ]
    decoded = Decoded(prompt_len=3, output=[token] * tokens, rounds=rows, prefill_s=2.0)
    if controller != "plain":
        decoded.early_build_s, decoded.built = 0.5, Built(build_s=0.75, arms=3, families=1)
    return Run(controller=controller, decoded=decoded)


def made_request(number: int, *, plain: tuple[int, float], fast: tuple[int, int, float]) -> Request:
    runs = (made_run("fast", *fast, token=5), made_run("plain", plain[0], *plain, token=4))
    return Request(number=number, id=str(number), runs=runs)


def test_results_are_ratios_of_sums_and_add_up_over_processes() -> None:
    """Two prompts of unequal length: the ratio of sums is not the mean of ratios, and both are given (P31)."""
    requests = [made_request(0, plain=(4, 1.0), fast=(4, 2, 0.5)), made_request(1, plain=(16, 2.0), fast=(16, 4, 4.0))]
    names = ["plain", "fast"]
    total = sum(sums_of(request, names) for request in requests)
    plain, fast = results_of(total, names)
    assert (plain.speedup, plain.tau, plain.different) == (1.0, 1.0, 0)
    # What is built before the first round takes time like any round; the prompt's pass is left out.
    assert (fast.decode_s, fast.prefill_s, fast.build_s) == pytest.approx((4.5 + 1.0, 4.0, 1.5))
    assert (fast.controller_share, fast.build_share) == pytest.approx((0.25 / 5.5, 1.5 / 5.5))
    assert (plain.build_s, plain.build_share) == (0.0, 0.0)
    assert fast.speedup == pytest.approx(3.0 / 5.5)
    assert fast.speedup_mean_of_ratios == pytest.approx((1.0 / 1.0 + 2.0 / 4.5) / 2)
    assert fast.tau == pytest.approx(20 / 6)
    assert fast.acceptance_rate == pytest.approx(14 / 18)
    assert fast.different == 2
    assert results_of(np.zeros_like(total), names) == []
    (alone,) = results_of(sums_of(requests[0], ["fast"]), ["fast"])
    assert alone.tokens_per_s == pytest.approx(4.0)


@pytest.mark.parametrize(
    ("done", "processes", "kept"),
    [
        ({0, 1, 2}, 1, {0, 1, 2}),
        ({0, 2, 3}, 1, {0}),  # 1 is gone: what followed it is decoded again
        ({1, 2}, 1, set()),
        ({0, 1, 3, 4, 5}, 2, {0, 1, 3, 5}),  # 2 is gone from process 0
    ],
)
def test_prompts_after_a_gap_are_decoded_again_in_their_order(done, processes, kept):
    assert without_gaps(done, processes) == kept
