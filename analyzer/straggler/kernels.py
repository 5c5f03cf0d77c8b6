"""The few things that stages do with very long arrays, each with one meaning wherever it is computed.

All of them are exact, so that neither the device nor the order in which threads come along shows in a verdict:
equal rows are numbered, medians and extremes pick what is there, and sums are of whole numbers. The caller rounds
what it sums to whole nanoseconds; below 2^53 a float holds every partial sum.

On the CPU numpy does it: its sorts use the vector units, and torch took two to four times the CPU time. torch pays
from a GPU on; nothing imports it (2 s, 200 MB) before one is there and an array is long enough.
"""

from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Literal, Protocol

import numpy as np

from lockstep.errors import NotPresent

MIX = np.uint64(0x9E3779B97F4A7C15)  # 2^64 over the golden ratio: neighbouring numbers land far apart
SHIFT = 29  # brings the upper bits, which a product spreads best, down to where the next product takes them


def mix(*numbers: np.ndarray) -> np.ndarray:
    """Return one well-spread number for each row of several whole numbers."""
    mixed = np.zeros(len(numbers[0]), np.uint64)
    for column in numbers:
        mixed = (mixed ^ column.astype(np.uint64)) * MIX
        mixed ^= mixed >> np.uint64(SHIFT)
    return mixed


class NumpyKernels:
    """Computes in this process, on one core."""

    def number(self, *columns: np.ndarray) -> tuple[np.ndarray, int]:
        found, numbers = np.unique(mix(*columns), return_inverse=True)
        return numbers.reshape(-1), len(found)

    def median_by(self, values: np.ndarray, group: np.ndarray, groups: int, *, upper: bool = False) -> np.ndarray:
        # Ranking all values and sorting group and rank as one number is four times as fast as np.lexsort, which
        # cannot use the vector units. It does not matter which of two equal values is meant.
        order = np.argsort(values)
        ranks = np.empty(len(values), np.int64)
        ranks[order] = np.arange(len(values))
        ranked = np.sort(group * len(values) + ranks)
        sizes = np.bincount(group, minlength=groups)
        middle = np.cumsum(sizes) - sizes + (sizes // 2 if upper else (sizes - 1) // 2)
        medians: np.ndarray = values[order[ranked[middle] % max(len(values), 1)]]
        return medians

    def sum_by(self, values: np.ndarray, group: np.ndarray, groups: int) -> np.ndarray:
        return np.bincount(group, weights=values, minlength=groups)

    def max_by(self, values: np.ndarray, group: np.ndarray, groups: int, empty: float) -> np.ndarray:
        largest = np.full(groups, empty, values.dtype)
        np.maximum.at(largest, group, values)
        return largest

    def min_by(self, values: np.ndarray, group: np.ndarray, groups: int, empty: float) -> np.ndarray:
        smallest = np.full(groups, empty, values.dtype)
        np.minimum.at(smallest, group, values)
        return smallest


# cpu and cuda are torch's; auto: a GPU where there is one, else numpy
Device = Literal["auto", "numpy", "cpu", "cuda"]

_DRIVER = Path("/dev/nvidiactl")  # without it there is no NVIDIA GPU to ask torch for


class Kernels(Protocol):
    """What can be asked; arrays are numpy's on both sides, one entry a row, and groups are numbers from 0."""

    def number(self, *columns: np.ndarray) -> tuple[np.ndarray, int]:
        """Return a number for each row of whole numbers, equal for equal rows, and how many there are."""
        ...

    def median_by(self, values: np.ndarray, group: np.ndarray, groups: int, *, upper: bool = False) -> np.ndarray:
        """Return the lower (or upper) median of each group, none of which is empty; NaN is larger than anything."""
        ...

    def sum_by(self, values: np.ndarray, group: np.ndarray, groups: int) -> np.ndarray:
        """Return the sum of each group of whole numbers, 0 of an empty one."""
        ...

    def max_by(self, values: np.ndarray, group: np.ndarray, groups: int, empty: float) -> np.ndarray:
        """Return the largest of each group and of `empty`, which stands for those that have nothing."""
        ...

    def min_by(self, values: np.ndarray, group: np.ndarray, groups: int, empty: float) -> np.ndarray:
        """Return the smallest of each group and of `empty`."""
        ...


@dataclass(frozen=True, slots=True)
class NumericOptions:
    """Where long arrays are computed."""

    device: Device = "auto"
    # On numpy fewer take a few milliseconds each: a GPU saves nothing, and loading torch takes seconds.
    fewest_rows: int = 100_000


def choose_kernels(rows: int, options: NumericOptions) -> Kernels:
    """Return what computes arrays of that many rows.

    >>> type(choose_kernels(64, NumericOptions())).__name__
    'NumpyKernels'
    """
    if options.device == "numpy" or rows < options.fewest_rows:
        return NumpyKernels()
    device = find_device() if options.device == "auto" else options.device
    return NumpyKernels() if device is None else _torch_kernels(device)


@lru_cache(maxsize=1)
def find_device() -> str | None:
    """Return what torch calls the GPU of this machine, None where there is none that it can use."""
    if not _DRIVER.exists():
        return None
    try:
        import torch  # only where there is a GPU: it takes seconds to load
    except ImportError:
        return None
    return "cuda" if torch.cuda.is_available() else None


@lru_cache(maxsize=2)
def _torch_kernels(device: str) -> Kernels:
    try:
        from analyzer.straggler.torch_kernels import TorchKernels  # loads torch
    except ImportError as error:
        raise NotPresent(
            f"analyzer.device is {device}, which needs torch: pip install 'lockstep[analyzer-gpu]', or set numpy"
        ) from error
    return TorchKernels(device)
