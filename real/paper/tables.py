"""What an experiment says in lines for people, besides its tables (`analysis.paper_tables`)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


def verdict_lines(verdicts: Sequence[dict[str, Any]], prediction: dict[str, Any]) -> list[str]:
    """For people: how rules compare with each other and the best static length, and how good the predictions are."""
    lines = []
    for one in verdicts:
        where = f"{one['target']}, {one['dataset']}, T = {one['temperature']}, {one['method']}"
        interval = "no interval" if one["ci95"] is None else f"{one['ci95'][0]:.3f} to {one['ci95'][1]:.3f}"
        word = "at least as fast" if one["at_least_as_fast"] else "SLOWER"
        lines.append(f"{where}: {one['label']} / {one['other_controller']} {one['ratio']:.3f} ({interval}): {word}")
        if not one["at_least_as_fast"]:
            lines.append(f"    {_explained(one['explained'])}")
    if prediction["median_error"] is None:
        return [*lines, f"predictions: none of {prediction['rows']} rows has one"]
    word = "within" if prediction["holds"] else "BEYOND"
    return [
        *lines,
        f"predictions: {prediction['predicted']} of {prediction['rows']} rows, median absolute error "
        f"{prediction['median_error']:.1%}, {word} the bound of {prediction['bound']:.1%}",
    ]


def _explained(found: dict[str, Any]) -> str:
    parts = ", ".join(f"{name} {ms:+.2f}" for name, ms in found["ms_per_token"].items())
    tau, submitted, foreseen = found["tau"], found["submitted"], found["predicted_ratio"]
    said = "not predicted" if foreseen is None else f"predicted ratio {foreseen:.3f}"
    return (
        f"ms per token more than the other: {parts}; tau {tau[0]:.2f} against {tau[1]:.2f}, submitted "
        f"{submitted[0]:.1f} against {submitted[1]:.1f}; {said}"
    )
