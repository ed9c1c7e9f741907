"""What a valid trace is: vectorised checks that turn decoded rows into faults, and faults into TraceErrors.

Owns every allowed range and the advice for breaking it. Knows nothing about files, so the reader, the writer and the
quarantine judge by the same rules. The kernel relies on these checks and repeats none of them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from specsim.decode import Block
from specsim.errors import TraceError
from specsim.faults import (
    Fault,
    Rows,
    if_any,
    int_list_fault,
    list_value_fault,
    range_fault,
    whole_faults,
)
from specsim.pass_faults import pass_faults
from specsim.schema import TraceMeta
from specsim.tree_faults import tree_faults

INT32_MAX: Final = 2**31 - 1
PROB_LISTS: Final = ("q", "p", "accept_prob")
LENGTH_LISTS: Final = ("q", "p", "accept_prob", "entropy")
"""The lists whose common length is m, in the order in which a mismatch is reported."""


@dataclass(slots=True)
class Carry:
    """What a check must remember from the rows before the block: the last row, and whether `ctx_len` is recorded."""

    request: int | None = None
    pos: int = 0
    ctx_recorded: bool | None = None


def error_of(fault: Fault, block: Block, path: str | Path) -> TraceError:
    """The TraceError for the first row of a fault."""
    i = int(fault.rows[0])
    return TraceError(
        path,
        fault.found(i),
        allowed=fault.allowed,
        advice=fault.advice,
        column=fault.column,
        row=block.first_row + i,
        request=None if fault.fatal else int(block.ints["request"].values[i]),
    )


def raise_first(block: Block, meta: TraceMeta, carry: Carry, path: str | Path, *, after_gap: bool = False) -> None:
    """Raise for the earliest faulty row of a block; otherwise move `carry` to the block's last row.

    Args:
        block: decoded rows.
        meta: metadata of their file.
        carry: what came before.
        path: file named in messages.
        after_gap: rows of a skipped request lie before the block, so the last request cannot go on in it.

    Raises:
        TraceError: naming file, column, row and request of the fault.
    """
    faults = [
        *request_faults(block),
        *row_faults(block, meta, carry),
        *sequence_faults(block, carry, after_gap=after_gap),
    ]
    if faults:
        # min() keeps the first of equals: within one row the order of the checks, from cause to consequence.
        raise error_of(min(faults, key=lambda fault: int(fault.rows[0])), block, path)
    advance(block, carry)


def advance(block: Block, carry: Carry) -> None:
    """Remember the last row of a block."""
    if block.rows:
        carry.request = int(block.ints["request"].values[-1])
        carry.pos = int(block.ints["pos"].values[-1])
        carry.ctx_recorded = bool(block.ints["ctx_len"].valid[-1])


def request_faults(block: Block) -> Iterator[Fault]:
    """Faults of the `request` column itself; null and fractional ids are fatal because no request owns the row."""
    ids = block.ints["request"]
    advice = "Number the responses of the file 0, 1, 2, ..."
    yield from whole_faults("request", ids, f"whole numbers between 0 and {INT32_MAX}", advice, fatal=True)
    yield from range_fault("request", ids, 0, INT32_MAX, advice)


def sequence_faults(block: Block, carry: Carry, *, after_gap: bool = False) -> Iterator[Fault]:
    """Requests that do not ascend, and `ctx_len` recorded in some rows only: faults between requests."""
    ids = block.ints["request"].values
    before = np.concatenate(([ids[0] if carry.request is None else carry.request], ids[:-1]))
    wrong = ids < before
    wrong[0] |= after_gap and carry.request == ids[0]
    yield from if_any(
        "request",
        np.flatnonzero(wrong),
        lambda i: (
            f"request {ids[i]} follows request {before[i]}"
            if ids[i] < before[i]
            else f"request {ids[i]} goes on after another one"
        ),
        "rows grouped by request, ids ascending (gaps between ids are fine)",
        "Sort the file by (request, pos) and give every response its own id, or use --quarantine DIR",
    )
    valid = block.ints["ctx_len"].valid
    recorded = bool(valid[0]) if carry.ctx_recorded is None else carry.ctx_recorded
    yield from ctx_mix_fault(np.flatnonzero(valid != recorded), recorded)


def ctx_mix_fault(rows: Rows, recorded: bool) -> Iterator[Fault]:
    """`ctx_len` of these rows differs in nullness from the other rows, where it is `recorded` or not."""
    yield from if_any(
        "ctx_len",
        rows,
        lambda _: "the value is null, but earlier rows have one" if recorded else "a value, but earlier rows are null",
        "a value in every row or null in every row",
        "Record it everywhere or drop it everywhere, or use --quarantine DIR",
    )


def row_faults(block: Block, meta: TraceMeta, carry: Carry) -> Iterator[Fault]:
    """Every fault that belongs to one row (or to its step from the row before it in the same request)."""
    yield from _pos_faults(block, meta, carry)
    yield from _ctx_faults(block)
    lengths, found = row_lengths(block, meta)
    yield from _length_faults(block, meta, lengths, found)
    for name in PROB_LISTS:
        if name in block.lists:
            yield from list_value_fault(name, block.lists[name], 0.0, 1.0, "Write probabilities, not logits or logs")
    if "entropy" in block.lists:
        yield from list_value_fault("entropy", block.lists["entropy"], 0.0, np.inf, "Write entropy in nats")
    yield from _time_faults(block)
    if meta.kind == "arm":
        yield from _arm_faults(block, meta)
        return
    yield from _accept_faults(block, lengths)
    yield from pass_faults(block, lengths)
    if meta.kind == "tree":
        yield from tree_faults(block)


def row_lengths(block: Block, meta: TraceMeta) -> tuple[NDArray[np.int64], list[str]]:
    """m of every row of a block, int64[R], and the names of the list columns that were looked at."""
    lengths = np.full(block.rows, -1, dtype=np.int64)
    names = [name for name in (*LENGTH_LISTS, "topk_q", "target_rank") if name in block.lists]
    for name in names:
        column = block.lists[name]
        lengths = np.where((lengths < 0) & column.valid, column.lengths, lengths)
    return np.where(lengths < 0, meta.unlogged_len, lengths), names


def _pos_faults(block: Block, meta: TraceMeta, carry: Carry) -> Iterator[Fault]:
    ids, column = block.ints["request"].values, block.ints["pos"]
    yield from whole_faults("pos", column, f"whole numbers between 0 and {INT32_MAX}", "Count the committed tokens")
    yield from range_fault("pos", column, 0, INT32_MAX, "Count the committed tokens before each round")
    pos = column.values
    dense = meta.coverage == "every-position"
    same = np.empty(block.rows, dtype=np.bool_)
    same[0] = carry.request == ids[0]
    same[1:] = ids[1:] == ids[:-1]
    before = np.concatenate(([carry.pos], pos[:-1]))
    if not dense:
        yield from if_any(
            "pos",
            np.flatnonzero(same & (pos <= before)),
            lambda i: f"pos {pos[i]} follows pos {before[i]} of the same request",
            "pos strictly increasing inside a request",
            "Sort the rounds of each request by pos and drop repeated ones",
        )
        return
    expected = np.where(same, before + 1, 0)
    yield from if_any(
        "pos",
        np.flatnonzero(pos != expected),
        lambda i: (
            f"pos {pos[i]} follows pos {before[i]} of the same request" if same[i] else f"a request starts at {pos[i]}"
        ),
        "0, 1, 2, ... without gaps inside a request, because coverage is 'every-position'",
        "Record the missing positions, sort the rows, or write coverage 'every-round' if it is a log of rounds",
    )


def _ctx_faults(block: Block) -> Iterator[Fault]:
    column, pos = block.ints["ctx_len"], block.ints["pos"].values
    advice = "ctx_len is prompt length + pos"
    yield from whole_faults("ctx_len", column, "whole numbers >= pos, or null in every row", advice, nullable=True)
    values = column.values
    yield from if_any(
        "ctx_len",
        np.flatnonzero(column.valid & column.whole & ((values < pos) | (values > INT32_MAX))),
        lambda i: f"value {values[i]} at pos {pos[i]}",
        f"whole numbers between pos and {INT32_MAX}",
        advice,
    )


def _length_faults(block: Block, meta: TraceMeta, lengths: Rows, names: list[str]) -> Iterator[Fault]:
    for name in names:
        column = block.lists[name]
        yield from if_any(
            name,
            np.flatnonzero(column.valid & (column.lengths != lengths)),
            lambda i, held=column.lengths: (
                f"the list holds {held[i]} values, but another list of the row holds {lengths[i]}"
            ),
            f"equal lengths in {', '.join(names)} of one row",
            "Cut all lists of the row at the same draft length",
        )
    # In an arm trace m is draft_len, which max_draft_len does not bound.
    rows = np.flatnonzero(lengths > meta.max_draft_len) if meta.kind != "arm" else np.zeros(0, np.int64)
    longest = next((name for name in names if len(rows) and block.lists[name].valid[rows[0]]), "accept_len")
    yield from if_any(
        longest,
        rows,
        lambda i: f"the list holds {lengths[i]} values",
        f"at most max_draft_len = {meta.max_draft_len} of the metadata",
        "Correct max_draft_len in the metadata or cut the rows",
    )


def _accept_faults(block: Block, lengths: Rows) -> Iterator[Fault]:
    column = block.ints["accept_len"]
    advice = "Count the leading accepted draft tokens, without the bonus token"
    yield from whole_faults("accept_len", column, "whole numbers between 0 and m", advice)
    values = column.values
    yield from if_any(
        "accept_len",
        np.flatnonzero(column.valid & column.whole & ((values < 0) | (values > lengths))),
        lambda i: f"value {values[i]} in a row of m = {lengths[i]} draft tokens",
        "whole numbers between 0 and m, the length of the row's lists",
        advice,
    )


def _time_faults(block: Block) -> Iterator[Fault]:
    advice = "Write seconds, and null where nothing was measured"
    if "draft_s" in block.lists:
        yield from list_value_fault("draft_s", block.lists["draft_s"], 0.0, np.inf, advice)
    if "verify_s" in block.floats:
        values, valid = block.floats["verify_s"]
        fine = (values >= 0) & (values < np.inf)
        yield from if_any(
            "verify_s",
            np.flatnonzero(valid & ~fine),
            lambda i: f"value {values[i]}",
            "finite numbers >= 0, or null",
            advice,
        )


def _arm_faults(block: Block, meta: TraceMeta) -> Iterator[Fault]:
    for name in ("arm_accept_len", "arm_draft_s"):
        column = block.lists[name]
        nullable = name == "arm_draft_s"
        wrong = np.where(column.valid, column.lengths != meta.n_arms, not nullable)
        yield from if_any(
            name,
            np.flatnonzero(wrong),
            lambda i, c=column: f"the list holds {c.lengths[i]} values" if c.valid[i] else "the value is null",
            f"one entry for each of the {meta.n_arms} arms in the metadata" + (", or null" if nullable else ""),
            "Write one entry per arm, in the order of `arms`",
        )
    accepted = block.lists["arm_accept_len"]
    limit = meta.unlogged_len
    advice = "Count the accepted tokens of arm k's whole draft"
    yield from int_list_fault("arm_accept_len", accepted, 0, limit, f"0 to draft_len = {limit}", advice)
    yield from list_value_fault("arm_draft_s", block.lists["arm_draft_s"], 0.0, np.inf, "Write seconds")
