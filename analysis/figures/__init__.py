"""matplotlib figures, each a function of a table and axes: for one's own runs and for the papers' experiments.

`python -m analysis.figures RUN_DIR... --out DIR` draws them into files (docs/figures.md); in a notebook, call a
function with a derived table (`analysis.derive`) and axes of one's own. No figure needs torch, or `real`.
"""

from analysis.figures.acceptance import error_by_depth, hazard, reliability, survival
from analysis.figures.arms import pull_shares, regret_along
from analysis.figures.latency import latency_fit, residuals
from analysis.figures.lengths import lengths_along, speedup_by_max, throughput
from analysis.figures.registry import FIGURES
from analysis.figures.speed import (
    latency_breakdown,
    predictions,
    speed_by_acceptance,
    speed_by_context,
    speedup_gains,
    speedups,
)
from analysis.figures.theory import verdicts
from analysis.figures.write import draw_folder

__all__ = [
    "FIGURES",
    "draw_folder",
    "error_by_depth",
    "hazard",
    "latency_breakdown",
    "latency_fit",
    "lengths_along",
    "predictions",
    "pull_shares",
    "regret_along",
    "reliability",
    "residuals",
    "speed_by_acceptance",
    "speed_by_context",
    "speedup_by_max",
    "speedup_gains",
    "speedups",
    "survival",
    "throughput",
    "verdicts",
]
