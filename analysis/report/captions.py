"""What is seen in a plot, in words made from its table: the text alternative that stands under it."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from analysis.report.plots import DRAWN_DEPTHS, depth_name, of_row, parts
from analysis.report.wording import fixed, joined, short

MOST = 4  # series that a caption names


def throughput(table: pa.Table) -> str:
    """The best static length or single arm, and how the controllers stand to it."""
    rows = table.to_pylist()
    marks = sorted(
        (row for row in rows if row["kind"] in ("controller", "oracle")), key=lambda row: -row["tokens_per_s"]
    )
    curve = sorted((row for row in rows if row not in marks), key=lambda row: row["length"])
    best = max(curve, key=lambda row: row["tokens_per_s"])
    what = "Single arms" if best["kind"] == "arm" else "Static lengths"
    text = (
        f"{what} {short(curve[0]['length'])} to {short(curve[-1]['length'])} ({curve[0]['source']}): fastest is "
        f"{short(best['length'])} with {fixed(best['tokens_per_s'])} tokens/s."
    )
    told = [
        f"{row['controller']} {fixed(row['tokens_per_s'])}"
        + ("" if row["length"] is None else f" at mean length {fixed(row['length'])}")
        for row in marks[:MOST]
    ]
    if told:
        text += f" Beside them, tokens/s: {joined(told)}{_more(len(marks))}."
    return f"{text} Band and bars are 95 % intervals."


def lengths_along(table: pa.Table) -> str:
    """How long each series drafts on average and at most."""
    told = []
    for name, rows in parts(table, "series"):
        lengths = [value for value in rows["length"].to_pylist() if value is not None]
        told.append(f"{name} {fixed(sum(lengths) / len(lengths))} (at most {short(max(lengths))})")
    return f"One decode. Mean draft length per round: {joined(told[:MOST])}{_more(len(told))}."


def survival(table: pa.Table) -> str:
    """How likely the first token and the deepest are accepted."""
    told = []
    for name, rows in parts(table, "source"):
        known = [row for row in rows.sort_by("depth").to_pylist() if row["survival"] is not None]
        if not known:
            continue
        first, last = known[0], known[-1]
        told.append(
            f"{name}: {fixed(first['survival'])} of drafts are accepted to position {first['depth']}, "
            f"{fixed(last['survival'])} to position {last['depth']}"
        )
    return f"{'; '.join(told[:MOST])}{_more(len(told))}. Hazard is the chance of the first refusal at a position."


def reliability(table: pa.Table) -> str:
    """How far the confidences are from what is accepted."""
    found = dict(parts(table, "depth"))
    told = [f"{short(rows['ece'][0].as_py(), 3)} ({depth_name(depth)})" for depth, rows in found.items()]
    text = (
        f"Expected calibration error: {joined(told[:MOST])}{_more(len(told))}. Below the diagonal confidences promise "
        "too much. Larger marks hold more tokens."
    )
    drawn = joined(str(depth) for depth in DRAWN_DEPTHS if depth in found)
    return text if len(told) == 1 or not drawn else f"{text} Of single positions {drawn} are drawn."


def latency_points(table: pa.Table) -> str:
    """How well the fit describes the measured passes."""
    told = []
    for kind, rows in parts(table, "kind"):
        known = [row for row in rows.to_pylist() if row["residual_s"] is not None and row["measured_s"]]
        if not known:
            continue
        worst = max(known, key=lambda row: abs(row["residual_s"] / row["measured_s"]))
        share = 100 * abs(worst["residual_s"] / worst["measured_s"])
        told.append(f"{kind}: {len(known)} points, the fit misses by at most {share:.1f} % (at {short(worst['s'])})")
    return f"{'; '.join(told)}. Above, measurements and the chosen fit; below, measured less fitted."


def breakdown(table: pa.Table) -> str:
    """Where the time of a round goes."""
    told = []
    for row in table.to_pylist():
        whole = row["draft_ms"] + row["verify_ms"] + row["rest_ms"]
        told.append(
            f"{of_row(row)} {fixed(whole, 1)} ms, {100 * row['draft_ms'] / whole:.0f} % drafting and "
            f"{100 * row['verify_ms'] / whole:.0f} % verification"
        )
    return f"A mean round takes: {'; '.join(told[:MOST])}{_more(len(told))}."


def acceptance(table: pa.Table) -> str:
    """Whether the one that accepts most is the fastest, among those that can be deployed."""
    known = [row for row in table.to_pylist() if row["speedup"] is not None]
    rows = [row for row in known if not row.get("privileged")] or known
    fastest, longest = max(rows, key=lambda row: row["speedup"]), max(rows, key=lambda row: row["tau"])
    if fastest["controller"] == longest["controller"]:
        return f"{fastest['controller']} has both the largest tau ({fixed(longest['tau'])}) and the largest speedup."
    return (
        f"{longest['controller']} has the largest tau ({fixed(longest['tau'])}) at {fixed(longest['speedup'], 3)}x; "
        f"{fastest['controller']} is fastest ({fixed(fastest['speedup'], 3)}x) with tau {fixed(fastest['tau'])}."
    )


def predictions(table: pa.Table) -> str:
    """The largest error of the simulator, and how many intervals hold the prediction."""
    rows = [row for row in table.to_pylist() if row["predicted"] is not None and row["measured"] is not None]
    worst = max(rows, key=lambda row: abs(row["predicted"] / row["measured"] - 1))
    known = [row for row in rows if row["low"] is not None and row["high"] is not None]
    inside = sum(row["low"] <= row["predicted"] <= row["high"] for row in known)
    return (
        f"Largest error {100 * (worst['predicted'] / worst['measured'] - 1):+.1f} % ({worst['controller']}); the "
        f"measured 95 % interval holds the prediction for {inside} of {len(known)} controllers."
    )


def regret_along(table: pa.Table) -> str:
    """What each controller has lost in the end."""
    against = f" to {table['against'][0].as_py()}" if "against" in table.column_names else ""
    told = []
    for name, rows in parts(table, "controller"):
        end = rows.to_pylist()[-1]
        told.append((end["cumulative_s"], f"{name} {fixed(end['cumulative_s'])} s"))
    ranked = [text for _, text in sorted(told)]
    bands = "" if table["low"].null_count == table.num_rows else " Bands are 95 % intervals."
    return f"Lost{against} after the last prompt: {joined(ranked[:MOST])}{_more(len(ranked))}.{bands}"


def pulls(table: pa.Table) -> str:
    """Each controller's favourite arm."""
    told = []
    for name, rows in parts(table, "controller"):
        top: dict[str, Any] = max(rows.to_pylist(), key=lambda row: row["share"])
        told.append(f"{name} plays arm {top['arm']} in {100 * top['share']:.0f} % of rounds")
    return f"{joined(told[:MOST])}{_more(len(told))}."


