"""Rules by which results of `python -m real.paper` confirm or refute a statement of the first paper.

Owns the judges that `analysis.claims` names: functions from a results.json to a finding in words and whether it is as
claimed; None where the results say nothing about it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from analysis.results import Document

LIBRASPEC, LAMBDA, STATIC, FIXED = "LibraSpec", "lambda", "static", "fixed block"
Row = Mapping[str, Any]
Finding = tuple[str, bool | None]  # in words; whether it is as claimed, None when it cannot be judged
Judge = Callable[[Document], Finding | None]


def _groups(rows: Sequence[Row], method: str | None = None) -> Iterator[tuple[str, dict[str, Row]]]:
    """(place, the fastest row of every label) of each target, dataset, temperature and method."""
    groups: dict[tuple[Any, ...], dict[str, Row]] = {}
    for row in rows:
        if method is None or row["method"] == method:
            labels = groups.setdefault(tuple(row[key] for key in ("target", "dataset", "temperature", "method")), {})
            if row["label"] not in labels or row["eta"] > labels[row["label"]]["eta"]:
                labels[row["label"]] = row
    for (target, dataset, temperature, name), labels in groups.items():
        yield f"{target}/{dataset}, T = {temperature}, {name}", labels


def _baseline(labels: Mapping[str, Row]) -> Row | None:
    """The method as published: its fixed block, else the best static length."""
    return labels.get(FIXED, labels.get(STATIC))


def _gains(document: Document, method: str | None = None, temperature: int | None = None) -> list[float]:
    rows = [row for row in document["rows"] if temperature is None or row["temperature"] == temperature]
    found = []
    for _, labels in _groups(rows, method):
        base = _baseline(labels)
        if base is not None and LIBRASPEC in labels:
            found.append(labels[LIBRASPEC]["eta"] - base["eta"])
    return found


def gain(method: str | None, temperature: int | None) -> Judge:
    """LibraSpec's speedup less the method's without it: positive everywhere?"""

    def judge(document: Document) -> Finding | None:
        found = _gains(document, method, temperature)
        if not found:
            return None
        return f"{min(found):+.2f} to {max(found):+.2f} over {len(found)} places", min(found) > 0

    return judge


def ratio(method: str, temperature: int) -> Judge:
    """LibraSpec's mean speedup over that of the best static length: above 1?"""

    def judge(document: Document) -> Finding | None:
        rows = [row for row in document["rows"] if row["temperature"] == temperature]
        pairs = [
            (labels[LIBRASPEC]["eta"], labels[STATIC]["eta"])
            for _, labels in _groups(rows, method)
            if {LIBRASPEC, STATIC} <= set(labels)
        ]
        if not pairs:
            return None
        mine, base = np.mean(pairs, axis=0)
        return f"{mine / base:.2f}x ({mine:.2f} against {base:.2f}, {mine - base:+.2f})", mine > base

    return judge


def fastest_of_all(document: Document) -> Finding | None:
    """LibraSpec against every other published method of the same target, dataset and temperature."""
    groups = dict(_groups([row | {"method": "all"} for row in document["rows"] if row["label"] != LAMBDA]))
    wins, behind = 0, []
    judged = {place: labels for place, labels in groups.items() if LIBRASPEC in labels and len(labels) > 1}
    for labels in judged.values():
        other = max((row for label, row in labels.items() if label != LIBRASPEC), key=lambda row: row["eta"])
        wins += labels[LIBRASPEC]["eta"] > other["eta"]
        behind.append(labels[LIBRASPEC]["eta"] / other["eta"])
    if not judged:
        return None
    text = f"fastest in {wins} of {len(judged)}; {min(behind):.2f} to {max(behind):.2f} of the best other"
    return text, wins == len(judged)


def highest(document: Document) -> Finding | None:
    """The highest speedup of LibraSpec; no statement of its own to judge."""
    found = [row["eta"] for row in document["rows"] if row["label"] == LIBRASPEC]
    return (f"at most {max(found):.2f}x", None) if found else None


def _series(document: Document, prefix: str, method: str) -> Iterator[tuple[dict[float, Row], Row | None]]:
    """(rows by the number in labels such as `alpha=2.0`, the best static row) of each place."""
    for _, labels in _groups(document["rows"], method):
        numbered = re.compile(re.escape(prefix) + r"[0-9]+(\.[0-9]+)?")  # other labels are the user's own
        found = {float(label.removeprefix(prefix)): row for label, row in labels.items() if numbered.fullmatch(label)}
        if found:
            yield dict(sorted(found.items())), labels.get(STATIC)


