"""Replays whose rounds take other seconds: what noise may change and what it may not, and where it comes from."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

torch = pytest.importorskip("torch", reason="real/ needs the extra 'real'")

from real.arm_costs import NOISE, QUANTILES, noise_of, residuals, run_costs  # noqa: E402
from real.foretold import REPLAYS, foretell, noisy  # noqa: E402
from real.measure import Sample  # noqa: E402
from specsim.chunk import offsets_of  # noqa: E402
from specsim.engine import replay  # noqa: E402
from specsim.errors import ConfigError  # noqa: E402
from specsim.latency import LatencyModel, Table  # noqa: E402
from specsim.trace import read_trace, write_trace  # noqa: E402
from tests.check_worlds import arm_trace  # noqa: E402

COSTS = LatencyModel(
    verify=Table(s=(1.0, 2.0, 5.0), times_s=(0.5, 0.5625, 0.75)), ctx_s=2**-14, overhead_s=2**-8, provenance={}
)
ARMS = ("arm:index=0", "arm:index=1", "arm:index=2")


def with_noise(values: object) -> LatencyModel:
    return replace(COSTS, provenance={NOISE: values})


@pytest.fixture(scope="module")
def trace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("arms") / "t.parquet"
    meta, chunk = arm_trace(1, [2.5, 3.0, 3.2], [0.6, 0.8, 1.0], requests=6, positions=60)
    write_trace(path, meta, replace(chunk, ctx_len=(20 + chunk.pos).astype(np.int32)))
    return path


def sample(arm: int, seconds: float, *, s: int = 5, ctx_len: int = 10) -> Sample:
    return Sample(
        s=s,
        ctx_len=ctx_len,
        passes=4,
        reads=1,
        own=s - 1,
        accepted=1,
        draft_s=seconds / 2,
        verify_s=seconds / 4,
        overhead_s=seconds / 4,
        arm=arm,
    )


def test_residuals_are_of_the_median_of_the_same_arm_and_length() -> None:
    many = [sample(0, 1.0 + 0.1 * (k % 3)) for k in range(30)] + [sample(1, 20.0, s=2)] * 30
    found = np.array(residuals(many))
    assert len(found) == QUANTILES
    assert found.mean() == pytest.approx(1.0)
    # Half of the rounds never differ; of the others a third each takes 1.0, 1.1 and 1.2, whose median is 1.1.
    shares = [np.mean(np.abs(found / found[QUANTILES // 2] - value) < 1e-9) for value in (1 / 1.1, 1.0, 1.2 / 1.1)]
    assert shares == pytest.approx([1 / 6, 4 / 6, 1 / 6], abs=0.03)


def test_two_rounds_of_a_kind_say_nothing_of_their_spread() -> None:
    assert residuals([sample(arm, 1.0 + arm) for arm in (0, 0, 1, 1)]) == []
    assert noise_of(with_noise([])) is noise_of(COSTS) is None


# What NumPy would take for numbers, or cannot hold, or what is false without being an empty list.
ODD = (["1.0", "2"], [True, True], [1e308, 1e308], [10**400], [float("inf")], [[]], [None], "", {}, 0, False, None)


@pytest.mark.parametrize("value", [[1.0, 0.0], [1.0, -2.0], ["x"], 5.0, [[1.0]], [1.0, float("nan")], {"a": 1}, *ODD])
def test_noise_that_is_none_is_refused(value: object) -> None:
    with pytest.raises(ConfigError, match=r"round_noise .*allowed: a list of positive numbers.*Calibrate again"):
        noise_of(with_noise(value))


@pytest.mark.parametrize("seconds", [[0.0] * 5, [0.0, 0.0, 1.0], [0.0, 1.0, 1.0, 1.5], [2.0] * 3])
def test_what_was_measured_is_never_refused_later(seconds: list[float]) -> None:
    """Rounds in which the clock stood still, too."""
    found = residuals([sample(0, one) for one in seconds])
    drawn = noise_of(with_noise(found))
    assert (drawn is None) == (sum(one > 0 for one in seconds) < 3)


def test_a_runs_own_costs_have_its_noise() -> None:
    some = [sample(arm, 1.0 + arm + 0.1 * (k % 4), s=s) for arm in (0, 1) for k in range(8) for s in (3, 5)]
    model = run_costs(some, ("x", "y"), 4)
    assert model is not None
    assert model.provenance[NOISE] == residuals(some)


def test_without_noise_the_trace_is_replayed_once(trace: Path) -> None:
    meta, chunk = read_trace(trace)
    turned = [ARMS[2 - k] for k in range(3)]  # live order is the other way round
    for latency in (COSTS, with_noise([])):
        mine = foretell(trace, latency, [*ARMS, "sp2ec"], seed=3)
        own = replay(meta, [chunk], latency, turned, seed=3).results
        assert [one.speedup for one in mine[:3]] == pytest.approx([one["speedup"] for one in own], rel=1e-9)
        assert {one.sd for one in mine} == {0.0}


def test_noise_that_is_always_one_changes_nothing(trace: Path) -> None:
    once = foretell(trace, COSTS, [*ARMS, "sp2ec", "exp3spec"], seed=3)
    for one, other in zip(
        foretell(trace, with_noise([1.0, 1.0]), [*ARMS, "sp2ec", "exp3spec"], seed=3), once, strict=True
    ):
        assert one.speedup == pytest.approx(other.speedup, rel=1e-6)
        assert one.sd == pytest.approx(0.0, abs=1e-6)
        assert (one.tokens, one.rounds) == (other.tokens, other.rounds)
        np.testing.assert_allclose(one.time_s, other.time_s, rtol=1e-6)


def test_fixed_arms_keep_their_speedup_and_learners_spread(trace: Path) -> None:
    noise = [0.7, 0.9, 1.0, 1.1, 1.3]
    plain = foretell(trace, COSTS, [*ARMS, "sp2ec"], seed=3)
    found = foretell(trace, with_noise(noise), [*ARMS, "sp2ec"], seed=3)
    for one, other in zip(found[:3], plain[:3], strict=True):
        assert one.rounds == other.rounds
        assert abs(one.speedup / other.speedup - 1) < 4 * one.sd / one.speedup / np.sqrt(REPLAYS) + 1e-3
        assert 0 < one.sd < 0.05 * one.speedup
    assert found[3].sd > found[0].sd
    assert foretell(trace, with_noise(noise), ["sp2ec"], seed=3)[0].speedup == found[3].speedup
    assert foretell(trace, with_noise(noise), ["sp2ec"], seed=4)[0].speedup != found[3].speedup


@given(noise=st.lists(st.floats(0.2, 5.0), min_size=1, max_size=5), seed=st.integers(0, 2**40))
def test_a_noisy_round_takes_one_of_the_residuals(trace: Path, noise: list[float], seed: int) -> None:
    meta, whole = read_trace(trace)
    length = np.minimum(whole.pos[::-1] % 9, meta.draft_len or 0)  # some drafts are cut short
    chunk = replace(whole, offsets=offsets_of(length))
    own_s = np.array([arm["draft_s"] for arm in meta.arms or ()]) * (meta.draft_len or 0)
    ctx_len = 20 + chunk.pos
    drawn = np.sort(noise) / np.mean(noise)
    other = noisy(meta, chunk, COSTS, drawn, seed=seed, replica=0)
    assert other.arm_draft_s is not None
    new_s = other.arm_draft_s.astype(float)
    for row in range(0, chunk.rows, 7):
        share = length[row] / (meta.draft_len or 0)
        verify_s = float(COSTS.verify_s(int(length[row]) + 1, float(ctx_len[row])))
        if not share:
            continue
        factor = (new_s[row] * share + verify_s) / (own_s * share + verify_s)
        free = new_s[row] > own_s / 100 * (1 + 1e-6)  # not at the floor
        assert np.abs(factor[free, None] - drawn).min(axis=-1).max(initial=0) < 1e-5
        assert np.ptp(factor[free]) < 1e-5 if free.any() else True  # one residual for a round
    twin = noisy(meta, chunk, COSTS, drawn, seed=seed, replica=0)
    assert np.array_equal(new_s, twin.arm_draft_s)  # type: ignore[arg-type]


def test_a_prediction_is_a_ratio_of_sums_over_all_replays(trace: Path) -> None:
    (once,) = foretell(trace, COSTS, ["arm:index=1"], seed=3)
    (found,) = foretell(trace, with_noise([0.3, 1.0, 1.7]), ["arm:index=1"], seed=3)
    plain_s = once.speedup * once.time_s.sum()  # which no noise touches
    assert found.sd > 1e-3  # so a mean of the replays' speedups would be another number
    assert found.speedup == pytest.approx(plain_s / found.time_s.sum(), rel=1e-9)


def test_requests_may_have_any_numbers(trace: Path, tmp_path: Path) -> None:
    meta, chunk = read_trace(trace)
    renamed = tmp_path / "t.parquet"
    write_trace(renamed, meta, replace(chunk, request=3 + 2 * chunk.request))
    (one,), (other,) = (foretell(path, COSTS, ["arm:index=1"], seed=3) for path in (trace, renamed))
    assert one.time_s.shape == (6,)
    np.testing.assert_array_equal(one.time_s, other.time_s)


def test_no_residual_makes_a_draft_free(trace: Path) -> None:
    meta, chunk = read_trace(trace)
    own_s = np.array([arm["draft_s"] for arm in meta.arms or ()]) * (meta.draft_len or 0)
    found = noisy(meta, chunk, COSTS, np.array([0.01, 1.99]), seed=3, replica=0).arm_draft_s
    assert found is not None
    floor = np.isclose(found, own_s / 100, rtol=1e-6)
    assert floor.any()
    assert (found[~floor] > own_s.min() / 100).all()
