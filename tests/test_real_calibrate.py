"""The measurement loop and its fit."""

from __future__ import annotations

from collections import Counter

import pytest

torch = pytest.importorskip("torch", reason="real/ needs the extra 'real'")

from real.calibrate import Timings, device_name, fit, lengths_up_to, lookup_pass, measure, model_pass  # noqa: E402
from specsim.errors import ConfigError  # noqa: E402
from tests.real_tiny import prompt_ids, tiny_llama  # noqa: E402


def timings(times_s: dict[int, float]) -> Timings:
    verify = [(s, time_s * factor) for factor in (0.99, 1.0, 1.01) for s, time_s in times_s.items()]
    return Timings(ctx_len=100, verify=verify, draft_s=[0.5, 0.2, 0.1], commit_s=[1e-4, 3e-4, 2e-4])


def test_lengths_hold_both_ends():
    assert lengths_up_to(24) == [1, 2, 3, 4, 6, 8, 12, 16, 24, 25]
    assert lengths_up_to(1) == [1, 2]
    assert lengths_up_to(9) == [1, 2, 3, 4, 6, 8, 10]


def test_every_repeat_measures_every_length_and_warm_up_is_dropped():
    target, calls = tiny_llama(), []
    measured = measure(target, prompt_ids(1), lambda: calls.append(1), max_draft_len=3, repeats=4, draft_passes=2)
    assert Counter(s for s, _ in measured.verify) == {1: 4, 2: 4, 3: 4, 4: 4}
    assert len(calls) == 2 * (4 + 2)
    assert len(measured.draft_s) == 8
    assert len(measured.commit_s) == 16
    assert measured.ctx_len == 12
    assert min(time_s for _, time_s in measured.verify) > 0
    order = [s for s, _ in measured.verify]
    assert any(order[start : start + 4] != sorted(order[start : start + 4]) for start in range(0, 16, 4))


def test_drafter_passes_run():
    context = torch.cat([prompt_ids(1), prompt_ids(1)])
    for draft_pass in (model_pass(tiny_llama(), context), lookup_pass(context, 4, 2)):
        with torch.inference_mode():
            draft_pass()
            draft_pass()


def test_fit_takes_medians():
    model = fit(timings({s: 0.06 + 0.002 * s for s in lengths_up_to(24)}), {"device": "test"}).model
    assert float(model.verify_s(9)) == pytest.approx(0.078, rel=1e-6)
    assert (model.draft_pass_s, model.overhead_s) == (0.2, 2e-4)
    assert model.provenance["ctx_len"] == 100
    assert model.provenance["device"] == "test"
    assert "fallback" not in model.provenance


def test_times_that_do_not_grow_fall_back_to_a_staircase():
    times_s = {1: 0.1, 2: 0.102, 3: 0.099, 4: 0.1, 6: 0.1005, 8: 0.0995, 12: 0.1, 16: 0.0999}
    model = fit(timings(times_s), {}).model
    assert model.verify.form in ("step", "affine")
    if model.verify.form == "step":
        assert "slope" in model.provenance["fallback"]
    assert float(model.verify_s(16)) >= float(model.verify_s(1))


def test_plain_decoding_is_never_misjudged_by_a_smooth_form():
    # Measured on a CPU: one token runs other kernels than two or more.
    times_s = {1: 0.056, 2: 0.093, 3: 0.110, 4: 0.080, 6: 0.076, 8: 0.076, 12: 0.082, 16: 0.090, 24: 0.104, 25: 0.109}
    model = fit(timings(times_s), {}).model
    assert float(model.verify_s(1)) == pytest.approx(0.056, rel=0.05)
    assert float(model.verify_s(25)) == pytest.approx(0.109, rel=0.10)
    assert "verify(1)" in model.provenance["fallback"]


def test_times_that_fall_are_refused():
    with pytest.raises(ConfigError, match="longer passes were faster"):
        fit(timings({s: 0.2 - 0.005 * s for s in lengths_up_to(24)}), {})


def test_the_device_has_a_name():
    assert device_name("cpu").startswith("cpu: ")
    assert len(device_name("cpu")) > len("cpu: ")