def every_alpha(document: Document) -> Finding | None:
    """Every alpha beats the best static length in speedup and tau."""
    pairs = [
        (row, base)
        for method in _methods(document)
        for found, base in _series(document, "alpha=", method)
        if base is not None
        for row in found.values()
    ]
    if not pairs:
        return None
    faster = sum(row["eta"] > base["eta"] for row, base in pairs)
    longer = sum(row["tau"] > base["tau"] for row, base in pairs)
    text = f"faster for {faster}, tau higher for {longer} of {len(pairs)}"
    return text, faster == longer == len(pairs)


def best_alpha(method: str, claimed: float) -> Judge:
    """Which alpha has the highest mean speedup."""

    def judge(document: Document) -> Finding | None:
        series = [found for found, _ in _series(document, "alpha=", method)]
        if not series:
            return None
        everywhere = [alpha for alpha in series[0] if all(alpha in found for found in series)]
        if not everywhere:
            return None
        means = {alpha: float(np.mean([found[alpha]["eta"] for found in series])) for alpha in everywhere}
        best = max(means, key=lambda alpha: means[alpha])
        spread = max(means.values()) / min(means.values()) - 1
        return f"best alpha {best:g}; the best is {spread:.1%} above the worst", best == claimed

    return judge


def every_limit(document: Document) -> Finding | None:
    """At every maximum, LibraSpec beats the static length of that number."""
    gains = []
    for row in document["rows"]:
        if not row["label"].startswith("max="):
            continue
        static = f"static:length={row['label'].removeprefix('max=')}"
        keys = ("target", "dataset", "temperature", "drafter")
        gains += [
            row["eta"] / other["eta"]
            for other in document["rows"]
            if other["controller"] == static and other["label"] == STATIC and all(other[k] == row[k] for k in keys)
        ]
    if not gains:
        return None
    return f"faster for {sum(one > 1 for one in gains)} of {len(gains)}, up to {max(gains):.2f}x", min(gains) > 1


def plateau(method: str, low: int, high: int) -> Judge:
    """From which maximum on LibraSpec is within 1 % of its best; judged where maxima as large were tried."""

    def judge(document: Document) -> Finding | None:
        for found, _ in _series(document, "max=", method):
            best = max(row["eta"] for row in found.values())
            first = min(limit for limit, row in found.items() if row["eta"] >= 0.99 * best)
            text = f"within 1 % of its best from {first:g} on (tried up to {max(found):g})"
            return text, low <= first <= high if max(found) >= high else None
        return None

    return judge


def calibration(document: Document) -> Finding | None:
    """Expected calibration error by draft position: larger in the second half of the positions than in the first?"""
    found: dict[str, list[float]] = {}
    for row in document["depths"]:
        found.setdefault(f"{row['method']} (T = {row['temperature']})", []).append(row["ece"])
    if not found:
        return None
    words, worse = [], []
    for method, errors in found.items():
        half = len(errors) // 2
        early, late = float(np.mean(errors[: max(1, half)])), float(np.mean(errors[half:]))
        words.append(f"{method}: {errors[0]:.2f} at position 1, {early:.2f} early, {late:.2f} late")
        worse.append(late > early)
    return "; ".join(words), all(worse)


def deviation(document: Document) -> Finding | None:
    """Mean absolute deviation from the best length: LibraSpec below the static length?"""
    whole = [row for row in document["deviations"] if row["request"] is None]
    words, below = [], []
    for row in whole:
        if row["series"] != LIBRASPEC:
            continue
        keys = ("target", "dataset", "method", "drafter")
        for static in whole:
            if static["series"] == STATIC and all(static[key] == row[key] for key in keys):
                words.append(f"{row['dataset']}, {row['method']}: {row['mad']:.2f} against {static['mad']:.2f}")
                below.append(row["mad"] < static["mad"])
    return ("; ".join(words), all(below)) if words else None


def drafting(document: Document) -> Finding | None:
    """Share of a round that drafts: diffusion drafters below every autoregressive one?"""
    shares: dict[bool, list[float]] = {True: [], False: []}
    words = []
    for row in document["rows"]:
        whole_ms = row["draft_ms"] + row["verify_ms"] + row["rest_ms"]
        if whole_ms <= 0:
            continue
        share = row["draft_ms"] / whole_ms
        shares[row["drafter"].partition(":")[0] in ("fastdllm", "dflash", "ddtree")].append(share)
        words.append(f"{row['method']} {share:.0%}")
    if not all(shares.values()):
        return None
    return "drafting: " + ", ".join(words), max(shares[True]) < min(shares[False])


def _methods(document: Document) -> list[str]:
    return list(dict.fromkeys(row["method"] for row in document["rows"]))
