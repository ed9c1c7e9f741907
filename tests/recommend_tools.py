"""What the tests of `python -m analysis.recommend` share: worlds whose best choice is known, running the command."""

from __future__ import annotations

import contextlib
import io
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from analysis.recommend.__main__ import main
from specsim import errors
from specsim.latency import LatencyModel
from tests.replay_tools import Run, make_trace

FEW = ("static", "threshold", "goodput", "lambda")  # enough to compare, little to compile


def affine(**costs: float) -> dict[str, Any]:
    """A latency document: verify(s) = c_s s + b_s."""
    return LatencyModel.affine(**costs).to_dict()


def recommend(*args: object) -> Run:
    """The command in this process, ending as `python -m` does."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        texts = [str(arg) for arg in args]
        status = errors._status_of(lambda: main.main(args=texts, prog_name="recommend", standalone_mode=False))
    return Run(status, out.getvalue(), err.getvalue())


def asked(*names: str) -> list[str]:
    """Options that try these controllers only."""
    return [word for name in names for word in ("-c", name)]


def advise(path: Path, *names: str, **options: object) -> dict[str, Any]:
    """The document of one trace, tried with these controllers."""
    extra = [word for key, value in options.items() for word in (f"--{key.replace('_', '-')}", value)]
    return recommend(path, "--json", *asked(*(names or FEW)), *extra).document()["traces"][0]


def cheap_trace(path: Path, **settings: Any) -> Path:
    """Independent acceptance with 0.8 at every depth, cheap drafts: one static length is best, and no rule beats it."""
    costs = affine(c_s=0.06, b_s=1.0, draft_pass_s=0.04)
    return make_trace(path, **{"latency": costs, "alpha": 0.8, "requests": 40, "positions": 120} | settings)


def regimes_trace(path: Path, **settings: Any) -> Path:
    """Easy and hard stretches that confidences tell apart: adapting pays."""
    costs = affine(c_s=0.05, b_s=1.0, draft_pass_s=0.1)
    given = {"latency": costs, "alpha": 0.98, "alpha_hard": 0.05, "requests": 40, "positions": 120, "max_draft_len": 12}
    return make_trace(path, "two-regime", **given | settings)


def noise_table(seed: int, *, candidates: int = 60, requests: int = 30) -> tuple[NDArray[Any], NDArray[Any]]:
    """(plain_s, time_s) of candidates that are all equally fast but for independent noise."""
    rng = np.random.default_rng(seed)
    size = 10 * rng.lognormal(0, 0.5, requests)
    return 1.3 * size, size * rng.lognormal(0, 0.15, (candidates, requests))
