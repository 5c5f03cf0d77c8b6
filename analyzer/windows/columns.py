"""Columns of Arrow tables as arrays."""

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc


def filled(column: pa.Array | pa.ChunkedArray, instead: float) -> np.ndarray:
    """Return a column as an array, with something instead of nulls; most columns have none, and asking is cheap."""
    values: np.ndarray = np.asarray(pc.fill_null(column, instead) if column.null_count else column)
    return values
