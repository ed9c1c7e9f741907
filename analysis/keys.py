"""Names under which decoding is tracked in Weights & Biases, for live runs (`real.tracking`) and for run folders.

Owns the keys, their axis, the columns of tables and the kinds of runs; `analysis.panels` says how they are shown. Both
sides log these and no others, so that a replay and a live run of the same controller lie in the same plots. What a
folder cannot know is null there (`controller_s`, `build_s` of a replay: only a live loop has a controller to time).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

PROJECT = "specsim"
COMPARISON, CONTROLLER, PAPER, SWEEP = "comparison", "controller", "paper", "sweep"  # job types of runs

# --- along the rounds of one controller ------------------------------------------------------------------------------

ROUND, REQUEST = "round", "request"
COLUMNS = (
    "drafted_len",
    "submitted_len",
    "accepted_len",
    "emitted_len",
    "draft_s",
    "verify_s",
    "overhead_s",
    "round_s",
    "controller_s",
    "build_s",
)
LIVE_COLUMNS = ("controller_s", "build_s")  # that no round log has
TAU, TOKENS_PER_S = "tau", "tokens_per_s"  # so far
CURVES = (ROUND, REQUEST, *COLUMNS, TAU, TOKENS_PER_S)
AXES: Mapping[str, str | None] = {ROUND: None, "*": ROUND}  # the x-axis of each metric; `*`: all others

# --- what a controller comes to: its summary, a row of the table of controllers, and CONTROLLER/key of the whole ------

LABEL = "controller"
SUMMARY = (
    *("prompts", "tokens", "rounds", "tau", "tokens_per_s", "speedup", "speedup_low", "speedup_high"),
    *("speedup_mean_of_ratios", "submitted_len", "acceptance_rate", "prefill_s", "decode_s", "draft_share"),
    *("verify_share", "controller_share", "build_s", "build_share", "different", "verification", "mismatches"),
)
CONTROLLERS = "controllers"
CONTROLLER_COLUMNS = (LABEL, *SUMMARY)
BEST_CONTROLLER, BEST_SPEEDUP = "best_controller", "best_speedup"  # what sweeps maximise

# --- other tables of the whole ---------------------------------------------------------------------------------------

LATENCY, LATENCY_MODEL = "latency", "latency_model"  # the table; the key of the config
LATENCY_COLUMNS = ("token positions", "verify_s")
CELLS, HEAT_MAP = "cells", "heat_map"  # of a sweep
CELL_COLUMNS = (
    *("sweep", "controller", "alpha", "max", "speedup", "speedup_low", "speedup_high", "requests"),
    *("best", "slower_than_best", "best_over_this", "best_over_this_low", "best_over_this_high"),
)
KIND, VERIFICATION, PROVENANCE = "kind", "verification", "provenance"  # of every config


def row_of(result: Mapping[str, Any]) -> list[Any]:
    """A row of the table of controllers; None for what `result` lacks."""
    return [result.get(name) for name in CONTROLLER_COLUMNS]


def summary_of(result: Mapping[str, Any]) -> dict[str, Any]:
    """The summary of a controller's own run: what is known of `SUMMARY`."""
    return {name: result[name] for name in SUMMARY if result.get(name) is not None}


def of_whole(label: str, summary: Mapping[str, Any]) -> dict[str, Any]:
    """The same in the summary of the whole."""
    return {f"{label}/{name}": value for name, value in summary.items()}
