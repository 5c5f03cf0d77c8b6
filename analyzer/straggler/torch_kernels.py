"""The kernels on torch, made for a GPU; `kernels.Kernels` says what each of them means.

Only what does not depend on the order of threads is used: sorts, integers, extremes, and sums of whole numbers.
"""

import numpy as np
import torch

from analyzer.straggler.kernels import MIX, SHIFT

_MIX = int(MIX.astype(np.int64))  # torch has no unsigned arithmetic; products of 64 bits are the same
_LOW = (1 << (64 - SHIFT)) - 1  # what a shift of unsigned numbers leaves: torch's fills up with the sign
_SIGN = -(1 << 63)


class TorchKernels:
    """Computes on a device that torch knows."""

    def __init__(self, device: str) -> None:
        self._device = torch.device(device)

    def number(self, *columns: np.ndarray) -> tuple[np.ndarray, int]:
        mixed = torch.zeros(len(columns[0]), dtype=torch.int64, device=self._device)
        for column in columns:
            mixed = (mixed ^ self._put(column.astype(np.int64, copy=False))) * _MIX
            mixed = mixed ^ ((mixed >> SHIFT) & _LOW)
        # Turning the sign makes the order that of unsigned numbers.
        found, numbers = torch.unique(mixed ^ _SIGN, return_inverse=True)
        return self._get(numbers), len(found)

    def median_by(self, values: np.ndarray, group: np.ndarray, groups: int, *, upper: bool = False) -> np.ndarray:
        ordered, order = torch.sort(self._put(values), stable=True)
        of = self._put(group)
        index = torch.sort(of[order], stable=True).indices
        sizes = torch.bincount(of, minlength=groups)
        middle = torch.cumsum(sizes, 0) - sizes + (sizes // 2 if upper else (sizes - 1) // 2)
        return self._get(ordered[index[middle]])

    def sum_by(self, values: np.ndarray, group: np.ndarray, groups: int) -> np.ndarray:
        sums = torch.zeros(groups, dtype=torch.float64, device=self._device)
        return self._get(sums.index_add_(0, self._put(group), self._put(values.astype(np.float64, copy=False))))

    def max_by(self, values: np.ndarray, group: np.ndarray, groups: int, empty: float) -> np.ndarray:
        return self._extreme(values, group, groups, empty, "amax")

    def min_by(self, values: np.ndarray, group: np.ndarray, groups: int, empty: float) -> np.ndarray:
        return self._extreme(values, group, groups, empty, "amin")

    def _extreme(self, values: np.ndarray, group: np.ndarray, groups: int, empty: float, which: str) -> np.ndarray:
        of = self._put(values)
        found = torch.full((groups,), empty, dtype=of.dtype, device=self._device)
        return self._get(found.scatter_reduce_(0, self._put(group), of, which))

    def _put(self, array: np.ndarray) -> torch.Tensor:
        return torch.from_numpy(np.ascontiguousarray(array)).to(self._device)

    def _get(self, tensor: torch.Tensor) -> np.ndarray:
        found: np.ndarray = tensor.cpu().numpy()
        return found
