"""When things began and ended, in arrays."""

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

NEVER_NS = -(1 << 62)  # before any time; sums of two still fit into 64 bits


class Span(NamedTuple):
    """When each of several things began and ended, UNIX time."""

    first_ns: npt.NDArray[np.int64]
    last_ns: npt.NDArray[np.int64]
