"""What valid columns of tree traces are (`topk_q`, `target_rank`): faults of the rows that break a rule.

Apart from `validate`, which calls it and judges the lengths of the lists.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
from numpy.typing import NDArray

from specsim.chunk import offsets_of
from specsim.decode import Block, ListColumn
from specsim.faults import Fault, Rows, if_any, int_list_fault, null_fault, row_of

_INT16_MAX = 2**15 - 1
_MOST = 1.01  # sum of a list: 1, with room for probabilities rounded to 16 bits


def tree_faults(block: Block) -> Iterator[Fault]:
    """Faults of `topk_q` and `target_rank` in decoded rows."""
    topk, rank = block.lists["topk_q"], block.lists["target_rank"]
    for name, column in (("topk_q", topk), ("target_rank", rank)):
        yield from null_fault(name, ~column.valid, "a list of m entries", "Tree traces need it in every row")
    inner: ListColumn = topk.values
    yield from _list_faults(topk, inner)
    same_shape = len(rank.values.values) == len(inner.lengths) and bool(np.array_equal(rank.lengths, topk.lengths))
    limit = inner.lengths if same_shape else np.full(len(rank.values.values), _INT16_MAX)
    yield from int_list_fault(
        "target_rank",
        rank,
        -1,
        limit - 1,
        "-1 (absent) to k - 1, k the number of probabilities topk_q lists at that position",
        "Write the rank of the target's own token among those the drafter lists, 0 for the most probable",
    )


def _list_faults(topk: ListColumn, inner: ListColumn) -> Iterator[Fault]:
    """Lists that are null, hold something that is no probability, rise, or sum to more than 1."""
    advice = "Write the drafter's k largest probabilities of each draft position, largest first"
    starts, values = offsets_of(inner.lengths), np.asarray(inner.values)
    yield from _fault(topk, np.flatnonzero(~inner.valid), lambda _: "the list is null", "a list", advice)

    entries = np.flatnonzero(~((values >= 0) & (values <= 1)))
    positions, first = np.unique(np.searchsorted(starts, entries, "right") - 1, return_index=True)

    def outside(position: int) -> str:
        entry = int(entries[first[np.searchsorted(positions, position)]])
        shown = "NaN or null" if np.isnan(values[entry]) else str(values[entry])
        return f"value {shown} at rank {entry - starts[position]}"

    yield from _fault(topk, positions, outside, "numbers between 0 and 1", "Write probabilities, not logits or logs")

    rises = np.zeros(len(values), dtype=np.bool_)
    rises[1:] = values[1:] > values[:-1]
    rises[starts[:-1][inner.lengths > 0]] = False  # the first of a position follows none
    risen = np.flatnonzero(rises)
    rising, at = np.unique(np.searchsorted(starts, risen, "right") - 1, return_index=True)

    def shown_rise(position: int) -> str:
        entry = int(risen[at[np.searchsorted(rising, position)]])
        return f"value {values[entry]} follows {values[entry - 1]} at rank {entry - starts[position]}"

    yield from _fault(topk, rising, shown_rise, "probabilities in descending order", advice)

    plain = np.clip(np.nan_to_num(values), 0, 1)  # faults found above must not hide these
    sums = np.concatenate(([0.0], np.cumsum(plain, dtype=np.float64)))
    totals = sums[starts[1:]] - sums[starts[:-1]]
    yield from _fault(
        topk,
        np.flatnonzero(totals > _MOST),
        lambda position: f"the probabilities add up to {totals[position]:.4g}",
        "a sum of at most 1 at each draft position",
        "Write probabilities of one distribution, after the softmax over the whole vocabulary",
    )


def _fault(
    topk: ListColumn, positions: Rows, found: Callable[[int], str], allowed: str, advice: str
) -> Iterator[Fault]:
    """The rows of the given draft positions (numbers among all of the block), each shown by its first one."""
    if len(positions) == 0:
        return
    offsets: NDArray[np.int64] = offsets_of(topk.lengths)
    rows, first = np.unique(row_of(topk, positions), return_index=True)

    def shown(i: int) -> str:
        position = int(positions[first[np.searchsorted(rows, i)]])
        return f"{found(position)} at draft position {position - int(offsets[i])}"

    yield from if_any("topk_q", rows, shown, allowed, advice)
