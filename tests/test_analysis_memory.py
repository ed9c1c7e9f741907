"""A long round log is added up in bounded memory: the growth of the peak, in a process of its own."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from specsim.roundlog import RoundLogWriter
from tests.conftest import ROOT

PIECE, RUNS, REQUESTS = 100_000, 8, 2_000
MIB = 1 << 20
SCRIPT = """
import sys
from pathlib import Path
from analysis.rounds import scan

def peak():
    status = Path("/proc/self/status").read_text()
    return int(status.partition("VmHWM:")[2].split()[0]) * 1024

scan(Path(sys.argv[1]))
before = peak()
found = scan(Path(sys.argv[2]))
print(peak() - before, sum(found.requests["rounds"].to_pylist()))
"""


def write(path: Path, rounds: int, *, shuffled: bool) -> Path:
    """Rounds of 8 runs on 2000 requests; shuffled: every piece of the file holds all of them."""
    rng = np.random.default_rng(0)
    with RoundLogWriter(path, {}) as writer:
        for start in range(0, rounds, PIECE):
            number = np.arange(start, min(start + PIECE, rounds))
            place = rng.permutation(number.size) if shuffled else number * RUNS * REQUESTS // rounds
            place = place % (RUNS * REQUESTS)
            accepted = rng.integers(0, 6, number.size).astype(np.int16)
            run = np.array([f"traces/a-trace-of-some-name.parquet#rule:{i}" for i in range(RUNS)], object)
            seconds = rng.uniform(0.01, 0.02, number.size)
            writer.write(
                {
                    **{"run_id": run[place // REQUESTS], "lane": 0, "request": (place % REQUESTS).astype(np.int32)},
                    **{"round": 0, "pos": 0, "ctx_len": None, "arm": -1, "drafted_len": 5, "submitted_len": 5},
                    **{"accepted_len": accepted, "emitted_len": accepted + np.int16(1), "draft_passes": 1},
                    **{"draft_s": seconds, "verify_s": seconds, "overhead_s": 0.0, "round_s": 2 * seconds},
                    "warmup": False,
                }
            )
    return path


def growth(folder: Path, rounds: int, *, shuffled: bool) -> int:
    """Bytes by which the peak grows when a log of so many rounds is added up after a short one."""
    files = [write(folder / f"{n}.parquet", n, shuffled=shuffled) for n in (PIECE, rounds)]
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, *map(str, files)], cwd=ROOT, capture_output=True, text=True, check=True
    )
    grown, counted = map(int, done.stdout.split())
    assert counted == rounds
    return grown


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="peak memory is read from /proc")
@pytest.mark.parametrize("shuffled", [False, True])
def test_peak_of_a_million_rounds(tmp_path: Path, shuffled: bool) -> None:
    assert growth(tmp_path, 1_000_000, shuffled=shuffled) < 80 * MIB


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="peak memory is read from /proc")
@pytest.mark.parametrize("shuffled", [False, True])
def test_peak_of_ten_million_rounds(tmp_path: Path, shuffled: bool) -> None:
    assert growth(tmp_path, 10_000_000, shuffled=shuffled) < 300 * MIB
