"""FailFast's released rule: against its prose, where it cannot run, and what differs from the idealised rule."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from specsim.chunk import TraceChunk, concat_chunks
from specsim.engine import replay
from specsim.errors import ConfigError
from specsim.jit import uncompiled
from specsim.latency import LatencyModel
from specsim.replay import main
from specsim.schema import TraceMeta
from specsim.trace import write_trace
from tests.vectors import cases_of, run_case
from tests.vectors_failfast import chunk_of
from tests.worlds import make_world

LATENCY = LatencyModel.affine(c_s=0.01, b_s=1.0, draft_pass_s=0.1)
CONF = st.one_of(st.integers(0, 8).map(lambda k: k / 8), st.floats(0, 1, width=32))


@st.composite
def rows(draw: st.DrawFn) -> tuple[int, list[tuple[list[float], int]]]:
    """m > 0, and per pass its confidences and the positions filled after it."""
    m = draw(st.integers(1, 20))
    filled = sorted(draw(st.lists(st.integers(0, m), min_size=1, max_size=6)))
    return m, [(draw(st.lists(CONF, max_size=6)), f) for f in filled]


def reference(passes: list[tuple[list[float], int]], chunk: int, tau: float, most: int) -> int:
    """The published loop, with a mask per position as there."""
    unmasked: set[int] = set()
    end, conf_list = chunk, []
    for conf, filled in passes:
        unmasked |= set(range(filled))
        conf_list += conf
        if not conf:  # a full block was written to the cache, which is no denoising pass
            continue
        if all(position in unmasked for position in range(end)):
            if any(value < tau for value in conf_list) or len(conf_list) >= most:
                break
            end += chunk
    return end


@given(
    drawn=st.lists(rows(), min_size=1, max_size=4),
    chunk=st.integers(1, 7),
    tau=st.sampled_from([0.0, 0.25, 0.45, 1.0]),
    most=st.integers(0, 24),
    block_len=st.integers(1, 4),
    acceptance=st.sampled_from(["logged", "expected"]),
)
def test_failfast_repo_is_the_loop_as_published(
    drawn: list[tuple[int, list[tuple[list[float], int]]]],
    chunk: int,
    tau: float,
    most: int,
    block_len: int,
    acceptance: str,
) -> None:
    parts = [chunk_of(passes, m) for m, passes in drawn]
    whole = concat_chunks(parts)
    # One request per row; probabilities of 1 make the expectation what is logged.
    whole = dataclasses.replace(
        whole, request=np.arange(whole.rows, dtype=np.int32), accept_prob=np.ones(int(whole.offsets[-1]), np.float32)
    )
    meta = TraceMeta(max_draft_len=20, block_len=block_len, coverage="every-round")
    spelling = f"failfast-repo:chunk={chunk},tau={tau},max={most}"
    wants = [reference(passes, chunk, tau, most) for _, passes in drawn]
    result = replay(meta, [whole], LATENCY, [spelling], acceptance=acceptance, keep_rounds=acceptance == "logged")
    row = result.results[0]
    submitted = [min(want, m) for want, (m, _) in zip(wants, drawn, strict=True)]
    drafted = [min(-(-want // block_len) * block_len, m) for want, (m, _) in zip(wants, drawn, strict=True)]
    assert (row["submitted"], row["drafted"]) == (sum(submitted), sum(drafted))
    assert row["clamped_rounds"] == sum(want > m for want, (m, _) in zip(wants, drawn, strict=True))
    assert row["privileged"] is False
    if acceptance == "logged":
        assert result.rounds[0]["submitted_len"].tolist() == submitted
        assert result.rounds[0]["drafted_len"].tolist() == drafted


def length(passes: list[tuple[list[float], int]], spelling: str, m: int = 40) -> int:
    meta = TraceMeta(max_draft_len=m, coverage="every-round")
    found = replay(meta, [chunk_of(passes, m)], LATENCY, [spelling], keep_rounds=True).rounds[0]
    return int(found["submitted_len"][0])


def test_where_it_differs_from_the_idealised_rule() -> None:
    sure = [0.9] * 4
    # A low first guess that was filled with more confidence later, and one beyond the window, end growth for good.
    assert length([([0.2, 0.9], 0), (sure, 4), (sure, 8)], "failfast-repo:chunk=4") == 4
    # The list reaches max before the draft does: positions recorded twice count twice.
    assert length([([0.6] * 4, 0), ([0.7] * 4, 4), (sure, 8)], "failfast-repo:chunk=4,max=8") == 4
    # max bounds the list, not the length.
    assert length([([0.9], 4), ([0.9], 8), ([0.9], 12)], "failfast-repo:chunk=4,max=3") == 12
    # One decision per pass, also when a pass fills two chunks.
    assert length([(sure, 40)], "failfast-repo:chunk=4") == 8
    # A confidence equal to tau, a float32 beside the float64 limit, goes on or not by its stored value.
    assert length([([0.5], 4)], "failfast-repo:chunk=4,tau=0.5") == 8
    assert length([([float(np.float32(0.45))], 4)], "failfast-repo:chunk=4,tau=0.45") == 4


def test_plain_python_plans_the_same() -> None:
    from specsim.controllers import failfast_repo as module

    chunk = make_world(5).chunk
    params = module.FailFastRepoParams(3, 0.3, 9)
    slow = uncompiled(module.draft_windows)(
        chunk.pass_offsets, chunk.conf_offsets, chunk.pass_conf, chunk.pass_count, chunk.pass_filled, params
    )
    np.testing.assert_array_equal(np.stack(module.plan_windows(chunk, params), axis=1), slow)
    assert len(set(slow[:, 0].tolist())) > 1


@pytest.mark.parametrize("acceptance", ["logged", "sampled", "expected"])
def test_rows_without_passes_are_refused(acceptance: str) -> None:
    world = make_world(7, coverage="every-position", long_rows=True)

    def run(chunk: TraceChunk) -> None:
        replay(world.meta, [chunk], world.latency, ["plain", "failfast-repo"], acceptance=acceptance)

    names = ("pass_offsets", "pass_count", "pass_filled", "conf_offsets", "pass_conf")
    with pytest.raises(ConfigError, match=r"failfast-repo.*'pass_conf'.*docs/formats\.md"):
        run(dataclasses.replace(world.chunk, **dict.fromkeys(names)))
    # One row of the file without passes is enough, unless it drafted nothing.
    bare = {"conf_offsets": np.zeros(2, np.int64), "pass_conf": np.zeros(0, np.float32)}
    bare |= {"pass_offsets": np.zeros(2, np.int64), "pass_count": np.zeros(0, np.int16)}
    first = dataclasses.replace(world.chunk.slice(0, 1), **bare, pass_filled=np.zeros(0, np.int16))
    rest = world.chunk.slice(1, world.chunk.rows)
    with pytest.raises(ConfigError, match="null rows"):
        run(concat_chunks([first, rest]))
    empty = dataclasses.replace(
        first, offsets=np.zeros(2, np.int64), accept_len=np.zeros(1, np.int16),
        q=np.zeros(0, np.float32), accept_prob=np.zeros(0, np.float32),
    )  # fmt: skip
    run(concat_chunks([empty, rest]))


def test_on_the_command_line(tmp_path: Path) -> None:
    world = make_world(7, coverage="every-position")
    meta = dataclasses.replace(world.meta, latency=world.latency.to_dict())
    write_trace(tmp_path / "passes.parquet", meta, world.chunk)
    without = world.chunk.keep({"q", "ctx_len", "accept_prob"})
    write_trace(tmp_path / "none.parquet", meta, without)
    for acceptance in ("logged", "expected"):
        command = ["-c", "failfast-repo:chunk=3", "-c", "failfast:chunk=3", "--acceptance", acceptance]
        done = CliRunner().invoke(main, [str(tmp_path / "passes.parquet"), *command])
        assert done.exit_code == 0, done.output
        with pytest.raises(ConfigError, match=r"none\.parquet: .*'pass_conf'"):
            CliRunner().invoke(main, [str(tmp_path / "none.parquet"), *command], catch_exceptions=False)


def test_published_cases(shared: Path) -> None:
    cases = [c for c in cases_of(shared / "vectors" / "failfast.json") if c[1] == "diffusion_length_rule"]
    assert len(cases) == 3
    assert [run_case(file, component, case)[0] for file, component, _, case in cases] == ["ok"] * 3
    file, component, _, case = cases[0]
    wrong = {**case, "expected": {**case["expected"], "decisions": case["expected"]["decisions"][::-1]}}
    assert run_case(file, component, wrong)[0] == "FAIL"