def _more(count: int) -> str:
    return f", and {count - MOST} more" if count > MOST else ""


# Of the papers' experiments


def gains(table: pa.Table) -> str:
    """What LibraSpec adds or takes."""
    told = [f"{row['gain']:+.2f} for {row['method']} on {row['dataset']}" for row in table.to_pylist()]
    return f"LibraSpec changes the speedup by {joined(told[:MOST])}{_more(len(told))}."


def max_lengths(table: pa.Table) -> str:
    """LibraSpec at its best maximum, beside the best static length."""
    rows = table.to_pylist()
    best = max(rows, key=lambda row: row["libraspec"])
    text = f"LibraSpec is fastest with a maximum of {short(best['max_len'])}: {fixed(best['libraspec'], 3)}x"
    known = [row["best_static"] for row in rows if row["best_static"] is not None]
    return f"{text}; the best static length reaches {fixed(max(known), 3)}x." if known else f"{text}."


def depths(table: pa.Table) -> str:
    """First and last draft position."""
    rows = table.sort_by("depth").to_pylist()
    first, last = rows[0], rows[-1]
    return (
        f"From position {first['depth']} to {last['depth']}, mean confidence goes from {fixed(first['mean_q'])} to "
        f"{fixed(last['mean_q'])}, the accepted share from {fixed(first['accepted'])} to {fixed(last['accepted'])}, "
        f"the calibration error from {fixed(first['ece'])} to {fixed(last['ece'])}."
    )


def contexts(table: pa.Table) -> str:
    """The fastest point."""
    best = max(table.to_pylist(), key=lambda row: row["eta"])
    return (
        f"Fastest is {best['method']} with {best['label']} at prompts of {fixed(best['prompt_len'], 0)} tokens: "
        f"{fixed(best['eta'], 3)}x plain decoding."
    )


def mat(table: pa.Table) -> str:
    """Whether the row that accepts most is the fastest."""
    rows = table.to_pylist()
    fastest, longest = max(rows, key=lambda row: row["eta"]), max(rows, key=lambda row: row["tau"])
    return (
        f"{len(rows)} measurements. Largest tau: {longest['method']} with {longest['controller']}, "
        f"{fixed(longest['tau'])} at {fixed(longest['eta'], 3)}x. Fastest: {fastest['method']} with "
        f"{fastest['controller']}, "
        f"{fixed(fastest['eta'], 3)}x at tau {fixed(fastest['tau'])}."
    )
