"""Synthetic traces: deterministic, valid, with the acceptance they claim; and the generator underneath."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st
from scipy.special import logit

from specsim.chunk import concat_chunks
from specsim.errors import ConfigError
from specsim.rng import philox, uniform, uniform_array, uniform_stream
from specsim.synth import DISTORTIONS, KINDS, SynthSpec, synth_chunks, synthesize
from specsim.synth_cli import main
from specsim.trace import read_trace, write_trace
from tests.test_trace_roundtrip import assert_same

SEEDS = st.integers(0, 2**63 - 1)
WORDS = st.integers(0, 2**31 - 1)
U = np.uint64


@pytest.mark.parametrize(
    ("counter", "key", "expected"),
    [
        ([0] * 4, [0] * 2, [0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8]),
        ([0xFFFFFFFF] * 4, [0xFFFFFFFF] * 2, [0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD]),
        (
            [0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344],
            [0xA4093822, 0x299F31D0],
            [0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1],
        ),
    ],
)
def test_philox_known_answers(counter: list[int], key: list[int], expected: list[int]) -> None:
    """The test vectors that Random123 publishes for philox4x32-10."""
    words = [U(w) for w in (*counter, *key)]
    assert [int(w) for w in philox(*words)] == expected
    plain = getattr(philox, "py_func", philox)
    assert [int(w) for w in plain(*words)] == expected


@given(seed=SEEDS, request_=WORDS, pos=WORDS, i=WORDS, stream=st.integers(0, 2**32 - 1))
def test_same_bits_compiled_interpreted_and_in_arrays(seed: int, request_: int, pos: int, i: int, stream: int) -> None:
    compiled = uniform_stream(seed, stream, request_, pos, i)
    interpreted = getattr(uniform_stream, "py_func", uniform_stream)(seed, stream, request_, pos, i)
    array = uniform_array(seed, np.array([[request_]]), pos, np.array([i, i]), stream=stream)
    assert compiled == interpreted == array[0, 0] == array[0, 1]
    assert 0 <= compiled < 1
    assert uniform(seed, request_, pos, i) == uniform_stream(seed, 0, request_, pos, i)


def test_interpreted_draws_do_not_warn() -> None:
    code = (
        "import warnings; warnings.simplefilter('error')\n"
        "from specsim.rng import uniform; print(repr(float(uniform(2**63 - 1, 2**31 - 1, 5, 7))))"
    )
    texts = {
        subprocess.run(
            [sys.executable, "-c", code],
            check=True,
            capture_output=True,
            text=True,
            env=os.environ | {"NUMBA_DISABLE_JIT": disabled},
        ).stdout
        for disabled in ("0", "1")
    }
    assert len(texts) == 1


def test_draws_are_uniform_and_uncorrelated_between_neighbours() -> None:
    u = uniform_array(3, np.arange(40)[:, None, None], np.arange(50)[None, :, None], np.arange(20)[None, None, :])
    assert abs(u.mean() - 0.5) < 5 * np.sqrt(1 / 12 / u.size)
    for axis in range(3):
        a, b = np.take(u, range(u.shape[axis] - 1), axis), np.take(u, range(1, u.shape[axis]), axis)
        assert abs(np.corrcoef(a.ravel(), b.ravel())[0, 1]) < 5 / np.sqrt(a.size)
    assert np.unique(u).size == u.size


@pytest.mark.parametrize("kind", KINDS)
def test_shape_and_determinism(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings: dict[str, Any] = {"requests": 5, "positions": 30, "max_draft_len": 7, "seed": 4}
    meta, chunk = synthesize(kind, **settings)
    assert meta.coverage == "every-position"
    assert (meta.temperature, meta.exact, meta.requests, meta.max_draft_len) == (1.0, False, 5, 7)
    assert chunk.rows == 150
    np.testing.assert_array_equal(chunk.lengths, np.minimum(7, 30 - chunk.pos - 1))
    assert chunk.p is chunk.entropy is chunk.ctx_len is chunk.verify_s is None
    assert (chunk.accept_len <= chunk.lengths).all()
    path = tmp_path / "t.parquet"
    write_trace(path, meta, chunk)
    assert read_trace(path)[0] == meta
    assert_same(read_trace(path)[1], chunk)
    # the cutting into chunks, inside requests as well, changes nothing
    for rows in (1, 7, 70):
        monkeypatch.setattr("specsim.synth.ROW_GROUP_ROWS", rows)
        parts = list(synth_chunks(SynthSpec(kind=kind, **settings)))
        assert len(parts) > 1
        assert_same(concat_chunks(parts), chunk)
    other = synthesize(kind, **settings | {"seed": 5})[1]
    assert (other.accept_len != chunk.accept_len).any()


@pytest.mark.parametrize("kind", KINDS)
def test_rows_agree_with_their_probabilities(kind: str) -> None:
    """Sum over rows of accept_len against its expectation from accept_prob, within five standard deviations."""
    _, chunk = synthesize(kind, requests=40, positions=100, max_draft_len=6)
    assert chunk.accept_prob is not None
    expected = variance = 0.0
    for a, b in zip(chunk.offsets[:-1], chunk.offsets[1:], strict=True):
        reach = np.cumprod(chunk.accept_prob[a:b].astype(float))  # P(accept_len > i)
        expected += reach.sum()
        variance += ((2 * np.arange(1, b - a + 1) - 1) * reach).sum() - reach.sum() ** 2
    assert abs(chunk.accept_len.sum() - expected) < 5 * np.sqrt(variance)


def test_levels_of_every_kind() -> None:
    settings: dict[str, Any] = {"requests": 50, "positions": 200, "max_draft_len": 3}

    def first_depth(kind: str, **more: Any) -> np.ndarray:
        _, chunk = synthesize(kind, **settings, **more)
        assert chunk.accept_prob is not None
        full = chunk.offsets[:-1][chunk.lengths > 0]
        return chunk.accept_prob[full].astype(float).reshape(50, 199)

    np.testing.assert_allclose(first_depth("iid", alpha=0.7), 0.7, rtol=1e-6)
    _, chunk = synthesize("geometric", **settings, alpha=0.9, decay=0.5)
    assert chunk.accept_prob is not None
    np.testing.assert_allclose(chunk.accept_prob[:3], [0.9, 0.45, 0.225], rtol=1e-6)
    regime = first_depth("two-regime", alpha=0.9, alpha_hard=0.2, stay_easy=0.9, stay_hard=0.8) > 0.5
    stays = regime[:, 1:] == regime[:, :-1]
    assert stays[regime[:, :-1]].mean() == pytest.approx(0.9, abs=0.02)
    assert stays[~regime[:, :-1]].mean() == pytest.approx(0.8, abs=0.02)
    assert regime.mean() == pytest.approx(2 / 3, abs=0.03)
    beta = first_depth("beta", alpha=0.6, concentration=5)
    assert beta.mean() == pytest.approx(0.6, abs=0.01)
    assert beta.var() == pytest.approx(0.6 * 0.4 / 6, rel=0.05)
    latent = (logit(first_depth("markov", persistence=0.8, spread=0.5)) - logit(0.8)) / 0.5
    assert latent.std() == pytest.approx(1, abs=0.05)
    assert np.corrcoef(latent[:, 1:].ravel(), latent[:, :-1].ravel())[0, 1] == pytest.approx(0.8, abs=0.03)


def test_neighbouring_rows_share_the_levels_of_their_positions() -> None:
    for kind in ("two-regime", "markov"):
        _, chunk = synthesize(kind, requests=1, positions=20, max_draft_len=5)
        assert chunk.accept_prob is not None
        rows = [chunk.accept_prob[a:b] for a, b in pairwise(chunk.offsets)]
        for here, after in pairwise(rows):
            n = min(len(here) - 1, len(after))
            np.testing.assert_array_equal(here[1 : 1 + n], after[:n])


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("distort", list(DISTORTIONS))
def test_distortions(kind: str, distort: str) -> None:
    _, chunk = synthesize(kind, requests=10, positions=100, max_draft_len=5, distort=distort)
    _, plain = synthesize(kind, requests=10, positions=100, max_draft_len=5, distort="calibrated")
    np.testing.assert_array_equal(chunk.accept_len, plain.accept_len)  # q alone is distorted
    assert chunk.q is not None
    assert chunk.accept_prob is not None
    p = np.clip(chunk.accept_prob.astype(float), 1e-6, 1 - 1e-6)
    clear = (p > 0.02) & (p < 0.98)  # float32 resolves their logits
    excess = (logit(chunk.q.astype(float)) - logit(p))[clear]
    depth = (np.arange(len(p)) - np.repeat(chunk.offsets[:-1], chunk.lengths))[clear]
    shift, drift, noise = DISTORTIONS[distort]
    residual = excess - shift - drift * depth
    assert np.abs(residual.mean()) < 5 * max(noise, 1e-4) / np.sqrt(len(residual))
    assert residual.std() == pytest.approx(noise, rel=0.1, abs=1e-3)


@pytest.mark.parametrize(
    "settings",
    [
        {"kind": "linear"},
        {"distort": "x"},
        {"alpha": 1.5},
        {"alpha": float("nan")},
        {"decay": 0.0},
        {"requests": 0},
        {"positions": 0},
        {"max_draft_len": -1},
        {"max_draft_len": 40_000},
        {"seed": -1},
        {"kind": "beta", "alpha": 1.0},
        {"kind": "beta", "concentration": 0.0},
        {"kind": "markov", "alpha": 0.0},
        {"q_noise": -1.0},
    ],
)
def test_settings_outside_their_range(settings: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="allowed"):
        SynthSpec(**{"kind": "iid"} | settings)


def test_command_writes_the_same_bytes_twice(tmp_path: Path) -> None:
    command = [sys.executable, "-W", "error", "-m", "specsim.synth", "markov"]
    options = ["--requests", "3", "--positions", "20", "--max-draft-len", "4", "--b-s", "0.05", "--pass-s", "0.004"]
    for name in ("a", "b"):
        subprocess.run([*command, str(tmp_path / f"{name}.parquet"), *options], check=True, capture_output=True)
    assert (tmp_path / "a.parquet").read_bytes() == (tmp_path / "b.parquet").read_bytes()
    meta, chunk = read_trace(tmp_path / "a.parquet")
    assert meta.latency is not None
    assert meta.latency["verify"] == {"form": "affine", "c_s": 0.0, "b_s": 0.05}
    assert_same(chunk, synthesize("markov", requests=3, positions=20, max_draft_len=4)[1])


def test_command_options(tmp_path: Path) -> None:
    out = tmp_path / "t.parquet"
    model = tmp_path / "latency.json"
    model.write_text(
        json.dumps(
            {
                "schema": "specsim.latency/1",
                "verify": {"form": "affine", "c_s": 0.001, "b_s": 0.06, "ctx_s": 1e-6},
                "draft": {"pass_s": 0.005, "token_s": 0.0},
                "overhead_s": 0.0,
            }
        )
    )

    def run(*arguments: str) -> BaseException | None:
        base = ["iid", str(out), "--requests", "2", "--positions", "9"]
        return CliRunner().invoke(main, [*base, *arguments], standalone_mode=False).exception

    assert run("--latency", str(model), "--prompt-len", "11", "--block-len", "3") is None
    meta, chunk = read_trace(out)
    assert meta.block_len == 3
    assert meta.latency is not None
    assert meta.latency["verify"]["ctx_s"] == 1e-6
    np.testing.assert_array_equal(chunk.ctx_len, chunk.pos + 11)
    out.unlink()
    for arguments in (
        ["--latency", str(model)],  # charges context, but no ctx_len
        ["--latency", str(model), "--b-s", "1"],
        ["--c-s", "0.001"],
        ["--b-s", "-1"],
        ["--latency", str(tmp_path / "none.json")],
        ["--alpha", "2"],
    ):
        assert isinstance(run(*arguments), ConfigError), arguments
    assert not out.exists()
