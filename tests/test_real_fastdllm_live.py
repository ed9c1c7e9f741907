"""Fast-dLLM drafts in the decode loop: every live controller, FailFast in both readings, sampling's exact law."""

from __future__ import annotations

import functools
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="real/ needs the extra 'real'")

import numpy as np  # noqa: E402

from real.drafters.base import NoDrafter  # noqa: E402
from real.loop import Decoded, Settings, check_pair, decode  # noqa: E402
from real.shadow import shadow  # noqa: E402
from real.target import Target  # noqa: E402
from specsim.controllers import REGISTRY  # noqa: E402
from specsim.controllers.failfast_repo import FailFastRepoParams, draft_window  # noqa: E402
from specsim.errors import ConfigError  # noqa: E402
from specsim.online import OnlineController  # noqa: E402
from tests.real_fastdllm import block_drafter, block_model, quiet_target, twin_model  # noqa: E402
from tests.real_law import (  # noqa: E402
    EXACT,
    FixedClock,
    Sampling,
    controller_of,
    decode_branches,
    gap,
    law_of,
    one_thread,  # noqa: F401 - a fixture
    plain_law,
    random_model,
)
from tests.real_lossless import plain_greedy  # noqa: E402
from tests.real_tiny import prompt_ids  # noqa: E402
from tests.worlds import SPELLINGS  # noqa: E402

TOKENS = 40
MODEL = quiet_target()
PLANS = ("failfast-repo:chunk=3", "failfast-repo:chunk=2,tau=0.1,max=12", "failfast-repo:chunk=9,tau=0.02,max=9")


@functools.cache
def subject() -> tuple[Any, list[int]]:
    prompt = prompt_ids(1, 21)
    return prompt, plain_greedy(MODEL, prompt, TOKENS)


def run(spelling: str, **options: Any) -> tuple[Decoded, Any]:
    drafter = block_drafter(twin_model(MODEL), **options)
    controller = controller_of(spelling, drafter)
    online = OnlineController(controller, seed=5, compiled=not controller.compiled)
    decoded = decode(Target(MODEL), drafter, online, subject()[0], Settings(max_new_tokens=TOKENS), clock=FixedClock())
    return decoded, controller


def live_spellings() -> list[str]:
    drafter = block_drafter(twin_model(MODEL))
    found = []
    for name, spec in REGISTRY.items():
        if "length" not in spec.kinds:
            continue
        for spelling in SPELLINGS.get(name, ())[:1] if name != "static" else ("static:length=7",):
            controller = controller_of(spelling, drafter)
            if controller.privilege == "none":
                found.append(spelling)
    return [*found, "libraspec:block=3,max=15", *PLANS]


@pytest.mark.parametrize("spelling", live_spellings())
def test_output_is_plain_greedy_output(spelling: str) -> None:
    for dual in (False, True) if spelling in PLANS else (False,):
        decoded, controller = run(spelling, threshold=0.3, dual=dual)
        assert decoded.output == subject()[1]
        difference = shadow(controller, [(0, decoded.rounds)], block_len=3, max_draft_len=20, seed=5, compiled=False)
        assert difference is None, str(difference)


def test_the_twin_is_half_right() -> None:
    """Otherwise the tests above would see nothing but rejections, or none."""
    decoded, _ = run("static:length=7", threshold=0.3)
    accepted, submitted = (
        sum(getattr(row, name) for row in decoded.rounds) for name in ("accepted_len", "submitted_len")
    )
    assert 0.15 * submitted < accepted < 0.9 * submitted
    assert any(row.forward_passes < row.drafted_len for row in decoded.rounds)


@pytest.mark.parametrize(
    "spelling", ["static:length=2", "failfast-repo:chunk=2,tau=0.4", "libraspec:block=2", "threshold"]
)
def test_sampled_output_has_the_law_of_the_target(spelling: str) -> None:
    """Every branch of the luck: the drafts are chosen, so that any rule may look at them."""
    target, prompt, sampling = random_model(3, 0), (0, 2, 1, 1, 0, 2), Sampling()
    drafter = block_drafter(block_model(vocabulary=3), mask_id=3, width=3, block=2, bd_size=4, small=2, max_draft_len=4)
    decoded = list(
        decode_branches(Target(target), drafter, controller_of(spelling, drafter), prompt, sampling.settings(4))
    )
    law = law_of(iter(decoded))
    assert sum(law.values()) == pytest.approx(1.0)
    assert gap(law, plain_law(target, prompt, 4, sampling)) < EXACT
    accepted = {row.accepted_len for _, one in decoded for row in one.rounds if row.submitted_len}
    assert {0, 1} <= accepted


@pytest.mark.parametrize("spelling", PLANS)
@pytest.mark.parametrize("threshold", [0.02, 0.3, 1.0])
def test_the_released_failfast_rule_runs_live_pass_by_pass(spelling: str, threshold: float) -> None:
    """Each round's length is the rule's over the passes made, and no pass was made after the one that decided."""
    decoded, controller = run(spelling, threshold=threshold, block=1)
    params = FailFastRepoParams(**{key: controller.config[key] for key in ("chunk", "tau", "max")})
    decided = 0
    for row in decoded.rounds:
        record = row.record
        if record is None:
            assert row.available_len == 0  # room for the target's own token only
            continue
        length, _ = window(record, params, len(record.count))
        assert row.submitted_len == min(length, row.available_len)
        assert row.drafted_len == row.submitted_len
        assert row.forward_passes == len(record.count)
        if row.available_len > length:
            assert stops(record, params, len(record.count))
            assert not stops(record, params, len(record.count) - 1)
            decided += 1
    assert decided > 2
    lengths = {row.submitted_len for row in decoded.rounds}
    assert len(lengths) > 1


def window(record: Any, params: FailFastRepoParams, passes: int) -> tuple[int, int]:
    confidences = int(record.count[:passes].sum())
    return draft_window(record.conf[:confidences], record.count[:passes], record.filled[:passes], params)[:2]


def stops(record: Any, params: FailFastRepoParams, passes: int) -> bool:
    return window(record, params, passes)[1] >= 2


def test_the_two_readings_of_failfast_differ() -> None:
    ideal, _ = run("failfast:chunk=3,tau=0.3", threshold=0.1)
    released, _ = run("failfast-repo:chunk=3,tau=0.3", threshold=0.1)
    assert [row.submitted_len for row in ideal.rounds] != [row.submitted_len for row in released.rounds]


def test_other_drafters_do_not_report_their_passes() -> None:
    with pytest.raises(ConfigError, match=r"all drafter passes, which none does not report"):
        check_pair(controller_of("failfast-repo", NoDrafter()), NoDrafter())


def test_a_rule_for_passes_is_told_when_there_are_none() -> None:
    online = OnlineController(controller_of("failfast-repo", block_drafter(MODEL)))
    assert online.begin(0, 5) == (-1, 10)
    with pytest.raises(ConfigError, match="told nothing"):
        online.revise(np.ones(10, np.float32), True)
    assert online.begin(0, 5, 4) == (-1, 4)  # a length known beforehand needs none
    assert online.revise(np.ones(10, np.float32), True) == (4, 4)
    assert not online.undecided
