"""What drafts cost on traces that hold every denoising pass: by hand, where nothing is told, and what rules expect."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from specsim.chunk import TraceChunk
from specsim.controllers import Setting, build
from specsim.engine import controllers_for, replay
from specsim.errors import ConfigError
from specsim.latency import LatencyModel
from specsim.passes import PASSES_PER_BLOCK
from specsim.rows import denoising_passes
from specsim.schema import TraceMeta
from tests.worlds import make_world

LATENCY = LatencyModel.affine(c_s=0.01, b_s=1.0, draft_pass_s=0.1, draft_token_s=0.001)
META = TraceMeta(max_draft_len=6, block_len=2)


def chunk_of(filled: list[int], m: int = 6) -> TraceChunk:
    """One row of m tokens, none of them accepted, and the row of the target's own last token."""
    passes = len(filled)
    return TraceChunk(
        request=np.zeros(2, np.int32),
        pos=np.arange(2, dtype=np.int32),
        offsets=np.array([0, m, m], np.int64),
        accept_len=np.zeros(2, np.int16),
        q=np.ones(m, np.float32),
        accept_prob=np.zeros(m, np.float32),
        pass_offsets=np.array([0, passes, passes], np.int64),
        pass_count=np.ones(passes, np.int16),
        pass_filled=np.array(filled, np.int16),
        conf_offsets=np.array([0, passes, passes], np.int64),
        pass_conf=np.ones(passes, np.float32),
    )


@pytest.mark.parametrize("acceptance", ["logged", "sampled", "expected"])
@pytest.mark.parametrize(
    ("length", "drafted", "passes"), [(0, 0, 0), (1, 2, 3), (2, 2, 3), (3, 4, 3), (5, 6, 5), (6, 6, 5)]
)
def test_a_draft_is_charged_the_passes_that_filled_it(acceptance: str, length: int, drafted: int, passes: int) -> None:
    """Passes that fill nothing more count too; tokens beyond a block's wish are drafted with it."""
    chunk = chunk_of([1, 1, 4, 4, 6])
    found = replay(META, [chunk], LATENCY, [f"static:length={length}"], acceptance=acceptance)
    row = found.results[0]
    assert (row["drafted"], row["draft_passes"]) == (drafted, passes)
    seconds = 0.1 * passes + 0.001 * drafted + float(LATENCY.verify_s(length + 1)) + float(LATENCY.verify_s(1))
    assert row["time_s"] == pytest.approx(seconds)
    assert found.static_s is not None
    assert found.static_s[length] == pytest.approx(seconds)


@pytest.mark.parametrize("filled", [[], [1, 1, 4, 5]])
def test_a_row_that_does_not_say_is_charged_whole_blocks(filled: list[int]) -> None:
    chunk = chunk_of(filled)
    assert set(denoising_passes(chunk).tolist()) == {-1}
    found = replay(META, [chunk], LATENCY, ["static:length=3"]).results[0]
    assert found["draft_passes"] == 2


@pytest.mark.parametrize("seed", range(3))
def test_a_trace_without_the_columns_is_charged_whole_blocks(seed: int) -> None:
    world = make_world(seed, coverage="every-position")
    bare = world.chunk.keep({"q", "accept_prob", "ctx_len"})
    rounds = replay(world.meta, [bare], world.latency, ["static:length=4"], keep_rounds=True).rounds[0]
    assert rounds["draft_passes"].tolist() == (-(-rounds["drafted_len"] // world.meta.block_len)).tolist()


@pytest.mark.parametrize("spelling", ["goodput", "caddtree", "lambda"])
def test_rules_expect_the_mean_passes_of_a_block(spelling: str) -> None:
    told = dataclasses.replace(LATENCY, provenance={PASSES_PER_BLOCK: 3.0})
    of_trace = dataclasses.replace(META, extra={PASSES_PER_BLOCK: 2.0})
    for meta, latency, pass_s in (
        (META, LATENCY, 0.1),
        (META, told, 0.3),
        (of_trace, LATENCY, 0.2),
        (of_trace, told, 0.3),
    ):
        assert controllers_for(meta, latency, [spelling])[0].params.pass_s == pytest.approx(pass_s)


def test_libraspec_charges_the_draft_with_the_mean_passes_of_a_block() -> None:
    def alpha(latency: LatencyModel) -> float:
        setting = Setting(block_len=2, max_draft_len=6, latency=latency)
        return float(build("libraspec:block=2,charge_draft=1,alpha=2", setting).params.charged_alpha[0])

    told = dataclasses.replace(LATENCY, provenance={PASSES_PER_BLOCK: 3.0})
    assert alpha(LATENCY) == pytest.approx(2 * 0.01 / (0.01 + 0.05 + 0.001))
    assert alpha(told) == pytest.approx(2 * 0.01 / (0.01 + 0.15 + 0.001))


@pytest.mark.parametrize("value", [-1, "three", None, float("nan"), True])
def test_a_mean_that_is_no_number_is_refused(value: object) -> None:
    told = dataclasses.replace(LATENCY, provenance={PASSES_PER_BLOCK: value})
    of_trace = dataclasses.replace(META, extra={PASSES_PER_BLOCK: value})
    for meta, latency in ((META, told), (of_trace, LATENCY)):
        with pytest.raises(ConfigError, match=r"passes_per_block is .*metadata; allowed: a finite number >= 0"):
            controllers_for(meta, latency, ["goodput"])
