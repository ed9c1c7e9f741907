"""The recorder: lock-step drafting and scoring equal the one-position-at-a-time definition."""

from __future__ import annotations

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="real/ needs the extra 'real'")

from tests.real_tiny import STOP, naive_rows, prompt_ids, tiny_llama  # noqa: E402

from real import branches  # noqa: E402
from real.drafters.layer_skip import skip_layers  # noqa: E402
from real.drafters.prompt_lookup import lookup  # noqa: E402
from real.record import LayerSkipProposer, PromptLookupProposer, decode_plain, record_request  # noqa: E402

LIMITS = {"max_new_tokens": 40, "max_draft_len": 6}


def assert_same_rows(fast, slow):
    for name in ("output", "offsets", "tokens", "accept_len", "accept_prob"):
        np.testing.assert_array_equal(getattr(fast, name), getattr(slow, name), err_msg=name)
    for name in ("q", "p", "entropy"):
        np.testing.assert_allclose(getattr(fast, name), getattr(slow, name), atol=1e-4, rtol=1e-4, err_msg=name)


@pytest.mark.parametrize("slots", [6, 13, 768])
@pytest.mark.parametrize("skip", [(1,), (0, 2), (3,)])
def test_lock_step_equals_one_position_at_a_time(skip, slots, monkeypatch):
    # Small slot limits cut the branches into many groups; the groups must not see each other.
    monkeypatch.setattr(branches, "SLOT_LIMIT", slots)
    target, prompt = tiny_llama(layers=4, seed=3, spread=0.08), prompt_ids(5)
    fast = record_request(target, LayerSkipProposer(target, skip), prompt, stop_ids=(STOP,), **LIMITS)
    slow = naive_rows(target, skip_layers(target, skip), prompt, **LIMITS)
    assert_same_rows(fast, slow)
    assert fast.mismatches == 0
    assert 0 < fast.accept_len.mean() < 6
