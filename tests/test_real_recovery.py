"""P20: lengths that fell to their floor rise again once drafts are right."""

from __future__ import annotations

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="real/ needs the extra 'real'")

from real.loop import Settings  # noqa: E402
from tests.real_law import one_thread  # noqa: E402, F401 - a fixture
from tests.real_scripted import LENGTH_CONTROLLERS, Pattern, run, scripted  # noqa: E402

FOR_EVER = ("plain", "static:length=3", "banditspec-ucb")  # lengths that do not move, the last after seven rounds


@pytest.mark.parametrize("spelling", [name for name in LENGTH_CONTROLLERS if name not in FOR_EVER])
def test_p20_a_length_that_fell_to_its_floor_rises_again(spelling: str) -> None:
    """200 tokens in which every draft is wrong and doubtful, then 200 in which every draft is right and sure."""
    before, after = lengths_before_and_after(spelling, 200, 200)
    assert min(before) <= 3
    assert np.mean(after) > np.mean(before) + 1


def test_p20_a_rule_that_stopped_drafting_finds_out() -> None:
    """lambda decides before drafting and may decide for 0, which teaches it nothing; it tries again all the same,
    also where confidences say nothing."""
    before, after = lengths_before_and_after("lambda", 200, 400, q=lambda pos: 0.5)
    assert min(before) == 0
    assert np.mean(after) > 1


def test_p20_the_released_bandit_is_stuck_within_a_request_and_free_in_the_next() -> None:
    """A defect of the released code (specsim/controllers/lengths_bandit.py): after seven rounds the best mean is played
    for ever. Its state ends with the request."""
    before, after = lengths_before_and_after("banditspec-ucb", 200, 200)
    assert {*before, *after} == {1}
    _, fresh = lengths_before_and_after("banditspec-ucb", 0, 200)
    assert set(fresh) == {4}


def lengths_before_and_after(spelling: str, bad: int, good: int, q=None) -> tuple[list[int], list[int]]:
    """Draft lengths verified in the last 50 tokens of the bad part and of the good part that follows."""
    model, prompt = scripted(2, stop=False), [3]
    drafter = Pattern(model, lambda pos: pos >= bad, q=q or (lambda pos: 0.98 if pos >= bad else 0.06))
    decoded, _, _ = run(model, drafter, spelling, prompt, Settings(max_new_tokens=bad + good))
    before = [row.submitted_len for row in decoded.rounds if bad - 50 <= row.pos < bad]
    after = [row.submitted_len for row in decoded.rounds if row.pos >= bad + good - 50]
    return before, after[:-1]  # the last round has no room
