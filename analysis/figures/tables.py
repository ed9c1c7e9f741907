"""Small readings of tables that several figures share."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa


def values(data: pa.Table, column: str) -> list[Any]:
    """The different values of a column, in their order."""
    return list(dict.fromkeys(data[column].to_pylist()))


def numbers(data: pa.Table, column: str) -> npt.NDArray[np.float64]:
    """float64 values of a column, NaN where null."""
    return data[column].cast(pa.float64()).to_numpy()
