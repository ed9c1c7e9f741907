"""Calibration: rounds of the decode loop at every length and context, interleaved; the fit."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

torch = pytest.importorskip("torch", reason="real/ needs the extra 'real'")


from real.calibrate import (  # noqa: E402
    calibrate,
    check_machine,
    clock_cost_s,
    device_name,
    draft_costs,
    fit,
    machine,
    misses,
)
from real.drafters.base import NoDrafter  # noqa: E402
from real.drafters.layer_skip import skip_layers  # noqa: E402
from real.drafters.model import ModelDrafter  # noqa: E402
from real.drafters.prompt_lookup import PromptLookupDrafter  # noqa: E402
from real.loop import Round, Settings, decode  # noqa: E402
from real.measure import PLAIN_ROUNDS, Sample, lengths_up_to, measure, most_new_tokens, samples_of  # noqa: E402
from real.target import Target  # noqa: E402
from specsim.controllers import Setting, build  # noqa: E402
from specsim.errors import ConfigError  # noqa: E402
from specsim.latency import LatencyModel  # noqa: E402
from specsim.online import OnlineController  # noqa: E402
from specsim.passes import PassRecord  # noqa: E402
from tests.real_tiny import prompt_ids, tiny_llama, tiny_loaded  # noqa: E402

PASS_S, CATCH_UP_S, HOST_S = 0.2, 0.15, 1e-3


def sample(s: int, time_s: float, **more) -> Sample:
    values = {
        "ctx_len": 100,
        "passes": 2,
        "reads": 1,
        "own": 2,
        "accepted": 1,
        "draft_s": 2 * PASS_S,
        "overhead_s": HOST_S,
    }
    return Sample(s=s, verify_s=time_s, **{**values, **more})


def samples(times_s: dict[int, float], **more) -> list[Sample]:
    return [sample(s, t * factor, **more) for factor in (0.99, 1.0, 1.01) for s, t in times_s.items()]


def test_lengths_hold_both_ends():
    assert lengths_up_to(24) == [1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 16, 20, 24, 25]
    assert lengths_up_to(1) == [1, 2]
    assert lengths_up_to(8) == [1, 2, 3, 4, 5, 6, 7, 8, 9]


@pytest.mark.parametrize("kind", ["model", "lookup", "none"])
def test_every_repeat_runs_every_length_at_every_context(kind):
    model = tiny_llama(seed=3, spread=0.08)
    drafter = {
        "model": ModelDrafter(skip_layers(model, (1,)), name="model", max_draft_len=5),
        "lookup": PromptLookupDrafter(max_draft_len=5),
        "none": NoDrafter(),
    }[kind]
    ticks, contexts = [], [prompt_ids(1, 12), prompt_ids(2, 90)]
    found = measure(
        Target(model), drafter, contexts, max_draft_len=5, repeats=3, warmup=2, tick=lambda: ticks.append(1)
    )
    assert len(ticks) == 5
    lengths = {1: 6 * PLAIN_ROUNDS, **dict.fromkeys(range(2, 7), 6)}
    assert Counter(one.s for one in found) == lengths
    near = [one for one in found if one.ctx_len < 12 + most_new_tokens(5)]
    assert Counter(one.s for one in near) == {s: n // 2 for s, n in lengths.items()}
    assert all(one.verify_s > 0 and one.overhead_s >= 0 for one in found)
    drafting = [one for one in found if one.s > 1]
    if kind == "model":
        assert all(1 <= one.passes <= min(4, one.s - 1) and one.draft_s > 0 for one in drafting)
    else:
        # The contexts are random, so that a look-up often finds nothing; that is no pass.
        assert {one.passes for one in drafting} == ({0, 1} if kind == "lookup" else {0})
    assert all(one.passes == one.draft_s == 0 for one in found if one.s == 1)
    order = [one.s for one in found]
    assert any(order[i : i + 8] != sorted(order[i : i + 8]) for i in range(0, len(order), 8))


def test_no_measured_draft_is_cut_by_the_end_of_a_repeat():
    model = tiny_llama(seed=3, spread=0.08)
    drafter = ModelDrafter(skip_layers(model, ()), name="own", max_draft_len=4)  # the target itself: always right
    found = measure(Target(model), drafter, [prompt_ids(1, 12)], max_draft_len=4, repeats=8, warmup=0)
    assert [one.accepted for one in found] == [one.own for one in found]
    assert draft_costs(found).acceptance == 1.0


def test_the_drafter_reads_what_the_samples_say(monkeypatch):
    # The number of tokens fed to the drafter's first pass of every round, against what samples_of derives from the log.
    model = tiny_llama(seed=3, spread=0.08)
    drafter = ModelDrafter(skip_layers(model, ()), name="own", max_draft_len=3)
    fed: list[int] = []
    propose = drafter.propose

    def watched(count, arm):
        fed.append(len(drafter._text) - drafter._cache.length)
        return propose(count, arm)

    monkeypatch.setattr(drafter, "propose", watched)
    setting = Setting(block_len=1, max_draft_len=3, latency=LatencyModel.affine(c_s=1.0, b_s=1.0))
    g4 = OnlineController(build("g4:start=0,min=0,max=3", setting))
    rounds = decode(Target(model), drafter, g4, prompt_ids(3), Settings(max_new_tokens=30)).rounds
    found = samples_of(rounds)
    assert [one.reads for one in found if one.passes] == fed
    assert {one.reads for one in found} > {1, 2}
    assert [(one.own, one.accepted) for one in found] == [(r.drafted_len, r.accepted_len) for r in rounds]


def test_draft_costs_tell_passes_from_catching_up():
    steady = [sample(3, 1.0) for _ in range(6)]
    behind = [sample(3, 1.0, reads=2, accepted=2, draft_s=2 * PASS_S + CATCH_UP_S) for _ in range(4)]
    plain = [sample(1, 1.0, passes=0, own=0, accepted=0, draft_s=0.0) for _ in range(30)]
    costs = draft_costs([*steady, *behind, *plain])
    assert costs.pass_s == PASS_S
    assert costs.catch_up_s == pytest.approx(CATCH_UP_S)
    assert costs.acceptance == 14 / (14 + 6)  # six drafts ended after one token, four were right to the end
    assert costs.host_s == HOST_S
    assert costs.after_verifying_s(1) == 0.0
    assert costs.after_verifying_s(3) == pytest.approx(0.7**2 * CATCH_UP_S)
    nothing = draft_costs(plain)
    assert (nothing.pass_s, nothing.host_s, nothing.after_verifying_s(3)) == (0.0, HOST_S, 0.0)


def drafts(first_s: float, passes: list[int], *, jitter: float = 0.0, seed: int = 0, repeats: int = 20) -> list[Sample]:
    """Rounds whose drafts cost first_s + PASS_S a pass, and verification 0.06 + 0.002 s."""
    rng = np.random.default_rng(seed)
    return [
        sample(
            s=n + 1,
            time_s=0.06 + 0.002 * (n + 1),
            passes=n,
            own=n,
            draft_s=(first_s + PASS_S * n) * (1 + jitter * rng.standard_normal()) if n else 0.0,
        )
        for _ in range(repeats)
        for n in passes
    ]


def test_what_a_draft_costs_once_is_told_from_its_passes():
    found = draft_costs(drafts(0.05, [0, 1, 2, 3, 4]))
    assert (found.first_s, found.pass_s) == (pytest.approx(0.05), pytest.approx(PASS_S))
    noisy = draft_costs(drafts(0.05, [0, 1, 2, 3, 4], jitter=0.03, repeats=100))
    assert noisy.first_s == pytest.approx(0.05, rel=0.2)
    assert noisy.pass_s == pytest.approx(PASS_S, rel=0.02)
    # Some drafts meet a busy machine.
    spoilt = [replace(one, draft_s=9.0) if k % 11 == 0 else one for k, one in enumerate(drafts(0.05, [1, 2, 3, 4, 5]))]
    assert draft_costs(spoilt).first_s == pytest.approx(0.05)


@pytest.mark.parametrize("passes", [[1], [3], [0, 2]])
def test_drafts_of_one_number_of_passes_cost_passes_alone(passes):
    found = draft_costs(drafts(0.05, passes))
    number = max(passes)
    assert (found.first_s, found.pass_s) == (0.0, pytest.approx(PASS_S + 0.05 / number))


def test_dearer_later_passes_are_no_cost_of_the_first():
    found = draft_costs(drafts(-0.05, [1, 2, 3, 4]))
    assert found.first_s == 0.0
    assert PASS_S - 0.05 < found.pass_s < PASS_S


def test_what_a_draft_costs_once_is_in_the_verification_of_every_draft():
    rounds = drafts(0.05, list(range(9)))
    model, without = fit(rounds, {}).model, fit(drafts(0.0, list(range(9))), {}).model
    assert without.verify.form != "table"
    for s in range(1, 12):
        assert float(model.verify_s(s)) == pytest.approx(0.06 + 0.002 * s + (0.05 if s > 1 else 0.0), rel=1e-6)
    assert model.draft_pass_s == pytest.approx(PASS_S)
    assert model.provenance["first_s"] == pytest.approx(0.05)
    assert model.provenance["verify"].endswith("and first_s")
    assert dict(model.provenance["points"])[3] == pytest.approx(0.066 + 0.05)
    assert "first_s" not in without.provenance
    assert misses(fit(rounds, {})) == []


@given(
    first_s=st.floats(0.0, 0.3),
    passes=st.lists(st.integers(1, 12), min_size=4, max_size=8, unique=True),
    jitter=st.floats(0.0, 0.05),
    seed=st.integers(0, 99),
)
def test_the_model_gives_the_mean_time_of_the_rounds_it_was_fitted_to(first_s, passes, jitter, seed):
    rounds = drafts(first_s, [0, *passes], jitter=jitter, seed=seed, repeats=30)
    model = fit(rounds, {}).model
    drafting = [one for one in rounds if one.s > 1]
    spent = sum(one.draft_s + one.verify_s for one in drafting)
    told = sum(one.passes * model.draft_pass_s + float(model.verify_s(one.s)) for one in drafting)
    assert told == pytest.approx(spent, rel=0.02)


def test_a_drafter_that_reports_its_passes_is_charged_for_each():
    record = PassRecord(np.zeros(0, np.float32), np.zeros(5, np.int16), np.array([1, 2, 2, 4, 6], np.int16))
    rows = [
        Round(
            arm=-1, drafted_len=6, submitted_len=4, draft_passes=5, available_len=9, q=np.ones(6, np.float32),
            record=record, ctx_len=20, emitted_len=3, accepted_len=2, draft_s=5 * PASS_S, verify_s=0.1, round_s=2.0,
        )
    ] * 2  # fmt: skip
    for block_len, blocks in ((3, 2), (1, 6), (10, 1)):
        found = samples_of(rows, block_len=block_len)
        assert [(one.passes, one.blocks, one.reads) for one in found] == [(5, blocks, 1)] * 2
        costs = draft_costs(found)
        assert (costs.pass_s, costs.per_block) == (pytest.approx(PASS_S), 5 / blocks)
    assert draft_costs(drafts(0.0, [1, 2])).per_block is None


def test_catching_up_is_paid_by_the_verification_that_causes_it():
    steady = samples({s: 0.06 + 0.002 * s for s in lengths_up_to(8)})
    behind = [replace(one, reads=2, accepted=2, draft_s=2 * PASS_S + CATCH_UP_S) for one in steady if one.s > 1]
    model = fit([*steady, *(one for one in steady if one.s > 1), *behind], {}).model
    chance = model.provenance["acceptance"]
    assert 0.3 < chance < 0.9
    # A curve that falls where the chance does is not a line, nor can it be modelled where it outweighs the passes.
    assert float(model.verify_s(1)) == pytest.approx(0.062, rel=0.02)
    assert float(model.verify_s(9)) == pytest.approx(0.078 + chance**8 * CATCH_UP_S, rel=0.3)
    assert (model.draft_pass_s, model.overhead_s) == (PASS_S, HOST_S)
    points = dict(model.provenance["points"])
    assert points[3] == pytest.approx(0.066 + chance**2 * CATCH_UP_S, rel=1e-6)


def test_fit_takes_medians():
    model = fit(samples({s: 0.06 + 0.002 * s for s in lengths_up_to(24)}), {"device": "test"}).model
    assert float(model.verify_s(9)) == pytest.approx(0.078, rel=1e-6)
    assert (model.draft_pass_s, model.overhead_s) == (PASS_S, HOST_S)
    assert model.ctx_s == 0.0
    assert model.provenance["ctx_len"] == [100.0]
    assert model.provenance["device"] == "test"
    assert "fallback" not in model.provenance


def test_context_has_a_term_where_it_shows():
    times_s = {s: 0.06 + 0.002 * s for s in lengths_up_to(24)}
    # Within a group of similar contexts the exact length is noise; between groups it counts.
    near = samples(times_s, ctx_len=101) + samples(times_s, ctx_len=99)
    far = [replace(one, verify_s=one.verify_s + 400 * 1e-5, ctx_len=500) for one in near]
    model = fit([*near, *far], {}).model
    assert model.ctx_s == pytest.approx(1e-5, rel=1e-6)
    assert float(model.verify_s(9, 500)) == pytest.approx(0.078 + 400 * 1e-5, rel=1e-6)
    shrinking = [replace(one, verify_s=one.verify_s * 0.99, ctx_len=500) for one in near]
    model = fit([*near, *shrinking], {}).model
    assert model.ctx_s == 0.0
    assert model.provenance["context"].startswith("left out")


def test_times_that_do_not_grow_fall_back_to_a_staircase():
    times_s = {1: 0.1, 2: 0.102, 3: 0.099, 4: 0.1, 6: 0.1005, 8: 0.0995, 12: 0.1, 16: 0.0999}
    model = fit(samples(times_s), {}).model
    assert model.verify.form == "step"
    assert "slope" in model.provenance["fallback"]
    assert float(model.verify_s(16)) >= float(model.verify_s(1))


def test_no_measured_length_is_misjudged_by_a_smooth_form():
    # Measured on a CPU: one token runs other kernels than two or more, and four are faster than three.
    times_s = {1: 0.056, 2: 0.093, 3: 0.110, 4: 0.080, 6: 0.076, 8: 0.076, 12: 0.082, 16: 0.090, 24: 0.104, 25: 0.109}
    report = fit(samples(times_s), {})
    assert float(report.model.verify_s(1)) == pytest.approx(0.056, rel=0.05)
    assert float(report.model.verify_s(25)) == pytest.approx(0.109, rel=0.10)
    assert "misses a measured length" in report.model.provenance["fallback"]
    assert {s for s, _, _ in misses(report)} >= {3, 6}
    assert all(abs(fitted / was - 1) > 0.05 for _, was, fitted in misses(report))


def test_times_that_fall_are_refused():
    with pytest.raises(ConfigError, match="longer passes were faster"):
        fit(samples({s: 0.2 - 0.005 * s for s in lengths_up_to(24)}), {})


def test_a_window_too_short_to_measure_in_is_refused():
    with pytest.raises(ConfigError, match="window of 30"):
        measure(Target(tiny_llama(window=30)), NoDrafter(), [prompt_ids(1)], max_draft_len=8, repeats=1)


def test_a_calibration_holds_for_one_machine_and_pair():
    loaded, drafter = tiny_loaded(), PromptLookupDrafter(max_draft_len=4)
    here = machine(loaded, drafter) | {"max_draft_len": 4}
    model = LatencyModel(verify=LatencyModel.affine(c_s=1.0, b_s=1.0).verify, provenance=here)
    check_machine(model, loaded, drafter, where="x.json")
    with pytest.raises(ConfigError, match="drafts of up to 4 tokens, this run drafts up to 5"):
        check_machine(model, loaded, PromptLookupDrafter(max_draft_len=5), where="x.json")
    for key, value in (("device", "cpu: other"), ("threads", 99), ("dtype", "bfloat16"), ("drafter", "layer-skip")):
        other = replace(model, provenance={**model.provenance, key: value})
        with pytest.raises(ConfigError, match=f"x.json: was calibrated with {key} .*real.calibrate"):
            check_machine(other, loaded, drafter, where="x.json")


def test_the_device_has_a_name():
    assert device_name("cpu").startswith("cpu: ")
    assert len(device_name("cpu")) > len("cpu: ")


def test_p32_the_timers_own_cost_is_measured():
    assert 0 < clock_cost_s("cpu") < 1e-3


def test_drafts_too_short_to_calibrate_are_refused_before_measuring(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("real.calibrate.measure", None)
    with pytest.raises(ConfigError, match="max_draft_len 1: drafts too short"):
        calibrate(tiny_loaded(), NoDrafter(), [prompt_ids(8)], max_draft_len=1)
