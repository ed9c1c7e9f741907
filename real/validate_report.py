"""A validation's results for people. Owns words and layout, no numbers."""

from __future__ import annotations

from typing import Any

from rich.console import Console
from rich.table import Table

from real.arm_shape import warnings_of
from real.compare import FORMULA


def print_report(document: dict[str, Any], console: Console) -> None:
    """Print the document of results.json: a table, then what one should know about it."""
    console.print(_table(document["results"]))
    for line in _lines(document):
        console.print(line, markup=False, highlight=False, soft_wrap=True)


def _table(results: list[dict[str, Any]]) -> Table:
    table = Table(box=None, header_style="bold", pad_edge=False)
    table.add_column("controller", overflow="fold")
    columns = ("measured", "95 % interval", "mean of ratios", "predicted", "error", "in-sample", "error", "tau")
    for name in columns:
        table.add_column(name, justify="right")
    table.add_column("shadow replay")
    for row in results:
        seen = row["measured"]
        interval = "-" if seen["ci95"] is None else "{:.3f}..{:.3f}".format(*seen["ci95"])
        table.add_row(
            row["controller"],
            f"{seen['speedup']:.3f}",
            interval,
            f"{seen['mean_of_ratios']:.3f}",
            f"{row['predicted']:.3f}",
            f"{row['error']:+.1%}",
            "-" if row["in_sample"] is None else f"{row['in_sample']:.3f}",
            "-" if row["in_sample_error"] is None else f"{row['in_sample_error']:+.1%}",
            f"{seen['tau']:.2f}",
            "identical" if row["shadow"] is None else "DIFFERENT",
        )
    return table


def _lines(document: dict[str, Any]) -> list[str]:
    results, verdict, plain = document["results"], document["verdict"], document["plain_pass"]
    prompts, tokens = document["config"]["requests"], results[0]["measured"]["tokens"]
    lines = [
        FORMULA,
        "error = predicted / measured - 1; in-sample: costs fitted to the run's own rounds",
        f"{prompts} prompts, {tokens} tokens by plain decoding; {document['warmup_rounds']} warm-up rounds are in the "
        "log and in no result",
        f"plain decoding's pass: {plain['calibrated_s'] * 1e3:.2f} ms calibrated, {plain['run_s'] * 1e3:.2f} ms in the "
        f"run ({plain['run_s'] / plain['calibrated_s'] - 1:+.1%}); what all costs share cancels in a speedup",
    ]
    lines += [f"{row['controller']}: shadow replay differs, {row['shadow']}" for row in results if row["shadow"]]
    if document["other_texts_in_trace"]:
        lines.append(f"the trace's text is not the run's on {document['other_texts_in_trace']} of {prompts} prompts")
    lines += warnings_of(document["arms"])
    lines += _equality(document)
    if verdict is not None:
        own = verdict["in_sample_error"]
        lines.append(
            f"median absolute error {verdict['median_error']:.1%} "
            f"({'within' if verdict['holds'] else 'BEYOND'} the bound of {verdict['bound']:.1%}: the larger of 5 % and "
            "the median of half the measured intervals)" + ("" if own is None else f"; in-sample {own:.1%}")
        )
    return lines


def _equality(document: dict[str, Any]) -> list[str]:
    found, dtype = document["differences"], document["config"]["dtype"]
    decodes = document["config"]["requests"] * (len(document["results"]) - 1)
    if not found:
        return [f"all {decodes} outputs are plain decoding's, token for token ({dtype})"]
    ties = sum(difference["near_tie"] for difference in found)
    kept = [f"{d['id']}, {d['controller']}: {d['text']}" for d in found]
    return [f"{len(found)} of {decodes} outputs differ from plain decoding's ({dtype}), {ties} by a near tie", *kept]
