"""What valid per-pass columns are (`schema.PASS_COLUMNS`): faults of the rows that break a rule.

Apart from `validate`, which calls it, because most traces have no such columns.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from specsim.chunk import offsets_of
from specsim.decode import Block, ListColumn
from specsim.faults import Fault, Rows, if_any, int_list_fault, list_value_fault, row_of
from specsim.schema import PASS_COLUMNS

_INT16_MAX = 2**15 - 1


def pass_faults(block: Block, lengths: Rows) -> Iterator[Fault]:
    """Faults of `pass_conf`, `pass_count` and `pass_filled`; none where the file lacks them.

    Args:
        block: decoded rows.
        lengths: int64[R], m of every row.
    """
    if PASS_COLUMNS[0] not in block.lists:
        return
    conf, count, filled = (block.lists[name] for name in PASS_COLUMNS)
    yield from _null_mix_faults(conf, count, filled)
    yield from list_value_fault("pass_conf", conf, 0.0, 1.0, "Write probabilities, not logits or logs")
    yield from int_list_fault(
        "pass_count", count, 0, _INT16_MAX, f"0 to {_INT16_MAX}", "Count the confidences that each pass recorded"
    )
    yield from if_any(
        "pass_filled",
        np.flatnonzero(count.valid & filled.valid & (count.lengths != filled.lengths)),
        lambda i: f"the list holds {filled.lengths[i]} values, but pass_count holds {count.lengths[i]}",
        "one value for each pass, as in pass_count",
        "Write one entry per denoising pass in both",
    )
    counted = np.concatenate(([0], np.cumsum(count.values.values)))
    offsets = offsets_of(count.lengths)
    total = counted[offsets[1:]] - counted[offsets[:-1]]
    yield from if_any(
        "pass_conf",
        np.flatnonzero(conf.valid & count.valid & (conf.lengths != total)),
        lambda i: f"the list holds {conf.lengths[i]} values, but pass_count adds up to {total[i]}",
        "as many values as pass_count adds up to",
        "Write the confidences of all passes of the row, pass after pass",
    )
    yield from _filled_faults(filled, lengths)


def _null_mix_faults(*columns: ListColumn) -> Iterator[Fault]:
    """Rows in which some of the columns are null and others are not."""
    some = np.logical_or.reduce([column.valid for column in columns])
    for name, column in zip(PASS_COLUMNS, columns, strict=True):
        yield from if_any(
            name,
            np.flatnonzero(some & ~column.valid),
            lambda _: "the value is null, but the row has other columns of its passes",
            f"{', '.join(PASS_COLUMNS)} all recorded or all null in one row",
            "Write null in all three where nothing was recorded",
        )


def _filled_faults(filled: ListColumn, lengths: Rows) -> Iterator[Fault]:
    advice = "Count the draft positions that are filled after the pass without a gap before them"
    bounds = np.repeat(lengths, filled.lengths)
    yield from int_list_fault("pass_filled", filled, 0, bounds, "0 to m, the length of the row's draft", advice)
    values = filled.values.values
    falls = np.zeros(len(values), dtype=np.bool_)
    falls[1:] = values[1:] < values[:-1]
    falls[offsets_of(filled.lengths)[:-1][filled.lengths > 0]] = False  # the first pass of a row follows none
    entries = np.flatnonzero(falls)
    rows, first = np.unique(row_of(filled, entries), return_index=True)
    yield from if_any(
        "pass_filled",
        rows,
        lambda i: (
            f"value {values[entries[first[np.searchsorted(rows, i)]]]} follows "
            f"{values[entries[first[np.searchsorted(rows, i)]] - 1]}"
        ),
        "values that never fall from pass to pass",
        advice,
    )
