"""How far values lie apart, whatever a few of them do."""

import numpy as np

_MAD_TO_SIGMA = 1.4826  # for normally distributed values


def spread_of(values: np.ndarray) -> float:
    """Return the standard deviation that the middle of the values suggests.

    >>> round(spread_of(np.array([1.0, 2.0, 3.0, 4.0, 900.0])), 2)
    1.48
    """
    return _MAD_TO_SIGMA * float(np.median(np.abs(values - np.median(values))))
