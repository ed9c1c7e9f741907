"""Rules by which results of `python -m real.paper` confirm or refute a statement of the second paper (SP2ec).

Owns the judges that `analysis.sp2ec_claims` names, as `analysis.judges` those of the first paper.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from analysis.judges import STATIC, Finding, Judge
from analysis.results import Document

SP2EC, UCBSPEC, EAGLE = "SP2ec", "UCBSpec", "EAGLE-3"
PRUNING = "SpecVLM"
ARM = "arm:index="
Row = Mapping[str, Any]


def _clear(rows: Sequence[Row]) -> str:
    """How many ratios' intervals are clear of 1, on either side."""
    known = [row["ci95"] for row in rows if row["ci95"] is not None]
    return f"intervals clear of 1: {sum(low > 1 for low, _ in known)} above, {sum(high < 1 for _, high in known)} below"


def ahead(label: str, against: str, method: str | None = None) -> Judge:
    """The ratio of one label's speedup to another's (`static`: the best fixed arm): above 1 everywhere?"""

    def judge(document: Document) -> Finding | None:
        rows = [
            row
            for row in document["comparisons"]
            if (row["label"], row["against"]) == (label, against) and method in (None, row["method"])
        ]
        if not rows:
            return None
        ratios = [row["ratio"] for row in rows]
        text = f"{min(ratios):.2f} to {max(ratios):.2f} of it in {len(rows)} places; {_clear(rows)}"
        return text, min(ratios) > 1

    return judge


def behind(label: str, against: str, method: str) -> Judge:
    """The same: below 1 on average over places?"""
    told = ahead(label, against, method)

    def judge(document: Document) -> Finding | None:
        found = told(document)
        if found is None:
            return None
        ratios = [
            row["ratio"]
            for row in document["comparisons"]
            if (row["label"], row["against"], row["method"]) == (label, against, method)
        ]
        return found[0], float(np.mean(ratios)) < 1

    return judge


def averages(method: str) -> Judge:
    """A line of the main table: means over places of tau and speedup, of the best fixed arm, UCBSpec and SP2ec; SP2ec
    the fastest?"""

    def judge(document: Document) -> Finding | None:
        means = {label: _mean(document["rows"], method, label) for label in (STATIC, UCBSPEC, SP2EC)}
        known = {label: found for label, found in means.items() if found is not None}
        if SP2EC not in known or len(known) < 2:
            return None
        names = {STATIC: "best fixed arm"}
        text = ", ".join(f"{names.get(label, label)} {tau:.2f} / {eta:.2f}x" for label, (tau, eta) in known.items())
        best = max(eta for label, (_, eta) in known.items() if label != SP2EC)
        return text, known[SP2EC][1] > best

    return judge


def _mean(rows: Sequence[Row], method: str, label: str) -> tuple[float, float] | None:
    """Mean tau and speedup of the fastest variants over places."""
    fastest: dict[tuple[Any, ...], Row] = {}
    for row in rows:
        place = row["target"], row["dataset"], row["temperature"]
        if (row["method"], row["label"]) == (method, label) and row["eta"] > fastest.get(place, {"eta": 0.0})["eta"]:
            fastest[place] = row
    if not fastest:
        return None
    tau, eta = np.mean([(row["tau"], row["eta"]) for row in fastest.values()], axis=0)
    return float(tau), float(eta)


def highest(document: Document) -> Finding | None:
    """The highest speedup of SP2ec; no statement of its own to judge."""
    found = [row["eta"] for row in document["rows"] if row["label"] == SP2EC]
    return (f"at most {max(found):.2f}x", None) if found else None


