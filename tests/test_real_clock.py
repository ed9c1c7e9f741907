"""Timing: where the clock is asked, where the host waits, and what the two clocks add up (P32)."""

from __future__ import annotations

import itertools
import types

import pytest

torch = pytest.importorskip("torch", reason="real/ needs the extra 'real'")

from real import clock as clocks  # noqa: E402
from real.clock import DRAFT, VERIFY, EventClock, HostClock, clock_for  # noqa: E402
from real.drafters.base import NoDrafter  # noqa: E402
from real.drafters.layer_skip import skip_layers  # noqa: E402
from real.drafters.model import ModelDrafter  # noqa: E402
from real.drafters.prompt_lookup import PromptLookupDrafter  # noqa: E402
from real.loop import Settings, decode  # noqa: E402
from real.target import Target  # noqa: E402
from real.verify import sampling_processors  # noqa: E402
from specsim.controllers import Setting, build  # noqa: E402
from specsim.latency import LatencyModel  # noqa: E402
from specsim.online import OnlineController  # noqa: E402
from tests.real_tiny import STOP, prompt_ids, tiny_llama  # noqa: E402

# What makes the host wait for the device.
COPIES = ("tolist", "item", "cpu", "__bool__", "__int__", "__float__")


class Journal:
    """A clock that writes down when it is asked, among the copies to the host."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def start(self) -> None:
        self.lines.append("start")

    def enter(self) -> None:
        self.lines.append("enter")

    def leave(self, stage: str) -> None:
        self.lines.append(f"leave {stage}")

    def read(self) -> tuple[float, float, float]:
        self.lines.append("read")
        return 0.25, 0.5, 1.0


@pytest.fixture
def journal(monkeypatch) -> Journal:
    found = Journal()

    def watched(name, original):
        def copy(self, *args, **options):
            found.lines.append("copy")
            return original(self, *args, **options)

        return copy

    for name in COPIES:
        monkeypatch.setattr(torch.Tensor, name, watched(name, getattr(torch.Tensor, name)))
    return found


def decoded(drafter, spelling: str, clock=None, *, sample: bool = False):
    setting = Setting(
        block_len=drafter.block_len,
        max_draft_len=max(1, drafter.max_draft_len),
        latency=LatencyModel.affine(c_s=0.01, b_s=0.1),
    )
    settings = Settings(max_new_tokens=20, sample=sample, processors=sampling_processors(temperature=0.8, top_k=20))
    prompt = torch.cat([prompt_ids(5), prompt_ids(5)])
    target = Target(tiny_llama(seed=3, spread=0.08))
    return decode(target, drafter, OnlineController(build(spelling, setting)), prompt, settings, clock=clock)


def drafters():
    model = tiny_llama(seed=3, spread=0.08)
    return {
        "none": (NoDrafter(), "plain"),
        "model": (ModelDrafter(skip_layers(model, (1,)), name="model", max_draft_len=4), "static:length=3"),
        "token by token": (ModelDrafter(skip_layers(model, (1,)), name="model", max_draft_len=4), "threshold"),
        "lookup": (PromptLookupDrafter(max_draft_len=4, stop_ids=(STOP,)), "static:length=4"),
    }


@pytest.mark.parametrize("sample", [False, True])
@pytest.mark.parametrize("kind", ["none", "model", "token by token", "lookup"])
def test_p32_stages_follow_each_other_and_the_host_waits_once(journal, kind, sample):
    drafter, spelling = drafters()[kind]
    result = decoded(drafter, spelling, journal, sample=sample)
    lines = journal.lines
    assert lines.count("start") == 1
    rounds = "\n".join(lines[lines.index("start") + 1 :]).split("read\n")
    assert rounds[-1].endswith("read")
    assert len(rounds) == len(result.rounds)
    proposals = 0
    for text in rounds:
        stages = [part.strip().split("\n") for part in text.removesuffix("read").split("enter") if part.strip()]
        *drafts, (*waits, last) = stages
        # The verdict's copy is the one point where the host waits, and the clock is read after it, not before.
        assert (waits, last) == (["copy"], f"leave {VERIFY}")
        for draft in drafts:
            # A drafter's confidences have to be on the host before the controller can look at them.
            assert draft == ["copy", f"leave {DRAFT}"]
        proposals += len(drafts)
    assert (proposals > 0) == (kind != "none")
    assert all((row.draft_s, row.verify_s, row.round_s) == (0.25, 0.5, 1.0) for row in result.rounds)
    assert result.rounds[0].overhead_s == 0.25


def test_p32_rounds_leave_no_gap(monkeypatch):
    # A counter that moves by one whenever it is looked at: whatever the loop does lies in some round.
    ticks = itertools.count()
    monkeypatch.setattr(clocks.time, "perf_counter", lambda: float(next(ticks)))
    drafter, spelling = drafters()["token by token"]
    result = decoded(drafter, spelling, HostClock())
    # Beginning and end of stages and of the controller's functions, and the reading.
    calls = [1 + 2 * (row.draft_s + row.verify_s + row.controller_s) for row in result.rounds]
    assert [row.round_s for row in result.rounds] == calls
    assert all(row.verify_s == 1.0 for row in result.rounds)
    assert {row.draft_s for row in result.rounds} > {1.0}
    assert result.decode_s == sum(calls)


def test_the_controllers_time_is_that_in_its_functions(monkeypatch):
    """By a counter that moves nowhere else; what follows a round's reading counts in the next one."""
    now, told = [0.0], []
    monkeypatch.setattr(clocks.time, "perf_counter", lambda: now[0])

    class Slow(OnlineController):
        def begin(self, *place):
            now[0] += 1.0
            return super().begin(*place)

        def revise(self, *seen):
            now[0] += 0.25
            return super().revise(*seen)

        def update(self, accepted, cost_s):
            now[0] += 16.0
            told.append(cost_s)
            super().update(accepted, cost_s)

    drafter, _ = drafters()["token by token"]
    setting = Setting(block_len=1, max_draft_len=4, latency=LatencyModel.affine(c_s=0.01, b_s=0.1))
    online = Slow(build("threshold:tau=0.03", setting), compiled=False)
    target, settings = Target(tiny_llama(seed=3, spread=0.08)), Settings(max_new_tokens=20)
    result = decode(target, drafter, online, prompt_ids(5), settings, clock=HostClock())
    for row in result.rounds:
        assert row.controller_s == row.round_s == row.overhead_s == row.cost_s
        assert row.controller_s == 1.0 + 0.25 * row.drafted_len + 16.0 * (row.round > 0)
    assert {row.drafted_len for row in result.rounds} > {0, 1}
    assert told == [row.round_s for row in result.rounds]
    assert result.controller_s == result.decode_s == now[0] - 16.0


