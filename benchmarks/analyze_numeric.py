"""The numeric core of late ranks alone, on numpy and on the GPU: the same rows have to give the same figures.

A window of 65,536 ranks is made of single operations, as many as are judged one by one; a million ranks of five
seconds of statistics, as the service reads them. Nothing here asks a store; any machine with a GPU can run it:

    python -m benchmarks.analyze_numeric
"""

import sys
import time
from dataclasses import dataclass, fields

import numpy as np

from analyzer.lateness.excess import Excess, measure_excess
from analyzer.lateness.reading import Operations
from analyzer.numeric.kernels import Device, Kernels, NumericOptions, choose_kernels, find_device
from lockstep.clock import NS_PER_S

_GROUP = 8  # ranks of a tensor parallel group
_SINGLE_TURNS = 15  # operations of each of 65,536 ranks: just below the million rows that are judged one by one
_SECONDS = 5
_LATE, _LATE_BY = 27, 0.1  # a rank, and the share of its time that it takes longer
_SEED = 1
_AGAIN = 3  # the fastest of so many counts, after one that loads what has to be loaded


@dataclass(frozen=True)
class NumericCost:
    """What the numeric core took on one device."""

    ranks: int
    rows: int
    device: str
    cpu_s: float
    wall_s: float  # copies to the device and back included
    is_same: bool  # whether all figures are those of numpy, bit for bit


def measure_numeric(ranks: int, devices: tuple[Device, ...]) -> list[NumericCost]:
    """Measure late ranks on numpy and on some devices."""
    are_sums = ranks > 65_536
    rows = sums_of_seconds(ranks) if are_sums else single_operations(ranks)
    expected, cost = _timed(rows, are_sums, ranks, "numpy")
    costs = [NumericCost(ranks, len(rows), "numpy", *cost, is_same=True)]
    for device in devices:
        found, cost = _timed(rows, are_sums, ranks, device)
        costs.append(NumericCost(ranks, len(rows), device, *cost, is_same=is_equal(found, expected)))
    return costs


def is_equal(one: Excess | None, other: Excess | None) -> bool:
    """Return whether two measurements are the same, bit for bit."""
    if one is None or other is None:
        return one is other
    pairs = ((getattr(one, each.name), getattr(other, each.name)) for each in fields(Excess))
    return all(np.array_equal(mine, yours, equal_nan=True) for mine, yours in pairs)


def single_operations(ranks: int) -> Operations:
    """Return the operations of a job of tensor parallel groups, one row a rank and operation."""
    rank, turn = (column.reshape(-1) for column in np.meshgrid(np.arange(ranks), np.arange(_SINGLE_TURNS)))
    return _as_operations(
        rank, comm=rank // _GROUP, place=rank % _GROUP, turn=turn, step_ns=NS_PER_S // 3, own_ns=200_000_000
    )


def sums_of_seconds(ranks: int) -> Operations:
    """Return what each rank of a job did in each of some seconds, one row a rank and second."""
    rank, second = (column.reshape(-1) for column in np.meshgrid(np.arange(ranks), np.arange(_SECONDS)))
    return _as_operations(
        rank, comm=np.zeros_like(rank), place=rank, turn=second, step_ns=NS_PER_S, own_ns=600_000_000
    )


def _as_operations(
    rank: np.ndarray, comm: np.ndarray, place: np.ndarray, turn: np.ndarray, step_ns: int, own_ns: int
) -> Operations:
    noise = np.random.default_rng(_SEED)
    own = own_ns * (1 + noise.normal(0, 0.005, len(rank)) + np.where(rank == _LATE, _LATE_BY, 0.0))
    gap_ns = np.rint(own)
    zeros = np.zeros(len(rank), np.int64)
    return Operations(
        process=rank,
        comm=comm.astype(np.uint64),
        rank=place,
        func=zeros.astype(np.uint64),
        sends=zeros > 0,
        peer=zeros - 1,
        turn=turn,
        replay=zeros,
        size=zeros + 1,
        start_ns=turn * step_ns + gap_ns.astype(np.int64),
        dur_ns=step_ns - gap_ns,
        gap_ns=gap_ns,
        gpu_ns=gap_ns * noise.random(len(rank)),
    )


def _timed(rows: Operations, are_sums: bool, ranks: int, device: Device) -> tuple[Excess | None, tuple[float, float]]:
    kernels: Kernels = choose_kernels(len(rows), NumericOptions(device=device, fewest_rows=0))
    found, costs = None, []
    for _ in range(1 + _AGAIN):
        cpu, wall = time.process_time(), time.perf_counter()
        found = measure_excess(rows, are_sums, ranks, None, kernels)
        costs.append((time.process_time() - cpu, time.perf_counter() - wall))
    return found, min(costs[1:], key=lambda cost: cost[1])


def main() -> None:
    """Print what the numeric core takes on this machine, on the CPU by torch as well."""
    devices: tuple[Device, ...] = ("cpu", "cuda") if find_device() else ("cpu",)
    for ranks in (65_536, 1_000_000):
        for cost in measure_numeric(ranks, devices):
            same = "same" if cost.is_same else "DIFFERENT"
            took = f"{cost.cpu_s:.3f} CPU s, {cost.wall_s:.3f} s"
            sys.stdout.write(f"{cost.ranks:,} ranks, {cost.rows:,} rows on {cost.device}: {took}, {same} figures\n")


if __name__ == "__main__":
    main()