def accepts_more_and_is_slower(document: Document) -> Finding | None:
    """UCBSpec's mean tau above SP2ec's and its mean speedup below, in every family?"""
    words, true = [], []
    for method in dict.fromkeys(row["method"] for row in document["rows"]):
        ucb, mine = (_mean(document["rows"], method, label) for label in (UCBSPEC, SP2EC))
        if ucb is None or mine is None:
            continue
        words.append(f"{method}: tau {ucb[0]:.2f} against {mine[0]:.2f}, {ucb[1]:.2f}x against {mine[1]:.2f}x")
        true.append(ucb[0] > mine[0] and ucb[1] < mine[1])
    return ("; ".join(words), all(true)) if words else None


def acceptance(document: Document) -> Finding | None:
    """Whether some row accepts more than another and is slower, the interval of their ratio below 1."""
    words, found = [], []
    for row in document["acceptance"]:
        rho = "none" if row["spearman"] is None else f"{row['spearman']:+.2f}"
        said = f"{row['dataset']}: rank correlation {rho}"
        more, less = row["higher"], row["lower"]
        if more is not None and less is not None:
            said += f"; tau {more['tau']:.2f} at {more['eta']:.2f}x, tau {less['tau']:.2f} at {less['eta']:.2f}x"
        words.append(said)
        found.append(more is not None)
    return ("; ".join(words), all(found)) if words else None


def outside(document: Document) -> Finding | None:
    """Share of pulls outside the best three arms: SP2ec's below UCBSpec's in every family?"""
    words, lower = [], []
    for method in dict.fromkeys(row["method"] for row in document["shares"]):
        shares = {
            label: [
                row["outside_top3"]
                for row in document["shares"]
                if (row["method"], row["label"]) == (method, label) and row["outside_top3"] is not None
            ]
            for label in (UCBSPEC, SP2EC)
        }
        if not all(shares.values()):
            continue
        ucb, mine = (float(np.mean(shares[label])) for label in (UCBSPEC, SP2EC))
        words.append(f"{method}: {ucb:.0%} of UCBSpec's, {mine:.0%} of SP2ec's")
        lower.append(mine < ucb)
    return ("; ".join(words), all(lower)) if words else None


def regret(document: Document) -> Finding | None:
    """Wall-time regret over each prompt's best arm: SP2ec's below that of every reading of UCBSpec?"""
    rows = [row for row in document["regrets"] if row["against"] == "prompt"]
    words, lower = [], []
    for place in dict.fromkeys((row["target"], row["dataset"], row["temperature"], row["method"]) for row in rows):
        mine = {
            row["label"]: row
            for row in rows
            if (row["target"], row["dataset"], row["temperature"], row["method"]) == place
        }
        rivals = {label: row for label, row in mine.items() if label.startswith(UCBSPEC)}
        if SP2EC not in mine or not rivals:
            continue
        told = [f"{label} {_share(row)}" for label, row in {SP2EC: mine[SP2EC], **rivals}.items()]
        words.append(f"{place[3]}: {', '.join(told)}")
        lower.append(mine[SP2EC]["relative"] < min(row["relative"] for row in rivals.values()))
    return ("; ".join(words), all(lower)) if words else None


def _share(row: Row) -> str:
    told = _with_interval(row["relative"], row["relative_ci95"])
    replayed = row["predicted"]
    return told if replayed is None else f"{told} (replayed {_with_interval(replayed, row['predicted_ci95'])})"


def _with_interval(value: float, interval: Sequence[float] | None) -> str:
    return f"{value:.1%}" + ("" if interval is None else f" [{interval[0]:.1%}, {interval[1]:.1%}]")


def single_peak(document: Document) -> Finding | None:
    """Speed of the swept arms, in their order: up to one of them and down from there, in every family?

    A step back is 1 % or more; it speaks against a peak where the arms' intervals are apart, else it may be chance.
    """
    words, peaked = [], []
    for method in dict.fromkeys(row["method"] for row in document["rows"]):
        for place in dict.fromkeys((row["target"], row["dataset"], row["temperature"]) for row in document["rows"]):
            arms = _swept(document["rows"], method, place)
            if len(arms) < 3:
                continue
            top = int(np.argmax([arm["eta"] for arm in arms]))
            steps = [*pairwise(arms[: top + 1]), *((b, a) for a, b in pairwise(arms[top:]))]
            back = [(low, high) for low, high in steps if high["eta"] < 0.99 * low["eta"]]
            sure = sum(_interval(high)[1] < _interval(low)[0] for low, high in back)
            words.append(
                f"{method}, {place[1]}: {f'{len(back)} steps back, {sure} beyond chance' if back else 'one peak'}"
            )
            peaked.append(not sure)
    return ("; ".join(words), all(peaked)) if words else None