class Stream:
    """A pretended GPU: what is launched takes its time later, and events note when the stream got to them."""

    def __init__(self, monkeypatch) -> None:
        self.now_s, self.log = 0.0, []
        stream = self

        class Event:
            def __init__(self, *, enable_timing: bool) -> None:
                assert enable_timing

            def record(self) -> None:
                self.at_s = stream.now_s
                stream.log.append("record")

            def synchronize(self) -> None:
                stream.log.append("wait")

            def elapsed_time(self, other) -> float:
                return 1e3 * (other.at_s - self.at_s)

        fake = types.SimpleNamespace(Event=Event, synchronize=lambda: stream.log.append("wait for all"))
        monkeypatch.setattr(clocks.torch, "cuda", fake)
        self.host_s = 0.0
        monkeypatch.setattr(clocks.time, "perf_counter", lambda: self.host_s)


def test_p32_events_are_recorded_without_waiting_and_read_at_the_end(monkeypatch):
    stream, clock = Stream(monkeypatch), EventClock()
    clock.start()
    assert stream.log == ["wait for all"]
    for scale in (1.0, 2.0):
        stream.log.clear()
        for stage, seconds in ((DRAFT, 0.25), (DRAFT, 0.5), (VERIFY, 2.0)):
            clock.enter()
            stream.now_s += scale * seconds
            clock.leave(stage)
            stream.now_s += 0.125  # between stages: nobody's time
        assert stream.log == ["record"] * 6
        stream.host_s += scale * 4.0
        assert clock.read() == pytest.approx((scale * 0.75, scale * 2.0, scale * 4.0))
        assert stream.log == ["record"] * 6 + ["wait"] * 3
    stream.host_s += 1.0
    assert clock.read() == (0.0, 0.0, 1.0)


def test_a_clock_for_every_device():
    assert isinstance(clock_for("cpu"), HostClock)
    assert isinstance(clock_for("cuda:0"), EventClock)
