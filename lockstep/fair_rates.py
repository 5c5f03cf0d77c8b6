"""What flows get that share links: max-min fair rates, for the simulator's clusters and for plans of paths.

Nobody can get more without somebody who has less getting still less. Reference: progressive filling (Bertsekas and
Gallager, Data Networks). Cost: O(flows) per distinct rate that comes out.
"""

import numpy as np
from numpy.typing import NDArray


def fair_rates(paths: NDArray[np.int64], capacity: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the max-min fair rate of each flow, given the links it takes and what each link carries.

    >>> fair_rates(np.array([[0, 2], [0, 1], [1, 2]]), np.array([1.0, 10.0, np.inf])).tolist()
    [0.5, 0.5, 9.5]
    """
    left, rates = capacity.copy(), np.zeros(len(paths))
    todo = np.arange(len(paths))
    while len(todo):
        count = np.bincount(paths[todo].ravel(), minlength=len(capacity))
        with np.errstate(divide="ignore", invalid="ignore"):
            share = np.where(count > 0, left / np.maximum(count, 1), np.inf)
        mine = share[paths[todo]].min(axis=1)
        settled = mine <= mine.min() * (1 + 1e-9)
        rates[todo[settled]] = mine[settled]
        used = np.repeat(mine[settled], paths.shape[1])
        left = np.maximum(left - np.bincount(paths[todo[settled]].ravel(), used, len(capacity)), 0.0)
        todo = todo[~settled]
    return rates