def _interval(row: Row) -> Sequence[float]:
    """Of a speedup; one that has none is taken to be exact."""
    return row["eta_ci95"] or (row["eta"], row["eta"])


def _swept(rows: Sequence[Row], method: str, place: tuple[Any, ...]) -> list[Row]:
    """A family's swept arms, by their numbers."""
    found = {
        int(row["controller"].removeprefix(ARM)): row
        for row in rows
        if (row["target"], row["dataset"], row["temperature"]) == place
        and (row["method"], row["label"]) == (method, STATIC)
        and row["controller"].startswith(ARM)
    }
    return [row for _, row in sorted(found.items())]


def resets(document: Document) -> Finding | None:
    """Resets every 512 rounds against none, by the labels of the ablation: not slower?"""
    rows = [row for row in document["comparisons"] if row["label"].startswith(f"{SP2EC}, ")]
    if not rows:
        return None
    words = [f"{row['label'].removeprefix(f'{SP2EC}, ')} {row['ratio']:.3f}" for row in rows]
    told = [row["ratio"] for row in rows if "reset every" in row["label"]]
    return "; ".join(words) + f"; {_clear(rows)}", min(told) >= 1 if told else None


def overhead(method: str, most: float) -> Judge:
    """Share of a builder's construction in whole generations: at most so much?"""

    def judge(document: Document) -> Finding | None:
        rows = [row for row in document["construction"] if row["method"] == method]
        if not rows:
            return None
        shares = [row["share"] for row in rows]
        tokens = sorted({row["tokens"] for row in rows})
        text = f"{min(shares):.2%} to {max(shares):.2%}, {tokens[0]} to {tokens[-1]} tokens in all"
        return text, max(shares) <= most

    return judge


def beats_eagle(document: Document) -> Finding | None:
    """The families with SP2ec against EAGLE-3 at its best length: every one faster?"""
    eagle = _mean(document["rows"], EAGLE, STATIC)
    found = {
        method: mean
        for method in dict.fromkeys(row["method"] for row in document["rows"])
        if (mean := _mean(document["rows"], method, SP2EC)) is not None
    }
    if eagle is None or not found:
        return None
    words = [f"{method} {tau:.2f} / {eta:.2f}x" for method, (tau, eta) in found.items()]
    return (
        f"EAGLE-3 {eagle[0]:.2f} / {eagle[1]:.2f}x; {', '.join(words)}",
        all(eta > eagle[1] for _, eta in found.values()),
    )


def by_length(method: str | None) -> Judge:
    """SP2ec's speedup from the shortest prompts to the longest: does it grow (`method`), does it stay within a tenth
    (None: of every other method)?"""

    def judge(document: Document) -> Finding | None:
        words, true = [], []
        for name in dict.fromkeys(row["method"] for row in document["contexts"]):
            if (name != method) if method is not None else (name == PRUNING):
                continue
            rows = [row for row in document["contexts"] if (row["method"], row["label"]) == (name, SP2EC)]
            ends = sorted(rows, key=lambda row: row["prompt_len"])
            if len(ends) < 2:
                continue
            told = ", ".join(f"{row['eta']:.2f}x at {row['prompt_len']:.0f} tokens" for row in ends)
            words.append(f"{name}: {told}")
            etas = [row["eta"] for row in ends]
            true.append(etas[-1] > etas[0] if method is not None else max(etas) <= 1.1 * min(etas))
        return ("; ".join(words), all(true)) if words else None

    return judge
