"""How far chance may move the delay of a pair, and what it is held against.

How far a ratio may be off follows from how much single operations differ, those of the pair or, where these happen to
agree, those of all others, of which there may be few as well. What it is held against may be off, too. Channels of
one operation are one measurement, and of one operation alone nothing follows.
"""

import numpy as np
from scipy.special import ndtr, stdtrit

from analyzer.delay_matrix.delays import Delays, PairOptions, median_of, sum_of
from analyzer.delay_matrix.ends import number_rows

MEAN_TO_SIGMA = 1.2533  # likewise, from the mean absolute deviation
_MOST_MOVED = 3.0  # that a median may be off: beyond, nothing is known of it, and of little traffic little follows


def measure_chance(
    delays: Delays, expected: np.ndarray, total_ns: np.ndarray, pairs: int, options: PairOptions
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return by which share each pair's ratio may be off by chance, its standard error, and the operations behind it.

    Channels of one operation are late together, so their errors add up; those of different operations cancel.
    """
    group, first = number_rows([delays.operation, delays.index])
    error_ns = np.bincount(group, weights=_errors(delays) * delays.bytes, minlength=len(first))
    seen = np.zeros(len(first))
    np.maximum.at(seen, group, delays.operations)
    operations = sum_of(seen, delays.index[first], pairs)
    raw_ns = sum_of(_as_waited(delays) * delays.bytes, delays.index, pairs)
    with np.errstate(invalid="ignore", divide="ignore"):
        relative = np.sqrt(sum_of(error_ns**2, delays.index[first], pairs)) / total_ns
        # Where nearly all of a wait was taken off, its error is many times what is left; others are not as uncertain.
        of_others = _error_of_others(relative * total_ns / raw_ns, operations, options.errors) * raw_ns / total_ns
        own = np.maximum(options.errors * relative, of_others)
        median = sum_of(expected * delays.bytes * _errors_of_medians(delays, options), delays.index, pairs)
        median = median / sum_of(expected * delays.bytes, delays.index, pairs)
    return np.hypot(own, np.nan_to_num(median)), relative, operations


def _quantile(freedom: np.ndarray, errors: float) -> np.ndarray:
    """Return the quantile of Student's t that is as rare as so many errors of known size."""
    return np.where(freedom > 0, stdtrit(np.maximum(freedom, 1e-9), ndtr(errors)), np.inf)


def _error_of_others(relative: np.ndarray, operations: np.ndarray, errors: float) -> np.ndarray:
    """Return how far as many operations of all other pairs may be off by chance, as rarely as by so many errors.

    What is known of the others' noise are their own few operations, hence Student's t. Three that agree among others
    that do not prove nothing; three that are late in different ways among others that agree do.

    >>> _error_of_others(np.array([0.3, 0.1, 0.1]), np.array([3.0, 3.0, 3.0]), 3.0).round(2).tolist()
    [0.66, 1.48, 1.48]
    """
    freedom = np.where(np.isfinite(relative), np.maximum(operations - 1, 0), 0.0)
    squares = np.where(freedom > 0, freedom * relative**2 * operations, 0.0)
    left = freedom.sum() - freedom
    single = np.sqrt((squares.sum() - squares) / left)
    error: np.ndarray = _quantile(left, errors) * np.where(left > 0, single, 1.0) / np.sqrt(operations)
    return error


def _errors_of_medians(delays: Delays, options: PairOptions) -> np.ndarray:
    """Return by how much chance moves the median of its kind that each row is held against, as a share of it.

    How much single operations differ is known from those of all pairs of the kind together.
    """
    _, first = number_rows([delays.kind, delays.index])
    kinds = int(delays.kind.max(initial=-1)) + 1
    freedom = np.bincount(delays.kind[first], weights=np.maximum(delays.operations[first] - 1, 0), minlength=kinds)
    single = _quantile(freedom, options.errors)[delays.kind] * _errors(delays) / _as_waited(delays)
    pairs = np.bincount(delays.kind[first], minlength=kinds)[delays.kind]
    moved = MEAN_TO_SIGMA * median_of(single, delays.kind) / np.sqrt(pairs)
    known: np.ndarray = np.minimum(moved, _MOST_MOVED)
    return known


def _as_waited(delays: Delays) -> np.ndarray:
    """Return each row's delay before anything was taken off, at least what its link needs."""
    waited: np.ndarray = np.maximum(np.maximum(delays.raw_ns_per_byte, delays.least), 1e-9)
    return waited


def _errors(delays: Delays) -> np.ndarray:
    """Return each row's standard error: never less than rows of as many operations have; of one, all it took."""
    taken = np.maximum(delays.ns_per_byte, delays.least)
    with np.errstate(invalid="ignore", divide="ignore"):
        # Of one operation, relative; how much that differs which no link is slow for says nothing.
        single = delays.error * np.sqrt(delays.operations) / _as_waited(delays)
    known = single[np.isfinite(single) & (single > 0)]
    usual = float(np.median(known)) if len(known) else 0.0
    least = usual * taken / np.sqrt(np.maximum(delays.operations, 1.0))
    errors: np.ndarray = np.maximum(np.where(np.isfinite(delays.error), delays.error, taken), least)
    return errors
