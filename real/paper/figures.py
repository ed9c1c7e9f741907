"""The data of the paper's figures as tables, from rows and cells; `analysis.figures` draws them from the files.

Owns the columns. Lengths of Figures 2 and 5 are taken along the decode: LibraSpec's at its own rounds with the best
length of the same position beside it, the static one at its own rounds. The best length of a position maximises tokens
per second of the round that starts there (`specsim.oracle`), by the recorded trace and the cell's calibration, so it
exists for greedy decoding and drafters that can be recorded.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from analysis.paper_tables import fastest
from real.compare import counted
from real.loop import Round
from real.paper.config import FIXED, LIBRASPEC, STATIC
from real.paper.summary import Measured, Row, best, rows_of
from real.validation import CALIBRATION, TRACE
from specsim.latency import load_latency
from specsim.oracle import best_round_lengths
from specsim.reliability import Reliability
from specsim.rows import make_costs, make_rows
from specsim.trace import read_trace

MAX_LABEL = re.compile(r"max=(\d+)")
ORACLE = "oracle"


def gains(rows: Sequence[Row]) -> pa.Table:
    """Figure 1: speedup without LibraSpec (the block as published, where the cell has it, else the best static length)
    and with it, per target, dataset and method."""
    found = []
    for target, temperature in dict.fromkeys((row["target"], row["temperature"]) for row in rows):
        chosen = fastest([row for row in rows if (row["target"], row["temperature"]) == (target, temperature)])
        for (method, label), dataset in chosen:
            static = chosen.get(((method, FIXED), dataset), chosen.get(((method, STATIC), dataset)))
            if label == LIBRASPEC and static is not None:
                mine = chosen[(method, LIBRASPEC), dataset]
                found.append(
                    {
                        "target": target,
                        "temperature": temperature,
                        "dataset": dataset,
                        "method": method,
                        "without": static["eta"],
                        "baseline": static["controller"],
                        "libraspec": mine["eta"],
                        "gain": mine["eta"] - static["eta"],
                    }
                )
    return pa.Table.from_pylist(found)


def breakdown(rows: Sequence[Row]) -> pa.Table:
    """Figure 3: mean milliseconds of a round's draft, verification and rest, per method, at its static lengths."""
    keys = ("target", "dataset", "temperature", "method", "controller", "mean_submitted_len", "mean_forward_passes")
    parts = ("draft_ms", "verify_ms", "rest_ms")
    return pa.Table.from_pylist([{key: row[key] for key in keys + parts} for row in rows if row["label"] == STATIC])


def max_lengths(rows: Sequence[Row]) -> pa.Table:
    """Figure 4: speedup of LibraSpec by its maximum (labels `max=24`), of the static length of the same number, and of
    the best static length."""
    found = []
    for row in rows:
        limit = MAX_LABEL.fullmatch(row["label"])
        if limit is None:
            continue
        keys = ("target", "dataset", "temperature", "method", "drafter")
        statics = [one for one in rows if one["label"] == STATIC and all(one[key] == row[key] for key in keys)]
        same = [one["eta"] for one in statics if one["controller"] == f"static:length={limit[1]}"]
        found.append(
            {
                **{key: row[key] for key in keys},
                "max_len": int(limit[1]),
                "libraspec": row["eta"],
                "tau": row["tau"],
                "static": same[0] if same else None,
                "best_static": best(statics)["eta"] if statics else None,
            }
        )
    schema = pa.schema(
        [(key, pa.string()) for key in ("target", "dataset")]
        + [("temperature", pa.int64()), ("method", pa.string()), ("drafter", pa.string()), ("max_len", pa.int64())]
        + [(key, pa.float64()) for key in ("libraspec", "tau", "static", "best_static")]
    )
    return pa.Table.from_pylist(found, schema=schema)


def lengths(cell: Measured) -> tuple[list[Row], list[Row]]:
    """Figures 2 and 5 of one cell: lengths along the decode of every prompt, and mean absolute deviations.

    Returns:
        Rows (request, series, step, pos, length) and rows (request or None for all prompts, series, rounds, mad), each
        with the cell's place; both empty where there is no best length to compare with, or no LibraSpec.
    """
    rows = rows_of(cell)
    libra, statics = ([row for row in rows if row["label"] == label] for label in (LIBRASPEC, STATIC))
    # The trace has to tell of the very positions that were decoded.
    same_text = cell.cell.temperature == 0 and cell.document["other_texts_in_trace"] == 0
    oracle = _best_lengths(cell) if same_text and libra and statics else None
    if oracle is None:
        return [], []
    place = {
        "target": cell.cell.target,
        "dataset": cell.cell.dataset,
        "method": cell.cell.method.name,
        "drafter": cell.cell.method.drafter,
    }
    series = {LIBRASPEC: libra[0]["controller"], STATIC: best(statics)["controller"]}
    along: list[Row] = []
    deviations: list[Row] = []
    for name, spelling in series.items():
        off: dict[int, npt.NDArray[np.int64]] = {}
        for request in cell.requests:
            rounds = counted(request, spelling).decoded.rounds
            ideal = oracle[request.number][[row.pos for row in rounds]]
            off[request.number] = np.abs(ideal - [row.submitted_len for row in rounds])
            along += [place | one for one in _along(request.number, name, rounds, ideal)]
        for number, found in [*off.items(), (None, np.concatenate(list(off.values())))]:
            mad = float(found.mean())
            deviations.append(
                {**place, "request": number, "series": name, "controller": spelling, "rounds": len(found), "mad": mad}
            )
    return along, deviations


def _along(number: int, name: str, rounds: Sequence[Round], ideal: npt.NDArray[np.int32]) -> Iterator[Row]:
    for row, length in zip(rounds, ideal.tolist(), strict=True):
        at = {"request": number, "step": row.round, "pos": row.pos}
        yield {**at, "series": name, "length": row.submitted_len}
        if name == LIBRASPEC:
            yield {**at, "series": ORACLE, "length": length}


def _best_lengths(cell: Measured) -> dict[int, npt.NDArray[np.int32]] | None:
    """Best length of every position, by request; None for trees, whose traces tell their main chain's acceptance."""
    meta, chunk = read_trace(cell.folder / TRACE)
    if meta.kind != "length":
        return None
    costs = make_costs(load_latency(cell.folder / CALIBRATION), meta.max_draft_len)
    found = best_round_lengths(make_rows(chunk), costs, meta.block_len)
    return {int(number): found[chunk.request == number] for number in np.unique(chunk.request)}


def calibration(cell: Measured) -> list[Row]:
    """Figure 4's other half: how well q says what is accepted, per draft position and bin (`specsim.reliability`)."""
    if not (cell.folder / TRACE).exists():
        return []
    _, chunk = read_trace(cell.folder / TRACE)
    found = Reliability()
    found.add(chunk)
    place: Row = {"target": cell.cell.target, "dataset": cell.cell.dataset}
    place |= {"temperature": cell.cell.temperature, "method": cell.cell.method.name}
    return [place | one._asdict() for one in found.bins()]
