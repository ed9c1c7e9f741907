"""Hypothesis profiles (dev 50, ci 100 derandomised, nightly 2000 examples) and where the reference material lies."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # A shell's background job ignores Ctrl-C, and so would all that it starts; tests send it.
    signal.signal(signal.SIGINT, signal.default_int_handler)
if "PYTEST_XDIST_WORKER" in os.environ:
    # Workers side by side: more torch threads than cores wait for each other longer than they work.
    os.environ.setdefault("OMP_NUM_THREADS", "1")

ROOT = Path(__file__).resolve().parent.parent
SHARED = ROOT.parent / "shared"

_SLOW_SETUP = [HealthCheck.too_slow, HealthCheck.data_too_large]
settings.register_profile("dev", max_examples=50, deadline=None, suppress_health_check=_SLOW_SETUP)
settings.register_profile("ci", max_examples=100, deadline=None, derandomize=True, suppress_health_check=_SLOW_SETUP)
settings.register_profile("nightly", max_examples=2000, deadline=None, suppress_health_check=_SLOW_SETUP)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "dev"))


@pytest.fixture(scope="session")
def shared() -> Path:
    """The folder of reference material beside the checkout; tests that need it skip when it is not there."""
    if not SHARED.is_dir():
        pytest.skip("reference material (../shared) is not on this machine")
    return SHARED
