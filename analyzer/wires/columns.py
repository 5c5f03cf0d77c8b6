"""Columns of the store as arrays: numbers, kinds of equal rows, and keys by which rows are known again."""

import zlib

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

_MOST = 2**62  # that fits into a signed integer of 64 bits


def as_floats(column: pa.ChunkedArray) -> np.ndarray:
    """Return a column as floats, 0 where it is null."""
    filled: np.ndarray = np.asarray(pc.fill_null(column.cast(pa.float64()), 0.0))
    return filled


def is_equal(column: pa.ChunkedArray, value: str) -> np.ndarray:
    """Return where a column of text has this value; null is another one."""
    equal: np.ndarray = np.asarray(pc.fill_null(pc.equal(column.cast(pa.string()), value), False))
    return equal


def codes_of(column: pa.ChunkedArray) -> np.ndarray:
    """Return a number for each value, equal for equal ones, -1 for null."""
    indices = column.combine_chunks().dictionary_encode().indices
    codes: np.ndarray = np.asarray(pc.fill_null(indices, -1)).astype(np.int64)
    return codes


def kinds_of(rows: pa.Table, names: tuple[str, ...]) -> np.ndarray:
    """Return a number for each row, equal for rows that are equal in these columns.

    >>> kinds_of(pa.table({"func": ["AllReduce", "AllGather", "AllReduce"]}), ("func",)).tolist()
    [0, 1, 0]
    """
    return number_rows([codes_of(rows[name]) for name in names])[0]


def number_rows(columns: list[np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """Return a number for each row of codes, equal for equal rows, and the first row of each number.

    The codes of a row become one integer, numbered anew whenever it would not fit: sorting integers is ten times
    faster than sorting rows.
    """
    key, span = np.zeros(len(columns[0]), np.int64), 1
    for codes in columns:
        width = int(codes.max(initial=-1)) + 2  # one more for unknown, -1
        if span * width >= _MOST:
            _, key = np.unique(key, return_inverse=True)
            span = int(key.max(initial=-1)) + 1
        key, span = key * width + codes + 1, span * width
    _, first, number = np.unique(key, return_index=True, return_inverse=True)
    return number.reshape(-1), first


def keys_of(rows: pa.Table, sort: str, names: tuple[str, ...]) -> np.ndarray:
    """Return what each row is known by in later looks: its sort, function and these numbers."""
    func = rows["func"].combine_chunks().dictionary_encode()
    seeds = np.array([zlib.crc32(f"{sort} {name}".encode()) for name in func.dictionary.to_pylist()], np.uint64)
    key = seeds[np.asarray(func.indices)] if len(seeds) else np.zeros(0, np.uint64)
    for name in names:
        key = _mixed(key ^ rows[name].to_numpy().astype(np.uint64))
    return key


def _mixed(value: np.ndarray) -> np.ndarray:
    """Return numbers whose bits all depend on all bits of the given ones (the finaliser of splitmix64)."""
    value = (value ^ (value >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    value = (value ^ (value >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    result: np.ndarray = value ^ (value >> np.uint64(31))
    return result
