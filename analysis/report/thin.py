"""Fewer points where a table has more than a page can carry. Owns how many."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

POINTS = 2000  # of one plot
LISTED = 300  # rows of the table under a plot


def thin(table: pa.Table, by: Sequence[str], limit: int = POINTS) -> pa.Table:
    """At most about `limit` rows: each series loses the same share, evenly, and keeps its first and last row.

    Args:
        table: rows of every series in their order.
        by: columns whose values name a series; none for one series.
        limit: rows; series keep two rows each even where that is more.
    """
    if table.num_rows <= limit:
        return table
    places = np.arange(table.num_rows)
    if not by:
        return table.take(pa.array(_kept(places, limit / table.num_rows)))
    numbers = _series(table, by)
    kept = [_kept(places[numbers == one], limit / table.num_rows) for one in range(numbers.max() + 1)]
    return table.take(pa.array(np.sort(np.concatenate(kept))))


def _series(table: pa.Table, by: Sequence[str]) -> np.ndarray:
    """int[rows]: a number per series. Values are not glued to one text, so that no two series look like one."""
    codes = [np.asarray(table[name].combine_chunks().dictionary_encode(null_encoding="encode").indices) for name in by]
    return np.unique(np.stack(codes), axis=1, return_inverse=True)[1].ravel()


def _kept(places: np.ndarray, share: float) -> np.ndarray:
    count = max(2, int(places.size * share))
    if places.size <= count:
        return places
    return places[np.unique(np.linspace(0, places.size - 1, count).round().astype(np.int64))]
